"""How a stream begins from a checkpoint, at a merge that has not heard of it.

That is the case of a copy of another replica's checkpoint, of a replica whose stream was detached
while it was away, and of a merge that was begun anew. The query goes on behind the last batch that
it committed, and says nothing of what it said before. So the stream

- tells what is live, when it has that in its memory (update and complete mode): then it vouches
  for whatever ends from its stable point on;
- vouches otherwise (append mode) only for what ends later than everything that it ever said.

What may have been left out by feedback it does not vouch for either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lmerge.client import SyncWriter
from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, INFINITY
from replicas.epochs import Memory
from replicas.revisions import Revisions
from replicas.storage import Storage


@dataclass(frozen=True)
class Beginning:
    """What a merge must be told first."""

    epoch: int  # the last one that the query has committed
    since: int | None  # right for whatever ends from here on; None: nobody can say
    stable: int
    live: tuple[pa.RecordBatch, ...] = ()

    def from_time(self, said: int | None) -> int | None:
        """For the hello, which the server follows only if the stream is new to it."""
        known = [each for each in (said, self.since) if each is not None]
        return max(known, default=None)

    def tell(self, writer: SyncWriter, from_time: int | None) -> None:
        """The server has taken the stream, and has no epoch of it."""
        if from_time is None:
            reason = (
                "a checkpoint whose results never end, or were not counted, cannot begin another"
                " stream: nobody can say from when on it would be complete"
            )
            writer.detach(reason)
            raise ConfigurationError(f"{reason}; start with a new checkpoint")
        for batch in self.live:
            writer.write(batch, epoch=self.epoch)
        writer.commit(self.epoch, self.stable if self.stable > BEGINNING else None)


def committed(storage: Storage) -> int | None:
    """The last batch that Spark has done with; None when there is none."""
    return max((int(n) for n in storage.names("commits") if n.isdecimal()), default=None)


def beginning(
    epoch: int, watermark: int | None, memory: Memory, revisions: Revisions | None
) -> Beginning:
    """Behind ``epoch``, which was run with ``watermark``, in the stream's own times."""
    before = memory.before(epoch + 1)  # takes the revisions there
    stable = max(before.stable, BEGINNING if watermark is None else watermark)
    least = max(stable, before.skipped_before)
    if revisions is None:
        end = memory.end()
        since = None if end is None or end == INFINITY else max(end + 1, least)
        return Beginning(epoch, since, stable)
    if not memory.is_kept():
        return Beginning(epoch, None, stable)
    live = []
    for batch in revisions.everything():
        ends = batch["ve"].to_numpy()
        needed = batch.filter(pa.array(np.asarray(ends >= least)))
        live += [needed] if needed.num_rows else []
    return Beginning(epoch, least, stable, tuple(live))
