"""Spark: ``dropDuplicatesWithinWatermark`` over the union of the replicas, each a stream of files.

Which is what its documentation recommends for deduplicating within a watermark. It keeps the first
row of a key and drops all others, revisions too: right for streams of inserts alone. The events
come out by foreachBatch, of which the first counts Spark's warming up; the watermark is longer than
any replica's disorder.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from given import EVENT, Part, main
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody does)

FILES_PER_TRIGGER = 4


def merge(given: list[Part]) -> tuple[pa.Table, float, list[float]]:
    """Run the query over everything that is there."""
    folder = Path(tempfile.mkdtemp(prefix="lmerge-peer-"))
    try:
        return _merge(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _merge(given: list[Part], folder: Path) -> tuple[pa.Table, float, list[float]]:
    for name in {part.replica for part in given}:
        (folder / name).mkdir()
    for i, part in enumerate(given):
        table = pa.Table.from_batches([part.batch]).select(["vs", "ve", "x", "s"])
        pq.write_table(table, folder / part.replica / f"{i:06}.parquet")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")  # as many as there are cores
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    union: DataFrame | None = None
    for name in sorted({part.replica for part in given}):
        one = (
            spark.readStream.schema("vs LONG, ve LONG, x LONG, s STRING")
            .option("maxFilesPerTrigger", FILES_PER_TRIGGER)
            .parquet(str(folder / name))
        )
        union = one if union is None else union.union(one)
    assert union is not None
    kept = (
        union.withColumn("at", F.timestamp_seconds(F.col("vs")))
        .withWatermark("at", "2 hours")
        .dropDuplicatesWithinWatermark(["vs", "x", "s"])
        .select("vs", "ve", "x", "s")
    )
    found: list[pa.Table] = []
    query = (
        kept.writeStream.foreachBatch(lambda batch, _: found.append(batch.toArrow()))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    begin = time.perf_counter()
    query.start().awaitTermination()
    seconds = time.perf_counter() - begin
    spark.stop()
    events = pa.concat_tables([table.cast(EVENT) for table in found])
    return events.filter(pa.compute.greater(events["ve"], events["vs"])), seconds, []


if __name__ == "__main__":
    main(merge, pyspark.__version__)
