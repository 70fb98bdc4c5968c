"""C+LMR1 (§VI.D): order each stream by *Cleanse*, then merge the ordered streams by R1.

Cleanse takes a disordered stream with revisions and holds every event until a stable has passed
its end; what it releases are inserts in order of ``vs``. Since a start may be released only when
no event that starts earlier is still open, an unfinished event holds back all that start after
it; the stable point that Cleanse passes on waits likewise. Ties are put in the order of their
fingerprints under one key, which is the same for every stream: R1's ``deterministic ties``.
An event that never ends is never released, and nothing after it is.

Built of R3's own index (an input's events under ``final``), so that it is columnar too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lmerge.core.algorithms.base import NEVER, View
from lmerge.core.algorithms.r3 import R3
from lmerge.core.batch import Batch, Layout, element_schema, payload_schema, take
from lmerge.core.identity import KEY_BYTES, Identity
from lmerge.core.merge import Merge
from lmerge.core.nodes import VS
from lmerge.core.output import Output
from lmerge.core.policy import DivergencePolicy, Policy
from lmerge.core.promises import first_broken
from lmerge.core.properties import Restriction
from lmerge.times import BEGINNING


class Cleanse:
    """Orders one stream. Nothing it releases is ever revised."""

    def __init__(self, schema: pa.Schema, identity: Identity) -> None:
        self._layout = Layout(schema)
        self._elements = element_schema(schema)
        self._nothing = pa.RecordBatch.from_pylist([], schema=self._elements)
        self._identity = identity
        self._index = R3(schema)
        self._index.attach(0)
        self._stable = self._promised = BEGINNING
        self._finished: list[Batch] = []  # events that wait for earlier ones to finish

    def apply(
        self, elements: pa.RecordBatch, stable: int | None
    ) -> tuple[pa.RecordBatch, int] | None:
        """Take elements without stable rows; what is released by ``stable``, and up to when."""
        batch = Batch.of(elements, self._layout)
        _, reason, *_ = first_broken(
            batch.op, batch.vs, batch.ve, batch.vold, self._stable, BEGINNING, False, False, False
        )
        if reason:
            raise ValueError("the stream breaks its contract")
        if len(batch):
            batch.fingerprint(self._identity.fingerprints(batch.payload))
            self._index.data(batch, self._view())
        if stable is None or stable <= self._stable:
            return None
        finished = self._index.stable(stable, self._view()).output
        if len(finished):
            self._finished.append(finished)
        self._stable = stable
        return self._release(stable)

    def _release(self, stable: int) -> tuple[pa.RecordBatch, int] | None:
        table = self._index.index.table
        open_starts = table.nodes.rows[table.live_rows(), VS]
        promise = min(stable, int(open_starts.min())) if len(open_starts) else stable
        if promise <= self._promised:
            return None
        self._promised = promise
        ready: list[Batch] = []
        waiting: list[Batch] = []
        for each in self._finished:
            due = each.vs < promise
            for chosen, where in ((due, ready), (~due, waiting)):
                if chosen.any():
                    where.append(each.take(np.flatnonzero(chosen)))
        self._finished = waiting
        if not ready:
            return self._nothing, promise
        op, vs, ve, vold, h1, h2 = (
            np.concatenate([getattr(part, name) for part in ready])
            for name in ("op", "vs", "ve", "vold", "h1", "h2")
        )
        order = np.lexsort((h2, h1, vs))
        rows = take(pa.concat_batches([part.payload for part in ready]), order)
        released = Batch(op[order], vs[order], ve[order], vold[order], rows, h1[order], h2[order])
        return released.to_arrow(self._elements), promise

    def _view(self) -> View:
        one = np.ones(1, dtype=np.bool_)
        return View(
            slot=0,
            decided=self._stable,
            joined=one,
            stables=np.full(1, self._stable, dtype=np.int64),
            support=NEVER,
            leader_only=False,
            leader=0,
            eager=False,
            final=True,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the index, of its payloads and of the events that wait."""
        waiting: int = sum(
            int(each.payload.nbytes) + int(each.op.nbytes) + 5 * int(each.vs.nbytes)
            for each in self._finished
        )
        return self._index.index_bytes + self._index.payload_bytes + waiting


class CleansedR1:
    """A Cleanse for each stream, and R1; the calls of ``Merge`` that benchmarks use."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = payload_schema(schema)
        self._identity = Identity(bytes(KEY_BYTES))
        self._cleanses: dict[str, Cleanse] = {}
        policy = Policy(divergence=DivergencePolicy.OFF)
        self._merge = Merge(schema, Restriction.R1, policy)

    def attach(self, name: str) -> None:
        """A Cleanse for the stream."""
        self._cleanses[name] = Cleanse(self.schema, self._identity)
        self._merge.attach(name)

    def apply(self, name: str, elements: pa.RecordBatch, stable: int | None = None) -> Output:
        """Elements of one stream without stable rows, closed by ``stable`` if given."""
        released = self._cleanses[name].apply(elements, stable)
        if released is None:
            return Output()
        batch, promise = released
        return self._merge.apply(name, batch, promise)

    @property
    def nbytes(self) -> int:
        """Bytes of what is held before and in the merge."""
        merge = self._merge.statistics()
        held = sum(cleanse.nbytes for cleanse in self._cleanses.values())
        return held + merge.index_bytes + merge.payload_bytes
