"""Streams delivered on a virtual clock, and the real merge driven by what they deliver.

An element leaves its source at a constant rate, waits in its stream's queue, and takes its time on
the way: the queue serves faster than the source gives, so that what a disturbance held up comes
as a spike afterwards. The clock is advanced in ticks; at each the merge is given what every
stream has delivered. Nothing waits and no real clock is read: a seed gives the same run always.
What is simulated is the delivery alone, which is all that bursts and congestion change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.figures.measuring import Hash, Step, hash_of
from bench.speed import demand_joined, merge_of
from lmerge.elements import Op
from lmerge.workload import Stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """How a stream's elements travel."""

    rate: float
    """Elements a second that leave the source."""
    spare: float
    """So many times as many can travel when nothing is in the way."""

    @property
    def gap(self) -> float:
        """Seconds between two elements at the source."""
        return 1 / self.rate

    @property
    def capacity(self) -> float:
        """Elements a second that can travel when nothing is in the way."""
        return self.spare * self.rate

    def departures(self, extra: Floats) -> Floats:
        """When each element arrives, if ``extra`` seconds are lost before it.

        Lindley's recursion, d(k) = max(source(k), d(k-1)) + service(k), without its loop.
        """
        sources = np.arange(1, len(extra) + 1) / self.rate
        service = extra + 1 / self.capacity
        served = np.cumsum(service)
        departures: Floats = served + np.maximum.accumulate(sources - (served - service))
        return departures


def truncated_normal(mean: float, deviation: float, count: int, rng: np.random.Generator) -> Floats:
    """Normal values, those below 0 drawn again."""
    values: Floats = rng.normal(mean, deviation, count)
    while (wrong := values < 0).any():
        values[wrong] = rng.normal(mean, deviation, int(wrong.sum()))
    return values


@dataclass(frozen=True)
class Delivered:
    """Inserts and adjusts in each bin of time: of every input and of the output."""

    inputs: dict[str, Floats]
    output: Floats
    hashes: dict[str, int]

    def binned(self, bins: int) -> Delivered:
        """With so many bins joined into one; what does not fill one at the end is left out."""

        def joined(values: Floats) -> Floats:
            whole = len(values) // bins * bins
            sums: Floats = values[:whole].reshape(-1, bins).sum(axis=1)
            return sums

        inputs = {name: joined(values) for name, values in self.inputs.items()}
        return Delivered(inputs, joined(self.output), self.hashes)


def deliver(
    streams: list[Stream], arrivals: list[Floats], tick: float, seconds: float, step: Step
) -> Delivered:
    """Give the merge what arrives, tick by tick, to the end; one bin for each tick."""
    ticks = max(int(np.ceil(times[-1] / tick)) for times in arrivals) + 1
    edges = np.arange(1, ticks + 1) * tick
    cuts = [np.searchsorted(times, edges, side="right") for times in arrivals]
    merge = merge_of("R3", "off")
    for stream in streams:
        merge.attach(stream.name)
    output = np.zeros(ticks)
    made = Hash()
    lows = [0] * len(streams)
    for now in range(ticks):
        for i, stream in enumerate(streams):
            high = int(cuts[i][now])
            if high > lows[i]:
                part = stream.batch.slice(lows[i], high - lows[i])
                lows[i] = high
                for batch in merge.apply(stream.name, part).batches():
                    output[now] += batch.num_rows
                    made.add(batch)
        if now % 500 == 0:
            step(now / ticks)
    demand_joined(merge)
    bins = int(seconds / tick)
    inputs = {
        stream.name: _counted(stream, at)[:bins] for stream, at in zip(streams, cuts, strict=True)
    }
    hashes = {f"input {stream.name}": _digest(stream) for stream in streams}
    return Delivered(inputs, output[:bins], {**hashes, "output": made.value})


def _counted(stream: Stream, cuts: NDArray[Any]) -> Floats:
    """Elements without stables that arrive in each tick."""
    data = stream.batch.column("op").to_numpy() != Op.STABLE
    before = np.concatenate(([0], np.cumsum(data)))
    counts: Floats = np.diff(before[cuts], prepend=0).astype(np.float64)
    return counts


def _digest(stream: Stream) -> int:
    data = stream.batch.column("op").to_numpy() != Op.STABLE
    return hash_of([stream.batch.take(np.flatnonzero(data))])
