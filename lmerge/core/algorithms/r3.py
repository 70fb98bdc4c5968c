"""R3: any elements, any order; ``(vs, payload)`` is a key of every prefix. The index is in²t.

Line numbers are those of the paper's Algorithm R3; where the loops depart from it, the comment
says why. The second tier of a node is a column for each stream with the end that it gives the
event (ABSENT: none), and the column OUT for the output.

Invariants beside those of :mod:`lmerge.core.nodes`, as :meth:`R3.check` asserts them:
1. a node with ``vs`` below the decided point m has an output (not under ``final``);
2. an output's end is at or after m;
3. no end at or after m is before its node's wake time, once m has passed ``vs``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.algorithms.base import ABSENT, Effects, View
from lmerge.core.algorithms.indexed import Index, Outputs, Settled, Taken, touching
from lmerge.core.batch import Batch
from lmerge.core.compiled import Int, Int8s, Int64s, compiled
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
_SECOND: Final = int(Broken.SECOND_EVENT)


@compiled
def _supporters(nodes: Nodes, f: Int, joined: Any) -> Int:
    count = 0
    for slot in range(joined.size):
        if joined[slot] and nodes.rows[f, STREAMS + slot] != ABSENT:
            count += 1
    return count


@compiled
def _data(
    nodes: Nodes,
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
    rows = nodes.rows
    made = output = dropped = late = 0
    reason = 0
    i = 0
    while i < op.size:
        approach(nodes, vs, h1, i)
        if op[i] == STABLE:
            i += 1
            continue
        start, end = vs[i], ve[i]
        f = find(nodes, start, h1[i], h2[i])  # lines 4, 12
        if op[i] == INSERT:
            if f == NOBODY:
                if start < m:  # line 6: decided before, and gone
                    if end < m:
                        dropped += 1
                    else:
                        late += 1
                    i += 1
                    continue
                f = add(nodes, start, h1[i], h2[i], next_number + made, ABSENT)  # line 7
                fresh[made] = i
                made += 1
            elif rows[f, column] != ABSENT and rows[f, column] >= m:
                # A known end at or after m is exact; an older one may have been dropped since.
                reason = _SECOND
                break
            new = end
        else:
            if f == NOBODY:  # line 13
                if start >= m:
                    reason = _NO_SUCH
                    break
                dropped += 1
                i += 1
                continue
            if vold[i] >= m and rows[f, column] != vold[i]:
                reason = _NO_SUCH
                break
            new = ABSENT if end == start else end
        rows[f, column] = new  # lines 10, 14
        out = rows[f, OUT]
        if out == ABSENT:
            wanted = may_output and new != ABSENT and start >= m
            if wanted and (support == 1 or _supporters(nodes, f, joined) >= support):
                rows[f, OUT] = new  # lines 8, 9
                out_row[output] = i
                out_op[output] = INSERT
                out_ve[output] = new
                out_vold[output] = 0
                output += 1
        elif eager and is_joined and new != out and (start if new == ABSENT else new) >= m:
            # Not in the pseudo-code: §V.A's first alternative at location 1.
            rows[f, OUT] = new
            out_row[output] = i
            out_op[output] = ADJUST
            out_ve[output] = start if new == ABSENT else new
            out_vold[output] = out
            output += 1
        if start < m and new != ABSENT:
            wake_earlier(nodes, f, new)
        i += 1
    return i, reason, made, output, dropped, late


@compiled
def _best_informed(nodes: Nodes, f: Int, m: Int, joined: Any, stables: Any) -> Int:
    """The end that the most advanced stream with a possible one gives; else the output's."""
    answer = nodes.rows[f, OUT]
    best = -1
    for slot in range(joined.size):
        end = nodes.rows[f, STREAMS + slot]
        possible = joined[slot] and end != ABSENT and end >= m
        if possible and (best < 0 or stables[slot] > stables[best]):
            best = slot
            answer = end
    return answer if answer != ABSENT else nodes.rows[f, VS]


