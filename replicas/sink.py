"""The sink of a replica: each micro-batch of a query becomes one epoch of its stream.

Callers may rely on this:
- An epoch counts when its batch has succeeded, once: what failed, aborted or speculative attempts
  wrote is never named by a commit, and an epoch that the server already has is not written again.
- Its stable is the watermark that the batch was run with (or what the user promised), never more.
- An element below the stream's own stable point is late, as Spark's late rows are: it is left out
  and counted.
- With feedback, what ends before the horizon may have been computed from partly skipped input: it
  does not leave the replica.

The order in an epoch: run the batch, remember (:mod:`replicas.epochs`), commit to the server,
return to Spark. A crash in between repeats the batch under the same number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from lmerge.client import Acknowledgement, SyncWriter
from lmerge.errors import DetachedError, LMergeError
from lmerge.times import BEGINNING
from replicas.epochs import Memory, Progress
from replicas.events import Events, events_of
from replicas.lifetimes import VE, Lifetimes
from replicas.revisions import Revisions
from replicas.storage import Storage
from replicas.tasks import PARTS, Tasks


class Watermarks:
    """The watermark of each batch, from the query's own offset log.

    ``behind_us`` is how far before it a later result can still start (see the plan's analysis).
    """

    def __init__(self, checkpoint: Storage, behind_us: int = 0) -> None:
        self._checkpoint = checkpoint
        self._behind_us = behind_us

    def of(self, epoch: int) -> int | None:
        """In microseconds; None when the query has none yet."""
        content = self._checkpoint.read(f"offsets/{epoch}")
        if content is None:
            return None
        metadata = content.decode().splitlines()[1]
        millis = int(json.loads(metadata).get("batchWatermarkMs", 0))
        return millis * 1000 - self._behind_us if millis > 0 else None


@dataclass
class Counters:
    """What the replica says of itself to the server."""

    rows: int = 0
    late: int = 0
    withheld: int = 0  # ended before the horizon
    state_rows: int = 0
    more: Callable[[], dict[str, float]] = field(default=dict)

    def values(self) -> dict[str, float]:
        """For a commit."""
        own = {name: float(getattr(self, name)) for name in ("rows", "late", "withheld")}
        return {**own, "state_rows": float(self.state_rows), **self.more()}


class DrainedError(LMergeError):
    """The replica is being stopped."""


class Sink:
    """``run`` is what ``foreachBatch`` calls."""

    def __init__(
        self,
        writer: SyncWriter,
        lifetimes: Lifetimes,
        payload: pa.Schema,
        memory: Memory,
        revisions: Revisions | None,
        watermarks: Watermarks | None,
        *,
        promise: str | None,
        horizon: Callable[[], int] | None,
        in_order: bool,
        tasks: Callable[[], Tasks | None],
        from_time: int | None = None,
    ) -> None:
        self._writer = writer
        self._lifetimes = lifetimes
        self._payload = payload
        self._memory = memory
        self._revisions = revisions
        self._watermarks = watermarks
        self._promise = promise
        self._horizon = horizon
        self._in_order = in_order
        self._tasks = tasks
        self._from_time = from_time
        self._remembers = revisions is not None or promise is not None or horizon is not None
        self.counters = Counters()
        self.failure: Exception | None = None
        self.epoch: int | None = None  # the last one committed
        self._at_work = threading.Lock()
        self._draining = False

    def selected(self, df: DataFrame) -> DataFrame:
        """The query whose micro-batches ``run`` takes: rows with their lifetimes.

        It is planned with the query. In every batch anew it would cost as much as a small batch.
        """
        found = self._lifetimes.select(df, self._promise)
        if self._from_time is None:
            return found
        return found.where(f"{VE} >= {self._from_time}")  # less is promised to nobody

    def run(self, rows: DataFrame, epoch: int) -> None:
        """One micro-batch of :meth:`selected`."""
        with self._at_work:
            if self._draining:
                raise DrainedError(f"batch {epoch} is left for the next start")
            try:
                self._run(rows, epoch)
            except Exception as error:
                self.failure = error  # Spark wraps it in a trace of its own
                raise

    def drain(self, seconds: float) -> None:
        """Take no further batch; returns when the one at hand is committed, or time is up."""
        self._draining = True
        if self._at_work.acquire(timeout=seconds):
            self._at_work.release()

    def _run(self, rows: DataFrame, epoch: int) -> None:
        before = self._before(epoch)
        tasks = self._tasks()
        if tasks is not None:
            self._in_tasks(tasks, rows, epoch, before)
        else:
            self._in_driver(rows, epoch, before)
        self.epoch = epoch

    def _before(self, epoch: int) -> Progress:
        if self._remembers:
            return self._memory.before(epoch)
        stable = self._watermarks.of(epoch - 1) if self._watermarks is not None else None
        return Progress(BEGINNING if stable is None else stable)

    def _stable(self, epoch: int, before: Progress, promised: int) -> int:
        own = self._watermarks.of(epoch) if self._watermarks is not None else None
        return max(before.stable, promised, BEGINNING if own is None else own)

    # -- from the driver ------------------------------------------------------------------------

    def _in_driver(self, rows: DataFrame, epoch: int, before: Progress) -> None:
        events = events_of(rows.toArrow(), self._payload)
        # After the batch: whatever its tasks skipped, they skipped by a horizon up to this one.
        skipped = before.skipped_before
        if self._horizon is not None:
            skipped = max(skipped, self._horizon())
        needed = events.where(events.ve >= skipped)
        self.counters.withheld += len(events.vs) - len(needed.vs)
        progress = Progress(self._stable(epoch, before, events.stable), skipped)
        batches, late = self._elements(needed, before)
        self.counters.late += late
        if self._revisions is None and len(needed.ve):
            self._memory.said(int(needed.ve.max()))
        if self._revisions is not None:
            self._revisions.forget(max(progress.stable, skipped))
            self.counters.state_rows = self._revisions.live.num_rows
        if self._remembers:
            self._memory.after(epoch, progress, needed.payload, needed.vs, needed.ve)
        for batch in batches:
            self.counters.rows += batch.num_rows
            self._writer.write(batch, epoch=epoch)
        self._commit(epoch, before, progress)

    def _elements(self, events: Events, before: Progress) -> tuple[list[pa.RecordBatch], int]:
        if self._revisions is not None:
            return self._revisions.apply(events.payload, events.vs, events.ve, before.stable)
        timely = events.where(events.vs >= before.stable)
        ordered = timely.by_start() if self._in_order else timely
        return list(ordered.inserts()), len(events.vs) - len(timely.vs)

    # -- from the tasks -------------------------------------------------------------------------

    def _in_tasks(self, tasks: Tasks, rows: DataFrame, epoch: int, before: Progress) -> None:
        work = tasks.of(epoch, self._writer.writer.incarnation, before.stable)
        # Spark gives the result of one successful attempt of each task: those parts count.
        found = rows.mapInArrow(work.stage, PARTS).collect()
        promised = max((row.stable for row in found), default=BEGINNING)
        progress = Progress(self._stable(epoch, before, promised), before.skipped_before)
        if self._remembers:
            self._memory.after(epoch, progress, pa.table({}), *_NO_TIMES)
        if any(row.rows for row in found):
            self._memory.said(max(row.end for row in found))
        self.counters.rows += sum(row.rows for row in found)
        self.counters.late += sum(row.late for row in found)
        parts = [(row.partition, row.attempt) for row in found]
        self._commit(epoch, before, progress, parts, sum(row.rows for row in found))

    # -- the end of an epoch --------------------------------------------------------------------

    def _commit(
        self,
        epoch: int,
        before: Progress,
        progress: Progress,
        parts: list[tuple[int, int]] | None = None,
        rows: int | None = None,
    ) -> None:
        said: Acknowledgement = self._writer.commit(
            epoch,
            progress.stable if progress.stable > before.stable else None,
            progress.skipped_before if progress.skipped_before > BEGINNING else None,
            self.counters.values(),
            parts=parts or (),
            part_rows=rows,
        )
        if said.state == "quarantined":
            raise DetachedError(
                f"stream {self._writer.writer.stream!r} is quarantined: {said.reason}"
            )


_NO_TIMES: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))
