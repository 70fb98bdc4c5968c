"""The service for consumers: see ``proto/lmerge/v1/consumer.proto`` for the contract.

A reader asks the output for what comes next whenever its connection can take it: nothing is queued
for it here. Entries are sent as they are stored, without being decoded. ``final`` is a merge of
one stream, the output, with the policy ``final``: it begins at a snapshot at or before the reader's
position, and what it gives before that position is left out, so that a reader that resumes sees
exactly what would have come next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lmerge.core.merge import Merge
from lmerge.core.output import Gap
from lmerge.core.policy import DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Stable
from lmerge.errors import LimitError, RetiredError, WireError
from lmerge.server.calls import Context, Desk, check_version
from lmerge.server.config import check_name
from lmerge.server.host import MergeHost
from lmerge.server.hub import Served
from lmerge.server.state import ENTRY_BYTES, MergeState, cut
from lmerge.times import BEGINNING
from lmerge.v1 import common_pb2, consumer_pb2, log_pb2
from lmerge.v1.consumer_pb2_grpc import ConsumerServiceServicer
from lmerge.wire import PROTOCOL_VERSION, rows

_OUTPUT: Final = "output"  # the one stream of a merge that makes final results


class Consumers(ConsumerServiceServicer):
    """Where merged streams go out."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Subscribe(  # noqa: N802  # the contract's name
        self, requests: AsyncIterator[consumer_pb2.SubscribeRequest], context: Context
    ) -> AsyncIterator[Any]:
        """One consumer's reading; yields messages, serialized or not."""
        async for answer in self._desk.streamed(
            "consumer", context, self._subscribe(requests, context)
        ):
            yield answer

    async def Inspect(  # noqa: N802  # the contract's name
        self, request: consumer_pb2.InspectRequest, context: Context
    ) -> consumer_pb2.InspectResponse:
        """Where a merge is."""
        answer: consumer_pb2.InspectResponse = await self._desk.answered(
            context, self._inspect(request, context)
        )
        return answer

    async def _inspect(
        self, request: consumer_pb2.InspectRequest, context: Context
    ) -> consumer_pb2.InspectResponse:
        self._desk.permit(context, "consumer", request.merge)
        host = self._desk.hub.get(request.merge).host
        return consumer_pb2.InspectResponse(
            schema=rows.schema_bytes(host.state.elements),
            restriction=host.state.options.restriction,
            first=host.state.position(host.output.first),
            next=host.state.position(host.output.next),
            stable=host.state.merge.stable_point,
        )

    async def _subscribe(
        self, requests: AsyncIterator[consumer_pb2.SubscribeRequest], context: Context
    ) -> AsyncIterator[Any]:
        source = aiter(requests)
        first = await anext(source, None)
        if first is None or first.WhichOneof("request") != "open":
            raise WireError("a subscription begins with an open")
        wanted = first.open
        check_version(wanted.protocol_version)
        self._desk.permit(context, "consumer", wanted.merge)
        if wanted.delivery not in (1, 2, 3):
            raise WireError("a subscription is eager, consistent or final")
        served = self._desk.hub.get(wanted.merge)
        call = _Call(served, wanted)
        try:
            async for answer in call.answers(source):
                yield answer
        finally:
            call.stop()


@dataclass(frozen=True, slots=True)
class _Start:
    sequence: int
    snapshot: bool = False


