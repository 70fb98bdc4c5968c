"""One stream from several servers that merge the same replicas.

A merge of merges is a merge: each server's output is a stream of a merge here. Callers may rely
on this: the output is one valid stream, and goes on as long as one server that has joined does.
A server that is away is silent, and goes on where it was; one that lost its place or its data is
detached, and joins anew with what is live there. When no server can be reached for
``retry.patience_s``, UnavailableError is raised.

State is in memory: after a restart of the consumer, reading begins again. Every server has a
queue of ``QUEUE_ITEMS_MAX`` items, and is not read beyond it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

import pyarrow as pa

from lmerge.client.connection import Retry, Security
from lmerge.client.items import Elements, Gap, Item, Position, Snapshot, StablePoint
from lmerge.client.reader import Delivery, Reader, elements_in
from lmerge.core.merge import Merge
from lmerge.core.output import Gap as CoreGap
from lmerge.core.output import Output
from lmerge.core.policy import InsertPolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Element, Stable
from lmerge.errors import (
    ConfigurationError,
    LMergeError,
    NotFoundError,
    RetiredError,
    UnavailableError,
)

QUEUE_ITEMS_MAX: Final = 4

_Start = Literal["beginning", "now"]

# The outputs of R0 and R2 are keyed, those of R1 need not be. Their own algorithms could not take
# what is live at a server that joins later: it is not in the order they need.
_RESTRICTIONS: Final = {
    "R0": Restriction.R3,
    "R1": Restriction.R4,
    "R2": Restriction.R3,
    "R3": Restriction.R3,
    "R4": Restriction.R4,
}


@dataclass(slots=True, eq=False)
class _Server:
    """One server, and what is known of it."""

    name: str
    reader: Reader
    attached: bool = False
    away: LMergeError | None = None
    opened: bool = False  # at least once
    gap: bool = False  # it joins anew because of a gap that an operator has allowed
    pieces: list[pa.RecordBatch] = field(default_factory=list)  # of a snapshot


@dataclass(slots=True, eq=False)
class _Lost:
    """The server's place is lost: its stream ends here, and it joins anew."""

    reason: str
    gap: bool = False