@compiled
def _next_wake(nodes: Nodes, f: Int, t: Int) -> Int:
    """The smallest end of a half-frozen node that a later stable can pass."""
    wake = np.int64(INFINITY)
    for column in range(OUT, nodes.rows.shape[1]):
        end = nodes.rows[f, column]
        if end != ABSENT and end >= t and end < wake:
            wake = end
    return wake


@compiled
def _stable(
    nodes: Nodes,
    chain: Int,
    t: Int,
    m: Int,
    column: Int,
    joined: Any,
    stables: Any,
    final: bool,
    bridging: bool,
    out: Outputs,
    held: Int64s,
    settled: Int64s,
    freed: Int64s,
) -> Any:
    rows = nodes.rows
    output = holding = settling = conflicts = removed = 0
    conflict_vs = conflict_ref = np.int64(INFINITY)
    low = t if bridging else m  # below it an answer is no answer
    while chain != NOBODY:
        fetched, chain = fetch_stretch(nodes, chain)
        fetch_places(nodes, fetched)
        for i in range(fetched):
            f = np.int64(nodes.stretch[i])
            start = rows[f, VS]
            answer = rows[f, column]  # line 19
            if answer == ABSENT:
                answer = start  # line 20
            before = rows[f, OUT]  # line 21
            if start < low and answer < low:
                if bridging:
                    # What ended inside the gap stays as it was; what lived on is cut at its start;
                    # what was not output yet is not known to have been.
                    answer = start
                    if before != ABSENT:
                        answer = before if before < t else max(start, m)
                else:
                    # The pseudo-code would break the output's promise here, or take the silence of
                    # a stream about times it does not cover for an answer.
                    if start < m:
                        conflicts += 1
                        if start < conflict_vs or (
                            start == conflict_vs and rows[f, REF] < conflict_ref
                        ):
                            conflict_vs, conflict_ref = start, rows[f, REF]
                    answer = _best_informed(nodes, f, m, joined, stables)
            emit = False
            kind = ADJUST
            if before == ABSENT:
                emit = answer > start and (not final or answer < t)
                kind = INSERT
                before = np.int64(0)
            elif answer != before:
                emit = answer < t or before < t  # lines 22, 23
            if emit:
                out.op[output] = kind
                out.vs[output] = start
                out.ve[output] = answer
                out.vold[output] = before
                out.h1[output] = rows[f, H1]
                out.h2[output] = rows[f, H2]
                out.ref[output] = rows[f, REF]
                output += 1
                rows[f, OUT] = ABSENT if answer == start else answer  # lines 24, 25
            if answer < t:  # lines 26, 27
                if final and start < m:
                    settled[settling] = start
                    settling += 1
                freed[removed] = rows[f, REF]
                remove(nodes, f)
                removed += 1
            else:
                if final and start >= m:
                    held[holding] = start
                    holding += 1
                sleep(nodes, f, _next_wake(nodes, f, t))
    return output, removed, conflicts, conflict_vs, conflict_ref, holding, settling


@compiled
def _contribute(nodes: Nodes, column: Int, m: Int, support: Int, joined: Any, out: Outputs) -> Int:
    rows = nodes.rows
    output = 0
    for f in range(nodes.state[HIGH]):
        end = rows[f, column]
        if rows[f, REF] == FREE_REF or rows[f, OUT] != ABSENT or end == ABSENT:
            continue
        if rows[f, VS] < m or _supporters(nodes, np.int64(f), joined) < support:
            continue
        out.op[output] = INSERT
        out.vs[output] = rows[f, VS]
        out.ve[output] = end
        out.vold[output] = 0
        out.h1[output] = rows[f, H1]
        out.h2[output] = rows[f, H2]
        out.ref[output] = rows[f, REF]
        output += 1
        rows[f, OUT] = end
    return output


