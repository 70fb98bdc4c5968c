"""The feed: what it skips, what it never skips, and that a replay reads the same rows."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, window
from pyspark.sql.functions import min as least
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType, TimestampType

from lmerge.errors import ConfigurationError, InputError
from lmerge.times import BEGINNING
from replicas import feeding as feeds
from replicas.feeding import FeedReader, Settings, feed, register_feed
from replicas.horizon import CONF, HorizonServer, serve
from tests.replicas.test_horizon import until

SECONDS = 60
SECOND_US = 1_000_000
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FORMATS = ("parquet", "jsonl", "csv")

Rows = list[tuple[int | None, int]]  # the time in seconds after BEGIN, and a number


@pytest.fixture
def server() -> Iterator[HorizonServer]:
    server = HorizonServer()
    yield server
    server.close()


def instant(seconds: float) -> int:
    return int(BEGIN.timestamp() + seconds) * SECOND_US


def write(path: Path, rows: Rows, *, group: int = 1000) -> None:
    times = [None if t is None else BEGIN + dt.timedelta(seconds=t) for t, _ in rows]
    numbers = [n for _, n in rows]
    if path.suffix == ".jsonl":
        shown = [None if t is None else t.isoformat().replace("+00:00", "Z") for t in times]
        lines = [json.dumps({"ts": t, "n": n}) for t, n in zip(shown, numbers, strict=True)]
        path.write_text("".join(line + "\n" for line in lines))
        return
    table = pa.table(
        {"ts": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(numbers, pa.int64())}
    )
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path, row_group_size=group)


def stretch(first: int, last: int) -> Rows:
    """One row a second."""
    return [(n, n) for n in range(first, last)]


class Run:
    """A query over a feed, and what came in each of its batches."""

    def __init__(self, df: DataFrame, checkpoint: Path) -> None:
        self._df = df
        self._checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}
        self.fails_in: int | None = None
        self.after: Callable[[int], None] = lambda batch: None

    def _take(self, rows: DataFrame, batch: int) -> None:
        self.batches[batch] = [row.n for row in rows.select("n").collect()]
        if batch == self.fails_in:
            raise RuntimeError("as the test wants it")
        self.after(batch)

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._df.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def finish(self) -> dict[int, list[int]]:
        query = self.start()
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()
        return self.batches

    def fail(self) -> str:
        with pytest.raises(StreamingQueryException) as failed:
            self.finish()
        return str(failed.value)


def all_rows(batches: dict[int, list[int]]) -> list[int]:
    return [n for batch in sorted(batches) for n in batches[batch]]


# -- what it reads and skips, on Spark -----------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_it_reads_all_in_order_and_jumps_by_the_horizon(
    spark: SparkSession, tmp_path: Path, server: HorizonServer, kind: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        write(folder / f"{number}.{kind}", stretch(100 * number, 100 * number + 100), group=25)
    df = feed(
        spark, str(folder), time="ts", rows_per_batch=50, look_back="10 seconds",
        horizon=server.address,
    )  # fmt: skip
    run = Run(df, tmp_path / "check")

    def move(batch: int) -> None:
        if batch == 1:
            server.advance(instant(230))

    run.after = move
    batches = run.finish()
    assert batches[0] == list(range(50))
    assert batches[1] == list(range(50, 100))
    later = all_rows({b: rows for b, rows in batches.items() if b > 1})
    # The push may come a batch later than the move; never is less read than must be.
    assert later[-180:] == list(range(220, 400))
    assert later[0] in (100, 220)
    skipped = 400 - len(all_rows(batches))
    assert skipped > 0
    until(lambda: server.counters().get("rows_skipped") == skipped)
    assert server.counters()["batches_skipped"] == pytest.approx(skipped / 50)
    assert "rows_disordered" not in server.counters()


def test_without_a_horizon_everything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.csv", stretch(0, 10))
    batches = Run(feed(spark, str(folder), time="ts", horizon=""), tmp_path / "check").finish()
    assert batches == {0: list(range(10))}


def test_a_feed_can_be_a_format_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", stretch(0, 10))
    register_feed(spark)
    server = serve(spark)
    server.advance(instant(4))
    df = spark.readStream.format("lmerge-feed").option("time", "ts").load(str(folder))
    assert Run(df, tmp_path / "check").finish() == {0: list(range(4, 10))}
    with pytest.raises(ConfigurationError, match=r"use replicas\.feed\(\) instead"):
        register_feed(spark.newSession())
    server.close()
    spark.conf.unset(CONF)


def test_rows_before_the_cut_that_come_late_are_left_out_and_those_after_it_never(
    spark: SparkSession, tmp_path: Path, server: HorizonServer
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows: Rows = [(1, 0), (50, 1), (2, 2), (None, 3), (49, 4), (51, 5), (50, 6)]
    write(folder / "a.jsonl", rows)
    server.advance(instant(50))
    df = feed(spark, str(folder), time="ts", disorder="10 seconds", horizon=server.address)
    assert Run(df, tmp_path / "check").finish() == {0: [1, 3, 5, 6]}
    # Of what was read, row 2 lies 48 seconds behind row 1.
    until(lambda: server.counters().get("rows_disordered") == 1)
    assert server.counters()["rows_skipped"] == 3


def test_a_horizon_past_everything_ends_in_a_batch_without_rows(
    spark: SparkSession, tmp_path: Path, server: HorizonServer
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", stretch(0, 10))
    server.advance(instant(1000))
    df = feed(spark, str(folder), time="ts", horizon=server.address)
    assert all_rows(Run(df, tmp_path / "check").finish()) == []
    write(folder / "b.parquet", stretch(995, 1005))
    assert all_rows(Run(df, tmp_path / "check").finish()) == list(range(1000, 1005))
    until(lambda: server.counters().get("rows_skipped") == 15)


def test_available_now_leaves_what_appears_later_for_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.csv", stretch(0, 20))
    df = feed(spark, str(folder), time="ts", rows_per_batch=10, horizon="")
    run = Run(df, tmp_path / "check")
    run.after = lambda batch: write(folder / "b.csv", stretch(20, 30)) if batch == 0 else None
    assert run.finish() == {0: list(range(10)), 1: list(range(10, 20))}
    assert run.finish()[2] == list(range(20, 30))


def test_a_query_that_runs_on_picks_up_new_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    df = feed(spark, str(folder), time="ts", schema="ts TIMESTAMP, n BIGINT", horizon="")
    run = Run(df, tmp_path / "check")
    query = run.start(processingTime="0 seconds")
    try:
        for name, first in (("a", 0), ("b", 10)):
            write(tmp_path / f"{name}.csv", stretch(first, first + 10))
            (tmp_path / f"{name}.csv").rename(folder / f"{name}.csv")
            query.processAllAvailable()
    finally:
        query.stop()
    assert all_rows(run.batches) == list(range(20))


# -- replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_a_replayed_batch_has_the_same_rows_wherever_the_horizon_is_by_then(
    spark: SparkSession, tmp_path: Path, server: HorizonServer, kind: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    disordered: Rows = [(n + 30 * (n % 2), n) for n in range(300)]
    write(folder / f"a.{kind}", disordered[:150], group=20)
    write(folder / f"b.{kind}", disordered[150:], group=20)
    df = feed(
        spark, str(folder), time="ts", disorder="1 minute", rows_per_batch=100,
        horizon=server.address,
    )  # fmt: skip
    server.advance(instant(100))
    run = Run(df, tmp_path / "check")
    run.fails_in = 1
    assert "as the test wants it" in run.fail()
    first = dict(run.batches)
    assert first[0][0] == 71, "101 seconds is the first time from 100 on"
    server.advance(instant(290))
    run.fails_in = None
    again = run.finish()
    assert again[1] == first[1]
    last = [n for t, n in disordered if n > max(first[1]) and t is not None and t >= 290]
    assert again[2] == last


def interrupted(spark: SparkSession, tmp_path: Path) -> Run:
    """Batch 1, over the files b and c, has been planned and has failed."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate("abcd"):
        write(folder / f"{name}.csv", stretch(10 * number, 10 * number + 10))
    df = feed(spark, str(folder), time="ts", rows_per_batch=15, horizon="")
    run = Run(df, tmp_path / "check")
    run.fails_in = 1
    run.fail()
    assert run.batches == {0: list(range(15)), 1: list(range(15, 30))}
    run.fails_in = None
    return run


