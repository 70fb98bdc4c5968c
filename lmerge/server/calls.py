"""What every call of a peer has in common: who may call, and what it hears when it may not.

Callers may rely on this: a peer gets a status of the table in :mod:`lmerge.wire.statuses` with a
line that says what to do, and never a traceback; what is our own fault is logged in full here, and
is INTERNAL there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn, Protocol

from lmerge.errors import InvariantError, LimitError, LMergeError, VersionMismatchError
from lmerge.server.config import Role
from lmerge.server.hub import Hub
from lmerge.server.security import Guard
from lmerge.wire import PROTOCOL_VERSION
from lmerge.wire.statuses import code_of, status_of

log = logging.getLogger("lmerge.server")


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
        if isinstance(error, LMergeError) and not isinstance(error, InvariantError):
            log.info("refused %s: %s: %s", context.peer(), type(error).__name__, error)
            told = error
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


def check_version(version: int) -> None:
    """Raise unless a peer speaks our version of the protocol."""
    if version != PROTOCOL_VERSION:
        raise VersionMismatchError(
            f"the peer speaks version {version} of the protocol, this server {PROTOCOL_VERSION}:"
            " install matching versions of lmerge"
        )
