"""The service for replicas: see ``proto/lmerge/v1/replica.proto`` for the contract.

A session is three loops around one outbox: what comes in is staged or enqueued for the log, what
has been logged and merged is acknowledged in order, and feedback is passed on (only the newest:
it supersedes what was not sent). Bounded: at most ``window_bytes`` of commits are on their way for
a stream; beyond that its messages are not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from lmerge.core.batch import describe_difference, payload_schema, plain
from lmerge.core.streams import StreamState
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    LimitError,
    SchemaMismatchError,
    WireError,
)
from lmerge.server.calls import Context, Desk, check_version, finished
from lmerge.server.config import check_name
from lmerge.server.host import MergeHost
from lmerge.server.hub import Served
from lmerge.server.sessions import NUMBER_MAX, Session
from lmerge.server.state import properties_of
from lmerge.times import BEGINNING
from lmerge.v1 import log_pb2, replica_pb2
from lmerge.v1.replica_pb2_grpc import ReplicaServiceServicer
from lmerge.wire import PROTOCOL_VERSION, rows
from lmerge.wire.envelopes import Written

log = logging.getLogger("lmerge.server")

COUNTERS_MAX: Final = 64
TEXT_MAX: Final = 1_000
ANSWERS_MAX: Final = 1_024  # not taken by the peer: then its commits wait
COMMIT_BYTES: Final = 16 << 10  # what a commit counts for beside its batches: empty ones wait, too


class Replicas(ReplicaServiceServicer):
    """Where streams come in."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def Attach(  # noqa: N802  # the contract's name
        self, requests: AsyncIterator[replica_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[replica_pb2.AttachResponse]:
        """A stream's session."""
        async for answer in self._desk.streamed(
            "replica", context, self._attach(requests, context)
        ):
            yield answer

    async def Stage(  # noqa: N802  # the contract's name
        self, requests: AsyncIterator[replica_pb2.StageRequest], context: Context
    ) -> replica_pb2.StageResponse:
        """One task's share of an epoch."""
        answer: replica_pb2.StageResponse = await self._desk.answered(
            context, self._stage(requests, context)
        )
        return answer

    # -- sessions -----------------------------------------------------------------------------

    async def _attach(
        self, requests: AsyncIterator[replica_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[replica_pb2.AttachResponse]:
        source = aiter(requests)
        first = await anext(source, None)
        # None when nothing was sent; a write does not even come as an AttachRequest.
        if (
            not isinstance(first, replica_pb2.AttachRequest)
            or first.WhichOneof("request") != "hello"
        ):
            raise WireError("a session begins with a hello")
        hello = first.hello
        check_version(hello.protocol_version)
        self._desk.permit(context, "replica", hello.merge)
        served = await self._merge_for(hello)
        session = served.sessions.take_over(hello.stream, hello.incarnation, hello.instance)
        call = _Call(served, session)
        try:
            yield replica_pb2.AttachResponse(welcome=await call.welcome(hello))
            async for answer in call.answers(source):
                yield answer
        finally:
            call.stop()
            served.sessions.release(session)

    async def _merge_for(self, hello: replica_pb2.Hello) -> Served:
        """The merge that a hello is for; refused unless its stream fits into it.

        All of that before the stream is taken over: a hello in error must not end the session of
        a holder that is in order.
        """
        check_name("stream", hello.stream)
        for what, text in (("lineage", hello.lineage), ("instance", hello.instance)):
            if not 0 < len(text) <= TEXT_MAX:
                raise WireError(f"a hello needs {what} of 1 to {TEXT_MAX} characters")
        if hello.incarnation > NUMBER_MAX:
            raise WireError(f"an incarnation is at most {NUMBER_MAX}, not {hello.incarnation}")
        self._desk.hub.check_incarnation(hello.merge, hello.stream, hello.incarnation)
        schema = payload_schema(rows.schema_of(hello.schema))
        properties = properties_of(hello.properties) if hello.HasField("properties") else None
        hub = self._desk.hub
        served = await finished(hub.get_or_create(hello.merge, schema, properties, hello.options))
        difference = describe_difference(served.host.state.merge.schema, plain(schema))
        if difference:
            raise SchemaMismatchError(
                f"the payload's columns are not those of merge {hello.merge!r}: {difference}"
            )
        wanted, chosen = hello.options.restriction, served.host.state.options.restriction
        if wanted and wanted != chosen:
            raise ConfigurationError(
                f"merge {hello.merge!r} is {chosen}, and the hello asks for {wanted}"
            )
        served.host.state.require(hello.stream, properties)
        known = served.host.state.streams.get(hello.stream)
        ended = known is not None and known.lineage == hello.lineage and not known.attached
        if ended and not hello.HasField("from_time"):
            raise DetachedError(
                f"stream {hello.stream!r} was detached, and what it sent is forgotten: begin a new"
                " lineage, or say from which time on its further elements are right (from_time)"
            )
        members = [n for n, r in served.host.state.streams.items() if r.attached]
        limit = served.host.limits.streams
        if hello.stream not in members and len(members) >= limit:
            raise LimitError(f"merge {hello.merge!r} has {limit} streams: its limit")
        return served

    # -- parallel writers ---------------------------------------------------------------------

    async def _stage(
        self, requests: AsyncIterator[replica_pb2.StageRequest], context: Context
    ) -> replica_pb2.StageResponse:
        source = aiter(requests)
        first = await anext(source, None)
        if first is None or first.WhichOneof("request") != "header":
            raise WireError("a share of an epoch begins with its header")
        header = first.header
        check_version(header.protocol_version)
        self._desk.permit(context, "replica", header.merge)
        served = self._desk.hub.get(header.merge)
        served.sessions.begin_part(header.stream, header.incarnation, header.epoch)
        part, ended = served.sessions.new_part(), False
        try:
            async for request in source:
                if request.WhichOneof("request") != "batch":
                    raise WireError("after the header of a share come batches only")
                batch = _decoded(request.batch, served.host)
                served.sessions.add_to_part(part, request.batch, batch)
            # A zombie's task may end after its successor has begun.
            served.sessions.begin_part(header.stream, header.incarnation, header.epoch)
            key = (header.part.partition, header.part.attempt)
            served.sessions.end_part(header.stream, header.epoch, key, part)
            ended = True
        finally:
            if not ended:
                served.sessions.drop_part(part)
        return replica_pb2.StageResponse(rows=part.rows, bytes=part.size)


class _Call:
    """A session's loops."""

    def __init__(self, served: Served, session: Session) -> None:
        self._served = served
        self._host = served.host
        self._sessions = served.sessions
        self._session = session
        self._answers: asyncio.Queue[replica_pb2.AttachResponse | None]
        self._answers = asyncio.Queue(ANSWERS_MAX)
        self._commits: asyncio.Queue[tuple[int, int, Any]] = asyncio.Queue()
        self._underway = 0  # bytes of commits that are not acknowledged
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def welcome(self, hello: replica_pb2.Hello) -> replica_pb2.Welcome:
        """Makes the stream this session's, and says where it is to go on."""
        host, session = self._host, self._session
        record = host.state.streams.get(hello.stream)
        if record is not None and record.attached and record.lineage == hello.lineage:
            await host.submit(
                log_pb2.Arrival(
                    incarnation=log_pb2.IncarnationTaken(
                        stream=hello.stream,
                        incarnation=session.incarnation,
                        instance=session.instance,
                    )
                )
            )
        else:
            self._sessions.drop_staged(hello.stream)  # another lineage's epochs are others
            await host.submit(log_pb2.Arrival(attached=_attached(hello, session)))
        record = host.state.streams[hello.stream]
        session.last_epoch = record.last_epoch
        return self._welcome(record.last_epoch)

    def _welcome(self, last_epoch: int | None) -> replica_pb2.Welcome:
        host, session = self._host, self._session
        stream = _statistics(host, session.stream)
        welcome = replica_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            generation=host.state.generation,
            incarnation=session.incarnation,
            stable=stream.stable,
            window_bytes=host.limits.window_bytes,
            message_bytes=host.limits.message_bytes,
            epoch_bytes=host.limits.epoch_bytes,
            state=stream.state,
            restriction=host.state.options.restriction,
        )
        if last_epoch is not None:
            welcome.next_epoch = last_epoch + 1
        if host.state.merge.decided > max(stream.stable, BEGINNING):
            welcome.horizon = host.state.merge.decided
        return welcome

    async def answers(self, requests: Any) -> AsyncIterator[replica_pb2.AttachResponse]:
        """Everything the replica is told, until its call ends."""
        loops = (self._receive(requests), self._acknowledge(), self._pass_on_feedback())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        ends: list[asyncio.Future[Any]] = [*self._tasks, self._session.ended]
        for end in ends:
            end.add_done_callback(lambda _: self._look())
        while True:
            answer = await self._answers.get()
            if answer is not None:
                yield answer
                if answer.WhichOneof("response") == "detached":
                    return
                if not self._answers.empty():
                    continue
            for end in ends:
                if end.done():
                    end.result()  # raises what ended it
            if self._tasks[0].done() and self._commits.empty() and not self._underway:
                return

    def _look(self) -> None:
        """Has :meth:`answers` look who has ended; when the queue is full it will by itself."""
        with suppress(asyncio.QueueFull):
            self._answers.put_nowait(None)

    def stop(self) -> None:
        """Ends the loops. What is enqueued for the log is logged all the same."""
        for task in self._tasks:
            task.cancel()

    async def _receive(self, requests: Any) -> None:
        async for request in requests:
            self._session.check()
            if isinstance(request, Written):
                batch = _decoded(request.batch, self._host)
                self._sessions.write(self._session, request.epoch, request.batch, batch)
                continue
            kind = request.WhichOneof("request")
            if kind == "write":
                epoch, data = request.write.epoch, request.write.batch
                self._sessions.write(self._session, epoch, data, _decoded(data, self._host))
            elif kind == "commit":
                await self._commit(request.commit)
            elif kind == "abort":
                self._sessions.drop(self._session.stream, request.abort.epoch)
            elif kind == "detach":
                await self._detach(request.detach.reason or "the replica asked for it")
            else:
                raise WireError(f"a session takes no {kind or 'empty message'} here")
        # The replica has finished sending: what is on its way is acknowledged still.
        self._look()

    async def _commit(self, commit: replica_pb2.Commit) -> None:
        session = self._session
        self._note(commit)
        keys = [(part.partition, part.attempt) for part in commit.parts]
        expected = commit.rows if commit.HasField("rows") else None
        follows = session.last_epoch
        staged = self._sessions.staged_for(session, commit.epoch, keys, expected)
        if staged is None:
            self._commits.put_nowait((commit.epoch, 0, None))
            return
        epoch = log_pb2.EpochCommitted(stream=session.stream, epoch=commit.epoch)
        if follows is not None:
            epoch.follows = follows
        if commit.HasField("stable"):
            epoch.stable = commit.stable
        if commit.HasField("skipped_before"):
            epoch.skipped_before = commit.skipped_before
        done = self._host.enqueue(log_pb2.Arrival(epoch=epoch), staged.batches, staged.data)
        size = staged.size + COMMIT_BYTES
        self._underway += size
        self._commits.put_nowait((commit.epoch, size, done))
        while self._underway > self._host.limits.window_bytes:
            self._sessions.traffic[session.stream].held_back += 1
            self._room.clear()
            await self._room.wait()

    def _note(self, commit: replica_pb2.Commit) -> None:
        counters = self._sessions.traffic[self._session.stream].counters
        for name, value in commit.counters.items():
            if name in counters or len(counters) < COUNTERS_MAX:
                counters[name[:100]] = value

    async def _acknowledge(self) -> None:
        while True:
            epoch, size, done = await self._commits.get()
            if done is not None:
                await done
            await self._answers.put(
                replica_pb2.AttachResponse(acknowledged=self._acknowledged(epoch))
            )
            self._underway -= size
            self._room.set()
            if self._tasks[0].done():
                self._look()

    def _acknowledged(self, epoch: int) -> replica_pb2.Acknowledged:
        state = self._host.state.merge.streams().get(self._session.stream)
        if state is None:
            raise DetachedError(f"stream {self._session.stream!r} has left the merge")
        said = replica_pb2.Acknowledged(epoch=epoch, state=state.value)
        if state is StreamState.QUARANTINED:
            # Only then: all statistics for each of many small epochs cost as much as merging them.
            said.reason = _statistics(self._host, self._session.stream).reason[:TEXT_MAX]
        return said

    async def _pass_on_feedback(self) -> None:
        session = self._session
        while True:
            await session.news.wait()
            session.news.clear()
            if session.horizon is not None:
                before, session.horizon = session.horizon, None
                self._sessions.traffic[session.stream].feedback_sent += 1
                await self._answers.put(
                    replica_pb2.AttachResponse(feedback=replica_pb2.Feedback(before=before))
                )

    async def _detach(self, reason: str) -> None:
        await self._served.detach(self._session.stream, reason)
        await self._answers.put(
            replica_pb2.AttachResponse(detached=replica_pb2.Detached(reason=reason))
        )


def _attached(hello: replica_pb2.Hello, session: Session) -> log_pb2.StreamAttached:
    attached = log_pb2.StreamAttached(
        stream=hello.stream,
        lineage=hello.lineage,
        incarnation=session.incarnation,
        instance=session.instance,
    )
    if hello.HasField("properties"):
        attached.properties.CopyFrom(hello.properties)
    if hello.HasField("from_time"):
        attached.from_time = hello.from_time
    return attached


def _decoded(data: bytes, host: MergeHost) -> Any:
    batch = rows.batch_of(data, host.state.elements)
    rows.check_elements(batch)
    return batch


def _statistics(host: MergeHost, stream: str) -> Any:
    for each in host.state.merge.statistics().streams:
        if each.name == stream:
            return each
    raise DetachedError(f"stream {stream!r} has left the merge")
