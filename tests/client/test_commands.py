"""``lmerge attach`` and ``lmerge subscribe`` against the real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge.cli.exits import Exit
from tests.cli.running import Ran, process, reconstituted, run
from tests.client.servers import ServerProcess

ELEMENTS = "900"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.jsonl"
    made = run("gen", "--elements", ELEMENTS, "--streams", "2", "--seed", "1", "-o", str(path))
    assert made.status == Exit.OK, made.err
    return path


def attach(server: ServerProcess, merge: str, stream: str, *more: str, **options: str) -> Ran:
    return run(
        "attach", "--server", server.target, "--merge", merge, "--stream", stream,
        "--properties", "keyed", "--epoch-rows", "100", *more, **options,
    )  # fmt: skip


def subscribe(server: ServerProcess, merge: str, *more: str) -> Ran:
    return run("subscribe", "--server", server.target, "--merge", merge, *more)


def test_what_was_attached_is_what_is_subscribed_to(server: ServerProcess, streams: Path) -> None:
    for stream in ("a", "b"):
        sent = attach(server, "same", stream, str(streams))
        assert sent.status == Exit.OK, sent.err
        assert "0 skipped" in sent.err
    text = streams.read_text()
    for delivery in ("eager", "consistent", "final"):
        got = subscribe(server, "same", "--delivery", delivery)
        assert got.status == Exit.OK, got.err
        assert re.search(r"^lmerge: position \w+@\d+$", got.err, re.MULTILINE)
        assert reconstituted(got.out).events() == reconstituted(text, "a").events()


def test_the_same_command_again_sends_nothing(server: ServerProcess, streams: Path) -> None:
    first = attach(server, "twice", "a", str(streams))
    again = attach(server, "twice", "a", str(streams))
    epochs = re.search(r"(\d+) epochs sent, 0 skipped", first.err)
    assert epochs is not None, first.err
    assert int(epochs[1]) > 3
    assert f"0 epochs sent, {epochs[1]} skipped as already committed; 0 rows" in again.err
    assert len(subscribe(server, "twice").lines) > 100


def test_a_table_is_attached_and_written(
    server: ServerProcess, streams: Path, tmp_path: Path
) -> None:
    table = tmp_path / "out.parquet"
    assert attach(server, "table", "a", str(streams)).status == Exit.OK
    assert subscribe(server, "table", "-o", str(table)).status == Exit.OK
    sent = attach(server, "again", "x", str(table))
    assert sent.status == Exit.OK, sent.err
    got = subscribe(server, "again")
    text = streams.read_text()
    assert reconstituted(got.out).events() == reconstituted(text, "a").events()


def test_a_kept_place_is_acknowledged_and_gone_on_from(server: ServerProcess) -> None:
    lines = [
        {"op": "insert", "vs": 1, "ve": 9, "payload": {"k": 1}},
        {"op": "stable", "vc": 2},
        {"op": "insert", "vs": 3, "ve": 9, "payload": "text"},
        {"op": "stable", "vc": 4},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    sent = attach(server, "kept", "a", "--epoch-rows", "1", "--lineage", "l", "-", stdin=text)
    assert sent.status == Exit.OK, sent.err
    kept = ("--name", "s", "--ack")
    first = subscribe(server, "kept", *kept, "--until-stable", "2")
    assert first.lines == [
        '{"op":"insert","vs":1,"ve":9,"payload":{"k":1}}',
        '{"op":"stable","vc":2}',
    ]
    second = subscribe(server, "kept", *kept, "--until-stable", "4")
    assert second.lines == [
        '{"op":"insert","vs":3,"ve":9,"payload":"text"}',
        '{"op":"stable","vc":4}',
    ]
    position = re.search(r"position (\S+)", first.err)
    assert position is not None
    again = subscribe(server, "kept", "--from", position[1], "--until-stable", "4")
    assert again.lines == second.lines


def test_a_stream_that_breaks_its_promises_is_told(server: ServerProcess) -> None:
    # Of an epoch the last stable counts, at its end: the promise is broken by another epoch.
    text = '{"op":"stable","vc":5}\n{"op":"insert","vs":1,"ve":9,"payload":1}\n'
    sent = attach(server, "broken", "a", "--epoch-rows", "1", "-", stdin=text)
    assert sent.status == Exit.BROKEN_PROMISE
    assert "is quarantined: " in sent.err


def test_what_cannot_be_is_one_line_and_status_2(server: ServerProcess, tmp_path: Path) -> None:
    gone = ("--server", "127.0.0.1:1", "--connect-timeout", "0.2")
    for ran in (
        run("subscribe", *gone, "--merge", "m"),
        run("attach", *gone, "--merge", "m", "--stream", "a", "-", stdin='{"op":"stable","vc":1}'),
    ):
        assert ran.status == Exit.BAD_INPUT
        assert ran.err.startswith("lmerge: the server at 127.0.0.1:1 cannot be reached (0.2 s)")
        assert len(ran.err.splitlines()) == 1
    for ran, reason in (
        (subscribe(server, "nothing"), "nothing"),
        (subscribe(server, "same", "--ack"), "--ack needs --name"),
        (subscribe(server, "same", "--from", "x"), "a position is"),
        (run("subscribe", "--server", "nowhere", "--merge", "m"), "HOST:PORT"),
        (attach(server, "m", "a", str(tmp_path / "none.jsonl")), "none.jsonl"),
        (attach(server, "m", "a", "--properties", "odd", "-"), "no property 'odd'"),
    ):
        assert ran.status == Exit.BAD_INPUT, reason
        assert reason in ran.err
        assert "Traceback" not in ran.err


def test_lines_of_several_streams_need_a_choice(server: ServerProcess, streams: Path) -> None:
    refused = attach(server, "choice", "x", str(streams))
    assert refused.status == Exit.BAD_INPUT
    assert "say with --in which to send" in refused.err
    assert attach(server, "choice", "x", "--in", "b", str(streams)).status == Exit.OK
    text = streams.read_text()
    got = subscribe(server, "choice")
    assert reconstituted(got.out).events() == reconstituted(text, "b").events()


def test_items_are_visible_as_they_come_and_a_pause_closes_an_epoch(server: ServerProcess) -> None:
    sender = process(["attach", "--server", server.target, "--merge", "live", "--stream", "a", "-"])
    assert sender.stdin is not None
    reader = None
    try:
        sender.stdin.write(b'{"op":"insert","vs":1,"ve":9,"payload":1}\n{"op":"stable","vc":2}\n')
        sender.stdin.flush()
        while reader is None:
            # The merge is there once the sender has said hello.
            probe = subscribe(server, "live", "--until-stable", "2")
            if probe.status == Exit.OK:
                reader = process(["subscribe", "--server", server.target, "--merge", "live"])
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["op"] == "insert"
        assert json.loads(reader.stdout.readline()) == {"op": "stable", "vc": 2}
        sender.stdin.write(b'{"op":"stable","vc":null}\n')
        sender.stdin.flush()
        assert json.loads(reader.stdout.readline()) == {"op": "stable", "vc": None}
        assert reader.wait(60) == Exit.OK
        sender.stdin.close()
        assert sender.wait(60) == Exit.OK
    finally:
        for child in (sender, reader):
            if child is not None:
                child.kill()
                child.wait()
                for pipe in (child.stdin, child.stdout, child.stderr):
                    if pipe is not None:
                        pipe.close()


def test_two_servers_at_once_give_one_output(
    server: ServerProcess, streams: Path, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "other") as other:
        assert attach(server, "both", "a", str(streams)).status == Exit.OK
        assert attach(other, "both", "b", str(streams)).status == Exit.OK
        got = run("subscribe", "--server", f"{server.target},{other.target}", "--merge", "both")
    assert got.status == Exit.OK, got.err
    text = streams.read_text()
    assert reconstituted(got.out).events() == reconstituted(text, "a").events()
