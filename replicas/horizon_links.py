"""A worker's side of the horizon: one connection a process and address, and what it counts.

See :mod:`replicas.horizon` for what callers may rely on. Nothing here needs Spark.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from typing import Final

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING

COUNTERS_MAX: Final = 256  # names; further ones are ignored
FLUSH_SECONDS: Final = 0.1
CONNECT_SECONDS: Final = 2.0
BACKOFF_SECONDS: Final = (0.05, 2.0)  # first, largest
FORGET_SECONDS: Final = 60.0  # a server that is away for so long is asked anew only when needed


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a server."""
    _parsed(address)


def _parsed(address: str) -> tuple[tuple[str, int], str]:
    try:
        place, token = address.rsplit("/", 1)
        host, port = place.rsplit(":", 1)
        return (host.strip("[]"), int(port)), token
    except ValueError:
        raise ConfigurationError(
            f"{address!r} is not the address of a horizon (host:port/token)"
        ) from None


class _Link:
    """A worker's connection to one server, with the thread that keeps it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.horizon = _told.get(address, BEGINNING)
        self.known = threading.Event()
        self.lock = threading.Lock()
        self.sock: socket.socket | None = None
        self.counts: dict[str, float] = {}
        self._place, self._token = _parsed(address)
        threading.Thread(target=self._run, name="lmerge-horizon-link", daemon=True).start()

    def add(self, name: str, n: float) -> None:
        with self.lock:
            if name in self.counts or len(self.counts) < COUNTERS_MAX:
                self.counts[name] = self.counts.get(name, 0.0) + n

    def flush(self) -> None:
        with self.lock:
            if self.sock is None or not self.counts:
                return
            try:
                self.sock.sendall(json.dumps(self.counts).encode() + b"\n")
            except OSError:
                # The server cannot have the whole line: it is sent again on the next connection.
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)
            else:
                self.counts.clear()

    def _run(self) -> None:
        first, largest = BACKOFF_SECONDS
        pause = first
        heard = time.monotonic()
        while time.monotonic() - heard < FORGET_SECONDS:
            try:
                sock = socket.create_connection(self._place, timeout=CONNECT_SECONDS)
            except OSError:
                pass
            else:
                if self._listen(sock):
                    pause, heard = first, time.monotonic()
            time.sleep(pause)
            pause = min(largest, 2 * pause)
        with _lock:
            if _links.get(self.address) is self:
                _told[self.address] = self.horizon
                del _links[self.address]

    def _listen(self, sock: socket.socket) -> bool:
        """Read horizons until the connection ends; whether there was one."""
        heard = False
        read = b""
        with sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.sendall(self._token.encode() + b"\n")
                sock.settimeout(FLUSH_SECONDS)
                with self.lock:
                    self.sock = sock
                while True:
                    self.flush()
                    try:
                        data = sock.recv(4096)
                    except TimeoutError:
                        continue
                    if not data:
                        return heard
                    *lines, read = (read + data).split(b"\n")
                    for line in lines:
                        self.horizon = max(self.horizon, int(line))
                        heard = True
                        self.known.set()
            except (OSError, ValueError):
                return heard
            finally:
                with self.lock:
                    self.sock = None


_links: dict[str, _Link] = {}
_told: dict[str, int] = {}  # by servers that are gone: a horizon never goes back
_lock = threading.Lock()


def _link(address: str) -> _Link:
    with _lock:
        link = _links.get(address)
        if link is None:
            link = _links[address] = _Link(address)
        return link


def horizon_at(address: str, wait: float = 0.0) -> int:
    """The horizon that the server at ``address`` pushed last; BEGINNING while none is known.

    The first call of a process connects; ``wait`` bounds how long it may wait for the first word.
    Costs a dict look-up otherwise.
    """
    link = _links.get(address)
    if link is None:
        link = _link(address)
    if wait and not link.known.is_set():
        link.known.wait(wait)
    return link.horizon


def count(address: str, name: str, n: float) -> None:
    """Add ``n`` to the counter ``name`` in the driver, soon (see ``FLUSH_SECONDS``)."""
    (_links.get(address) or _link(address)).add(name, n)


def flush(address: str) -> None:
    """Send what was counted now: for the end of a task, after which a worker may be killed."""
    link = _links.get(address)
    if link is not None:
        link.flush()


def _flush_all() -> None:
    for link in list(_links.values()):
        link.flush()


def _after_fork() -> None:
    # The threads are the parent's, and locks may be held by them: a child starts anew.
    global _lock
    _lock = threading.Lock()
    for link in _links.values():
        if link.sock is not None:
            link.sock.close()
    _links.clear()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_after_fork)
