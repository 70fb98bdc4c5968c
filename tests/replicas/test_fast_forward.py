"""The fast_forward step: what it drops, in the middle of a micro-batch too, and what it keeps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, window

from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY
from replicas.fast_forwarding import dropper, fast_forward
from replicas.feeding import feed
from replicas.horizon import CONF, HorizonServer, horizon_at, serve
from tests.replicas.test_feed import SECOND_US, SECONDS, instant, stretch, write
from tests.replicas.test_horizon import until


@pytest.fixture
def server() -> Iterator[HorizonServer]:
    server = HorizonServer()
    yield server
    server.close()


def batch(times: list[int | None]) -> pa.RecordBatch:
    numbers = list(range(len(times)))
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(numbers), "ends": pa.array(times, pa.int64())}
    )  # fmt: skip


def numbers(batches: Iterator[pa.RecordBatch]) -> list[list[int]]:
    return [each.column("n").to_pylist() for each in batches]


def moved(server: HorizonServer, t: int) -> None:
    server.advance(t)
    until(lambda: horizon_at(server.address, wait=1) == t)


# -- the step alone ----------------------------------------------------------------------------


def test_rows_that_end_before_the_horizon_are_dropped_and_nulls_are_not(
    server: HorizonServer,
) -> None:
    moved(server, 10)
    given = batch([9, 10, None, 11, 3, INFINITY])
    assert numbers(dropper(server.address, 0)(iter([given]))) == [[1, 2, 3, 5]]
    until(lambda: server.counters().get("rows_seen") == 6)
    assert server.counters()["rows_dropped"] == 2


def test_look_back_keeps_rows_that_ended_not_long_before(server: HorizonServer) -> None:
    moved(server, 10)
    assert numbers(dropper(server.address, 3)(iter([batch([6, 7, 9, 10])]))) == [[1, 2, 3]]


def test_before_any_feedback_nothing_is_dropped(server: HorizonServer) -> None:
    assert numbers(dropper(server.address, 0)(iter([batch([-5, 0, None])]))) == [[0, 1, 2]]
    until(lambda: server.counters().get("rows_seen") == 3)
    assert "rows_dropped" not in server.counters()


def test_each_arrow_batch_asks_anew(server: HorizonServer) -> None:
    kept = dropper(server.address, 0)(iter([batch([1, 5, 9])] * 3))
    assert next(kept).num_rows == 3
    moved(server, 5)
    assert next(kept).column("n").to_pylist() == [1, 2]
    moved(server, 50)
    last = next(kept)
    assert last.num_rows == 0
    assert last.schema.names == ["n"]


def test_work_behind_the_step_gets_few_rows_at_a_time_and_the_horizon_is_asked_in_between(
    server: HorizonServer,
) -> None:
    given = [batch([1, 2, 3, 4, 5, 6, 7, 8, 9]), batch([3, 12, 13])]
    kept = dropper(server.address, 0, every=2)(iter(given))
    assert next(kept).column("n").to_pylist() == [0, 1]
    moved(server, 7)
    assert numbers(kept) == [[6, 7], [8], [1, 2]]
    until(lambda: server.counters().get("rows_seen") == 12)
    assert server.counters()["rows_dropped"] == 5


def test_work_is_done_on_what_is_kept(spark: SparkSession, server: HorizonServer) -> None:
    moved(server, 7)

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            yield pa.record_batch({"twice": pc.multiply(rows.column("id"), 2)})

    step: dict[str, Any] = {"then": doubled, "schema": "twice BIGINT", "every": 2}
    kept = fast_forward(spark.range(10), "id", horizon=server.address, **step)
    assert sorted(row.twice for row in kept.collect()) == [14, 16, 18]
    everything = fast_forward(spark.range(10), "id", horizon="", **step)
    assert everything.count() == 10
    with pytest.raises(ConfigurationError, match="there is no then"):
        fast_forward(spark.range(10), "id", horizon="", schema="id BIGINT")
    with pytest.raises(ConfigurationError, match="every must be at least 1"):
        fast_forward(spark.range(10), "id", horizon="", then=doubled, every=0)


# -- in a query ----------------------------------------------------------------------------------


def run(df: DataFrame, checkpoint: Path) -> tuple[list[int], list[dict[str, Any]]]:
    rows: list[int] = []
    query = (
        df.writeStream.foreachBatch(lambda df, _: rows.extend(row.n for row in df.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS)
        return rows, [json.loads(progress.json) for progress in query.recentProgress]
    finally:
        query.stop()


def test_a_micro_batch_on_its_way_gets_shorter_when_the_horizon_moves(
    spark: SparkSession, tmp_path: Path, server: HorizonServer
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", stretch(0, 40_000))
    df = feed(spark, str(folder), time="ts", rows_per_batch=40_000, horizon="")
    address, signal = server.address, str(tmp_path / "signal")

    def dear(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, rows in enumerate(batches):
            if number == 2:  # so far nothing was dropped; the driver is told to move the horizon
                Path(signal).touch()
                end = time.monotonic() + SECONDS
                while horizon_at(address) != instant(35_000) and time.monotonic() < end:
                    time.sleep(0.01)
            yield rows.select(["n"])

    # Wide rows: the step is held back by what comes after it, and not by a buffer's size.
    wide = df.selectExpr("ts", "n", "repeat(cast(n AS STRING), 400) AS wide")
    plan = fast_forward(wide, "ts", horizon=address).mapInArrow(dear, "n BIGINT")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    kept: list[int] = []
    query = (
        plan.writeStream.foreachBatch(lambda df, _: kept.extend(row.n for row in df.collect()))
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        until(lambda: Path(signal).exists() or not query.isActive)
        server.advance(instant(35_000))
        assert query.awaitTermination(SECONDS)
        batches = {p["batchId"] for p in query.recentProgress if p["numInputRows"]}
    finally:
        query.stop()
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(batches) == 1, "it all was one micro-batch"
    assert kept[:1500] == list(range(1500)), "what had passed before the move stays"
    assert kept[-5000:] == list(range(35_000, 40_000)), "what is needed is all there"
    dropped = 40_000 - len(kept)
    assert dropped > 5_000
    until(lambda: server.counters().get("rows_dropped") == dropped)
    assert server.counters()["rows_seen"] == 40_000


def test_the_watermark_goes_on_behind_the_step_and_moves_by_dropped_rows_too(
    spark: SparkSession, tmp_path: Path, server: HorizonServer
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", stretch(0, 1000))
    moved(server, instant(510))
    df = feed(spark, str(folder), time="ts", rows_per_batch=250, horizon="")
    timed = df.withWatermark("ts", "10 seconds")
    stepped = fast_forward(timed, "ts", look_back="110 seconds", horizon=server.address)
    assert stepped.schema == timed.schema
    counts = stepped.groupBy(window("ts", "100 seconds")).agg(count("*").alias("n"))
    rows, progress = run(counts, tmp_path / "check")
    # [400, 500) is the first that is needed; [900, 1000) is still open.
    assert rows == [100] * 5
    marks = [p["eventTime"]["watermark"] for p in progress]
    assert marks[2] == "2026-01-01T00:08:09.000Z", "of row 499, in a batch that lost most rows"
    assert marks[1] == "2026-01-01T00:03:59.000Z", "of row 249, in a batch that lost all"


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ", "DATE", "BIGINT", "INT"])
def test_ends_is_any_expression_that_is_a_time(
    spark: SparkSession, server: HorizonServer, kind: str
) -> None:
    day = 86_400 * SECOND_US
    source = {
        "BIGINT": "id * 86400000000L", "INT": "CAST(id AS INT)", "DATE": "date_from_unix_date(id)",
        "TIMESTAMP": "timestamp_micros(id * 86400000000L)",
        "TIMESTAMP_NTZ": "CAST(date_from_unix_date(id) AS TIMESTAMP_NTZ)",
    }[kind]  # fmt: skip
    moved(server, 5 if kind == "INT" else 5 * day)
    df = spark.range(10).selectExpr("id AS n", f"{source} AS t")
    kept = fast_forward(df, "CASE WHEN n <> 2 THEN t END", horizon=server.address)
    assert kept.schema == df.schema
    assert sorted(row.n for row in kept.collect()) == [2, 5, 6, 7, 8, 9]


def test_without_a_horizon_the_plan_is_left_as_it_is(spark: SparkSession) -> None:
    df = spark.range(3)
    assert fast_forward(df, "id", horizon="") is df


def test_by_default_it_is_the_horizon_of_the_session(spark: SparkSession) -> None:
    own = spark.newSession()
    kept = fast_forward(own.range(10), "id")
    server = serve(own)
    assert server.address == own.conf.get(CONF)
    moved(server, 7)
    assert [row.id for row in kept.select(col("id")).collect()] == [7, 8, 9]
    server.close()


@pytest.mark.parametrize(
    ("ends", "look_back", "said"),
    [
        ("nonsense", "0 s", "ends='nonsense' is not an expression of it: "),
        ("id +", "0 s", "ends='id +' is not an expression of it: "),
        ("cast(id AS STRING)", "0 s", "is of type string, which is not a time"),
        ("id", "a while", "'a while' is not a duration such as"),
        ("__lmerge_ends", "0 s", "a column may not be called __lmerge_ends"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    spark: SparkSession, ends: str, look_back: str, said: str
) -> None:
    df = spark.range(3)
    if ends.startswith("__"):
        df = df.withColumn(ends, col("id"))
    with pytest.raises(ConfigurationError) as refused:
        fast_forward(df, ends, look_back=look_back, horizon="127.0.0.1:1/x")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
