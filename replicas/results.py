"""What the sink of the format "lmerge" reads and keeps beside a query's checkpoint, without a JVM.

A Python sink runs in a process that has no Hadoop, so files are reached through pyarrow: local
directories, and ``s3://``, ``gs://`` and ``hdfs://`` where pyarrow has them. The result of an epoch
is written before the epoch is committed, whole or not at all; the one before it stays, since Spark
may run the last epoch again.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING
from replicas.revisions import Revisions

_FOLDER: Final = "lmerge-results"


class Results:
    """One checkpoint directory."""

    def __init__(self, checkpoint: str) -> None:
        place = checkpoint.removeprefix("file://")
        place = place.removeprefix("file:")
        try:
            if "://" in place:
                self._files, self._root = pyarrow.fs.FileSystem.from_uri(place)
            else:
                self._files, self._root = pyarrow.fs.LocalFileSystem(), place
        except Exception as error:
            raise ConfigurationError(
                f"the checkpoint {checkpoint} cannot be read from Python: {error}"
            ) from error

    def _read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def watermark(self, epoch: int) -> int:
        """That which the batch was run with, in microseconds; BEGINNING when there is none yet."""
        content = self._read(f"offsets/{epoch}")
        if content is None:
            raise ConfigurationError(
                f"the checkpoint {self._root} has no offsets of batch {epoch} that Python can read:"
                " the watermark is not known; say stable=none, or a column"
            )
        millis = int(json.loads(content.decode().splitlines()[1]).get("batchWatermarkMs", 0))
        return millis * 1000 if millis > 0 else BEGINNING

    def difference(
        self, revisions: Revisions, epoch: int, parts: list[bytes], stable: int
    ) -> tuple[list[pa.RecordBatch], int]:
        """The elements from the result before this epoch to this one, which is kept; late rows."""
        before = self._read(f"{_FOLDER}/{epoch - 1}")
        if before is not None:
            revisions.load(before)
        elif epoch > 0:
            raise ConfigurationError(
                f"the result of batch {epoch - 1} is not in {self._root}/{_FOLDER}: the checkpoint"
                " is not that of this query; start with a new one"
            )
        tables = [pa.ipc.open_stream(part).read_all() for part in parts]
        whole: Any = pa.concat_tables(tables) if tables else revisions.live.slice(0, 0)
        vs, ve = (whole[name].to_numpy() for name in ("vs", "ve"))
        found = revisions.apply(whole.drop_columns(["vs", "ve"]), vs, ve, stable)
        self._keep(epoch, revisions.save())
        return found

    def _keep(self, epoch: int, content: bytes) -> None:
        folder = f"{self._root}/{_FOLDER}"
        self._files.create_dir(folder, recursive=True)
        draft = f"{folder}/.draft-{epoch}"
        with self._files.open_output_stream(draft) as stream:
            stream.write(content)
        self._files.move(draft, f"{folder}/{epoch}")
        old = f"{folder}/{epoch - 2}"
        if self._files.get_file_info(old).type == pyarrow.fs.FileType.File:
            self._files.delete_file(old)
