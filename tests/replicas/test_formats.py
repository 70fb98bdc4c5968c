"""``format("lmerge")`` against a real server and a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

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
