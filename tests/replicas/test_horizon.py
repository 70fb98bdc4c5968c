"""The horizon between a driver and its workers, over real sockets and without Spark."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, INFINITY
from replicas import horizon_links
from replicas.horizon import HorizonServer, count, flush, horizon_at, seconds_saved

ROOT = Path(__file__).parents[2]
SECONDS = 60.0  # the bound of every wait


def until(happened: Callable[[], bool]) -> None:
    """Wait, within a bound, for what other threads do."""
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        threading.Event().wait(0.005)


@pytest.fixture
def server() -> Iterator[HorizonServer]:
    server = HorizonServer()
    yield server
    server.close()


def connected(server: HorizonServer, hello: bytes | None = None) -> socket.socket:
    place, token = server.address.rsplit("/", 1)
    host, port = place.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=SECONDS)
    sock.sendall(token.encode() + b"\n" if hello is None else hello)
    return sock


def test_a_worker_begins_with_nothing_and_hears_every_move(server: HorizonServer) -> None:
    assert horizon_at(server.address, wait=SECONDS) == BEGINNING
    for t in (-5, 3, 17, INFINITY):
        server.advance(t)
        until(lambda t=t: horizon_at(server.address) == t)  # type: ignore[misc]
    assert server.horizon == INFINITY


def test_the_first_call_waits_for_the_first_word(server: HorizonServer) -> None:
    server.advance(42)
    assert horizon_at(server.address, wait=SECONDS) == 42


def test_a_horizon_never_goes_back(server: HorizonServer) -> None:
    server.advance(42)
    server.advance(41)
    assert server.horizon == 42
    assert horizon_at(server.address, wait=SECONDS) == 42


def test_only_the_newest_horizon_is_queued_for_a_slow_worker(server: HorizonServer) -> None:
    with connected(server) as sock:
        assert sock.recv(100) == f"{BEGINNING}\n".encode()
        for t in range(200_000):  # nobody reads meanwhile: far more than a socket holds, if sent
            server.advance(t)
        with sock.makefile("rb") as lines:
            told = [int(next(lines))]
            while told[-1] != 199_999:
                told.append(int(next(lines)))
    assert told == sorted(told)


@pytest.mark.parametrize("hello", [b"wrong\n", b"\n", b"x" * 1000, b"GET / HTTP/1.1\r\n\r\n"])
def test_who_does_not_know_the_token_is_told_nothing(server: HorizonServer, hello: bytes) -> None:
    server.advance(42)
    with connected(server, hello) as sock, contextlib.suppress(ConnectionResetError):
        assert sock.recv(100) == b""
    assert horizon_at(server.address, wait=SECONDS) == 42, "and others are served as before"


def test_who_says_nothing_is_turned_away(
    server: HorizonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.horizon.HELLO_SECONDS", 0.05)
    with connected(server, b"") as sock:
        assert sock.recv(100) == b""


def test_strangers_cannot_keep_workers_out(
    server: HorizonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.horizon.STRANGERS_MAX", 2)
    strangers = [connected(server, b"") for _ in range(5)]
    server.advance(42)
    assert horizon_at(server.address, wait=SECONDS) == 42
    assert strangers[0].recv(100) == b"", "the oldest had to go"
    for sock in strangers:
        sock.close()


def test_a_worker_with_a_wrong_token_learns_nothing_and_is_not_hurt(server: HorizonServer) -> None:
    server.advance(42)
    wrong = server.address.rsplit("/", 1)[0] + "/" + "0" * 32
    assert horizon_at(wrong, wait=0.3) == BEGINNING


@pytest.mark.parametrize("address", ["", "nowhere", "host:port/token", "127.0.0.1:5"])
def test_what_is_no_address_is_refused_in_one_line(address: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a horizon") as refused:
        horizon_at(address)
    assert "\n" not in str(refused.value)


def test_an_interface_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on '203\.0\.113\.1'"):
        HorizonServer("203.0.113.1")


def test_a_link_connects_again_and_brings_what_was_counted_meanwhile() -> None:
    # A server that can be taken away and put back at the same place.
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        address = f"127.0.0.1:{port}/token"
        assert horizon_at(address) == BEGINNING
        peer, _ = first.accept()
        with peer, peer.makefile("rb") as lines:
            assert next(lines) == b"token\n"
            peer.sendall(b"7\n")
            until(lambda: horizon_at(address) == 7)
    count(address, "rows", 2)
    with socket.create_server(("127.0.0.1", port), reuse_port=False) as second:
        second.settimeout(SECONDS)
        peer, _ = second.accept()
        assert horizon_at(address) == 7, "what it knew it keeps"
        with peer, peer.makefile("rb") as lines:
            peer.settimeout(SECONDS)
            assert next(lines) == b"token\n"
            peer.sendall(b"3\n9\n")
            until(lambda: horizon_at(address) == 9)
            assert json.loads(next(lines)) == {"rows": 2.0}


def test_a_server_that_stays_away_is_forgotten_but_not_what_it_said(
    server: HorizonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon_links, "FORGET_SECONDS", 0.2)
    server.advance(42)
    assert horizon_at(server.address, wait=SECONDS) == 42
    server.close()
    until(lambda: server.address not in horizon_links._links)
    assert horizon_at(server.address) == 42


def test_counters_are_summed_over_workers_and_sent_once(server: HorizonServer) -> None:
    assert horizon_at(server.address, wait=SECONDS) == BEGINNING
    count(server.address, "rows_skipped", 3)
    count(server.address, "rows_skipped", 4)
    flush(server.address)
    with connected(server) as other:
        other.sendall(b'{"rows_skipped": 10, "rows_seen": 1}\n{"rows_seen": 1}\n')
        until(lambda: server.counters().get("rows_seen") == 2)
    until(lambda: server.counters()["rows_skipped"] == 17)
    flush(server.address)
    server.count("rows_skipped", 1)  # the driver counts, too
    assert server.counters()["rows_skipped"] == 18


def test_counters_arrive_without_a_flush(server: HorizonServer) -> None:
    count(server.address, "rows_seen", 5)
    until(lambda: server.counters().get("rows_seen") == 5)


@pytest.mark.parametrize("line", [b"[]\n", b"{\n", b'{"a": "b"}\n', b"\xff\xfe\n", b"1\n"])
def test_counts_that_make_no_sense_change_nothing(server: HorizonServer, line: bytes) -> None:
    with connected(server) as peer:
        peer.sendall(line + b'{"good": 1}\n')
        until(lambda: server.counters().get("good") == 1)
    assert server.counters().keys() == {"good", "seconds_saved"}


def test_the_names_of_counters_are_bounded(
    server: HorizonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.horizon.COUNTERS_MAX", 2)
    for name in ("a", "b", "c", "a"):
        server.count(name, 1)
    assert server.counters() == {"a": 2, "b": 1, "seconds_saved": 0}


def test_a_child_that_was_forked_has_a_link_of_its_own(server: HorizonServer) -> None:
    server.advance(42)
    assert horizon_at(server.address, wait=SECONDS) == 42
    # In a process without other threads: a fork of this one would warn of its own.
    script = f"""