class MergedReader:
    """Reads the same merge from several servers; an async iterator of items."""

    def __init__(
        self,
        targets: Sequence[str],
        merge: str,
        *,
        start: _Start = "beginning",
        delivery: Delivery = "eager",
        security: Security | None = None,
        retry: Retry | None = None,
        stubs: Sequence[Any] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        """``stubs`` are one for each target. ``on_notice`` hears of servers that come and go."""
        if isinstance(targets, str) or not targets or len(set(targets)) != len(targets):
            raise ConfigurationError("a merged reader needs a list of different servers")
        if start not in ("beginning", "now"):
            raise ConfigurationError("reading from several servers starts at beginning or now")
        self.merge = merge
        self._start: _Start = start
        self.schema: pa.Schema | None = None
        self.on_notice = on_notice
        self._final = delivery == "final"
        # What is final is decided here: one server's frozen events are no news of the other's.
        self._delivery: Delivery = "consistent" if delivery == "consistent" else "eager"
        self._security = security
        self._retry = retry or Retry()
        self._stubs = dict(zip(targets, stubs or [None] * len(targets), strict=True))
        self._servers = [_Server(t, self._new_reader(t, start)) for t in targets]
        self._queue: asyncio.Queue[tuple[_Server, Any]] = asyncio.Queue(
            QUEUE_ITEMS_MAX * len(targets)
        )
        self._core: Merge | None = None
        self._ready: deque[Item] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    # -- what callers do ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; returns when one server has answered, so that ``schema`` is known."""
        if not self._tasks and not self._closed:
            self._tasks = [
                asyncio.create_task(
                    self._pump(server, self._start), name=f"lmerge reader {server.name}"
                )
                for server in self._servers
            ]
        while self.schema is None:
            await self._step()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._closed:
            raise StopAsyncIteration
        if not self._tasks:
            await self.open()
        while not self._ready:
            await self._step()
            if self._closed:
                raise StopAsyncIteration
        return self._ready.popleft()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The elements alone; stables and gaps are left out."""
        async for item in self:
            if isinstance(item, Elements):
                yield item.batch

    async def elements(self) -> AsyncIterator[Element | Gap]:
        """Element by element, payloads as dicts: for small work."""
        async for item in self:
            for element in elements_in(item):
                yield element

    @property
    def positions(self) -> dict[str, Position | None]:
        """How far each server has been read."""
        return {server.name: server.reader.position for server in self._servers}

    @property
    def states(self) -> dict[str, str]:
        """What each server is in the merge: joining, joined, quarantined or absent."""
        known = {} if self._core is None else self._core.streams()
        return {s.name: known[s.name].value if s.name in known else "absent" for s in self._servers}

    async def close(self) -> None:
        """End reading."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers:
            await server.reader.close()

    # -- the servers ----------------------------------------------------------------------------

    def _new_reader(self, target: str, start: _Start) -> Reader:
        return Reader(
            target,
            self.merge,
            start=start,
            delivery=self._delivery,
            security=self._security,
            retry=self._retry,
            stubs=self._stubs[target],
        )

    async def _pump(self, server: _Server, start: _Start) -> None:
        """Bring one server's items into the queue, for ever."""
        try:
            while True:
                lost = await self._read(server)
                await self._put(server, lost)
                if isinstance(lost, UnavailableError):
                    continue  # asking again tries again, from the same place
                if server.opened:
                    start = "now"
                elif not isinstance(lost, NotFoundError):
                    return  # a place that never was
                await server.reader.close()
                await self._retry.sleep(self._retry.first_s)
                server.reader = self._new_reader(server.name, start)
        except Exception as error:
            await self._put(server, error)

    async def _read(self, server: _Server) -> Any:
        """Read until the server is away or its place is lost: which of them."""
        reader = server.reader
        try:
            if reader.schema is None:
                await reader.open()
                await self._put(server, reader)
                server.opened = True
            async for item in reader:
                if isinstance(item, Gap):
                    # It is right again only behind the gap, but for what it told before and will
                    # not repeat: what is live there has all of that.
                    return _Lost(f"it has a gap from {item.start} to {item.end}", gap=True)
                await self._put(server, item)
        except (UnavailableError, NotFoundError) as error:
            return error
        except RetiredError as error:
            return _Lost(str(error)) if server.opened else error
        return UnavailableError("the reader is closed")

    async def _put(self, server: _Server, what: Any) -> None:
        await self._queue.put((server, what))

    # -- the merge ------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Take one thing that a server gave."""
        server, what = await self._queue.get()
        if isinstance(what, UnavailableError | NotFoundError):
            server.away = what
            self._say(f"server {server.name} is away: {what}")
            if isinstance(what, NotFoundError):
                self._lost(server, _Lost(str(what)))
            if all(each.away is not None and not each.reader.connected for each in self._servers):
                raise what
            return
        if isinstance(what, Exception):
            raise what
        if server.away is not None:
            server.away = None
            self._say(f"server {server.name} is back")
        if isinstance(what, Reader):
            self._opened(server, what)
        elif isinstance(what, _Lost):
            self._lost(server, what)
        else:
            self._take(server, what)

    def _opened(self, server: _Server, reader: Reader) -> None:
        if self._core is None:
            policy = Policy(InsertPolicy.final()) if self._final else Policy()
            restriction = _RESTRICTIONS.get(reader.restriction, Restriction.R4)
            self._core = Merge(reader.schema, restriction, policy)
            self.schema = reader.schema

    def _lost(self, server: _Server, lost: _Lost) -> None:
        server.pieces = []
        server.gap = server.gap or lost.gap
        if server.attached:
            server.attached = False
            self._say(f"server {server.name} lost its place and joins anew: {lost.reason}")
            self._emit(self._merge.detach(server.name), complete=True)

    @property
    def _merge(self) -> Merge:
        if self._core is None:
            raise ConfigurationError("no server has answered yet")
        return self._core

    def _attach(self, server: _Server, since: int | None) -> None:
        if not server.attached:
            server.attached = True
            self._emit(self._merge.attach(server.name, since), complete=True)

    def _take(self, server: _Server, item: Item) -> None:
        merge, name = self._merge, server.name
        if isinstance(item, Snapshot):
            server.pieces.append(item.batch)
            if item.last:
                # What ended before the stable point is not in it: the rest is right.
                self._attach(server, item.stable)
                for batch in server.pieces:
                    self._emit(merge.apply(name, batch), complete=False)
                server.pieces = []
                if item.stable is not None:
                    self._emit(merge.stable(name, item.stable), complete=True)
                if server.gap and merge.stalled:
                    self._emit(merge.allow_gap(), complete=True)
                server.gap = False
            return
        self._attach(server, None)
        if isinstance(item, Elements):
            self._emit(merge.apply(name, item.batch), complete=item.complete)
        elif isinstance(item, StablePoint):
            self._emit(merge.stable(name, item.vc), complete=item.complete)

    def _emit(self, output: Output, *, complete: bool) -> None:
        last = len(output.parts) - 1
        for place, part in enumerate(output.parts):
            ends = complete and place == last
            if isinstance(part, Stable):
                self._ready.append(StablePoint(part.vc, None, ends))
            elif isinstance(part, CoreGap):
                self._ready.append(Gap(part.start, part.end, None, ends))
            else:
                self._ready.append(Elements(part, None, ends))
        for notice in output.notices:
            self._say(str(notice))

    def _say(self, text: str) -> None:
        if self.on_notice is not None:
            self.on_notice(text)
