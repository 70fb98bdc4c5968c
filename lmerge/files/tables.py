"""Reads Parquet and Arrow IPC, in slices of a round's size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmerge.elements import Op
from lmerge.errors import InputError
from lmerge.files.reading import Progress
from lmerge.files.shape import (
    OP_NAMES,
    TIME_FIELDS,
    Control,
    Data,
    Int64s,
    Part,
    Round,
    input_errors,
    kind,
    mark,
    payload_fields,
)
from lmerge.jsonlines import Attach, Detach
from lmerge.times import BEGINNING, INFINITY

_ATTACH: Final = 3
_DETACH: Final = 4


def read_schema(path: str) -> pa.Schema:
    """The schema of the batches that :func:`read_table` gives."""
    with input_errors(path), open(path, "rb") as file:
        if kind(path) == "parquet":
            found = pq.read_schema(file)
        elif file.peek(6)[:6] == b"ARROW1":
            found = pa.ipc.open_file(file).schema
        else:
            found = pa.ipc.open_stream(file).schema
        _check_schema(path, found)
    return pa.schema([*TIME_FIELDS, *payload_fields(found)])


def read_table(path: str, max_rows: int, progress: Progress | None = None) -> Iterator[Round]:
    """The rounds of a table; after a bad row, those before it and then ``InputError``."""
    first = 1
    batches = _parquet_batches if kind(path) == "parquet" else _arrow_batches
    with input_errors(path):
        size = os.stat(path).st_size
        for batch, share in batches(path, max_rows):
            batch.validate(full=True)  # damaged offsets would crash the process further on
            yield from _table_rounds(path, batch, first, max_rows)
            first += batch.num_rows
            if progress is not None:
                progress(int(size * share))


def _parquet_batches(path: str, max_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    """The batches, and which part of the file is read with each."""
    with open(path, "rb") as file, pq.ParquetFile(file) as table:
        _check_schema(path, table.schema_arrow)
        done = 0
        for batch in table.iter_batches(batch_size=max(max_rows, 1000)):
            done += batch.num_rows
            yield batch, done / table.metadata.num_rows


def _arrow_batches(path: str, max_rows: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    """The batches, and which part of the file is read with each; the stream format has no size."""
    with open(path, "rb") as file:
        if file.peek(6)[:6] != b"ARROW1":
            stream = pa.ipc.open_stream(file)
            _check_schema(path, stream.schema)
            for batch in stream:
                yield batch, 0.0
            return
        table = pa.ipc.open_file(file)
        _check_schema(path, table.schema)
        for i in range(table.num_record_batches):
            yield table.get_batch(i), (i + 1) / table.num_record_batches


def _check_schema(path: str, schema: pa.Schema) -> None:
    for name in ("op", "vs", "ve", "vold"):
        if name not in schema.names:
            raise InputError(path, None, f"no column {name!r}; there are {schema.names}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InputError(path, None, f"more than one column {twice[0]!r}")
    for name in ("vs", "ve", "vold"):
        found = schema.field(name).type
        if not (pa.types.is_integer(found) or pa.types.is_null(found)):
            raise InputError(path, None, f"column {name!r} must be int64, not {found}")
    found = schema.field("op").type
    if not (pa.types.is_integer(found) or _is_text(found)):
        raise InputError(path, None, f"column 'op' must be a string or int8, not {found}")
    if "in" in schema.names and not _is_text(found := schema.field("in").type):
        raise InputError(path, None, f"column 'in' must be a string, not {found}")


def _is_text(found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    return any(
        test(found)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _table_rounds(path: str, raw: pa.RecordBatch, first: int, max_rows: int) -> Iterator[Round]:
    """The rounds of one batch of a table, up to its first bad row."""
    ops = _op_codes(raw.column("op"))
    absent = raw.column("vs").is_null().to_numpy(zero_copy_only=False)
    vs, ve, vold = (_times(raw.column(name)) for name in ("vs", "ve", "vold"))
    bad, reason = _first_bad(raw, ops, absent, vs, ve, vold)
    ve[ops == Op.STABLE] = 0
    vold[ops != Op.ADJUST] = 0
    fields = payload_fields(raw.schema)
    payload = [_without_stables(raw.column(field.name), field, ops) for field in fields]
    batch = pa.RecordBatch.from_arrays(
        [*map(pa.array, (ops, vs, ve, vold)), *payload], schema=pa.schema([*TIME_FIELDS, *fields])
    )
    names, streams = _stream_codes(raw)
    start = 0
    for stop in [*np.flatnonzero(ops[:bad] >= _ATTACH).tolist(), bad]:
        for low in range(start, stop, max_rows):
            high = min(low + max_rows, stop)
            yield Data(_parts(batch.slice(low, high - low), names, streams[low:high], first + low))
        if stop < bad:
            stream = names[streams[stop]]
            from_time = None if absent[stop] else int(vs[stop])
            change = Attach(stream, from_time) if ops[stop] == _ATTACH else Detach(stream)
            yield Control(change, first + stop)
        start = stop + 1
    if reason:
        raise InputError(path, first + bad, reason)


def _parts(
    batch: pa.RecordBatch, names: list[str | None], streams: Int64s, first: int
) -> list[Part]:
    found, at = np.unique(streams, return_index=True)
    lines = np.arange(first, first + batch.num_rows, dtype=np.int64)
    if len(found) == 1:
        return [Part(names[found[0]], batch, lines)]
    parts = []
    for code in found[np.argsort(at)]:
        rows = np.flatnonzero(streams == code)
        parts.append(Part(names[code], batch.take(pa.array(rows)), lines[rows]))
    return parts


def _op_codes(column: pa.Array) -> NDArray[np.int8]:
    """The codes of an op column, attach and detach included; -1 where there is none."""
    if pa.types.is_integer(column.type):
        known = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, int(Op.STABLE)))
        column = pc.if_else(known, column, None)
    else:
        column = pc.index_in(column.cast(pa.string()), value_set=pa.array(OP_NAMES))
    codes: NDArray[np.int8] = column.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False)
    return codes


def _times(column: pa.Array) -> Int64s:
    times: Int64s = column.cast(pa.int64()).fill_null(INFINITY).to_numpy(zero_copy_only=False)
    return times.copy()  # what Arrow lends is read-only


def _first_bad(
    raw: pa.RecordBatch,
    ops: NDArray[np.int8],
    absent: NDArray[np.bool_],
    vs: Int64s,
    ve: Int64s,
    vold: Int64s,
) -> tuple[int, str]:
    """The index of the first bad row and what is wrong with it; the length and nothing if none."""
    is_data = (ops == Op.INSERT) | (ops == Op.ADJUST)
    infinite = (vs == BEGINNING) | (vs == INFINITY)
    problems = {
        '"op" is null or unknown; there are ' + ", ".join(OP_NAMES): ops < 0,
        '"vs" of an insert or adjust must be a finite time': is_data & infinite,
        '"ve" is out of range': is_data & (ve == BEGINNING),
        '"vold" is out of range': (ops == Op.ADJUST) & (vold == BEGINNING),
        '"vs" (the vc) of a stable is out of range': (ops == Op.STABLE) & (vs == BEGINNING),
        '"vs" (the from) of an attach must be finite': (ops == _ATTACH) & infinite & ~absent,
    }
    first, reason = raw.num_rows, ""
    for text, mask in problems.items():
        at = int(mask.argmax()) if mask.any() else first
        if at < first:
            first, reason = at, text
    return first, reason


def _without_stables(column: pa.Array, field: pa.Field, ops: NDArray[np.int8]) -> pa.Array:
    """The column with nulls where there is no payload, and JSON's null where a JSON one is null."""
    no_payload = ops >= Op.STABLE
    if mark(field) == b"json" and column.null_count:
        column = column.fill_null("null")
    if not no_payload.any():
        return column
    return column.take(pa.array(np.arange(len(ops)), mask=no_payload))


def _stream_codes(raw: pa.RecordBatch) -> tuple[list[str | None], Int64s]:
    """The streams named in a batch, and for each row which of them it belongs to."""
    if "in" not in raw.schema.names:
        return [None], np.zeros(raw.num_rows, np.int64)
    encoded = raw.column("in").cast(pa.string()).dictionary_encode()
    names: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    return names, encoded.indices.cast(pa.int64()).fill_null(len(names) - 1).to_numpy(
        zero_copy_only=False
    )
