"""The horizon: from the driver to every worker, in milliseconds, also inside a micro-batch.

The horizon of a stream is a time ``t`` that only grows: nothing that ends before ``t`` is needed
any more. The driver holds it in a :class:`HorizonServer`; a worker (an executor's Python process,
or the process in which a Python data source plans) asks :func:`horizon_at`.

What callers may rely on:

1. A worker never sees a horizon larger than the driver's, and never one that goes back while its
   process lives. It may see an older one: then it only skips less.
2. A call of :func:`horizon_at` is a dict look-up. One daemon thread a process and address reads
   what the server pushes, connects again when the connection breaks, and starts anew after a fork.
3. Counters (:func:`count`) reach the driver at most once, within ``FLUSH_SECONDS`` while connected;
   what a dying process had not flushed is lost. They are statistics, not accounts.
4. Who does not send the token of the address first is told nothing. The line is plain TCP: the
   token keeps strangers and mistakes out, not someone who can read the cluster's network.

Only the newest horizon is ever queued for a worker, so a slow one costs one line of memory.

The counters, all of them since the server began; retried tasks count again:

- ``rows_skipped``: input rows that a feed did not hand out; ``batches_skipped``: those it jumped
  over, in micro-batches of its ``rows_per_batch``; ``rows_disordered``: see ``replicas.feed``.
- ``rows_seen``, ``rows_dropped``: by ``replicas.fast_forward`` steps.
- ``state_rows_purged``: rows that the watermark has removed from the queries' state since the
  first feedback came.
- ``rows_read``, ``seconds_spent``: input rows of the micro-batches that had any, and the time these
  took. The first one of each start is left out: it is mostly the starting of Python and Java.
- ``seconds_saved``: an estimate, see :func:`seconds_saved`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING
from replicas.horizon_links import COUNTERS_MAX, check_address, count, flush, horizon_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = "spark.lmerge.horizon"  # where a session keeps the address of its server
CONNECTIONS_MAX: Final = 4096  # workers beyond it are turned away, and skip nothing
STRANGERS_MAX: Final = 64  # connections that have not sent the token yet; the oldest is closed
HELLO_SECONDS: Final = 5.0  # within which the token must come
LINE_BYTES_MAX: Final = 65_536

__all__ = [
    "CONF", "HorizonServer", "address_of", "check_address", "count", "flush", "horizon_at",
    "seconds_saved", "serve",
]  # fmt: skip


class _Peer:
    """One connection, as the server's thread sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.trusted = False
        self.told: int | None = None
        self.since = time.monotonic()
        self.read = bytearray()
        self.unsent = b""


