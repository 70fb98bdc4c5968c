"""Batches of elements as the wire wants them: plain columns in one order, in pieces.

The payload's columns go in the order of their names, so that two replicas that have them in
different orders send the same. Cost: O(bytes); a batch that is plain already is not copied
before it is serialized.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lmerge.errors import LimitError, SchemaMismatchError
from lmerge.wire.rows import batch_bytes, check_elements

PIECE_BYTES: Final = 2 << 20
PIECE_BYTES_MAX: Final = 4 << 20

_TIMES: Final = (
    pa.field("op", pa.int8(), nullable=False),
    pa.field("vs", pa.int64(), nullable=False),
    pa.field("ve", pa.int64(), nullable=False),
    pa.field("vold", pa.int64(), nullable=False),
)
_TIME_NAMES: Final = tuple(field.name for field in _TIMES)


def payload_of(schema: pa.Schema) -> pa.Schema:
    """The payload's columns of a schema with or without op, vs, ve, vold: plain, by name."""
    fields = [field for field in schema if field.name not in _TIME_NAMES]
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatchError(f"payload columns must have different names, not {repeated}")
    plain = [pa.field(field.name, _plain(field.type)) for field in fields]
    return pa.schema(sorted(plain, key=lambda field: field.name))


def elements_schema(payload: pa.Schema) -> pa.Schema:
    """The schema of elements with this payload."""
    return pa.schema([*_TIMES, *payload])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that has the same values without an encoding."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return kind


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns of ``schema`` (elements), plain; checked."""
    if not batch.schema.equals(schema):
        wanted, found = set(schema.names), set(batch.schema.names)
        if wanted != found or len(batch.schema) != len(schema):
            missing, extra = sorted(wanted - found), sorted(found - wanted)
            raise SchemaMismatchError(
                f"a batch's columns are not those declared: {missing} missing, {extra} too many"
            )
        columns = [_conformed(batch.column(field.name), field) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    for name in _TIME_NAMES:
        if batch.column(name).null_count:
            raise SchemaMismatchError(f"column {name!r} must not contain nulls")
    check_elements(batch)
    return batch


def _conformed(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == field.type:
        return column
    if _plain(column.type) != field.type:
        raise SchemaMismatchError(f"column {field.name!r} is {column.type}, not {field.type}")
    return column.cast(field.type)


def pieces(batch: pa.RecordBatch, most: int = PIECE_BYTES_MAX) -> Iterator[tuple[int, Any]]:
    """Messages of about 2 MiB with the batch's rows in order: (rows, buffer)."""
    rows = batch.num_rows
    if not rows:
        return
    size = min(PIECE_BYTES, most)
    step = max(1, min(rows, rows * size // max(batch.nbytes, 1)))
    for start in range(0, rows, step):
        yield from _within(batch.slice(start, step), min(PIECE_BYTES_MAX, most), most)


def _within(batch: pa.RecordBatch, wanted: int, most: int) -> Iterator[tuple[int, Any]]:
    """The batch as one message, or halved until each is small enough: rows differ in size."""
    data = batch_bytes(batch)
    if data.size > wanted and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _within(batch.slice(0, half), wanted, most)
        yield from _within(batch.slice(half), wanted, most)
        return
    if data.size > most:
        raise LimitError(f"a row of {data.size} bytes; the server takes messages of {most}")
    yield batch.num_rows, data
