"""``lmerge status``, ``top`` and the operators' commands, against a real server."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509

from lmerge.cli import top
from lmerge.cli.status import View, console, render
from lmerge.client import SyncReader, SyncWriter
from lmerge.core.properties import StreamProperties
from lmerge.v1.operator_pb2 import (
    DescribeMergeResponse,
    MergeSummary,
    OutputStatistics,
    StreamStatistics,
)
from tests.cli.running import Ran, process, run
from tests.server.test_security import Authority

WAIT_SECONDS = 60
SCHEMA = pa.schema([("k", pa.int64())])
OPERATOR, REPLICA = "operator-token-0001", "replica-token-00001"


@contextmanager
def serving(folder: Path, *, host: str = "127.0.0.1", config: str = "") -> Iterator[str]:
    """A server process of its own; its address."""
    file = folder / "server.toml"
    file.write_text(config, "utf-8")
    argv = ["server", "--config", str(file), "--data-dir", str(folder / "data")]
    argv += ["--listen", f"{host}:0", "--durability", "none"]
    with process(argv) as server:
        assert server.stderr is not None
        said: list[bytes] = []
        port = None
        for line in server.stderr:  # it ends when the process does
            said.append(line)
            if found := re.search(rb"listening on \S+:(\d+)", line):
                port = int(found[1])
                break
        # What is logged later must not fill the pipe.
        rest = threading.Thread(target=server.stderr.read)
        rest.start()
        try:
            assert port is not None, b"".join(said).decode()
            yield f"{host}:{port}"
        finally:
            server.kill()
            rest.join(WAIT_SECONDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMERGE_TOKEN", raising=False)


def lines(start: int, count: int) -> pa.RecordBatch:
    """Inserts, one after the other."""
    vs = list(range(start, start + count))
    columns: dict[str, Any] = {
        "op": pa.array([0] * count, pa.int8()),
        "vs": pa.array(vs, pa.int64()),
        "ve": pa.array([t + 100 for t in vs], pa.int64()),
        "vold": pa.array([0] * count, pa.int64()),
        "k": pa.array(vs, pa.int64()),
    }
    return pa.record_batch(columns)


def writing(server: str, merge: str, stream: str, *, from_time: int | None = None) -> SyncWriter:
    promise = StreamProperties(keyed=True)
    return SyncWriter(server, merge, stream, SCHEMA, properties=promise, from_time=from_time)


def described(server: str, merge: str) -> dict[str, Any]:
    ran = run("status", "--server", server, "--merge", merge, "--json")
    assert ran.status == 0, ran.err
    (found,) = json.loads(ran.out)["merges"]
    assert isinstance(found, dict)
    return found


def refused(ran: Ran) -> str:
    """The one line that a failed command leaves."""
    assert (ran.status, ran.out) == (2, ""), ran
    (line,) = ran.err.splitlines()
    assert line.startswith("lmerge: ")
    return line.removeprefix("lmerge: ")


def test_a_merge_is_made_filled_shown_and_deleted(server: str) -> None:
    at = ("--server", server, "--merge", "whole")
    assert run("create", *at, "--restriction", "R3", "--column", "k=int64").out == (
        "merge 'whole' is there\n"
    )
    assert refused(run("create", *at)) == "there is a merge 'whole' already"
    with writing(server, "whole", "a") as writer:
        writer.write(lines(1, 10))
        writer.commit(stable=5)
        found = described(server, "whole")
        shown = run("status", *at).out
    assert (found["restriction"], found["schema"]) == ("R3", {"k": "int64"})
    assert (found["output"]["inserts"], found["output"]["stable"]) == (10, 5)
    (stream,) = found["streams"]
    assert (stream["name"], stream["inserts"], stream["connected"]) == ("a", 10, True)
    assert (stream["stable"], stream["lag"], stream["share"]) == (5, 0, 1.0)
    assert shown.startswith("whole  R3, stable to 5, 10 inserts, 0 adjusts,")
    row = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["a"])
    assert row[:6] == ["a", stream["state"], "yes", "0", "100%", "5"]
    assert re.match(r"merge 'whole': a snapshot of [\d,]+ bytes covers", run("snapshot", *at).out)
    assert "cannot be undone" in refused(run("delete", *at))
    assert run("delete", *at, "--yes").out == "merge 'whole' is deleted\n"
    assert "there is no merge 'whole'" in refused(run("status", *at))


def test_streams_are_quarantined_released_and_detached(server: str) -> None:
    at = ("--server", server, "--merge", "streams")
    with (
        writing(server, "streams", "a") as first,
        writing(server, "streams", "b") as second,
    ):
        for writer in (first, second):
            writer.write(lines(1, 3))
            writer.commit(stable=2)
        on_a = (*at, "--stream", "a")
        assert "'a' is" in refused(run("release", *on_a))
        assert run("quarantine", *on_a, "--reason", "it lies\x1b[2J").out == (
            "stream 'a' of merge 'streams' is quarantined\n"
        )
        states = {each["name"]: each["state"] for each in described(server, "streams")["streams"]}
        assert states["a"] == "quarantined"
        shown = run("status", *at).out
        assert "a: it lies�[2J" in shown
        assert run("release", *on_a).out == (
            "stream 'a' of merge 'streams' is released: it may attach again\n"
        )
        on_b = (*at, "--stream", "b")
        assert "incarnation" in refused(run("detach", *on_b, "--incarnation", "77"))
        assert run("detach", *on_b).out == "stream 'b' is detached from merge 'streams'\n"
        assert described(server, "streams")["streams"] == []
        assert "'b'" in refused(run("detach", *on_b))
        for writer in (first, second):
            writer.close(drain=False)


def test_subscriptions_are_shown_and_dropped(server: str) -> None:
    at = ("--server", server, "--merge", "read")
    with writing(server, "read", "a") as writer:
        writer.write(lines(1, 3))
        writer.commit(stable=2)
        with SyncReader(server, "read", subscription="s", start="beginning") as reader:
            next(iter(reader))
            reader.acknowledge()
    (found,) = described(server, "read")["subscriptions"]
    assert found["name"] == "s"
    assert re.search(r"\n +s +(yes|no) +\d+ +\d+ *\n", run("status", *at).out)
    on = (*at, "--subscription", "s")
    assert run("drop-subscription", *on).out == "subscription 's' of merge 'read' is dropped\n"
    assert "'s'" in refused(run("drop-subscription", *on))


def test_a_gap_is_allowed_only_when_there_is_one(server: str) -> None:
    at = ("--server", server, "--merge", "gap")
    assert run("create", *at, "--column", "k=int64", "--restriction", "R3").status == 0
    assert "not stalled" in refused(run("allow-gap", *at))
    with writing(server, "gap", "a") as writer:
        writer.write(lines(1, 3))
        writer.commit(stable=2)
        writer.detach()
    with writing(server, "gap", "b", from_time=1_000) as writer:
        writer.write(lines(1_000, 3))
        writer.commit(stable=1_001)
        assert described(server, "gap")["stalled"] is True
        assert "STALLED" in run("status", *at).out
        assert run("allow-gap", *at).out == "merge 'gap' goes on after a gap\n"
        assert described(server, "gap")["stalled"] is False


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["status", "--merge", "absent"], "there is no merge 'absent'"),
        (["snapshot", "--merge", "absent"], "there is no merge 'absent'"),
        (["create", "--merge", "../x"], "'../x' is no name of a merge"),
        (["create", "--merge", "x", "--column", "k"], "--column: 'k' is not NAME=TYPE"),
        (["create", "--merge", "x", "--column", "k=int"], "'int' is no type of a column"),
        (["create", "--merge", "x", "--column", "k=int8", "--column", "k=int8"], "two of the name"),
        (["create", "--merge", "x", "--insert-policy", "last"], "unknown insert policy 'last'"),
        (["status", "--token-file", "/absent"], "--token-file: cannot read /absent: No such file"),
        (["status", "--token-file", os.devnull], "holds no token"),
        (["status", "--tls-ca", "/absent"], "cannot read /absent: No such file"),
        (["status", "--tls-cert", "/absent"], "a certificate needs its key"),
        (["status", "--server", "nowhere"], "a server is HOST:PORT, not 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(
    server: str, argv: list[str], said: str
) -> None:
    where = [] if "--server" in argv else ["--server", server]
    assert said in refused(run(*argv, *where))


@pytest.mark.parametrize("command", ["status", "top", "allow-gap"])
def test_a_server_that_is_not_there_is_one_line(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    said = refused(run(command, "--server", address, "--merge", "m"))
    assert said.startswith(f"the server at {address} cannot be reached: ")
    assert "refused" in said.lower()


def test_a_server_that_says_nothing_is_given_up_on() -> None:
    # Bound and never accepted from: the connection stands, and no answer comes.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = refused(run("status", "--server", address, "--timeout", "0.2"))
    assert said == (f"the server at {address} cannot be reached: there was no answer within 0.2 s")


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


SECURED = f"""
[[tokens]]
name = "operators"
sha256 = "{digest(OPERATOR)}"
roles = ["operator"]
merges = ["mine", "other"]

