"""Arrivals on their way to the log, and how what has gathered there becomes fewer steps.

While one group is written and merged the next one gathers. Small epochs that a stream has committed
meanwhile become one step of the merge: most of what a small step costs is not for its rows, so a
server that has fallen behind catches up. What is logged is the step, and so a replay takes the same
ones.

Callers may rely on this: each stream's elements and stables stay in their order, and are judged as
if they had come one after another; of the stables that have become inner ones only the last is
output, as :meth:`Merge.apply` says. Streams may change places with each other, as they may on
their way here; but nobody changes places with an arrival that is no epoch. An epoch is made one
with others only where nothing it says can have the step refused.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa

from lmerge.elements import Op
from lmerge.server.state import Step
from lmerge.v1 import log_pb2
from lmerge.wire import rows
from lmerge.wire.envelopes import epoch_parts

GATHERED_BYTES: Final = 256 << 10
"""What one step is made of at most; larger epochs gain nothing by it."""

_TIMES: Final = 4  # op, vs, ve, vold: the columns before the payload's


@dataclass(slots=True)
class Waiting:
    """An arrival, and those who wait for its step. An epoch's batches come beside it."""

    arrival: log_pb2.Arrival
    batches: list[pa.RecordBatch] | None
    data: list[bytes]
    done: list[asyncio.Future[Step]]
    since: list[float] = field(default_factory=lambda: [time.perf_counter()])
    size: int = 0

    def record(self) -> list[bytes]:
        """What is logged, in parts."""
        if self.data:
            return epoch_parts(self.arrival.epoch, self.data)
        return [self.arrival.SerializeToString()]


def gathered(group: list[Waiting]) -> list[Waiting]:
    """The same arrivals, in as few steps as may be."""
    if len(group) < 2:
        return group
    found: list[Waiting] = []
    last: dict[str, Waiting] = {}  # the last epoch of each stream since anything else
    for each in group:
        if not each.arrival.HasField("epoch"):
            last.clear()
            found.append(each)
            continue
        stream = each.arrival.epoch.stream
        before = last.get(stream)
        if before is not None and _fit(before, each):
            _join(before, each)
        else:
            last[stream] = each
            found.append(each)
    return found


def _fit(one: Waiting, more: Waiting) -> bool:
    first, second = one.arrival.epoch, more.arrival.epoch
    if one.size + more.size > GATHERED_BYTES:
        return False
    if not second.HasField("follows") or second.follows != first.epoch:
        return False
    both = first.HasField("stable") and second.HasField("stable")
    if both and second.stable < first.stable:
        return False
    return _is_plain(one) and _is_plain(more)


def _is_plain(waiting: Waiting) -> bool:
    """Whether nothing that an epoch says can be refused."""
    epoch = waiting.arrival.epoch
    if waiting.batches is None or epoch.batches or epoch.HasField("skipped_before"):
        return False
    return not any(batch.column(i).null_count for batch in waiting.batches for i in range(_TIMES))


def _join(one: Waiting, more: Waiting) -> None:
    """Puts ``more`` behind ``one``."""
    assert one.batches is not None  # noqa: S101  they fit
    assert more.batches is not None  # noqa: S101  they fit
    epoch, second = one.arrival.epoch, more.arrival.epoch
    if epoch.HasField("stable") and more.batches:
        # As an element among them: what comes behind it must keep its promise.
        inner = _stable(epoch.stable, next(chain(one.batches, more.batches)))
        one.batches.append(inner)
        one.data.append(rows.batch_bytes(inner).to_pybytes())
        epoch.ClearField("stable")
    epoch.epoch = second.epoch
    if second.HasField("stable"):
        epoch.stable = second.stable
    one.batches += more.batches
    one.data += more.data
    one.done += more.done
    one.since += more.since
    one.size += more.size


def _stable(vc: int, like: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of one stable, whose payload means nothing, with the columns of another batch."""
    times = [pa.array([Op.STABLE], pa.int8()), *(pa.array([at], pa.int64()) for at in (vc, 0, 0))]
    payload = [column.slice(0, 1) for column in like.columns[_TIMES:]]
    return pa.RecordBatch.from_arrays([*times, *payload], schema=like.schema)
