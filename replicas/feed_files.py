"""Files of rows in event-time order: how many rows, which of them are needed, and the rows.

What callers may rely on:

1. A row is named by its file and its number in it, and that name never changes: files are
   immutable once their name is visible (move them into the directory when they are complete).
2. :meth:`FeedFiles.first_needed` never passes over a row whose time is at or after the cut, nor
   one whose time is null. It reads no more than it must: a Parquet row group whose statistics lie
   before the cut is not read at all, otherwise only its time column is; of text only that column
   is converted.
3. :meth:`FeedFiles.read` gives the same rows for the same arguments, in every process.

Times are compared as the int64 that Spark will see for them (see ``replicas.times``).
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from lmerge.errors import ConfigurationError, InputError
from replicas.feed_formats import (
    FORMATS,
    Group,
    Times,
    fit,
    format_of,
    groups_of,
    infer,
    is_time,
    parse_csv,
    parse_json,
    times_of,
)

ARROW_ROWS: Final = 10_000  # rows of an Arrow batch handed to Spark
CACHE_BYTES_MAX: Final = 256 << 20  # of parsed files and row groups kept by a process


class _Cache:
    """What this process parsed last: a file is read once, not once a micro-batch."""

    def __init__(self) -> None:
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: object, make: Callable[[], Any]) -> Any:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        value = make()
        size = int(getattr(value, "nbytes", 0)) + 1024
        self._kept[key] = (value, size)
        self._bytes += size
        while self._bytes > CACHE_BYTES_MAX and len(self._kept) > 1:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
        return value


_cache = _Cache()


class FeedFiles:
    """The files of a directory. ``schema`` is what Spark expects; None only while inferring."""

    def __init__(self, path: str, format: str | None, time: str, schema: pa.Schema | None) -> None:  # noqa: A002 (Spark's word)
        self.path = path
        self.time = time
        self.schema = schema
        if format is not None and format.lower() not in FORMATS:
            raise ConfigurationError(f"format {format!r} is not one of parquet, json and csv")
        self._given = None if format is None else FORMATS[format.lower()]
        try:
            if "://" in path or path.startswith("file:"):
                self._fs, self._root = pa.fs.FileSystem.from_uri(path)
            else:
                self._fs, self._root = pa.fs.LocalFileSystem(), path
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigurationError(f"cannot open the directory {path!r}: {error}") from None
        self._format: str | None = self._given
        self._stamps: dict[str, tuple[int, int]] = {}
        if schema is not None:
            self.check_time(schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stamps": {}}  # a worker looks for itself

    def check_time(self, schema: pa.Schema) -> None:
        """Refuse a time column that is missing, or that cannot be a time."""
        if self.time not in schema.names:
            raise ConfigurationError(
                f"the time column {self.time!r} is not among the columns {', '.join(schema.names)}"
            )
        kind = schema.field(self.time).type
        if not is_time(kind):
            raise ConfigurationError(
                f"the time column {self.time!r} is of type {kind}, which is not a time: "
                "use a timestamp, a date or an integer"
            )

    def names(self) -> list[str]:
        """The files there are now, in the order in which they are taken."""
        selector = pa.fs.FileSelector(self._root, recursive=False, allow_not_found=True)
        try:
            if self._fs.get_file_info(self._root).type is not pa.fs.FileType.Directory:
                raise ConfigurationError(f"there is no directory {self.path!r}")
            infos = self._fs.get_file_info(selector)
        except OSError as error:
            raise ConfigurationError(f"cannot list the directory {self.path!r}: {error}") from None
        found = {}
        for info in infos:
            # Spark's own convention: what begins so is unfinished, or about the files.
            if info.type is pa.fs.FileType.File and not info.base_name.startswith((".", "_")):
                found[info.base_name] = (info.size or 0, info.mtime_ns or 0)
        self._stamps = found
        names = sorted(found)
        self._check_formats(names)
        return names

    def _check_formats(self, names: list[str]) -> None:
        for name in names:
            kind = format_of(name) or self._given
            if kind is None:
                raise ConfigurationError(
                    f"{self.path}/{name}: its extension is no format's: "
                    "say format='parquet', 'json' or 'csv', or take the file away"
                )
            if self._format is None:
                self._format = kind
            elif kind != self._format:
                raise ConfigurationError(
                    f"{self.path} mixes formats: {name} is {kind}, but the feed is {self._format}"
                )

    def rows(self, name: str) -> int:
        """How many rows a file has."""
        if self._kind(name) == "parquet":
            groups = self._groups(name)
            return groups[-1].first + groups[-1].rows if groups else 0
        return len(self._text_times(name))

    def first_needed(self, name: str, row: int, cut: int) -> int:
        """The first row from ``row`` on whose time is null or not before ``cut``; else rows()."""
        if self._kind(name) != "parquet":
            return _first(self._text_times(name), row, cut)
        for number, group in enumerate(self._groups(name)):
            end = group.first + group.rows
            if end <= row or (group.latest is not None and group.latest < cut):
                continue
            times = self._group_times(name, number)
            at = group.first + _first(times, max(0, row - group.first), cut)
            if at < end:
                return max(at, row)
        return max(row, self.rows(name))

    def read(
        self, name: str, start: int, stop: int | None, before: int | None
    ) -> Iterator[tuple[pa.RecordBatch | None, Times, int]]:
        """Rows ``[start, stop)`` that are not before ``before``: batch, its times, rows left out.

        The times are those of all rows that were looked at, in their order.
        """
        for table in self._tables(name, start, stop, before):
            if isinstance(table, int):
                yield None, np.empty(0, np.int64), table
                continue
            for piece in table.to_batches(max_chunksize=ARROW_ROWS):
                times = times_of(pa.chunked_array([piece.column(self.time)]))
                left_out = 0
                if before is not None:
                    keep = times >= before
                    left_out = len(times) - int(keep.sum())
                    if left_out:
                        piece = piece.filter(pa.array(keep))
                yield piece if piece.num_rows else None, times, left_out

    # How each format is read.

    def _kind(self, name: str) -> str:
        return self._given or format_of(name) or ""

    def _key(self, name: str) -> tuple[str, str, tuple[int, int]]:
        if name not in self._stamps:
            info = self._fs.get_file_info(f"{self._root}/{name}")
            if info.type is not pa.fs.FileType.File:
                raise InputError(f"{self.path}/{name}", None, "the file is gone")
            self._stamps[name] = (info.size or 0, info.mtime_ns or 0)
        return self.path, name, self._stamps[name]

    def _tables(
        self, name: str, start: int, stop: int | None, before: int | None
    ) -> Iterator[pa.Table | int]:
        """The rows as tables of ``schema``; a number stands for so many rows that are not read."""
        if self._kind(name) != "parquet":
            key = (*self._key(name), "table", str(self.schema))
            table = _cache.get(key, lambda: self._text(name, self._target()))
            yield table.slice(start, None if stop is None else stop - start)
            return
        for number, group in enumerate(self._groups(name)):
            low = max(start, group.first)
            end = group.first + group.rows
            high = end if stop is None else min(end, stop)
            if low >= high:
                continue
            if before is not None and group.latest is not None and group.latest < before:
                yield high - low
                continue
            yield self._group(name, number).slice(low - group.first, high - low)

    def _target(self) -> pa.Schema:
        assert self.schema is not None  # noqa: S101 (inference never reads rows)
        return self.schema

    @contextlib.contextmanager
    def _parquet(self, name: str) -> Iterator[Any]:
        try:
            with self._fs.open_input_file(f"{self._root}/{name}") as file:
                yield pa.parquet.ParquetFile(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{self.path}/{name}", None, str(error)) from None

    def _groups(self, name: str) -> list[Group]:
        def make() -> list[Group]:
            with self._parquet(name) as file:
                return groups_of(file, self.time, self._target().field(self.time).type)

        groups: list[Group] = _cache.get((*self._key(name), "groups", str(self.schema)), make)
        return groups

    def _group_times(self, name: str, number: int) -> Times:
        def make() -> Times:
            field = self._target().field(self.time)
            with self._parquet(name) as file:
                table = file.read_row_group(number, columns=[self.time])
            return times_of(fit(table, pa.schema([field]), f"{self.path}/{name}").column(0))

        times: Times = _cache.get((*self._key(name), "times", number, str(self.schema)), make)
        return times

    def _group(self, name: str, number: int) -> pa.Table:
        def make() -> pa.Table:
            target = self._target()
            with self._parquet(name) as file:
                have = [column for column in target.names if column in file.schema_arrow.names]
                return fit(file.read_row_group(number, columns=have), target, f"{self.path}/{name}")

        return _cache.get((*self._key(name), "group", number, str(self.schema)), make)

    def _text_times(self, name: str) -> Times:
        def make() -> Times:
            field = self._target().field(self.time)
            return times_of(self._text(name, pa.schema([field])).column(0))

        times: Times = _cache.get((*self._key(name), "times", str(self.schema)), make)
        return times

    def _text(self, name: str, target: pa.Schema) -> pa.Table:
        parse = parse_json if self._kind(name) == "json" else parse_csv
        if not self._key(name)[2][0]:
            return target.empty_table()
        try:
            return fit(parse(self._opener(name), target), target, f"{self.path}/{name}")
        except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
            if str(error).startswith("Empty "):
                return target.empty_table()
            raise InputError(f"{self.path}/{name}", None, str(error)) from None

    def _opener(self, name: str) -> Callable[[], Any]:
        return lambda: self._fs.open_input_stream(f"{self._root}/{name}", compression="detect")

    def infer(self) -> pa.Schema:
        """The columns of the first file that has any, as Spark can hold them."""
        names = [name for name in self.names() if self._stamps[name][0]]
        if not names:
            raise ConfigurationError(
                f"there are no files in {self.path!r} to take the columns from: "
                "give a schema to begin before the first one is there"
            )
        name = names[0]
        try:
            if self._kind(name) == "parquet":
                with self._parquet(name) as file:
                    schema = infer("parquet", file.schema_arrow, self.time)
            else:
                schema = infer(self._kind(name), self._opener(name), self.time)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{self.path}/{name}", None, str(error)) from None
        self.check_time(schema)
        return schema


def _first(times: Times, row: int, cut: int) -> int:
    needed = times[row:] >= cut
    return row + int(needed.argmax()) if needed.any() else len(times)
