"""New replicas from copies of checkpoints: what the consumer gets when the original is gone."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.cli.exits import Exit
from lmerge.cli.main import main
from lmerge.errors import ConfigurationError
from lmerge.v1 import operator_pb2
from lmerge.v1.operator_pb2_grpc import OperatorServiceStub
from replicas import checkpointing
from replicas.attaching import Replica, attach
from tests.replicas import queries
from tests.replicas.merging import Tdb, before, read_until, truth
from tests.replicas.test_runner import running
from tests.server.serving import ServerProcess, server_process

SECOND = 1_000_000
BEGIN = 1_700_000_000
FILES = 6
END = (BEGIN // 10 + 40) * 10 * SECOND
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def give(directory: Path, numbers: range) -> None:
    """Files of rows in disorder, a minute each; those behind FILES close every window."""
    directory.mkdir(exist_ok=True)
    for number in numbers:
        pick = random.Random(number)
        rows = [
            (BEGIN + number * 60 + n / 2 + pick.uniform(-8, 0), f"m{pick.randrange(3)}", n)
            for n in range(120)
        ]
        if number >= FILES:
            rows = [(END / SECOND + 3600 * number, "closing", 0)]
        lines = [json.dumps({"at": at, "machine": machine, "v": v}) for at, machine, v in rows]
        draft = directory / f".part-{number}"
        draft.write_text("\n".join(lines) + "\n")
        os.utime(draft, (BEGIN + number, BEGIN + number))  # Spark reads in the order of times
        draft.rename(directory / f"part-{number}.json")


ALL = range(FILES + 2)


def rows_of(spark: SparkSession, directory: Path, *, streaming: bool = True) -> DataFrame:
    reader: Any = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
    found = reader.schema("at DOUBLE, machine STRING, v BIGINT").json(str(directory))
    at = F.timestamp_micros((F.col("at") * SECOND).cast("bigint"))
    rows: DataFrame = found.select(at.alias("at"), "machine", "v")
    return rows.withWatermark("at", "20 seconds")


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "update": {"mode": "update"},
    "rocksdb": {"mode": "update"},
    "complete": {"mode": "complete"},
    "tasks": {
        "vs": "at", "ve": "at + INTERVAL 30 SECONDS", "payload": ["machine", "v"], "path": "tasks",
        "keyed": True,
    },
}  # fmt: skip


class Case:
    """One merge, replicas of one plan, and their input."""

    def __init__(self, spark: SparkSession, server: ServerProcess, at: Path, kind: str) -> None:
        self.spark, self.server, self.at, self.kind = spark, server, at, kind
        self.merge = f"{at.name.replace('[', '-').replace(']', '')}"[:60].strip(".")

        if kind == "rocksdb":
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)

    def query(self, *, streaming: bool = True) -> DataFrame:
        rows = rows_of(self.spark, self.at / "in", streaming=streaming)
        return rows if self.kind == "tasks" else queries.counted(rows)

    def begin(self, name: str) -> Replica:
        replica = attach(
            self.query(), merge=self.merge, server=self.server.target, stream=name,
            checkpoint=str(self.at / name), options={"restriction": "R3"}, **KINDS[self.kind],
        )  # fmt: skip
        replica.query.processAllAvailable()
        return replica

    def check(self) -> None:
        vs, ve, payload = "unix_micros(window.end)", "unix_micros(window.end) + 10000000", None
        if self.kind == "tasks":
            vs, ve, payload = "unix_micros(at)", "unix_micros(at) + 30000000", ["machine", "v"]
        expected = truth(self.query(streaming=False), vs, ve, payload)
        found: Tdb = read_until(self.server.target, self.merge, END)
        assert before(found, END) == before(expected, END)

    def detach(self, stream: str) -> None:
        """What its membership does when it is gone."""
        self._operator("DetachStream", operator_pb2.DetachStreamRequest(
            merge=self.merge, stream=stream, reason="its member is gone"))  # fmt: skip

    def stable(self) -> int:
        """How far the output is."""
        wanted = operator_pb2.DescribeMergeRequest(merge=self.merge)
        return int(self._operator("DescribeMerge", wanted).output.stable)

    def _operator(self, method: str, request: Any) -> Any:
        generated: Any = OperatorServiceStub  # protoc's code has no types
        with grpc.insecure_channel(self.server.target) as channel:
            return getattr(generated(channel), method)(request, timeout=WAIT_SECONDS)


@pytest.fixture
def case(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> Case:
    return Case(spark, server, tmp_path, getattr(request, "param", "append"))


@pytest.mark.parametrize("case", list(KINDS), indirect=True)
def test_a_copy_of_a_live_replica_takes_over_when_the_original_is_gone(case: Case) -> None:
    give(case.at / "in", ALL[:3])
    original = case.begin("r1")
    saved = checkpointing.save(case.at / "r1", case.at / "saved", merge=case.merge, stream="r1")
    assert saved.batch == original.sink.epoch
    original.stop()
    checkpointing.restore(case.at / "saved", case.at / "r2")
    give(case.at / "in", ALL[3:4])
    # It is ahead of the original, and its stable points must not undo what only that one said.
    copy = case.begin("r2")
    begun_joined = copy.writer.state == "joined"
    assert begun_joined == (KINDS[case.kind].get("mode") is not None)  # those tell what is live
    original = case.begin("r1")
    give(case.at / "in", ALL[4:5])
    original.query.processAllAvailable()
    copy.query.processAllAvailable()
    assert copy.writer.state == "joined"
    original.detach("it is gone")
    give(case.at / "in", ALL[5:])
    copy.query.processAllAvailable()
    copy.stop()
    case.check()
    assert copy.sink.counters.late == 0


@pytest.mark.parametrize("case", ["append", "update"], indirect=True)
def test_a_replica_that_was_detached_while_it_was_away_begins_another_stream(case: Case) -> None:
    give(case.at / "in", ALL[:3])
    first, second = case.begin("r1"), case.begin("r2")
    first.stop()
    case.detach("r1")
    give(case.at / "in", ALL[3:4])
    first = case.begin("r1")
    second.query.processAllAvailable()
    give(case.at / "in", ALL[4:5])
    second.query.processAllAvailable()
    first.query.processAllAvailable()
    assert first.writer.state == "joined"
    second.detach("it is gone")
    give(case.at / "in", ALL[5:])
    first.query.processAllAvailable()
    first.stop()
    case.check()


def test_results_that_never_end_cannot_begin_another_stream(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    give(tmp_path / "in", ALL[:2])

    def begin(name: str) -> Replica:
        replica = attach(
            rows_of(spark, tmp_path / "in"), merge="endless", server=server.target, stream=name,
            checkpoint=str(tmp_path / name), vs="at", payload=["machine", "v"],
        )  # fmt: skip
        replica.query.processAllAvailable()
        return replica

    begin("r1").stop()
    saved = checkpointing.save(tmp_path / "r1", tmp_path / "saved", merge="endless", stream="r1")
    assert saved.since is None
    with pytest.raises(ConfigurationError, match="never end"):
        checkpointing.restore(tmp_path / "saved", tmp_path / "r2")
    begin("r1").stop()  # its own stream it resumes


FILTERED = """
from tests.replicas.queries import counted, rows