class R3:
    """The algorithm over its index."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.index = Index(schema)

    def attach(self, slot: int) -> None:
        """O(capacity)."""
        self.index.table.make_column(slot, ABSENT)

    def detach(self, slot: int) -> None:
        """O(capacity). Nodes stay: a stable decides about them."""
        self.index.table.make_column(slot, ABSENT)

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Elements that touch a time from the decided point on."""
        return touching(batch, decided)

    def data(self, batch: Batch, view: View) -> Effects:
        """O(1) an element."""
        self.index.table.make_room(len(batch))
        room = Taken.of(len(batch))
        counts = _data(
            self.index.table.nodes, batch.op, batch.vs, batch.ve, batch.vold, batch.h1, batch.h2,
            STREAMS + view.slot, view.decided, view.may_output, bool(view.joined[view.slot]),
            view.support, view.joined, view.eager, self.index.payloads.next_number, *room,
        )  # fmt: skip
        return self.index.taken(batch, room, counts)

    def contribute(self, view: View) -> Effects:
        """O(capacity)."""
        nodes = self.index.table.nodes
        out = Outputs.of(int(nodes.state[HIGH]))
        output = _contribute(
            nodes, STREAMS + view.slot, view.decided, view.support, view.joined, out
        )
        return Effects(self.index.batch(out, output), output)

    def stable(self, t: int, view: View) -> Effects:
        """O(nodes that the stable changes, or whose state must be looked at)."""
        return self._decide(t, view, bridging=False)

    def bridge(self, t: int, view: View) -> Effects:
        """O(capacity)."""
        wake_all(self.index.table.nodes, t)
        return self._decide(t, view, bridging=True)

    def _decide(self, t: int, view: View, bridging: bool) -> Effects:
        nodes = self.index.table.nodes
        # Line 17, without the nodes that cannot change.
        chain, count = wake_before(nodes, t)
        out, room = Outputs.of(count), Settled.of(count, view.final)
        counts = _stable(
            nodes, chain, t, view.decided, STREAMS + view.slot, view.joined,
            view.stables, view.final, bridging, out, *room,
        )  # fmt: skip
        return self.index.settled(out, room, counts)

    @property
    def progress(self) -> int:
        """Order decides nothing here."""
        return BEGINNING

    @property
    def live(self) -> int:
        """Events in the index."""
        return self.index.table.live

    @property
    def index_bytes(self) -> int:
        """Bytes of the index, without payloads."""
        return self.index.table.nbytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads it holds."""
        return self.index.payloads.nbytes

    def check(self, decided: int, final: bool) -> None:
        """Raise InvariantError unless the index is sound. O(live · streams), slowly."""
        self.index.check()
        table = self.index.table
        for f in table.live_rows():
            row = table.nodes.rows[f]
            out, ends = int(row[OUT]), [int(end) for end in row[OUT:] if end != ABSENT]
            if row[VS] < decided and out == ABSENT and not final:
                raise InvariantError(f"in²t: 1: node {f} is half frozen and not output")
            if out != ABSENT and out < decided:
                raise InvariantError(f"in²t: 2: node {f} is output with a frozen end")
            if row[VS] < decided and any(decided <= end < row[WAKE] for end in ends):
                raise InvariantError(f"in²t: 3: node {f} sleeps past one of its ends")

    def outputs(self, decided: int) -> Batch:
        """What the output holds from the decided point on, as inserts. O(capacity)."""
        rows = self.index.table.nodes.rows[self.index.table.live_rows()]
        rows = rows[rows[:, OUT] != ABSENT]
        out = Outputs.of(len(rows))
        out.op[:] = INSERT
        out.vold[:] = 0
        columns = ((out.vs, VS), (out.ve, OUT), (out.h1, H1), (out.h2, H2), (out.ref, REF))
        for column, place in columns:
            column[:] = rows[:, place]
        return self.index.batch(out, len(rows))

    def save(self) -> dict[str, Any]:
        """The index, compactly."""
        return self.index.save()

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        self.index.load(saved)
