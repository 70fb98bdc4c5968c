"""What the server shows to Prometheus. ``docs/metrics.md`` lists every name.

Callers may rely on this: nothing is registered with prometheus_client's global registry; what is
known of merges is asked for once a scrape, by the callable that the server gives, from the
scrape's own thread; a scrape that gets no answer says ``lmerge_up 0`` instead of failing. At most
SCRAPES_MAX are answered at a time, and a peer that sends nothing is left after REQUEST_SECONDS.

Series of a merge end with the merge (:meth:`Metrics.forget`), so labels do not pile up.
"""

from __future__ import annotations

import logging
import math
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

from lmerge.errors import ConfigurationError
from lmerge.server.config import address
from lmerge.times import BEGINNING, INFINITY
from lmerge.v1.operator_pb2 import DescribeMergeResponse, StreamStatistics

SCRAPES_MAX: Final = 8
REQUEST_SECONDS: Final = 10
REPLICA_COUNTERS_MAX: Final = 32
"""Of each stream, by name: replicas choose these names, and each is a series."""

COMMIT_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
STREAM_STATES: Final = ("joining", "joined", "quarantined")

Describe = Callable[[], Iterable[DescribeMergeResponse]]
_LOG: Final = logging.getLogger(__name__)


class Metrics:
    """Everything measured, and the answer to a scrape."""

    def __init__(self, describe: Describe) -> None:
        self.registry = CollectorRegistry()
        self._commits = Histogram(
            "lmerge_commit_seconds",
            "From an epoch's commit to its acknowledgement.",
            ["merge"],
            buckets=COMMIT_BUCKETS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "lmerge_refusals_total",
            "Calls that ended with an error of ours.",
            ["code"],
            registry=self.registry,
        )
        self._sessions = Gauge(
            "lmerge_sessions", "Calls that are open now.", ["kind"], registry=self.registry
        )
        self.registry.register(_Merges(describe))
        ProcessCollector(registry=self.registry)

    def observe_commit(self, merge: str, seconds: float) -> None:
        """An epoch was acknowledged after so long."""
        self._commits.labels(merge).observe(seconds)

    def refused(self, code: str) -> None:
        """A call ended with the status code of that name, such as NOT_FOUND."""
        self._refusals.labels(code).inc()

    @contextmanager
    def session(self, kind: str) -> Iterator[None]:
        """Around a call that stays open: ``replica``, ``stage`` or ``consumer``."""
        gauge = self._sessions.labels(kind)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def forget(self, merge: str) -> None:
        """The merge is deleted: its own series end."""
        self._commits.remove_by_labels({"merge": merge})

    def serve(self, listen: str) -> Serving:
        """Answers scrapes on ``host:port`` (port 0: a free one) until the result is closed."""
        host, port = address(listen)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            # prometheus_client's own server bounds neither requests nor their time.
            server = _Server(found[0], (str(found[4][0]), port), make_wsgi_app(self.registry))
        except OSError as error:
            raise ConfigurationError(
                f"metrics_listen: cannot listen on {listen}: {error.strerror or error}"
            ) from None
        return Serving(server)


class Serving:
    """A running HTTP server; :meth:`close` ends it and waits for its thread."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.port: Final = int(server.server_address[1])
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """No scrape begins after this; one that is being answered may still end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base's name
        """Says nothing: a line for every scrape would hide what matters."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # A scrape waits for the event loop, and the event loop may be what closes us.
    block_on_close = False

    def __init__(self, family: int, at: tuple[str, int], application: Any) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(SCRAPES_MAX)
        super().__init__(at, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Binds without asking the DNS for a name, which http.server would wait for."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for it, or hangs up when there are enough."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, in the request's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away in the middle is no news, and no reason for a traceback."""
        _LOG.debug("a scrape failed", exc_info=True)


