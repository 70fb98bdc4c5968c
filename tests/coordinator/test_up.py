"""``lmerge up`` and its companions: real servers, real Spark, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.deployment import Member
from coordinator.enrolment import Enrolment
from coordinator.home import Home
from coordinator.membership import Coordination, Registration
from coordinator.processes import LOG_BYTES_KEPT, LOG_BYTES_MAX, Processes
from coordinator.zookeeper import Ensemble
from lmerge.cli.coordination import VARIABLE
from lmerge.client import SyncMergedReader
from lmerge.client.reader import elements_in
from lmerge.elements import Insert, Stable
from tests.cli.running import ROOT, run
from tests.coordinator import deployed, waiting
from tests.coordinator.waiting import until
from tests.oracle.tdb import Reconstitution

QUERY = Path(deployed.__file__)
PLAN = "q"
MERGE = "m"


class Up:
    """One ``lmerge up``, and what it has said."""

    def __init__(self, directory: Path, *arguments: str | Path, **environment: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmerge", "up", *map(str, arguments), "--dir", str(directory)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self.lines.append(line.rstrip("\n"))

    def said(self, text: str, times: int = 1) -> str:
        """Waits until it has said something so often; returns the last such line."""

        def found() -> str:
            said = [line for line in self.lines if text in line]
            return said[times - 1] if len(said) >= times else ""

        return until(found, f"{text!r} in\n" + "\n".join(self.lines))

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        status = self.process.wait(waiting.WAIT_SECONDS)
        self._reader.join(waiting.WAIT_SECONDS)
        return status


@contextmanager
def deployments(directory: Path) -> Iterator[ExitStack]:
    """Whatever was started out of a state directory ends."""
    with ExitStack() as stack:
        try:
            yield stack
        finally:
            processes = Processes(directory)
            for name in processes.names():
                processes.signal(name, signal.SIGKILL)
                processes.sweep(name)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark may take long to start where others run beside it.
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 120.0)


class Following:
    """A consumer, in a thread, of whatever servers there are."""

    def __init__(self, servers: list[str]) -> None:
        self.database = Reconstitution("R4")
        self.seen: Counter[int] = Counter()  # inserts, by value
        self.error: Exception | None = None
        self._reader = SyncMergedReader(servers, MERGE, start="beginning")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for item in self._reader:
                for element in elements_in(item):
                    self._take(element)
        except Exception as error:
            self.error = error

    def _take(self, element: Any) -> None:
        if isinstance(element, Stable):
            self.database.apply(("stable", element.vc))
            return
        payload = element.payload["v"]
        kind = "insert" if isinstance(element, Insert) else "adjust"
        self.database.apply((kind, payload, *element[1:]))
        self.seen[payload] += kind == "insert"

    def has(self, files: int) -> None:
        """Waits until the events of so many files are there."""
        until(lambda: self.error or len(self.seen) >= files * deployed.ROWS, "the consumer")
        assert self.error is None, self.error

    def close(self) -> None:
        self._reader.close()
        self._thread.join(waiting.WAIT_SECONDS)


def ps(directory: Path, name: str) -> dict[str, Any]:
    result = run("ps", "--json", "--dir", str(directory), "--deployment", name)
    assert result.status == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def replica(found: dict[str, Any], stream: str) -> dict[str, Any]:
    (one,) = [each for each in found["replicas"] if each["stream"] == stream]
    return dict(one)


def kill(directory: Path, process: str, number: signal.Signals = signal.SIGKILL) -> None:
    known = Processes(directory).running(process)
    assert known is not None
    os.kill(known.pid, number)


def test_a_deployment_survives_whatever_dies(tmp_path: Path) -> None:
    directory, files = tmp_path / "state", tmp_path / "in"
    files.mkdir()
    specification = tmp_path / "deployment.toml"
    specification.write_text(
        f'merge = "{MERGE}"\nlinger_seconds = 600\n'
        f'[merge_options]\nrestriction = "R3"\n'
        f'[[servers]]\nname = "one"\ndurability = "flush"\n'
        f'[[servers]]\nname = "two"\ndurability = "flush"\n'
        f'[[plans]]\nname = "{PLAN}"\nbuild = "{QUERY}:build"\nreplicas = 2\nrestriction = "R3"\n'
    )
    environment = {deployed.INPUT: str(files)}
    written = 0

    def write() -> int:
        nonlocal written
        deployed.write_file(files, written)
        written += 1
        return written

    with deployments(directory) as stack:
        write()
        first = Up(directory, specification, **environment)
        stack.callback(first.process.kill)
        first.said("leads (term 1)")
        second = Up(directory, **environment)
        stack.callback(second.process.kill)
        second.said("stands by")
        first.said("everything is ready")
        found = ps(directory, "default")
        servers = [server["address"] for server in found["servers"]]
        assert {r["stream_state"] for r in found["replicas"]} == {"joined"}
        assert [c["leads"] for c in found["coordinators"]].count(True) == 1
        consumer = Following(servers)
        stack.callback(consumer.close)
        consumer.has(written)

        # A replica is killed: the other goes on, and it comes back with its own stream.
        kill(directory, "replica-q-1")
        first.said("replica q-1 died (SIGKILL)")
        first.said("replica q-1 started", 2)
        consumer.has(write())

        # The leader is killed: the data goes on, and another takes over what runs.
        first.process.kill()
        consumer.has(write())
        second.said("leads (term 2)")
        second.said("replica q-2 runs")
        second.said("everything is ready")
        after = replica(ps(directory, "default"), "q-1")
        assert after["lineage"] == replica(found, "q-1")["lineage"]
        assert after["incarnation"] > replica(found, "q-1")["incarnation"]
        assert after["restarts"] == 1

        # A server is killed: the other goes on, and it is started again and written to again.
        kill(directory, "server-one")
        consumer.has(write())
        second.said("server one is ready", 2)
        until(lambda: {r["connected"] for r in ps(directory, "default")["replicas"]} == {True})
        kill(directory, "server-two")
        consumer.has(write())
        second.said("server two is ready", 2)

        # All of ZooKeeper is away: the data goes on, and the members are members again.
        hosts = found["zookeeper"]["hosts"]
        kill(directory, "zookeeper")
        consumer.has(write())
        second.said("the embedded ZooKeeper had ended; it is started again")
        with Coordination(hosts, "default") as coordination:
            deployment = coordination.connect(waiting.WAIT_SECONDS)
            until(lambda: len(deployment.members("replica")) == 2, "two replicas")
            until(lambda: len(deployment.members("server")) == 2, "two servers")
            until(lambda: second.lines[-1].endswith("is ready"), "the leader leads again")

            # A replica is paused, and another takes its place: it is fenced, and stays away.
            kill(directory, "replica-q-1", signal.SIGSTOP)
            usurper = Registration(coordination, Member("replica", "q-1", 0, merge=MERGE))
            usurper.wait(waiting.WAIT_SECONDS)
            consumer.has(write())
            kill(directory, "replica-q-1", signal.SIGCONT)
            second.said("replica q-1 is fenced")
            log = (directory / "logs/replica-q-1.log").read_text()
            assert "is fenced: a newer incarnation of it is there" in log or "fenced off" in log
            consumer.has(write())
            usurper.close()
            second.said("replica q-1 started", 1)

            # One that is not wanted any more leaves no trace.
            result = run("scale", PLAN, "1", "--dir", str(directory))
            assert result.out == "plan q: 2 → 1 replicas\n"
            second.said("replica q-2 has left the merge")
            assert "m:q-2" not in deployment.incarnations("replica")
            until(lambda: replica(ps(directory, "default"), "q-1")["stream_state"] == "joined")
            assert [r["stream"] for r in ps(directory, "default")["replicas"]] == ["q-1"]
            assert not (directory / "checkpoints/q-2").exists()
        write()
        consumer.has(written)
        consumer.close()
        assert consumer.database.tdb() == deployed.truth(written)
        assert set(consumer.seen.values()) == {1}
        assert second.end(signal.SIGTERM) == 0
        assert second.lines[-1].split(" ", 1)[1].startswith("deployment default is down")
        processes = Processes(directory)
        assert not [name for name in processes.names() if processes.running(name)]


def test_what_keeps_dying_is_reported_and_down_ends_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "somebody:secret")
    directory = tmp_path / "state"
    plan = ("--plan", f"{QUERY}:nowhere", "--name", "bad", "--merge", MERGE)
    common = ("--dir", str(directory), "--deployment", "d")
    with deployments(directory) as stack:
        first = Up(directory, *plan, "--deployment", "d")
        stack.callback(first.process.kill)
        line = first.said("replica bad-1 died (status 2); it is started again in")
        assert "has no function 'nowhere'" in line
        first.said("server server is ready")
        first.said("replica bad-1 died", 2)
        found = ps(directory, "d")
        assert found["merge"] == MERGE
        assert found["zookeeper"]["embedded"]
        assert found["servers"][0]["state"] == "ready"
        assert replica(found, "bad-1")["restarts"] >= 1
        with monkeypatch.context() as nobody:
            nobody.delenv(VARIABLE)
            (problem, *_) = ps(directory, "d")["problems"]
            assert "belongs to other credentials" in problem
        shown = run("ps", *common)
        assert "bad-1" in shown.out
        assert "embedded" in shown.out
        # Who leads and is told to end only leaves when another stands by.
        second = Up(directory, "--deployment", "d")
        stack.callback(second.process.kill)
        second.said("stands by")
        assert first.end(signal.SIGTERM) == 0
        assert first.lines[-1].endswith("has left; the deployment runs on")
        second.said("leads (term 2)")
        second.said("server server runs")
        assert run("scale", "bad", "0", *common).status == 0
        second.said("replica bad-1 has left the merge")
        mistaken = run("scale", "worse", "1", *common)
        assert (mistaken.status, mistaken.err) == (
            2, "lmerge: there is no plan 'worse'; there are: bad\n",
        )  # fmt: skip
        # Both end; the spec is kept, and what runs next is what ran last.
        result = run("down", *common)
        assert result.status == 0, result.err
        assert "server server ended" in result.lines
        assert second.process.wait(waiting.WAIT_SECONDS) == 0
        processes = Processes(directory)
        assert not [name for name in processes.names() if processes.running(name)]
        address = found["servers"][0]["address"]
        again = Up(directory, "--deployment", "d")
        stack.callback(again.process.kill)
        again.said("everything is ready")
        assert ps(directory, "d")["servers"][0]["address"] == address
        assert again.end(signal.SIGINT) == 0
        assert not [name for name in processes.names() if processes.running(name)]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("up", "missing.toml"), "missing.toml: cannot be read: No such file or directory"),
        (("up", "x.toml", "--plan", "q.py"), "--plan is not possible beside a file"),
        (("up", "-n", "2"), "-n is of a plan: name it with --plan"),
        (("up", "--plan", "q.py:build", "-n", "-1"), "-1 is not possible: a whole number from 0"),
        (("up", "--deployment", "a/b"), "'a/b' is no name of a deployment"),
        (("ps",), "there is no deployment in"),
        (("down",), "start it with lmerge up, say where its state is with --dir"),
        (("scale", "a", "1"), "there is no deployment in"),
        (("replica", "run", "q.py:b", "--merge", "m", "--name", "a", "--zk", "h:x"), "HOST:PORT"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command)
    assert result.status == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1


def test_a_state_directory_belongs_to_one_deployment(tmp_path: Path) -> None:
    Home("one", tmp_path, make=True).remember("127.0.0.1:1", embedded=False)
    result = run("ps", "--dir", str(tmp_path), "--deployment", "two")
    assert result.status == 2
    assert "is the state of deployment 'one', not of 'two'" in result.err
    # What ZooKeeper would say is left open, and the rest is shown.
    result = run("ps", "--json", "--dir", str(tmp_path), "--deployment", "one")
    assert result.status == 0
    assert json.loads(result.out)["problems"] == ["ZooKeeper at 127.0.0.1:1 does not answer"]


def test_a_replica_that_starts_without_zookeeper_is_a_member_when_that_is_back(
    own_zookeeper: Ensemble,
) -> None:
    hosts = own_zookeeper.hosts
    own_zookeeper.kill(0)
    enrolment = Enrolment(hosts, "d", MERGE, "a", plan=PLAN, wait_seconds=0.2)
    enrolment.start()
    try:
        assert enrolment.join("lineage") == 0
        enrolment.attached(7)  # which the server gave
        own_zookeeper.start(0)
        with Coordination(hosts, "d") as coordination:
            deployment = coordination.connect(waiting.WAIT_SECONDS)
            until(lambda: deployment.members("replica"))
            member = deployment.members("replica")["m:a"]
            assert (member.incarnation, member.lineage, member.plan) == (7, "lineage", PLAN)
            assert member.details == {**member.details, "pid": os.getpid(), "attached": True}
            assert not enrolment.fenced
            Registration(coordination, Member("replica", "a", 0, merge=MERGE))
            until(lambda: enrolment.fenced)
    finally:
        enrolment.close()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('lmerge: last words', flush=True)
child.wait()
"""


