"""Order-free digests of the events that end in each interval, for streams and the output.

An event adds its hash to the interval of its ``ve``; an adjust subtracts it from the old end's
and adds to the new one's. Sums modulo 2⁶⁴ do not depend on order or on the revisions on the way,
so once a stream and the output are both stable past an interval, unequal sums prove that they
contain different events. Equal sums mean that they do not, for events chosen without knowledge of
the merge's key, as far as payloads have different hashes (:mod:`lmerge.core.identity` and
:mod:`lmerge.core.imprints` bound that) and the mixing of these behaves like a random function: then
they are equal by chance with probability 2⁻⁶⁴.

Intervals have one width for all, a power of two. It starts at 1 and doubles whenever more than
``MOST_INTERVALS`` are open: digests of joined intervals are sums of digests, so nothing is lost
but resolution. Intervals that everybody has passed are dropped when the room is needed; what
ended before the *closed* point is gone. Infinite ends are in no interval.
Cost: O(1) an element; memory fixed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lmerge.core.batch import Batch
from lmerge.core.compiled import Int, Int8s, Int64s, Word, compiled
from lmerge.core.promises import ADJUST, INSERT
from lmerge.times import BEGINNING, INFINITY

MOST_INTERVALS: Final = 1024
_PLACES: Final = 2 * MOST_INTERVALS
NO_INTERVAL: Final = BEGINNING  # no interval has this number: no event ends there

# The places of ``Intervals.state``.
SHIFT: Final = 0  # log2 of the width
OPEN: Final = 1  # how many intervals there are
CLOSED: Final = 2  # intervals that end at or before this were dropped


class Intervals(NamedTuple):
    """The arrays, as compiled code takes them. Row 0 of the sums is the output's."""

    numbers: Int64s  # open addressing by interval number
    sums: npt.NDArray[np.uint64]  # [1 + streams, places]
    state: Int64s
    spare_numbers: Int64s  # room to rebuild
    spare_sums: npt.NDArray[np.uint64]


@compiled
def _event_hash(h1: Int, h2: Int, vs: Int, ve: Int) -> Word:
    x = np.uint64(h1) + np.uint64(vs) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = x + np.uint64(h2) + np.uint64(ve) * np.uint64(0xC2B2AE3D27D4EB4F)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


@compiled
def _first_place(number: Int, mask: Int) -> Int:
    # Open intervals are mostly neighbours: by their low bits they do not collide.
    return (number ^ (number >> np.int64(11))) & mask


@compiled
def _place(numbers: Int64s, number: Int) -> Int:
    """Where an interval is, or the empty place where it would be."""
    mask = np.int64(numbers.size - 1)
    place = _first_place(number, mask)
    while numbers[place] != NO_INTERVAL and numbers[place] != number:
        place = (place + 1) & mask
    return place


@compiled
def _rebuild(intervals: Intervals, closable: Int, coarser: Int) -> None:
    """Drops the intervals that end at or before ``closable``, and widens the others."""
    numbers, sums, state, old_numbers, old_sums = intervals
    for i in range(numbers.size):
        old_numbers[i] = numbers[i]
        numbers[i] = NO_INTERVAL
    for column in range(sums.shape[0]):
        for i in range(numbers.size):
            old_sums[column, i] = sums[column, i]
            sums[column, i] = 0
    width = state[SHIFT]
    aligned = (closable >> width) << width
    state[CLOSED] = max(state[CLOSED], aligned)
    state[SHIFT] += coarser
    state[OPEN] = 0
    for i in range(old_numbers.size):
        if old_numbers[i] == NO_INTERVAL or old_numbers[i] < (closable >> width):
            continue
        number = old_numbers[i] >> coarser
        place = _place(numbers, number)
        if numbers[place] == NO_INTERVAL:
            numbers[place] = number
            state[OPEN] += 1
        for column in range(sums.shape[0]):
            sums[column, place] += old_sums[column, i]


