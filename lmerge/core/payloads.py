"""The payloads of live nodes, in the Arrow columns they came in, each stored once.

A stored row is known by a number that only grows: rows of one append are consecutive, and the
numbers survive every rearrangement, so nodes never have to be rewritten. Rows live in segments,
each a range of numbers. Small segments are joined with their neighbours, so that a stream of
single rows does not become a thousand little buffers; when a third of all rows is dead, segments of
which half (or, if need be, a third) is are compacted.

Invariant: every number handed out and not yet released can be gathered, in any order.
Cost: append O(rows); gather O(rows · log segments), in however many segments they are; compaction
amortised O(1) a released row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedKeyList

from lmerge.core.batch import no_rows, take
from lmerge.core.compiled import Int64s
from lmerge.core.gathering import Catalog, addresses
from lmerge.errors import InvariantError

_FAN_IN: Final = 32  # so many new segments are worth a look at whether to join them
_SMALL: Final = 64  # rows up to which a segment is always joined
_LARGE: Final = 8192  # rows from which a segment is left alone
_SLACK: Final = 4096  # dead rows that are not worth a compaction


@dataclass(slots=True, eq=False)
class _Segment:
    first: int  # the number of its first row
    rows: pa.RecordBatch
    numbers: Int64s | None  # the rows' numbers, when some between were dropped
    alive: Any = None  # which rows are, once some are not
    dead: int = 0
    addresses: list[tuple[int, int, int, int]] | None = None  # of the columns, once asked for

    def places(self) -> list[tuple[int, int, int, int]]:
        if self.addresses is None:
            self.addresses = addresses(self.rows)
        return self.addresses

    @property
    def nbytes(self) -> int:
        own = sum(int(a.nbytes) for a in (self.numbers, self.alive) if a is not None)
        return int(self.rows.nbytes) + own

    def rows_of(self, numbers: Int64s) -> Int64s:
        if self.numbers is None:
            return numbers - self.first
        return np.searchsorted(self.numbers, numbers)

    def all_numbers(self) -> Int64s:
        if self.numbers is None:
            return np.arange(self.first, self.first + self.rows.num_rows, dtype=np.int64)
        return self.numbers

    def bury(self, numbers: Int64s) -> None:
        """These of its rows are dead."""
        if self.alive is None:
            self.alive = np.ones(self.rows.num_rows, dtype=np.bool_)
        self.alive[self.rows_of(numbers)] = False
        self.dead += len(numbers)

    def compacted(self) -> _Segment:
        """The rows that live."""
        rows = np.flatnonzero(self.alive)
        numbers = self.all_numbers()[rows]
        return _Segment(int(numbers[0]), take(self.rows, rows), numbers)


class PayloadStore:
    """Rows by number."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.next_number = 0
        self._segments: SortedKeyList = SortedKeyList(key=lambda segment: segment.first)
        self._stored = 0
        self._dead = 0
        self._released: list[Int64s] = []  # dead, and not yet buried in their segments
        self._unburied = 0
        self._join_at = _FAN_IN
        self._catalog: Any = None  # made when needed, void when segments are rearranged

    @property
    def nbytes(self) -> int:
        """Bytes held, dead rows included."""
        return sum(segment.nbytes for segment in self._segments)

    @property
    def live(self) -> int:
        """Rows that were appended and not released."""
        return self._stored - self._dead

    def append(self, rows: pa.RecordBatch) -> None:
        """Store ``rows`` under the next numbers."""
        count = rows.num_rows
        if not count:
            return
        segment = _Segment(self.next_number, rows, None)
        self._segments.add(segment)
        if self._catalog is not None:
            self._enter(segment)
        self.next_number += count
        self._stored += count
        if len(self._segments) >= self._join_at:
            self._join_tail()

    def _join_tail(self) -> None:
        """Join the last segments, back to one that is larger than all after it together."""
        segments = self._segments
        start, total = len(segments), 0
        while start and segments[start - 1].rows.num_rows < min(_LARGE, max(_SMALL, 2 * total)):
            start -= 1
            total += segments[start].rows.num_rows
        run = segments[start:]
        if len(run) > 1:
            del segments[start:]
            segments.add(_concatenated(run))
            self._catalog = None
        self._join_at = len(segments) + _FAN_IN

    def _enter(self, segment: _Segment) -> None:
        self._catalog.add(segment.rows, segment.first, segment.numbers, segment.places())

    def gather(self, numbers: Int64s) -> pa.RecordBatch:
        """The rows with these numbers, in this order, copied."""
        if not len(numbers):
            return no_rows(self.schema)
        if self._catalog is None:
            self._catalog = Catalog(self.schema)
            for segment in self._segments:
                self._enter(segment)
        return self._catalog.gather(numbers)

    def release(self, numbers: Int64s) -> None:
        """These rows are dead; they stay until enough are to be worth the work."""
        self._released.append(numbers)
        self._dead += len(numbers)
        self._unburied += len(numbers)
        if self._unburied >= _SLACK + self._stored // 8:
            self._bury()

    def _bury(self) -> None:
        """Drop segments without live rows, and compact when a third of all rows are dead."""
        released = np.sort(np.concatenate(self._released))
        self._released, self._unburied = [], 0
        segments = list(self._segments)
        firsts = np.array([segment.first for segment in segments], dtype=np.int64)
        bounds = [*np.searchsorted(released, firsts).tolist(), len(released)]
        for segment, low, high in zip(segments, bounds, bounds[1:], strict=False):
            if low < high:
                segment.bury(released[low:high])
        segments = [segment for segment in segments if segment.dead < segment.rows.num_rows]
        # First where most is to be gained: a segment that dies row by row is not copied often.
        for numerator, denominator in ((1, 2), (1, 3)):
            stored, dead = sum(s.rows.num_rows for s in segments), sum(s.dead for s in segments)
            if 3 * dead > stored + 3 * _SLACK:
                segments = [
                    s.compacted() if s.dead * denominator > s.rows.num_rows * numerator else s
                    for s in segments
                ]
        self._catalog = None
        self._segments = SortedKeyList(segments, key=lambda segment: segment.first)
        self._stored = sum(segment.rows.num_rows for segment in segments)
        self._dead = sum(segment.dead for segment in segments)
        self._join_small()

    def _join_small(self) -> None:
        """Join runs of small neighbours that a compaction has left."""
        joined: list[_Segment] = []
        run: list[_Segment] = []
        size = 0
        for segment in self._segments:
            if size + segment.rows.num_rows > _LARGE and run:
                joined.append(_concatenated(run))
                run, size = [], 0
            run.append(segment)
            size += segment.rows.num_rows
        if run:
            joined.append(_concatenated(run))
        self._segments = SortedKeyList(joined, key=lambda segment: segment.first)
        self._join_at = len(joined) + _FAN_IN

    def restore(self, rows: pa.RecordBatch, numbers: Int64s, next_number: int) -> None:
        """Hold exactly ``rows`` under the ascending ``numbers``."""
        self._segments.clear()
        self._join_at = _FAN_IN
        self._catalog = None
        self._stored, self._dead, self.next_number = rows.num_rows, 0, next_number
        self._released, self._unburied = [], 0
        if rows.num_rows:
            self._segments.add(_Segment(int(numbers[0]), rows, numbers))

    def check(self) -> None:
        """Raises InvariantError unless segments are disjoint, ascending and counted."""
        past, total = -1, 0
        for segment in self._segments:
            numbers = segment.all_numbers()
            if len(numbers) != segment.rows.num_rows or numbers[0] <= past:
                raise InvariantError(f"payloads: the segment at {segment.first} is out of order")
            if segment.first != numbers[0] or (np.diff(numbers) <= 0).any():
                raise InvariantError(f"payloads: numbers of {segment.first} do not ascend")
            past, total = int(numbers[-1]), total + len(numbers)
            buried = 0 if segment.alive is None else len(numbers) - int(segment.alive.sum())
            if buried != segment.dead:
                raise InvariantError(f"payloads: {buried} dead rows in {segment.first}")
        if total != self._stored or past >= self.next_number:
            raise InvariantError(f"payloads: {total} rows stored, {self._stored} counted")
        if self._dead != self._unburied + sum(segment.dead for segment in self._segments):
            raise InvariantError(f"payloads: {self._dead} rows counted as dead")


def _concatenated(run: list[_Segment]) -> _Segment:
    if len(run) == 1:
        return run[0]
    rows = pa.concat_batches([segment.rows for segment in run])
    first, last = run[0], run[-1]
    whole = all(segment.numbers is None for segment in run)
    alive = None
    if any(segment.dead for segment in run):
        alive = np.concatenate(
            [np.ones(s.rows.num_rows, np.bool_) if s.alive is None else s.alive for s in run]
        )
    dead = sum(segment.dead for segment in run)
    if whole and last.first + last.rows.num_rows - first.first == rows.num_rows:
        return _Segment(first.first, rows, None, alive, dead)
    numbers = np.concatenate([segment.all_numbers() for segment in run])
    return _Segment(first.first, rows, numbers, alive, dead)
