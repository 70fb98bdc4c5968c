"""``lmerge cutover``: real Spark replicas under ``lmerge up``, and what the command says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import spec as specs
from coordinator.cutover import NAME, Cutover, Stage
from coordinator.deployment import Deployment, Member
from coordinator.membership import Coordination, Registration
from coordinator.spec import Plan, ServerSpec, Spec
from coordinator.zookeeper import Ensemble
from tests.cli.running import ROOT, run
from tests.coordinator import deployed, waiting
from tests.coordinator.test_up import MERGE, PLAN, QUERY, Following, Up, deployments, ps
from tests.coordinator.waiting import until
from tests.server.serving import server_process

PLANS = """
import os
from pyspark.sql import functions as F

def rows(spark):
    reader = spark.readStream.option("maxFilesPerTrigger", 1000)
    found = reader.schema("at DOUBLE, v BIGINT").json(os.environ["LMERGE_TEST_DEPLOYED"])
    at = F.timestamp_micros((F.col("at") * 1000000).cast("bigint"))
    return found.select(at.alias("at"), "v").withWatermark("at", "1 second")

EVENT = {"vs": "at", "ve": "at + INTERVAL 1 SECOND", "payload": ["v"]}

def better(spark):
    return rows(spark).where("v >= 0"), EVENT

def wrong(spark):
    return rows(spark).withColumn("v", F.expr("IF(v >= 60, -v, v)")), EVENT

def other_columns(spark):
    return rows(spark).withColumnRenamed("v", "w"), {**EVENT, "payload": ["w"]}
"""


class Feed:
    """Files that come all the time, in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.written = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._over.wait(1.0):
            deployed.write_file(self.directory, self.written)
            self.written += 1

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return self.written


