"""R4: no restriction; the TDB is a multiset. The index is in³t.

As R3, with a third tier: for each node and stream (and the output) a multiset of ends, kept as a
list of cells ``(ve, count)`` by ascending ``ve``. A node's columns hold the heads of these lists.
Line numbers are those of the paper's Algorithm R4.

Invariants beside those of :mod:`lmerge.core.nodes`, as :meth:`R4.check` asserts them:
1. every cell is in one list or free; lists ascend strictly; counts are positive;
2. a node with ``vs`` below the decided point m has as many output events as it will ever have;
3. no end at or after m is before its node's wake time, once m has passed ``vs``.

Cost: O(d) an element, where d is the number of different ends of one ``(vs, payload)``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.algorithms.base import Effects, View
from lmerge.core.algorithms.indexed import Index, Outputs, Settled, Taken, touching
from lmerge.core.batch import Batch
from lmerge.core.compiled import Int, Int8s, Int32s, Int64s, compiled
from lmerge.core.nodes import (
    FREE_REF,
    H1,
    H2,
    HIGH,
    NOBODY,
    OUT,
    REF,
    STREAMS,
    VS,
    WAKE,
    Nodes,
    add,
    approach,
    fetch_places,
    fetch_stretch,
    find,
    remove,
    sleep,
    wake_all,
    wake_before,
    wake_earlier,
)
from lmerge.core.promises import ADJUST, INSERT, STABLE, Broken
from lmerge.errors import InvariantError
from lmerge.times import BEGINNING, INFINITY

_NO_SUCH: Final = int(Broken.NO_SUCH_EVENT)
_END: Final = -1  # no cell

# The places of ``Cells.state``.
_LIVE: Final = 0
_HIGH: Final = 1
_FREE: Final = 2


class Cells(NamedTuple):
    """The third tier, as compiled code takes it."""

    ve: Int64s
    copies: Int32s  # how many events end there
    after: Int32s
    state: Int64s


@compiled
def _increment(nodes: Nodes, cells: Cells, f: Int, column: Int, ve: Int) -> None:
    """IncrementCount; the caller has made room."""
    previous = np.int64(_END)
    cell = nodes.rows[f, column]
    while cell != _END and cells.ve[cell] < ve:
        previous = cell
        cell = np.int64(cells.after[cell])
    if cell != _END and cells.ve[cell] == ve:
        cells.copies[cell] += 1
        return
    new = cells.state[_FREE]
    if new != _END:
        cells.state[_FREE] = cells.after[new]
    else:
        new = cells.state[_HIGH]
        cells.state[_HIGH] += 1
    cells.state[_LIVE] += 1
    cells.ve[new] = ve
    cells.copies[new] = 1
    cells.after[new] = cell
    if previous == _END:
        nodes.rows[f, column] = new
    else:
        cells.after[previous] = new


@compiled
def _decrement(nodes: Nodes, cells: Cells, f: Int, column: Int, ve: Int) -> bool:
    """DecrementCount; False when there is no such end."""
    previous = np.int64(_END)
    cell = nodes.rows[f, column]
    while cell != _END and cells.ve[cell] < ve:
        previous = cell
        cell = np.int64(cells.after[cell])
    if cell == _END or cells.ve[cell] != ve:
        return False
    cells.copies[cell] -= 1
    if cells.copies[cell] == 0:
        if previous == _END:
            nodes.rows[f, column] = cells.after[cell]
        else:
            cells.after[previous] = cells.after[cell]
        _free(cells, cell)
    return True


@compiled
def _free(cells: Cells, cell: Int) -> None:
    cells.copies[cell] = 0
    cells.after[cell] = cells.state[_FREE]
    cells.state[_FREE] = cell
    cells.state[_LIVE] -= 1


@compiled
def _free_list(nodes: Nodes, cells: Cells, f: Int, column: Int) -> None:
    cell = nodes.rows[f, column]
    while cell != _END:
        following = np.int64(cells.after[cell])
        _free(cells, cell)
        cell = following
    nodes.rows[f, column] = _END


@compiled
def _free_column(nodes: Nodes, cells: Cells, column: Int) -> None:
    for f in range(nodes.state[HIGH]):
        if nodes.rows[f, REF] != FREE_REF:
            _free_list(nodes, cells, np.int64(f), column)


@compiled
def _total(nodes: Nodes, cells: Cells, f: Int, column: Int, low: Int) -> Int:
    """How many events end at or after ``low``."""
    total = 0
    cell = nodes.rows[f, column]
    while cell != _END:
        if cells.ve[cell] >= low:
            total += cells.copies[cell]
        cell = np.int64(cells.after[cell])
    return total


@compiled
def _count_of(nodes: Nodes, cells: Cells, f: Int, column: Int, ve: Int) -> Int:
    cell = nodes.rows[f, column]
    while cell != _END:
        if cells.ve[cell] == ve:
            return int(cells.copies[cell])
        cell = np.int64(cells.after[cell])
    return 0


@compiled
def _supporters(nodes: Nodes, cells: Cells, f: Int, joined: Any, count: Int) -> Int:
    """Joined streams that have at least ``count`` events for the node."""
    supporters = 0
    for slot in range(joined.size):
        if joined[slot] and _total(nodes, cells, f, STREAMS + slot, BEGINNING) >= count:
            supporters += 1
    return supporters


@compiled
def _surplus(nodes: Nodes, cells: Cells, f: Int, column: Int, end: Int, m: Int) -> Int:
    """An end of the output that the stream lacks, if it has more of ``end`` than the output."""
    if _count_of(nodes, cells, f, OUT, end) >= _count_of(nodes, cells, f, column, end):
        return np.int64(BEGINNING)
    cell = nodes.rows[f, OUT]
    while cell != _END:
        ve = cells.ve[cell]
        if ve >= m and cells.copies[cell] > _count_of(nodes, cells, f, column, ve):
            return ve
        cell = np.int64(cells.after[cell])
    return np.int64(BEGINNING)


@compiled
def _data(
    nodes: Nodes,
    cells: Cells,
    op: Int8s,
    vs: Int64s,
    ve: Int64s,
    vold: Int64s,
    h1: Int64s,
    h2: Int64s,
    column: Int,
    m: Int,
    may_output: bool,
    is_joined: bool,
    support: Int,
    joined: Any,
    eager: bool,
    next_number: Int,
    fresh: Int64s,
    out_row: Int64s,
    out_op: Int8s,
    out_ve: Int64s,
    out_vold: Int64s,
) -> Any:
    made = output = dropped = late = 0
    reason = 0
    i = 0
    while i < op.size:
        approach(nodes, vs, h1, i)
        if op[i] == STABLE:
            i += 1
            continue
        start, end = vs[i], ve[i]
        f = find(nodes, start, h1[i], h2[i])  # lines 4, 13
        if op[i] == INSERT:
            if f == NOBODY:
                if start < m:  # line 6
                    if end < m:
                        dropped += 1
                    else:
                        late += 1
                    i += 1
                    continue
                f = add(nodes, start, h1[i], h2[i], next_number + made, _END)  # line 7
                fresh[made] = i
                made += 1
            _increment(nodes, cells, f, column, end)  # line 8
            mine = _total(nodes, cells, f, column, BEGINNING)
            theirs = _total(nodes, cells, f, OUT, BEGINNING)
            if mine > theirs:  # line 9
                if (
                    may_output
                    and start >= m
                    and (
                        support == 1 or _supporters(nodes, cells, f, joined, theirs + 1) >= support
                    )
                ):
                    _increment(nodes, cells, f, OUT, end)  # lines 10, 11
                    out_row[output] = i
                    out_op[output] = INSERT
                    out_ve[output] = end
                    out_vold[output] = 0
                    output += 1
            elif eager and is_joined and end >= m:
                # Another end for an event that is output already.
                before = _surplus(nodes, cells, f, column, end, m)
                if before != BEGINNING:
                    _decrement(nodes, cells, f, OUT, before)
                    _increment(nodes, cells, f, OUT, end)
                    out_row[output] = i
                    out_op[output] = ADJUST
                    out_ve[output] = end
                    out_vold[output] = before
                    output += 1
        else:
            if f == NOBODY:  # line 14
                if start >= m:
                    reason = _NO_SUCH
                    break
                dropped += 1
                i += 1
                continue
            # Line 15 the other way round, so that an event that is not there is seen in time.
            # An end below m may have been dropped when it came; nobody needs it any more.
            if not _decrement(nodes, cells, f, column, vold[i]) and vold[i] >= m:
                reason = _NO_SUCH
                break
            removal = end == start
            if not removal:
                _increment(nodes, cells, f, column, end)
            if eager and is_joined and vold[i] >= m and (end >= m or (removal and start >= m)):
                mine = _count_of(nodes, cells, f, column, vold[i])
                if _count_of(nodes, cells, f, OUT, vold[i]) > mine:
                    _decrement(nodes, cells, f, OUT, vold[i])
                    if not removal:
                        _increment(nodes, cells, f, OUT, end)
                    out_row[output] = i
                    out_op[output] = ADJUST
                    out_ve[output] = end
                    out_vold[output] = vold[i]
                    output += 1
        if start < m:
            wake_earlier(nodes, f, end)
        i += 1
    return i, reason, made, output, dropped, late


@compiled
def _reference(
    nodes: Nodes, cells: Cells, f: Int, m: Int, joined: Any, stables: Any, final: bool
) -> Int:
    """The column of the most advanced stream with a possible answer; else the output's."""
    answer = OUT
    furthest = np.int64(BEGINNING)
    wanted = _total(nodes, cells, f, OUT, m)
    for slot in range(joined.size):
        if not joined[slot]:
            continue
        total = _total(nodes, cells, f, STREAMS + slot, m)
        possible = total > 0 if final else total == wanted
        if possible and (answer == OUT or stables[slot] > furthest):
            answer = STREAMS + slot
            furthest = stables[slot]
    return answer


