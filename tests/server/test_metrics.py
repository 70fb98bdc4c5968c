"""Metrics as Prometheus reads them, and the log as people and programs do."""

from __future__ import annotations

import http.client
import io
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from lmerge.errors import ConfigurationError
from lmerge.server import logs
from lmerge.server.metrics import REPLICA_COUNTERS_MAX, SCRAPES_MAX, Metrics
from lmerge.times import BEGINNING, INFINITY
from lmerge.v1.common_pb2 import Position
from lmerge.v1.operator_pb2 import (
    DescribeMergeResponse,
    LogStatistics,
    OutputStatistics,
    StreamStatistics,
    SubscriptionStatistics,
)

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 20

MERGE = DescribeMergeResponse(
    name="m",
    output=OutputStatistics(
        inserts=10, adjusts=3, stables=2, stable=40, live=5, index_bytes=100, payload_bytes=200,
        stalled=True, first_sequence=4, next_sequence=15,
    ),
    streams=[
        StreamStatistics(
            name="a", state="joined", connected=True, incarnation=3, last_epoch=9, stable=INFINITY,
            lag=0, share=0.75, inserts=10, adjusts=2, stables=2, dropped=1, late=2, ignored=3,
            conflicts=4, verified=6, divergent=1, skipped=5, feedback_sent=8, held_back=7,
            staged_bytes=77, counters={"rows_skipped": 12.5},
        ),
        StreamStatistics(name="b", state="joining", stable=BEGINNING),
    ],
    subscriptions=[
        SubscriptionStatistics(
            name="s", connected=True, acknowledged=Position(sequence=5), behind=10
        )
    ],
    log=LogStatistics(arrivals=20, arrivals_bytes=1000, output_bytes=2000, snapshot_bytes=300),
)  # fmt: skip

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def fetch(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(metrics: Metrics) -> Series:
    serving = metrics.serve("127.0.0.1:0")
    try:
        return series(fetch(serving.port))
    finally:
        serving.close()


def value(found: Series, name: str, **labels: str) -> float:
    return found[(name, frozenset(labels.items()))]


def test_a_scrape_shows_the_merges_as_they_are_described() -> None:
    found = scrape(Metrics(lambda: [MERGE]))
    a = {"merge": "m", "stream": "a"}
    for expected, name, labels in (
        (1, "lmerge_up", {}),
        (10, "lmerge_output_elements_total", {"merge": "m", "op": "insert"}),
        (3, "lmerge_output_elements_total", {"merge": "m", "op": "adjust"}),
        (2, "lmerge_output_elements_total", {"merge": "m", "op": "stable"}),
        (15, "lmerge_output_entries_total", {"merge": "m"}),
        (11, "lmerge_output_retained_entries", {"merge": "m"}),
        (40, "lmerge_output_stable_point", {"merge": "m"}),
        (1, "lmerge_stalled", {"merge": "m"}),
        (5, "lmerge_live_events", {"merge": "m"}),
        (100, "lmerge_live_bytes", {"merge": "m", "part": "index"}),
        (200, "lmerge_live_bytes", {"merge": "m", "part": "payload"}),
        (20, "lmerge_log_arrivals_total", {"merge": "m"}),
        (1000, "lmerge_log_bytes", {"merge": "m", "log": "arrivals"}),
        (2000, "lmerge_log_bytes", {"merge": "m", "log": "output"}),
        (300, "lmerge_log_bytes", {"merge": "m", "log": "snapshot"}),
        (2, "lmerge_streams", {"merge": "m"}),
        (10, "lmerge_stream_elements_total", {**a, "op": "insert"}),
        (2, "lmerge_stream_elements_total", {**a, "op": "adjust"}),
        (1, "lmerge_stream_connected", a),
        (1, "lmerge_stream_state", {**a, "state": "joined"}),
        (0, "lmerge_stream_state", {**a, "state": "quarantined"}),
        (float("inf"), "lmerge_stream_stable_point", a),
        (float("-inf"), "lmerge_stream_stable_point", {"merge": "m", "stream": "b"}),
        (0, "lmerge_stream_lag", a),
        (0.75, "lmerge_stream_share", a),
        (1, "lmerge_stream_dropped_total", a),
        (2, "lmerge_stream_late_total", a),
        (3, "lmerge_stream_ignored_total", a),
        (4, "lmerge_stream_conflicts_total", a),
        (6, "lmerge_stream_intervals_total", {**a, "verdict": "verified"}),
        (1, "lmerge_stream_intervals_total", {**a, "verdict": "divergent"}),
        (5, "lmerge_stream_intervals_total", {**a, "verdict": "skipped"}),
        (8, "lmerge_stream_feedback_total", a),
        (7, "lmerge_stream_held_back_total", a),
        (77, "lmerge_stream_staged_bytes", a),
        (9, "lmerge_stream_last_epoch", a),
        (3, "lmerge_stream_incarnation", a),
        (12.5, "lmerge_stream_replica", {**a, "counter": "rows_skipped"}),
        (1, "lmerge_subscription_connected", {"merge": "m", "subscription": "s"}),
        (10, "lmerge_subscription_behind_entries", {"merge": "m", "subscription": "s"}),
    ):
        assert value(found, name, **labels) == expected, (name, labels)
    # What a stream has not said is absent, and not zero.
    b = frozenset({("merge", "m"), ("stream", "b")})
    assert ("lmerge_stream_lag", b) not in found
    assert ("lmerge_stream_last_epoch", b) not in found


def test_commits_refusals_and_sessions_are_counted() -> None:
    metrics = Metrics(list)
    metrics.observe_commit("m", 0.003)
    metrics.observe_commit("m", 0.3)
    metrics.observe_commit("n", 1)
    metrics.refused("NOT_FOUND")
    metrics.refused("NOT_FOUND")
    with metrics.session("replica"), metrics.session("replica"), metrics.session("consumer"):
        found = scrape(metrics)
    assert value(found, "lmerge_commit_seconds_bucket", merge="m", le="0.005") == 1
    assert value(found, "lmerge_commit_seconds_count", merge="m") == 2
    assert value(found, "lmerge_refusals_total", code="NOT_FOUND") == 2
    assert value(found, "lmerge_sessions", kind="replica") == 2
    metrics.forget("m")
    metrics.forget("never there")
    found = scrape(metrics)
    assert value(found, "lmerge_sessions", kind="replica") == 0
    merges = {dict(labels).get("merge") for name, labels in found if "commit" in name}
    assert merges == {"n"}


def test_a_scrape_without_an_answer_says_that_it_had_none() -> None:
    def describe() -> list[DescribeMergeResponse]:
        raise TimeoutError("the loop is busy")

    found = scrape(Metrics(describe))
    assert value(found, "lmerge_up") == 0
    assert not any(name.startswith("lmerge_stream") for name, _ in found)


def test_the_global_registry_is_left_alone_and_two_servers_do_not_meet() -> None:
    before = {metric.name for metric in REGISTRY.collect()}
    first, second = Metrics(list), Metrics(list)
    first.refused("ABORTED")
    assert ("lmerge_refusals_total", frozenset({("code", "ABORTED")})) not in scrape(second)
    assert {metric.name for metric in REGISTRY.collect()} == before


def test_a_replica_cannot_fill_the_scrape_with_its_own_counters() -> None:
    merge = DescribeMergeResponse(name="m", streams=[StreamStatistics(name="a")])
    for number in range(REPLICA_COUNTERS_MAX * 3):
        merge.streams[0].counters[f"counter-{number}"] = number
    found = scrape(Metrics(lambda: [merge]))
    assert sum(name == "lmerge_stream_replica" for name, _ in found) == REPLICA_COUNTERS_MAX


def test_labels_are_escaped() -> None:
    name = 'a"b\\c\nlmerge_up 7'
    found = scrape(Metrics(lambda: [DescribeMergeResponse(name=name)]))
    assert value(found, "lmerge_up") == 1
    assert value(found, "lmerge_streams", merge=name) == 0


def test_too_many_scrapes_at_once_are_hung_up_on_and_the_others_answered() -> None:
    entered, go_on = threading.Semaphore(0), threading.Event()

    def describe() -> list[DescribeMergeResponse]:
        entered.release()
        assert go_on.wait(WAIT_SECONDS)
        return [MERGE]

    serving = Metrics(describe).serve("127.0.0.1:0")
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(fetch(serving.port)))
        for _ in range(SCRAPES_MAX)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            assert entered.acquire(timeout=WAIT_SECONDS)
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            fetch(serving.port)
        go_on.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert len(texts) == SCRAPES_MAX
        assert value(series(fetch(serving.port)), "lmerge_up") == 1
    finally:
        go_on.set()
        serving.close()


