"""Elements of streams that are still joining, for the algorithms that have no index.

They wait, in order, until their stream is joined, and are merged then. What the output has passed
in the meantime is dropped, so only what is ahead of the output is held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lmerge.core.batch import Batch
from lmerge.elements import Op


def inserts_of(batch: Batch) -> Batch:
    """The batch without its stable rows."""
    if batch.inserts_only or not len(batch) or batch.op.max() == Op.INSERT:
        return batch
    return batch.take(np.flatnonzero(batch.op == Op.INSERT))


class Waiting:
    """Batches by slot."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}

    def put(self, slot: int, batch: Batch, passed: int) -> None:
        """``batch`` waits; what ended up before ``passed`` no longer does."""
        waiting = self._batches.setdefault(slot, [])
        batch.h1, batch.h2 = batch.h1.copy(), batch.h2.copy()  # imprints last for a call
        waiting.append(batch)
        self._batches[slot] = [each for each in waiting if len(each) and each.vs[-1] >= passed]

    def take(self, slot: int) -> list[Batch]:
        """All that waits, in order."""
        return self._batches.pop(slot, [])

    @property
    def nbytes(self) -> int:
        """Bytes of the payloads that wait."""
        return sum(int(b.payload.nbytes) for each in self._batches.values() for b in each)

    @property
    def rows(self) -> int:
        """Elements that wait."""
        return sum(len(batch) for each in self._batches.values() for batch in each)

    def save(self) -> dict[str, Any]:
        """As plain values."""
        saved: dict[str, Any] = {}
        for slot, batches in self._batches.items():
            for i, b in enumerate(batches):
                key = f"waiting.{slot}.{i}"
                hashes = [h if len(h) else np.zeros_like(b.vs) for h in (b.h1, b.h2)]
                saved[f"{key}.times"] = np.stack([b.vs, b.ve, *hashes]) if len(b) else None
                saved[f"{key}.payload"] = b.payload
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        self._batches = {}
        keys = [key for key in saved if key.startswith("waiting.") and key.endswith(".times")]
        for key in sorted(keys, key=lambda k: [int(n) for n in k.split(".")[1:3]]):
            slot = int(key.split(".")[1])
            vs, ve, h1, h2 = saved[key]
            payload: pa.RecordBatch = saved[key.replace(".times", ".payload")]
            op = np.full(len(vs), Op.INSERT, dtype=np.int8)
            batch = Batch(op, vs, ve, np.zeros_like(vs), payload, h1, h2)
            self._batches.setdefault(slot, []).append(batch)