def test_processes_are_found_again_and_end_with_all_that_they_have_started(tmp_path: Path) -> None:
    with deployments(tmp_path):
        mine, others = Processes(tmp_path), Processes(tmp_path)
        known = mine.start("a", [sys.executable, "-c", PARENT], restarts=3)
        until(lambda: others.words("a") == "last words")
        assert others.running("a") == known
        assert others.start("a", ["ignored"]) == known
        assert others.names() == ["a"]
        os.kill(known.pid, signal.SIGKILL)
        until(lambda: others.running("a") is None)
        assert mine.running("a") is None
        assert mine.status("a") == -signal.SIGKILL
        assert others.status("a") is None
        assert not waiting.group_is_gone(known.pid)
        others.sweep("a")
        until(lambda: waiting.group_is_gone(known.pid), "what it had started")
        # A number that is another process's by now is not taken for it.
        other = others.start("b", [sys.executable, "-c", "import time; time.sleep(600)"])
        file = tmp_path / "run/a.json"
        earlier = {"pid": other.pid, "created": known.created - 60}
        file.write_text(json.dumps({**json.loads(file.read_text()), **earlier}))
        assert others.known("a") is not None
        assert others.running("a") is None
        others.sweep("a")
        assert others.running("b") == other
        others.signal("b", signal.SIGKILL)
        until(lambda: others.running("b") is None)


def test_logs_are_cut_and_their_last_part_is_kept(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    log = processes.log("a")
    with log.open("ab") as writing:
        writing.write(b"x" * LOG_BYTES_MAX + b"\nlast\n")
        writing.flush()
        processes.trim_logs()
        writing.write(b"next\n")
        writing.flush()
        assert log.read_bytes() == b"next\n"
        kept = log.with_suffix(".log.1").read_bytes()
        assert kept.endswith(b"last\n")
        assert len(kept) == LOG_BYTES_KEPT