def build(spark):
    return counted(rows(spark).where("v > 3")), {"mode": "update"}

def same(spark):
    return counted(rows(spark)), {"mode": "update"}
"""


class Shared:
    """The tests' session, which a command may not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """It goes on."""


def test_a_copy_is_restored_for_its_own_query_only(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case.kind = "update"
    give(case.at / "in", ALL[:1])
    case.begin("r1").stop()
    saved = str(case.at / "saved")
    checkpointing.save(case.at / "r1", case.at / "saved", merge=case.merge, stream="r1")
    (case.at / "builds.py").write_text(FILTERED)
    monkeypatch.setenv(queries.INPUT, str(case.at / "in"))
    monkeypatch.setattr("replicas.session.session", lambda *_, **__: Shared(case.spark))
    restore = ["checkpoint", "restore", saved, "--to", str(case.at / "r2"), "--build"]
    # Spark itself would take it for a query with one filter more, and count wrongly.
    assert main([*restore, f"{case.at / 'builds.py'}:build"]) == Exit.BAD_INPUT
    assert "«Filter (v > cast(3 as bigint))» is new" in capsys.readouterr().err
    assert not (case.at / "r2").exists()
    assert main([*restore, f"{case.at / 'builds.py'}:same"]) == Exit.OK
    assert (case.at / "r2").exists()


def test_a_replica_is_killed_after_its_copy_has_joined(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "killed"
    directory.mkdir()
    give(directory / "in", ALL[:3])
    monkeypatch.setenv(queries.INPUT, str(directory / "in"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    saved, said = str(directory / "saved"), ["--merge", "killed", "--name"]
    with running(server, directory, "aggressive", name="r1") as original:
        original.until_batch(2)
        assert main(["checkpoint", "save", *said, "r1", "--from", str(directory / "r1"),
                     "--to", saved]) == 0  # fmt: skip
        assert main(["checkpoint", "list", saved, "--json"]) == 0
        told = capsys.readouterr().out
        assert "saved killed-r1-" in told
        assert json.loads(told.splitlines()[-1])["checkpoints"][0]["batch"] >= 2
        with running(server, directory, "aggressive", name="r2",
                     arguments=("--jumpstart", saved)) as copy:  # fmt: skip
            give(directory / "in", ALL[3:4])
            copy.until(lambda: any(", joined" in line for line in copy.lines))
            os.killpg(original.process.pid, signal.SIGKILL)
            assert original.ended() == -signal.SIGKILL
            begun = [line for line in copy.lines if "begins from checkpoint" in line]
            assert len(begun) == 1, copy.lines
            # Its membership would say so.
            case = Case(spark, server, directory, "update")
            case.detach("r1")
            give(directory / "in", ALL[4:])
            give_up = time.monotonic() + WAIT_SECONDS
            while case.stable() < END:
                assert time.monotonic() < give_up, copy.lines
                time.sleep(0.05)  # between two looks
            copy.process.terminate()
            assert copy.ended() == 0, copy.lines
    case.check()
