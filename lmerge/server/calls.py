"""What every call of a peer has in common: who may call, and what it hears when it may not.

Callers may rely on this: a peer gets a status of the table in :mod:`lmerge.wire.statuses` with a
line that says what to do, and never a traceback; what is our own fault is logged in full here, and
is INTERNAL there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError

from lmerge.errors import (
    InvariantError,
    JournalError,
    LimitError,
    LMergeError,
    VersionMismatchError,
    WireError,
)
from lmerge.server.config import Role
from lmerge.server.hub import Hub
from lmerge.server.security import Guard
from lmerge.wire import PROTOCOL_VERSION
from lmerge.wire.statuses import code_of, status_of

log = logging.getLogger("lmerge.server")

_T = TypeVar("_T")


class Context(Protocol):
    """What we use of gRPC's context."""

    def invocation_metadata(self) -> Any:
        """What the caller sent beside its messages."""

    def peer_identities(self) -> Any:
        """Who its certificate says that it is."""

    def peer(self) -> str:
        """Where it calls from."""

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call."""


class Desk:
    """What the services share: the merges, the guard, and how refusals are counted."""

    def __init__(
        self,
        hub: Hub,
        guard: Guard,
        refused: Callable[[str], None] = lambda code: None,
        session: Callable[[str], AbstractContextManager[None]] = lambda kind: nullcontext(),
    ) -> None:
        self.hub = hub
        self._guard = guard
        self._refused = refused
        self._session = session
        self._sessions = 0

    @contextmanager
    def session(self, kind: str) -> Iterator[None]:
        """A call that stays open, counted; LimitError when there are too many."""
        limit = self.hub.config.limits.sessions
        if self._sessions >= limit:
            raise LimitError(f"the server has {limit} sessions open: its limit (sessions)")
        self._sessions += 1
        try:
            with self._session(kind):
                yield
        finally:
            self._sessions -= 1

    def permit(self, context: Context, role: Role, merge: str) -> None:
        """Raise unless the caller may."""
        self._guard.permit(context.invocation_metadata(), context.peer_identities(), role, merge)

    def sees(self, context: Context, merge: str) -> bool:
        """Whether the caller may know of a merge."""
        return self._guard.visible(context.invocation_metadata(), context.peer_identities(), merge)

    async def refuse(self, context: Context, error: BaseException) -> NoReturn:
        """Ends the call with what went wrong."""
        if isinstance(error, DecodeError):
            error = WireError("these bytes are no message of the contract")
        if isinstance(error, LMergeError) and not isinstance(error, InvariantError):
            log.info("refused %s: %s: %s", context.peer(), type(error).__name__, error)
            told = _without_paths(error) if isinstance(error, JournalError) else error
        else:
            log.error("a call of %s failed by our fault", context.peer(), exc_info=error)
            told = InvariantError("the server failed by its own fault; its log says more")
        self._refused(code_of(told).name)
        await context.abort_with_status(status_of(told))

    async def answered(self, context: Context, answer: Awaitable[Any]) -> Any:
        """The answer of a call with one; refused when it cannot be given."""
        try:
            return await answer
        except Exception as error:
            await self.refuse(context, error)

    async def streamed(
        self, kind: str, context: Context, answers: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """The answers of a call with many."""
        try:
            with self.session(kind):
                async for answer in answers:
                    yield answer
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            await self.refuse(context, error)


class Parsing(grpc.aio.ServerInterceptor):
    """Bytes that are no message are the caller's fault, and refused as such.

    In calls with one request gRPC itself would parse, and answer UNKNOWN with a class of ours.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The handler of a call, which is given bytes."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        parse, answer = handler.request_deserializer, handler.unary_unary

        async def parsed(data: bytes, context: Any) -> Any:
            try:
                request = parse(data)
            except DecodeError as error:
                await self._desk.refuse(context, error)
            return await answer(request, context)

        return handler._replace(unary_unary=parsed, request_deserializer=None)


def _without_paths(error: JournalError) -> JournalError:
    """The same error for a peer: where the server keeps its files is not its business."""
    reason = str(error).rpartition(": ")[2]
    told = type(error).__new__(type(error))
    told.args = (f"the server's files: {reason}; its log says which",)
    return told


async def finished(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which goes on when the caller goes away.

    For what changes files: half of it would be in the way of whoever comes next.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def check_version(version: int) -> None:
    """Raise unless a peer speaks our version of the protocol."""
    if version != PROTOCOL_VERSION:
        raise VersionMismatchError(
            f"the peer speaks version {version} of the protocol, this server {PROTOCOL_VERSION}:"
            " install matching versions of lmerge"
        )
