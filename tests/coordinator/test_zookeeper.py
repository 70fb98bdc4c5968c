"""The embedded ZooKeeper: it answers when it says so, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from coordinator import zookeeper
from coordinator.zookeeper import Ensemble
from lmerge.errors import ConfigurationError
from tests.coordinator.waiting import WAIT_SECONDS, group_is_gone, until

COMMAND = [sys.executable, "-m", "lmerge", "zk", "--json"]


def client_of(ensemble: Ensemble) -> KazooClient:
    client = KazooClient(ensemble.hosts, timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    return client


def close(client: KazooClient) -> None:
    client.stop()
    client.close()


def test_a_node_that_is_ready_answers_at_once_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    with Ensemble(tmp_path / "z") as ensemble:
        hosts, group = ensemble.hosts, ensemble.nodes[0].pid
        client = client_of(ensemble)
        client.create("/kept", b"yes")
        close(client)
    assert group is not None
    assert group_is_gone(group)
    with Ensemble(tmp_path / "z") as ensemble:
        assert ensemble.hosts == hosts
        client = client_of(ensemble)
        assert client.get("/kept")[0] == b"yes"
        close(client)


def test_an_ensemble_survives_its_leader(three: Ensemble) -> None:
    client = client_of(three)
    client.create("/session", b"", ephemeral=True)
    leader = three.leader()
    assert leader is not None
    three.kill(leader)
    client.retry(client.create, "/after", b"the leader")
    assert client.exists("/session") is not None
    new = until(lambda: (three.leader(),))[0]
    assert new != leader
    three.start(leader)
    assert zookeeper.mode(three.nodes[leader].port) == "follower"
    close(client)


def test_an_ensemble_that_stopped_as_a_whole_returns_with_its_data(three: Ensemble) -> None:
    client = client_of(three)
    client.create("/kept", b"yes")
    for node in three.nodes:
        three.kill(node.number)
    assert three.leader() is None
    for node in three.nodes:
        three.start(node.number, wait=False)
    three.await_ready()
    assert client.retry(client.get, "/kept")[0] == b"yes"
    close(client)


def test_a_directory_is_one_ensembles_alone(own_zookeeper: Ensemble) -> None:
    with pytest.raises(ConfigurationError, match="another ZooKeeper runs in"):
        Ensemble(own_zookeeper.directory).open()


def test_a_directory_keeps_its_number_of_nodes(tmp_path: Path) -> None:
    with Ensemble(tmp_path):
        pass
    with pytest.raises(ConfigurationError, match=r"the data of 1 node\(s\), not 3"):
        Ensemble(tmp_path, nodes=3).open()


def test_a_port_that_is_taken_is_named(zookeeper: Ensemble, tmp_path: Path) -> None:
    port = zookeeper.nodes[0].port
    with pytest.raises(ConfigurationError, match=f"port {port} is in use"):
        Ensemble(tmp_path, port=port).open()


@pytest.mark.parametrize("nodes", [0, 2, 9])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(ConfigurationError, match="1, 3, 5 or 7"):
        Ensemble(tmp_path, nodes=nodes)


def test_without_java_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="needs Java, and there is none: install"):
        Ensemble(tmp_path).open()


def test_without_pyspark_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="PySpark is not installed: pip install"):
        Ensemble(tmp_path).open()


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_is_and_ends_with_a_signal(number: signal.Signals) -> None:
    command = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    try:
        told = json.loads(command.stdout.readline())
        [node] = told["nodes"]
        assert zookeeper.mode(node["port"]) == "standalone"
        assert told["hosts"] == f"127.0.0.1:{node['port']}"
        command.send_signal(number)
        assert command.wait(WAIT_SECONDS) == 0
        assert group_is_gone(node["pid"])
    finally:
        command.kill()
        command.wait()
        command.stdout.close()


def test_the_command_starts_a_node_again_that_died() -> None:
    command = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stderr is not None
    try:
        [node] = json.loads(command.stdout.readline())["nodes"]
        os.killpg(node["pid"], signal.SIGKILL)
        assert "node 0 has ended" in command.stderr.readline()
        until(lambda: zookeeper.mode(node["port"]))
    finally:
        command.terminate()
        assert command.wait(WAIT_SECONDS) == 0
        command.stdout.close()
        command.stderr.close()


def test_nothing_of_it_outlives_a_kill() -> None:
    command = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    node = json.loads(command.stdout.readline())["nodes"][0]
    command.kill()
    command.wait()
    command.stdout.close()
    until(lambda: group_is_gone(node["pid"]))


def test_it_ends_with_whoever_started_it() -> None:
    starts = f"import subprocess; subprocess.Popen({COMMAND!r}); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", starts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    node = json.loads(parent.stdout.readline())["nodes"][0]
    parent.kill()
    parent.wait()
    until(lambda: group_is_gone(node["pid"]))
    parent.stdin.close()
    parent.stdout.close()
