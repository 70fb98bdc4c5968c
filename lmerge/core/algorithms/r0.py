"""R0: inserts with strictly increasing starts. The state is one number, the largest start.

An element is output when its start is larger than any before. Beyond the pseudo-code, one below
the decided point is not: the output has promised that none comes.
Cost: O(log rows) a batch; what is output is a slice of what came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.algorithms.base import Effects, View
from lmerge.core.algorithms.waiting import Waiting, inserts_of
from lmerge.core.batch import Batch, no_elements
from lmerge.core.compiled import Int, Int64s, compiled
from lmerge.core.promises import Broken
from lmerge.elements import Op
from lmerge.times import BEGINNING


@compiled
def first_from(vs: Int64s, t: Int) -> Int:
    """The first row with a start at or after ``t``, of rows by start."""
    low, high = 0, vs.size
    while low < high:
        middle = (low + high) // 2
        if vs[middle] < t:
            low = middle + 1
        else:
            high = middle
    return low


class R0:
    """The algorithm."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.nothing = no_elements(schema)
        self.progress = BEGINNING  # MaxVs
        self.waiting = Waiting()

    def attach(self, slot: int) -> None:
        """Nothing to do."""

    def detach(self, slot: int) -> None:
        """Forget what waits."""
        self.waiting.take(slot)

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Elements that are not behind."""
        behind = batch.vs < max(self.progress, decided)
        return np.asarray(~behind | (batch.op == Op.STABLE))

    def data(self, batch: Batch, view: View) -> Effects:
        """O(log rows)."""
        rows = len(batch)
        batch = inserts_of(batch)
        if not view.joined[view.slot]:
            self.waiting.put(view.slot, batch, self.progress)
            return Effects(self.nothing, rows)
        first = int(first_from(batch.vs, max(self.progress + 1, view.decided)))
        if first == len(batch):
            return Effects(self.nothing, rows, dropped=first)
        self.progress = int(batch.vs[-1])
        output = batch.rows(slice(first, len(batch)))
        return Effects(output, rows, span_of(batch, first, len(batch)), dropped=first)

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
        """One number."""
        return 8

    @property
    def payload_bytes(self) -> int:
        """Only what waits."""
        return self.waiting.nbytes

    def check(self, decided: int, final: bool) -> None:
        """There is nothing to be wrong."""

    def save(self) -> dict[str, Any]:
        """The number, and what waits."""
        return {"progress": self.progress, **self.waiting.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        self.progress = saved["progress"]
        self.waiting.load(saved)


def span_of(batch: Batch, first: int, last: int) -> tuple[int, int] | None:
    """These rows as a span of the batch that came, unless stables were taken out of it."""
    return (first, last) if batch.inserts_only else None


def output_of(batch: Batch, chosen: Int64s) -> tuple[Batch, tuple[int, int] | None]:
    """The rows ``chosen`` (at least one), and their span if they are neighbours."""
    first, last = int(chosen[0]), int(chosen[-1]) + 1
    span = span_of(batch, first, last) if last - first == len(chosen) else None
    return batch.choose(chosen), span


def merge_waiting(algorithm: Any, waiting: Waiting, view: View, ending: int) -> Effects:
    """What waits for a stream that is joined now, and ends at ``ending`` or later, as one."""
    outputs: list[Batch] = []
    result = Effects(algorithm.nothing, 0)
    for batch in waiting.take(view.slot):
        kept = batch.ve >= ending
        if not kept.all():
            batch = batch.take(np.flatnonzero(kept))
        effects = algorithm.data(batch, view)
        if len(effects.output):
            outputs.append(effects.output)
        result.dropped += effects.dropped
        if effects.broken is not Broken.NOTHING:
            result.broken, result.offender = effects.broken, batch.element(effects.rows)
            break
    result.output = joined(outputs, algorithm.schema)
    return result


def joined(batches: list[Batch], schema: pa.Schema) -> Batch:
    """Several batches as one."""
    if not batches:
        return no_elements(schema)
    if len(batches) == 1:
        return batches[0]
    names = ("op", "vs", "ve", "vold", "h1", "h2")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(b, name) for b in batches]) for name in names
    }
    return Batch(payload=pa.concat_batches([b.payload for b in batches]), **columns)
