"""Writes elements as JSON lines, Parquet or Arrow IPC, by the name's extension."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmerge.elements import Op
from lmerge.errors import ConfigurationError, SchemaMismatchError
from lmerge.files.reading import Pending
from lmerge.files.shape import (
    OP_NAMES,
    TIME_FIELDS,
    Int64s,
    kind,
    payload_fields,
    reason,
    rows,
)
from lmerge.jsonlines import Arrival, Attach, Detach, Line, canonical, format_line, format_row
from lmerge.times import INFINITY

PENDING_ROWS_MAX: Final = 65_536
PENDING_BYTES_MAX: Final = 64 << 20
"""A table writer keeps this much back, so that small batches do not make small row groups."""

_IN: Final = pa.field("in", pa.string())
_AT: Final = pa.field("at", pa.int64(), metadata={b"lmerge": b"at"})


class Writer:
    """Writes elements and attaches in order; a context manager, which closes it.

    ``flush`` makes JSON lines visible to their reader. A table cannot be read before it is
    closed, so there it does nothing.
    """

    def write(
        self,
        batch: pa.RecordBatch,
        *,
        stream: str | Sequence[str] | None = None,
        at: Int64s | None = None,
    ) -> None:
        """Writes an element batch of ``stream``, which may be a name for each row.

        ``at`` has the causing line of each row.
        """
        raise NotImplementedError

    def write_stable(self, vc: int, *, stream: str | None = None, at: int | None = None) -> None:
        """Writes a stable; ``at`` is the causing line."""
        raise NotImplementedError

    def write_line(self, line: Line) -> None:
        """Writes one attach, detach or element."""
        raise NotImplementedError

    def flush(self) -> None:
        """Hands what was written to the operating system, where the format allows it."""

    def close(self) -> None:
        """Completes the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_writer(
    path: str, schema: pa.Schema | None = None, *, streams: bool = False, trace: bool = False
) -> Writer:
    """A writer by the extension of ``path``; ``-`` is stdout.

    A table has an ``in`` column if ``streams`` and an ``at`` column if ``trace``; its payload
    columns are those of ``schema``, or else of the first batch. JSON lines need none of that.
    """
    if path == "-":
        return stdout_writer()
    try:
        file = open(path, "wb")  # noqa: SIM115 (the writer closes it)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {reason(error)}") from error
    if kind(path) == "json":
        return JsonWriter(file)
    return TableWriter(file, kind(path), schema, streams=streams, trace=trace)


def stdout_writer() -> JsonWriter:
    """A writer of lines to stdout, which stays open."""
    if sys.stdout is None:
        raise ConfigurationError("cannot write: stdout is closed")
    return JsonWriter(sys.stdout.buffer)


