"""A query's rows as events, in columns, checked as they leave Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmerge.elements import Op
from lmerge.errors import InputError
from lmerge.times import BEGINNING
from replicas.lifetimes import STABLE, VE, VS
from replicas.revisions import Int64s
from replicas.types import as_payload


@dataclass(frozen=True)
class Events:
    """Rows as events: the payload's columns, and their lifetimes."""

    payload: pa.Table
    vs: Int64s
    ve: Int64s
    stable: int  # the largest that a row promises; BEGINNING: none does

    def where(self, kept: Any) -> Events:
        """Some of them."""
        if kept.all():
            return self
        return Events(
            self.payload.filter(pa.array(kept)), self.vs[kept], self.ve[kept], self.stable
        )

    def by_start(self) -> Events:
        """In the order of their starts."""
        if (np.diff(self.vs) >= 0).all():
            return self
        order = np.argsort(self.vs, kind="stable")
        return Events(self.payload.take(order), self.vs[order], self.ve[order], self.stable)

    def inserts(self) -> Iterator[pa.RecordBatch]:
        """As elements."""
        count = len(self.vs)
        if count:
            head = {
                "op": np.full(count, int(Op.INSERT), np.int8),
                "vs": self.vs, "ve": self.ve, "vold": np.zeros(count, np.int64),
            }  # fmt: skip
            columns = {
                **head,
                **dict(zip(self.payload.column_names, self.payload.columns, strict=True)),
            }
            yield from pa.table(columns).to_batches()


def events_of(rows: pa.Table, payload: pa.Schema) -> Events:
    """What came out of Spark, checked."""
    vs, ve = rows[VS], rows[VE]
    if vs.null_count:
        row = rows.filter(vs.is_null()).slice(0, 1).to_pylist()[0]
        raise InputError("the query's result", None, f"vs is null in {_shown(row)}")
    starts, ends = vs.to_numpy(), ve.to_numpy()
    empty = np.flatnonzero(ends <= starts)
    if len(empty):
        row = rows.slice(int(empty[0]), 1).to_pylist()[0]
        raise InputError("the query's result", None, f"ve is not after vs in {_shown(row)}")
    stable = BEGINNING
    if STABLE in rows.column_names:
        promised = pc.max(rows[STABLE]).as_py()
        stable = BEGINNING if promised is None else promised
    return Events(as_payload(rows.select(payload.names), payload), starts, ends, stable)


def _shown(row: dict[str, Any]) -> str:
    shown = {name.replace("__lmerge_", ""): value for name, value in row.items()}
    text = str(shown)
    return text if len(text) <= 300 else text[:297] + "..."
