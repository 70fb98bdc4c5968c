"""Workloads of the paper's kind (§VI.B): streams that differ physically and agree logically.

Callers may rely on this: the same :class:`Workload` gives the same streams; each keeps its
contract and the properties of ``restriction``; all reconstitute to the same TDB and end with
``stable(∞)``; between two stables of a stream there is an insert. Shares are met as nearly as the
number of elements and the other parameters permit.

Each stream delays other inserts, first gives other ends and revises them, inserts other spurious
events and removes them, and is stable at other places. Payload columns: ``x``, an integer in
[0, 400], and ``s``, random text. Everything is vectorised; a stream's memory is about
``elements * payload_size`` bytes.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmerge.elements import Op
from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY

X_MAX: Final = 400
DELAY_GAPS: Final = 20
"""A disordered insert comes late by at most this many times ``max_gap``."""
DUPLICATES_R4: Final = 0.1
TEXT_BYTES_MAX: Final = 2**31 - 1
"""What one Arrow string column holds."""

SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.int8(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("vs", "ve", "vold")),
        pa.field("x", pa.int64()),
        pa.field("s", pa.string()),
    ]
)

_ALPHABET: Final = np.frombuffer(
    (string.ascii_letters + string.digits + "-_").encode("ascii"), np.uint8
)
_ORDERED: Final = ("R0", "R1", "R2")

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Workload:
    """What to generate. ``elements`` counts each stream's, stables included.

    R0 to R2 are insert-only and in order: ``disorder``, ``revisions`` and ``spurious`` do not
    apply there. ``duplicates`` is for R4 alone, and then 0.1 unless given.
    """

    elements: int = 200_000
    streams: int = 3
    stable_freq: float = 0.01
    duration: int | None = None
    """Mean lifetime; by default such that about ``live`` events are active at any time."""
    live: int = 10_000
    max_gap: int = 20
    disorder: float = 0.2
    revisions: float = 0.36
    """The share of adjusts among inserts and adjusts."""
    spurious: float = 0.05
    """The share of adjusts that remove an event which no other stream has."""
    infinite: float = 0.0
    """The share of ends, provisional ones too, that are infinite."""
    duplicates: float | None = None
    payload_size: int = 1000
    lag: int = 0
    """Stream i arrives i times this much application time behind the first."""
    restriction: str = "R3"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.restriction not in ("R0", "R1", "R2", "R3", "R4"):
            raise ConfigurationError(f"restriction {self.restriction!r} is not one of R0 to R4")
        for name, least in (("elements", 2), ("streams", 1), ("live", 1), ("max_gap", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} must be at least {least}")
        for name in ("payload_size", "lag", "seed"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must not be negative")
        if self.duration is not None and self.duration < 1:
            raise ConfigurationError("duration must be at least 1")
        for name in ("stable_freq", "disorder", "spurious", "infinite", "duplicates"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise ConfigurationError(f"{name} must be between 0 and 1")
        if not 0 <= self.revisions < 1:
            raise ConfigurationError("revisions must be at least 0 and below 1")
        if self.duplicates and self.restriction != "R4":
            raise ConfigurationError("duplicates need restriction R4")
        if self.elements * self.payload_size > TEXT_BYTES_MAX:
            raise ConfigurationError(
                f"elements * payload_size must be at most {TEXT_BYTES_MAX}, which is what one "
                "column holds"
            )

    @property
    def ordered(self) -> bool:
        """Whether the streams are in order and insert-only."""
        return self.restriction in _ORDERED

    @property
    def mean_duration(self) -> int:
        """The mean lifetime: as given, or for ``live`` events at the mean gap."""
        return self.duration or max(1, self.live * self.max_gap // 2)


class Stream(NamedTuple):
    """A stream: one element batch, and the application time at which each row arrives."""

    name: str
    batch: pa.RecordBatch
    clock: Int64s


class _Counts(NamedTuple):
    """How many of what each stream has."""

    stables: int
    events: int
    adjusts: int
    spurious: int


class _Logical(NamedTuple):
    """The TDB that all streams present, in order of ``vs``; the tie group of each event."""

    vs: Int64s
    ve: Int64s
    x: Int64s
    s: pa.Array
    group: Int64s


def generate(w: Workload) -> list[Stream]:
    """The streams of ``w``, all of the same TDB."""
    counts = _counts(w)
    logical = _logical(w, counts.events, np.random.default_rng([w.seed, 0]))
    return [
        _present(w, counts, logical, i, np.random.default_rng([w.seed, 1, i]))
        for i in range(w.streams)
    ]


def arrivals(streams: list[Stream], batch_rows: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The streams in batches of ``batch_rows``, interleaved as they progress, lag included."""
    if batch_rows < 1:
        raise ConfigurationError(f"a batch needs at least one row, not {batch_rows}")
    cuts = [
        (int(stream.clock[min(low + batch_rows, len(stream.clock)) - 1]), low, i)
        for i, stream in enumerate(streams)
        for low in range(0, len(stream.clock), batch_rows)
    ]
    for _, low, i in sorted(cuts):
        yield streams[i].name, streams[i].batch.slice(low, batch_rows)


