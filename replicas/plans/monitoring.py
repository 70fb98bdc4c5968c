"""What the processes of each host use, every two seconds, from samples that keep coming.

The queries of ``lmerge demo --live``: short windows over a feed that is written while they run.

- :func:`conservative` (append) says a window's result once, when the watermark has passed it;
- :func:`aggressive` (update) says it at once, and revises it as samples arrive;
- :func:`staged` (append) sums each process first, and the processes of a host then.

A result lives while it is the latest: ``[window.end, window.end + 2 s)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.errors import ConfigurationError
from replicas.feeding import ROWS_PER_BATCH, feed
from replicas.plans.inputs import INPUT_CONF, ROWS_CONF, SECOND, TIME, Plan, number, table

WINDOW_S: Final = 2
DELAY_S: Final = 1
"""The watermark's delay: samples come at most so late."""
SCHEMA: Final = pa.schema(
    [
        pa.field("at", TIME),
        pa.field("host", pa.string()),
        pa.field("process", pa.int64()),
        pa.field("cpu", pa.int64()),
    ]
)
_WINDOW: Final = f"{WINDOW_S} seconds"


def conservative(spark: SparkSession) -> Plan:
    """Final results only."""
    return _used(_samples(spark)), {"mode": "append", "options": {"restriction": "R3"}}


def aggressive(spark: SparkSession) -> Plan:
    """Results so far, revised."""
    return _used(_samples(spark)), {"mode": "update", "options": {"restriction": "R3"}}


def staged(spark: SparkSession) -> Plan:
    """In two stages: what each process used, and the sum of that."""
    each = _samples(spark).groupBy(F.window("at", _WINDOW), "host", "process")
    partial = each.agg(F.count("*").alias("part"), F.sum("cpu").alias("used"))
    hosts = partial.groupBy(F.window(F.window_time("window"), _WINDOW), "host")
    used = hosts.agg(F.sum("part").alias("samples"), F.sum("used").alias("cpu"))
    return used, {"mode": "append", "options": {"restriction": "R3"}}


def _samples(spark: SparkSession) -> DataFrame:
    directory = spark.conf.get(INPUT_CONF, None)
    if not directory:
        raise ConfigurationError(f"{INPUT_CONF} must name the directory of the input: --conf")
    found = feed(
        spark,
        directory,
        time="at",
        disorder=f"{DELAY_S} seconds",
        # A sample matters until the result of its window is no more the latest.
        look_back=f"{2 * WINDOW_S} seconds",
        rows_per_batch=number(spark, ROWS_CONF, ROWS_PER_BATCH),
    )
    return found.withWatermark("at", f"{DELAY_S} seconds")


def _used(samples: DataFrame) -> DataFrame:
    return samples.groupBy(F.window("at", _WINDOW), "host").agg(
        F.count("*").alias("samples"), F.sum("cpu").alias("cpu")
    )


def truth(spark: SparkSession, directory: str | Path) -> DataFrame:
    """What a batch job says of everything that was written."""
    return _used(table(spark, str(directory))).selectExpr(
        "*",
        "unix_micros(window.end) AS vs",
        f"unix_micros(window.end) + {WINDOW_S * SECOND} AS ve",
    )
