"""LMR3−, the paper's simple alternative to R3 (§VI.A): an index for each input, one for the output.

Nothing is shared: every input's index holds its own nodes and payloads, and so does the output's.
It is built of the same nodes, wheel, payload store and fingerprints as R3, so that what is
compared is the sharing alone. It assumes streams that are all attached from the start, mutually
consistent and keep their contract; the policies are ``first`` and ``lazy``; it keeps no digests.

A node of an input holds that input's end, and wakes at its start, then at that end. A stable of
input s looks at what wakes in s and in the output, and finds the counterparts by key. A node of
an input whose counterpart is gone is freed at the input's own next stable that wakes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lmerge.core.algorithms.base import ABSENT
from lmerge.core.algorithms.indexed import Index, Outputs, touching
from lmerge.core.batch import Batch, Layout, element_schema, payload_schema, take
from lmerge.core.compiled import Int, Int8s, Int64s, compiled
from lmerge.core.identity import KEY_BYTES, Identity
from lmerge.core.nodes import (
    H1,
    H2,
    NOBODY,
    OUT,
    REF,
    VS,
    Nodes,
    NodeTable,
    _unlink,
    add,
    find,
    remove,
    sleep,
    wake_before,
    wake_earlier,
)
from lmerge.core.output import Output
from lmerge.core.promises import ADJUST, INSERT, first_broken
from lmerge.elements import Stable
from lmerge.times import BEGINNING, INFINITY


@compiled
def _data(
    own: Nodes,
    out: Nodes,
    op: Int8s,
    vs: Int64s,
    ve: Int64s,
    h1: Int64s,
    h2: Int64s,
    m: Int,
    own_number: Int,
    out_number: Int,
    stored: Int64s,
    output: Int64s,
) -> Any:
    """Elements of the input ``own``; the rows to store for it, and those to output."""
    storing = outputs = 0
    for i in range(op.size):
        start = vs[i]
        f = find(own, start, h1[i], h2[i])
        if f == NOBODY:
            known = find(out, start, h1[i], h2[i]) != NOBODY
            if not known and (start < m or op[i] == ADJUST):
                continue
            f = add(own, start, h1[i], h2[i], own_number + storing, ABSENT)
            stored[storing] = i
            storing += 1
            if not known:
                g = add(out, start, h1[i], h2[i], out_number + outputs, ABSENT)
                out.rows[g, OUT] = ve[i]
                output[outputs] = i
                outputs += 1
        end = np.int64(ABSENT) if op[i] == ADJUST and ve[i] == start else ve[i]
        own.rows[f, OUT] = end
        if end != ABSENT:
            wake_earlier(own, f, end)
    return storing, outputs


@compiled
def _settle(own: Nodes, f: Int, out: Nodes, g: Int, t: Int, m: Int, sent: Outputs, at: Int) -> Any:
    """Make the output's node ``g`` agree with the input's ``f`` (NOBODY: it has none) at ``t``.

    Returns whether an element was written at ``at``, and whether the nodes are done with.
    """
    start, before = out.rows[g, VS], out.rows[g, OUT]
    answer = start
    if f != NOBODY and own.rows[f, OUT] != ABSENT:
        answer = own.rows[f, OUT]
    if start < m and answer < m:
        answer = before
    emit = answer != before and (answer < t or before < t)
    if emit:
        sent.op[at] = ADJUST
        sent.vs[at] = start
        sent.ve[at] = answer
        sent.vold[at] = before
        sent.h1[at] = out.rows[g, H1]
        sent.h2[at] = out.rows[g, H2]
        sent.ref[at] = out.rows[g, REF]
        out.rows[g, OUT] = answer
    return emit, answer < t


@compiled
def _stable_of_input(
    own: Nodes, f: Int, out: Nodes, t: Int, m: Int, sent: Outputs, own_freed: Any, out_freed: Any
) -> Any:
    """What wakes in the input's own index; when ``t <= m`` this only frees nodes."""
    count = own_gone = out_gone = 0
    while f != NOBODY:
        following = np.int64(own.after[f])
        g = find(out, own.rows[f, VS], own.rows[f, H1], own.rows[f, H2])
        gone = g == NOBODY or own.rows[f, OUT] == ABSENT
        if g != NOBODY and t > m:
            emit, gone = _settle(own, f, out, g, t, m, sent, count)
            count += emit
            if gone:
                _unlink(out, g)
                out_freed[out_gone] = out.rows[g, REF]
                remove(out, g)
                out_gone += 1
            elif emit:
                wake_earlier(out, g, out.rows[g, OUT])
        if gone:
            own_freed[own_gone] = own.rows[f, REF]
            remove(own, f)
            own_gone += 1
        else:
            end = own.rows[f, OUT]
            sleep(own, f, end if end >= t else np.int64(INFINITY))
        f = following
    return count, own_gone, out_gone


