"""Gathers rows from many Arrow batches at once, at a cost that does not depend on how many.

Arrow gathers from one batch at a time; a stable needs a few rows from each of many. Here every
column of every batch is known by the addresses of its buffers, and one compiled loop copies the
wanted values into one new column. Columns of fixed width and of byte strings are done that way;
others (nested, boolean, encoded) batch by batch through Arrow.

Callers keep the batches alive while a :class:`Catalog` of them is used.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lmerge.core.compiled import Int, Int64s, compiled, copy_bytes, load_at

_BYTE: Final = np.uint8(0)
_INT32: Final = np.int32(0)
_INT64: Final = np.int64(0)
_ROOM: Final = 64  # batches for which a catalog has room at first


class _Kind(Enum):
    FIXED = 1
    TEXT = 2  # offsets of 32 bits
    LARGE_TEXT = 3  # offsets of 64 bits
    OTHER = 4


@cache
def _kind(type_: pa.DataType) -> _Kind:
    t = pa.types
    if t.is_string(type_) or t.is_binary(type_):
        return _Kind.TEXT
    if t.is_large_string(type_) or t.is_large_binary(type_):
        return _Kind.LARGE_TEXT
    fixed = t.is_primitive(type_) or t.is_decimal(type_) or t.is_fixed_size_binary(type_)
    if fixed and not t.is_boolean(type_) and type_.bit_width % 8 == 0:
        return _Kind.FIXED
    return _Kind.OTHER


@compiled
def _last_at_or_before(values: Int64s, wanted: Int) -> Int:
    low, high = 0, values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= wanted:
            low = middle + 1
        else:
            high = middle
    return low - 1


@compiled
def _locate(
    numbers: Int64s,
    firsts: Int64s,
    kept: Int64s,
    sizes: Int64s,
    batch: Int64s,
    row: Int64s,
) -> None:
    """Which batch has each number, and where. ``kept`` is the address of its numbers, if any."""
    for i in range(numbers.size):
        b = _last_at_or_before(firsts, numbers[i])
        batch[i] = b
        if kept[b] == 0:
            row[i] = numbers[i] - firsts[b]
            continue
        low, high = np.int64(0), sizes[b]
        while low < high:
            middle = (low + high) // 2
            if load_at(kept[b] + 8 * middle, _INT64) < numbers[i]:
                low = middle + 1
            else:
                high = middle
        row[i] = low


@compiled
def _fixed(batch: Int64s, row: Int64s, values: Int64s, width: Int, to: Int) -> None:
    if width == 8:
        for i in range(row.size):
            copy_bytes(to + 8 * i, values[batch[i]] + 8 * row[i], np.int64(8))
    else:
        for i in range(row.size):
            copy_bytes(to + width * i, values[batch[i]] + width * row[i], np.int64(width))


@compiled
def _ends(batch: Int64s, row: Int64s, offsets: Int64s, large: Int, starts: Int64s) -> None:
    """Where each value will start in the new column, and where the last ends."""
    total = np.int64(0)
    for i in range(row.size):
        starts[i] = total
        if large:
            at = offsets[batch[i]] + 8 * row[i]
            total += load_at(at + 8, _INT64) - load_at(at, _INT64)
        else:
            at = offsets[batch[i]] + 4 * row[i]
            total += np.int64(load_at(at + 4, _INT32)) - np.int64(load_at(at, _INT32))
    starts[row.size] = total


@compiled
def _texts(
    batch: Int64s,
    row: Int64s,
    offsets: Int64s,
    data: Int64s,
    large: Int,
    starts: Int64s,
    to: Int,
) -> None:
    for i in range(row.size):
        if large:
            start = load_at(offsets[batch[i]] + 8 * row[i], _INT64)
        else:
            start = np.int64(load_at(offsets[batch[i]] + 4 * row[i], _INT32))
        copy_bytes(to + starts[i], data[batch[i]] + start, starts[i + 1] - starts[i])


@compiled
def _nulls(batch: Int64s, row: Int64s, valid: Int64s, first_bit: Int64s, out: Any) -> Int:
    """Sets whether each value is there; returns how many are not."""
    nulls = 0
    for i in range(row.size):
        b = batch[i]
        out[i] = True
        if valid[b] != 0:
            bit = first_bit[b] + row[i]
            byte = load_at(valid[b] + (bit >> 3), _BYTE)
            if (byte >> np.uint8(bit & 7)) & 1 == 0:
                out[i] = False
                nulls += 1
    return nulls


def addresses(rows: pa.RecordBatch) -> list[tuple[int, int, int, int]]:
    """For each column: values or offsets, data, validity (0: none), and the first bit of that."""
    found = []
    for column in rows.columns:
        kind = _kind(column.type)
        if kind is _Kind.OTHER:
            found.append((0, 0, 0, 0))
            continue
        buffers, start = column.buffers(), column.offset
        valid = buffers[0].address if column.null_count and buffers[0] is not None else 0
        if kind is _Kind.FIXED:
            width = column.type.bit_width // 8
            found.append((buffers[1].address + start * width, 0, valid, start))
        else:
            width = 4 if kind is _Kind.TEXT else 8
            data = buffers[2].address if buffers[2] is not None else 0
            found.append((buffers[1].address + start * width, data, valid, start))
    return found


class Catalog:
    """Some batches of one schema, each holding consecutive or explicitly listed numbers."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._kinds = [_kind(field.type) for field in schema]
        self._batches: list[pa.RecordBatch] = []
        self._firsts, self._kept, self._sizes = np.zeros((3, _ROOM), dtype=np.int64)
        self._places = np.zeros((len(schema), 4, _ROOM), dtype=np.int64)  # [column, what, batch]

    def add(
        self,
        rows: pa.RecordBatch,
        first: int,
        numbers: Int64s | None,
        places: list[tuple[int, int, int, int]],
    ) -> None:
        """One batch more, with numbers above all others'. Amortised O(columns)."""
        count = len(self._batches)
        if count == self._firsts.size:
            self._firsts, self._kept, self._sizes = (
                np.append(each, np.zeros_like(each))
                for each in (self._firsts, self._kept, self._sizes)
            )
            self._places = np.append(self._places, np.zeros_like(self._places), axis=2)
        self._batches.append(rows)
        self._firsts[count] = first
        self._kept[count] = 0 if numbers is None else numbers.ctypes.data
        self._sizes[count] = rows.num_rows
        self._places[:, :, count] = places

    def gather(self, numbers: Int64s) -> pa.RecordBatch:
        """The rows with these numbers, in this order, copied."""
        batch, row = np.empty_like(numbers), np.empty_like(numbers)
        count = len(self._batches)
        _locate(numbers, self._firsts[:count], self._kept, self._sizes, batch, row)
        columns = [self._column(index, kind, batch, row) for index, kind in enumerate(self._kinds)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, index: int, kind: _Kind, batch: Int64s, row: Int64s) -> pa.Array:
        if kind is _Kind.OTHER:
            return self._through_arrow(index, batch, row)
        type_, count = self._schema.field(index).type, len(row)
        values, data, valid, first_bit = self._places[index]
        mask = None
        if valid.any():
            there = np.empty(count, dtype=np.bool_)
            if _nulls(batch, row, valid, first_bit, there):
                mask = pa.py_buffer(np.packbits(there, bitorder="little"))
        if kind is _Kind.FIXED:
            width = type_.bit_width // 8
            out = np.empty(count * width, dtype=np.uint8)
            _fixed(batch, row, values, width, out.ctypes.data)
            return pa.Array.from_buffers(type_, count, [mask, pa.py_buffer(out)])
        large = kind is _Kind.LARGE_TEXT
        starts = np.empty(count + 1, dtype=np.int64)
        _ends(batch, row, values, large, starts)
        out = np.empty(int(starts[-1]), dtype=np.uint8)
        _texts(batch, row, values, data, large, starts, out.ctypes.data)
        offsets = starts if large else starts.astype(np.int32)
        return pa.Array.from_buffers(type_, count, [mask, pa.py_buffer(offsets), pa.py_buffer(out)])

    def _through_arrow(self, index: int, batch: Int64s, row: Int64s) -> pa.Array:
        parts, where = [], []
        for b in np.unique(batch):
            mine = np.flatnonzero(batch == b)
            parts.append(self._batches[int(b)].column(index).take(pa.array(row[mine])))
            where.append(mine)
        order = np.empty(len(row), dtype=np.int64)
        order[np.concatenate(where)] = np.arange(len(row))
        return pa.concat_arrays(parts).take(pa.array(order))
