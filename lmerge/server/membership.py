"""A membership service decides who stays attached: the server's side of it.

The server knows no such service. It is given a :class:`Roll`, which calls back with what it knows
of the members, from whatever thread and whenever it likes; while it does not, the merge goes on
with the members it has.

- A stream whose member is gone is detached, and its session, if it still has one, ends with
  DetachedError. One whose connection broke while its member lives is left alone: that is a pause.
- An incarnation older than the newest one taken is fenced: its session ends, and so does every
  attempt to begin another.
- Streams that no member ever stood for are left alone too.

All of it is done by what is the case, not by what has changed: to hear the same twice is no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lmerge.errors import FencedError, LMergeError
from lmerge.server.hub import Hub

log = logging.getLogger("lmerge.server")

Stream = tuple[str, str]
"""A merge, and a stream of it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the members."""

    gone: Mapping[Stream, int] = field(default_factory=dict)  # up to this incarnation
    newest: Mapping[Stream, int] = field(default_factory=dict)  # incarnation that was taken


class Roll(Protocol):
    """Who knows the members."""

    def start(self, address: str, post: Callable[[Standing], None]) -> None:
        """The server listens at an address; ``post`` may be called from now on, by any thread."""

    def close(self) -> None:
        """Ends; may block for a while."""


class Membership:
    """Applies what a roll says, in the server's loop, one standing after the other."""

    def __init__(self, hub: Hub, roll: Roll) -> None:
        self._hub = hub
        self._roll = roll
        self._loop = asyncio.get_running_loop()
        self._latest: Standing | None = None  # an older one that was not applied is superseded
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> None:
        """Begins to listen to the roll."""
        self._task = asyncio.create_task(self._apply_all())
        self._roll.start(address, self._post)

    async def stop(self) -> None:
        """Ends the roll."""
        if self._task is not None:
            self._task.cancel()
        await asyncio.to_thread(self._roll.close)

    def _post(self, standing: Standing) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take, standing)

    def _take(self, standing: Standing) -> None:
        self._hub.newest = dict(standing.newest)
        self._latest = standing
        self._news.set()

    async def _apply_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            standing, self._latest = self._latest, None
            if standing is not None:
                await self._apply(standing)

    async def _apply(self, standing: Standing) -> None:
        for (merge, stream), newest in standing.newest.items():
            served = self._hub.merges.get(merge)
            session = None if served is None else served.sessions.holder(stream)
            if session is not None and session.incarnation < newest:
                session.end(FencedError(f"stream {stream!r} has a newer incarnation: {newest}"))
        for (merge, stream), incarnation in standing.gone.items():
            served = self._hub.merges.get(merge)
            record = None if served is None else served.host.state.streams.get(stream)
            if served is None or record is None or not record.attached:
                continue
            if record.incarnation <= incarnation:
                try:
                    await served.leave(stream, f"its member is gone (incarnation {incarnation})")
                except LMergeError as error:
                    log.warning("merge %s: stream %s stays: %s", merge, stream, error)
