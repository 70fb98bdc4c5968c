"""The core's speed: against the literal algorithms, between algorithms, and as state grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from bench.arrivals import Arrivals, Slice, Tuples, prepare, tuples
from bench.measure import Figure, Part, Rates, Result, in_turns, quiet
from bench.scale import SEED, Scale
from lmerge.core.batch import element_schema
from lmerge.core.merge import Merge
from lmerge.core.output import Output
from lmerge.core.policy import DivergencePolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.core.streams import StreamState
from lmerge.elements import Op
from lmerge.workload import SCHEMA, Stream, Workload, generate

PARTS: Final = 20
"""In so many parts a run is timed."""


class Applies(Protocol):
    """What a merge must do to be measured."""

    def attach(self, name: str) -> object:
        """A stream begins."""

    def apply(self, name: str, elements: pa.RecordBatch, stable: int | None = None) -> Output:
        """Elements of a stream."""


def merge_of(restriction: str, divergence: str = "report") -> Merge:
    """A merge with the default policies but for divergence."""
    policy = Policy(divergence=DivergencePolicy(divergence))
    return Merge(SCHEMA, Restriction(restriction), policy)


def _groups(count: int) -> list[slice]:
    """``count`` things in at most PARTS ranges."""
    size = max(1, -(-count // PARTS))
    return [slice(low, low + size) for low in range(0, count, size)]


def run(merge: Applies, arriving: Sequence[Slice]) -> list[Part]:
    """Apply slices, and time them in parts."""
    parts: list[Part] = []
    with quiet():
        for group in _groups(len(arriving)):
            some = arriving[group]
            start = time.process_time()
            for name, batch, stable, _ in some:
                merge.apply(name, batch, stable)
            took = time.process_time() - start
            parts.append(Part(sum(each.elements for each in some), took))
    return parts


def rate(make: Callable[[], Applies], arriving: Arrivals) -> Callable[[], list[Part]]:
    """A variant for :func:`in_turns`: a new merge, its head not timed, then its tail."""

    def once() -> list[Part]:
        merge = make()
        for name in arriving.names:
            merge.attach(name)
        for name, batch, stable, _ in arriving.head:
            merge.apply(name, batch, stable)
        parts = run(merge, arriving.tail)
        demand_joined(merge)
        return parts

    return once


def demand_joined(merge: Applies) -> None:
    """A merge that ignored a stream would be measured as fast: refuse that."""
    if isinstance(merge, Merge):
        states = merge.streams()
        if set(states.values()) != {StreamState.JOINED}:
            raise RuntimeError(f"not all streams were merged: {states}")


def literal_rate(restriction: str, arriving: Tuples, head: int) -> Callable[[], list[Part]]:
    """The literal algorithm, an element at a time; the first ``head`` are not timed."""

    from tests.oracle.literal import make_literal  # the tests are not installed

    def once() -> list[Part]:
        merge = make_literal(restriction)
        for name, element in arriving[:head]:
            merge.arrive(name, element)
        timed = arriving[head:]
        parts: list[Part] = []
        with quiet():
            for group in _groups(len(timed)):
                some = timed[group]
                start = time.process_time()
                for name, element in some:
                    merge.arrive(name, element)
                parts.append(Part(len(some), time.process_time() - start))
        return parts

    return once


def _streams(scale: Scale, payload: int, restriction: str) -> list[Stream]:
    return generate(
        Workload(
            elements=scale.elements,
            live=scale.live,
            payload_size=payload,
            restriction=restriction,
            seed=SEED,
        )
    )


def _against_literal(
    scale: Scale, streams: list[Stream], restriction: str, rows: int, tail: int | None = None
) -> tuple[float, dict[str, Any]]:
    tail = tail or scale.elements - scale.head
    arriving = prepare(streams, rows, scale.head, tail, scale.batch_large)
    short = min(tail, scale.literal)
    by_element = tuples(streams, rows, scale.head, short, scale.batch_large)
    head = scale.head * len(streams)
    rates = in_turns(
        {
            "columnar": rate(lambda: merge_of(restriction), arriving),
            "literal": literal_rate(restriction, by_element, head),
        },
        scale.repeats,
    )
    return _ratio(rates, "columnar", "literal"), _as_json(rates)


def _ratio(rates: dict[str, Rates], over: str, under: str) -> float:
    return rates[over].best / rates[under].best


def _as_json(rates: dict[str, Rates]) -> dict[str, Any]:
    return {name: each.as_json() for name, each in rates.items()}


def r3_literal(scale: Scale) -> Result:
    """R3 against the literal R3 on the same arrivals, by payload and by batch size."""
    small, large = scale.payloads
    figures: list[Figure] = []
    details: dict[str, Any] = {}

    def measure(
        streams: list[Stream], payload: int, rows: int, least: float | None, tail: int | None = None
    ) -> None:
        ratio, rates = _against_literal(scale, streams, "R3", rows, tail)
        name = f"R3, batches of {rows:,}, {payload} B"
        figures.append(Figure(name, ratio, at_least=least))
        details[name] = rates

    streams = _streams(scale, small, "R3")
    measure(streams, small, scale.batch_large, 60)
    measure(streams, small, scale.batch_medium, 25)
    measure(streams, small, scale.batch_small, 8, min(60_000, scale.elements - scale.head))
    for rows, tail in scale.tiny:
        measure(streams, small, rows, None, tail)
    del streams
    measure(_streams(scale, large, "R3"), large, scale.batch_large, 25)
    return Result(figures, details)


def r4_literal(scale: Scale) -> Result:
    """R4 against the literal R4 on the same arrivals."""
    payload, rows = scale.payloads[0], scale.batch_large
    # The literal R4 is the slowest of all: it is timed over a shorter stretch.
    short = replace(scale, literal=scale.literal // 2, repeats=min(2, scale.repeats))
    ratio, rates = _against_literal(short, _streams(scale, payload, "R4"), "R4", rows)
    name = f"R4, batches of {rows:,}, {payload} B"
    return Result([Figure(name, ratio, at_least=40)], {name: rates})


def ordered(scale: Scale) -> Result:
    """R0, R1 and R2 against R3 on the same ordered stream, and against R3 on a revising one."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    tail = scale.elements - scale.head
    simple = ("R0", "R1", "R2")
    for payload in scale.payloads:
        arriving = {
            kind: prepare(
                _streams(scale, payload, kind),
                scale.batch_large, scale.head, tail, scale.batch_large,
            )
            for kind in (*simple, "R3")
        }  # fmt: skip
        for divergence in ("report", "off"):
            general = _maker("R3", divergence)
            variants = {"R3 revising": rate(general, arriving["R3"])}
            for kind in simple:
                variants[kind] = rate(_maker(kind, divergence), arriving[kind])
                variants[f"R3 as {kind}"] = rate(general, arriving[kind])
            rates = in_turns(variants, scale.repeats)
            for kind in simple:
                name = f"{kind} against R3, {payload} B, {divergence}"
                figures.append(Figure(name, _ratio(rates, kind, f"R3 as {kind}"), at_least=6))
                details[name] = {
                    kind: rates[kind].as_json(),
                    "R3": rates[f"R3 as {kind}"].as_json(),
                    "R3 revising": rates["R3 revising"].as_json(),
                    "against_r3_revising": _ratio(rates, kind, "R3 revising"),
                }
    return Result(figures, details)


