"""R1: inserts by start, equal starts in the same order everywhere. The state is counters.

An element is output when it is the next one at the largest start. The pseudo-code compares with
the largest counter of all streams; ours counts what was *output* at that start, so that a
stream that detaches takes nothing with it and nobody's elements are output twice.
Cost: O(rows that are not behind) + O(log rows) a batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.algorithms.base import Effects, View
from lmerge.core.algorithms.r0 import first_from, merge_waiting, output_of
from lmerge.core.algorithms.waiting import Waiting, inserts_of
from lmerge.core.batch import Batch, no_elements
from lmerge.core.compiled import Int, Int64s, compiled
from lmerge.elements import Op
from lmerge.times import BEGINNING

_MAX_VS, _OUTPUT = 0, 1
_ROOM_KEPT: Final = 2**16
_NO_ROOM: Final = np.empty(0, dtype=np.int64)


@compiled
def _data(
    vs: Int64s, slot: Int, m: Int, state: Int64s, own_vs: Int64s, own: Int64s, chosen: Int64s
) -> Int:
    count = 0
    for i in range(first_from(vs, max(m, state[_MAX_VS])), vs.size):  # line 4
        start = vs[i]
        if start > state[_MAX_VS]:  # lines 5 to 7; own counters are reset when next used
            state[_MAX_VS] = start
            state[_OUTPUT] = 0
        if own_vs[slot] != start:
            own_vs[slot] = start
            own[slot] = 0
        if own[slot] == state[_OUTPUT]:  # line 8
            chosen[count] = i
            count += 1
            state[_OUTPUT] += 1
        own[slot] += 1  # line 10
    return count


class R1:
    """The algorithm."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.nothing = no_elements(schema)
        self.state = np.array([BEGINNING, 0], dtype=np.int64)
        self.own_vs = np.full(2, BEGINNING, dtype=np.int64)
        self.own = np.zeros(2, dtype=np.int64)
        self.waiting = Waiting()
        self.room = _NO_ROOM  # for rows; new room for each batch would cost as much as its use

    @property
    def progress(self) -> int:
        """MaxVs."""
        return int(self.state[_MAX_VS])

    def attach(self, slot: int) -> None:
        """A counter for the stream."""
        if slot >= self.own.size:
            self.own_vs = np.append(self.own_vs, np.full(slot + 1, BEGINNING))
            self.own = np.append(self.own, np.zeros(slot + 1, dtype=np.int64))
        self.own_vs[slot], self.own[slot] = BEGINNING, 0

    def detach(self, slot: int) -> None:
        """Forget the counter, and what waits."""
        self.attach(slot)
        self.waiting.take(slot)

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Elements that are not behind."""
        behind = batch.vs < max(self.progress, decided)
        return np.asarray(~behind | (batch.op == Op.STABLE))

    def data(self, batch: Batch, view: View) -> Effects:
        """O(rows that are not behind)."""
        rows = len(batch)
        batch = inserts_of(batch)
        if not view.joined[view.slot]:
            self.waiting.put(view.slot, batch, self.progress)
            return Effects(self.nothing, rows)
        if len(batch) > self.room.size:
            self.room = np.empty(len(batch), np.int64)
        chosen = self.room
        if len(batch) > _ROOM_KEPT:
            self.room = _NO_ROOM
        count = _data(batch.vs, view.slot, view.decided, self.state, self.own_vs, self.own, chosen)
        chosen = chosen[:count]
        dropped = len(batch) - len(chosen)
        if not len(chosen):
            return Effects(self.nothing, rows, dropped=dropped)
        output, span = output_of(batch, chosen)
        return Effects(output, rows, span, dropped=dropped)

    def contribute(self, view: View) -> Effects:
        """Merge what waits."""
        return merge_waiting(self, self.waiting, view, BEGINNING)

    def stable(self, t: int, view: View) -> Effects:
        """Nothing depends on a stable."""
        return Effects(self.nothing, 0)

    def bridge(self, t: int, view: View) -> Effects:
        """Merge what waits, but for what ended inside the gap: that was not promised."""
        return merge_waiting(self, self.waiting, view, t)

    @property
    def live(self) -> int:
        """Only what waits."""
        return self.waiting.rows

    @property
    def index_bytes(self) -> int:
        """The counters."""
        return self.own.nbytes + self.own_vs.nbytes + self.state.nbytes

    @property
    def payload_bytes(self) -> int:
        """Only what waits."""
        return self.waiting.nbytes

    def check(self, decided: int, final: bool) -> None:
        """There is nothing to be wrong."""

    def save(self) -> dict[str, Any]:
        """The counters, and what waits."""
        return {
            "state": self.state, "own_vs": self.own_vs, "own": self.own, **self.waiting.save()
        }  # fmt: skip

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        self.state, self.own_vs, self.own = (saved[k].copy() for k in ("state", "own_vs", "own"))
        self.waiting.load(saved)
