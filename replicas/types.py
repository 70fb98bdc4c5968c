"""Spark's types as payloads: which Arrow type each has on the wire, and the way back.

Callers may rely on this: for every type that :func:`payload_schema` takes,
``spark_schema(payload_schema(s))`` has the same columns with the same values, and rows that Spark
holds equal give equal payloads, however they were partitioned, encoded or ordered inside maps.

- Every field may be null, at every depth: whether Spark knows that a column has no nulls depends
  on the plan, and replicas with different plans must have one schema.
- TIMESTAMP is microseconds in UTC whatever the session's zone is; TIMESTAMP_NTZ has no zone.
- A map's entries are sorted by key: to the merge a map is a list of entries, and Spark promises
  no order for them.
- CHAR and VARCHAR are strings. TIME comes back as TIME(6), and an interval of days to seconds as
  INTERVAL DAY TO SECOND, whatever its fields were; the values are the same.
- What has no equality that the merge could keep, or no Arrow form that Spark would read back, is
  refused by name: VARIANT, GEOMETRY, GEOGRAPHY, user-defined types, strings with a collation,
  year-month and calendar intervals.

Cost: columns that have their Arrow type already are not copied; of nested ones only the validity
bits are. Sorting maps copies them, unless none has two entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from lmerge.errors import ConfigurationError, SchemaMismatchError

RESERVED: Final = ("op", "vs", "ve", "vold")
"""The columns of elements that are no payload's."""

_STRING_COLLATION: Final = "UTF8_BINARY"
_DECIMAL_DIGITS_MAX: Final = 38  # Spark has no more

_LEAVES: Final[tuple[tuple[type[sql.DataType], pa.DataType], ...]] = (
    (sql.BooleanType, pa.bool_()),
    (sql.ByteType, pa.int8()),
    (sql.ShortType, pa.int16()),
    (sql.IntegerType, pa.int32()),
    (sql.LongType, pa.int64()),
    (sql.FloatType, pa.float32()),
    (sql.DoubleType, pa.float64()),
    (sql.CharType, pa.string()),
    (sql.VarcharType, pa.string()),
    (sql.BinaryType, pa.binary()),
    (sql.DateType, pa.date32()),
    (sql.TimestampType, pa.timestamp("us", tz="UTC")),
    (sql.TimestampNTZType, pa.timestamp("us")),
    (sql.DayTimeIntervalType, pa.duration("us")),
    (sql.NullType, pa.null()),
)

_INSTEAD: Final = {
    "VariantType": "to_json() gives a STRING",
    "GeometryType": "ST_AsBinary() gives a BINARY",
    "GeographyType": "ST_AsBinary() gives a BINARY",
    "YearMonthIntervalType": "CAST(… AS INT) of an INTERVAL MONTH gives the months",
    "CalendarIntervalType": "an INTERVAL DAY TO SECOND can be sent",
}

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


# -- schemas -----------------------------------------------------------------------------------


def payload_schema(schema: sql.StructType) -> pa.Schema:
    """The payload's columns for rows of this schema; ConfigurationError for what cannot be sent."""
    _check_names(schema.names)
    return pa.schema([pa.field(f.name, _arrow(f.dataType, f.name)) for f in schema.fields])


def _check_names(names: list[str]) -> None:
    for name in names:
        if name.lower() in RESERVED:
            raise ConfigurationError(
                f"a payload column cannot be called {name!r}: rename it"
                f" ({', '.join(RESERVED)} are the columns of elements)"
            )
    _check_unique(names, "the payload")


def _check_unique(names: list[str], where: str) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(f"{where} has more than one column called {repeated[0]!r}")


def _arrow(kind: sql.DataType, where: str) -> pa.DataType:
    for spark_type, arrow_type in _LEAVES:
        if isinstance(kind, spark_type):
            return arrow_type
    if isinstance(kind, sql.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, sql.StringType):
        if getattr(kind, "collation", _STRING_COLLATION) != _STRING_COLLATION:
            # Of equal strings replicas may show different ones, which the merge would tell apart.
            raise ConfigurationError(
                f"column {where!r} has the collation {kind.collation}, and payloads are compared"
                f" byte by byte: cast it to STRING COLLATE {_STRING_COLLATION}"
            )
        return pa.string()
    if isinstance(kind, sql.ArrayType):
        return pa.list_(pa.field("element", _arrow(kind.elementType, f"{where}.element")))
    if isinstance(kind, sql.MapType):
        key = pa.field("key", _arrow(kind.keyType, f"{where}.key"), nullable=False)
        return pa.map_(key, pa.field("value", _arrow(kind.valueType, f"{where}.value")))
    if isinstance(kind, sql.StructType):
        _check_unique(kind.names, f"column {where!r}")
        return pa.struct(
            [pa.field(f.name, _arrow(f.dataType, f"{where}.{f.name}")) for f in kind.fields]
        )
    if type(kind).__name__ == "TimeType":  # PySpark 4.0 has none
        return pa.time64("ns")
    instead = _INSTEAD.get(type(kind).__name__, "convert it to a struct, an array or a string")
    raise ConfigurationError(
        f"column {where!r} is {kind.simpleString().upper()}, which cannot be sent: {instead}"
    )


