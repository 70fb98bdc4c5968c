"""R2: inserts by start, equal starts in any order, ``(vs, payload)`` a key.

The state is a hash table of the payloads at the largest start, and who delivered each: a stream
that delivers one twice has broken its promise. Only payloads that can meet another at their start
are told apart by fingerprints: those at the largest start so far or at the batch's last, and those
with neighbours of the same start (and imprint, where there are imprints). Cost: O(1) an element;
memory follows the largest group of equal starts.
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
from lmerge.core.identity import Identity
from lmerge.core.promises import Broken
from lmerge.elements import Op
from lmerge.times import BEGINNING

_SECOND: Final = int(Broken.SECOND_EVENT)
# The places of the state, and the columns of the table.
_MAX_VS, _GENERATION, _COUNT = 0, 1, 2
_STAMP, _H1, _H2 = 0, 1, 2
_FEW: Final = 8  # rows of one start that are compared one by one
_ROOM_KEPT: Final = 2**16
_NO_ROOM: Final = np.empty((2, 0), dtype=np.int64)
_NO_HASHES: Final = np.zeros(0, dtype=np.int64)


@compiled
def _place(table: Int64s, h1: Int, h2: Int, generation: Int) -> Int:
    mask = np.int64(table.shape[0] - 1)
    place = h1 & mask  # keyed, so as good as random
    while table[place, _STAMP] == generation:
        if table[place, _H1] == h1 and table[place, _H2] == h2:
            break
        place = (place + 1) & mask
    return place


@compiled
def _unlike(vs: Int64s, h1: Int64s, h2: Int64s, i: Int, step: Int) -> bool:
    """Whether the rows of the same start on one side are few and have other imprints."""
    j = i + step
    for _ in range(_FEW):
        if j < 0 or j >= vs.size or vs[j] != vs[i]:
            return True
        if h1[j] == h1[i] and h2[j] == h2[i]:
            return False
        j += step
    return False


@compiled
def _meeting(vs: Int64s, h1: Int64s, h2: Int64s, m: Int, state: Int64s, rows: Int64s) -> Int:
    """Writes the rows whose payloads have to be told from others at the same start."""
    count = 0
    known = h1.size > 0
    for i in range(first_from(vs, max(m, state[_MAX_VS])), vs.size):
        start = vs[i]
        if start not in (state[_MAX_VS], vs[vs.size - 1]):  # so there is a next row
            if vs[i + 1] != start and (i == 0 or vs[i - 1] != start):
                continue
            # Equal payloads have equal imprints: where those differ nothing else is needed.
            if known and _unlike(vs, h1, h2, i, -1) and _unlike(vs, h1, h2, i, 1):
                continue
        rows[count] = i
        count += 1
    return count


@compiled
def _data(
    vs: Int64s, meeting: Int64s, h1: Int64s, h2: Int64s, slot: Int, m: Int, state: Int64s,
    table: Int64s, by: Any, chosen: Int64s,
) -> Any:  # fmt: skip
    count = 0
    reason = 0
    i = first_from(vs, max(m, state[_MAX_VS]))  # line 4
    k = 0  # the next of the rows that meet others: ``h1`` and ``h2`` are theirs
    while i < vs.size:
        start = vs[i]
        if start > state[_MAX_VS]:  # lines 5 to 7: a new generation empties the table
            state[_MAX_VS] = start
            state[_GENERATION] += 1
            state[_COUNT] = 0
        if k == meeting.size or meeting[k] != i:  # none at its start is like it
            chosen[count] = i
            count += 1
            i += 1
            continue
        place = _place(table, h1[k], h2[k], state[_GENERATION])
        if table[place, _STAMP] != state[_GENERATION]:  # lines 8 to 10
            table[place, _STAMP] = state[_GENERATION]
            table[place, _H1] = h1[k]
            table[place, _H2] = h2[k]
            for each in range(by.shape[1]):
                by[place, each] = False
            state[_COUNT] += 1
            chosen[count] = i
            count += 1
        elif by[place, slot]:
            reason = _SECOND
            break
        by[place, slot] = True
        k += 1
        i += 1
    return i, reason, count


@compiled
def _move(table: Int64s, by: Any, generation: Int, new_table: Int64s, new_by: Any) -> None:
    for i in range(table.shape[0]):
        if table[i, _STAMP] == generation:
            place = _place(new_table, table[i, _H1], table[i, _H2], generation)
            for column in range(table.shape[1]):
                new_table[place, column] = table[i, column]
            for slot in range(by.shape[1]):
                new_by[place, slot] = by[i, slot]


class R2:
    """The algorithm."""

    def __init__(self, schema: pa.Schema, identity: Identity) -> None:
        self.schema = schema
        self.identity = identity
        self.nothing = no_elements(schema)
        self.state = np.array([BEGINNING, 1, 0], dtype=np.int64)
        self.table, self.by = _empty(64, 2)
        self.waiting = Waiting()
        self.room = _NO_ROOM  # for rows; new room for each batch would cost as much as its use

    @property
    def progress(self) -> int:
        """MaxVs."""
        return int(self.state[_MAX_VS])

    def _resize(self, size: int, slots: int) -> None:
        table, by = _empty(size, slots)
        _move(self.table, self.by, self.state[_GENERATION], table, by)
        self.table, self.by = table, by

    def attach(self, slot: int) -> None:
        """A column for who delivered what."""
        if slot >= self.by.shape[1]:
            self._resize(self.table.shape[0], slot + 1)
        self.by[:, slot] = False

    def detach(self, slot: int) -> None:
        """Forget what it delivered (it stays output), and what waits."""
        self.by[:, slot] = False
        self.waiting.take(slot)

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Elements that are not behind."""
        behind = batch.vs < max(self.progress, decided)
        return np.asarray(~behind | (batch.op == Op.STABLE))

    def data(self, batch: Batch, view: View) -> Effects:
        """O(1) an element."""
        rows = len(batch)
        everything, batch = batch, inserts_of(batch)
        if not view.joined[view.slot]:
            self.waiting.put(view.slot, batch, self.progress)
            return Effects(self.nothing, rows)
        if len(batch) > self.room.shape[1]:
            self.room = np.empty((2, len(batch)), np.int64)
        chosen, meeting = self.room
        if len(batch) > _ROOM_KEPT:
            self.room = _NO_ROOM
        found = _meeting(batch.vs, batch.h1, batch.h2, view.decided, self.state, meeting)
        meeting = meeting[:found]
        h1, h2 = self._fingerprints(batch, meeting)
        size = self.table.shape[0]
        while size < 2 * (int(self.state[_COUNT]) + len(meeting)):
            size *= 2
        if size > self.table.shape[0]:
            self._resize(size, self.by.shape[1])
        done, reason, count = _data(
            batch.vs, meeting, h1, h2, view.slot, view.decided, self.state, self.table,
            self.by, chosen,
        )  # fmt: skip
        chosen = chosen[:count]
        dropped = done - len(chosen)
        output, span = output_of(batch, chosen) if len(chosen) else (self.nothing, None)
        if reason:  # the offender's place among all elements, stables included
            rows = int(np.flatnonzero(everything.op == Op.INSERT)[done])
        return Effects(output, rows, span, Broken(reason), dropped=dropped)

    def _fingerprints(self, batch: Batch, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Of the payloads in these rows."""
        if not len(rows):
            return _NO_HASHES, _NO_HASHES
        h1, h2 = self.identity.fingerprints(batch.payload, rows)
        return h1.view(np.int64), h2.view(np.int64)

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
        """Payloads at the largest start, and what waits."""
        return int(self.state[_COUNT]) + self.waiting.rows

    @property
    def index_bytes(self) -> int:
        """The table."""
        return int(self.table.nbytes + self.by.nbytes)

    @property
    def payload_bytes(self) -> int:
        """Only what waits: of the others their fingerprints are enough."""
        return self.waiting.nbytes

    def check(self, decided: int, final: bool) -> None:
        """There is nothing to be wrong."""

    def save(self) -> dict[str, Any]:
        """The entries at the largest start, and what waits."""
        used = np.flatnonzero(self.table[:, _STAMP] == self.state[_GENERATION])
        return {
            "state": self.state, "table": self.table[used], "by": self.by[used],
            **self.waiting.save(),
        }  # fmt: skip

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        self.state = saved["state"].copy()
        entries, by = saved["table"], saved["by"]
        size = 64
        while size < 2 * len(entries):
            size *= 2
        self.table, self.by = _empty(size, by.shape[1])
        _move(entries, by, self.state[_GENERATION], self.table, self.by)
        self.waiting.load(saved)


def _empty(size: int, slots: int) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    return np.zeros((size, 3), dtype=np.int64), np.zeros((size, slots), dtype=np.bool_)
