"""The paper's selection by an expensive function, in two variants that are each other's opposite.

The query keeps the rows whose ``x`` passes a test. Both variants of the test answer alike, but
:func:`udf0` takes long for small ``x`` and :func:`udf1` for large ones: each busies the processor
for ``spark.lmerge.plans.dear_us`` microseconds a row there, and for
``spark.lmerge.plans.cheap_us`` elsewhere. In the input ``x`` is small for a while and then large
for a while, so that each plan is the faster one half of the time. Merged, they are as fast as the
faster: what one has delivered is fast-forwarded over in the other, before its test, also in the
middle of a batch. :func:`always_cheap` is what no plan can be: never dear, for comparison.

A row lives for a second from its time ``at``. No row comes more than ``DELAY_S`` late, which the
stable point follows from: it is that of the batch at hand, where a watermark's is one batch older.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from replicas.fast_forwarding import Step, fast_forward
from replicas.plans.inputs import (
    BEGIN,
    DELAY_S,
    SECOND,
    TIME,
    Plan,
    horizon,
    number,
    stream,
    table,
    write,
)

CHEAP_CONF: Final = "spark.lmerge.plans.cheap_us"
CHEAP_US: Final = 1
DEAR_CONF: Final = "spark.lmerge.plans.dear_us"
DEAR_US: Final = 20
EVERY: Final = 25
"""Rows that are tested between two looks at the horizon."""
LARGEST: Final = 400
"""``x`` is below it, and small below its half."""
PHASE_ROWS: Final = 100
"""How long ``x`` stays small, and then large, unless it is said."""
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
    "stable": f"at - INTERVAL {DELAY_S} SECONDS",
    "keyed": True,  # by number
    "options": {"restriction": "R3"},
}


def udf0(spark: SparkSession) -> Plan:
    """Dear for small ``x``."""
    return _selected(spark, lambda x: x < LARGEST // 2), dict(_OPTIONS)


def udf1(spark: SparkSession) -> Plan:
    """Dear for large ``x``."""
    return _selected(spark, lambda x: x >= LARGEST // 2), dict(_OPTIONS)


def always_cheap(spark: SparkSession) -> Plan:
    """The cheaper of the two for every row."""
    return _selected(spark, lambda _: False), dict(_OPTIONS)


def _selected(spark: SparkSession, is_dear: Callable[[int], bool]) -> DataFrame:
    rows = stream(spark, look_back="1 second")
    dear_us, cheap_us = number(spark, DEAR_CONF, DEAR_US), number(spark, CHEAP_CONF, CHEAP_US)
    test = _test(is_dear, dear_us, cheap_us)
    return fast_forward(rows, _ENDS, horizon=horizon(spark), then=test, every=EVERY)


def _test(is_dear: Callable[[int], bool], dear_us: int, cheap_us: int) -> Step:
    def passes(x: int) -> bool:
        end = time.perf_counter_ns() + (dear_us if is_dear(x) else cheap_us) * 1000
        while time.perf_counter_ns() < end:
            pass
        return x % 4 != 0

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [passes(x) for x in batch.column("x").to_pylist()]
            yield batch.filter(pa.array(found, pa.bool_()))

    return passing


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """The same test, as Spark's own expression."""
    kept = table(spark, directory).where("x % 4 <> 0")
    return kept.selectExpr(
        "number", "x", "unix_micros(at) AS vs", f"unix_micros(at) + {SECOND} AS ve"
    )


def phases(rows: int, lengths: Sequence[int]) -> list[int]:
    """For each row the number of the phase that it is in; the lengths are gone through again."""
    found: list[int] = []
    phase = 0
    while len(found) < rows:
        found += [phase] * lengths[phase % len(lengths)]
        phase += 1
    return found[:rows]


def generate(
    directory: str | Path,
    rows: int,
    seed: int,
    disorder_s: float,
    lengths: Sequence[int] = (PHASE_ROWS,),
) -> int:
    """Write the input; what starts before the time that is returned is complete once it is read.

    ``lengths`` are those of the phases, in rows: small ``x``, large ``x``, and so on.
    """
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    half = LARGEST // 2
    found = [
        {
            "at": BEGIN + (n * SECOND + pick.randrange(SECOND)) // ROWS_PER_SECOND,
            "number": n,
            "x": pick.randrange(half) + half * (phase % 2),
        }
        for n, phase in enumerate(phases(rows, lengths))
    ]
    return write(
        directory,
        SCHEMA,
        found,
        lambda at, n: {"at": at, "number": rows + n, "x": 1},
        seed=seed,
        disorder_s=disorder_s,
    )