def spark_schema(payload: pa.Schema) -> sql.StructType:
    """The columns that Spark shows for a payload, all nullable; not only for what Spark wrote.

    What another program wrote with a type that Spark lacks gets the next larger one.
    """
    return sql.StructType([sql.StructField(f.name, _spark(f.type, f.name)) for f in payload])


_SPARK: Final[tuple[tuple[Callable[[pa.DataType], bool], sql.DataType], ...]] = (
    (pa.types.is_boolean, sql.BooleanType()),
    (pa.types.is_int8, sql.ByteType()),
    (pa.types.is_int16, sql.ShortType()),
    (pa.types.is_uint8, sql.ShortType()),
    (pa.types.is_int32, sql.IntegerType()),
    (pa.types.is_uint16, sql.IntegerType()),
    (pa.types.is_int64, sql.LongType()),
    (pa.types.is_uint32, sql.LongType()),
    (pa.types.is_uint64, sql.DecimalType(20, 0)),
    (pa.types.is_float16, sql.FloatType()),
    (pa.types.is_float32, sql.FloatType()),
    (pa.types.is_float64, sql.DoubleType()),
    (pa.types.is_string, sql.StringType()),
    (pa.types.is_large_string, sql.StringType()),
    (pa.types.is_binary, sql.BinaryType()),
    (pa.types.is_large_binary, sql.BinaryType()),
    (pa.types.is_date, sql.DateType()),
    (pa.types.is_duration, sql.DayTimeIntervalType()),
    (pa.types.is_null, sql.NullType()),
)


def _spark(kind: pa.DataType, where: str) -> sql.DataType:
    types = pa.types
    for matches, spark_type in _SPARK:
        if matches(kind):
            return spark_type
    if types.is_decimal(kind):
        if not 0 <= kind.scale <= kind.precision <= _DECIMAL_DIGITS_MAX:
            raise ConfigurationError(f"column {where!r} is {kind}, and Spark has no such decimals")
        return sql.DecimalType(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return sql.BinaryType()
    if types.is_timestamp(kind):
        return sql.TimestampNTZType() if kind.tz is None else sql.TimestampType()
    if types.is_time(kind) and hasattr(sql, "TimeType"):
        return sql.TimeType()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return sql.ArrayType(_spark(kind.value_type, f"{where}.element"))
    if types.is_map(kind):
        key, value = _spark(kind.key_type, f"{where}.key"), _spark(kind.item_type, f"{where}.value")
        return sql.MapType(key, value)
    if types.is_struct(kind):
        _check_unique([field.name for field in kind], f"column {where!r}")
        return sql.StructType(
            [sql.StructField(f.name, _spark(f.type, f"{where}.{f.name}")) for f in kind]
        )
    raise ConfigurationError(f"column {where!r} is {kind}, for which Spark has no type")


# -- rows --------------------------------------------------------------------------------------


def as_payload(rows: Rows, schema: pa.Schema) -> Rows:
    """The columns of ``schema`` (a :func:`payload_schema`) from rows that Spark made.

    Columns are found by name; others are left out. A table stays a table, a batch a batch.
    """
    return _columns(rows, schema, sort_maps=True)


def as_spark(rows: Rows, schema: pa.Schema) -> Rows:
    """The same from rows that came from the wire, for Spark: maps stay as they are."""
    return _columns(rows, schema, sort_maps=False)


def _columns(rows: Rows, schema: pa.Schema, *, sort_maps: bool) -> Rows:
    columns = []
    for field in schema:
        places = rows.schema.get_all_field_indices(field.name)
        if len(places) != 1:
            how = "no column" if not places else f"{len(places)} columns"
            raise SchemaMismatchError(f"the rows have {how} called {field.name!r}")
        try:
            columns.append(_column(rows.column(places[0]), field.type, sort_maps))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            found = rows.schema.field(places[0]).type
            raise SchemaMismatchError(
                f"column {field.name!r} is {found} and cannot become {field.type}:"
                f" {str(error).splitlines()[0]}"
            ) from error
    if not columns:  # else the number of rows would be forgotten
        return rows.select([])
    made: Rows = type(rows).from_arrays(columns, schema=schema)
    return made


def _column(column: Any, kind: pa.DataType, sort_maps: bool) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_array(chunk, kind, sort_maps) for chunk in column.chunks], kind)
    return _array(column, kind, sort_maps)