class JsonWriter(Writer):
    """JSON lines. Also takes text, for lines that are no elements, such as feedback."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(
        self,
        batch: pa.RecordBatch,
        *,
        stream: str | Sequence[str] | None = None,
        at: Int64s | None = None,
    ) -> None:
        """Writes an element batch, a line for each row."""
        found = rows(batch)
        if stream is None or isinstance(stream, str):
            heads = [_head(stream)] * batch.num_rows
        else:
            known = {name: _head(name) for name in set(stream)}
            heads = [known[name] for name in stream]
        if at is not None:
            heads = [f'{head}"at":{line},' for head, line in zip(heads, at.tolist(), strict=True)]
        lines = [format_row(*row, head) for row, head in zip(found, heads, strict=True)]
        if lines:
            self.write_text("\n".join(lines))

    def write_stable(self, vc: int, *, stream: str | None = None, at: int | None = None) -> None:
        """Writes one line."""
        head = _head(stream) + ("" if at is None else f'"at":{at},')
        self.write_text(format_row(Op.STABLE, vc, 0, 0, None, head))

    def write_line(self, line: Line) -> None:
        """Writes one line, a gap included."""
        self.write_text(format_line(line))

    def write_text(self, text: str) -> None:
        """Writes ``text`` as it is, and a line end."""
        left = memoryview(text.encode() + b"\n")
        while left:  # an unbuffered file (PYTHONUNBUFFERED) may take a part
            taken = self._file.write(left)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, "the reader is not ready")
            left = left[taken:]

    def flush(self) -> None:
        """Makes the lines visible to their reader."""
        self._file.flush()

    def close(self) -> None:
        """Flushes; stdout stays open."""
        if sys.stdout is not None and self._file is sys.stdout.buffer:
            self._file.flush()
        else:
            self._file.close()


class TableWriter(Writer):
    """Parquet, or Arrow IPC in the file format. Keeps a bounded amount back for large groups."""

    def __init__(
        self, file: IO[bytes], kind: str, schema: pa.Schema | None, *, streams: bool, trace: bool
    ) -> None:
        self._file = file
        self._kind = kind
        self._streams = streams
        self._trace = trace
        self._sink: Any = None
        self._schema: pa.Schema | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        if schema is not None:
            try:
                self._begin(payload_fields(schema))
            except ConfigurationError:
                file.close()
                raise

    def write(
        self,
        batch: pa.RecordBatch,
        *,
        stream: str | Sequence[str] | None = None,
        at: Int64s | None = None,
    ) -> None:
        """Adds an element batch to the table."""
        fields = payload_fields(batch.schema)
        if self._schema is None:
            self._begin(fields)
        given = sorted((field.name, str(field.type)) for field in fields)
        own = sorted((f.name, str(f.type)) for f in self._payload)
        if given != own:
            raise SchemaMismatchError(f"payload columns {given} in a file that has {own}")
        ops, vs, ve, vold = (batch.column(field.name) for field in TIME_FIELDS)
        is_end = pc.not_equal(ops, int(Op.STABLE))
        columns = {
            "in": pa.repeat(pa.scalar(stream, pa.string()), batch.num_rows)
            if stream is None or isinstance(stream, str)
            else pa.array(stream, pa.string()),
            "op": pa.array(OP_NAMES).take(ops),
            "vs": _or_null(vs, True),
            "ve": _or_null(ve, is_end),
            "vold": _or_null(vold, pc.equal(ops, int(Op.ADJUST))),
            "at": pa.nulls(batch.num_rows, pa.int64()) if at is None else pa.array(at),
            **{field.name: batch.column(field.name) for field in fields},
        }
        self._append(columns, batch.num_rows)

    def write_stable(self, vc: int, *, stream: str | None = None, at: int | None = None) -> None:
        """Adds one row."""
        columns = {
            "in": pa.array([stream], pa.string()),
            "op": pa.array(["stable"]),
            "vs": pa.array([None if vc == INFINITY else vc], pa.int64()),
            "at": pa.array([at], pa.int64()),
        }
        self._append(columns, 1)

    def write_line(self, line: Line) -> None:
        """Adds one row; a table has none for a gap."""
        if isinstance(line, Arrival):
            pending = Pending()
            pending.add(line, 0, 0)
            for part in pending.take().parts:
                self.write(part.batch, stream=part.stream)
        elif isinstance(line, Attach | Detach):
            attach = isinstance(line, Attach)
            columns = {
                "in": pa.array([line.stream], pa.string()),
                "op": pa.array(["attach" if attach else "detach"]),
                "vs": pa.array([line.from_time if isinstance(line, Attach) else None], pa.int64()),
            }
            self._append(columns, 1)
        else:
            raise ConfigurationError("a table has no row for a gap")

    def close(self) -> None:
        """Writes what was kept back, and the footer; without the former if it cannot be."""
        if self._file.closed:
            return
        try:
            with _format_errors(self._kind):
                if self._schema is None:
                    self._begin([])
                try:
                    self._drain()
                finally:
                    if self._sink is not None:
                        self._sink.close()
        finally:
            self._file.close()

    def _begin(self, payload: list[pa.Field]) -> None:
        taken = {"in", "op", "vs", "ve", "vold", *(["at"] if self._trace else [])}
        clash = sorted(taken & {field.name for field in payload})
        if clash:
            raise ConfigurationError(f"a payload column cannot be called {clash[0]!r}")
        self._payload = payload
        self._schema = pa.schema(
            [
                *([_IN] if self._streams else []),
                pa.field("op", pa.string(), nullable=False),
                *(pa.field(name, pa.int64()) for name in ("vs", "ve", "vold")),
                *([_AT] if self._trace else []),
                *payload,
            ]
        )
        with _format_errors(self._kind):
            if self._kind == "parquet":
                self._sink = pq.ParquetWriter(self._file, self._schema, compression="snappy")
            else:
                self._sink = pa.ipc.new_file(self._file, self._schema)

    def _append(self, columns: dict[str, pa.Array], count: int) -> None:
        """Adds rows; a column that is not given is null, as an attach's payload is."""
        self._pending.append(pa.RecordBatch.from_pydict(columns))
        self._rows += count
        self._bytes += self._pending[-1].nbytes
        if self._rows >= PENDING_ROWS_MAX or self._bytes >= PENDING_BYTES_MAX:
            self._drain()

    def _drain(self) -> None:
        schema = self._schema
        if schema is None or not self._pending:
            return
        batches = [
            pa.RecordBatch.from_arrays(
                [
                    batch.column(field.name)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ],
                schema=schema,
            )
            for batch in self._pending
        ]
        self._pending, self._rows, self._bytes = [], 0, 0
        with _format_errors(self._kind):
            self._sink.write_table(pa.Table.from_batches(batches, schema).combine_chunks())


@contextmanager
def _format_errors(kind: str) -> Iterator[None]:
    """A value or type that the format has no form for is the caller's mistake."""
    try:
        yield
    except OSError:  # Arrow's own OSErrors among them: the file system's
        raise
    except pa.ArrowException as error:
        raise ConfigurationError(f"{kind} cannot hold this: {reason(error)}") from error


def _head(stream: str | None) -> str:
    return "" if stream is None else f'"in":{canonical(stream)},'


def _or_null(times: pa.Array, applies: pa.Array | bool) -> pa.Array:
    finite = pc.not_equal(times, INFINITY)
    return pc.if_else(pc.and_(finite, applies), times, None)
