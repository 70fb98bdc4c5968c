"""What in²t and in³t have in common: nodes, their payloads, and output made from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.algorithms.base import Effects
from lmerge.core.batch import Batch, no_elements, take
from lmerge.core.compiled import Int8s, Int64s
from lmerge.core.nodes import LAST, REF, NodeTable
from lmerge.core.payloads import PayloadStore
from lmerge.core.promises import Broken
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


class Taken(NamedTuple):
    """Where a loop over a batch writes which rows are new, and what it outputs for which."""

    fresh: Int64s
    row: Int64s
    op: Int8s
    ve: Int64s
    vold: Int64s

    @staticmethod
    def of(count: int) -> Taken:
        """Room for a batch of ``count`` elements."""
        fresh, row, ve, vold = (np.empty(count, np.int64) for _ in range(4))
        return Taken(fresh, row, np.empty(count, np.int8), ve, vold)


class Settled(NamedTuple):
    """Where a stable's loop writes the starts that it leaves open and closes, and what it frees."""

    held: Int64s
    settled: Int64s
    freed: Int64s

    @staticmethod
    def of(count: int, final: bool) -> Settled:
        """Room for ``count`` nodes."""
        held, settled = (np.empty(count if final else 0, np.int64) for _ in range(2))
        return Settled(held, settled, np.empty(count, np.int64))


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
        self.nothing = no_elements(schema)
        self.table = NodeTable()
        self.payloads = PayloadStore(schema)

    def batch(self, out: Outputs, count: int) -> Batch:
        """Output elements with their payloads, by ``vs``, then in the order of arrival."""
        if not count:
            return self.nothing
        order = np.lexsort((out.ref[:count], out.vs[:count]))
        op, vs, ve, vold, h1, h2, ref = (column[order] for column in out)
        return Batch(op, vs, ve, vold, self.payloads.gather(ref), h1, h2)

    def taken(self, batch: Batch, room: Taken, counts: tuple[int, ...]) -> Effects:
        """Store what is new of a batch, and say what became of it."""
        rows, reason, made, output, dropped, late = counts
        effects = Effects(self.nothing, rows, None, Broken(reason), dropped=dropped, late=late)
        fresh, row = room.fresh[:made], room.row[:output]
        stored = take(batch.payload, fresh) if made else None
        if stored is not None:
            self.payloads.append(stored)
        if output:
            # Under `first` what is output is what is new: the same rows serve both.
            same = stored is not None and output == made and np.array_equal(row, fresh)
            effects.output = Batch(
                room.op[:output], batch.vs[row], room.ve[:output], room.vold[:output],
                stored if same else take(batch.payload, row), batch.h1[row], batch.h2[row],
            )  # fmt: skip
        return effects

    def settled(self, out: Outputs, room: Settled, counts: tuple[int, ...]) -> Effects:
        """Free the payloads of nodes that are gone, and say what a stable did."""
        output, removed, conflicts, vs, ref, holding, settling = counts
        effects = Effects(
            self.batch(out, output),
            output,
            conflicts=conflicts,
            held=room.held[:holding].tolist(),
            settled=room.settled[:settling].tolist(),
        )
        if conflicts:
            effects.conflict = (vs, self.payloads.gather(np.array([ref])).to_pylist()[0])
        if removed:
            self.payloads.release(room.freed[:removed])
        return effects

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
