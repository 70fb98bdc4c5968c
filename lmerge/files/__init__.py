"""Element files: JSON lines, Parquet and Arrow IPC, told apart by the name's extension.

``.parquet`` is Parquet; ``.arrow``, ``.ipc`` and ``.feather`` are Arrow IPC (file or stream
format); everything else, and ``-`` (stdin, stdout), is JSON lines.

Callers may rely on this: :func:`read_rounds` gives the content in arrival order in bounded
memory, never waits for more input while it holds some, and raises nothing but ``InputError``,
after everything before the bad line. Within a round the order *between* streams is given up;
read with ``max_rows=1`` to keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lmerge.errors import ConfigurationError
from lmerge.files import tables
from lmerge.files.reading import Bounds, Progress, read_json
from lmerge.files.shape import (
    JSON_PAYLOAD,
    JSON_SCHEMA,
    TIME_FIELDS,
    Control,
    Data,
    Part,
    Round,
    elements,
    is_json,
    kind,
)
from lmerge.files.writing import JsonWriter, TableWriter, Writer, open_writer, stdout_writer

__all__ = [
    "JSON_PAYLOAD",
    "JSON_SCHEMA",
    "TIME_FIELDS",
    "Control",
    "Data",
    "JsonWriter",
    "Part",
    "Round",
    "TableWriter",
    "Writer",
    "elements",
    "is_json",
    "kind",
    "open_writer",
    "read_rounds",
    "read_schema",
    "stdout_writer",
]

MAX_ROWS: Final = 10_000
CHUNK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 64 << 20
ROUND_BYTES_MAX: Final = 64 << 20
"""A round ends here whatever its rows, so that its text fits an Arrow string column."""


def read_rounds(
    path: str, *, max_rows: int = MAX_ROWS, progress: Progress | None = None
) -> Iterator[Round]:
    """The content of a file or of stdin (``-``), in rounds of at most ``max_rows`` elements."""
    if max_rows < 1:
        raise ConfigurationError(f"a round needs at least one row, not {max_rows}")
    if kind(path) != "json":
        return tables.read_table(path, max_rows, progress)
    bounds = Bounds(max_rows, ROUND_BYTES_MAX, CHUNK_BYTES, LINE_BYTES_MAX)
    return read_json(path, bounds, progress)


def read_schema(path: str) -> pa.Schema:
    """The schema of the batches that :func:`read_rounds` gives for ``path``."""
    return JSON_SCHEMA if kind(path) == "json" else tables.read_schema(path)
