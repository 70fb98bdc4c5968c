"""Arrivals as the benchmarks need them: prepared before any clock runs.

A :class:`Slice` is what the wire hands to the merge: rows of one stream without its stable rows,
in buffers of their own, and the last stable among them. The literal algorithms take the very same
arrivals one element at a time, as :func:`tuples` of Python objects. Decoding is on neither
side's bill.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lmerge.elements import Op
from lmerge.times import INFINITY
from lmerge.workload import SCHEMA, Stream, arrivals

Tuples = list[tuple[str, Any]]
"""Stream and element, as the literal algorithms take them."""


class Slice(NamedTuple):
    """One call of ``Merge.apply``."""

    name: str
    batch: pa.RecordBatch
    stable: int | None
    elements: int
    """Inserts, adjusts and stables, also those that the last stable stands for."""


class Arrivals(NamedTuple):
    """What brings a merge to its steady state, and what is measured then."""

    names: list[str]
    head: list[Slice]
    tail: list[Slice]


def slices(streams: list[Stream], rows: int) -> list[Slice]:
    """The streams in slices of ``rows`` elements, in the order in which they arrive."""
    return [_slice(name, batch) for name, batch in arrivals(streams, rows)]


def _slice(name: str, batch: pa.RecordBatch) -> Slice:
    is_stable = pc.equal(batch.column("op"), pa.scalar(Op.STABLE, pa.int8()))
    stables = batch.column("vs").filter(is_stable)
    last = stables[-1].as_py() if len(stables) else None
    # Filtered even when nothing is: the copy has buffers of its own, as a message has.
    return Slice(name, batch.filter(pc.invert(is_stable)), last, batch.num_rows)


def prepare(streams: list[Stream], rows: int, head: int, tail: int, head_rows: int) -> Arrivals:
    """``head`` elements of each stream by ``head_rows``, then ``tail`` more by ``rows``."""
    names = [stream.name for stream in streams]
    first = slices([_part(s, 0, head) for s in streams], head_rows)
    return Arrivals(names, first, slices([_part(s, head, tail) for s in streams], rows))


def _part(stream: Stream, start: int, count: int) -> Stream:
    batch = stream.batch.slice(start, count)
    return Stream(stream.name, batch, stream.clock[start : start + count])


def tuples(streams: list[Stream], rows: int, head: int, tail: int, head_rows: int) -> Tuples:
    """The arrivals of :func:`prepare`, one element at a time; the literal's own form."""
    parts = ([_part(s, 0, head) for s in streams], head_rows), (
        [_part(s, head, tail) for s in streams], rows
    )  # fmt: skip
    return [
        (name, element)
        for part, count in parts
        for name, batch in arrivals(part, count)
        for element in _elements(batch)
    ]


def _elements(batch: pa.RecordBatch) -> Iterator[Any]:
    # Only what compares with the literal algorithms needs the tests, which are not installed.
    from tests.oracle.tdb import INF

    columns = (batch.column(name).to_pylist() for name in ("op", "vs", "ve", "vold", "x", "s"))
    for op, vs, ve, vold, x, s in zip(*columns, strict=True):
        if op == Op.STABLE:
            yield ("stable", INF if vs == INFINITY else vs)
        elif op == Op.INSERT:
            yield ("insert", (x, s), vs, INF if ve == INFINITY else ve)
        else:
            old, new = (INF if end == INFINITY else end for end in (vold, ve))
            yield ("adjust", (x, s), vs, old, new)


def write(directory: Path, arriving: Iterable[Slice]) -> Path:
    """A file of slices for a process of its own; see :func:`read`."""
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".arrows", delete=False) as sink:
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            for part in arriving:
                about = {"name": part.name, "stable": "" if part.stable is None else part.stable}
                metadata = {key: str(value) for key, value in about.items()}
                writer.write_batch(part.batch, custom_metadata=metadata)
        return Path(sink.name)


def read(path: Path) -> Iterator[Slice]:
    """The slices of :func:`write`, each freed when the next one is asked for."""
    # Not memory mapped: pages of a file do not count as the process's own memory.
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            stable = metadata["stable"].decode()
            name = metadata["name"].decode()
            yield Slice(name, batch, int(stable) if stable else None, batch.num_rows)
            del batch