class HorizonServer:
    """Holds a stream's horizon in the driver, and pushes it to every worker that connects.

    ``host`` is the name by which workers reach the driver; ``bind`` the interface to listen on,
    where that differs.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None) -> None:
        interface = host if bind is None else bind
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        try:
            self._listener = socket.create_server((interface, 0), family=family, backlog=128)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {interface!r} for workers that ask for the horizon: {error}"
            ) from None
        self._token = secrets.token_hex(16)
        port = self._listener.getsockname()[1]
        self.address: Final = f"{host}:{port}/{self._token}"
        self._lock = threading.Lock()
        self._horizon = BEGINNING
        self._counters: dict[str, float] = {}
        self._closed = False
        self.before_counters: Callable[[], None] | None = None
        self._peers: set[_Peer] = set()  # of the thread alone
        self._wake, self._woken = socket.socketpair()
        for sock in (self._listener, self._wake, self._woken):
            sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="lmerge-horizon", daemon=True)
        self._thread.start()

    @property
    def horizon(self) -> int:
        """The largest time it was advanced to."""
        return self._horizon

    def advance(self, t: int) -> None:
        """Move the horizon to ``t``; a smaller one than it has changes nothing."""
        with self._lock:
            if t <= self._horizon or self._closed:
                return
            self._horizon = t
            self._ring()

    def counters(self) -> dict[str, float]:
        """What was counted so far, summed over all workers, with the estimate that follows."""
        if self.before_counters is not None:
            self.before_counters()
        with self._lock:
            counted = dict(self._counters)
        return {**counted, "seconds_saved": seconds_saved(counted)}

    def count(self, name: str, n: float) -> None:
        """Add to a counter from within the driver."""
        with self._lock:
            if name in self._counters or len(self._counters) < COUNTERS_MAX:
                self._counters[name] = self._counters.get(name, 0.0) + n

    def close(self) -> None:
        """End the thread and every connection. Workers keep the last horizon they were told."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring()
        self._thread.join()
        self._wake.close()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the thread will wake in any case
            self._wake.send(b"!")

    def _run(self) -> None:
        try:
            while not self._closed:
                strangers = [peer for peer in self._peers if not peer.trusted]
                for key, _ in self._selector.select(HELLO_SECONDS if strangers else None):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._serve(cast(_Peer, key.data))
                late = time.monotonic() - HELLO_SECONDS
                for peer in strangers:
                    if not peer.trusted and peer.since < late:
                        self._drop(peer)
                for peer in list(self._peers):
                    if peer.trusted and (peer.unsent or peer.told != self._horizon):
                        self._tell(peer)
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it went away again, or there is no descriptor left for it
            return
        if len(self._peers) >= CONNECTIONS_MAX:
            sock.close()
            return
        strangers = [peer for peer in self._peers if not peer.trusted]
        if len(strangers) >= STRANGERS_MAX:
            self._drop(min(strangers, key=lambda peer: peer.since))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _drop(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _serve(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        try:
            data = peer.sock.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data == b"":
            self._drop(peer)
            return
        peer.read += data or b""
        while (end := peer.read.find(b"\n")) >= 0:
            line = bytes(peer.read[:end])
            del peer.read[: end + 1]
            if peer.trusted:
                self._add(line)
            elif hmac.compare_digest(line, self._token.encode()):
                peer.trusted = True
            else:
                self._drop(peer)
                return
        if len(peer.read) > (LINE_BYTES_MAX if peer.trusted else 2 * len(self._token)):
            self._drop(peer)

    def _tell(self, peer: _Peer) -> None:
        try:
            if peer.unsent:  # the rest of a line must go first
                peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
            if not peer.unsent and peer.told != self._horizon:
                peer.told = self._horizon
                line = f"{peer.told}\n".encode()
                peer.unsent = line[peer.sock.send(line) :]
        except BlockingIOError:
            peer.told = None if not peer.unsent else peer.told
        except OSError:
            self._drop(peer)
            return
        waits = bool(peer.unsent) or peer.told != self._horizon
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        if self._selector.get_key(peer.sock).events != events:
            self._selector.modify(peer.sock, events, peer)

    def _add(self, line: bytes) -> None:
        try:
            counts = {str(name): float(n) for name, n in json.loads(line).items()}
        except (ValueError, AttributeError, TypeError):
            return  # statistics of a worker of another version are not worth an error
        for name, n in counts.items():
            self.count(name, n)


def seconds_saved(counters: Mapping[str, float]) -> float:
    """The seconds a micro-batch's row took on average, for each row that was not worked on.

    Rows that a ``fast_forward`` step drops were read, and are in the average as rows that cost
    little: where many are dropped the estimate is too small rather than too large. No more of them
    count than were read, since a step behind a join may see more rows than the input has.
    """
    read = counters.get("rows_read", 0.0)
    if not read:
        return 0.0
    dropped = min(counters.get("rows_dropped", 0.0), read)
    return counters.get("seconds_spent", 0.0) / read * (counters.get("rows_skipped", 0.0) + dropped)


_servers: dict[str, HorizonServer] = {}
_lock = threading.Lock()


def serve(spark: SparkSession) -> HorizonServer:
    """The session's server, started when it has none yet; its address is in the conf ``CONF``.

    A source is described before the sink that learns the horizon is started, so whoever comes
    first starts it. One session has one horizon: give each further stream a session of its own
    (``spark.newSession()``).
    """
    # A worker needs no Spark session, and does not wait for its import.
    from replicas.horizon_progress import Progress

    with _lock:
        address = spark.conf.get(CONF, None)
        server = _servers.get(address or "")
        if server is None or server._closed:
            host = spark.conf.get("spark.driver.host", None) or "127.0.0.1"
            bind = spark.conf.get("spark.driver.bindAddress", None)
            _servers.pop(address or "", None)
            server = HorizonServer(host, bind=bind)
            _servers[server.address] = server
            spark.conf.set(CONF, server.address)
            server.before_counters = Progress(spark, server).collect
        return server


def address_of(spark: SparkSession, given: str | None) -> str | None:
    """The address that a source or a step uses: ``given``, none for ``""``, or the session's.

    An address in the conf that is not of this process (a driver elsewhere set it) is kept.
    """
    if given is not None:
        return given or None
    address = spark.conf.get(CONF, None)
    if address is not None and address not in _servers:
        return address
    return serve(spark).address
