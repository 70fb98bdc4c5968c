"""A merge's output, over connections that come and go.

Callers may rely on this:
- Items come in the output's order; after a reconnect reading goes on behind the last item that
  was received: nothing twice, nothing lost, and in consistent delivery nothing but whole groups.
- Nothing is read ahead: what is not asked for waits at the server. Held are at most the group or
  the snapshot that is being received (``GROUP_BYTES_MAX``, then LimitError), and what comes in
  while an acknowledgement is awaited (``STASH_BYTES_MAX``, then LimitError).
- A lost connection is tried again until ``retry.patience_s`` without progress; asking once more
  tries anew. A place that is not kept any more, or a merge that was begun anew, is RetiredError,
  for good: a new reader may begin from now.

A reader belongs to one event loop. Cancelling a wait for an item loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Literal, Self

import pyarrow as pa

from lmerge.client.connection import (
    ANSWER_S,
    Backoff,
    Retry,
    Security,
    Signal,
    answered,
    being_cancelled,
    dialling,
    ended,
    failure_of,
    may_retry,
    targets_of,
)
from lmerge.client.items import Elements, Gap, Item, Position, Snapshot, StablePoint
from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.errors import (
    ConfigurationError,
    LimitError,
    LMergeError,
    RetiredError,
    UnavailableError,
    VersionMismatchError,
    WireError,
)
from lmerge.v1 import common_pb2, consumer_pb2, consumer_pb2_grpc
from lmerge.wire import PROTOCOL_VERSION
from lmerge.wire.rows import batch_of, schema_of

GROUP_BYTES_MAX: Final = 1 << 30
STASH_BYTES_MAX: Final = 64 << 20

Start = Position | Literal["beginning", "now"]
Delivery = Literal["eager", "consistent", "final"]

_DELIVERIES: Final = {
    "eager": consumer_pb2.DELIVERY_EAGER,
    "consistent": consumer_pb2.DELIVERY_CONSISTENT,
    "final": consumer_pb2.DELIVERY_FINAL,
}


class _Session:
    """One call."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.call: Any = None
        self.answers: Any = None
        self.over = False
        self.acknowledged = 0  # the largest that it has sent
        self.skip_to: int | None = None  # entries up to here have been received before


