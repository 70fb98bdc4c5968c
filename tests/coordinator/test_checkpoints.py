"""Saved checkpoints: consistent, whole or not there, never over another; and where they are."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from coordinator import checkpoints
from coordinator.enrolment import Enrolment
from coordinator.membership import Coordination
from coordinator.zookeeper import Ensemble
from lmerge.cli.exits import Exit
from lmerge.cli.main import main
from lmerge.errors import ConfigurationError, NotFoundError, UnavailableError
from lmerge.times import INFINITY
from replicas import checkpointing


class Checkpoint:
    """A replica's, with what Spark and the sink write for each batch."""

    def __init__(self, at: Path, mode: str = "append") -> None:
        self.at = at
        self.end = -1
        at.mkdir(parents=True)
        self.put("metadata", '{"id":"of-the-original"}')
        self.put("lmerge/lineage", "of-the-original")
        plan = {"mode": mode, "digest": "abc", "spark": "4", "plan": ["Aggregate"]}
        self.put("lmerge/plan", json.dumps(plan))
        self.put("lmerge/ends/-9223372036854775808", "")

    def put(self, name: str, content: str) -> None:
        (self.at / name).parent.mkdir(parents=True, exist_ok=True)
        (self.at / name).write_text(content)

    def plan(self, batch: int) -> None:
        """What there is before the batch is committed."""
        self.put(f"sources/0/{batch}", f"files {batch}")
        self.put(f"offsets/{batch}", f"offsets {batch}")
        self.put(f".offsets.{batch}.crc", "of Hadoop")
        self.put(f"state/0/0/{batch + 1}.delta", f"state {batch + 1}")
        self.put(f"state/0/0/.{batch + 1}.delta.tmp", "half a state")
        stable = batch * 100
        head = {"whole": batch % 3 == 0, "stable": stable, "skipped_before": -1}
        self.put(f"lmerge/epochs/{batch}", json.dumps(head) + "\nrows")
        self.put(f"lmerge/ends/{stable + 50}", "")
        for each in (self.at / "lmerge/ends").iterdir():
            if int(each.name) < stable + 50:
                each.unlink()

    def commit(self, batch: int) -> None:
        self.plan(batch)
        self.put(f"commits/{batch}", f"commit {batch}")

    def save(self, to: Path, **more: Any) -> checkpointing.Saved:
        return checkpointing.save(self.at, to, merge="m", stream="r1", **more)


def committed(tmp_path: Path, batches: int, mode: str = "append") -> Checkpoint:
    made = Checkpoint(tmp_path / "live", mode)
    for batch in range(batches):
        made.commit(batch)
    return made


def names(at: Path) -> set[str]:
    return {str(each.relative_to(at)) for each in at.rglob("*") if each.is_file()}


def test_a_copy_has_the_last_committed_batch_and_nothing_of_later_ones(tmp_path: Path) -> None:
    live = committed(tmp_path, 3)
    live.plan(3)  # on its way
    saved = live.save(tmp_path / "saved")
    assert (saved.batch, saved.name, saved.since) == (2, "m-r1-2", 351)
    assert saved == checkpointing.read(tmp_path / "saved")
    found = names(tmp_path / "saved")
    assert {"offsets/2", "commits/2", "sources/0/2", "state/0/0/3.delta", "metadata"} <= found
    assert not found & {"offsets/3", "commits/3", "state/0/0/4.delta", "lmerge/epochs/3"}
    assert not [name for name in found if ".tmp" in name or ".crc" in name]
    assert "lmerge/lineage" not in found
    assert saved.files == len(found) - 1  # the manifest
    assert not list(tmp_path.glob(".*"))


def test_what_vanishes_meanwhile_is_begun_again_with_a_newer_batch(tmp_path: Path) -> None:
    live = committed(tmp_path, 3)
    begun: list[str] = []

    def copied(name: str) -> None:
        if not begun:  # Spark's maintenance, while the first file is copied
            live.commit(3)
            live.put("state/0/0/4.snapshot", "state 4")
            for version in (1, 2, 3):
                (live.at / f"state/0/0/{version}.delta").unlink()
        begun.append(name)

    saved = live.save(tmp_path / "saved", copied=copied)
    assert saved.batch == 3
    assert {"state/0/0/4.snapshot", "state/0/0/4.delta"} <= names(tmp_path / "saved")


def test_a_checkpoint_that_never_stands_still_is_given_up(tmp_path: Path) -> None:
    live, number = committed(tmp_path, 3), [3]

    def copied(name: str) -> None:
        if name.startswith("commits"):
            shutil.rmtree(live.at / "state/0/0")
            live.commit(number[0])
            number[0] += 1

    with pytest.raises(UnavailableError, match="faster than it can be copied"):
        live.save(tmp_path / "saved", copied=copied)
    assert names(tmp_path) == {f"live/{name}" for name in names(live.at)}


