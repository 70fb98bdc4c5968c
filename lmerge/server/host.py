"""One merge at work: arrivals are logged, then applied, then seen. In this order, always.

Callers may rely on this:
- :meth:`MergeHost.submit` returns when the arrival is as durable as the setting says, applied, and
  its output readable; arrivals are applied in the order of the calls.
- What could not be logged was not applied: a full disk is an error to those who wrote, and to
  nobody else.
- After a crash at any instant :meth:`MergeHost.open` gives the same output at the same positions.

Two tasks make a pipeline: one logs what has come (whatever gathered while the last write was under
way goes with one fsync), the other applies what is logged. A snapshot bounds the replay: it is
taken when the log has grown by ``snapshot_bytes``, or four times the last snapshot if that is
more, so that snapshots cost a fixed share of the work and recovery follows what lives.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from lmerge.core.output import Feedback
from lmerge.errors import (
    ConfigurationError,
    InputError,
    JournalDamagedError,
    JournalError,
    LimitError,
    LMergeError,
    MergeFaultError,
    NotFoundError,
    UnavailableError,
)
from lmerge.server import snapshots
from lmerge.server.config import Durability, Limits
from lmerge.server.grouping import Waiting, gathered
from lmerge.server.journal import RECORD_BYTES_MAX, Journal
from lmerge.server.output import OutputLog
from lmerge.server.state import MergeState, Step
from lmerge.v1 import log_pb2

log = logging.getLogger("lmerge.server")

_LOGGED_AHEAD: Final = 1  # groups that are logged and not applied yet: more would gather less
_EPOCH_BYTES_MAX: Final = RECORD_BYTES_MAX - (1 << 20)  # less what comes around its batches
_GROWTH: Final = 4  # a snapshot is due when the log has grown by this many snapshots
_HARD: Final = 4  # unread by a durable subscription, output is kept up to so many retentions


class MergeHost:
    """A merge, its logs, and the tasks between them."""

    def __init__(
        self,
        name: str,
        state: MergeState,
        arrivals: Journal | None,
        output: OutputLog,
        store: snapshots.Store | None,
        durability: Durability,
        limits: Limits,
    ) -> None:
        self.name = name
        self.state = state
        self.output = output
        self.durability = durability
        self.limits = limits
        self.on_feedback: Callable[[Feedback], None] = lambda _: None
        self.on_commit: Callable[[float], None] = lambda _: None
        self.fault = ""  # why nothing is taken any more
        self._journal = arrivals
        self._store = store
        self._waiting: list[Waiting] = []
        self._unfinished: set[asyncio.Future[Step]] = set()
        self._wake = asyncio.Event()
        self._logged: asyncio.Queue[list[Waiting]] = asyncio.Queue(_LOGGED_AHEAD)
        self._snapshot_due = asyncio.Lock()
        self._grown = 0  # bytes logged since the last snapshot
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    # -- beginning and ending -----------------------------------------------------------------

    @staticmethod
    def begin(
        name: str,
        begin: log_pb2.Begin,
        directory: Path | None,
        durability: Durability,
        limits: Limits,
    ) -> MergeHost:
        """A new merge. ``directory`` is where its logs will be; None: it has none."""
        state = MergeState(begin)
        if directory is None:
            output = OutputLog(None, limits.memory_bytes)
            return MergeHost(name, state, None, output, None, durability, limits)
        arrivals = Journal.open(directory / "arrivals", segment_bytes=limits.segment_bytes)
        try:
            arrivals.append(log_pb2.Arrival(begin=begin).SerializeToString())
            arrivals.write(arrivals.take_pending(), sync=durability == "fsync")
            spool = Journal.open(directory / "output", segment_bytes=limits.segment_bytes)
        except BaseException:
            arrivals.close()
            raise
        output = OutputLog(spool, limits.memory_bytes)
        store = snapshots.Store(directory / "snapshots")
        return MergeHost(name, state, arrivals, output, store, durability, limits)

    @staticmethod
    def open(name: str, directory: Path, durability: Durability, limits: Limits) -> MergeHost:
        """The merge that ``directory`` has, as it was; blocks until it is replayed."""
        store = snapshots.Store(directory / "snapshots")
        state = store.newest()
        start = 0 if state is None else state.arrivals
        arrivals = Journal.open(
            directory / "arrivals", segment_bytes=limits.segment_bytes, check_from=start
        )
        try:
            if state is not None and start > arrivals.written:
                # The power failed before the disk had all of a log that was only flushed, and
                # after it had the snapshot, which says more.
                arrivals.close()
                shutil.rmtree(directory / "arrivals")
                arrivals = Journal.open(
                    directory / "arrivals", first=start, segment_bytes=limits.segment_bytes
                )
            if start < arrivals.first or (state is None and not arrivals.written):
                raise JournalDamagedError(
                    str(directory / "arrivals"),
                    0,
                    f"the log begins with arrival {arrivals.first}, and there is no sound snapshot"
                    " of what came before",
                )
            spool = Journal.open(
                directory / "output",
                segment_bytes=limits.segment_bytes,
                check_from=0 if state is None else state.sequence,
            )
        except BaseException:
            arrivals.close()
            raise
        try:
            spool.cut(0 if state is None else state.sequence)
            replayed = start
            for number, record in arrivals.records(start):
                arrival = log_pb2.Arrival.FromString(bytes(record))
                replayed = number + 1
                if state is None:
                    state = MergeState(arrival.begin)
                    continue
                _replay(state, arrival, spool)
            spool.write(spool.take_pending(), sync=False)
        except BaseException:
            arrivals.close()
            spool.close()
            raise
        assert state is not None  # noqa: S101  there is a first record, or a snapshot
        if spool.next != state.sequence:
            arrivals.close()
            spool.close()
            raise JournalDamagedError(
                str(directory / "output"),
                0,
                f"it has {spool.next} entries, and the arrivals give {state.sequence}: the files"
                " are not of one merge",
            )
        output = OutputLog(spool, limits.memory_bytes, next_entry=state.sequence)
        log.info(
            "merge %s: %d arrivals replayed, output at %d", name, replayed - start, state.sequence
        )
        host = MergeHost(name, state, arrivals, output, store, durability, limits)
        host._grown = arrivals.bytes
        return host

    def abandon(self) -> None:
        """Lets go of the files of a merge that was never started."""
        if self._journal is not None:
            self._journal.close()
        self.output.abandon()

    def start(self) -> None:
        """Begins to take arrivals."""
        self._tasks = [
            asyncio.create_task(self._write_all()),
            asyncio.create_task(self._apply_all()),
        ]

    async def close(self, *, snapshot: bool = True) -> None:
        """Finishes what was submitted, and lets go of the files."""
        self._closing = True
        if self._unfinished and not self.fault:
            await asyncio.wait(self._unfinished)
        if snapshot and not self.fault:
            try:
                await self.snapshot()
            except LMergeError as error:
                log.warning("merge %s: no snapshot at the end: %s", self.name, error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.output.close()
        finally:
            if self._journal is not None:
                self._journal.close()

    # -- arrivals -----------------------------------------------------------------------------

    async def submit(
        self, arrival: log_pb2.Arrival, batches: list[pa.RecordBatch] | None = None
    ) -> Step:
        """Log, apply and show one arrival."""
        return await self.enqueue(arrival, batches)

    def enqueue(
        self,
        arrival: log_pb2.Arrival,
        batches: list[pa.RecordBatch] | None = None,
        data: Sequence[bytes] = (),
    ) -> asyncio.Future[Step]:
        """Takes an arrival into the order of the log now; its step comes later.

        An epoch's batches come beside it: decoded, and as bytes for the log.
        """
        if self.fault:
            raise MergeFaultError(f"merge {self.name!r} has stopped: {self.fault}")
        if self._closing:
            raise UnavailableError(f"merge {self.name!r} is stopping")
        size = sum(map(len, data))
        if size > _EPOCH_BYTES_MAX:
            raise LimitError(f"an epoch of {size} bytes: the log takes {_EPOCH_BYTES_MAX}")
        done: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._unfinished.add(done)
        done.add_done_callback(self._unfinished.discard)
        beside = None if batches is None else list(batches)
        self._waiting.append(Waiting(arrival, beside, list(data), [done], size=size))
        self._wake.set()
        return done

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            group, self._waiting = gathered(self._waiting), []
            if self._journal is None:
                await self._apply_group(group)
            elif await self._log(self._journal, group):
                await self._logged.put(group)

    async def _log(self, journal: Journal, group: list[Waiting]) -> bool:
        """Writes a group to the log; if that fails, whoever waits is told so."""
        for each in group:
            journal.append(*each.record())
        pending, size = journal.take_pending(), journal.bytes
        try:
            await asyncio.to_thread(journal.write, pending, sync=self.durability == "fsync")
        except JournalError as error:
            # What has come meanwhile follows what failed.
            group += self._waiting
            self._waiting = []
            log.error("merge %s: arrivals are refused: %s", self.name, error)
            for each in group:
                _fail(each, error)
            return False
        self._grown += max(0, journal.bytes - size)
        return True

    async def _apply_all(self) -> None:
        while True:
            await self._apply_group(await self._logged.get())
            if self._grown > self._snapshot_after() and not self._snapshot_due.locked():
                task = asyncio.create_task(self._snapshot_quietly())
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _apply_group(self, group: list[Waiting]) -> None:
        for each in group:
            try:
                self._apply(each)
            except Exception as error:
                # Ours is the fault: what has been logged cannot be applied. Nothing more is
                # taken, so that nothing is made of a state that may be wrong.
                self.fault = f"{type(error).__name__}: {error}"
                log.exception("merge %s has stopped", self.name)
                _fail(each, MergeFaultError(f"merge {self.name!r} has stopped"))
                raise
            await asyncio.sleep(0)

    def _apply(self, waiting: Waiting) -> None:
        try:
            step = self.state.apply(waiting.arrival, waiting.batches)
        except LMergeError as error:
            if not _refusal(error):
                raise
            _fail(waiting, error)
            return
        for notice in step.notices:
            log.warning("merge %s: %s", self.name, notice)
        if step.entries:
            self.output.append(step.entries)
        for feedback in step.feedback:
            self.on_feedback(feedback)
        for done in waiting.done:
            if not done.done():
                done.set_result(step)
        if waiting.arrival.HasField("epoch"):
            now = time.perf_counter()
            for since in waiting.since:
                self.on_commit(now - since)

    # -- snapshots ----------------------------------------------------------------------------

    def _snapshot_after(self) -> int:
        last = 0 if self._store is None else self._store.newest_bytes
        return max(self.limits.snapshot_bytes, _GROWTH * last)

    async def _snapshot_quietly(self) -> None:
        try:
            await self.snapshot()
        except LMergeError as error:
            log.warning("merge %s: no snapshot: %s", self.name, error)

    async def snapshot(self) -> tuple[int, int]:
        """Writes a snapshot, retires what it makes needless; the arrival it is at, its bytes."""
        async with self._snapshot_due:
            if self._store is None:
                return self.state.arrivals, 0
            self._grown = 0
            data = self.state.snapshot()
            arrivals, sequence = self.state.arrivals, self.state.sequence
            await self.output.sync()
            await asyncio.to_thread(self._store.write, arrivals, sequence, data)
            await self._retire()
            return arrivals, len(data)

    async def _retire(self) -> None:
        """Lets go of output beyond the retention, and of what no snapshot needs any more.

        The output kept begins at a snapshot: there a reader of final results can begin.
        """
        store, limits = self._store, self.limits
        assert store is not None  # noqa: S101  the caller has looked
        kept = store.kept()
        size, before = self.output.nbytes, self.output.first
        if limits.retention_bytes and size > limits.retention_bytes:
            entries = self.output.next - self.output.first
            surplus = size - limits.retention_bytes
            wanted = self.output.first + entries * surplus // size
            unread = min(self.state.subscriptions.values(), default=wanted)
            if size < _HARD * limits.retention_bytes:
                wanted = min(wanted, unread)
            below = [sequence for _, sequence in kept if sequence <= wanted]
            before = max(below, default=before)
        if limits.retention_seconds:
            before = max(before, store.sequence_older_than(limits.retention_seconds, before))
        self.output.retire(before)
        await asyncio.to_thread(store.thin_out, self.output.first)
        if self._journal is not None:
            # From the newest but one, should the newest turn out damaged.
            arrival, _ = store.kept()[-2:][0]
            await asyncio.to_thread(self._journal.retire, arrival)

    def base_of(self, sequence: int) -> MergeState | None:
        """The newest snapshot at or before an entry; None: the beginning. Blocks."""
        return None if self._store is None else self._store.at_or_before(sequence)

    # -- what can be asked --------------------------------------------------------------------

    @property
    def arrivals_bytes(self) -> int:
        """Bytes of the log of arrivals."""
        return 0 if self._journal is None else self._journal.bytes

    @property
    def snapshot_at(self) -> tuple[int, int]:
        """The arrival that the newest snapshot is at, and its bytes."""
        if self._store is None or not self._store.kept():
            return 0, 0
        return self._store.kept()[-1][0], self._store.newest_bytes


def _replay(state: MergeState, arrival: log_pb2.Arrival, spool: Journal) -> None:
    try:
        step = state.apply(arrival)
    except LMergeError as error:
        if not _refusal(error):
            raise
        return  # it was refused then, too
    for entry in step.entries:
        spool.append(entry)
    if spool.pending_bytes > 4 << 20:
        spool.write(spool.take_pending(), sync=False)


def _refusal(error: LMergeError) -> bool:
    """Whether an arrival was at fault, rather than we."""
    return isinstance(error, ConfigurationError | NotFoundError | InputError)


def _fail(waiting: Waiting, error: LMergeError) -> None:
    for done in waiting.done:
        if not done.done():
            done.set_exception(error)
            done.exception()  # whoever waits gets it; nobody may be waiting any more