def command(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """``lmerge cutover`` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "lmerge", "cutover", *arguments, "--json", "--dir", str(directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), deployed.INPUT: str(directory.parent / "in")},
    )  # fmt: skip


def outcome(asked: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    """Its status, its JSON lines as far as they were not read, and what it said beside them."""
    out, complaint = asked.communicate(timeout=400)
    return asked.returncode, [json.loads(line) for line in out.splitlines()], complaint


@pytest.mark.skipif(
    "LMERGE_SPARK_CUTOVER" not in os.environ,
    reason="not run to its end yet: set LMERGE_SPARK_CUTOVER to run it (some minutes of Spark)",
)
def test_plans_change_under_a_consumer_who_does_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark may take long to start where others run beside it.
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 120.0)
    directory, files, plans = tmp_path / "state", tmp_path / "in", tmp_path / "plans.py"
    files.mkdir()
    plans.write_text(PLANS)
    specification = tmp_path / "deployment.toml"
    specification.write_text(
        f'merge = "{MERGE}"\n[merge_options]\nrestriction = "R3"\n'
        f'[[servers]]\ndurability = "flush"\n'
        f'[[plans]]\nname = "{PLAN}"\nbuild = "{QUERY}:build"\nrestriction = "R3"\n'
    )
    environment = {deployed.INPUT: str(files)}
    with deployments(directory) as stack:
        feed = Feed(files)
        stack.callback(feed.end)
        first = Up(directory, specification, **environment)
        stack.callback(first.process.kill)
        first.said("everything is ready")
        second = Up(directory, **environment)
        stack.callback(second.process.kill)
        second.said("stands by")
        consumer = Following([ps(directory, "default")["servers"][0]["address"]])
        stack.callback(consumer.close)
        consumer.has(4)

        # Other columns are seen before anything is begun (and meanwhile, as Spark takes its time).
        dry = command(directory, "--to", f"{plans}:other_columns", "--dry-run")
        stack.callback(dry.kill)
        # Other results are not: digests tell, while they count for nothing.
        status, lines, complaint = outcome(command(directory, "--to", f"{plans}:wrong"))
        assert status == 8, complaint
        assert "stream 'plans-1' has other events ending in [" in complaint
        end = (deployed.BEGIN + 3 * deployed.STEP + 1) * deployed.SECOND
        found = lines[-1]["diverged"]
        assert end < found["end"]  # of those that the server still knew
        assert [r["stream"] for r in ps(directory, "default")["replicas"]] == ["q-1"]
        status, (looked,), _ = outcome(dry)
        assert (status, looked["fits"]) == (2, False)
        assert {c["check"]: c["holds"] for c in looked["checks"]} == {
            "the query": True, "its columns": False, "its restriction": True,
        }  # fmt: skip

        # A better one takes over, though the leader dies in the middle of it.
        asked = command(directory, "--to", f"{plans}:better", "--intervals", "100")
        stack.callback(asked.kill)
        assert asked.stdout is not None
        stages: list[str] = []
        for line in asked.stdout:
            stage = json.loads(line)["stage"]
            if stage not in stages:
                stages.append(stage)
                if stage == "verifying":
                    first.process.kill()
        status, _, complaint = outcome(asked)
        assert (status, complaint) == (0, "")
        assert stages[-1] == "done"
        second.said("leads (term 2)")
        second.said("cutover to plan plans: done")
        assert [r["stream"] for r in ps(directory, "default")["replicas"]] == ["plans-1"]

        written = feed.end()
        consumer.has(written)
        consumer.close()
        assert consumer.database.tdb() == deployed.truth(written)
        assert set(consumer.seen.values()) == {1}  # nothing was wrong for a while, or came twice
        assert second.end(signal.SIGTERM) == 0


# -- what the command says, without replicas -------------------------------------------------------


@pytest.fixture
def deployment(tmp_path: Path, zookeeper: Ensemble) -> Any:
    """A deployment of two plans, whose coordinator does nothing."""
    name = f"said-{os.getpid()}-{tmp_path.name}"[:60]
    with (
        server_process(tmp_path / "data", "--durability", "none") as server,
        Coordination(zookeeper.hosts, name) as session,
    ):
        opened = session.connect(waiting.WAIT_SECONDS)
        plans = (Plan("old", "x.py:build", 2), Plan("older", "x.py:build"))
        spec = Spec(MERGE, (ServerSpec(listen=f"127.0.0.1:{server.port}"),), plans)
        opened.write(specs.NAME, spec.encoded(), None)
        made = run("create", "--merge", MERGE, "--server", server.target, "--column", "v=int64")
        assert made.status == 0, made.err
        Registration(session, Member("coordinator", "c", 0)).wait(waiting.WAIT_SECONDS)
        yield opened, ("--zk", zookeeper.hosts, "--deployment", name)


def stored(opened: Deployment) -> tuple[Cutover, int]:
    found = opened.read(NAME)
    assert found is not None
    return Cutover.decoded(found.value), found.version


def test_one_cutover_at_a_time_is_asked_for_watched_and_aborted(
    tmp_path: Path, deployment: tuple[Deployment, tuple[str, ...]]
) -> None:
    opened, where = deployment
    query = tmp_path / "old.py"
    query.write_text("")
    asked = run(
        "cutover", "--to", f"{query}:build", "-n", "2", "--replace", "old", "--intervals", "3",
        "--differs-from", "2026-11-18T20:00:00.5Z", "--key", "v", "--no-wait", *where,
    )  # fmt: skip
    assert (asked.status, asked.lines[0].split(" ", 1)[1]) == (0, "old.2: starting"), asked.err
    c, version = stored(opened)
    assert c.streams == ("old.2-1", "old.2-2")  # its file's name was taken
    assert (c.replaces, c.old_streams) == (("old",), ("old-1", "old-2"))
    assert c.differs_from == 1_795_032_000_500_000
    assert Plan(**c.plan).options == {"restriction": "R3", "key": ["v"]}
    again = run("cutover", "--to", f"{query}:build", *where)
    assert again.status == 2
    assert "a cutover to plan 'old.2' runs already (starting)" in again.err
    assert run("cutover", "--abort", "--no-wait", *where).status == 0
    aborted, version = stored(opened)
    assert aborted.aborted
    # What a leader would make of it, and what whoever watches is told.
    progress = {"old.2-1": {"state": "on trial", "verified": 2, "behind": 1.0, "deaths": 0}}
    ended = replace(
        aborted, stage=Stage.ROLLED_BACK, reason="it was aborted", failed_in="starting",
        history=(("starting", 1e9), ("rolled back", 1e9 + 5)), progress=progress, note="a note",
    )  # fmt: skip
    opened.write(NAME, ended.encoded(), version)
    seen = run("cutover", "--json", *where)
    assert seen.status == 8
    assert "lmerge: rolled back while starting: it was aborted" in seen.err
    assert "a note" in seen.err
    assert json.loads(seen.lines[-1])["progress"] == progress
    late = run("cutover", "--abort", *where)
    assert (late.status, late.err) == (2, "lmerge: no cutover runs: there is nothing to abort\n")
    opened.write(NAME, replace(ended, stage=Stage.DONE, reason="").encoded(), version + 1)
    assert run("cutover", *where).status == 0
    assert until(lambda: run("cutover", "--to", f"{query}:build", "--no-wait", *where)).status == 0
    drained, version = stored(opened)
    opened.write(NAME, replace(drained, stage=Stage.DRAINING).encoded(), version)
    assert "too late to abort" in run("cutover", "--abort", *where).err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--to", "nowhere.py:build"), "--to: no such file: "),
        (("--to", "QUERY", "--replace", "new"), "no plan 'new'; there are: old, older"),
        (("--to", "QUERY", "--name", "old"), "--name: there is a plan 'old' already"),
        (("--to", "QUERY", "--merge", "x"), f"has merge '{MERGE}', not 'x'"),
        (("--to", "QUERY", "-n", "0"), "needs a plan with at least one replica"),
        (("--to", "QUERY", "--conf", "x"), "--conf takes KEY=VALUE, not 'x'"),
        (("--to", "QUERY", "--intervals", "0", "--differs-from", "5"), "1 or more intervals"),
        (("--to", "QUERY", "--timeout", "0"), "within some seconds"),
        (("--to", "QUERY", "--abort"), "--to does not go with it"),
        (("--dry-run",), "name it with --to"),
        ((), "there was no cutover yet"),
        (("--abort",), "no cutover runs"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    deployment: tuple[Deployment, tuple[str, ...]],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    opened, where = deployment
    query = tmp_path / "query.py"
    query.write_text("")
    said = [f"{query}:build" if each == "QUERY" else each for each in arguments]
    result = run("cutover", *said, *where)
    assert result.status == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1
    assert opened.read(NAME) is None


def test_a_table_shows_the_stages_and_the_streams() -> None:
    from lmerge.cli.cutover import _table
    from lmerge.cli.status import console

    plan = Plan("new", "q.py:build", 2)
    c = Cutover(
        asdict(plan), plan.streams, ("old",), ("old-1",), stage=Stage.DONE, intervals=5,
        history=(("starting", 10.0), ("warming", 12.0), ("done", 40.0)),
        progress={
            "new-1": {"state": "joined", "verified": 7, "behind": 0.4, "deaths": 1},
            "new-2": {"state": "on trial", "verified": 0, "behind": None, "deaths": 0},
            "old-1": {"state": "away", "verified": 9, "behind": None, "deaths": 0},
        },
    )  # fmt: skip
    screen = console()
    with screen.capture() as captured:
        screen.print(_table(c))
    text = captured.get()
    assert text.splitlines()[:4] == [
        "cutover from old to new", "✓  starting  2 s", "✓  warming   28 s", "✓  done          ",
    ] or "✓  warming" in text  # fmt: skip
    assert "7 of 5" in text
    assert "on trial" in text