@compiled
def _stable_of_output(
    own: Nodes, out: Nodes, g: Int, t: Int, m: Int, sent: Outputs, count: Int,
    own_freed: Any, own_gone: Int, out_freed: Any, out_gone: Int,
) -> Any:  # fmt: skip
    """What wakes in the output's index, and was not settled from the input's side."""
    while g != NOBODY:
        following = np.int64(out.after[g])
        f = find(own, out.rows[g, VS], out.rows[g, H1], out.rows[g, H2])
        emit, gone = _settle(own, f, out, g, t, m, sent, count)
        count += emit
        if gone:
            out_freed[out_gone] = out.rows[g, REF]
            remove(out, g)
            out_gone += 1
            if f != NOBODY:
                _unlink(own, f)
                own_freed[own_gone] = own.rows[f, REF]
                remove(own, f)
                own_gone += 1
        else:
            sleep(out, g, out.rows[g, OUT])
        g = following
    return count, own_gone, out_gone


class LMR3Minus:
    """The merge, with the calls of :class:`lmerge.core.merge.Merge` that benchmarks use."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = payload_schema(schema)
        self.decided = BEGINNING
        self._identity = Identity(bytes(KEY_BYTES))
        self._layout = Layout(self.schema)
        self._elements = element_schema(self.schema)
        self._inputs: dict[str, Index] = {}
        self._stables: dict[str, int] = {}
        self._output = _index(self.schema)

    def attach(self, name: str) -> None:
        """An index for the stream."""
        self._inputs[name] = _index(self.schema)
        self._stables[name] = BEGINNING

    def apply(self, name: str, elements: pa.RecordBatch, stable: int | None = None) -> Output:
        """Elements of one stream without stable rows, closed by ``stable`` if given."""
        batch = Batch.of(elements, self._layout)
        result = Output()
        # The same check of the stream's contract that Merge makes.
        _, reason, *_ = first_broken(
            batch.op, batch.vs, batch.ve, batch.vold, self._stables[name], BEGINNING,
            False, False, False,
        )  # fmt: skip
        if reason:
            raise ValueError(f"stream {name!r} breaks its contract")
        if len(batch):
            self._data(self._inputs[name], batch, result)
        if stable is not None and stable > self._stables[name]:
            self._stables[name] = stable
            self._stable(self._inputs[name], stable, result)
        return result

    def _data(self, own: Index, batch: Batch, result: Output) -> None:
        if self.decided > BEGINNING:
            needed = touching(batch, self.decided)
            if not needed.all():
                batch = batch.take(np.flatnonzero(needed))
        batch.fingerprint(self._identity.fingerprints(batch.payload))
        out = self._output
        for index in (own, out):
            index.table.make_room(len(batch))
        stored, output = (np.empty(len(batch), np.int64) for _ in range(2))
        storing, outputs = _data(
            own.table.nodes, out.table.nodes, batch.op, batch.vs, batch.ve, batch.h1, batch.h2,
            self.decided, own.payloads.next_number, out.payloads.next_number, stored, output,
        )  # fmt: skip
        own.payloads.append(take(batch.payload, stored[:storing]))
        if outputs:
            rows = output[:outputs]
            payload = take(batch.payload, rows)
            out.payloads.append(payload)
            ends = batch.ve[rows]
            made = Batch(
                np.full(outputs, INSERT, np.int8), batch.vs[rows], ends, np.zeros_like(ends),
                payload, batch.h1[rows], batch.h2[rows],
            )  # fmt: skip
            result.parts.append(made.to_arrow(self._elements))

    def _stable(self, own: Index, t: int, result: Output) -> None:
        out, m = self._output, self.decided
        chain, woken = wake_before(own.table.nodes, t)
        sent = Outputs.of(woken + out.table.live if t > m else 0)
        own_freed = np.empty(own.table.live, np.int64)
        out_freed = np.empty(out.table.live if t > m else 0, np.int64)
        count, own_gone, out_gone = _stable_of_input(
            own.table.nodes, chain, out.table.nodes, t, m, sent, own_freed, out_freed
        )
        if t > m:
            chain, _ = wake_before(out.table.nodes, t)
            count, own_gone, out_gone = _stable_of_output(
                own.table.nodes, out.table.nodes, chain, t, m, sent, count,
                own_freed, own_gone, out_freed, out_gone,
            )  # fmt: skip
            if count:
                result.parts.append(out.batch(sent, count).to_arrow(self._elements))
            out.payloads.release(out_freed[:out_gone])
            self.decided = t
            result.parts.append(Stable(t))
        own.payloads.release(own_freed[:own_gone])

    @property
    def nbytes(self) -> int:
        """Bytes of all indexes and the payloads they hold."""
        every = [*self._inputs.values(), self._output]
        return sum(index.table.nbytes + index.payloads.nbytes for index in every)

    def check(self) -> None:
        """Raise InvariantError unless every index is sound. Slow: for tests."""
        for index in (*self._inputs.values(), self._output):
            index.check()


def _index(schema: pa.Schema) -> Index:
    """An index whose nodes have one end: its owner's."""
    index = Index(schema)
    index.table = NodeTable(streams=0)
    return index
