"""What the replicas send, prepared in files before any clock runs, and what must come of it.

A file has the epochs of one stream in order: a batch each, and the stable that its commit says.
:func:`digest` is a TDB's: it does not depend on the order of its elements nor on how often an
event was revised, so that every stream and the merged one must have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.arrivals import Slice, slices, write
from bench.server.scale import SEED
from lmerge.elements import Op
from lmerge.times import INFINITY
from lmerge.workload import SCHEMA, Workload, generate

_ROW_BYTES: Final = 1 + 4 * 8 + 4  # op, vs, ve, vold, x and an offset
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class Prepared(NamedTuple):
    """The streams of one logical stream, each in a file of its own."""

    paths: list[Path]
    elements: int  # of all streams, stables included
    nbytes: int  # of all streams, as their batches are on the wire
    digest: int  # of the TDB that each of them gives


def prepare(directory: Path, workload: Workload, message_bytes: int) -> Prepared:
    """The workload's streams, in epochs of one message of about so many bytes."""
    rows = max(1, int(0.985 * message_bytes) // (_ROW_BYTES + workload.payload_size))
    return prepare_rows(directory, workload, rows)


def prepare_rows(directory: Path, workload: Workload, rows: int) -> Prepared:
    """The workload's streams, in epochs of so many elements."""
    paths, elements, nbytes, found = [], 0, 0, set()
    for stream in generate(workload):
        parts = slices([stream], rows)
        paths.append(write(directory, parts))
        elements += sum(part.elements for part in parts)
        nbytes += sum(part.batch.serialize().size for part in parts)
        found.add(digest(part.batch for part in parts))
    (one,) = found  # all streams are the same logically, or the workload is wrong
    return Prepared(paths, elements, nbytes, one)


def usual(elements: int, live: int, payload: int, streams: int = 3) -> Workload:
    """The paper's workload (§VI.B)."""
    return Workload(elements=elements, live=live, payload_size=payload, streams=streams, seed=SEED)


def digest(batches: Iterable[pa.RecordBatch]) -> int:
    """Of the TDB that these elements give: a sum over its events."""
    total = 0
    for batch in batches:
        texts = batch.column("s").to_pylist()
        hashes = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
        payload = np.frombuffer(b"".join(hashes), np.uint64) + _mixed(_column(batch, "x"))
        vs, ve, vold = (_column(batch, name) for name in ("vs", "ve", "vold"))
        added = _events(payload, vs, ve)
        removed = _events(payload, vs, vold)[batch.column("op").to_numpy() == Op.ADJUST]
        # An end at the start removes the event: nothing is added for it.
        total += int(added[ve > vs].sum()) - int(removed.sum())
    return total % 2**64


def _column(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = batch.column(name).to_numpy()
    return values


def _mixed(values: NDArray[Any]) -> NDArray[np.uint64]:
    mixed = values.astype(np.uint64) * _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed * _MIX


def _events(
    payload: NDArray[np.uint64], vs: NDArray[np.int64], ve: NDArray[np.int64]
) -> NDArray[np.uint64]:
    return _mixed(payload ^ _mixed(vs) ^ (_mixed(ve) >> np.uint64(1)))


def sliding(directory: Path, events: int, live: int, rows: int, names: Sequence[str]) -> list[Path]:
    """Streams of inserts each of which lives as long as ``live`` others take to come.

    After any number of them the last ``live`` are live, and what came before is history.
    """
    rng = np.random.default_rng(SEED)
    parts: list[Slice] = []
    payload = pa.schema([SCHEMA.field("x"), SCHEMA.field("s")])
    for low in range(0, events, rows):
        starts = np.arange(low, min(events, low + rows))
        count = len(starts)
        texts = np.frombuffer(rng.bytes(count * 24), np.uint8) % 64 + 48
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(24)
        columns = [
            pa.array(np.full(count, Op.INSERT, np.int8)),
            *(pa.array(column) for column in (starts, starts + live, 0 * starts)),
            pa.array(rng.integers(0, 400, count)),
            pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*list(SCHEMA)[:4], *payload]))
        parts.append(Slice("", batch, int(starts[-1]) + 1, count))
    return [write(directory, [part._replace(name=name) for part in parts]) for name in names]


END: Final = INFINITY
"""The stable that ends a stream of :func:`prepare`."""