def _maker(restriction: str, divergence: str) -> Callable[[], Merge]:
    return lambda: merge_of(restriction, divergence)


def many_live(scale: Scale) -> Result:
    """Throughput with many live events against few, in turns over windows of one run each."""
    merges: dict[str, tuple[Merge, list[Slice]]] = {}
    lives: dict[str, int] = {}
    for label, live in (("many", scale.many_live), ("few", scale.live)):
        streams = generate(
            Workload(
                elements=scale.many_elements,
                live=live,
                payload_size=scale.payloads[0],
                seed=SEED,
            )
        )
        tail = scale.many_elements - scale.many_head - 1  # without stable(∞)
        arriving = prepare(streams, scale.batch_large, scale.many_head, tail, scale.batch_large)
        del streams
        merge = merge_of("R3")
        for name in arriving.names:
            merge.attach(name)
        for part in arriving.head:
            merge.apply(part.name, part.batch, part.stable)
        merges[label] = merge, arriving.tail
        lives[label] = merge.statistics().live
    found: dict[str, list[Part]] = {label: [] for label in merges}
    groups = {label: _groups(len(part)) for label, (_, part) in merges.items()}
    for window in range(min(len(each) for each in groups.values())):
        for label, (merge, tail_slices) in merges.items():
            took = run(merge, tail_slices[groups[label][window]])
            found[label].append(Part(*(sum(column) for column in zip(*took, strict=True))))
    for merge, _ in merges.values():
        demand_joined(merge)
    # The first window warms up. All others count: a median would leave out the compaction of
    # payloads, which many live events make rare and long.
    rates = {label: Rates((tuple(each[1:]),)) for label, each in found.items()}
    name = f"throughput, {scale.many_live:,} live against {scale.live:,}"
    figures = [Figure(name, _ratio(rates, "many", "few"), at_least=0.5)]
    details = {
        label: {
            "live": lives[label],
            "per_s": round(rates[label].best),
            "slowest_window_per_s": round(min(p.elements / p.seconds for p in each[1:])),
        }
        for label, each in found.items()
    }
    return Result(figures, details)