def _array(column: pa.Array, kind: pa.DataType, sort_maps: bool) -> pa.Array:
    """The same values as ``kind``."""
    types = pa.types
    if not types.is_nested(kind):
        return column if column.type == kind else column.cast(kind)
    if column.type == kind and not (sort_maps and _has_map(kind)):
        return column
    if not len(column):
        return pa.array([], kind)
    if types.is_struct(kind) and types.is_struct(column.type):
        return _struct(column, kind, sort_maps)
    if types.is_map(kind) and types.is_map(column.type):
        return _map(column, kind, sort_maps)
    if types.is_list(kind) and (types.is_list(column.type) or types.is_large_list(column.type)):
        offsets, (values,) = _within(column, [column.values])
        return _of_lists(kind, offsets, column, _array(values, kind.value_type, sort_maps))
    if types.is_list(kind) and types.is_fixed_size_list(column.type):
        plain = column.cast(pa.list_(column.type.value_type))
        return _array(plain, kind, sort_maps)
    return column.cast(kind)


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def _struct(column: pa.Array, kind: pa.DataType, sort_maps: bool) -> pa.Array:
    wanted, found = [f.name for f in kind], [f.name for f in column.type]
    if wanted != found:
        raise pa.ArrowInvalid(f"its fields are {found}, not {wanted}")
    if not wanted:
        return column.cast(kind)
    children = [
        _array(column.field(place), field.type, sort_maps) for place, field in enumerate(kind)
    ]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _within(column: pa.Array, values: list[pa.Array]) -> tuple[Any, list[pa.Array]]:
    """Offsets from 0, and the values they lie in, of a column that may be a slice."""
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    if last > np.iinfo(np.int32).max and last - first > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{last - first} values in one batch are too many for Spark")
    offsets = (offsets - first).astype(np.int32, copy=False)
    return offsets, [each.slice(first, last - first) for each in values]


def _of_lists(kind: pa.DataType, offsets: Any, like: pa.Array, values: pa.Array) -> pa.Array:
    """Lists, or maps, that are null where ``like`` is."""
    valid = like.is_valid().buffers()[1] if like.null_count else None
    buffers = [valid, pa.py_buffer(np.ascontiguousarray(offsets))]
    return pa.Array.from_buffers(kind, len(like), buffers, like.null_count, 0, [values])


def _map(column: pa.Array, kind: pa.DataType, sort_maps: bool) -> pa.Array:
    offsets, (keys, items) = _within(column, [column.keys, column.items])
    keys = _array(keys, kind.key_type, sort_maps)
    items = _array(items, kind.item_type, sort_maps)
    sizes = np.diff(offsets)
    if sort_maps and sizes.size and int(sizes.max()) > 1:
        order = _entry_order(keys, np.repeat(np.arange(len(sizes)), sizes))
        keys, items = keys.take(order), items.take(order)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return _of_lists(kind, offsets, column, entries)


def _entry_order(keys: pa.Array, maps: Any) -> pa.Array:
    """Where the entries go: map by map, in each by key."""
    if pa.types.is_nested(keys.type):
        # Arrow does not order these; any total order that depends on the values alone will do.
        ranks = [_rank(key) for key in keys.to_pylist()]
        return pa.array(sorted(range(len(ranks)), key=lambda at: (maps[at], ranks[at])), pa.int64())
    if pa.types.is_null(keys.type):
        return pa.array(np.arange(len(keys)))
    if pa.types.is_duration(keys.type) or pa.types.is_time(keys.type):
        keys = keys.view(pa.int64())  # not every Arrow orders these
    table = pa.table([pa.array(maps), keys], names=["map", "key"])
    return pc.sort_indices(table, sort_keys=[("map", "ascending"), ("key", "ascending")])


def _rank(value: Any) -> tuple[Any, ...]:
    """A value of a nested key as something that can be ordered: nulls first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (2,)
    if isinstance(value, dict):
        return (1, tuple(_rank(inner) for inner in value.values()))
    if isinstance(value, list):
        return (1, tuple(_rank(inner) for inner in value))
    return (1, value)
