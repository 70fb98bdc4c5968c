"""The server's benchmarks in small, on real processes. Times are never asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bench.arrivals import read
from bench.document import core_table, replaced
from bench.server import __main__ as command
from bench.server.document import DOCUMENT, RESULTS
from bench.server.latency import latency
from bench.server.memory import memory
from bench.server.processes import forwarding, serving
from bench.server.recovery import recovery
from bench.server.scale import FULL, SMALL
from bench.server.streams import digest, prepare, sliding, usual
from bench.server.throughput import forwarded, merged


def test_streams_that_differ_physically_have_one_digest(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, usual(1_500, 100, 24), 10_000)
    first, *others = (list(read(path)) for path in prepared.paths)
    assert all(digest(part.batch for part in parts) == prepared.digest for parts in others)
    assert not first[0].batch.equals(others[0][0].batch)
    less = [part.batch for part in first]
    less[0] = less[0].slice(1)
    assert digest(less) != prepared.digest


def test_a_sliding_stream_has_its_last_events_live(tmp_path: Path) -> None:
    (path,) = sliding(tmp_path, 1_000, 300, 128, ["a"])
    parts = list(read(path))
    ends = pa.chunked_array([part.batch.column("ve") for part in parts]).to_pylist()
    assert parts[-1].stable == 1_000
    assert sum(end > 1_000 for end in ends) == 300 - 1


def test_everything_arrives_through_the_server_and_the_forwarder(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, usual(SMALL.elements, SMALL.live, 100), 32 << 10)
    with serving("fsync") as server:
        assert merged(server, prepared, check=True) > 0  # it raises unless the TDB is the same
    with forwarding() as target:
        assert forwarded(target, prepared) > 0


def test_what_is_missing_at_the_consumer_is_no_result(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, usual(1_000, 100, 24), 32 << 10)
    with serving("none") as server, pytest.raises(RuntimeError, match="not the streams'"):
        merged(server, prepared._replace(digest=prepared.digest ^ 1), check=True)


def test_latency_counts_every_event_of_the_output() -> None:
    result = latency(SMALL)
    assert all(result.details[kind]["events"] > 300 for kind in ("none", "fsync"))


def test_memory_is_taken_of_the_same_output() -> None:
    result = memory(SMALL)
    assert all(result.details[str(n)]["rows"] > 0 for n in SMALL.replicas)


def test_a_killed_server_has_its_live_events_again() -> None:
    found = recovery(SMALL).details
    assert found["many"]["live"] == found["longer"]["live"] > 9 * found["few"]["live"]
    assert found["longer"]["events"] == SMALL.recovery_history * found["many"]["events"]


def test_every_experiment_has_a_title_and_a_name_of_its_own() -> None:
    names = {experiment.name for experiment in command.EXPERIMENTS}
    assert len(names) == len(command.EXPERIMENTS)
    assert all(experiment.title for experiment in command.EXPERIMENTS)
    assert len(FULL.message_bytes) == 2


def test_the_document_has_the_figures_of_the_results() -> None:
    document = DOCUMENT.read_text("utf-8")
    table = core_table(json.loads(RESULTS.read_text("utf-8")))
    assert replaced(document, "server", table) == document
