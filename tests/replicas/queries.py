"""Queries for replicas that run as processes; what they read and where they stop is in the
environment. Files named as gates let a test hold a task in the middle of a batch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

INPUT = "LMERGE_TEST_INPUT"
GATE = "LMERGE_TEST_GATE"
WINDOW = "10 seconds"
SECOND = 1_000_000
GATE_SECONDS = 120.0


def rows(spark: SparkSession, *, streaming: bool = True) -> DataFrame:
    reader: Any = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
    found = reader.schema("at DOUBLE, machine STRING, v BIGINT").json(os.environ[INPUT])
    at = F.timestamp_micros((F.col("at") * SECOND).cast("bigint"))
    selected: DataFrame = found.select(at.alias("at"), "machine", "v")
    return selected.withWatermark("at", "20 seconds")


def counted(found: DataFrame) -> DataFrame:
    return found.groupBy(F.window("at", WINDOW), "machine").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )


def gated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives rows with v = 50 on only once the gate is open; says that it waits."""
    gate = Path(os.environ[GATE])
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if any(machine == "slow" for machine in batch.column("machine").to_pylist()):
            gate.with_suffix(".waits").touch()
            give_up = time.monotonic() + GATE_SECONDS
            while not gate.exists() and time.monotonic() < give_up:
                time.sleep(0.01)
        yield batch.slice(batch.num_rows // 2)


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of every task fails after half of its rows."""
    context = TaskContext.get()
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if context is not None and context.attemptNumber() == 0 and batch.num_rows:
            raise RuntimeError("the first attempt fails")
        yield batch.slice(batch.num_rows // 2)


def conservative(spark: SparkSession) -> DataFrame:
    return counted(rows(spark))


def aggressive(spark: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    return counted(rows(spark)), {"mode": "update"}


def held(spark: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    found = rows(spark)
    return counted(found.mapInArrow(gated, found.schema)), {"mode": "update"}


def plain(spark: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    return rows(spark).repartition(3), {
        "vs": "at", "ve": "at + INTERVAL 1 SECOND", "payload": ["machine", "v"], "path": "tasks",
    }  # fmt: skip


def retried(spark: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    found, options = plain(spark)
    return found.mapInArrow(failing, found.schema), options


def dying(spark: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    found, options = plain(spark)
    return found.withColumn("v", F.expr("if(machine = 'slow', assert_true(v < 0), v)")), options


def broken(spark: SparkSession) -> DataFrame:
    return rows(spark).select("no_such_column")