class _Merges(Collector):
    """What is known of the merges, asked for at each scrape."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("lmerge_up", "Whether the server answered this scrape.")
        try:
            merges = list(self._describe())
        except Exception as error:
            # Whatever it was (a time-out, a loop that stops): the scrape must tell of it.
            _LOG.warning("no answer to a scrape", extra={"error": repr(error)})
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        families = _Families()
        for merge in merges:
            families.add(merge)
        return [up, *families.all()]


class _Families:
    """The families of one scrape. Names, help and labels are in this table and nowhere else."""

    COUNTERS: Final = {
        "lmerge_output_elements": ("Elements of the output.", "op"),
        "lmerge_output_entries": ("Entries of the output, ever.", ""),
        "lmerge_log_arrivals": ("Arrivals in the log, ever.", ""),
        "lmerge_stream_elements": ("Elements that a stream delivered.", "stream op"),
        "lmerge_stream_dropped": ("Elements of a stream that were old news.", "stream"),
        "lmerge_stream_late": ("Events that the output had already decided against.", "stream"),
        "lmerge_stream_ignored": ("Elements that came while in quarantine.", "stream"),
        "lmerge_stream_conflicts": ("Events promised by the output and denied.", "stream"),
        "lmerge_stream_intervals": ("Intervals compared with the output.", "stream verdict"),
        "lmerge_stream_feedback": ("Feedback sent to a stream's replica.", "stream"),
        "lmerge_stream_held_back": ("How often the window held a stream back.", "stream"),
    }
    GAUGES: Final = {
        "lmerge_output_stable_point": ("The output's stable point.", ""),
        "lmerge_output_retained_entries": ("Entries of the output that are kept.", ""),
        "lmerge_stalled": ("Whether the output waits for a gap to be allowed.", ""),
        "lmerge_live_events": ("Events in the index.", ""),
        "lmerge_live_bytes": ("Memory of the live events.", "part"),
        "lmerge_log_bytes": ("Bytes on disk.", "log"),
        "lmerge_streams": ("Streams of the merge.", ""),
        "lmerge_stream_connected": ("Whether a session is open.", "stream"),
        "lmerge_stream_state": ("1 for the state that a stream is in.", "stream state"),
        "lmerge_stream_stable_point": ("The stream's own stable point.", "stream"),
        "lmerge_stream_lag": ("Behind the output, in application time.", "stream"),
        "lmerge_stream_share": ("Of the output's inserts, those it delivered first.", "stream"),
        "lmerge_stream_staged_bytes": ("Written and not committed.", "stream"),
        "lmerge_stream_last_epoch": ("The last epoch that was committed.", "stream"),
        "lmerge_stream_incarnation": ("The holder of the stream, by number.", "stream"),
        "lmerge_stream_replica": ("What the replica says of itself.", "stream counter"),
        "lmerge_subscription_connected": ("Whether it is being read.", "subscription"),
        "lmerge_subscription_behind_entries": ("Entries not acknowledged.", "subscription"),
    }

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, (text, labels) in self.COUNTERS.items():
            self._families[name] = CounterMetricFamily(
                name, text, labels=["merge", *labels.split()]
            )
        for name, (text, labels) in self.GAUGES.items():
            self._families[name] = GaugeMetricFamily(name, text, labels=["merge", *labels.split()])

    def all(self) -> list[Metric]:
        """The families, those without a sample too."""
        return list(self._families.values())

    def add(self, merge: DescribeMergeResponse) -> None:
        """One merge's samples."""
        output, log, name = merge.output, merge.log, merge.name
        for op in ("inserts", "adjusts", "stables"):
            self._sample("output_elements", getattr(output, op), name, op[:-1])
        self._sample("output_entries", output.next_sequence, name)
        self._sample("output_retained_entries", output.next_sequence - output.first_sequence, name)
        self._sample("output_stable_point", _time(output.stable), name)
        self._sample("stalled", output.stalled, name)
        self._sample("live_events", output.live, name)
        self._sample("live_bytes", output.index_bytes, name, "index")
        self._sample("live_bytes", output.payload_bytes, name, "payload")
        self._sample("log_arrivals", log.arrivals, name)
        self._sample("log_bytes", log.arrivals_bytes, name, "arrivals")
        self._sample("log_bytes", log.output_bytes, name, "output")
        self._sample("log_bytes", log.snapshot_bytes, name, "snapshot")
        self._sample("streams", len(merge.streams), name)
        for stream in merge.streams:
            self._add_stream(name, stream)
        for each in merge.subscriptions:
            self._sample("subscription_connected", each.connected, name, each.name)
            self._sample("subscription_behind_entries", each.behind, name, each.name)

    def _add_stream(self, merge: str, stream: StreamStatistics) -> None:
        at = (merge, stream.name)
        for op in ("inserts", "adjusts", "stables"):
            self._sample("stream_elements", getattr(stream, op), *at, op[:-1])
        for verdict in ("verified", "divergent", "skipped"):
            self._sample("stream_intervals", getattr(stream, verdict), *at, verdict)
        for state in STREAM_STATES:
            self._sample("stream_state", stream.state == state, *at, state)
        for field in ("dropped", "late", "ignored", "conflicts", "held_back", "connected"):
            self._sample(f"stream_{field}", getattr(stream, field), *at)
        for field in ("share", "staged_bytes", "incarnation"):
            self._sample(f"stream_{field}", getattr(stream, field), *at)
        self._sample("stream_feedback", stream.feedback_sent, *at)
        self._sample("stream_stable_point", _time(stream.stable), *at)
        if stream.HasField("lag"):
            self._sample("stream_lag", _time(stream.lag), *at)
        if stream.HasField("last_epoch"):
            self._sample("stream_last_epoch", stream.last_epoch, *at)
        for counter in sorted(stream.counters)[:REPLICA_COUNTERS_MAX]:
            self._sample("stream_replica", stream.counters[counter], *at, counter)

    def _sample(self, name: str, value: float, *labels: str) -> None:
        self._families[f"lmerge_{name}"].add_metric(list(labels), float(value))


def _time(time: int) -> float:
    """Application time, where both infinities are floats' own."""
    return {INFINITY: math.inf, BEGINNING: -math.inf}.get(time, float(time))