def _counts(w: Workload) -> _Counts:
    revisions = 0.0 if w.ordered else w.revisions
    # An insert between any two stables: stables <= inserts = (elements - stables)(1 - revisions).
    most = int(w.elements * (1 - revisions) / (2 - revisions))
    stables = max(1, min(round(w.elements * w.stable_freq), most))
    data = w.elements - stables
    adjusts = min(round(data * revisions), data - 1)
    inserts = data - adjusts
    spurious = min(round(adjusts * w.spurious), inserts // 2)  # most inserts are of the TDB
    return _Counts(stables, inserts - spurious, adjusts, spurious)


def _logical(w: Workload, n: int, rng: np.random.Generator) -> _Logical:
    gaps = rng.integers(1 if w.restriction == "R0" else 0, w.max_gap, n, np.int64, endpoint=True)
    share = w.duplicates
    if share is None:
        share = DUPLICATES_R4 if w.restriction == "R4" else 0.0
    twin = rng.random(n) < share
    twin[0] = False
    gaps[twin] = 0
    vs = np.cumsum(gaps)
    ve = _ends(w, vs, rng)
    group, rank, first = _groups(vs)
    # Ties differ in x, so that (vs, payload) is a key even when the text is empty.
    x = (rng.integers(0, X_MAX, n, endpoint=True)[first] + rank) % (X_MAX + 1)
    # A twin is the event before the run of twins; half of them have its end as well.
    source = np.maximum.accumulate(np.where(twin, 0, np.arange(n)))
    same_end = twin & (rng.random(n) < 0.5)
    ve = np.where(same_end, ve[source], ve)
    s = _texts(n, w.payload_size, rng).take(pa.array(source))
    return _Logical(vs, ve, x[source], s, group)


def _groups(vs: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Of sorted values: the number of each one's tie group, its rank in it, and its first index."""
    begins = np.concatenate(([True], vs[1:] != vs[:-1]))
    group = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)[group]
    return group, np.arange(len(vs)) - first, first


def _ends(w: Workload, vs: Int64s, rng: np.random.Generator) -> Int64s:
    mean = w.mean_duration
    lifetime = rng.integers(max(1, mean // 2), mean + mean // 2, len(vs), np.int64, endpoint=True)
    ends: Int64s = np.where(rng.random(len(vs)) < w.infinite, INFINITY, vs + lifetime)
    return ends


def _texts(n: int, size: int, rng: np.random.Generator) -> pa.Array:
    data = _ALPHABET[np.frombuffer(rng.bytes(n * size), np.uint8) & 63]
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(size)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(data))


class _Rows(NamedTuple):
    """Data elements in no order yet. ``limit`` is the largest stable point allowed before each."""

    time: Int64s
    op: NDArray[np.int8]
    vs: Int64s
    ve: Int64s
    vold: Int64s
    payload: Int64s
    limit: Int64s


def _present(
    w: Workload, counts: _Counts, logical: _Logical, i: int, rng: np.random.Generator
) -> Stream:
    n = counts.events
    events = np.arange(n)
    if w.ordered:
        rows = _inserts(logical.vs, logical.vs, logical.ve, events)
        tie = rng.random(n) if w.restriction == "R2" else events
        x, s = pa.array(logical.x), logical.s
    else:
        ghosts, ghost_x = _ghosts(w, counts, logical, rng)
        rows = _joined([_revised(w, counts, logical, rng), ghosts])
        x = pa.array(np.concatenate((logical.x, ghost_x)))
        s = pa.concat_arrays([logical.s, _texts(len(ghost_x), w.payload_size, rng)])
        tie = np.arange(len(rows.time))  # an adjust was made after its insert, and stays so
    order = np.lexsort((tie, rows.time))
    ordered: list[Any] = [column[order] for column in rows]
    rows = _Rows(*ordered)
    return _with_stables(w, counts, rows, x, s, i, rng)


def _inserts(time: Int64s, vs: Int64s, ve: Int64s, payload: Int64s) -> _Rows:
    zeros = np.zeros(len(vs), np.int64)
    return _Rows(time, np.full(len(vs), Op.INSERT, np.int8), vs, ve, zeros, payload, vs)


def _adjusts(time: Int64s, vs: Int64s, vold: Int64s, ve: Int64s, payload: Int64s) -> _Rows:
    op = np.full(len(vs), Op.ADJUST, np.int8)
    return _Rows(time, op, vs, ve, vold, payload, np.minimum(vold, ve))


def _joined(parts: list[_Rows]) -> _Rows:
    return _Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _delays(w: Workload, n: int, rng: np.random.Generator) -> Int64s:
    """By how much each insert comes late: beyond the next gap, well within a lifetime."""
    most = max(w.max_gap + 1, min(DELAY_GAPS * w.max_gap, w.mean_duration // 2))
    late = rng.random(n) < w.disorder
    delays: Int64s = np.where(late, rng.integers(w.max_gap, most, n, np.int64, endpoint=True), 0)
    return delays


def _revised(w: Workload, counts: _Counts, logical: _Logical, rng: np.random.Generator) -> _Rows:
    """The events of the TDB: an insert each, and a chain of adjusts that leads to the right end."""
    n, revisions = counts.events, counts.adjusts - counts.spurious
    arrival = logical.vs + _delays(w, n, rng)
    owner = np.sort(rng.integers(0, n, revisions))  # the event that each adjust belongs to
    vs = logical.vs[owner]
    vold = _ends(w, vs, rng)
    is_last = np.concatenate((owner[1:] != owner[:-1], [True]))[:revisions]
    is_first = np.concatenate(([True], owner[1:] != owner[:-1]))[:revisions]
    ve = np.where(is_last, logical.ve[owner], np.roll(vold, -1))
    provisional = logical.ve.copy()
    provisional[owner[is_first]] = vold[is_first]
    # While every end of the chain is still ahead, so that the stable point need not wait for it.
    earliest = logical.ve.copy()
    np.minimum.at(earliest, owner, vold)
    room = np.minimum(earliest - arrival, w.mean_duration)[owner]
    time = arrival[owner] + (rng.random(revisions) * np.maximum(room, 0)).astype(np.int64)
    time = time[np.lexsort((time, owner))]  # a chain's adjusts in order
    inserts = _inserts(arrival, logical.vs, provisional, np.arange(n))
    return _joined([inserts, _adjusts(time, vs, vold, ve, owner)])


def _ghosts(
    w: Workload, counts: _Counts, logical: _Logical, rng: np.random.Generator
) -> tuple[_Rows, Int64s]:
    """Events that are inserted and later removed, and their ``x``."""
    beside = np.sort(rng.integers(0, counts.events, counts.spurious))
    vs = logical.vs[beside]
    arrival = vs + _delays(w, len(vs), rng)
    removal = arrival + rng.integers(0, max(1, DELAY_GAPS * w.max_gap), len(vs), np.int64)
    # An x that no event of the TDB has at that vs, so that (vs, payload) stays a key.
    size = np.bincount(logical.group)
    lead = logical.x[np.searchsorted(logical.vs, vs)]
    rank = _groups(vs)[1] if len(vs) else np.zeros(0, np.int64)
    x = (lead + size[logical.group[beside]] + rank) % (X_MAX + 1)
    payload = counts.events + np.arange(len(vs))
    end = _ends(w, vs, rng)
    rows = _joined(
        [_inserts(arrival, vs, end, payload), _adjusts(removal, vs, end, vs.copy(), payload)]
    )
    return rows, x


def _with_stables(
    w: Workload, counts: _Counts, rows: _Rows, x: pa.Array, s: pa.Array, i: int,
    rng: np.random.Generator,
) -> Stream:  # fmt: skip
    """The stream of ``rows``, which are in order, with stables between them and at the end."""
    inserts = np.flatnonzero(rows.op == Op.INSERT)
    chosen = rng.choice(len(inserts) - 1, counts.stables - 1, replace=False)
    after = np.sort(inserts[chosen])  # never the last insert, so that one precedes stable(∞)
    allowed = np.minimum.accumulate(rows.limit[::-1])[::-1]
    slack = rng.integers(0, w.max_gap, len(after), np.int64, endpoint=True)
    vc = np.maximum.accumulate(allowed[after + 1] - slack)

    def placed(column: NDArray[np.int64], values: NDArray[np.int64], last: int) -> Int64s:
        return np.append(np.insert(column, after + 1, values), last).astype(np.int64)

    zeros = np.zeros(len(after), np.int64)
    stable = np.full(len(after), Op.STABLE, np.int64)
    op = placed(rows.op.astype(np.int64), stable, Op.STABLE).astype(np.int8)
    index = pa.array(placed(rows.payload, zeros, 0), mask=op == Op.STABLE)
    columns = [
        pa.array(op),
        pa.array(placed(rows.vs, vc, INFINITY)),
        pa.array(placed(rows.ve, zeros, 0)),
        pa.array(placed(rows.vold, zeros, 0)),
        x.take(index),
        s.take(index),
    ]
    clock = placed(rows.time, rows.time[after], int(rows.time[-1])) + i * w.lag
    return Stream(_name(i), pa.RecordBatch.from_arrays(columns, schema=SCHEMA), clock)


def _name(i: int) -> str:
    """a, b, … z, aa, ab, …"""
    letters = string.ascii_lowercase
    return (_name(i // 26 - 1) if i >= 26 else "") + letters[i % 26]