import os
from replicas.horizon import count, flush, horizon_at
assert horizon_at({server.address!r}, wait={SECONDS}) == 42
import warnings; warnings.simplefilter("ignore")
child = os.fork()
assert horizon_at({server.address!r}, wait={SECONDS}) == 42
count({server.address!r}, "parent" if child else "child", 1)
flush({server.address!r})
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)
    until(lambda: server.counters().keys() == {"parent", "child", "seconds_saved"})
    assert server.counters() == {"parent": 1, "child": 1, "seconds_saved": 0}


def _count_and_leave(address: str) -> None:
    horizon_at(address, wait=SECONDS)
    count(address, "last_words", 1)


def test_a_process_that_ends_well_sends_its_last_words(server: HorizonServer) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_count_and_leave, args=(server.address,)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    until(lambda: server.counters().get("last_words") == 1)


def test_a_closed_server_leaves_workers_with_what_they_know() -> None:
    server = HorizonServer()
    server.advance(42)
    assert horizon_at(server.address, wait=SECONDS) == 42
    server.close()
    server.close()
    server.advance(50)
    assert server.horizon == 42
    assert horizon_at(server.address) == 42


def test_seconds_saved_are_the_average_row_times_the_rows_not_worked_on() -> None:
    spent = {"rows_read": 1000.0, "seconds_spent": 4.0}
    assert seconds_saved({}) == 0
    assert seconds_saved({"rows_skipped": 500.0}) == 0, "nothing is known of what a row costs"
    assert seconds_saved(spent) == 0
    assert seconds_saved({**spent, "rows_skipped": 500.0}) == 2
    assert seconds_saved({**spent, "rows_skipped": 500.0, "rows_dropped": 250.0}) == 3
    assert seconds_saved({**spent, "rows_dropped": 5000.0}) == 4, "no more than were read"
