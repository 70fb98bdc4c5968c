"""The payloads of live nodes, in the Arrow columns they came in, each stored once.

A stored row is known by a number that only grows: rows of one append are consecutive, and the
numbers survive every rearrangement, so nodes never have to be rewritten. Rows live in segments,
each a range of numbers. Small segments are joined with their neighbours, so that a stream of
single rows does not become a thousand little buffers; segments of which less than two thirds
live are compacted.

Invariant: every number handed out and not yet released can be gathered, in any order.
Cost: append O(rows); gather O(rows · log segments), in however many segments they are; compaction
amortised O(1) a released row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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
    addresses: list[tuple[int, int, int, int]] | None = None  # of the columns, once asked for

    def places(self) -> list[tuple[int, int, int, int]]:
        if self.addresses is None:
            self.addresses = addresses(self.rows)
        return self.addresses

    @property
    def nbytes(self) -> int:
        numbers = 0 if self.numbers is None else self.numbers.nbytes
        return int(self.rows.nbytes) + numbers

    def rows_of(self, numbers: Int64s) -> Int64s:
        if self.numbers is None:
            return numbers - self.first
        return np.searchsorted(self.numbers, numbers)

    def all_numbers(self) -> Int64s:
        if self.numbers is None:
            return np.arange(self.first, self.first + self.rows.num_rows, dtype=np.int64)
        return self.numbers


class PayloadStore:
    """Rows by number."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.next_number = 0
        self._segments: SortedKeyList = SortedKeyList(key=lambda segment: segment.first)
        self._stored = 0
        self._released = 0
        self._join_at = _FAN_IN
        self._catalog: Catalog | None = None  # made when needed, void when segments change

    @property
    def nbytes(self) -> int:
        """Bytes held, dead rows included."""
        return sum(segment.nbytes for segment in self._segments)

    @property
    def live(self) -> int:
        """Rows that were appended and not released."""
        return self._stored - self._released

    def append(self, rows: pa.RecordBatch) -> None:
        """Store ``rows`` under the next numbers."""
        count = rows.num_rows
        if not count:
            return
        self._segments.add(_Segment(self.next_number, rows, None))
        self._catalog = None
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
        self._join_at = len(segments) + _FAN_IN

    def gather(self, numbers: Int64s) -> pa.RecordBatch:
        """The rows with these numbers, in this order, copied."""
        if not len(numbers):
            return no_rows(self.schema)
        if self._catalog is None:
            segments = self._segments
            self._catalog = Catalog(
                self.schema,
                [segment.rows for segment in segments],
                [segment.first for segment in segments],
                [segment.numbers for segment in segments],
                [segment.places() for segment in segments],
            )
        return self._catalog.gather(numbers)

    def release(self, count: int, live_numbers: Callable[[], Int64s]) -> None:
        """``count`` rows are dead; ``live_numbers()`` tells which are not, if it comes to that."""
        self._released += count
        if self._released < _SLACK + self._stored // 3:
            return
        self._catalog = None
        live = np.sort(live_numbers())
        kept: list[_Segment] = []
        for segment in self._segments:
            numbers = segment.all_numbers()
            lo, hi = np.searchsorted(live, (numbers[0], numbers[-1] + 1))
            mine = live[lo:hi]
            if not len(mine):
                continue
            if 3 * len(mine) < 2 * len(numbers):
                rows = take(segment.rows, segment.rows_of(mine))
                segment = _Segment(int(mine[0]), rows, mine.copy())
            kept.append(segment)
        self._segments = SortedKeyList(kept, key=lambda segment: segment.first)
        self._stored = sum(segment.rows.num_rows for segment in kept)
        self._released = self._stored - len(live)
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
        self._stored, self._released, self.next_number = rows.num_rows, 0, next_number
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
        if total != self._stored or past >= self.next_number:
            raise InvariantError(f"payloads: {total} rows stored, {self._stored} counted")


def _concatenated(run: list[_Segment]) -> _Segment:
    if len(run) == 1:
        return run[0]
    rows = pa.concat_batches([segment.rows for segment in run])
    first, last = run[0], run[-1]
    whole = all(segment.numbers is None for segment in run)
    if whole and last.first + last.rows.num_rows - first.first == rows.num_rows:
        return _Segment(first.first, rows, None)
    numbers = np.concatenate([segment.all_numbers() for segment in run])
    return _Segment(first.first, rows, numbers)