@compiled
def _measure(nodes: Nodes, cells: Cells, f: Int) -> Any:
    """Events and cells of a chain of nodes: bounds for what a stable may output and store."""
    events = lists = 0
    while f != NOBODY:
        for column in range(OUT, nodes.rows.shape[1]):
            cell = nodes.rows[f, column]
            while cell != _END:
                events += cells.copies[cell]
                lists += 1
                cell = np.int64(cells.after[cell])
        f = np.int64(nodes.after[f])
    return events, lists


@compiled
def _unmatched(
    nodes: Nodes, cells: Cells, f: Int, column: Int, other: Int, low: Int, ends: Int64s
) -> Int:
    """Writes the ends at or after ``low`` that ``column`` has and ``other`` has not, ascending."""
    count = 0
    cell = nodes.rows[f, column]
    while cell != _END:
        ve = cells.ve[cell]
        if ve >= low:
            surplus = cells.copies[cell] - _count_of(nodes, cells, f, other, ve)
            for _ in range(surplus):
                ends[count] = ve
                count += 1
        cell = np.int64(cells.after[cell])
    return count


@compiled
def _emit(nodes: Nodes, f: Int, out: Outputs, at: Int, kind: Int, ve: Int, vold: Int) -> Int:
    out.op[at] = kind
    out.vs[at] = nodes.rows[f, VS]
    out.ve[at] = ve
    out.vold[at] = vold
    out.h1[at] = nodes.rows[f, H1]
    out.h2[at] = nodes.rows[f, H2]
    out.ref[at] = nodes.rows[f, REF]
    return at + 1