@pytest.mark.parametrize(
    ("gone", "mode"),
    [
        ("state/0/0/2.delta", "append"), ("offsets/3", "append"), ("lmerge/plan", "append"),
        ("lmerge/ends/350", "append"), ("lmerge/epochs/3", "update"), ("metadata", "append"),
    ],
)  # fmt: skip
def test_what_is_not_complete_is_neither_saved_nor_restored(
    tmp_path: Path, gone: str, mode: str
) -> None:
    live = committed(tmp_path, 4, mode)
    live.save(tmp_path / "saved")
    if gone != "offsets/3":  # the batch before it is complete
        (live.at / gone).unlink()
        with pytest.raises((ConfigurationError, UnavailableError)):
            live.save(tmp_path / "again")
        assert not (tmp_path / "again").exists()
    (tmp_path / "saved" / gone).unlink()
    with pytest.raises(ConfigurationError, match="not complete"):
        checkpointing.restore(tmp_path / "saved", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_restored_copy_is_another_query_of_another_stream(tmp_path: Path) -> None:
    live = committed(tmp_path, 3)
    live.save(tmp_path / "saved")
    checkpointing.restore(tmp_path / "saved", tmp_path / "new")
    found = names(tmp_path / "new")
    assert found == names(tmp_path / "saved") - {checkpointing.MANIFEST}
    assert json.loads((tmp_path / "new/metadata").read_text())["id"] != "of-the-original"
    assert checkpointing.jumpstart(tmp_path / "saved", tmp_path / "new") is None  # it goes on


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    live = committed(tmp_path, 2)
    live.save(tmp_path / "saved")
    kept = tmp_path / "kept"
    kept.mkdir()
    checkpointing.restore(tmp_path / "saved", kept)  # an empty directory is nothing
    for refused in (live.save, lambda to: checkpointing.restore(tmp_path / "saved", to)):
        with pytest.raises(ConfigurationError, match="not overwritten"):
            refused(kept)
    with pytest.raises(ConfigurationError, match="saved checkpoint itself"):
        checkpointing.save(tmp_path / "saved", tmp_path / "two", merge="m", stream="r")


def test_results_that_never_end_are_told_when_they_are_saved(tmp_path: Path) -> None:
    live = committed(tmp_path, 2)
    live.put(f"lmerge/ends/{INFINITY}", "")
    assert live.save(tmp_path / "saved").since is None
    with pytest.raises(ConfigurationError, match="never end"):
        checkpointing.restore(tmp_path / "saved", tmp_path / "new")


def test_a_checkpoint_that_is_not_of_this_machine_is_refused(tmp_path: Path) -> None:
    assert checkpointing.local(str(tmp_path)) == tmp_path
    assert checkpointing.local(f"file://{tmp_path}") == tmp_path
    with pytest.raises(ConfigurationError, match="not a directory of this machine"):
        checkpointing.local("hdfs://name/checkpoints/r1")


def test_what_no_replica_has_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        checkpointing.save(tmp_path / "none", tmp_path / "to", merge="m", stream="r")
    (tmp_path / "other/offsets").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="no fingerprint"):
        checkpointing.save(tmp_path / "other", tmp_path / "to", merge="m", stream="r")
    fresh = Checkpoint(tmp_path / "fresh")
    with pytest.raises(UnavailableError, match="no batch yet"):
        fresh.save(tmp_path / "to")


def test_a_deployment_knows_its_checkpoints_and_where_its_replicas_have_theirs(
    zookeeper: Ensemble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    live = committed(tmp_path, 3)
    there = ["--zk", zookeeper.hosts, "--deployment", "checkpoints"]

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["checkpoint", *arguments, *there])
        said = capsys.readouterr()
        return status, said.out or said.err

    status, said = run("save", "--merge", "m", "--name", "r1", "--to", "saved")
    assert (status, "no replica 'r1'" in said) == (Exit.BAD_INPUT, True)
    member = Enrolment(zookeeper.hosts, "checkpoints", "m", "r1", checkpoint=str(live.at))
    member.start()
    try:
        assert member.join("lineage") > 0
        status, said = run("save", "--merge", "m", "--name", "r1", "--to", "saved")
        assert (status, "batch 2" in said) == (Exit.OK, True), said
        live.commit(3)
        status, said = run("save", "--merge", "m", "--name", "r1", "--to", "b", "--as", "monday")
        assert status == Exit.OK, said
    finally:
        member.close()
    status, said = run("list", "--json")
    rows = {row["name"]: row for row in json.loads(said)["checkpoints"]}
    assert {name: row["batch"] for name, row in rows.items()} == {"m-r1-2": 2, "monday": 3}
    assert rows["monday"]["host"] == socket.gethostname()
    shutil.rmtree("b")
    status, said = run("list")
    assert status == Exit.OK
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["m-r1-2", "monday"]
    assert "b (is gone)" in said.splitlines()[2]
    status, said = run("restore", "m-r1-2", "--to", "new")
    assert (status, "goes on behind batch 2" in said) == (Exit.OK, True), said
    assert (tmp_path / "new/commits/2").is_file()
    status, said = run("restore", "tuesday", "--to", "new2")
    assert (status, "it has m-r1-2, monday" in said) == (Exit.BAD_INPUT, True)
    with Coordination(zookeeper.hosts, "checkpoints") as session:
        deployment = session.connect(10.0)
        checkpoints.record(deployment, "monday", {"batch": 7})
        assert checkpoints.recorded(deployment)["monday"]["batch"] == 7
        checkpoints.forget(deployment, "monday")
        assert list(checkpoints.recorded(deployment)) == ["m-r1-2"]


def test_checkpoints_in_directories_are_listed_without_a_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = committed(tmp_path, 2)
    (tmp_path / "all").mkdir()
    live.save(tmp_path / "all/one")
    shutil.copytree(tmp_path / "all/one", tmp_path / "all/moved")
    assert main(["checkpoint", "list", str(tmp_path / "all"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [row["directory"] for row in rows] == [
        str(tmp_path / "all/moved"), str(tmp_path / "all/one"),
    ]  # fmt: skip
    assert main(["checkpoint", "list", str(tmp_path / "nowhere")]) == Exit.BAD_INPUT
