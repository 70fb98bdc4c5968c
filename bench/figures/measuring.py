"""How the figures' experiments measure: memory and answers in one pass, time in others.

The pass that watches is not timed; it takes what is exact: the bytes held, the elements output,
and the hash of what the output reconstitutes to. Times are CPU times of runs made in turns
(:func:`bench.measure.in_turns`), the first of which warms up and is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.arrivals import Arrivals, Slice, prepare
from bench.cleanse import CleansedR1
from bench.figures.outcome import Point
from bench.lmr3_minus import LMR3Minus
from bench.measure import Rates, in_turns
from bench.memory import held
from bench.server.streams import digest
from bench.speed import Applies, demand_joined, merge_of, rate
from lmerge.elements import Op
from lmerge.workload import SCHEMA, Stream

Step = Callable[[float], None]
"""Told, as an experiment proceeds, which share of it is done."""


def part_of(step: Step, done: int, parts: int) -> Step:
    """To be told the share of one part, of so many of which ``done`` are over."""
    return lambda share: step((done + share) / parts)


Makes = Mapping[str, Callable[[], Applies]]

# LMR3− and C+LMR1 keep no digests for the divergence check; so that like is compared with like,
# nor does any other.
_OFF: Final = "off"
LMR3: Final = "LMR3+"
VARIANTS: Final[dict[str, Callable[[], Applies]]] = {
    "LMR0": lambda: merge_of("R0", _OFF),
    "LMR1": lambda: merge_of("R1", _OFF),
    "LMR2": lambda: merge_of("R2", _OFF),
    LMR3: lambda: merge_of("R3", _OFF),
    "LMR4": lambda: merge_of("R4", _OFF),
    "LMR3-": lambda: LMR3Minus(SCHEMA),
    "C+LMR1": lambda: CleansedR1(SCHEMA),
}


SAMPLES: Final = 150
"""How often a merge is weighed: that is slower than merging."""


class Watched(NamedTuple):
    """What one merge did with all its arrivals."""

    peak: int
    """Bytes of index and payloads at the worst of the moments that were looked at."""
    inserts: int
    adjusts: int
    tail_inserts: int
    """Events output while a timed run would be timed."""
    delay: float
    """Mean application time from an event's start until its output, by the inputs' clock."""
    digest: int


class Hash:
    """The hash of the TDB that a stream gives, taken over many batches at a time."""

    _ROWS: Final = 20_000

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """The stream goes on."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= self._ROWS:
            self._flush()

    def _flush(self) -> None:
        joined = pa.Table.from_batches(self._batches).combine_chunks()
        self._total += digest(joined.to_batches())
        self._batches, self._rows = [], 0

    @property
    def value(self) -> int:
        """Of all so far."""
        if self._batches:
            self._flush()
        return self._total % 2**64


def hash_of(batches: Iterable[pa.RecordBatch]) -> int:
    """Of a whole stream without its stables."""
    made = Hash()
    for batch in batches:
        made.add(batch)
    return made.value


def watch(make: Callable[[], Applies], arriving: Arrivals, *, weigh: bool = True) -> Watched:
    """Merge everything once, and look after every slice; ``weigh``: at what it holds too."""
    merge = make()
    for name in arriving.names:
        merge.attach(name)
    peak = inserts = adjusts = head_inserts = clock = 0
    made = Hash()
    waited = 0.0
    count = len(arriving.head) + len(arriving.tail)
    every = max(1, count // SAMPLES)
    for i, part in enumerate((*arriving.head, *arriving.tail)):
        if i == len(arriving.head):
            head_inserts = inserts
        if len(part.batch):
            clock = max(clock, int(part.batch.column("vs").to_numpy().max()))
        for batch in merge.apply(part.name, part.batch, part.stable).batches():
            starts = batch.column("vs").to_numpy()[batch.column("op").to_numpy() == Op.INSERT]
            inserts += len(starts)
            adjusts += batch.num_rows - len(starts)
            waited += float((clock - starts).sum())
            made.add(batch)
        if weigh and (i % every == 0 or i == count - 1):
            peak = max(peak, held(merge))
    demand_joined(merge)
    return Watched(
        peak, inserts, adjusts, inserts - head_inserts, waited / max(1, inserts), made.value
    )


def inputs_digest(arriving: Arrivals) -> dict[str, int]:
    """The hash of the TDB that each input gives by itself."""
    parts = (*arriving.head, *arriving.tail)
    return {
        f"input {name}": hash_of(part.batch for part in parts if part.name == name)
        for name in arriving.names
    }


def first_inputs(arriving: Arrivals, count: int) -> Arrivals:
    """The arrivals of the first ``count`` inputs, in the same order."""
    names = arriving.names[:count]
    head, tail = (
        [part for part in parts if part.name in names] for parts in (arriving.head, arriving.tail)
    )
    return Arrivals(names, head, tail)


def throughput(
    makes: Makes, arriving: Arrivals, watched: Mapping[str, Watched], repeats: int, x: float
) -> dict[str, Point]:
    """Events output for each second of CPU (the paper's measure, §VI.B), of each variant."""
    rates = in_turns({name: rate(make, arriving) for name, make in makes.items()}, repeats + 1)
    return {name: Point.of(x, output_rates(rates[name], watched[name])) for name in makes}


def output_rates(rates: Rates, watched: Watched) -> list[float]:
    """Events output for each second of CPU, of every run but the first, which warms up."""
    return [watched.tail_inserts / sum(part.seconds for part in run) for run in rates.runs[1:]]


def cut(streams: list[Stream], rows: int, head: int, elements: int) -> Arrivals:
    """A head that brings merges to their steady state, then the rest, in slices of ``rows``."""
    return prepare(streams, rows, head, elements - head, rows)


def elements_of(parts: Sequence[Slice]) -> int:
    """How many elements arrive."""
    return sum(part.elements for part in parts)


def variation(values: NDArray[np.float64]) -> float:
    """The coefficient of variation."""
    return float(np.std(values) / np.mean(values))


MIB: Final = 2**20


def mib(count: int) -> float:
    """Bytes as MiB."""
    return count / MIB