class _Call:
    """One reader."""

    def __init__(self, served: Served, wanted: consumer_pb2.Open) -> None:
        self._host: MergeHost = served.host
        self._sessions = served.sessions
        self._wanted = wanted
        self._name = wanted.subscription
        self._acknowledged: asyncio.Queue[int] = asyncio.Queue()
        self._news = asyncio.Event()  # an entry, an acknowledgement, or the end
        self._receiving: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda _: self._news.set())
        self._sessions.calls.add(self._ended)
        self._host.output.watchers[self._news] = None
        if self._name:
            readers = self._sessions.readers
            readers[self._name] = readers.get(self._name, 0) + 1

    def stop(self) -> None:
        """The call is over."""
        if self._receiving is not None:
            self._receiving.cancel()
        self._sessions.calls.discard(self._ended)
        self._host.output.watchers.pop(self._news, None)
        if not self._ended.done():
            self._ended.cancel()
        if self._name:
            self._sessions.readers[self._name] -= 1

    async def answers(self, requests: Any) -> AsyncIterator[Any]:
        """Everything the reader is told, until its call ends."""
        start = await self._begin()
        host = self._host
        yield consumer_pb2.SubscribeResponse(
            opened=consumer_pb2.Opened(
                protocol_version=PROTOCOL_VERSION,
                schema=rows.schema_bytes(host.state.elements),
                position=host.state.position(start.sequence),
                restriction=host.state.options.restriction,
            )
        )
        self._receiving = asyncio.create_task(self._receive(requests))
        at = start.sequence
        if self._wanted.delivery == consumer_pb2.DELIVERY_FINAL:
            parts: AsyncIterator[tuple[int, Any]] = self._final(start)
        else:
            if start.snapshot:
                at = host.output.next
                for piece in snapshot_of(host.state):
                    yield piece
            parts = self._entries(at)
        async for _, part in parts:
            if part is not None:
                yield part
            while not self._acknowledged.empty():
                yield self._confirmation(self._acknowledged.get_nowait())

    def _confirmation(self, sequence: int) -> consumer_pb2.SubscribeResponse:
        acknowledged = consumer_pb2.SubscribeResponse.Acknowledged(
            position=self._host.state.position(sequence)
        )
        return consumer_pb2.SubscribeResponse(acknowledged=acknowledged)

    # -- where to begin -----------------------------------------------------------------------

    async def _begin(self) -> _Start:
        host, name = self._host, self._name
        if name:
            check_name("subscription", name)
            known = host.state.subscriptions.get(name)
            if known is not None:
                host.output.require(known)
                return _Start(known)
            if len(host.state.subscriptions) >= host.limits.subscriptions:
                raise LimitError(
                    f"merge {host.name!r} has {host.limits.subscriptions} subscriptions: its limit"
                )
        start = self._where()
        if name and self._wanted.WhichOneof("start") not in ("now", "position"):
            # Any other is kept from its first acknowledgement on. Until then one that began now
            # must get the snapshot again, also when its connection was lost behind it and it
            # returned with a position.
            await self._acknowledge(start.sequence)
        return start

    def _where(self) -> _Start:
        host = self._host
        kind = self._wanted.WhichOneof("start")
        if kind == "position":
            sequence = self._sequence(self._wanted.position)
            host.output.require(sequence)
            return _Start(sequence)
        if kind == "now":
            return _Start(host.output.next, snapshot=True)
        host.output.require(0)  # the beginning is entry 0, or it is gone
        return _Start(0)

    def _sequence(self, position: common_pb2.Position) -> int:
        ours = self._host.state.generation
        if position.generation != ours:
            raise RetiredError(
                f"the position is of generation {position.generation[:40]!r}, and the merge has"
                f" begun anew as {ours!r}: begin again from now"
            )
        return int(position.sequence)

    # -- what the reader says -----------------------------------------------------------------

    async def _receive(self, requests: Any) -> None:
        try:
            async for request in requests:
                if request.WhichOneof("request") != "acknowledge":
                    raise WireError("after its open a subscription takes acknowledgements only")
                sequence = self._sequence(request.acknowledge.position)
                if sequence > self._host.output.next:
                    raise WireError("an acknowledgement is ahead of the output")
                if self._name:
                    await self._acknowledge(sequence)
                self._acknowledged.put_nowait(sequence)
                self._news.set()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
                self._ended.exception()

    async def _acknowledge(self, sequence: int) -> None:
        acknowledged = log_pb2.SubscriptionAcknowledged(subscription=self._name, sequence=sequence)
        await self._host.submit(log_pb2.Arrival(acknowledged=acknowledged))

    # -- what the reader gets -----------------------------------------------------------------

    async def _entries(self, at: int) -> AsyncIterator[tuple[int, bytes | None]]:
        """The output as it is stored, from an entry on, for ever; None: look elsewhere, too."""
        while True:
            for entry in await self._next(at):
                at += 1
                yield at, entry
            if not self._acknowledged.empty():
                yield at, None

    async def _next(self, at: int) -> list[bytes]:
        """The entries from ``at`` on, or none when something else has happened; raises what has
        ended the call."""
        output = self._host.output
        while True:
            if self._ended.done():
                self._ended.result()
            if at < output.next or not self._acknowledged.empty():
                return await output.read(at) if at < output.next else []
            output.require(at)
            self._news.clear()
            await self._news.wait()

    async def _final(self, start: _Start) -> AsyncIterator[tuple[int, Any]]:
        """What is fully frozen, from an entry on; with a snapshot, as soon as it becomes so."""
        host = self._host
        if start.snapshot:
            state: MergeState | None = host.state
            events, base = host.state.live_events(), host.output.next
            stable = host.state.merge.stable_point
        else:
            state = await asyncio.to_thread(host.base_of, start.sequence)
            events = None if state is None else state.live_events()
            base = 0 if state is None else state.sequence
            stable = BEGINNING if state is None else state.merge.stable_point
            host.output.require(base)
        results = _FinalResults(host, events, stable)
        if start.snapshot:
            yield base, _last_piece(host.state, results.stable_point)
        async for at, entry in self._entries(base):
            if entry is None:
                yield at, None
                continue
            parts = results.of(consumer_pb2.SubscribeResponse.FromString(entry).entry)
            if at <= start.sequence:
                continue
            for number, part in enumerate(parts):
                complete = number == len(parts) - 1
                yield at, _entry(host.state.position(at), part, complete)