class Reader:
    """Reads one merge; an async iterator of items, and a context manager, which closes it."""

    def __init__(
        self,
        target: str | Sequence[str],
        merge: str,
        *,
        start: Start = "beginning",
        delivery: Delivery = "eager",
        subscription: str | None = None,
        security: Security | None = None,
        retry: Retry | None = None,
        stubs: Any | None = None,
    ) -> None:
        """``target`` is one server's address, or several of the same server, tried in turn.

        A ``subscription`` is kept by the server under this name: reading goes on where it was
        last acknowledged, and ``start`` counts only when the name is new.
        """
        if delivery not in _DELIVERIES:
            raise ConfigurationError(f"delivery is {', '.join(_DELIVERIES)}, not {delivery!r}")
        if not isinstance(start, Position) and start not in ("beginning", "now"):
            raise ConfigurationError(f"reading starts at beginning, now or a position, not {start}")
        self._security = security or Security()
        self._retry = retry or Retry()
        targets = () if stubs is not None else targets_of(target, self._security)
        self._dial = dialling(targets, self._security, consumer_pb2_grpc.ConsumerServiceStub, stubs)
        self.merge = merge
        self.subscription = subscription
        self.delivery = delivery
        self.schema: pa.Schema | None = None  # of the elements; known once opened
        self.restriction = ""
        self.position: Position | None = None  # behind the last item that was handed over
        self.reconnects = 0
        self._start = start
        self._resume: Position | None = None  # behind the last item that was received
        self._ready: deque[tuple[Item, Position | None, int]] = deque()
        self._ready_bytes = 0
        self._group: list[tuple[Item, int]] = []
        self._group_bytes = 0
        self._wanted = 0  # the largest sequence to acknowledge
        self._confirmed = 0  # ... and the largest that is durable
        self._signal = Signal()
        self._backoff = Backoff(self._retry)
        self._attempt = 0
        self._session: _Session | None = None
        self._reading = asyncio.Lock()
        self._failure: LMergeError | None = None
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
        """Connect, if that has not happened, so that ``schema`` and ``restriction`` are known."""
        async with self._reading:
            while self.schema is None:
                await self._receive(only_open=True)

    @property
    def connected(self) -> bool:
        """Whether there is a call now, as far as is known here."""
        return self._session is not None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            async with self._reading:
                if not self._ready and not self._closed:
                    await self._receive()
        item, position, size = self._ready.popleft()
        self._ready_bytes -= size
        if position is not None:
            self.position = position
        return item

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The elements alone, a snapshot's inserts among them; stables and gaps are left out."""
        async for item in self:
            if isinstance(item, Elements | Snapshot) and item.batch.num_rows:
                yield item.batch

    async def elements(self) -> AsyncIterator[Element | Gap]:
        """Element by element, payloads as dicts: for small work."""
        async for item in self:
            for element in elements_in(item):
                yield element

    async def acknowledge(self, position: Position | None = None, *, wait: bool = True) -> None:
        """Nothing before ``position`` (default: what was handed over) will be asked for again.

        Returns when the server has that on disk; with ``wait=False`` at once, and then it is
        sent as soon as there is a connection.
        """
        position = position or self.position
        if self.subscription is None:
            raise ConfigurationError("only a named subscription has a place that is kept")
        if position is None:
            raise ConfigurationError("nothing has been handed over yet")
        if self._resume is not None and position.generation != self._resume.generation:
            raise RetiredError(f"position {position} is of another generation of the merge")
        self._wanted = max(self._wanted, position.sequence)
        self._signal.notify()
        while wait and self._confirmed < position.sequence:
            if self._closed:
                raise ConfigurationError("the reader is closed")
            if self._ready_bytes > STASH_BYTES_MAX:
                raise LimitError(
                    f"the server has sent {self._ready_bytes} bytes and not confirmed {position};"
                    " read them before waiting for it"
                )
            async with self._reading:
                if self._confirmed < position.sequence:
                    await self._receive()

    async def close(self) -> None:
        """End reading."""
        self._closed = True
        await self._hang_up()

    # -- the connection -------------------------------------------------------------------------

    async def _receive(self, *, only_open: bool = False) -> None:
        """Take one answer, over however many connections that needs."""
        while True:
            if self._failure is not None:
                raise self._failure
            try:
                session = self._session or await self._connect()
                if only_open:
                    return
                answer = await _next(session.answers)
                if answer is None:
                    raise UnavailableError("the server has ended the call")
                self._take(answer)
                return
            except asyncio.CancelledError:
                call = None if self._session is None else self._session.call
                await self._hang_up()
                if self._closed and not being_cancelled():
                    return  # by close(), which another task has called
                error: LMergeError = await ended(call)
            except Exception as caught:
                await self._hang_up()
                if self._closed:
                    return
                found = failure_of(caught)
                if found is None:
                    raise
                error = found
            if not may_retry(error):
                self._failure = error
                raise error
            await self._backoff.pause(error)

    async def _connect(self) -> _Session:
        self._backoff.begin()
        session = _Session(AsyncExitStack())
        self._session = session
        stubs = await session.stack.enter_async_context(self._dial(self._attempt))
        self._attempt += 1
        session.call = stubs.Subscribe(self._requests(session), metadata=self._security.metadata())
        session.answers = aiter(session.call)
        first = await answered(_next(session.answers), ANSWER_S, self._retry.sleep)
        if first is None:
            raise UnavailableError("the server has ended the call")
        if first.WhichOneof("response") != "opened":
            raise WireError("the server's first answer does not open the subscription")
        self._opened(first.opened, session)
        return session

    async def _hang_up(self) -> None:
        """Forget the call, and the part of a group that came with it."""
        session, self._session = self._session, None
        self._group, self._group_bytes = [], 0
        if session is not None:
            session.over = True
            self._signal.notify()
            if session.call is not None:
                session.call.cancel()
            await session.stack.aclose()

    async def _requests(self, session: _Session) -> AsyncIterator[Any]:
        yield consumer_pb2.SubscribeRequest(open=self._open_message())
        while True:
            await self._signal.until(
                lambda: (
                    session.over
                    or (self._resume is not None and self._wanted > session.acknowledged)
                )
            )
            if session.over or self._resume is None:
                return
            session.acknowledged = self._wanted
            position = common_pb2.Position(
                generation=self._resume.generation, sequence=self._wanted
            )
            yield consumer_pb2.SubscribeRequest(
                acknowledge=consumer_pb2.Acknowledge(position=position)
            )

    def _open_message(self) -> consumer_pb2.Open:
        said = consumer_pb2.Open(
            protocol_version=PROTOCOL_VERSION,
            merge=self.merge,
            delivery=_DELIVERIES[self.delivery],
            subscription=self.subscription or "",
        )
        start = self._resume or self._start
        if isinstance(start, Position):
            said.position.generation, said.position.sequence = start.generation, start.sequence
        elif start == "now":
            said.now.SetInParent()
        else:
            said.beginning.SetInParent()
        return said

    # -- what the server says -------------------------------------------------------------------

    def _opened(self, said: consumer_pb2.Opened, session: _Session) -> None:
        if said.protocol_version != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"the server speaks version {said.protocol_version} of the protocol, this client"
                f" {PROTOCOL_VERSION}"
            )
        position = _position(said.position)
        known = self._resume
        if known is not None and known.generation != position.generation:
            raise RetiredError(
                f"the merge {self.merge!r} was begun anew: reading was at {known}, and its"
                f" generation is {position.generation} now; begin again from now"
            )
        if known is not None and known.sequence < position.sequence:
            raise RetiredError(f"the server goes on at {position}, and reading was at {known}")
        if self.schema is not None:
            self.reconnects += 1
        self.schema = schema_of(said.schema)
        self.restriction = said.restriction
        # A kept subscription begins where it was acknowledged, which may be before that.
        session.skip_to = None if known is None else known.sequence
        if known is None and self._start != "now":
            self._resume = position  # no snapshot will say it

    def _take(self, answer: consumer_pb2.SubscribeResponse) -> None:
        kind = answer.WhichOneof("response")
        if kind == "entry":
            self._entry(answer.entry)
        elif kind == "snapshot":
            self._snapshot(answer.snapshot)
        elif kind == "acknowledged":
            self._confirmed = max(self._confirmed, answer.acknowledged.position.sequence)
        else:
            raise WireError(f"the server said {kind or 'nothing known'} in a subscription")
        self._backoff.succeeded()

    def _entry(self, said: consumer_pb2.Entry) -> None:
        after = _position(said.next)
        session = self._session
        if session is not None and session.skip_to is not None:
            if after.sequence <= session.skip_to:
                return
            session.skip_to = None
        # Of final results several may have one position: then only the last can be resumed from.
        grouped = self.delivery != "eager"
        shown = after if said.complete or not grouped else self._resume
        kind = said.WhichOneof("part")
        item: Item
        size = 0
        if kind == "batch":
            data = said.batch  # once: protobuf copies it at every look
            size, item = len(data), Elements(batch_of(data, self.schema), shown, said.complete)
        elif kind == "stable":
            item = StablePoint(said.stable, shown, said.complete)
        elif kind == "gap":
            item = Gap(said.gap.start, said.gap.end, shown, said.complete)
        else:
            raise WireError("an entry of the output holds nothing known")
        self._hold(item, size)
        if said.complete or not grouped:
            self._release(after)

    def _snapshot(self, said: consumer_pb2.Snapshot) -> None:
        if self._resume is not None:
            return
        position = _position(said.position) if said.last else None
        stable = said.stable if said.HasField("stable") else None
        batch = batch_of(said.batch, self.schema) if said.batch else _none(self.schema)
        since = said.since if said.HasField("since") else None
        self._hold(Snapshot(batch, position, stable, said.last, since), len(said.batch))
        if position is not None:
            self._release(position)

    def _hold(self, item: Item, size: int) -> None:
        self._group.append((item, size))
        self._group_bytes += size
        if self._group_bytes > GROUP_BYTES_MAX:
            raise LimitError(f"a group or snapshot of more than {GROUP_BYTES_MAX} bytes")

    def _release(self, after: Position) -> None:
        """What is held may be handed over; reading goes on behind it."""
        self._ready.extend((item, item.position, size) for item, size in self._group)
        self._ready_bytes += self._group_bytes
        self._group, self._group_bytes = [], 0
        self._resume = after
        self._signal.notify()


def elements_in(item: Item) -> list[Element | Gap]:
    """An item's elements, payloads as dicts; a gap is itself."""
    if isinstance(item, StablePoint):
        return [Stable(item.vc)]
    if isinstance(item, Gap):
        return [item]
    found: list[Element | Gap] = []
    for row in item.batch.to_pylist():
        op, vs, ve, vold = (row.pop(name) for name in ("op", "vs", "ve", "vold"))
        found.append(Insert(row, vs, ve) if op == Op.INSERT else Adjust(row, vs, vold, ve))
    if isinstance(item, Snapshot) and item.stable is not None:
        found.append(Stable(item.stable))
    return found


def _position(said: common_pb2.Position) -> Position:
    return Position(said.generation, said.sequence)


def _none(schema: pa.Schema | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


async def _next(answers: Any) -> Any:
    """The next answer; None at the end."""
    return await anext(answers, None)
