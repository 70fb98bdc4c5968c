"""Small files beside a query's checkpoint, wherever that lies.

What lies elsewhere goes through Hadoop's FileSystem, as Spark's own checkpoint does: HDFS and
object stores are one case. A local directory is written by Python itself, since Hadoop starts a
process for each local file's permissions, which costs more than a small micro-batch. A file is
there whole or not at all: it is written under another name and renamed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError

_LOCAL: Final = "file"


class Storage:
    """One directory."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        context: Any = spark.sparkContext  # what it gives of the JVM has no types
        # Asked for once: a class is looked for through all jars, package by package.
        path, io = context._jvm.org.apache.hadoop.fs.Path, context._jvm.org.apache.commons.io
        place = path(directory)
        try:
            files = place.getFileSystem(context._jsc.hadoopConfiguration())
            whole = files.makeQualified(place).toUri()
        except Exception as error:
            raise ConfigurationError(f"{directory}: no file system for it: {error}") from error
        self._files: _Local | _Hadoop
        if whole.getScheme() == _LOCAL:
            self._files = _Local(Path(whole.getPath()))
        else:
            self._files = _Hadoop(files, path, place, io.IOUtils)

    def read(self, name: str) -> bytes | None:
        """What a file holds; None when there is none."""
        return self._files.read(name)

    def write(self, name: str, content: bytes) -> None:
        """Make a file, or replace it."""
        self._files.write(name, content)

    def names(self, folder: str) -> list[str]:
        """The files in a folder."""
        return self._files.names(folder)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._files.remove(name)


def _draft(name: str) -> str:
    return f".{name.replace('/', '_')}.draft"


class _Local:
    """A directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path, draft = self._directory / name, self._directory / _draft(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        # A checksum that Hadoop has left there is of what was there before.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        draft.replace(path)

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._directory / folder)
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


class _Hadoop:
    """A directory of any file system that Hadoop has."""

    def __init__(self, files: Any, path: Any, directory: Any, io: Any) -> None:
        self._files = files
        self._path_class = path
        self._directory = directory
        self._io = io

    def _path(self, name: str) -> Any:
        return self._path_class(self._directory, name)

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._io.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        path, draft = self._path(name), self._path(_draft(name))
        stream = self._files.create(draft, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        self._files.mkdirs(path.getParent())
        if self._files.exists(path):
            self._files.delete(path, False)
        if not self._files.rename(draft, path):
            raise OSError(f"{path.toString()} could not be written")

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return [each.getPath().getName() for each in self._files.listStatus(path)]

    def remove(self, name: str) -> None:
        self._files.delete(self._path(name), False)
