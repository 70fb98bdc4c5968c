"""The sub-query of Figure 4: an event lasts until the next one of its group begins.

A count or any other aggregate that is followed by a change of lifetimes revises what it said when
an element comes late (§VI.B). Here the group's latest event is held until its successor is known;
a late one cuts its predecessor's lifetime by an adjust. So the adjusts of the output come from
the disorder of the input and from nothing else, and its TDB does not depend on the disorder.

The stable point is held back to the start of the earliest event that is still held.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedDict

from lmerge.elements import Op
from lmerge.times import INFINITY
from lmerge.workload import SCHEMA, Stream

Row = tuple[int, int, int, int, int, int]
"""op, vs, ve, vold, the row of the payload, and when it is output."""

_NO_PAYLOAD: Final = -1


class _Group:
    """The events of one group by start; those of the latest start are held."""

    def __init__(self) -> None:
        self.starts: SortedDict = SortedDict()  # start -> rows of the payloads

    def insert(self, start: int, payload: int, now: int, rows: list[Row]) -> None:
        """The next element of the input."""
        same = self.starts.get(start)
        if same is not None:
            same.append(payload)
            place = self.starts.bisect_right(start)
            if place < len(self.starts):
                end = self.starts.keys()[place]
                rows.append((Op.INSERT, start, end, 0, payload, now))
            return
        place = self.starts.bisect_left(start)
        following = self.starts.keys()[place] if place < len(self.starts) else None
        if place > 0:
            before, payloads = self.starts.peekitem(place - 1)
            for each in payloads:
                if following is None:
                    rows.append((Op.INSERT, before, start, 0, each, now))
                else:
                    rows.append((Op.ADJUST, before, start, following, each, now))
        if following is not None:
            rows.append((Op.INSERT, start, following, 0, payload, now))
        self.starts[start] = [payload]

    @property
    def held(self) -> int:
        """The start of what is held back."""
        return int(self.starts.peekitem(-1)[0])

    def end(self, now: int, rows: list[Row]) -> None:
        """Nothing follows: what is held lasts for ever."""
        start, payloads = self.starts.peekitem(-1)
        rows += [(Op.INSERT, start, INFINITY, 0, each, now) for each in payloads]


def until_next(stream: Stream, groups: int) -> Stream:
    """The sub-query's output over a stream of inserts, whose group is ``x`` modulo ``groups``."""
    rows: list[Row] = []
    states: defaultdict[int, _Group] = defaultdict(_Group)
    batch = stream.batch
    columns = [batch.column(name).to_pylist() for name in ("op", "vs", "x")]
    for i, (op, vs, x) in enumerate(zip(*columns, strict=True)):
        now = int(stream.clock[i])
        if op == Op.INSERT:
            states[x % groups].insert(vs, i, now, rows)
        elif op == Op.STABLE:
            if vs == INFINITY:
                for state in states.values():
                    state.end(now, rows)
            stable = min((vs, *(state.held for state in states.values() if vs < INFINITY)))
            rows.append((Op.STABLE, stable, 0, 0, _NO_PAYLOAD, now))
        else:
            raise ValueError("the sub-query takes a stream of inserts")
    made = np.array(rows, dtype=np.int64)
    payload = pa.array(made[:, 4], mask=made[:, 4] == _NO_PAYLOAD)
    output = pa.RecordBatch.from_arrays(
        [
            pa.array(made[:, 0].astype(np.int8)),
            *(pa.array(made[:, column]) for column in (1, 2, 3)),
            batch.column("x").take(payload),
            batch.column("s").take(payload),
        ],
        schema=SCHEMA,
    )
    return Stream(stream.name, output, made[:, 5])