def stables(scale: Scale) -> Result:
    """A stable's time with many long-lived half-frozen events that do not change, against few."""
    clocks = {
        "many": _Standing(scale.many_live, scale.stable_changes),
        "few": _Standing(scale.live, scale.stable_changes),
    }
    times: dict[str, list[float]] = {label: [] for label in clocks}
    warm = max(3, scale.stables // 10)
    with quiet():
        for step in range(warm + scale.stables):
            for label, standing in clocks.items():
                took = standing.step()
                if step >= warm:
                    times[label].append(took)
    medians = {label: statistics.median(each) for label, each in times.items()}
    figures = [
        Figure(
            f"a stable with {scale.many_live:,} standing events against {scale.live:,}",
            medians["many"] / medians["few"],
            at_most=2,
        )
    ]
    microseconds = {
        label: {
            "median_us": 1e6 * medians[label],
            "mean_us": 1e6 * statistics.fmean(each),
            "p99_us": 1e6 * float(np.quantile(each, 0.99)),
        }
        for label, each in times.items()
    }
    return Result(figures, {"standing": microseconds, "changes": scale.stable_changes})


class _Standing:
    """A merge of three streams with events that stay half frozen, and a few that come and go."""

    _GAP = 1_000
    _FAR = 10**12

    def __init__(self, standing: int, changes: int) -> None:
        self._changes = changes
        self._rng = np.random.default_rng(SEED)
        self._now = standing
        self._merge = merge_of("R3")
        self._names = ("a", "b", "c")
        for name in self._names:
            self._merge.attach(name)
        rows = 10_000
        for low in range(0, standing, rows):
            starts = np.arange(low, min(standing, low + rows))
            # Ends far away and spread, so that nothing but the index's order keeps them asleep.
            ends = self._FAR + self._rng.integers(0, self._FAR, len(starts))
            self._insert(starts, ends)
        self._stable()

    def step(self) -> float:
        """New events at every input, then a stable that ends those of the step before; its time."""
        starts = self._now + self._rng.integers(1, self._GAP, self._changes)
        self._insert(starts, starts + self._GAP)
        self._now += self._GAP
        return self._stable()

    def _insert(self, starts: Any, ends: Any) -> None:
        count = len(starts)
        texts = np.frombuffer(self._rng.bytes(count * 24), np.uint8) % 64 + 48
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(24)
        buffers = [pa.py_buffer(offsets), pa.py_buffer(texts)]
        columns = [
            pa.array(np.full(count, Op.INSERT, np.int8)),
            *(pa.array(np.asarray(column, np.int64)) for column in (starts, ends, 0 * starts)),
            pa.array(self._rng.integers(0, 400, count)),
            pa.StringArray.from_buffers(count, *buffers),
        ]
        payload = pa.schema([SCHEMA.field("x"), SCHEMA.field("s")])
        batch = pa.RecordBatch.from_arrays(columns, schema=element_schema(payload))
        for name in self._names:
            self._merge.apply(name, batch)

    def _stable(self) -> float:
        start = time.process_time()
        self._merge.stable("a", self._now)
        took = time.process_time() - start
        for name in self._names[1:]:
            self._merge.stable(name, self._now)
        return took