@compiled
def _replace(nodes: Nodes, cells: Cells, f: Int, out: Outputs, at: Int, vold: Int, ve: Int) -> Int:
    """Adjusts one output event; to its start: removes it."""
    start = nodes.rows[f, VS]
    _decrement(nodes, cells, f, OUT, vold)
    if ve != start:
        _increment(nodes, cells, f, OUT, ve)
    return _emit(nodes, f, out, at, ADJUST, ve, vold)


@compiled
def _adjust_output(
    nodes: Nodes, cells: Cells, f: Int, column: Int, low: Int, t: Int,
    ours: Int64s, theirs: Int64s, out: Outputs, at: Int,
) -> Int:  # fmt: skip
    """AdjustOutputCount and AdjustOutput in one: lines 22 and 26.

    Equal ends are matched and left alone. Of what is left, every end of the stream below ``t``
    must be met, and every end of the output below ``t`` must go; the rest may differ. Surplus is
    inserted or removed, those below ``t`` first, since they must change anyway; the remaining
    ones below ``t`` are paired in order with each other, then with the smallest from ``t`` on.
    """
    start = nodes.rows[f, VS]
    wanted = _unmatched(nodes, cells, f, column, OUT, low, theirs)
    there = _unmatched(nodes, cells, f, OUT, column, low, ours)
    i = j = 0
    while wanted - i > there - j:
        _increment(nodes, cells, f, OUT, theirs[i])
        at = _emit(nodes, f, out, at, INSERT, theirs[i], np.int64(0))
        i += 1
    while there - j > wanted - i:
        at = _replace(nodes, cells, f, out, at, ours[j], start)
        j += 1
    while i < wanted and (theirs[i] < t or ours[j] < t):
        at = _replace(nodes, cells, f, out, at, ours[j], theirs[i])
        i += 1
        j += 1
    return at