class _FinalResults:
    """From entries of the output to events that will never be revised."""

    def __init__(self, host: MergeHost, live: pa.RecordBatch | None, stable: int) -> None:
        keyed = host.state.merge.restriction in (Restriction.R0, Restriction.R2, Restriction.R3)
        policy = Policy(InsertPolicy.final(), divergence=DivergencePolicy.OFF)
        restriction = Restriction.R3 if keyed else Restriction.R4
        self._elements = host.state.elements
        self._merge = Merge(host.state.merge.schema, restriction, policy)
        self._merge.attach(_OUTPUT)
        if live is not None and live.num_rows:
            self._merge.apply(_OUTPUT, live, None)
        if stable > BEGINNING:
            self._merge.stable(_OUTPUT, stable)

    @property
    def stable_point(self) -> int:
        """What final results have promised."""
        return self._merge.stable_point

    def of(self, entry: consumer_pb2.Entry) -> list[Any]:
        """What an entry makes final."""
        kind = entry.WhichOneof("part")
        if kind == "gap":
            return [Gap(entry.gap.start, entry.gap.end)]
        if kind == "stable":
            return self._pieces(self._merge.stable(_OUTPUT, entry.stable).parts)
        batch = pa.ipc.read_record_batch(entry.batch, self._elements)
        return self._pieces(self._merge.apply(_OUTPUT, batch, None).parts)

    def _pieces(self, parts: list[Any]) -> list[Any]:
        found: list[Any] = []
        for part in parts:
            found += cut(part, ENTRY_BYTES) if isinstance(part, pa.RecordBatch) else [part]
        return found


def _entry(
    position: common_pb2.Position, part: Any, complete: bool
) -> consumer_pb2.SubscribeResponse:
    entry = consumer_pb2.Entry(next=position, complete=complete)
    if isinstance(part, Stable):
        entry.stable = part.vc
    elif isinstance(part, Gap):
        entry.gap.start, entry.gap.end = part.start, part.end
    else:
        entry.batch = rows.batch_bytes(part).to_pybytes()
    return consumer_pb2.SubscribeResponse(entry=entry)


def snapshot_of(state: MergeState) -> list[consumer_pb2.SubscribeResponse]:
    """What is live now, in pieces; taken at one instant."""
    position = state.position(state.sequence)
    live = state.live_events()
    batches = [
        rows.batch_bytes(piece).to_pybytes()
        for piece in (cut(live, ENTRY_BYTES) if live.num_rows else [])
    ]
    last = _last_piece(state, state.merge.stable_point)
    last.snapshot.batch = batches.pop() if batches else b""
    pieces = [consumer_pb2.Snapshot(position=position, batch=batch) for batch in batches]
    return [*(consumer_pb2.SubscribeResponse(snapshot=piece) for piece in pieces), last]


def _last_piece(state: MergeState, stable: int) -> consumer_pb2.SubscribeResponse:
    """What ends a snapshot, without rows; ``stable`` is that of what is delivered."""
    piece = consumer_pb2.Snapshot(position=state.position(state.sequence), last=True)
    if state.stable_point is not None:
        piece.since = state.stable_point
    if stable > BEGINNING:
        piece.stable = stable
    return consumer_pb2.SubscribeResponse(snapshot=piece)
