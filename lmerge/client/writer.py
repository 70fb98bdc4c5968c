"""A replica's stream to a merge, over connections that come and go.

Callers may rely on this:
- What a commit acknowledged is durable and merged, once. What was not acknowledged is held, and
  sent again after a reconnect, unless the server turns out to have it.
- A lost connection is nobody's business but the writer's, until ``retry.patience_s`` without
  progress; then, and for failures that trying again cannot mend (fenced, detached, another
  schema, no permission, lost epochs), every call raises the reason, for good.
- Memory: at most the server's window is held. Beyond it ``write`` waits (``waits`` counts that);
  an epoch that alone exceeds it raises LimitError.

A writer belongs to one event loop, and its calls to one task at a time.

States: new → attaching ⇄ attached → closed, or failed; the server's own word for the stream
(joining, joined, quarantined) is ``state``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, overload

import pyarrow as pa

from lmerge.client.connection import (
    ANSWER_S,
    MESSAGE_BYTES_MAX,
    Backoff,
    Retry,
    Security,
    Signal,
    answered,
    dialling,
    ended,
    failure_of,
    may_retry,
    targets_of,
)
from lmerge.client.epochs import Acknowledgement, Unacknowledged
from lmerge.client.rows import conformed, elements_schema, payload_of, pieces
from lmerge.core.properties import StreamProperties
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    EpochOrderError,
    InvariantError,
    LimitError,
    LMergeError,
    UnavailableError,
    VersionMismatchError,
    WireError,
)
from lmerge.v1 import common_pb2, replica_pb2
from lmerge.wire import PROTOCOL_VERSION
from lmerge.wire.envelopes import write_request
from lmerge.wire.rows import schema_bytes

WINDOW_BYTES: Final = 64 << 20
"""For a server that names no window."""

MOST_EPOCHS: Final = 1024
"""So many commits may wait for their acknowledgement; beyond it ``commit`` waits."""

FRAME_BYTES: Final = 64
"""What a message has around its batch, at most."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the server said when the stream attached."""

    generation: str
    incarnation: int
    next_epoch: int | None  # the first that is not committed; None when there are none yet
    stable: int
    horizon: int | None
    window_bytes: int
    message_bytes: int
    epoch_bytes: int
    state: str
    restriction: str


class _Session:
    """One call: how far it has sent. A cursor over the writer's epochs."""

    def __init__(self, first: int) -> None:
        self.welcomed = False
        self.over = False
        self.epoch = first
        self.sent = 0  # of these messages; an abort replaces them
        self.messages: list[Any] | None = None
        self.said_detach = False