@compiled
def _bridge_answer(
    nodes: Nodes, cells: Cells, f: Int, column: Int, m: Int, t: Int,
    ours: Int64s, theirs: Int64s, out: Outputs, at: Int,
) -> Int:  # fmt: skip
    """Across a gap: ends inside it stay; what lived on and is not in the stream is cut."""
    start = nodes.rows[f, VS]
    wanted = _unmatched(nodes, cells, f, column, OUT, t, theirs)
    there = _unmatched(nodes, cells, f, OUT, column, t, ours)
    both = min(wanted, there)
    for i in range(both, wanted):
        if start >= m:
            _increment(nodes, cells, f, OUT, theirs[i])
            at = _emit(nodes, f, out, at, INSERT, theirs[i], np.int64(0))
    for j in range(both, there):
        at = _replace(nodes, cells, f, out, at, ours[j], max(start, np.int64(m)))
    return at


@compiled
def _next_wake(nodes: Nodes, cells: Cells, f: Int, t: Int) -> Int:
    wake = np.int64(INFINITY)
    for column in range(OUT, nodes.rows.shape[1]):
        cell = nodes.rows[f, column]
        while cell != _END:
            ve = cells.ve[cell]
            if ve >= t:
                wake = min(wake, ve)
                break
            cell = np.int64(cells.after[cell])
    return wake


@compiled
def _stable(
    nodes: Nodes,
    cells: Cells,
    chain: Int,
    t: Int,
    m: Int,
    acting: Int,
    joined: Any,
    stables: Any,
    final: bool,
    bridging: bool,
    ours: Int64s,
    theirs: Int64s,
    out: Outputs,
    held: Int64s,
    settled: Int64s,
    freed: Int64s,
) -> Any:
    rows = nodes.rows
    output = holding = settling = conflicts = removed = 0
    conflict_vs = conflict_ref = np.int64(INFINITY)
    while chain != NOBODY:
        fetched, chain = fetch_stretch(nodes, chain)
        fetch_places(nodes, fetched)
        for i in range(fetched):
            f = np.int64(nodes.stretch[i])
            start = rows[f, VS]
            column = acting
            low = np.int64(BEGINNING)
            if start < m and not bridging:
                low = np.int64(m)
                mine = _total(nodes, cells, f, column, low)
                impossible = mine != _total(nodes, cells, f, OUT, low)
                if final:  # nothing was output yet: only silence is impossible
                    impossible = mine == 0
                if impossible:
                    conflicts += 1
                    ref = rows[f, REF]
                    if start < conflict_vs or (start == conflict_vs and ref < conflict_ref):
                        conflict_vs, conflict_ref = start, ref
                    column = _reference(nodes, cells, f, m, joined, stables, final)
            if bridging and not final:
                output = _bridge_answer(nodes, cells, f, column, m, t, ours, theirs, out, output)
            elif final and not bridging:
                cell = rows[f, column]
                while cell != _END:
                    if low <= cells.ve[cell] < t:
                        for _ in range(cells.copies[cell]):
                            output = _emit(
                                nodes, f, out, output, INSERT, cells.ve[cell], np.int64(0)
                            )
                    cell = np.int64(cells.after[cell])
            elif column != OUT and not bridging:
                output = _adjust_output(nodes, cells, f, column, low, t, ours, theirs, out, output)
            if _total(nodes, cells, f, column, t) == 0:  # lines 27, 28
                if final and start < m:
                    settled[settling] = start
                    settling += 1
                for each in range(OUT, rows.shape[1]):
                    _free_list(nodes, cells, f, each)
                freed[removed] = rows[f, REF]
                remove(nodes, f)
                removed += 1
            else:
                if final and start >= m:
                    held[holding] = start
                    holding += 1
                sleep(nodes, f, _next_wake(nodes, cells, f, t))
    return output, removed, conflicts, conflict_vs, conflict_ref, holding, settling


