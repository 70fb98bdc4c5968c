"""What an output of inserts alone holds at or after its stable point.

R0 to R2 keep no events, and under ``final`` the index forgets what it has output; a consumer that
begins now still wants what is live. Cost: amortised O(1) a row; memory follows what is live.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lmerge.elements import Stable
from lmerge.times import BEGINNING

_SLACK: Final = 4096  # rows that are not worth a look


class LiveInserts:
    """The inserts that a stable point has not fully frozen."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._kept = 0  # rows that were live when we last looked
        self._stable = BEGINNING

    def take(self, parts: list[Any]) -> None:
        """Output, in order."""
        for part in parts:
            if isinstance(part, pa.RecordBatch):
                self._batches.append(part)
                self._rows += part.num_rows
            elif isinstance(part, Stable):
                self._stable = part.vc
        if self._rows > 2 * self._kept + _SLACK:
            self.events(self._stable)

    def events(self, stable: int) -> pa.RecordBatch:
        """What ends at or after ``stable``; the rest is forgotten."""
        table = pa.Table.from_batches(self._batches, schema=self._schema)
        table = table.filter(pc.greater_equal(table.column("ve"), stable)).combine_chunks()
        found = table.to_batches()
        kept = found[0] if found else pa.RecordBatch.from_pylist([], schema=self._schema)
        self._batches, self._rows, self._kept = [kept], kept.num_rows, kept.num_rows
        return kept

    def save(self, stable: int) -> bytes:
        """For a snapshot."""
        return bytes(self.events(stable).serialize())

    def load(self, data: bytes) -> None:
        """Become what was saved."""
        self.take([pa.ipc.read_record_batch(data, self._schema)])
