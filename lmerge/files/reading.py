"""Reads JSON lines from a file, a pipe or stdin, as soon as they can be read.

Memory is bounded by :class:`Bounds`: a chunk, an unfinished line and one round are held.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa

from lmerge.elements import Adjust, Insert, Op
from lmerge.errors import InputError
from lmerge.files.shape import JSON_SCHEMA, Control, Data, Part, Round, input_errors
from lmerge.jsonlines import Arrival, Attach, Detach, parse_line

Progress = Callable[[int], None]
"""Is told how many bytes of the input have been read."""


class Bounds(NamedTuple):
    """How much is held at once: rows and bytes of a round, bytes of a read and of a line."""

    rows: int
    round_bytes: int
    chunk_bytes: int
    line_bytes: int


def read_json(path: str, bounds: Bounds, progress: Progress | None = None) -> Iterator[Round]:
    """The rounds of JSON lines; after a bad line, those before it and then ``InputError``."""
    source = "stdin" if path == "-" else path
    pending = Pending()
    with _Input(path, source, bounds, progress) as stream:
        try:
            for first, lines in stream.lines():
                for number, raw in enumerate(lines, first):
                    line = parse_line(raw, source, number)
                    if type(line) is Arrival:
                        pending.add(line, number, len(raw))
                        if pending.count >= bounds.rows or pending.size >= bounds.round_bytes:
                            yield pending.take()
                    elif isinstance(line, Attach | Detach):
                        if pending.count:
                            yield pending.take()
                        yield Control(line, number)
                if pending.count and not stream.ready():
                    yield pending.take()
        except InputError:
            if pending.count:
                yield pending.take()
            raise
    if pending.count:
        yield pending.take()


class Pending:
    """The elements of the round being read, by stream."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._rows: dict[str | None, list[tuple[int, int, int, int, str | None, int]]] = {}

    def add(self, arrival: Arrival, number: int, size: int) -> None:
        """Adds the element of line ``number``, which was of ``size`` bytes."""
        stream, element = arrival
        rows = self._rows.get(stream)
        if rows is None:
            rows = self._rows[stream] = []
        if isinstance(element, Insert):
            rows.append((Op.INSERT, element.vs, element.ve, 0, element.payload, number))
        elif isinstance(element, Adjust):
            payload, vs, vold, ve = element
            rows.append((Op.ADJUST, vs, ve, vold, payload, number))
        else:
            rows.append((Op.STABLE, element.vc, 0, 0, None, number))
        self.count += 1
        self.size += size

    def take(self) -> Data:
        """The round; the next one begins."""
        parts = []
        for stream, rows in self._rows.items():
            *columns, lines = zip(*rows, strict=True)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, JSON_SCHEMA, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=JSON_SCHEMA)
            parts.append(Part(stream, batch, np.array(lines, np.int64)))
        self._rows, self.count, self.size = {}, 0, 0
        return Data(parts)


class _Input:
    """The lines of a file, a pipe or stdin, as soon as they can be read."""

    def __init__(self, path: str, source: str, bounds: Bounds, progress: Progress | None) -> None:
        self._source = source
        self._bounds = bounds
        self._progress = progress
        self._done = 0
        self._poll: select.poll | None = None
        with input_errors(source):
            self._file = _open_raw(path)
            try:
                fd = self._file.fileno()
            except OSError:
                return  # a stand-in for stdin, always ready
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                self._poll = select.poll()
                self._poll.register(fd, select.POLLIN)

    def __enter__(self) -> _Input:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def ready(self) -> bool:
        """Whether a read would return at once."""
        return self._poll is None or bool(self._poll.poll(0))

    def lines(self) -> Iterator[tuple[int, list[bytes]]]:
        """Lists of whole lines, each with the number of its first."""
        number, held, held_size = 1, list[bytes](), 0
        while chunk := self._read():
            head, newline, tail = chunk.partition(b"\n")
            held.append(head)
            held_size += len(head)
            if held_size > self._bounds.line_bytes:
                reason = f"line of over {self._bounds.line_bytes} bytes"
                raise InputError(self._source, number, reason)
            if newline:
                lines = [b"".join(held), *tail.split(b"\n")]
                held = [lines.pop()]
                held_size = len(held[0])
                yield number, lines
                number += len(lines)
        yield number, [b"".join(held)]

    def _read(self) -> bytes:
        with input_errors(self._source):
            while True:
                chunk = self._file.read(self._bounds.chunk_bytes)
                if chunk is not None:
                    self._done += len(chunk)
                    if self._progress is not None:
                        self._progress(self._done)
                    return chunk
                if self._poll is not None:  # a pipe that does not block, with nothing in it
                    self._poll.poll()


def _open_raw(path: str) -> IO[bytes]:
    if path != "-":
        return open(path, "rb", buffering=0)
    if sys.stdin is None:
        raise OSError(errno.EBADF, "stdin is closed")
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except OSError:
        return sys.stdin.buffer