class Writer:
    """Writes one stream of a merge; a context manager, which attaches and pauses it."""

    def __init__(
        self,
        target: str | Sequence[str],
        merge: str,
        stream: str,
        schema: pa.Schema,
        *,
        lineage: str | None = None,
        incarnation: int = 0,
        from_time: int | None = None,
        properties: StreamProperties | None = None,
        options: Mapping[str, Any] | None = None,
        security: Security | None = None,
        retry: Retry | None = None,
        stubs: Any | None = None,
        instance: str | None = None,
        on_feedback: Callable[[int], None] | None = None,
    ) -> None:
        """``target`` is one server's address, or several of the same server, tried in turn.

        ``options`` are those of :class:`MergeOptions` in the contract, for a merge that does not
        exist yet. ``lineage`` is by default new with every writer: give the name of what the
        replica resumes from, or nothing can be resumed.
        """
        self._security = security or Security()
        self._retry = retry or Retry()
        targets = () if stubs is not None else targets_of(target, self._security)
        self._dial = dialling(targets, self._security, _Stubs, stubs)
        self._serialized = stubs is None  # others' stubs take messages
        self.merge = merge
        self.stream = stream
        self.instance = instance or str(uuid.uuid4())
        self.lineage = lineage or self.instance
        self.schema = elements_schema(payload_of(schema))
        self.on_feedback = on_feedback
        self.horizon: int | None = None  # what ends before it is not needed any more
        self.state = ""
        self.reason = ""  # why it is quarantined
        self.waits = 0  # how often the server's window held a write back
        self.reconnects = 0
        self.welcome: Welcome | None = None  # the last one
        self._incarnation = incarnation
        self._from_time = from_time
        self._properties = properties  # None: what the merge's restriction needs
        self._options = _options(options)
        self._epochs = Unacknowledged()
        self._signal = Signal()
        self._task: asyncio.Task[None] | None = None
        self._failure: LMergeError | None = None
        self._closing = False
        self._detach: str | None = None  # the reason, once the stream is to leave
        self._detached = False

    # -- what callers do ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.attach()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(drain=kind is None)

    async def attach(self) -> Welcome:
        """Connect, and wait until the server has taken the stream."""
        if self._task is None:
            if self._closing:
                raise ConfigurationError("the writer is closed")
            self._task = asyncio.create_task(self._run(), name=f"lmerge writer {self.stream}")
        await self._signal.until(lambda: self.welcome is not None or self._failure is not None)
        self._check()
        if self.welcome is None:
            raise DetachedError("the stream is detached")
        return self.welcome

    @property
    def next_epoch(self) -> int:
        """The epoch that is being written."""
        return self._epochs.next_number

    @property
    def incarnation(self) -> int:
        """What fences older holders of the stream; Stage calls need it."""
        return self._incarnation

    async def write(self, batch: pa.RecordBatch, *, epoch: int | None = None) -> None:
        """Add elements to the open epoch; waits while the server's window is full.

        With an ``epoch`` that is committed already, nothing happens: a replica that repeats its
        last epoch after a restart need not know.
        """
        welcome = await self.attach()
        if epoch is not None and self._is_committed(epoch):
            return
        rows = conformed(batch, self.schema)
        number = self._epochs.next_number if epoch is None else epoch
        open_epoch = self._epochs.open(number)
        most = min(welcome.message_bytes or MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX) - FRAME_BYTES
        for count, data in pieces(rows, most):
            size = data.size + FRAME_BYTES
            await self._room(size, open_epoch.size)
            self._epochs.add(open_epoch, write_request(number, data), size, count)
            self._signal.notify()

    @overload
    async def commit(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
        wait: Literal[True] = True,
    ) -> Acknowledgement: ...

    @overload
    async def commit(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
        wait: Literal[False],
    ) -> asyncio.Future[Acknowledgement]: ...

    async def commit(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
        wait: bool = True,
    ) -> Acknowledgement | asyncio.Future[Acknowledgement]:
        """Close the open epoch with its stable; returns when it is durable and merged.

        ``parts`` are (partition, attempt) of what Stage calls wrote, and ``part_rows`` how many
        rows they have in all, if that is to be verified. With ``wait=False`` a future is
        returned, and the next epoch can be written meanwhile.
        """
        await self.attach()
        if epoch is not None and self._is_committed(epoch):
            done = asyncio.get_running_loop().create_future()
            done.set_result(Acknowledgement(epoch, self.state, self.reason, repeated=True))
            return await done if wait else done
        number = self._epochs.next_number if epoch is None else epoch
        commit = replica_pb2.Commit(
            epoch=number,
            stable=stable,
            skipped_before=skipped_before,
            parts=[replica_pb2.Part(partition=p, attempt=a) for p, a in parts],
            counters=dict(counters or {}),
        )
        open_epoch = self._epochs.open(number)
        if not parts or part_rows is not None:
            commit.rows = open_epoch.rows + (part_rows or 0)
        await self._until(lambda: self._epochs.committed < MOST_EPOCHS)
        future = self._epochs.close(open_epoch, replica_pb2.AttachRequest(commit=commit))
        self._signal.notify()
        # Whoever stops waiting must not take the acknowledgement away from others.
        return await asyncio.shield(future) if wait else future

    async def abort(self) -> None:
        """Drop what was written to the open epoch, here and by Stage."""
        await self.attach()
        self._epochs.open(self._epochs.next_number)
        self._epochs.drop_open()
        self._signal.notify()

    async def drain(self) -> None:
        """Wait until every commit is acknowledged."""
        await self._until(lambda: not self._epochs.committed)

    async def detach(self, reason: str = "") -> None:
        """Leave the merge: what is committed counts, what is open is dropped. Closes."""
        await self.attach()
        await self.drain()
        self._detach = reason
        self._signal.notify()
        await self._signal.until(lambda: self._detached or self._failure is not None)
        if not self._detached:
            self._check()
        await self.close(drain=False)

    async def close(self, *, drain: bool = True) -> None:
        """Pause the stream: it stays a member, and resumes at its next epoch."""
        try:
            if drain and self._task is not None and self._epochs.committed:
                await self.drain()
        finally:
            self._closing = True
            self._signal.notify()
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if self._failure is None:
                self._fail(DetachedError("the writer is closed"))

    async def feedback(self) -> AsyncIterator[int]:
        """The horizon, whenever it has moved; of several moves the last. Ends with the writer."""
        seen: int | None = None
        while True:
            await self._signal.until(
                lambda: self.horizon != seen or self._failure is not None  # noqa: B023 (at once)
            )
            if self.horizon == seen or self.horizon is None:
                return
            seen = self.horizon
            yield seen

    # -- waiting --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: LMergeError) -> None:
        self._failure = error
        self._epochs.fail(error)
        self._signal.notify()

    async def _until(self, condition: Callable[[], bool]) -> None:
        self._check()
        await self._signal.until(lambda: condition() or self._failure is not None)
        self._check()

    def _is_committed(self, epoch: int) -> bool:
        return self._epochs.is_numbered and epoch < self._epochs.next_number

    async def _room(self, size: int, in_epoch: int) -> None:
        """Wait until so many bytes fit the window, which only acknowledgements widen."""
        welcome = self.welcome
        if welcome is None:
            raise UnavailableError("the stream is not attached")
        window = welcome.window_bytes or WINDOW_BYTES
        most = min(window, welcome.epoch_bytes or window)
        if in_epoch + size > most:
            raise LimitError(
                f"epoch {self._epochs.next_number} has more than {most} bytes, which is what the"
                " server takes of one: make smaller epochs, or write it by Stage calls"
            )
        if self._epochs.held_bytes + size > window:
            self.waits += 1
            await self._until(lambda: self._epochs.held_bytes + size <= window)
        self._check()

    # -- the connection -------------------------------------------------------------------------

    async def _run(self) -> None:
        """Be connected, until there is no sense in it any more."""
        backoff, attempt = Backoff(self._retry), 0
        try:
            while True:
                known = self._epochs.acknowledged
                backoff.begin()
                error = await self._connected(attempt)
                if error is None:
                    return
                if self._epochs.acknowledged != known:
                    backoff.succeeded()
                await backoff.pause(error)
                attempt += 1
        except LMergeError as error:
            self._fail(error)
        except Exception as error:
            defect = InvariantError(f"a writer failed: {type(error).__name__}: {error}")
            defect.__cause__ = error
            self._fail(defect)

    async def _connected(self, attempt: int) -> LMergeError | None:
        """One call from hello to its end; why to try again, or None when all is done."""
        try:
            async with self._dial(attempt) as stubs:
                await self._talk(stubs)
        except Exception as caught:
            error = failure_of(caught)
            if error is None:
                raise
            if isinstance(error, DetachedError) and self._detach is not None:
                self._gone()
                return None
            if not may_retry(error):
                raise error from caught
            return error
        if self._detached or self._closing:
            return None
        return UnavailableError("the server has ended the call")

    async def _talk(self, stubs: Any) -> None:
        session = _Session(self._epochs.first)
        call = stubs.Attach(self._requests(session), metadata=self._security.metadata())
        answers = aiter(call)
        try:
            first = await answered(_next(answers), ANSWER_S, self._retry.sleep)
            if first is None:
                return
            if first.WhichOneof("response") != "welcome":
                raise WireError("the server's first answer is no welcome")
            self._welcomed(first.welcome, session)
            async for answer in answers:
                self._take(answer)
                if self._detached:
                    return
        except asyncio.CancelledError:
            raise await ended(call) from None
        finally:
            session.over = True
            self._signal.notify()
            call.cancel()

    async def _requests(self, session: _Session) -> AsyncIterator[Any]:
        """Everything that the session sends, in order."""
        yield replica_pb2.AttachRequest(hello=self._hello())
        while True:
            await self._signal.until(lambda: session.over or self._has_next(session))
            if session.over:
                return
            request = self._next_request(session)
            if isinstance(request, bytes) and not self._serialized:
                request = replica_pb2.AttachRequest.FromString(request)
            yield request

    def _has_next(self, session: _Session) -> bool:
        if not session.welcomed:
            return False
        if self._unsent(session):
            return True
        return self._detach is not None and not session.said_detach

    def _next_request(self, session: _Session) -> Any:
        messages = self._unsent(session)
        if messages:
            session.sent += 1
            return messages[session.sent - 1]
        session.said_detach = True
        return replica_pb2.AttachRequest(detach=replica_pb2.Detach(reason=self._detach or ""))

    def _unsent(self, session: _Session) -> list[Any] | None:
        """The messages of the epoch that the session is at, when not all of them are sent."""
        while True:
            epoch = self._epochs.get(session.epoch)
            messages = None if epoch is None else epoch.messages
            if messages is not session.messages:
                session.messages, session.sent = messages, 0
            if messages is not None and session.sent < len(messages):
                return messages
            if session.epoch >= self._epochs.next_number:
                return None
            session.epoch += 1  # it has been sent with its commit, or is settled

    @property
    def _begins(self) -> bool:
        return self._detach is None and self._epochs.acknowledged is None

    def _hello(self) -> replica_pb2.Hello:
        return replica_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            merge=self.merge,
            stream=self.stream,
            lineage=self.lineage,
            incarnation=self._incarnation,
            instance=self.instance,
            schema=schema_bytes(payload_of(self.schema)),
            properties=_properties(self._properties),
            # What it vouches for is so when it begins, and only then: who has lost its place, or
            # has asked to leave and was not told that it did, must not come back as another.
            from_time=self._from_time if self._begins else None,
            options=self._options,
        )

    # -- what the server says -------------------------------------------------------------------

    def _welcomed(self, said: replica_pb2.Welcome, session: _Session) -> None:
        if said.protocol_version != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"the server speaks version {said.protocol_version} of the protocol, this client"
                f" {PROTOCOL_VERSION}"
            )
        next_epoch = said.next_epoch if said.HasField("next_epoch") else None
        first = self.welcome is None
        self._epochs.resume(next_epoch, said.generation, said.state, first=first)
        self.welcome = Welcome(
            generation=said.generation,
            incarnation=said.incarnation,
            next_epoch=next_epoch,
            stable=said.stable,
            horizon=said.horizon if said.HasField("horizon") else None,
            window_bytes=said.window_bytes,
            message_bytes=said.message_bytes,
            epoch_bytes=said.epoch_bytes,
            state=said.state,
            restriction=said.restriction,
        )
        if not first:
            self.reconnects += 1
        self._incarnation = said.incarnation
        self.state = said.state
        if self.welcome.horizon is not None:
            self._feed_back(self.welcome.horizon)
        session.welcomed = True
        session.epoch = self._epochs.first
        self._signal.notify()

    def _take(self, answer: replica_pb2.AttachResponse) -> None:
        kind = answer.WhichOneof("response")
        if kind == "acknowledged":
            said = answer.acknowledged
            self.state, self.reason = said.state, said.reason
            if said.epoch >= self._epochs.next_number:
                raise EpochOrderError(f"the server acknowledges epoch {said.epoch} too early")
            self._epochs.settle(said.epoch, said.state, said.reason)
        elif kind == "feedback":
            self._feed_back(answer.feedback.before)
        elif kind == "detached":
            if self._detach is None:
                raise DetachedError(f"the stream was detached: {answer.detached.reason}")
            self._gone()
        else:
            raise WireError(f"the server said {kind or 'nothing known'} after its welcome")
        self._signal.notify()

    def _feed_back(self, before: int) -> None:
        if self.horizon is None or before > self.horizon:
            self.horizon = before
            if self.on_feedback is not None:
                self.on_feedback(before)

    def _gone(self) -> None:
        self._detached = True
        self.state = "detached"
        self._fail(DetachedError("the stream has left the merge, as it was asked to"))


class _Stubs:
    """The generated stubs, but that a request may be serialized already: rows are large."""

    def __init__(self, channel: Any) -> None:
        name = replica_pb2.DESCRIPTOR.services_by_name["ReplicaService"].full_name
        self.Attach = channel.stream_stream(
            f"/{name}/Attach",
            request_serializer=_bytes_of,
            response_deserializer=replica_pb2.AttachResponse.FromString,
        )


def _bytes_of(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


async def _next(answers: Any) -> Any:
    """The next answer; None at the end."""
    return await anext(answers, None)


def _properties(given: StreamProperties | None) -> common_pb2.StreamProperties | None:
    if given is None:
        return None
    names = StreamProperties.__slots__
    return common_pb2.StreamProperties(**{name: getattr(given, name) for name in names})


def _options(given: Mapping[str, Any] | None) -> common_pb2.MergeOptions | None:
    if given is None:
        return None
    try:
        return common_pb2.MergeOptions(**given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"these are no options of a merge: {error}") from error
