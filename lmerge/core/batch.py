"""Batches: elements of one stream in columns, from the wire in to the wire out.

A batch is an Arrow record batch with the columns ``op`` (int8, :class:`lmerge.elements.Op`),
``vs``, ``ve``, ``vold`` (int64 without nulls, :data:`lmerge.times.INFINITY` for no end), and the
payload's columns. A stable row carries its ``vc`` in ``vs`` and null payloads; an insert's
``vold`` is ignored. :class:`Batch` checks that once; inside the core it is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmerge.core.compiled import Int8s, Int64s, Words
from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.errors import SchemaMismatchError

ELEMENT_COLUMNS: Final = ("op", "vs", "ve", "vold")
_TIME: Final = pa.int64()
_KIND: Final = pa.int8()


def payload_schema(schema: pa.Schema) -> pa.Schema:
    """The payload's part of a batch's schema, its columns in the order of their names."""
    fields = [field for field in schema if field.name not in ELEMENT_COLUMNS]
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatchError(f"payload columns must have different names, not {repeated}")
    return pa.schema(sorted((f.with_nullable(True) for f in fields), key=lambda f: f.name))


def plain(schema: pa.Schema) -> pa.Schema:
    """The schema with encodings undone that Arrow cannot gather rows of; values are the same."""
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    return kind


def _decoded(column: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    return column.cast(field.type)


def describe_difference(expected: pa.Schema, found: pa.Schema) -> str | None:
    """What distinguishes two payload schemas, or None; nullability and metadata do not."""
    ours = {field.name: field.type for field in expected}
    theirs = {field.name: field.type for field in found}
    parts = [f"{n!r} is missing" for n in ours if n not in theirs]
    parts += [f"{n!r} is not expected" for n in theirs if n not in ours]
    parts += [
        f"{n!r} is {theirs[n]} instead of {ours[n]}"
        for n in ours
        if n in theirs and ours[n] != theirs[n]
    ]
    return "; ".join(parts) or None


class Layout:
    """Where the columns of a merge's batches are; checked once for each schema that comes."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema  # of the payload, plain
        self.encoded = False  # whether what came last is not
        self.as_output = False  # whether what came last has the very schema of the output
        self.in_order = False  # ... and its columns in the output's order
        self._seen: pa.Schema | None = None
        self._places: tuple[list[int], list[int]] = ([], [])

    def places(self, found: pa.Schema) -> tuple[list[int], list[int]]:
        """The places of op, vs, ve, vold, and those of the payload's columns."""
        if self._seen is None or not found.equals(self._seen):
            self._places = self._locate(found)
            self._seen = found
        return self._places

    def _locate(self, found: pa.Schema) -> tuple[list[int], list[int]]:
        for name in ELEMENT_COLUMNS:
            kind = _KIND if name == "op" else _TIME
            if found.get_field_index(name) < 0:
                raise SchemaMismatchError(f"a batch of elements needs one column {name!r}")
            if found.field(name).type != kind:
                raise SchemaMismatchError(
                    f"column {name!r} must be {kind}, not {found.field(name).type}"
                )
        payload = payload_schema(found)
        self.encoded = plain(payload) != payload
        difference = describe_difference(self.schema, plain(payload))
        if difference:
            raise SchemaMismatchError(f"the payload's columns are not the merge's: {difference}")
        wanted = element_schema(self.schema)
        ordered = pa.schema([found.field(name) for name in wanted.names], found.metadata)
        self.as_output = ordered.equals(wanted, check_metadata=True)
        self.in_order = found.names == wanted.names
        names = self.schema.names
        return (
            [found.get_field_index(name) for name in ELEMENT_COLUMNS],
            [found.get_field_index(name) for name in names],
        )


def _values(rows: pa.StructArray, place: int, kind: Any, count: int) -> Any:
    """A column of numbers without nulls, as NumPy sees it."""
    column = rows.field(place)
    if column.null_count:
        name = rows.type.field(place).name
        raise SchemaMismatchError(f"column {name!r} must not contain nulls")
    if not count:
        return _NO_OPS if kind is np.int8 else _NO_TIMES
    start = column.offset if kind is np.int8 else 8 * column.offset
    return np.frombuffer(column.buffers()[1], kind, count, start)