def test_a_file_that_vanished_in_between_is_a_clear_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = interrupted(spark, tmp_path)
    (tmp_path / "in" / "c.csv").rename(tmp_path / "c.csv")
    said = run.fail()
    assert "between b.csv and c.csv there were 2 files when the batch was planned, and " in said
    assert "there are 1 now" in said
    (tmp_path / "c.csv").rename(tmp_path / "in" / "c.csv")
    assert run.finish()[1] == list(range(15, 30)), "put back, it goes on"


def test_a_file_that_appeared_in_between_is_a_clear_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = interrupted(spark, tmp_path)
    write(tmp_path / "in" / "bb.csv", stretch(0, 3))
    assert "there are 3 now: it cannot be read again as it was" in run.fail()


def test_a_file_that_appears_before_what_was_read_is_a_clear_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = interrupted(spark, tmp_path)
    run.finish()
    write(tmp_path / "in" / "aa.csv", stretch(0, 3))
    assert "a file has appeared among those before d.csv" in run.fail()


# -- the watermark jumps with the feed -----------------------------------------------------------


def test_the_watermark_jumps_and_state_is_purged_when_the_feed_jumps(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", stretch(0, 10_000), group=500)
    own = spark.newSession()
    df = feed(own, str(folder), time="ts", rows_per_batch=1000, look_back="200 seconds")
    server = serve(own)
    assert server.address == own.conf.get(CONF), "the feed has started it"
    counts = (
        df.withWatermark("ts", "10 seconds")
        .groupBy(window("ts", "100 seconds"))
        .agg(count("*").alias("n"), least("n").alias("first"))
    )
    results: dict[int, tuple[int, int]] = {}  # the window's first row: its batch and count

    def take(rows: DataFrame, batch: int) -> None:
        for row in rows.collect():
            results[row.first] = (batch, row.n)
        server.counters()  # as a sink does in every batch
        if batch == 2:
            server.advance(instant(8050))

    query = (
        counts.writeStream.outputMode("append").foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(SECONDS)
        progress = [json.loads(p.json) for p in query.recentProgress]
    finally:
        query.stop()
    read = [p["numInputRows"] for p in progress if p["numInputRows"]]
    assert sum(read) < 6_000, "what lies between was not read"
    marks = {p["batchId"]: p["eventTime"]["watermark"] for p in progress}
    jumped = next(b for b, mark in marks.items() if mark > "2026-01-01T02:10:00")
    assert marks[jumped - 1] < "2026-01-01T01:10:00"
    # The windows that the jump cut through came out of the state when the watermark passed them.
    removed = {p["batchId"]: p["stateOperators"][0]["numRowsRemoved"] for p in progress}
    assert removed[jumped] >= 1
    assert progress[-1]["stateOperators"][0]["numRowsTotal"] <= 2
    # Every window that can still matter at the horizon is whole.
    needed = list(range(8000, 9900, 100))
    assert [results[first][1] for first in needed] == [100] * len(needed)
    until(lambda: server.counters().get("rows_read", 0) == sum(read[1:]))
    counters = server.counters()
    assert counters["rows_skipped"] == 10_000 - sum(read)
    assert counters["state_rows_purged"] >= removed[jumped]
    a_row = counters["seconds_spent"] / counters["rows_read"]
    assert counters["seconds_saved"] == pytest.approx(a_row * counters["rows_skipped"])
    assert counters["seconds_saved"] > 0
    server.close()


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "when"}, "the time column 'when' is not among the columns ts, n"),
        ({"time": "n", "format": "xml"}, "format 'xml' is not one of parquet, json and csv"),
        ({"look_back": "1 month"}, "'1 month' is not a duration such as"),
        ({"disorder": "-1"}, "'-1' is not a duration such as"),
        ({"rows_per_batch": 0}, "rows_per_batch must be a whole number of at least 1, not '0'"),
        ({"horizon": "nonsense"}, "'nonsense' is not the address of a horizon"),
        ({"schema": "ts STRING, n BIGINT"}, "'ts' is of type string, which is not a time"),
        ({"schema": "ts WORD"}, "ts WORD"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    write(tmp_path / "a.csv", stretch(0, 3))
    with pytest.raises(ConfigurationError) as refused:
        feed(spark, str(tmp_path), **{"time": "ts", "horizon": "", **options})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_in_the_directory_is_checked(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no directory"):
        feed(spark, str(tmp_path / "nowhere"), time="ts", horizon="")
    with pytest.raises(ConfigurationError, match=r"there are no files .* give a schema"):
        feed(spark, str(tmp_path), time="ts", horizon="")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden").touch()
    with pytest.raises(ConfigurationError, match=r"there are no files .* give a schema"):
        feed(spark, str(tmp_path), time="ts", horizon="")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"notes\.txt: its extension is no format's"):
        feed(spark, str(tmp_path), time="ts", horizon="")
    (tmp_path / "notes.txt").unlink()
    write(tmp_path / "a.csv", stretch(0, 3))
    write(tmp_path / "b.parquet", stretch(0, 3))
    with pytest.raises(ConfigurationError, match=r"mixes formats: b\.parquet is parquet"):
        feed(spark, str(tmp_path), time="ts", horizon="")
    (tmp_path / "b.parquet").write_text("not Parquet")
    (tmp_path / "a.csv").unlink()
    with pytest.raises(InputError, match=r"b\.parquet"):
        feed(spark, str(tmp_path), time="ts", horizon="")


def test_the_format_refuses_options_it_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", stretch(0, 3))
    register_feed(spark)
    serve(spark).close()
    reader = spark.readStream.format("lmerge-feed").option("time", "ts")
    with pytest.raises(PySparkException, match="lmerge-feed has no option lokback"):
        reader.option("lokback", "1 second").load(str(tmp_path))


# -- the reader alone, against an oracle on random input -----------------------------------------


class Horizon:
    """Stands for the link: the planner sees it move when the test says so."""

    def __init__(self) -> None:
        self.t = BEGINNING

    def at(self, address: str, wait: float = 0.0) -> int:
        return self.t


def read(reader: FeedReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.column("n").to_pylist()
    return found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", range(25))
def test_on_any_input_nothing_that_is_needed_is_skipped_and_a_replay_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    chance = random.Random(seed)
    horizon = Horizon()
    counted: dict[str, float] = {}
    monkeypatch.setattr(feeds, "horizon_at", horizon.at)
    monkeypatch.setattr(
        feeds, "count", lambda _, name, n: counted.update({name: counted.get(name, 0) + n})
    )
    monkeypatch.setattr(feeds, "flush", lambda _: None)
    every: Rows = []
    for number in range(chance.randint(1, 5)):
        rows: Rows = []
        for _ in range(chance.choice([0, 1, 7, 40])):
            near = len(every) + len(rows) + chance.randint(-15, 15)
            rows.append((None if chance.random() < 0.05 else near, len(every) + len(rows)))
        if kind == "csv" or rows:
            write(tmp_path / f"{number}.{kind}", rows, group=chance.choice([3, 10, 100]))
        every += rows
    look_back = chance.choice([0, 5])
    settings = Settings.of(
        {"path": str(tmp_path), "time": "ts", "look_back": f"{look_back} s", "horizon": "stub:1/x"}
    )
    schema = StructType().add("ts", TimestampType()).add("n", LongType())
    reader = FeedReader(settings, schema)
    limits: list[ReadLimit] = [ReadMaxRows(1), ReadMaxRows(13), ReadMaxFiles(1), ReadAllAvailable()]
    steps: list[tuple[dict[str, Any], dict[str, Any], list[int], int]] = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, chance.choice(limits))) != start:
        assert json.loads(json.dumps(end)) == end
        steps.append((start, end, read(reader, start, end), horizon.t))
        start = end
        if chance.random() < 0.4:
            horizon.t = max(horizon.t, instant(chance.randint(0, len(every) + 10)))
    # A row is skipped only by a cut that was there when it was passed.
    got = [n for _, _, numbers, _ in steps for n in numbers]
    assert got == sorted(set(got)), "in order, and none twice"
    cut = horizon.t - look_back * SECOND_US
    for t, n in every:
        if t is None or instant(t) >= cut:
            assert n in got, f"row {n} was needed"
    if steps and steps[-1][3] == BEGINNING:
        assert len(got) == len(every)
    assert counted.get("rows_skipped", 0) == len(every) - len(got)
    again = FeedReader(settings, schema)
    horizon.t = instant(10**6)
    for start, end, numbers, _ in steps:
        assert read(again, start, end) == numbers
