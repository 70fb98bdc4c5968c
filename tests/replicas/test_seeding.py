"""A query over a long window begins with what is live: right at once, and not an hour later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.cli.exits import Exit
from lmerge.cli.main import main
from lmerge.client import SyncWriter
from lmerge.core.properties import Restriction
from lmerge.elements import Op
from lmerge.errors import ConfigurationError, LMergeError
from replicas import seeding
from replicas.attaching import Replica, attach
from replicas.formats import register
from replicas.source import MergeReader, Settings
from tests.replicas.merging import Tdb, before, read_until, truth
from tests.server.serving import ServerProcess, server_process

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
BEGIN = 1_699_999_200 * SECOND  # a full hour
EVERY_S = 20
SCHEMA = pa.schema([pa.field("machine", pa.string()), pa.field("v", pa.int64())])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def _format(spark: SparkSession) -> None:
    with suppress(AnalysisException):  # other tests' sources are the same session's
        register(spark)


def readings(start: int, stop: int) -> list[dict[str, Any]]:
    """Those of some minutes; each is live for an hour."""
    found = []
    for number in range(start * 60 // EVERY_S, stop * 60 // EVERY_S):
        vs = BEGIN + number * EVERY_S * SECOND
        reading = {"machine": f"m{number % 3}", "v": number * 7 % 101}
        found.append({"op": int(Op.INSERT), "vs": vs, "ve": vs + HOUR, "vold": 0, **reading})
    return found


class Input:
    """The merged input: one stream is enough for it."""

    def __init__(self, server: ServerProcess, merge: str) -> None:
        self.merge = merge
        self._writer = SyncWriter(
            server.target, merge, "source", SCHEMA, options={"restriction": "R3"},
            properties=Restriction.R3.requires,
        )  # fmt: skip
        self._at = 0

    def until(self, minute: int) -> None:
        """In epochs of ten minutes, each with its stable."""
        while self._at < minute:
            stop = min(self._at + 10, minute)
            rows = pa.Table.from_pylist(readings(self._at, stop), self._schema)
            for batch in rows.to_batches():
                self._writer.write(batch)
            self._writer.commit(stable=BEGIN + stop * MINUTE)
            self._at = stop

    @property
    def _schema(self) -> pa.Schema:
        times = [("op", pa.int8()), ("vs", pa.int64()), ("ve", pa.int64()), ("vold", pa.int64())]
        return pa.schema([*(pa.field(*each) for each in times), *SCHEMA])

    def close(self) -> None:
        self._writer.close()


def source(server: ServerProcess, merge: str, **options: str) -> dict[str, str]:
    where = {"server": server.target, "merge": merge}
    return {**where, "delivery": "eager", "times": "timestamp", **options}


def over(spark: SparkSession, server: ServerProcess, merge: str, **options: str) -> DataFrame:
    rows = spark.readStream.format("lmerge").options(**source(server, merge, **options)).load()
    return rows.where("op = 'insert'").withWatermark("vs", "0 seconds")


def hourly(rows: DataFrame, by: str = "vs") -> DataFrame:
    return rows.groupBy(F.window(by, "1 hour", "10 minutes"), "machine").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )


def in_two_steps(rows: DataFrame) -> DataFrame:
    """Another plan of it, which cannot use the checkpoint of the first."""
    doubled = rows.withColumn("part", F.col("v") % 2).groupBy(
        F.window("vs", "1 hour", "10 minutes"), "machine", "part"
    )
    parts = doubled.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return parts.groupBy("window", "machine").agg(
        F.sum("n").alias("n"), F.sum("total").alias("total")
    )


def expected(spark: SparkSession, minutes: int) -> Tdb:
    rows = spark.createDataFrame(
        [(each["vs"], each["machine"], each["v"]) for each in readings(0, minutes)],
        "micros BIGINT, machine STRING, v BIGINT",
    ).withColumn("vs", F.timestamp_micros("micros"))
    return truth(
        hourly(rows), "unix_micros(window.end)", f"unix_micros(window.end) + {10 * MINUTE}"
    )


def begin(
    server: ServerProcess, df: DataFrame, merge: str, stream: str, at: Path, **options: Any
) -> Replica:
    replica = attach(
        df, merge=merge, server=server.target, stream=stream, checkpoint=str(at / stream),
        options={"restriction": "R3"}, **options,
    )  # fmt: skip
    replica.query.processAllAvailable()
    return replica


def test_a_seeded_query_over_an_hour_is_right_at_once(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Input(server, "readings")
    data.until(120)
    old = begin(server, hourly(over(spark, server, "readings")), "hourly", "old", tmp_path)
    seed = tmp_path / "seed.parquet"
    command = ["checkpoint", "save", "--input", "readings", "--server", server.target, "--to"]
    assert main([*command, str(seed)]) == Exit.OK
    assert "180 live events" in capsys.readouterr().out
    saved = seeding.read(seed)
    assert saved.stable == BEGIN + 120 * MINUTE
    new_plan = in_two_steps(over(spark, server, "readings", seed=str(seed)))
    since = seeding.right_from(seed, new_plan, lives="1 hour")
    # A slide later than the seed, and not a window's length.
    assert saved.stable <= since <= saved.stable + 20 * MINUTE
    cold = seeding.right_from(seed, new_plan)
    assert cold == since + HOUR
    new = begin(server, new_plan, "hourly", "new", tmp_path, from_time=since)
    data.until(150)
    for replica in (old, new):
        replica.query.processAllAvailable()
    assert new.writer.state == "joined"
    old.detach("its plan is old")
    data.until(180)
    new.query.processAllAvailable()
    new.stop()
    # Without the seed the same query is wrong for an hour.
    unseeded = over(spark, server, "readings", start=saved.position)
    cold_one = begin(server, in_two_steps(unseeded), "cold", "one", tmp_path, from_time=since)
    cold_one.stop()
    data.close()
    end = BEGIN + 170 * MINUTE
    wanted = before(expected(spark, 180), end)
    assert before(read_until(server.target, "hourly", end), end) == wanted
    late = {event: n for event, n in wanted.items() if event[2] >= since}
    found = before(read_until(server.target, "cold", end), end)
    assert late
    assert not set(late) & set(found), "no result of the first hour is right"


def test_the_seed_is_read_once_and_nothing_after_it_is_missing(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    data = Input(server, "once")
    data.until(90)
    seed = tmp_path / "seed.parquet"
    saved = seeding.save(server.target, "once", seed)
    assert saved.events == 180  # of the last hour, and not the half before it
    data.until(100)

    def run() -> list[Any]:
        rows = over(spark, server, "once", seed=str(seed), max_rows_per_batch="7").select("vs", "v")
        found = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = found.option("checkpointLocation", str(tmp_path / "q")).trigger(availableNow=True)
        query.start().awaitTermination(60)
        return spark.read.parquet(str(tmp_path / "out")).collect()

    wanted = [each["v"] for each in readings(30, 100)]
    assert [row.v for row in sorted(run())] == wanted
    data.until(110)
    assert [row.v for row in sorted(run())] == [each["v"] for each in readings(30, 110)]
    data.close()


def test_a_seed_is_a_stream_of_elements_that_every_command_reads(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Input(server, "elements")
    data.until(10)
    seed = tmp_path / "seed.parquet"
    assert seeding.save(server.target, "elements", seed).events == 30
    data.close()
    assert main(["tdb", str(seed)]) == Exit.OK
    assert len(capsys.readouterr().out.splitlines()) == 30
    with pytest.raises(ConfigurationError, match="not overwritten"):
        seeding.save(server.target, "elements", seed)
    with pytest.raises(ConfigurationError, match=r"must end with \.parquet"):
        seeding.save(server.target, "elements", tmp_path / "seed")
    assert not list(tmp_path.glob(".*"))


def test_a_seed_that_cannot_be_continued_is_refused(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    data, other = Input(server, "kept"), Input(server, "another")
    for each in (data, other):
        each.until(10)
        each.close()
    seed = tmp_path / "seed.parquet"
    seeding.save(server.target, "another", seed)

    def refused(**options: str) -> str:
        given = source(server, "kept", **options)
        settings = Settings(given)
        reader = MergeReader(given, settings.columns(settings.inspect().elements))
        with pytest.raises(LMergeError) as error:
            reader.initialOffset()
        return str(error.value)

    assert "save a new seed" in refused(seed=str(seed))
    assert "there is no seed" in refused(seed=str(tmp_path / "none.parquet"))
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    assert "it is no seed" in refused(seed=str(plain))
    for more in ({"start": "now"}, {"delivery": "final"}):
        with pytest.raises(ConfigurationError, match="a seed says itself where to start"):
            Settings(source(server, "kept", seed=str(seed), **more))
    endless = over(spark, server, "kept", start="now").groupBy("machine").count()
    with pytest.raises(LMergeError, match="look-back is not bounded"):
        seeding.right_from(seed, endless, mode="update", vs="count", ve="count + 1")
