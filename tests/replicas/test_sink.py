"""A streaming query as a replica, on real Spark and a real server: what the consumer gets."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.errors import ConfigurationError, DetachedError
from replicas.attaching import Mode, Replica, attach
from tests.replicas.merging import Tdb, before, read_until, truth
from tests.server.serving import ServerProcess, server_process

SECOND = 1_000_000
BEGIN = 1_700_000_000  # a round minute is not needed; windows are
SCHEMA = "at TIMESTAMP, machine STRING, v BIGINT"
WINDOW = 10
END = (BEGIN // WINDOW + 40) * WINDOW * SECOND
"""Every window before it is complete once the last file has been read."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session of a test's own: the horizon that others' have is not theirs."""
    return spark.newSession()


def write_input(directory: Path, *, seed: int, files: int = 6, disorder: int = 8) -> None:
    """Rows in disorder, and one far later that closes every window."""
    pick = random.Random(seed)
    directory.mkdir()
    rows = [
        (BEGIN + second + pick.uniform(-disorder, 0), f"m{pick.randrange(3)}", pick.randrange(100))
        for second in range(300)
        for _ in range(2)
    ]
    share = len(rows) // files
    for number in range(files):
        part = rows[number * share : (number + 1) * share]
        lines = [json.dumps({"at": at, "machine": m, "v": v}) for at, m, v in part]
        (directory / f"part-{number}.json").write_text("\n".join(lines) + "\n")
    # Two of them: without new rows Spark runs no batch by the last watermark in complete mode.
    for number, later in ((files, 3600), (files + 1, 7200)):
        closing = {"at": END / SECOND + later, "machine": "closing", "v": 0}
        (directory / f"part-{number}.json").write_text(json.dumps(closing) + "\n")
    for number in range(files + 2):  # Spark reads them in the order of their times
        os.utime(directory / f"part-{number}.json", (BEGIN + number, BEGIN + number))


def rows_of(spark: SparkSession, directory: Path, *, streaming: bool) -> DataFrame:
    reader: Any = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
    found = reader.schema("at DOUBLE, machine STRING, v BIGINT").json(str(directory))
    at = F.timestamp_micros((F.col("at") * SECOND).cast("bigint"))
    rows: DataFrame = found.select(at.alias("at"), "machine", "v")
    return rows.withWatermark("at", "20 seconds")


def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("at", f"{WINDOW} seconds"), "machine").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )


def counts_truth(spark: SparkSession, directory: Path) -> Tdb:
    return truth(
        counts(rows_of(spark, directory, streaming=False)),
        "unix_micros(window.end)",
        f"unix_micros(window.end) + {WINDOW * SECOND}",
    )


def finish(replica: Replica) -> None:
    """Let it take everything that is there."""
    try:
        replica.query.processAllAvailable()
    finally:
        replica.stop()


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_every_mode_gives_what_a_batch_job_gives(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, mode: Mode
) -> None:
    write_input(tmp_path / "in", seed=1)
    merge = f"counts-{mode}"
    replica = attach(
        counts(rows_of(spark, tmp_path / "in", streaming=True)),
        merge=merge, server=server.target, stream="r1", mode=mode,
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    finish(replica)
    expected = counts_truth(spark, tmp_path / "in")
    assert before(read_until(server.target, merge, END), END) == before(expected, END)
    assert replica.sink.counters.late == 0


def test_replicas_of_different_plans_merge_into_one_truth(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", seed=2)
    for stream, mode in (("conservative", "append"), ("aggressive", "update")):
        finish(
            attach(
                counts(rows_of(spark, tmp_path / "in", streaming=True)),
                merge="both",
                server=server.target,
                stream=stream,
                mode=mode,  # type: ignore[arg-type]
                checkpoint=str(tmp_path / stream),
                options={"restriction": "R3"},
            )
        )
    expected = counts_truth(spark, tmp_path / "in")
    assert before(read_until(server.target, "both", END), END) == before(expected, END)


def test_a_restart_goes_on_where_it_was(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", seed=3)
    # Twice it is stopped in between, and once everything the server has is asked of it again.
    for batches in (2, 3, None):
        replica = attach(
            counts(rows_of(spark, tmp_path / "in", streaming=True)),
            merge="restarted", server=server.target, stream="r1", mode="update",
            checkpoint=str(tmp_path / "checkpoint"),
        )  # fmt: skip
        if batches is None:
            finish(replica)
        else:
            seen = replica.sink.epoch
            while replica.sink.epoch == seen and replica.query.isActive:
                replica.query.awaitTermination(1)
            replica.stop()
    expected = counts_truth(spark, tmp_path / "in")
    assert before(read_until(server.target, "restarted", END), END) == before(expected, END)


def test_the_tasks_write_themselves(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", seed=4)
    rows = rows_of(spark, tmp_path / "in", streaming=True).repartition(3)
    replica = attach(
        rows, merge="tasks", server=server.target, stream="r1", vs="at",
        ve="at + INTERVAL 1 SECOND", payload=["machine", "v"], path="tasks",
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    finish(replica)
    expected = truth(
        rows_of(spark, tmp_path / "in", streaming=False),
        "unix_micros(at)", f"unix_micros(at) + {SECOND}", payload=["machine", "v"],
    )  # fmt: skip
    assert before(read_until(server.target, "tasks", END), END) == before(expected, END)


def test_a_wrong_override_is_caught(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", seed=5)
    rows = rows_of(spark, tmp_path / "in", streaming=True)
    replica = attach(
        rows, merge="wrong", server=server.target, stream="r1", vs="at",
        ve="at + INTERVAL 1 SECOND", payload=["machine"], restriction="R0",
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    with pytest.raises(Exception, match="quarantined"):
        finish(replica)
    assert isinstance(replica.failure, DetachedError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no lifetime"),
        ({"vs": "nothing"}, "'nothing' is no expression"),
        ({"vs": "at", "ve": "v"}, "different units"),
        ({"vs": "at", "payload": ["gone"]}, "no payload columns"),
        ({"vs": "at", "mode": "update"}, "need a key"),
        ({"vs": "at", "mode": "sometimes"}, "mode is append"),
        ({"vs": "v"}, "stable"),
        ({"vs": "at", "path": "sky"}, "path is auto"),
    ],
)
def test_mistakes_are_named(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    options: dict[str, Any],
    message: str,
) -> None:
    write_input(tmp_path / "in", seed=6)
    rows = rows_of(spark, tmp_path / "in", streaming=True)
    with pytest.raises(ConfigurationError, match=message):
        attach(
            rows, merge="mistakes", server=server.target, stream="r1",
            checkpoint=str(tmp_path / "checkpoint"), **options,
        )  # fmt: skip
