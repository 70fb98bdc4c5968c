"""The shares of an epoch that tasks write themselves, in parallel, beside the stream's session.

A share is named by its partition and the task's attempt, which is unique in an application, so a
retried, speculative or aborted attempt leaves nothing that a commit could name by mistake. The
executors need this package installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from lmerge.client import Security, Share, stage_sync
from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING
from replicas.events import events_of

PARTS: Final = "partition INT, attempt BIGINT, rows BIGINT, late BIGINT, stable BIGINT, end BIGINT"
"""What a task says of its share, for the driver."""


@dataclass(frozen=True)
class Tasks:
    """How tasks write their shares themselves; goes to the executors."""

    server: str
    merge: str
    stream: str
    payload: bytes  # an Arrow schema: pyarrow's own does not always pickle across versions
    security: Security
    incarnation: int = 0
    epoch: int = 0
    stable: int = BEGINNING

    def of(self, epoch: int, incarnation: int, stable: int) -> Tasks:
        """The work of one epoch."""
        return replace(self, incarnation=incarnation, epoch=epoch, stable=stable)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One task's work, for ``mapInArrow``."""
        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("the tasks of a replica run in Spark")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        payload = pa.ipc.read_schema(pa.py_buffer(self.payload))
        found = {"late": 0, "stable": BEGINNING, "end": BEGINNING}

        def elements() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                events = events_of(pa.Table.from_batches([batch]), payload)
                timely = events.where(events.vs >= self.stable)
                found["late"] += len(events.vs) - len(timely.vs)
                found["stable"] = max(found["stable"], events.stable)
                found["end"] = max(found["end"], int(timely.ve.max(initial=BEGINNING)))
                yield from timely.inserts()

        share = Share(self.merge, self.stream, self.incarnation, self.epoch, partition, attempt)
        staged = stage_sync(self.server, share, payload, elements(), security=self.security)
        row = {
            "partition": partition, "attempt": attempt, "rows": staged.rows,
            **found,
        }  # fmt: skip
        kinds = [("partition", pa.int32()), *((name, pa.int64()) for name in list(row)[1:])]
        yield pa.RecordBatch.from_pylist([row], schema=pa.schema(kinds))
