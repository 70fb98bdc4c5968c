"""``lmerge replica run`` as a process: killed, told to stop, failing; nothing twice or missing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lmerge.cli.exits import Exit
from tests.replicas import queries
from tests.replicas.merging import Tdb, before, read_until, truth
from tests.server.serving import ServerProcess, server_process

QUERIES = Path(queries.__file__)
BEGIN = 1_700_000_000
SECOND = queries.SECOND
END = (BEGIN // 10 + 40) * 10 * SECOND
WAIT_SECONDS = 120.0


class Running:
    """A replica's process, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def until(self, what: Callable[[], bool]) -> None:
        give_up = time.monotonic() + WAIT_SECONDS
        while not what():
            assert self.process.poll() is None, "\n".join(self.lines)
            assert time.monotonic() < give_up, "\n".join(self.lines)
            time.sleep(0.02)

    def until_batch(self, number: int) -> None:
        self.until(lambda: any(line.startswith(f"batch {number}:") for line in self.lines))

    def ended(self) -> int:
        status = self.process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        return status


@contextmanager
def running(
    server: ServerProcess,
    directory: Path,
    build: str,
    *,
    name: str = "r1",
    arguments: tuple[str, ...] = (),
) -> Iterator[Running]:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "lmerge", "replica", "run", f"{QUERIES}:{build}",
            "--merge", directory.name, "--server", server.target, "--name", name,
            "--checkpoint", str(directory / name), *arguments,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={
            **os.environ,
            queries.INPUT: str(directory / "in"),
            queries.GATE: str(directory / "gate"),
            "PYTHONPATH": str(QUERIES.parents[2]),
        },
    )  # fmt: skip
    running = Running(process)
    try:
        yield running
    finally:
        # Its JVM and workers are of the same session, and may outlive it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        running._reader.join(WAIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def write_file(directory: Path, number: int, rows: list[tuple[float, str, int]]) -> None:
    lines = [json.dumps({"at": at, "machine": machine, "v": v}) for at, machine, v in rows]
    draft = directory / f".part-{number}"
    draft.write_text("\n".join(lines) + "\n")
    os.utime(draft, (BEGIN + number, BEGIN + number))  # Spark reads in the order of times
    draft.rename(directory / f"part-{number}.json")


def write_input(directory: Path, seed: int, *, slow: bool = False, files: int = 4) -> None:
    directory.mkdir(parents=True)
    pick = random.Random(seed)
    for number in range(files):
        rows = [
            (BEGIN + number * 60 + n / 2 + pick.uniform(-5, 0), f"m{pick.randrange(3)}", n)
            for n in range(120)
        ]
        if slow and number == 1:
            rows[60] = (rows[60][0], "slow", 0)
        write_file(directory, number, rows)
    for number in (files, files + 1):
        write_file(directory, number, [(END / SECOND + 3600 * number, "closing", 0)])


def batch_truth(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch, *, counts: bool
) -> Tdb:
    monkeypatch.setenv(queries.INPUT, str(directory / "in"))
    found = queries.rows(spark, streaming=False)
    if counts:
        return truth(
            queries.counted(found), "unix_micros(window.end)", "unix_micros(window.end) + 10000000"
        )
    return truth(found, "unix_micros(at)", "unix_micros(at) + 1000000", payload=["machine", "v"])


def check(server: ServerProcess, directory: Path, expected: Tdb) -> None:
    assert before(read_until(server.target, directory.name, END), END) == before(expected, END)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    made: Path = tmp_path / request.node.name.replace("[", "-").replace("]", "")
    made.mkdir()
    return made


LAST = 5  # the batch of the last file; without rows one more may come


def test_killed_in_the_middle_of_a_batch(
    spark: SparkSession, server: ServerProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(directory / "in", 1, slow=True)
    waits = directory / "gate.waits"
    with running(server, directory, "held") as first:
        first.until(waits.exists)
        os.killpg(first.process.pid, signal.SIGKILL)
        assert first.ended() == -signal.SIGKILL
    (directory / "gate").touch()
    with running(server, directory, "held") as second:
        second.until_batch(LAST)
        second.process.terminate()
        assert second.ended() == 0, "\n".join(second.lines)
    check(server, directory, batch_truth(spark, directory, monkeypatch, counts=True))


def test_failed_attempts_leave_nothing(
    spark: SparkSession, server: ServerProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(directory / "in", 2)
    with running(server, directory, "retried", arguments=("--master", "local[2,4]")) as replica:
        replica.until_batch(LAST)
        replica.process.terminate()
        assert replica.ended() == 0, "\n".join(replica.lines)
    check(server, directory, batch_truth(spark, directory, monkeypatch, counts=False))


def test_an_aborted_batch_leaves_nothing_and_the_reason_is_said(
    spark: SparkSession, server: ServerProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(directory / "in", 3, slow=True)
    with running(server, directory, "dying") as replica:
        assert replica.ended() == Exit.DIED
        told = [line for line in replica.lines if line.startswith("lmerge: ")]
        assert len(told) == 1, replica.lines
        assert "is not true" in told[0]
    # Only a filter is gone, which has no state: the checkpoint can be trusted.
    trusting = ("--trust-checkpoint",)
    with running(server, directory, "plain", arguments=trusting) as mended:
        mended.until_batch(LAST)
        mended.process.terminate()
        assert mended.ended() == 0, "\n".join(mended.lines)
    check(server, directory, batch_truth(spark, directory, monkeypatch, counts=False))


@pytest.mark.parametrize(
    ("build", "status", "said"),
    [("broken", 2, "no_such_column"), ("nowhere", 2, "has no function 'nowhere'")],
)
def test_a_build_in_error_is_told_in_a_line(
    server: ServerProcess, directory: Path, build: str, status: int, said: str
) -> None:
    write_input(directory / "in", 4)
    with running(server, directory, build) as replica:
        assert replica.ended() == status, replica.lines
        assert any(said in line for line in replica.lines)
        assert not any(line.startswith("Traceback") for line in replica.lines)