[[tokens]]
name = "replicas"
sha256 = "{digest(REPLICA)}"
roles = ["replica"]
merges = ["mine"]

[[merges]]
name = "mine"
schema = {{ k = "int64" }}

[[merges]]
name = "hidden"
schema = {{ k = "int64" }}
"""


def test_a_token_opens_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, config=SECURED) as address:
        at = ("--server", address)
        said = refused(run("status", *at))
        assert said.startswith("this server wants to know who is calling: send a token")
        monkeypatch.setenv("LMERGE_TOKEN", "some-wrong-token")
        assert refused(run("status", *at)) == "the token is not known here"
        file = tmp_path / "token"
        file.write_text(OPERATOR + "\n")
        ran = run("status", *at, "--json", "--token-file", str(file))  # before the environment's
        assert [merge["name"] for merge in json.loads(ran.out)["merges"]] == ["mine"]
        monkeypatch.setenv("LMERGE_TOKEN", OPERATOR)
        denied = "token 'operators' has no role 'operator' in merge 'hidden'"
        for argv in (["status"], ["snapshot"], ["delete", "--yes"], ["allow-gap"], ["create"]):
            assert refused(run(*argv, *at, "--merge", "hidden")) == denied
        assert run("snapshot", *at, "--merge", "mine").status == 0
        # Who sees a merge without being its operator is shown that it is there, and why no more.
        monkeypatch.setenv("LMERGE_TOKEN", REPLICA)
        ran = run("status", *at)
        assert ran.status == 0
        assert "token 'replicas' has no role 'operator' in merge 'mine'" in ran.out


def test_certificates_open_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    authority.issue("server", x509.DNSName("localhost"))
    cert, key = map(str, authority.issue("an-operator"))
    config = """
    tls = { cert = "server.pem", key = "server.key", client_ca = "authority.pem" }
    [[clients]]
    name = "an-operator"
    roles = ["operator"]
    merges = ["*"]
    """
    with serving(tmp_path, host="localhost", config=config) as address:
        at = ("--server", address, "--tls-ca", str(authority.file))
        mine = ("--tls-cert", cert, "--tls-key", key)
        assert run("create", *at, *mine, "--merge", "m", "--column", "k=int64").status == 0
        assert run("status", *at, *mine).out.startswith("m  ")
        assert "cannot be reached" in refused(run("status", *at))
        assert "cannot be reached" in refused(run("status", "--server", address))


# -- top ---------------------------------------------------------------------------------------


def test_top_without_a_terminal_prints_each_look_with_its_rates(server: str) -> None:
    with writing(server, "rates", "a") as writer:
        writer.write(lines(1, 3))
        writer.commit(stable=2)
        at = ("--server", server, "--merge", "rates")
        ran = run("top", *at, "--iterations", "3", "--interval", "0")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count(f"{server}  q ends") == 3
    assert ran.out.count("elements/s") == 2  # a first look has nothing to compare with


def test_rates_are_differences_by_time_and_never_negative() -> None:
    before = {("m",): 10, ("m", "a"): 50, ("m", "gone"): 1}
    after = {("m",): 30, ("m", "a"): 20, ("m", "new"): 5}
    assert top.rates(before, after, 2.0) == {("m",): 10.0}
    assert top.rates(before, after, 0.0) == {}
    detail = DescribeMergeResponse(
        name="m",
        output=OutputStatistics(inserts=3, adjusts=4),
        streams=[StreamStatistics(name="a", inserts=1, adjusts=1, stables=9)],
    )
    views = [View(MergeSummary(name="m"), detail), View(MergeSummary(name="n"), None, "broken")]
    assert top.counts(views) == {("m",): 7, ("m", "a"): 2}


def test_a_merge_with_a_fault_is_shown_with_its_reason() -> None:
    screen = console()
    view = View(MergeSummary(name="m", fault="damaged"), None, "damaged at [red]byte 7\n")
    with screen.capture() as captured:
        screen.print(render([view], {}))
    assert "damaged at [red]byte 7�" in captured.get()


@pytest.mark.parametrize("ending", ["q", "interrupt"])
def test_top_on_a_terminal_ends_with_q_or_an_interrupt(server: str, ending: str) -> None:
    ours, theirs = pty.openpty()
    try:
        argv = ["top", "--server", server, "--interval", "60"]
        pipes = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with process(argv, **pipes) as shown:
            try:
                read_until(ours, b"q ends")
                if ending == "q":
                    os.write(ours, b"q")
                else:
                    shown.send_signal(signal.SIGINT)
                read_until(ours, b"\x1b[?1049l")  # the screen is given back
                assert shown.wait(WAIT_SECONDS) == 0
            finally:
                shown.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(file: int, wanted: bytes) -> bytes:
    """What a terminal shows, up to what is waited for."""
    seen, until = b"", time.monotonic() + WAIT_SECONDS
    while wanted not in seen:
        ready = select.select([file], [], [], max(0.0, until - time.monotonic()))[0]
        assert ready, seen.decode(errors="replace")
        seen += os.read(file, 4_096)
    return seen