@compiled
def _opened(intervals: Intervals, ve: Int, closable: Int) -> Int:
    """The place of the interval of ``ve``, which is made if there is none."""
    numbers, state = intervals.numbers, intervals.state
    place = _place(numbers, ve >> state[SHIFT])
    if numbers[place] == NO_INTERVAL:
        if state[OPEN] >= MOST_INTERVALS:
            _rebuild(intervals, closable, np.int64(0))
            while state[OPEN] > MOST_INTERVALS // 2:
                _rebuild(intervals, closable, np.int64(1))
            place = _place(numbers, ve >> state[SHIFT])
        if numbers[place] == NO_INTERVAL:
            numbers[place] = ve >> state[SHIFT]
            state[OPEN] += 1
    return place


@compiled
def _found(intervals: Intervals, ve: Int, shift: Int, closable: Int) -> Word:
    """Like :func:`_opened`, and quick for an interval that is where it is looked for first."""
    number = ve >> shift
    mask = np.int64(intervals.numbers.size - 1)
    place = np.uint64(_first_place(number, mask))  # unsigned: no test for places below 0
    if intervals.numbers[place] != number:
        place = np.uint64(_opened(intervals, ve, closable))
    return place


@compiled
def _digest(
    intervals: Intervals,
    column: Int,
    op: Int8s,
    vs: Int64s,
    ve: Int64s,
    vold: Int64s,
    h1: Int64s,
    h2: Int64s,
    floor: Int,
    closable: Int,
) -> None:
    sums, state = intervals.sums[column], intervals.state
    for i in range(op.size):
        if op[i] == ADJUST and vold[i] != INFINITY and vold[i] >= floor:
            place = _found(intervals, vold[i], state[SHIFT], closable)
            sums[place] -= _event_hash(h1[i], h2[i], vs[i], vold[i])
        appears = op[i] == INSERT or (op[i] == ADJUST and ve[i] != vs[i])
        if appears and ve[i] != INFINITY and ve[i] >= floor:
            place = _found(intervals, ve[i], state[SHIFT], closable)
            sums[place] += _event_hash(h1[i], h2[i], vs[i], ve[i])


@compiled
def _digest_inserts(
    intervals: Intervals,
    column: Int,
    vs: Int64s,
    ve: Int64s,
    h1: Int64s,
    h2: Int64s,
    floor: Int,
    closable: Int,
    first: Int,
    last: Int,
) -> None:
    """:func:`_digest` for inserts alone, of which ``[first, last)`` are the output's as well."""
    numbers, state = intervals.numbers, intervals.state
    own, output = intervals.sums[column], intervals.sums[0]
    mask = np.int64(numbers.size - 1)
    shift = state[SHIFT]
    for i in range(vs.size):
        end = ve[i]
        is_output = first <= i < last
        if end == INFINITY or (end < floor and not is_output):
            continue
        event = _event_hash(h1[i], h2[i], vs[i], end)
        number = end >> shift
        place = np.uint64(_first_place(number, mask))  # unsigned: no test for places below 0
        if numbers[place] != number:
            place = np.uint64(_opened(intervals, end, closable))
            shift = state[SHIFT]
        if end >= floor:
            own[place] += event
        if is_output:
            output[place] += event


@compiled
def _all_agree(intervals: Intervals, column: Int, low: Int, high: Int) -> Any:
    """Of the intervals inside ``[low, high)``: how many there are, and how many agree."""
    numbers, own, output = intervals.numbers, intervals.sums[column], intervals.sums[0]
    shift = intervals.state[SHIFT]
    lowest, highest = low >> shift, high >> shift
    inside = agreeing = np.int64(0)
    for i in range(numbers.size):  # no branches, so that it is done several at a time
        is_inside = (numbers[i] != NO_INTERVAL) & (numbers[i] >= lowest) & (numbers[i] < highest)
        inside += is_inside
        agreeing += is_inside & (own[i] == output[i])
    return inside, agreeing


@compiled
def _compare(intervals: Intervals, column: Int, low: Int, high: Int, differing: Int64s) -> Any:
    """Of the intervals inside ``[low, high)``: how many agree, and which do not."""
    numbers, sums, state = intervals.numbers, intervals.sums, intervals.state
    lowest, highest = low >> state[SHIFT], high >> state[SHIFT]
    agreeing = 0
    count = 0
    for i in range(numbers.size):
        if numbers[i] == NO_INTERVAL or numbers[i] < lowest or numbers[i] >= highest:
            continue
        if sums[column, i] == sums[0, i]:
            agreeing += 1
        else:
            differing[count] = numbers[i]
            count += 1
    return agreeing, count


