"""Small files beside a query's checkpoint, wherever that lies.

Everything goes through Hadoop's FileSystem, as Spark's own checkpoint does: a local directory, HDFS
and object stores are one case. A file is there whole or not at all: it is written under another
name and renamed.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError


class Storage:
    """One directory."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        context: Any = spark.sparkContext  # what it gives of the JVM has no types
        self._jvm = context._jvm
        self._directory = self._jvm.org.apache.hadoop.fs.Path(directory)
        try:
            self._files = self._directory.getFileSystem(context._jsc.hadoopConfiguration())
        except Exception as error:
            raise ConfigurationError(f"{directory}: no file system for it: {error}") from error

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._directory, name)

    def read(self, name: str) -> bytes | None:
        """What a file holds; None when there is none."""
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Make a file, or replace it."""
        path, draft = self._path(name), self._path(f".{name.replace('/', '_')}.draft")
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
        """The files in a folder."""
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return [each.getPath().getName() for each in self._files.listStatus(path)]

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._files.delete(self._path(name), False)
