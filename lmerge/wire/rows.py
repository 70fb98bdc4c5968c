"""Rows on the wire: Arrow IPC messages, one a batch.

What comes from a peer is not trusted: it is bounded and checked in full before it is used, and
:class:`WireError` says what was wrong. A batch is uncompressed and has no dictionaries, so that
what it needs in memory is what was received: no few bytes can unfold into many. What goes out
is made so. Cost: O(bytes) to check, nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lmerge.elements import Op
from lmerge.errors import WireError

MOST_COLUMNS: Final = 2_000
MOST_DEPTH: Final = 32
MOST_SCHEMA_BYTES: Final = 1 << 20
MOST_ROWS: Final = 1 << 24
_RECORD_BATCH: Final = 3  # MessageHeader.RecordBatch of Arrow's Message.fbs
_SCHEMA: Final = 1


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema, without the metadata that its maker may have left in it."""
    fields = [field.remove_metadata() for field in schema]
    return bytes(pa.schema(fields).serialize())


def schema_of(data: bytes) -> pa.Schema:
    """The inverse of :func:`schema_bytes`."""
    if len(data) > MOST_SCHEMA_BYTES:
        raise WireError(f"a schema of {len(data)} bytes; at most {MOST_SCHEMA_BYTES} are taken")
    schema = _guarded("schema", lambda: _read_schema(data))
    if _kind_of(data) != _SCHEMA:
        raise WireError("these bytes are no Arrow schema message")
    if len(schema) > MOST_COLUMNS:
        raise WireError(f"a schema of {len(schema)} columns; at most {MOST_COLUMNS} are taken")
    _guarded("schema", lambda: _check_columns(schema))
    return schema


def batch_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    """One message with the batch's rows; dictionaries must have been undone."""
    return batch.serialize()


def batch_of(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in a message whose columns are ``schema``'s; shares memory with ``data``."""
    if _kind_of(data) != _RECORD_BATCH:
        raise WireError("these bytes are no Arrow record batch message")
    _check_frame(data)
    batch = _guarded("record batch", lambda: pa.ipc.read_record_batch(data, schema))
    if batch.num_rows > MOST_ROWS:
        raise WireError(f"a batch of {batch.num_rows} rows; at most {MOST_ROWS} are taken")
    _guarded("record batch", lambda: batch.validate(full=True))
    return batch


def check_elements(batch: pa.RecordBatch) -> None:
    """Raise WireError unless every row is an insert or an adjust: stables are said otherwise."""
    ops = batch.column("op")
    if ops.type != _INT8 or ops.null_count:
        raise WireError("column 'op' must be int8 without nulls")
    count = len(ops)
    if not count:
        return
    values = np.frombuffer(ops.buffers()[1], np.uint8, count, ops.offset)
    if values.max() > _ADJUST:  # as it is unsigned, one look tells
        row = int((values > _ADJUST).argmax())
        op = int(values.view(np.int8)[row])
        raise WireError(f"row {row} has op {op}: only 0 (insert) and 1 (adjust) are")


_INT8: Final = pa.int8()
_ADJUST: Final = int(Op.ADJUST)


def plain_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its dictionaries undone, as the wire wants it."""
    if not any(pa.types.is_dictionary(field.type) for field in batch.schema):
        return batch
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plain_types(batch.schema))


def plain_types(schema: pa.Schema) -> pa.Schema:
    """The schema of :func:`plain_rows`."""
    return pa.schema(
        [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    )


# -- checks ------------------------------------------------------------------------------------


def _read_schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _guarded(what: str, read: Callable[[], Any]) -> Any:
    """Whatever Arrow says of bad bytes becomes one kind of error."""
    try:
        return read()
    except (pa.ArrowException, ValueError, TypeError, KeyError, OSError, MemoryError) as error:
        reason = str(error).split("\n")[0]
        raise WireError(f"these bytes are no valid Arrow {what}: {reason}") from error


def _check_columns(schema: pa.Schema) -> None:
    for field in schema:
        _check_type(field.name, field.type, 0)


def _check_type(name: str, kind: pa.DataType, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise WireError(f"column {name!r} is nested more than {MOST_DEPTH} deep")
    if pa.types.is_dictionary(kind):
        raise WireError(f"column {name!r} is dictionary-encoded: send its values")
    if isinstance(kind, pa.BaseExtensionType):
        raise WireError(f"column {name!r} has an extension type: send its storage")
    if depth and (_is_view(kind) or pa.types.is_run_end_encoded(kind)):
        # Arrow cannot gather rows of these, and only whole columns are converted.
        raise WireError(f"column {name!r} is {kind} inside another type: send its values plain")
    # Arrow takes any bytes for names and zones: reading them says whether they are text.
    _ = kind.tz if pa.types.is_timestamp(kind) else None
    for place in range(kind.num_fields):
        inner = kind.field(place)
        _check_type(f"{name}.{inner.name}", inner.type, depth + 1)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


# The frame around a batch (Arrow's Message.fbs): continuation, length, a flatbuffer, the body.
# Only what Arrow does not let us ask is read here: what kind it is, and whether it is compressed.


def _table(data: memoryview, at: int, slot: int) -> int:
    """Where a flatbuffer table keeps a field; 0 when it does not."""
    (back,) = struct.unpack_from("<i", data, at)
    vtable = at - back
    (size,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * slot
    if place + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return at + offset if offset else 0


def _message(data: Any) -> tuple[memoryview, int]:
    view = memoryview(data)
    head = 8 if bytes(view[:4]) == b"\xff\xff\xff\xff" else 4
    (length,) = struct.unpack_from("<i", view, head - 4)
    if not 0 < length <= len(view) - head:
        raise WireError("an Arrow message is shorter than it says")
    meta = view[head : head + length]
    (root,) = struct.unpack_from("<I", meta, 0)
    return meta, root


def _kind_of(data: Any) -> int:
    try:
        meta, root = _message(data)
        place = _table(meta, root, 1)
        return int(meta[place]) if place else 0
    except (struct.error, IndexError, ValueError) as error:
        raise WireError("these bytes are no Arrow message") from error


def _check_frame(data: Any) -> None:
    try:
        meta, root = _message(data)
        place = _table(meta, root, 2)
        (offset,) = struct.unpack_from("<I", meta, place)
        compressed = _table(meta, place + offset, 3) if place else 0
    except (struct.error, IndexError, ValueError) as error:
        raise WireError("these bytes are no Arrow message") from error
    if compressed:
        raise WireError("the batch is compressed: send it plain")
