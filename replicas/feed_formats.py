"""Parquet, JSON lines and CSV, as Arrow tables of the types that Spark will see.

A text file is always converted by a schema that is known, so that its rows do not depend on what
else is in the file; a schema is inferred once, from one file, by :func:`infer`. Times without a
zone are UTC. Statistics of Parquet are used only where it is sure what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from lmerge.errors import InputError
from lmerge.times import INFINITY
from replicas.times import DAY_US

Times = npt.NDArray[np.int64]

FORMATS: Final = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
}
COMPRESSIONS: Final = ("gz", "bz2", "zst", "lz4")
JSON_BLOCK_BYTES: Final = 16 << 20  # also the largest line


def format_of(name: str) -> str | None:
    """The format that a file's extension stands for, compression aside."""
    parts = name.lower().split(".")
    if len(parts) > 2 and parts[-1] in COMPRESSIONS:
        parts.pop()
    return FORMATS.get(parts[-1]) if len(parts) > 1 else None


def times_of(column: pa.ChunkedArray) -> Times:
    """A column as int64 times; null becomes infinity, which no cut lies after."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32()).cast(pa.int64())
    else:
        column = column.cast(pa.int64())
    times: Times = column.fill_null(INFINITY).to_numpy()
    if pa.types.is_date32(kind):
        times = np.where(times == INFINITY, INFINITY, times * DAY_US)
    return times


def is_time(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type can be times."""
    return bool(
        pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or pa.types.is_signed_integer(kind)
    )


@dataclass(frozen=True)
class Group:
    """A Parquet row group: its rows, and a bound that no time in it exceeds, if known."""

    first: int
    rows: int
    latest: int | None


def fit(table: pa.Table, target: pa.Schema, source: str) -> pa.Table:
    """``table`` with the columns and types of ``target``; a column it lacks is null."""
    columns = []
    for field in target:
        if field.name not in table.column_names:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(field.name)
        if column.type != field.type:
            try:  # finer than a microsecond is cut off, as Spark does
                column = column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                reason = f"column {field.name!r} cannot become {field.type}: {error}"
                raise InputError(source, None, reason) from None
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=target)


def groups_of(file: Any, time: str, kind: pa.DataType) -> list[Group]:
    """The row groups of a Parquet file whose time column Spark sees as ``kind``."""
    meta = file.metadata
    names = [file.schema.column(i).path for i in range(len(file.schema))]
    scale = _raw_scale(file, names.index(time), kind) if time in names else None
    groups = []
    first = 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        latest = None
        if scale is not None:
            facts = group.column(names.index(time)).statistics
            # Only when it is sure that there is no null: a null is never passed over.
            if facts is not None and facts.has_min_max and facts.has_null_count:
                whole = facts.null_count == 0 and isinstance(facts.max_raw, int)
                # Rounded up: Spark will see no later time than that.
                latest = -(-facts.max_raw * scale[0] // scale[1]) if whole else None
        groups.append(Group(first, group.num_rows, latest))
        first += group.num_rows
    return groups


def _raw_scale(file: Any, column: int, kind: pa.DataType) -> tuple[int, int] | None:
    """What turns a statistic as stored into a time of ``kind``; None where that is not known."""
    logical = json.loads(file.schema.column(column).logical_type.to_json())
    physical = file.schema.column(column).physical_type
    if pa.types.is_timestamp(kind) and logical["Type"] == "Timestamp" and physical == "INT64":
        units = {"milliseconds": (1000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1000)}
        return units.get(logical["timeUnit"])
    if pa.types.is_date32(kind) and logical["Type"] == "Date":
        return DAY_US, 1
    if pa.types.is_signed_integer(kind) and physical in ("INT32", "INT64"):
        signed = logical["Type"] == "None" or (logical["Type"] == "Int" and logical["isSigned"])
        return (1, 1) if signed else None
    return None


def parse_json(opened: Any, target: pa.Schema | None) -> pa.Table:
    """JSON lines, converted to ``target``; where that is None, as Arrow infers them."""
    explicit = None
    if target is not None:
        explicit = pa.schema(
            # Arrow's reader knows no dates, and takes a time without a zone as UTC.
            [f.with_type(pa.timestamp("s")) if pa.types.is_date32(f.type) else f for f in target]
        )
    with opened() as stream:
        return pa.json.read_json(
            stream,
            read_options=pa.json.ReadOptions(use_threads=False, block_size=JSON_BLOCK_BYTES),
            parse_options=pa.json.ParseOptions(
                explicit_schema=explicit,
                unexpected_field_behavior="infer" if target is None else "ignore",
            ),
        )


def parse_csv(opened: Any, target: pa.Schema | None) -> pa.Table:
    """CSV with a header line, converted to ``target``; where that is None, as Arrow infers."""

    def read(types: dict[str, pa.DataType]) -> pa.Table:
        with opened() as stream:
            return pa.csv.read_csv(
                stream,
                read_options=pa.csv.ReadOptions(use_threads=False),
                parse_options=pa.csv.ParseOptions(newlines_in_values=True),
                convert_options=pa.csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    include_missing_columns=True,
                    null_values=[""],  # and not "NA" or "null", which are strings to Spark
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )

    types = {} if target is None else {field.name: field.type for field in target}
    try:
        return read(types)
    except pa.ArrowInvalid as error:
        # Times without a zone are UTC, as in JSON: Arrow wants to be told.
        naive = {n: pa.timestamp("us") if pa.types.is_timestamp(t) else t for n, t in types.items()}
        if "zone offset" not in str(error) or naive == types:
            raise
        return read(naive)


def infer(format: str, source: Any, time: str) -> pa.Schema:  # noqa: A002 (Spark's word)
    """The columns of a file (an Arrow schema, or a function that opens text), as Spark has them."""
    if format == "parquet":
        schema = source
    elif format == "csv":
        schema = parse_csv(source, None).schema
    else:
        schema = _infer_json(source, time)
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in schema])


def _infer_json(opened: Callable[[], Any], time: str) -> pa.Schema:
    """Arrow's guess, but a time keeps its fraction of a second, and whether it has a zone."""
    schema = parse_json(opened, None).schema
    suspects = [
        field.name
        for field in schema
        if pa.types.is_timestamp(field.type)
        or (field.name == time and pa.types.is_string(field.type))
    ]
    if not suspects:
        return schema
    texts = parse_json(opened, pa.schema([(name, pa.string()) for name in suspects]))
    fields = []
    for field in schema:
        if field.name in suspects:
            values = texts.column(field.name).drop_null()
            if pa.types.is_string(field.type) and not _all_match(values, _MOMENT):
                fields.append(field)  # not a time, which the caller will say
                continue
            zoned = len(values) and _ZONE.search(values[0].as_py())
            field = field.with_type(pa.timestamp("us", "UTC" if zoned else None))
        fields.append(field)
    return pa.schema(fields)


_ZONE: Final = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")
_MOMENT: Final = r"^\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"


def _all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return len(values) > 0 and bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """The nearest type that Spark has, for what it lacks."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type)
    wider = {
        pa.null(): pa.string(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    return wider.get(kind, kind)
