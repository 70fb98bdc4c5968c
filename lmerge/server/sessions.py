"""Who is connected to a merge: the holder of each stream, what it has staged, and the readers.

The rules of :mod:`lmerge.v1.replica_pb2` for incarnations and epochs, without any I/O: a call of a
peer asks here, and is answered or refused at once. What must survive a crash is logged by the
host; what is here may be lost with the process: staged parts are written again by whoever wrote
them.

- A stream has at most one session. A newer one ends the older with FencedError.
- What a session has written belongs to it alone, and is dropped with it: whoever comes next writes
  it again. What tasks have staged stays while the same instance returns.
- What is staged belongs to one epoch; it is dropped when the epoch commits or is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lmerge.core.output import Feedback
from lmerge.errors import EpochOrderError, FencedError, LimitError, LMergeError, NotFoundError
from lmerge.server.host import MergeHost
from lmerge.server.state import StreamRecord

NUMBER_MAX: Final = 2**63 - 1  # of an epoch or incarnation a peer names: one more fits the wire


@dataclass(slots=True)
class Staged:
    """Some batches of an epoch: as they came, and decoded."""

    data: list[bytes] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    size: int = 0  # bytes
    rows: int = 0

    def add(self, data: bytes, batch: Any) -> None:
        """One more batch."""
        self.data.append(data)
        self.batches.append(batch)
        self.size += len(data)
        self.rows += batch.num_rows

    def extend(self, other: Staged) -> None:
        """Everything of ``other``, after what is here."""
        self.data += other.data
        self.batches += other.batches
        self.size += other.size
        self.rows += other.rows


class Session:
    """One stream's open call."""

    def __init__(self, stream: str, incarnation: int, instance: str) -> None:
        self.stream = stream
        self.incarnation = incarnation
        self.instance = instance
        self.last_epoch: int | None = None  # committed, or on its way
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.horizon: int | None = None  # feedback that was not sent yet
        self.news = asyncio.Event()

    def end(self, error: LMergeError) -> None:
        """The call is to end with this reason."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # the call may be gone already

    def check(self) -> None:
        """Raise what has ended it: of what its call says afterwards nothing counts."""
        if self.ended.done():
            self.ended.result()


@dataclass(slots=True)
class Traffic:
    """What is counted of a stream as long as the server lives."""

    feedback_sent: int = 0
    held_back: int = 0
    counters: dict[str, float] = field(default_factory=dict)


class Sessions:
    """Everyone connected to one merge."""

    def __init__(self, host: MergeHost) -> None:
        self._host = host
        self._open: dict[str, Session] = {}
        self._inline: dict[tuple[str, int], Staged] = {}
        self._parts: dict[tuple[str, int], dict[tuple[int, int], Staged]] = {}
        self.traffic: dict[str, Traffic] = {}
        self.readers: dict[str, int] = {}  # connected durable subscriptions, counted
        self.calls: set[asyncio.Future[None]] = set()  # readers' ends
        self.account: Callable[[int], None] = lambda size: None  # of staged bytes

    # -- holding a stream ---------------------------------------------------------------------

    def holder(self, stream: str) -> Session | None:
        """The open session of a stream."""
        return self._open.get(stream)

    def take_over(self, stream: str, incarnation: int, instance: str) -> Session:
        """A session for a hello; FencedError when a newer incarnation holds the stream."""
        record = self._host.state.streams.get(stream)
        held = self._open.get(stream)
        current, holder = _newest(record, held)
        if incarnation == 0:
            incarnation = current + 1
        elif incarnation < current or (incarnation == current and holder not in ("", instance)):
            raise FencedError(
                f"stream {stream!r} is held by incarnation {current}: {incarnation} is fenced off"
            )
        if held is not None:
            held.end(FencedError(f"stream {stream!r} was taken over by incarnation {incarnation}"))
        self._drop_written(stream)
        if holder != instance:
            self.drop_staged(stream)
        session = Session(stream, incarnation, instance)
        self._open[stream] = session
        self.traffic.setdefault(stream, Traffic())
        return session

    def release(self, session: Session) -> None:
        """A session's call is over. What it wrote without committing is written again."""
        if self._open.get(session.stream) is session:
            del self._open[session.stream]
            self._drop_written(session.stream)

    def _drop_written(self, stream: str) -> None:
        for key in [key for key in self._inline if key[0] == stream]:
            self.account(-self._inline.pop(key).size)

    def feed_back(self, feedback: Feedback) -> None:
        """The output has left a stream behind."""
        session = self._open.get(feedback.stream)
        if session is not None:
            session.horizon = feedback.before
            session.news.set()

    def end_all(self, error: LMergeError) -> None:
        """Ends every call with a reason."""
        for session in list(self._open.values()):
            session.end(error)
        for call in list(self.calls):
            if not call.done():
                call.set_exception(error)
                call.exception()

    # -- staging ------------------------------------------------------------------------------

    def write(self, session: Session, epoch: int, data: bytes, batch: Any) -> None:
        """Stages a batch of the session's own call; one of a committed epoch is dropped."""
        if session.last_epoch is not None and epoch <= session.last_epoch:
            return
        self._check_follows(session.stream, epoch, session.last_epoch)
        self._stage(self._inline.setdefault((session.stream, epoch), Staged()), data, batch)

    def begin_part(self, stream: str, incarnation: int, epoch: int) -> None:
        """A task wants to stage a share; refused unless the stream is held by its session."""
        session = self._open.get(stream)
        record = self._host.state.streams.get(stream)
        current, _ = _newest(record, session)
        if record is None and session is None:
            raise NotFoundError(f"stream {stream!r} is not attached")
        if incarnation != current:
            raise FencedError(
                f"stream {stream!r} is held by incarnation {current}: {incarnation} is fenced off"
            )
        self._check_follows(stream, epoch, self._last_epoch(stream))

    def _last_epoch(self, stream: str) -> int | None:
        session, record = self._open.get(stream), self._host.state.streams.get(stream)
        if session is not None:
            return session.last_epoch
        return None if record is None else record.last_epoch

    def new_part(self) -> Staged:
        """Where a task's batches go until it is through."""
        return Staged()

    def add_to_part(self, part: Staged, data: bytes, batch: Any) -> None:
        """One batch of a task."""
        self._stage(part, data, batch)

    def drop_part(self, part: Staged) -> None:
        """A task did not get through."""
        self.account(-part.size)

    def end_part(self, stream: str, epoch: int, key: tuple[int, int], part: Staged) -> None:
        """A task is through: its share counts when the epoch's commit names it."""
        last = self._last_epoch(stream)
        if last is not None and epoch <= last:
            self.drop_part(part)
            return
        parts = self._parts.setdefault((stream, epoch), {})
        replaced = parts.pop(key, None)
        if replaced is not None:
            self.account(-replaced.size)
        parts[key] = part

    def _stage(self, staged: Staged, data: bytes, batch: Any) -> None:
        limit = self._host.limits.epoch_bytes
        if staged.size + len(data) > limit:
            raise LimitError(f"an epoch has at most {limit} bytes here (epoch_bytes)")
        self.account(len(data))
        staged.add(data, batch)

    def staged_for(
        self, session: Session, epoch: int, keys: list[tuple[int, int]], rows: int | None
    ) -> Staged | None:
        """What a commit takes; None when the epoch is committed already.

        EpochOrderError when the epoch is not the next one, or when what it names is not there.
        """
        last = session.last_epoch
        if last is not None and epoch <= last:
            self.drop(session.stream, epoch)
            return None
        self._check_follows(session.stream, epoch, last)
        whole = Staged()
        whole.extend(self._inline.get((session.stream, epoch), Staged()))
        parts = self._parts.get((session.stream, epoch), {})
        for key in sorted(set(keys)):
            if key not in parts:
                raise EpochOrderError(
                    f"epoch {epoch} of stream {session.stream!r}: partition {key[0]}, attempt"
                    f" {key[1]} was not staged here; write it again"
                )
            whole.extend(parts[key])
        if rows is not None and rows != whole.rows:
            raise EpochOrderError(
                f"epoch {epoch} of stream {session.stream!r} has {whole.rows} rows here, and its"
                f" commit says {rows}"
            )
        if whole.size > self._host.limits.epoch_bytes:
            limit = self._host.limits.epoch_bytes
            raise LimitError(f"an epoch has at most {limit} bytes here (epoch_bytes)")
        self.drop(session.stream, epoch)
        session.last_epoch = epoch
        return whole

    def drop(self, stream: str, epoch: int) -> None:
        """Forgets what is staged for an epoch."""
        inline = self._inline.pop((stream, epoch), None)
        gone = [] if inline is None else [inline]
        gone += self._parts.pop((stream, epoch), {}).values()
        for staged in gone:
            self.account(-staged.size)

    def drop_staged(self, stream: str) -> None:
        """Forgets what is staged for a stream."""
        for key in [key for key in {**self._inline, **self._parts} if key[0] == stream]:
            self.drop(*key)

    def staged_bytes(self, stream: str) -> int:
        """Bytes staged and not committed."""
        inline = sum(s.size for (name, _), s in self._inline.items() if name == stream)
        parts = [p for (name, _), p in self._parts.items() if name == stream]
        return inline + sum(staged.size for part in parts for staged in part.values())

    def _check_follows(self, stream: str, epoch: int, last: int | None) -> None:
        if epoch > NUMBER_MAX:
            raise EpochOrderError(f"epoch {epoch} of stream {stream!r}: the last is {NUMBER_MAX}")
        if last is not None and epoch > last + 1:
            raise EpochOrderError(
                f"epoch {epoch} of stream {stream!r} does not follow {last}: the next is {last + 1}"
            )


def _newest(record: StreamRecord | None, held: Session | None) -> tuple[int, str]:
    known = (0, "") if record is None else (record.incarnation, record.instance)
    return max(known, (0, "") if held is None else (held.incarnation, held.instance))