def test_closing_frees_the_port_and_ends_the_thread() -> None:
    serving = Metrics(list).serve("127.0.0.1:0")
    fetch(serving.port)
    serving.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]
    with pytest.raises(ConnectionError):
        fetch(serving.port)


def test_an_address_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"cannot listen on {listen}: Address already"):
            Metrics(list).serve(listen)


def test_the_documentation_lists_what_is_shown_and_nothing_else() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(lmerge_\w+)` \| (\w+) \| (.*?) \|", text, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(documented) == len(rows)
    metrics = Metrics(lambda: [MERGE])
    metrics.observe_commit("m", 1)
    metrics.refused("ABORTED")
    with metrics.session("replica"):
        families = list(metrics.registry.collect())
    shown = {}
    for family in families:
        if family.name.startswith("lmerge_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            samples = [s for s in family.samples if not s.name.endswith("_created")]
            labels = {label for sample in samples for label in sample.labels} - {"le"}
            shown[name] = (family.type, labels)
    assert documented == shown


# -- logs --------------------------------------------------------------------------------------


@pytest.fixture
def stderr() -> Iterator[io.StringIO]:
    """What is logged; everything is as it was afterwards."""
    ours, root = logging.getLogger("lmerge"), logging.getLogger()
    before = (ours.handlers[:], ours.level, ours.propagate, root.handlers[:])
    yield io.StringIO()
    ours.handlers[:], ours.level, ours.propagate, root.handlers[:] = before


def test_a_line_of_json_has_its_fields(stderr: io.StringIO) -> None:
    logs.configure("json", stream=stderr)
    logging.getLogger("lmerge.server").info(
        "stream %s", "attached", extra={"merge": "m\n", "stream": "ä", "epoch": 3, "level": "no"}
    )
    line = json.loads(stderr.getvalue())
    assert stderr.getvalue().count("\n") == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info", "event": "stream attached", "logger": "lmerge.server",
        "merge": "m\n", "stream": "ä", "epoch": 3,
    }  # fmt: skip


def test_a_line_of_text_cannot_be_forged(stderr: io.StringIO) -> None:
    logs.configure("text", stream=stderr)
    logging.getLogger("lmerge.server").warning(
        "stream\nattached", extra={"merge": "m", "stream": "a\n2026 INFO x\x1b[2J", "why": "b c"}
    )
    (line,) = stderr.getvalue().splitlines()
    assert line.split(" ", 1)[1] == (
        'WARNING stream\\nattached merge=m stream="a\\n2026 INFO x\\u001b[2J" why="b c"'
    )


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_a_traceback_is_kept_and_cannot_be_taken_for_an_event(
    stderr: io.StringIO, log_format: str
) -> None:
    logs.configure(log_format, stream=stderr)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("lmerge.server").exception("it failed")
    first, *others = stderr.getvalue().splitlines()
    if log_format == "json":
        assert json.loads(first)["trace"].endswith("ValueError: first\nsecond")
        assert not others
    else:
        assert first.endswith("ERROR   it failed")
        assert others[-1] == "    second"
        assert all(line.startswith("    ") for line in others)


def test_configuring_again_replaces_and_libraries_are_heard_once(stderr: io.StringIO) -> None:
    logs.configure("text", stream=stderr)
    logs.configure("json", stream=stderr)
    logging.getLogger("lmerge.server").info("ours")
    logging.getLogger("asyncio").warning("theirs")
    logging.getLogger("asyncio").info("of no interest")
    lines = [json.loads(line) for line in stderr.getvalue().splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [
        ("lmerge.server", "ours"), ("asyncio", "theirs"),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="log_format: 'xml'; possible: text, json"):
        logs.configure("xml")


def test_a_log_that_nobody_reads_is_no_failure(stderr: io.StringIO) -> None:
    logs.configure("text", stream=stderr)
    stderr.close()
    logging.getLogger("lmerge.server").warning("unheard")
