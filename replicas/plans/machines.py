"""How many readings each machine gave in each ten seconds, and their sum.

- :func:`conservative` (append) says each count once, when the watermark has passed its window;
- :func:`aggressive` (update) says it at once and revises it as rows arrive.

The plan is the same; what differs is when it speaks. The merge has the freshness of the one and,
where the other gets there first, its finality. A count lives in the default lifetime, while it is
the latest: ``[window.end, window.end + 10 s)``.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from replicas.plans.inputs import BEGIN, SECOND, TIME, Plan, stream, table, write

WINDOW_S: Final = 10
MACHINES: Final = 4
ROWS_PER_SECOND: Final = 2
SCHEMA: Final = pa.schema(
    [pa.field("at", TIME), pa.field("machine", pa.string()), pa.field("reading", pa.int64())]
)


def conservative(spark: SparkSession) -> Plan:
    """Final counts only."""
    return _counts(spark), {"mode": "append", "options": {"restriction": "R3"}}


def aggressive(spark: SparkSession) -> Plan:
    """Counts so far, revised."""
    return _counts(spark), {"mode": "update", "options": {"restriction": "R3"}}


def _counts(spark: SparkSession) -> DataFrame:
    # A row matters until the count of its window is no more the latest.
    rows = stream(spark, look_back=f"{2 * WINDOW_S} seconds")
    return rows.groupBy(F.window("at", f"{WINDOW_S} seconds"), "machine").agg(
        F.count("*").alias("n"), F.sum("reading").alias("total")
    )


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """The counts, with ``vs`` and ``ve`` in microseconds."""
    counts = (
        table(spark, directory)
        .groupBy(F.window("at", f"{WINDOW_S} seconds"), "machine")
        .agg(F.count("*").alias("n"), F.sum("reading").alias("total"))
    )
    return counts.selectExpr(
        "*",
        "unix_micros(window.end) AS vs",
        f"unix_micros(window.end) + {WINDOW_S * SECOND} AS ve",
    )


def generate(directory: str | Path, rows: int, seed: int, disorder_s: float) -> int:
    """Write the input; what starts before the time that is returned is complete once it is read."""
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    readings = [
        {
            "at": BEGIN + n * SECOND // ROWS_PER_SECOND + pick.randrange(SECOND),
            "machine": f"m{pick.randrange(MACHINES)}",
            "reading": pick.randrange(100),
        }
        for n in range(rows)
    ]
    return write(
        directory,
        SCHEMA,
        readings,
        lambda at, _: {"at": at, "machine": "closing", "reading": 0},
        seed=seed,
        disorder_s=disorder_s,
    )
