"""What a query says of a row the second time: revisions, from results that replace each other.

Update mode gives a group's row again when it changes, complete mode everything every time.
:class:`Revisions` keeps the last row of each key and makes elements of the difference: a new key is
inserted; a row that differs replaces the old one (its event is removed and the new one inserted, or
only its end is moved when nothing else has changed); in complete mode a key that is gone is
removed. What the stream's stable point no longer allows is late, and left out: the row stays what
it was. Events that are fully frozen are forgotten.

The state after an epoch follows from the state before it and the epoch's rows, so an epoch that is
run again gives the same elements. Cost: O(rows) a batch, O(live keys) in complete mode and memory.
"""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lmerge.core.identity import Identity
from lmerge.elements import Op
from lmerge.errors import ConfigurationError

Mask = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

_IDENTITY: Final = Identity(bytes(32))
"""Tells keys apart within one result only; nothing is gained by making two collide in one's own."""


class Revisions:
    """The last row of each key. ``live`` has the payload's columns, and ``vs`` and ``ve``."""

    def __init__(self, payload: pa.Schema, keys: tuple[str, ...], *, complete: bool) -> None:
        self._payload = payload
        self._keys = keys
        self.complete = complete
        times = [pa.field("vs", pa.int64()), pa.field("ve", pa.int64())]
        self._schema = pa.schema([*payload, *times])
        self.live = pa.Table.from_pylist([], schema=self._schema)

    def apply(
        self, rows: pa.Table, vs: Int64s, ve: Int64s, stable: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """The elements that lead from the results before to these, and how many rows were late."""
        new = self._timed(rows, vs, ve)
        old = self.live
        of_new, of_old = self._matched(new, old)
        same_event = _equal(new, old, of_new, of_old, [*self._payload.names, "vs"])
        old_vs, old_ve = old["vs"].to_numpy(), old["ve"].to_numpy()
        moved = same_event & (ve[of_new] != old_ve[of_old])
        replaced = ~same_event
        # Late: an element below the stream's own stable point would break its promise.
        late = moved & (np.minimum(ve[of_new], old_ve[of_old]) < stable)
        late |= replaced & (np.minimum(vs[of_new], old_vs[of_old]) < stable)
        moved &= ~late
        replaced &= ~late
        fresh = vs >= stable
        fresh[of_new] = replaced
        unheard = np.ones(new.num_rows, dtype=np.bool_)
        unheard[of_new] = False
        unmatched = np.ones(old.num_rows, dtype=np.bool_)
        unmatched[of_old] = False
        gone = unmatched & (old_vs >= stable) & self.complete
        removed = np.concatenate([of_old[replaced], np.flatnonzero(gone)])
        elements = [
            self._table(Op.ADJUST, old.take(removed), "vs", old["ve"].take(removed)),
            self._table(Op.ADJUST, new.take(of_new[moved]), "ve", old["ve"].take(of_old[moved])),
            self._table(Op.INSERT, new.filter(pa.array(fresh)), "ve", None),
        ]
        stays = unmatched & ~gone
        stays[of_old[late]] = True
        lives = fresh.copy()
        lives[of_new] = ~late
        self.live = pa.concat_tables([old.filter(pa.array(stays)), new.filter(pa.array(lives))])
        batches = [b for table in elements for b in table.to_batches() if b.num_rows]
        return batches, int(late.sum() + (unheard & ~fresh).sum())

    def forget(self, stable: int) -> int:
        """Drop what is fully frozen; how many rows."""
        if self.complete:
            return 0  # they come again with every result, and must be known for what they are
        before = self.live.num_rows
        self.live = self.live.filter(pc.greater_equal(self.live["ve"], stable))
        return int(before - self.live.num_rows)

    def everything(self) -> list[pa.RecordBatch]:
        """All live rows as inserts, for a merge that has not heard of them."""
        table = self._table(Op.INSERT, self.live, "ve", None)
        return [batch for batch in table.to_batches() if batch.num_rows]

    def clear(self) -> None:
        """Back to the beginning."""
        self.live = self.live.slice(0, 0)

    def save(self) -> bytes:
        """The state, as an Arrow stream."""
        return _bytes(self.live)

    def load(self, saved: bytes) -> None:
        """Go back to a saved state."""
        self.live = self._table_of(saved)

    def rows_bytes(self, rows: pa.Table, vs: Int64s, ve: Int64s) -> bytes:
        """What :meth:`apply` was given, to apply it again."""
        return _bytes(self._timed(rows, vs, ve))

    def rows_of(self, saved: bytes) -> tuple[pa.Table, Int64s, Int64s]:
        """The inverse of :meth:`rows_bytes`."""
        table = self._table_of(saved)
        vs, ve = (table[name].to_numpy() for name in ("vs", "ve"))
        return table.drop_columns(["vs", "ve"]), vs, ve

    def _table_of(self, saved: bytes) -> pa.Table:
        with pa.ipc.open_stream(saved) as reader:
            table = reader.read_all()
        if not table.schema.equals(self._schema):
            raise ConfigurationError(
                f"the checkpoint was made by a query with another result: {table.schema.names}"
                f" there, {self._schema.names} here; start with a new checkpoint"
            )
        return table

    def _timed(self, rows: pa.Table, vs: Int64s, ve: Int64s) -> pa.Table:
        timed = rows.append_column(self._schema.field("vs"), pa.array(vs, pa.int64()))
        timed = timed.append_column(self._schema.field("ve"), pa.array(ve, pa.int64()))
        return timed.cast(self._schema)

    # -- how ----------------------------------------------------------------------------------

    def _matched(self, new: pa.Table, old: pa.Table) -> tuple[Int64s, Int64s]:
        """The rows of both that have the same key, side by side."""
        found = _numbered(new, self._keys, "new")
        if pc.count_distinct(found["h1"]).as_py() < new.num_rows:  # h1 alone: 64 bits are enough
            repeated = found.group_by(["h1", "h2"]).aggregate([("new", "count"), ("new", "min")])
            twice = repeated.filter(pc.greater(repeated["new_count"], 1))
            if twice.num_rows:
                row = new.slice(twice["new_min"][0].as_py(), 1).to_pylist()[0]
                key = {name: row[name] for name in self._keys}
                raise ConfigurationError(
                    f"the result has several rows with the key {key}: name the columns that"
                    " identify a row with key=[…]"
                )
        if not old.num_rows or not new.num_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        both = found.join(_numbered(old, self._keys, "old"), ["h1", "h2"], join_type="inner")
        both = both.sort_by("new")  # a join's order is nobody's
        return both["new"].to_numpy(), both["old"].to_numpy()

    def _table(self, op: Op, rows: pa.Table, end: str, vold: Any) -> pa.Table:
        count = rows.num_rows
        ops = pa.array(np.full(count, int(op), np.int8))
        vold = pa.array(np.zeros(count, np.int64)) if vold is None else vold
        columns = {"op": ops, "vs": rows["vs"], "ve": rows[end], "vold": vold}
        columns.update({name: rows[name] for name in self._payload.names})
        return pa.table(columns)


def _bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _hashes(rows: pa.Table, names: list[str] | tuple[str, ...]) -> tuple[Any, Any]:
    table = rows.select(list(names)).combine_chunks()
    batches = table.to_batches()
    if not batches:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    pairs = [_IDENTITY.fingerprints(batch) for batch in batches]
    h1, h2 = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return h1.view(np.int64), h2.view(np.int64)


def _numbered(rows: pa.Table, names: tuple[str, ...], number: str) -> pa.Table:
    h1, h2 = _hashes(rows, names)
    return pa.table({"h1": h1, "h2": h2, number: np.arange(rows.num_rows)})


def _equal(new: pa.Table, old: pa.Table, of_new: Int64s, of_old: Int64s, names: list[str]) -> Mask:
    """For each pair of rows whether these columns agree."""
    one, other = _hashes(new, names), _hashes(old, names)
    same: Mask = (one[0][of_new] == other[0][of_old]) & (one[1][of_new] == other[1][of_old])
    return same
