"""A merge's state as bytes: a zip archive of JSON, NumPy arrays and Arrow batches.

Any tool can open it; every member has a checksum; nothing in it is executed. Written with fixed
dates, so equal states give equal bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lmerge.errors import ConfigurationError, SnapshotError

FORMAT: Final = 3
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def pack(values: dict[str, Any], *, schema: pa.Schema, parts: dict[str, dict[str, Any]]) -> bytes:
    """Plain values, the payload schema, and named parts of arrays, batches and plain values."""
    buffer = io.BytesIO()
    plain: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_member("schema.arrow"), _arrow(pa.RecordBatch.from_pylist([], schema)))
        for part, items in parts.items():
            plain[part] = {}
            for name, item in items.items():
                if isinstance(item, np.ndarray):
                    array = io.BytesIO()
                    np.save(array, item, allow_pickle=False)
                    archive.writestr(_member(f"{part}/{name}.npy"), array.getvalue())
                elif isinstance(item, pa.RecordBatch):
                    archive.writestr(_member(f"{part}/{name}.arrow"), _arrow(item))
                else:
                    plain[part][name] = item
        text = json.dumps({"format": FORMAT, "values": values, "parts": plain})
        archive.writestr(_member("merge.json"), text)
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], pa.Schema, dict[str, dict[str, Any]]]:
    """The inverse of :func:`pack`; SnapshotError for anything else."""
    with explained(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        head = json.loads(archive.read("merge.json"))
        if head.get("format") != FORMAT:
            raise SnapshotError(
                f"the snapshot has format {head.get('format')}; this version reads {FORMAT}"
            )
        schema = _batch(archive.read("schema.arrow")).schema
        parts: dict[str, dict[str, Any]] = head["parts"]
        for member in archive.namelist():
            part, _, name = member.partition("/")
            if name.endswith(".npy"):
                array = np.load(io.BytesIO(archive.read(member)), allow_pickle=False)
                parts[part][name.removesuffix(".npy")] = array
            elif name.endswith(".arrow"):
                parts[part][name.removesuffix(".arrow")] = _batch(archive.read(member))
        return head["values"], schema, parts


@contextmanager
def explained() -> Iterator[None]:
    """Whatever a damaged snapshot makes Python say becomes one clear error."""
    try:
        yield
    except SnapshotError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, OSError,
        IndexError, AttributeError, RuntimeError, OverflowError, ConfigurationError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        raise SnapshotError(f"the snapshot is damaged: {error}") from error


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _DATE)


def _arrow(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _batch(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