@compiled
def _contribute(
    nodes: Nodes, cells: Cells, column: Int, m: Int, support: Int, joined: Any, ends: Int64s,
    out: Outputs,
) -> Int:  # fmt: skip
    output = 0
    for row in range(nodes.state[HIGH]):
        f = np.int64(row)
        if nodes.rows[f, REF] == FREE_REF or nodes.rows[f, VS] < m:
            continue
        missing = _total(nodes, cells, f, column, BEGINNING) - _total(
            nodes, cells, f, OUT, BEGINNING
        )
        candidates = _unmatched(nodes, cells, f, column, OUT, BEGINNING, ends)
        for i in range(min(missing, candidates)):
            theirs = _total(nodes, cells, f, OUT, BEGINNING)
            if _supporters(nodes, cells, f, joined, theirs + 1) < support:
                break
            _increment(nodes, cells, f, OUT, ends[i])
            output = _emit(nodes, f, out, output, INSERT, ends[i], np.int64(0))
    return output


@compiled
def _outputs(nodes: Nodes, cells: Cells, m: Int, out: Outputs) -> Int:
    output = 0
    for row in range(nodes.state[HIGH]):
        f = np.int64(row)
        if nodes.rows[f, REF] == FREE_REF:
            continue
        cell = nodes.rows[f, OUT]
        while cell != _END:
            if cells.ve[cell] >= m:
                for _ in range(cells.copies[cell]):
                    output = _emit(nodes, f, out, output, INSERT, cells.ve[cell], np.int64(0))
            cell = np.int64(cells.after[cell])
    return output


