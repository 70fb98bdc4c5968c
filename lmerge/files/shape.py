"""What an element batch looks like in Arrow, and the rounds that readers give.

Table columns: ``in`` (optional), ``op`` (names, or the codes of ``Op``), ``vs``, ``ve``,
``vold``, then the payload's. Null is infinity, also in a stable's ``vs``, which holds its vc; an
attach has its from in ``vs``, null being the beginning. A column that we wrote as ``at`` is
skipped. A JSON payload is one string column marked ``{b"lmerge": b"json"}``, which is taken to
hold canonical text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.errors import ConfigurationError, InputError
from lmerge.jsonlines import Attach, Detach, canonical

TIME_FIELDS: Final = (
    pa.field("op", pa.int8(), nullable=False),
    pa.field("vs", pa.int64(), nullable=False),
    pa.field("ve", pa.int64(), nullable=False),
    pa.field("vold", pa.int64(), nullable=False),
)
JSON_PAYLOAD: Final = pa.field("payload", pa.string(), metadata={b"lmerge": b"json"})
JSON_SCHEMA: Final = pa.schema([*TIME_FIELDS, JSON_PAYLOAD])

OP_NAMES: Final = ("insert", "adjust", "stable", "attach", "detach")

Int64s = NDArray[np.int64]


class Part(NamedTuple):
    """What a round has of one stream: an element batch, and the line (or row) of each element."""

    stream: str | None
    batch: pa.RecordBatch
    lines: Int64s


class Data(NamedTuple):
    """A round of elements: a part for each stream, in order of first appearance."""

    parts: list[Part]


class Control(NamedTuple):
    """A round that is one attach or detach."""

    change: Attach | Detach
    line: int


Round = Data | Control


def elements(batch: pa.RecordBatch) -> Iterator[Element]:
    """The rows of an element batch as elements, payloads as canonical JSON text."""
    for op, vs, ve, vold, payload in rows(batch):
        if op == Op.INSERT:
            yield Insert(payload, vs, ve)
        elif op == Op.ADJUST:
            yield Adjust(payload, vs, vold, ve)
        else:
            yield Stable(vs)


def is_json(schema: pa.Schema) -> bool:
    """Whether the payload is a single column of canonical JSON text."""
    fields = payload_fields(schema)
    return len(fields) == 1 and mark(fields[0]) == b"json"


def rows(batch: pa.RecordBatch) -> Iterable[tuple[int, int, int, int, str | None]]:
    """(op, vs, ve, vold, payload as canonical JSON text) of each row."""
    times = (batch.column(field.name).to_pylist() for field in TIME_FIELDS)
    return zip(*times, payload_texts(batch), strict=True)


def payload_texts(batch: pa.RecordBatch) -> list[str | None]:
    """The canonical JSON text of each row's payload."""
    fields = payload_fields(batch.schema)
    if is_json(batch.schema):
        texts: list[str | None] = batch.column(fields[0].name).to_pylist()
        return texts
    names = [field.name for field in fields]
    columns = [_values(batch.column(name), name) for name in names]
    rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
    return [canonical(dict(zip(names, row, strict=True))) for row in rows]


def _values(column: pa.Array, name: str) -> list[Any]:
    """Python values of a column, the same for the same value whatever is beside it."""
    found = column.type
    try:
        if pa.types.is_duration(found):
            column = column.cast(pa.int64())
        elif (pa.types.is_timestamp(found) or pa.types.is_time64(found)) and found.unit == "ns":
            # Python's own times have no nanoseconds.
            column = pc.replace_substring(column.cast(pa.string()), " ", "T")
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ConfigurationError(f"column {name!r} ({found}) has no JSON form: {error}") from error
    return values


def payload_fields(schema: pa.Schema) -> list[pa.Field]:
    """The payload's fields, nullable, and without what Parquet notes on them."""
    fields = []
    for field in schema:
        if field.name in ("in", "op", "vs", "ve", "vold") or mark(field) == b"at":
            continue
        notes = {k: v for k, v in (field.metadata or {}).items() if k != b"PARQUET:field_id"}
        fields.append(field.with_nullable(True).with_metadata(notes or None))
    return fields


def mark(field: pa.Field) -> bytes | None:
    """What we noted on a column: that it holds JSON text, or the causing lines."""
    note: bytes | None = (field.metadata or {}).get(b"lmerge")
    return note


def kind(path: str) -> str:
    """The format by the extension of ``path``: json, parquet or arrow."""
    extension = os.path.splitext(path)[1].lower()
    if extension == ".parquet":
        return "parquet"
    return "arrow" if extension in (".arrow", ".ipc", ".feather") else "json"


@contextmanager
def input_errors(source: str) -> Iterator[None]:
    """Makes every failure to read ``source`` an ``InputError``."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise InputError(source, None, reason(error)) from error


def reason(error: BaseException) -> str:
    """An error in one line, without the stack traces that Arrow adds."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return text.strip().split("\n")[0] or type(error).__name__