@dataclass(slots=True, eq=False)
class Batch:
    """The columns of some elements of one stream; ``h1``, ``h2`` hash the payloads.

    They are fingerprints where the algorithm goes by them (R3, R4), else imprints, and empty when
    nobody asks for them.
    """

    op: Int8s
    vs: Int64s
    ve: Int64s
    vold: Int64s
    payload: pa.RecordBatch
    h1: Int64s
    h2: Int64s
    source: pa.RecordBatch | None = None  # the same elements, when they came as they can go
    inserts_only: bool = False  # known to be

    def __len__(self) -> int:
        return len(self.op)

    @staticmethod
    def of(batch: pa.RecordBatch, layout: Layout) -> Batch:
        """The columns of ``batch``; fingerprints come later."""
        places, payload = layout.places(batch.schema)
        op, *times = places
        count = batch.num_rows
        columns = batch.to_struct_array()  # gives its columns sooner than the batch does
        vs, ve, vold = (_values(columns, place, np.int64, count) for place in times)
        rows = batch.select(payload)
        if layout.encoded:
            plain_ = [_decoded(c, f) for c, f in zip(rows.columns, layout.schema, strict=True)]
            rows = pa.RecordBatch.from_arrays(plain_, schema=layout.schema)
        ops = _values(columns, op, np.int8, count)
        source = None
        if layout.as_output:
            source = batch if layout.in_order else batch.select([*places, *payload])
        return Batch(ops, vs, ve, vold, rows, _NO_HASHES, _NO_HASHES, source)

    def fingerprint(self, hashes: tuple[Words, Words]) -> None:
        """Set the payloads' hashes."""
        self.h1, self.h2 = (h.view(np.int64) for h in hashes)

    def head(self, rows: int) -> Batch:
        """The first ``rows`` elements."""
        if rows == len(self):
            return self
        return self.rows(slice(0, rows))

    def rows(self, which: slice) -> Batch:
        """A range of the elements, without copying."""
        rows = which.stop - which.start
        return Batch(
            self.op[which],
            self.vs[which],
            self.ve[which],
            self.vold[which],
            self.payload.slice(which.start, rows),
            self.h1[which],
            self.h2[which],
            None if self.source is None else self.source.slice(which.start, rows),
            self.inserts_only,
        )

    def choose(self, rows: Int64s) -> Batch:
        """The elements ``rows``, ascending; a run of neighbours is not copied."""
        if not len(rows):
            return self.head(0)
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return self if len(rows) == len(self) else self.rows(slice(first, last + 1))
        return self.take(rows)

    def take(self, rows: Int64s) -> Batch:
        """The elements ``rows``, copied."""
        return Batch(
            _read_only(self.op[rows]),
            _read_only(self.vs[rows]),
            _read_only(self.ve[rows]),
            _read_only(self.vold[rows]),
            take(self.payload, rows),
            self.h1[rows] if len(self.h1) else self.h1,
            self.h2[rows] if len(self.h2) else self.h2,
            inserts_only=self.inserts_only,
        )

    def element(self, row: int) -> Element:
        """One element, for a person."""
        one = self.rows(slice(row, row + 1))
        return next(elements_of(one.to_arrow(element_schema(self.payload.schema))))

    def to_arrow(self, schema: pa.Schema) -> pa.RecordBatch:
        """The record batch; ``schema`` is that of the elements with this payload."""
        if self.source is not None:
            return self.source
        times = [pa.array(column) for column in (self.op, self.vs, self.ve, self.vold)]
        return pa.RecordBatch.from_arrays([*times, *self.payload.columns], schema=schema)


def element_schema(payload: pa.Schema) -> pa.Schema:
    """The schema of a batch of elements with this payload."""
    times = [pa.field(name, _TIME, nullable=False) for name in ELEMENT_COLUMNS[1:]]
    return pa.schema([pa.field("op", _KIND, nullable=False), *times, *payload])


def _read_only(column: Any) -> Any:
    """Like the columns that come from Arrow, so that one compiled version serves both."""
    column.setflags(write=False)
    return column


_NO_OPS: Final = _read_only(np.zeros(0, dtype=np.int8))
_NO_TIMES: Final = _read_only(np.zeros(0, dtype=np.int64))
_NO_HASHES: Final = np.zeros(0, dtype=np.int64)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A payload without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def no_elements(schema: pa.Schema) -> Batch:
    """A batch without elements."""
    none = _NO_TIMES
    return Batch(_NO_OPS, none, none, none, no_rows(schema), _NO_HASHES, _NO_HASHES)


def take(payload: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    """Some rows of a payload, copied; shares nothing when not all are taken."""
    if len(rows) == payload.num_rows and len(rows) and rows[0] == 0:
        ascending = len(rows) == 1 or bool((rows[1:] > rows[:-1]).all())
        if ascending:
            return payload
    return payload.take(pa.array(rows))


def batch_of(elements: Iterable[Element], payload: pa.Schema) -> pa.RecordBatch:
    """A batch of a few elements, whose payloads are dicts by column name."""
    schema = element_schema(payload)
    rows: list[dict[str, Any]] = []
    for e in elements:
        if isinstance(e, Stable):
            rows.append({"op": Op.STABLE, "vs": e.vc, "ve": 0, "vold": 0})
        elif isinstance(e, Insert):
            rows.append({"op": Op.INSERT, "vs": e.vs, "ve": e.ve, "vold": 0, **e.payload})
        else:
            rows.append({"op": Op.ADJUST, "vs": e.vs, "ve": e.ve, "vold": e.vold, **e.payload})
    return pa.RecordBatch.from_pylist(rows, schema)


def elements_of(batch: pa.RecordBatch) -> Iterator[Element]:
    """The inverse of :func:`batch_of`."""
    for row in batch.to_pylist():
        op, vs, ve, vold = (row.pop(name) for name in ELEMENT_COLUMNS)
        if op == Op.STABLE:
            yield Stable(vs)
        elif op == Op.INSERT:
            yield Insert(row, vs, ve)
        else:
            yield Adjust(row, vs, vold, ve)