class R4:
    """The algorithm over its index."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.index = Index(schema)
        self.cells = _empty_cells(128)

    def attach(self, slot: int) -> None:
        """O(capacity)."""
        self.index.table.make_column(slot, _END)

    def detach(self, slot: int) -> None:
        """O(capacity). Nodes stay: a stable decides about them."""
        _free_column(self.index.table.nodes, self.cells, STREAMS + slot)

    def _make_room(self, more: int) -> None:
        """Guarantees that ``more`` cells can be used."""
        needed = int(self.cells.state[_LIVE]) + more
        capacity = self.cells.ve.size
        if needed > capacity:
            old = self.cells
            self.cells = _empty_cells(max(needed, capacity + capacity // 4))
            for mine, theirs in zip(list(self.cells), list(old), strict=True):
                mine[: theirs.size] = theirs

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Elements that touch a time from the decided point on."""
        return touching(batch, decided)

    def data(self, batch: Batch, view: View) -> Effects:
        """O(d) an element."""
        self.index.table.make_room(len(batch))
        self._make_room(2 * len(batch))
        room = Taken.of(len(batch))
        counts = _data(
            self.index.table.nodes, self.cells, batch.op, batch.vs, batch.ve, batch.vold,
            batch.h1, batch.h2, STREAMS + view.slot, view.decided, view.may_output,
            bool(view.joined[view.slot]), view.support, view.joined, view.eager,
            self.index.payloads.next_number, *room,
        )  # fmt: skip
        return self.index.taken(batch, room, counts)

    def contribute(self, view: View) -> Effects:
        """O(capacity)."""
        events = self._events()
        self._make_room(events)
        out = Outputs.of(events)
        output = _contribute(
            self.index.table.nodes, self.cells, STREAMS + view.slot, view.decided,
            view.support, view.joined, np.empty(events, np.int64), out,
        )  # fmt: skip
        return Effects(self.index.batch(out, output), output)

    def _events(self) -> int:
        return int(self.cells.copies[: self.cells.state[_HIGH]].sum())

    def stable(self, t: int, view: View) -> Effects:
        """O(d) for each node that the stable changes, or whose state must be looked at."""
        return self._decide(t, view, bridging=False)

    def bridge(self, t: int, view: View) -> Effects:
        """O(capacity)."""
        wake_all(self.index.table.nodes, t)
        return self._decide(t, view, bridging=True)

    def _decide(self, t: int, view: View, bridging: bool) -> Effects:
        nodes = self.index.table.nodes
        chain, count = wake_before(nodes, t)
        events, lists = _measure(nodes, self.cells, chain)
        self._make_room(lists)
        out, room = Outputs.of(events), Settled.of(count, view.final)
        ours, theirs = np.empty(events, np.int64), np.empty(events, np.int64)
        counts = _stable(
            nodes, self.cells, chain, t, view.decided, STREAMS + view.slot, view.joined,
            view.stables, view.final, bridging, ours, theirs, out, *room,
        )  # fmt: skip
        return self.index.settled(out, room, counts)

    @property
    def progress(self) -> int:
        """Order decides nothing here."""
        return BEGINNING

    @property
    def live(self) -> int:
        """Nodes in the index."""
        return self.index.table.live

    @property
    def index_bytes(self) -> int:
        """Bytes of the index, without payloads."""
        return self.index.table.nbytes + sum(int(array.nbytes) for array in self.cells)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads it holds."""
        return self.index.payloads.nbytes

    def ends(self, f: int, column: int) -> list[tuple[int, int]]:
        """A multiset of ends and how many events have each, for :meth:`check` and a person."""
        return self._list(int(self.index.table.nodes.rows[f, column]))

    def _list(self, cell: int) -> list[tuple[int, int]]:
        found = []
        while cell != _END:
            found.append((int(self.cells.ve[cell]), int(self.cells.copies[cell])))
            cell = int(self.cells.after[cell])
        return found

    def check(self, decided: int, final: bool) -> None:
        """Raise InvariantError unless the index is sound. O(live · streams · d), slowly."""
        self.index.check()
        table = self.index.table
        cells = 0
        for f in table.live_rows():
            vs, wake = int(table.nodes.rows[f, VS]), int(table.nodes.rows[f, WAKE])
            for column in range(OUT, table.nodes.rows.shape[1]):
                ends = self.ends(f, column)
                cells += len(ends)
                times = [ve for ve, _ in ends]
                if times != sorted(set(times)) or any(count <= 0 for _, count in ends):
                    raise InvariantError(f"in³t: 1: ends of node {f}, column {column}: {ends}")
                if vs < decided and any(decided <= ve < wake for ve in times):
                    raise InvariantError(f"in³t: 3: node {f} sleeps past one of its ends")
            if vs < decided and not final and not self.ends(f, OUT):
                raise InvariantError(f"in³t: 2: node {f} is half frozen and not output")
        if cells != int(self.cells.state[_LIVE]):
            raise InvariantError(f"in³t: 1: {cells} cells in lists, not all in use")

    def outputs(self, decided: int) -> Batch:
        """What the output holds from the decided point on, as inserts. O(capacity)."""
        out = Outputs.of(self._events())
        output = _outputs(self.index.table.nodes, self.cells, decided, out)
        return self.index.batch(out, output)

    def save(self) -> dict[str, Any]:
        """The index, and the multisets as lists of ends in the order of nodes and columns."""
        saved = self.index.save()
        rows = saved["nodes"]
        lists = [self._list(int(head)) for row in rows for head in row[OUT:]]
        saved["sizes"] = np.array([len(each) for each in lists], dtype=np.int64)
        saved["ends"] = np.array([end for each in lists for end in each], dtype=np.int64).reshape(
            -1, 2
        )
        rows[:, OUT:] = _END  # where the lists were is of no interest
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        sizes, ends = saved["sizes"], saved["ends"]
        count = len(ends)
        self.cells = _empty_cells(max(128, count))
        self.cells.ve[:count], self.cells.copies[:count] = ends[:, 0], ends[:, 1]
        self.cells.after[:count] = np.arange(1, count + 1)
        past = np.cumsum(sizes)
        self.cells.after[past[sizes > 0] - 1] = _END
        self.cells.state[:] = (count, count, _END)
        rows = saved["nodes"].copy()
        rows[:, OUT:] = np.where(sizes > 0, past - sizes, _END).reshape(
            rows.shape[0], rows.shape[1] - OUT
        )
        self.index.load({**saved, "nodes": rows})


def _empty_cells(capacity: int) -> Cells:
    return Cells(
        ve=np.zeros(capacity, dtype=np.int64),
        copies=np.zeros(capacity, dtype=np.int32),
        after=np.full(capacity, _END, dtype=np.int32),
        state=np.array([0, 0, _END], dtype=np.int64),
    )
