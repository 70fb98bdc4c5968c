"""The paper's selection by an expensive function, in two variants that are each other's opposite.

The query keeps the rows whose ``x`` passes a test. Both variants of the test answer alike, but
:func:`udf0` takes long for small ``x`` and :func:`udf1` for large ones: each busies the processor
for ``spark.lmerge.plans.dear_us`` microseconds a row. In the input ``x`` is small for a while and
then large for a while, so that each plan is the faster one half of the time. Merged, they are as
fast as the faster: what one has delivered is fast-forwarded over in the other, before its test.

A row lives for a second from its time ``at``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from replicas.fast_forwarding import fast_forward
from replicas.plans.inputs import BEGIN, SECOND, TIME, Plan, number, stream, table, write

DEAR_CONF: Final = "spark.lmerge.plans.dear_us"
DEAR_US: Final = 20
LARGEST: Final = 400
"""``x`` is below it, and small below its half."""
PHASE_ROWS: Final = 100
"""How long ``x`` stays small, and then large."""
ROWS_PER_SECOND: Final = 10
SCHEMA: Final = pa.schema(
    [pa.field("at", TIME), pa.field("number", pa.int64()), pa.field("x", pa.int64())]
)
_ENDS: Final = "at + INTERVAL 1 SECOND"
_OPTIONS: Final[dict[str, Any]] = {
    "mode": "append",
    "vs": "at",
    "ve": _ENDS,
    "payload": ["number", "x"],
    "keyed_input": True,  # by number
    "options": {"restriction": "R3"},
}


def udf0(spark: SparkSession) -> Plan:
    """Dear for small ``x``."""
    return _selected(spark, lambda x: x < LARGEST // 2), dict(_OPTIONS)


def udf1(spark: SparkSession) -> Plan:
    """Dear for large ``x``."""
    return _selected(spark, lambda x: x >= LARGEST // 2), dict(_OPTIONS)


def _selected(spark: SparkSession, is_dear: Callable[[int], bool]) -> DataFrame:
    rows = stream(spark, look_back="1 second")
    passes = _test(is_dear, number(spark, DEAR_CONF, DEAR_US))
    return fast_forward(rows, _ENDS).where(passes("x"))


def _test(is_dear: Callable[[int], bool], dear_us: int) -> Callable[[str], Column]:
    def passes(x: int) -> bool:
        if is_dear(x):
            end = time.perf_counter_ns() + dear_us * 1000
            while time.perf_counter_ns() < end:
                pass
        return x % 4 != 0

    # Said, and not inferred from the hints, which are text here.
    made: Callable[[str], Column] = F.udf(passes, "boolean", useArrow=False)
    return made


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """The same test, as Spark's own expression."""
    kept = table(spark, directory).where("x % 4 <> 0")
    return kept.selectExpr(
        "number", "x", "unix_micros(at) AS vs", f"unix_micros(at) + {SECOND} AS ve"
    )


def generate(directory: str | Path, rows: int, seed: int, disorder_s: float) -> int:
    """Write the input; what starts before the time that is returned is complete once it is read."""
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    half = LARGEST // 2
    found = [
        {
            "at": BEGIN + (n * SECOND + pick.randrange(SECOND)) // ROWS_PER_SECOND,
            "number": n,
            "x": pick.randrange(half) + half * (n // PHASE_ROWS % 2),
        }
        for n in range(rows)
    ]
    return write(
        directory,
        SCHEMA,
        found,
        lambda at, n: {"at": at, "number": rows + n, "x": 1},
        seed=seed,
        disorder_s=disorder_s,
    )
