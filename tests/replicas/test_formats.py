"""``format("lmerge")`` against a real server and a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's word)

from lmerge.client import SyncReader, SyncWriter
from lmerge.core.batch import element_schema
from lmerge.times import INFINITY
from replicas.formats import register
from tests.server.serving import ServerProcess, server_process

WAIT_S = 60
K = pa.schema([("k", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server") / "data") as started:
        yield started


@pytest.fixture(scope="module")
def lmerge(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def inserts(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    """Elements from (vs, ve, k)."""
    return elements(*(("+", vs, ve, ve, k) for vs, ve, k in rows))


def elements(*rows: tuple[str, int, int, int, int]) -> pa.RecordBatch:
    """From (op, vs, vold, ve, k)."""
    columns = [
        [0 if row[0] == "+" else 1 for row in rows],
        [row[1] for row in rows],
        [row[3] for row in rows],
        [row[2] for row in rows],
        [row[4] for row in rows],
    ]
    schema = element_schema(K)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def source(spark: SparkSession, server: ServerProcess, merge: str, **options: str) -> DataFrame:
    said = {"server": server.target, "merge": merge, **options}
    return spark.readStream.format("lmerge").options(**said).load()


class Sunk:
    """A query that keeps the rows of each batch, by the batch's number."""

    def __init__(self, df: DataFrame, checkpoint: Path, **trigger: Any) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.query = (
            df.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def _take(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = [tuple(row) for row in rows.collect()]

    def ended(self) -> list[tuple[Any, ...]]:
        assert self.query.awaitTermination(WAIT_S)
        return self.rows

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def write_k(server: ServerProcess, merge: str, *epochs: tuple[pa.RecordBatch, int | None]) -> None:
    with SyncWriter(server.target, merge, "a", K, lineage="one") as writer:
        for batch, stable in epochs:
            writer.write(batch)
            writer.commit(stable=stable)


# -- reading -----------------------------------------------------------------------------------


def test_final_rows_come_when_they_will_not_be_revised(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_k(
        server,
        "final",
        (inserts((1, 5, 10), (2, 20, 20)), 6),
        (elements(("~", 2, 20, 9, 20), ("+", 7, 8, 8, 30)), 10),
        (inserts((11, 12, 40)), 11),
    )
    df = source(lmerge, server, "final")
    assert df.columns == ["vs", "ve", "k"]
    got = Sunk(df, tmp_path / "c").ended()
    assert sorted(got) == [(1, 5, 10), (2, 9, 20), (7, 8, 30)]


def test_eager_rows_are_the_elements(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_k(
        server,
        "eager",
        (inserts((1, 5, 10), (2, INFINITY, 20)), 2),
        (elements(("~", 2, INFINITY, 2, 20)), 30),
    )
    df = source(lmerge, server, "eager", delivery="eager")
    assert df.columns == ["op", "vs", "ve", "vold", "k"]
    assert Sunk(df, tmp_path / "c").ended() == [
        ("insert", 1, 5, None, 10),
        ("insert", 2, INFINITY, None, 20),
        ("adjust", 2, 2, INFINITY, 20),
    ]
    times = source(lmerge, server, "eager", delivery="consistent", times="timestamp")
    micros = times.selectExpr("op", "unix_micros(vs)", "unix_micros(ve)", "unix_micros(vold)", "k")
    assert Sunk(micros, tmp_path / "t").ended() == [
        ("insert", 1, 5, None, 10),
        ("insert", 2, None, None, 20),
        ("adjust", 2, 2, None, 20),
    ]


@pytest.mark.parametrize("delivery", ["eager", "consistent", "final"])
def test_a_batch_has_at_most_the_rows_it_may_and_a_restart_goes_on_behind_it(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path, delivery: str
) -> None:
    merge = f"limited-{delivery}"
    epochs = [
        (inserts(*((10 * n + i, 10 * n + 9, i) for i in range(4))), 10 * n + 10) for n in range(6)
    ]
    write_k(server, merge, *epochs[:4])
    df = source(lmerge, server, merge, delivery=delivery, max_rows_per_batch="8")
    first = Sunk(df, tmp_path / "c")
    first.ended()
    assert [len(rows) for rows in first.batches.values()] == [8, 8]
    with SyncWriter(server.target, merge, "a", K, lineage="one") as writer:
        for batch, stable in epochs[4:]:
            writer.write(batch)
            writer.commit(stable=stable)
    second = Sunk(df, tmp_path / "c")
    second.ended()
    assert list(second.batches) == [2]
    place = 0 if delivery == "final" else 1
    starts = [row[place] for row in first.rows + second.rows]
    assert sorted(starts) == [10 * n + i for n in range(6) for i in range(4)]


def test_a_planned_batch_is_replayed_as_it_was_also_after_the_server_was_killed(
    lmerge: SparkSession, tmp_path: Path
) -> None:
    with server_process(tmp_path / "data") as one:
        write_k(one, "m", *((inserts((2 * n, 2 * n + 1, n)), 2 * n + 2) for n in range(5)))
        df = source(lmerge, one, "m", max_rows_per_batch="2")
        first = Sunk(df, tmp_path / "c")
        whole = first.ended()
        one.kill()
        port = one.port
    # The last batch was planned, and as far as the checkpoint says not done.
    last = max(first.batches)
    for name in (f"{last}", f".{last}.crc"):
        (tmp_path / "c" / "commits" / name).unlink(missing_ok=True)
    with server_process(tmp_path / "data", port=port) as two:
        again = Sunk(df, tmp_path / "c")
        again.ended()
        assert again.batches == {last: first.batches[last]}
        with SyncWriter(two.target, "m", "a", K, lineage="one") as writer:
            writer.write(inserts((10, 11, 9)))
            writer.commit(stable=12)
        more = Sunk(df, tmp_path / "c").ended()
    assert whole == [(2 * n, 2 * n + 1, n) for n in range(5)]
    assert more == [(10, 11, 9)]


def test_reading_may_start_now_or_at_a_position(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_k(server, "now", (inserts((1, 2, 1)), 3))
    df = source(lmerge, server, "now", start="now", delivery="eager")
    assert Sunk(df, tmp_path / "c").ended() == []
    with SyncReader(server.target, "now") as reader:
        next(reader)
        place = reader.position
    write_k(server, "now", (inserts((4, 5, 4)), 6))
    assert Sunk(df, tmp_path / "c").ended() == [("insert", 4, 5, None, 4)]
    there = source(lmerge, server, "now", start=str(place), delivery="eager")
    assert Sunk(there, tmp_path / "d").ended() == [("insert", 4, 5, None, 4)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"delivery": "late"}, "delivery is final, eager, consistent, not 'late'"),
        ({"start": "then"}, "a position is GENERATION@NUMBER, not 'then'"),
        ({"max_rows_per_batch": "0"}, "must be a whole number of at least 1"),
        ({"rows": "1"}, "lmerge has no option 'rows' here"),
        ({"merge": "none-such"}, "no merge"),
        ({"token_file": "/none/such"}, "cannot read /none/such"),
    ],
)
def test_bad_options_are_refused_by_name(
    lmerge: SparkSession, server: ServerProcess, options: dict[str, str], reason: str
) -> None:
    said = {"merge": "final", **options}
    with pytest.raises(Exception, match=reason):
        source(lmerge, server, **said)


# -- writing -----------------------------------------------------------------------------------


def feed_files(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """A stream of Parquet files, one a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def put(spark: SparkSession, folder: Path, schema: str, *rows: tuple[Any, ...]) -> None:
    spark.createDataFrame(list(rows), schema).coalesce(1).write.mode("append").parquet(str(folder))


def sink(df: DataFrame, server: ServerProcess, checkpoint: Path, mode: str, **options: str) -> None:
    """Run what is there now through the sink."""
    query = (
        df.writeStream.format("lmerge")
        .options(server=server.target, **options)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)


def events(server: ServerProcess, merge: str, upto: int) -> list[str]:
    """What the merge says until it is stable up to a time."""
    found: list[str] = []
    with SyncReader(server.target, merge) as reader:
        for element in reader.elements():
            found.append(str(element))
            if found[-1] == f"stable({upto})":
                return found
    raise AssertionError(found)


ROWS = "vs BIGINT, ve BIGINT, k BIGINT, promise BIGINT"


def test_what_is_appended_is_one_stream_and_a_batch_that_is_run_again_changes_nothing(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    files, checkpoint = tmp_path / "in", tmp_path / "c"
    said = {"merge": "appended", "stream": "a", "vs": "vs", "ve": "ve", "stable": "promise"}
    df = feed_files(lmerge, files, ROWS)
    put(lmerge, files, ROWS, (1, 5, 10, 1), (2, None, 20, 2))
    sink(df, server, checkpoint, "append", **said)
    put(lmerge, files, ROWS, (3, 6, 30, 3), (1, 9, 99, 3))  # the second is late
    sink(df, server, checkpoint, "append", **said)
    for name in ("1", ".1.crc"):  # a crash before Spark knew that the batch was done
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    sink(df, server, checkpoint, "append", **said)
    put(lmerge, files, ROWS, (7, 8, 40, 7))
    sink(df, server, checkpoint, "append", **said)
    assert events(server, "appended", 7) == [
        "insert({'k': 10}, 1, 5)",
        "insert({'k': 20}, 2, ∞)",
        "stable(2)",
        "insert({'k': 30}, 3, 6)",
        "stable(3)",
        "insert({'k': 40}, 7, 8)",
        "stable(7)",
    ]


def test_the_watermark_is_the_stable_point_of_a_windowed_count(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    files, schema = tmp_path / "in", "s BIGINT"
    df = feed_files(lmerge, files, schema).selectExpr("timestamp_seconds(s) AS t")
    counted = df.withWatermark("t", "0 seconds").groupBy(F.window("t", "10 seconds")).count()
    for seconds in ((1, 2, 11), (25,)):
        put(lmerge, files, schema, *((s,) for s in seconds))
        sink(counted, server, tmp_path / "c", "append", merge="counts", stream="a", slide="10 s")
    assert events(server, "counts", 25_000_000)[-1] == "stable(25000000)"
    read = source(lmerge, server, "counts", delivery="eager")
    got = Sunk(read.selectExpr("vs", "ve", "count", "unix_micros(window.start)"), tmp_path / "d")
    assert got.ended() == [
        (10_000_000, 20_000_000, 2, 0),
        (20_000_000, 30_000_000, 1, 10_000_000),
    ]


def test_complete_mode_sends_differences_also_after_a_restart(
    lmerge: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    files, schema = tmp_path / "in", "k STRING"
    df = feed_files(lmerge, files, schema).groupBy("k").count()
    df = df.selectExpr("1L AS vs", "k", "count", "IF(k = 'c', 2L, 0L) AS promise")
    said = {"merge": "complete", "stream": "a", "vs": "vs", "key": "k", "stable": "promise"}
    for keys in ("ab", "a", "c"):
        put(lmerge, files, schema, *((key,) for key in keys))
        sink(df, server, tmp_path / "c", "complete", **said)
    read = source(lmerge, server, "complete", delivery="eager").drop("vold", "vs")
    got = Sunk(read, tmp_path / "d").ended()
    assert sorted(got[:2]) == [("insert", INFINITY, 1, "a"), ("insert", INFINITY, 1, "b")]
    # The merge is lazy: what replaces comes at once, what is replaced goes when it must.
    assert sorted(got[2:]) == [
        ("adjust", 1, 1, "a"),
        ("insert", INFINITY, 1, "c"),
        ("insert", INFINITY, 2, "a"),
    ]


def test_a_merge_feeds_another(lmerge: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    epochs = [
        (inserts(*((10 * n + i, 10 * n + 9, i) for i in range(3))), 10 * n + 10) for n in range(4)
    ]
    said = {"merge": "upper", "stream": "a", "vs": "vs", "ve": "ve", "stable": "none"}
    for n in range(4):
        write_k(server, "lower", epochs[n])
        lower = source(lmerge, server, "lower", max_rows_per_batch="2")
        sink(lower, server, tmp_path / "c", "append", **said)
    upper = source(lmerge, server, "upper", delivery="eager").select("vs", "ve", "k")
    got = Sunk(upper, tmp_path / "d").ended()
    assert sorted(got) == [(10 * n + i, 10 * n + 9, i) for n in range(4) for i in range(3)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"vs": "start"}, "vs names the column 'start'"),
        ({"vs": "k"}, "is string: a time is a timestamp, a date or a number"),
        ({}, "no lifetime"),
        ({"vs": "vs", "ve": "t"}, "in different units"),
        ({"vs": "vs", "restriction": "R9"}, "restriction is R0 to R4"),
    ],
)
def test_a_sink_refuses_bad_options_by_name(
    lmerge: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    options: dict[str, str],
    reason: str,
) -> None:
    df = feed_files(lmerge, tmp_path / "in", "vs BIGINT, t TIMESTAMP, k STRING")
    put(lmerge, tmp_path / "in", "vs BIGINT, t TIMESTAMP, k STRING", (1, None, "a"))
    with pytest.raises(Exception, match=reason):
        sink(df, server, tmp_path / "c", "append", merge="refused", stream="a", **options)
