"""How a client reaches a server: the channel, who calls, and what is tried again.

Callers may rely on this: a token never leaves the machine unencrypted; every wait goes through
:class:`Retry`, so that a test or a simulation owns the clock; and a failure is tried again
exactly when :func:`may_retry` says that trying again can help.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from lmerge.errors import (
    ConfigurationError,
    JournalFullError,
    LMergeError,
    UnavailableError,
)
from lmerge.wire.statuses import error_of

MESSAGE_BYTES_MAX: Final = 64 << 20
KEEPALIVE_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
CONNECT_MS: Final = 5_000
ANSWER_S: Final = 30.0
"""How long a server that took the call may take for its first answer."""

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Waiting between attempts is Retry's work: the channel's own back-off would come on top.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Security:
    """How the server is known, and how the caller is. The default is plain text, nameless."""

    root_file: str | None = None  # of the authorities to trust; None: the system's, if `tls`
    certificate_file: str | None = None  # the caller's own, with `key_file`
    key_file: str | None = None
    token: str | None = field(default=None, repr=False)
    tls: bool = False  # implied by any of the files

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ConfigurationError("a certificate needs its key, and a key its certificate")
        if self.root_file is not None or self.certificate_file is not None:
            object.__setattr__(self, "tls", True)
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ConfigurationError("a token is printable ASCII on one line")

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The channel's; None when it is not encrypted."""
        if not self.tls:
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=_content(self.root_file),
            private_key=_content(self.key_file),
            certificate_chain=_content(self.certificate_file),
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def check(self, target: str) -> None:
        """Raise ConfigurationError unless this may be used with ``target``."""
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ConfigurationError(f"a server is HOST:PORT, not {target!r}")
        if self.token is not None and not self.tls and not _is_loopback(host):
            raise ConfigurationError(
                f"a token would go to {target} as plain text: use TLS, or a loopback address"
            )


def _is_loopback(host: str) -> bool:
    host = host.strip("[]")
    return host in ("localhost", "::1") or (
        host.startswith("127.") and all(part.isdigit() for part in host.split("."))
    )


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error


def targets_of(targets: str | Sequence[str], security: Security) -> tuple[str, ...]:
    """The addresses, checked; several are those of one server, tried in turn."""
    found = (targets,) if isinstance(targets, str) else tuple(targets)
    if not found:
        raise ConfigurationError("at least one server is needed")
    for target in found:
        security.check(target)
    return found


Dial = Callable[[int], Any]
"""An attempt's number to an async context manager that gives stubs."""


def dialling(
    targets: tuple[str, ...], security: Security, make: Callable[[Any], Any], stubs: Any | None
) -> Dial:
    """A channel of its own for each attempt, so that no attempt inherits another's state."""

    @asynccontextmanager
    async def dial(attempt: int) -> AsyncIterator[Any]:
        if stubs is not None:
            yield stubs
            return
        channel = open_channel(targets[attempt % len(targets)], security)
        try:
            yield make(channel)
        finally:
            await channel.close(None)

    return dial


def open_channel(target: str, security: Security) -> grpc.aio.Channel:
    """A channel for asyncio, with every option said."""
    security.check(target)
    credentials = security.credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def open_sync_channel(target: str, security: Security) -> grpc.Channel:
    """The blocking one."""
    security.check(target)
    credentials = security.credentials()
    if credentials is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


# -- failures ----------------------------------------------------------------------------------


def may_retry(error: LMergeError) -> bool:
    """Whether trying again later can help: the peer is away, or its disk is full for now."""
    return isinstance(error, UnavailableError | JournalFullError)


def failure_of(error: BaseException) -> LMergeError | None:
    """What a failed call stands for; None for what is no failure of a call."""
    if isinstance(error, LMergeError):
        return error
    if isinstance(error, grpc.RpcError):
        return error_of(error)
    if isinstance(error, grpc.aio.UsageError | ConnectionError):
        return UnavailableError(f"the call is over: {error}")
    return None


async def ended(call: Any) -> LMergeError:
    """Why the server ended a call, where grpc says only that it was cancelled.

    A status CANCELLED of the server's (a detached stream has it) comes out of a call as asyncio's
    CancelledError, as if somebody here had cancelled the task: then this one is raised again.
    """
    if being_cancelled() or not hasattr(call, "code"):
        raise asyncio.CancelledError
    return error_of(
        grpc.aio.AioRpcError(
            await call.code(),
            initial_metadata=grpc.aio.Metadata(),
            trailing_metadata=await call.trailing_metadata() or grpc.aio.Metadata(),
            details=await call.details(),
        )
    )


def being_cancelled() -> bool:
    """Whether somebody here wants the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def answered(awaitable: Coroutine[Any, Any, T], seconds: float, sleep: Sleep) -> T:
    """The result, or UnavailableError when it does not come in time."""
    work = asyncio.ensure_future(awaitable)
    alarm = asyncio.ensure_future(_slept(sleep, seconds))
    try:
        await asyncio.wait((work, alarm), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise UnavailableError(f"the server took the call and said nothing for {seconds:g} s")
    finally:
        for task in (work, alarm):
            task.cancel()
        await asyncio.gather(work, alarm, return_exceptions=True)


async def _slept(sleep: Sleep, seconds: float) -> None:
    await sleep(seconds)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long a lost server is tried again: a value, and the waits behind it."""

    first_s: float = 0.1
    most_s: float = 5.0
    factor: float = 2.0
    patience_s: float | None = 300.0  # without progress for that long: give up; None: never
    sleep: Sleep = asyncio.sleep
    clock: Clock = time.monotonic
    random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s or self.factor < 1:
            raise ConfigurationError("waits must be above 0, and not become shorter")


class Backoff:
    """The waits of one connection: longer with every failure, short again after progress."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._wait = retry.first_s
        self._since: float | None = None  # when failing began
        self._began: float | None = None  # when the attempt did

    def begin(self) -> None:
        """An attempt begins; one that lasts is progress."""
        self._began = self._retry.clock()

    def succeeded(self) -> None:
        """There was progress: the next failure is a first one."""
        self._wait = self._retry.first_s
        self._since = None

    async def pause(self, error: LMergeError) -> None:
        """Wait before the next attempt; raises ``error`` when patience is at its end."""
        retry, now = self._retry, self._retry.clock()
        if self._began is not None and now - self._began >= ANSWER_S + retry.most_s:
            self.succeeded()
        self._began = None
        if self._since is None:
            self._since = now
        wait = self._wait * (0.5 + 0.5 * retry.random.random())
        if retry.patience_s is not None:
            left = self._since + retry.patience_s - now
            if left <= 0:
                self.succeeded()  # whoever tries again nevertheless begins anew
                raise error
            wait = min(wait, left)
        self._wait = min(self._wait * retry.factor, retry.most_s)
        await retry.sleep(wait)


class Signal:
    """Wakes everyone who waits for a change. Nothing is kept: conditions are looked at again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition()`` holds, looking only after changes."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
