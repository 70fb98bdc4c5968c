"""What in²t and in³t have in common: nodes, their payloads, and output made from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.batch import Batch, no_elements
from lmerge.core.compiled import Int8s, Int64s
from lmerge.core.nodes import LAST, REF, NodeTable
from lmerge.core.payloads import PayloadStore
from lmerge.elements import Op
from lmerge.errors import InvariantError


class Outputs(NamedTuple):
    """Output elements that compiled code wrote, each with its node's payload number."""

    op: Int8s
    vs: Int64s
    ve: Int64s
    vold: Int64s
    h1: Int64s
    h2: Int64s
    ref: Int64s

    @staticmethod
    def of(count: int) -> Outputs:
        """Room for ``count`` elements."""
        return Outputs(np.empty(count, np.int8), *(np.empty(count, np.int64) for _ in range(6)))


def touching(batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
    """Elements of which the start or an end is at or after ``decided``, and stables."""
    old = (batch.vs < decided) & (batch.ve < decided)
    old &= (batch.op == Op.INSERT) | (batch.vold < decided)
    needed: npt.NDArray[np.bool_] = ~old | (batch.op == Op.STABLE)
    return needed


class Index:
    """Nodes, and a payload for each."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.table = NodeTable()
        self.payloads = PayloadStore(schema)

    def batch(self, out: Outputs, count: int) -> Batch:
        """Output elements with their payloads, by ``vs``, then in the order of arrival."""
        if not count:
            return no_elements(self.schema)
        order = np.lexsort((out.ref[:count], out.vs[:count]))
        op, vs, ve, vold, h1, h2, ref = (column[order] for column in out)
        return Batch(op, vs, ve, vold, self.payloads.gather(ref), h1, h2)

    def release(self, references: Int64s) -> None:
        """The nodes with these payloads are gone."""
        if len(references):
            self.payloads.release(references)

    def check(self) -> None:
        """Raise InvariantError unless nodes and payloads are sound, and go together."""
        self.table.check()
        self.payloads.check()
        if self.payloads.live != self.table.live:
            raise InvariantError(
                f"index: {self.table.live} nodes and {self.payloads.live} payloads"
            )

    def save(self) -> dict[str, Any]:
        """The live nodes in the order of their payloads, and the payloads."""
        rows = self.table.nodes.rows[self.table.live_rows()]
        rows = rows[np.argsort(rows[:, REF])]
        return {
            "nodes": rows,
            "last": int(self.table.nodes.state[LAST]),
            "payloads": self.payloads.gather(np.ascontiguousarray(rows[:, REF])),
            "next_number": self.payloads.next_number,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        rows = saved["nodes"]
        self.table = NodeTable.of(rows, saved["last"])
        numbers = np.ascontiguousarray(rows[:, REF])
        self.payloads.restore(saved["payloads"], numbers, saved["next_number"])