class Digests:
    """The digests of a merge's streams (by slot) and of its output."""

    def __init__(self, streams: int = 2) -> None:
        numbers = np.full(_PLACES, NO_INTERVAL, dtype=np.int64)
        sums = np.zeros((1 + streams, _PLACES), dtype=np.uint64)
        state = np.array([0, 0, BEGINNING], dtype=np.int64)
        self.intervals = Intervals(numbers, sums, state, numbers.copy(), sums.copy())

    @property
    def width(self) -> int:
        """The width of an interval now."""
        return 1 << int(self.intervals.state[SHIFT])

    @property
    def closed(self) -> int:
        """Nothing is known any more of events that end before this."""
        return int(self.intervals.state[CLOSED])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.intervals)

    def attach(self, slot: int) -> None:
        """Give ``slot`` an empty column."""
        sums = self.intervals.sums
        if slot + 1 >= sums.shape[0]:
            wider = np.zeros((slot + 2 + slot // 4, _PLACES), dtype=np.uint64)
            wider[: sums.shape[0]] = sums
            self.intervals = self.intervals._replace(sums=wider, spare_sums=wider.copy())
        self.intervals.sums[slot + 1] = 0

    def add(self, column: int, e: Batch, floor: int, closable: int) -> None:
        """Add a stream's elements (column 0: the output's) with ends from ``floor`` on.

        Everybody has passed ``closable``: intervals before it may be dropped.
        """
        _digest(self.intervals, column, e.op, e.vs, e.ve, e.vold, e.h1, e.h2, floor, closable)

    def add_inserts(
        self, column: int, e: Batch, floor: int, closable: int, first: int, last: int
    ) -> None:
        """:meth:`add` a stream's inserts, and those in ``[first, last)`` to the output's digests.

        The output has no floor: it never goes back below what was closed.
        """
        _digest_inserts(
            self.intervals, column, e.vs, e.ve, e.h1, e.h2, floor, closable, first, last
        )

    @property
    def shift(self) -> int:
        """The width of an interval is 2 to this."""
        return int(self.intervals.state[SHIFT])

    def compare(self, slot: int, low: int, high: int) -> tuple[int, list[tuple[int, int]]]:
        """Of the intervals inside ``[low, high)``: how many agree with the output, which differ."""
        inside, agreeing = _all_agree(self.intervals, slot + 1, low, high)
        if inside == agreeing:
            return agreeing, []
        numbers = np.empty(inside, dtype=np.int64)
        agreeing, count = _compare(self.intervals, slot + 1, np.int64(low), np.int64(high), numbers)
        width = self.width
        return agreeing, [(n * width, (n + 1) * width) for n in sorted(numbers[:count].tolist())]

    def align(self, t: int) -> int:
        """The end of the last interval that is over at ``t``."""
        shift = int(self.intervals.state[SHIFT])
        return (t >> shift) << shift

    def align_up(self, t: int) -> int:
        """The start of the first interval that begins at ``t`` or later (or where it is cut)."""
        if t <= self.closed:
            return self.align(t)
        return min(INFINITY, -self.align(-t))

    def sum_of(self, slot: int | None, start: int) -> int:
        """A column's digest of the interval that begins at ``start``."""
        place = _place(self.intervals.numbers, np.int64(start >> int(self.intervals.state[SHIFT])))
        return int(self.intervals.sums[0 if slot is None else slot + 1, place])

    def fill(self, numbers: Int64s, sums: npt.NDArray[np.uint64], state: Int64s) -> None:
        """Hold exactly these intervals."""
        self.intervals.state[:] = state
        for number, row in zip(numbers, sums, strict=True):
            place = _place(self.intervals.numbers, number)
            self.intervals.numbers[place] = number
            self.intervals.sums[:, place] = row
