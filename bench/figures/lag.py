"""Figure 5: throughput as one or two of three inputs fall behind (§VI.C.3)."""

from __future__ import annotations

from typing import Final, NamedTuple

from bench.arrivals import Arrivals, Slice, slices
from bench.figures.measuring import (
    LMR3,
    VARIANTS,
    Step,
    Watched,
    inputs_digest,
    output_rates,
    watch,
)
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, Span, demand_equal
from bench.figures.sizes import Size
from bench.measure import in_turns
from bench.speed import merge_of, rate
from lmerge.workload import Stream, Workload, generate

LIFETIME_SECONDS: Final = 40.0
"""What the paper's mean lifetime is; a second of lag is this part of ours."""
PAPER_SECONDS: Final = 5.0
"""The paper's largest lag."""
STABLE_FREQ: Final = 0.001


def figure_5(size: Size, seed: int, step: Step) -> Outcome:
    """Throughput of LMR3+ as one or two of three inputs lag."""
    workload = Workload(
        elements=size.lag_elements,
        streams=3,
        live=size.live,
        payload_size=size.payload,
        disorder=0.2,
        stable_freq=STABLE_FREQ,
        seed=seed,
    )
    streams = generate(workload)
    second = workload.mean_duration / LIFETIME_SECONDS
    parts = _parts(streams, size)
    arriving = {
        (lagging, lag): _late(parts, [0.0] * (3 - lagging) + [lag * second] * lagging)
        for lagging in (1, 2)
        for lag in size.lags
    }
    hashes = inputs_digest(arriving[1, size.lags[0]])
    watched: dict[tuple[int, float], Watched] = {}
    drops: dict[tuple[int, float], float] = {}
    for i, (case, some) in enumerate(arriving.items()):
        watched[case] = watch(VARIANTS[LMR3], some, weigh=False)
        drops[case] = 100 * _dropped(some)
        hashes[f"{case[0]} lagging by {case[1]:g} s"] = watched[case].digest
        step(0.3 * (i + 1) / len(arriving))
    # All in turns, so that what else the machine does falls on every lag alike.
    runs = in_turns(
        {f"{n} {lag}": rate(VARIANTS[LMR3], some) for (n, lag), some in arriving.items()},
        size.repeats + 1,
    )
    rates: dict[int, list[Point]] = {1: [], 2: []}
    dropped: dict[int, list[Point]] = {1: [], 2: []}
    for (lagging, lag), seen in watched.items():
        repeats = output_rates(runs[f"{lagging} {lag}"], seen)
        rates[lagging].append(Point.of(lag, repeats))
        dropped[lagging].append(Point.exactly(lag, drops[lagging, lag]))
    step(1.0)
    x = f"lag, s (mean lifetime {LIFETIME_SECONDS:g} s)"
    speed = Panel(
        "throughput",
        x,
        "events output per CPU second",
        [Series(f"{n} of 3 inputs lagging", points) for n, points in rates.items()],
        "higher",
        spans=[_PAPER],
    )
    share = Panel(
        "dropped",
        x,
        "elements dropped unread, %",
        [Series(f"{n} of 3 inputs lagging", points) for n, points in dropped.items()],
        exact=True,
        spans=[_PAPER],
    )
    one, two = speed.series
    drop_one, drop_two = share.series
    within = [point.x for point in one.points if point.x <= PAPER_SECONDS]
    gain = two.at(max(within)) / two.first
    findings = [
        Finding(
            f"two inputs that lag by {size.lags[-1]:g} s make the merge"
            f" {two.last / two.first:.2f} times as fast",
            two.last > 1.1 * two.first,
            timed=True,
        ),
        Finding(
            f"two lagging inputs gain more than one ({one.last / one.first:.2f})",
            two.last / two.first > one.last / one.first,
            timed=True,
        ),
        Finding(
            f"of all elements {drop_two.last:.0f} % are dropped unread with two lagging inputs,"
            f" {drop_one.last:.0f} % with one",
            drop_two.last > drop_one.last > drop_one.first,
        ),
        Finding(
            f"up to the {max(within):g} s that the paper went to, where its throughput rises, this"
            f" one's changes by a factor of {gain:.2f}",
            gain > 1.05,
            timed=True,
        ),
    ]
    return Outcome(
        {
            "inputs": 3,
            "elements_per_input": size.lag_elements,
            "lags_s": size.lags,
            "payload_bytes": size.payload,
            "live": size.live,
            "disorder": 0.2,
            "stable_freq": STABLE_FREQ,
            "rows_per_batch": size.rows,
        },
        [speed, share],
        findings,
        demand_equal(hashes),
        notes=[
            "The lag is of application time, and goes on beyond the paper's: an element that a"
            " laggard brings is dropped unread once it ends before the output's stable point,"
            " which no element does while the lag is shorter than its lifetime.",
        ],
    )


class _Part(NamedTuple):
    """A slice, the stream it is of, and when it arrives if nothing lags."""

    clock: float
    stream: int
    part: Slice


def _parts(streams: list[Stream], size: Size) -> tuple[list[_Part], list[_Part]]:
    """The head's slices and the tail's. The lag changes their order alone."""
    head: list[_Part] = []
    tail: list[_Part] = []
    for i, stream in enumerate(streams):
        ends = [*range(size.rows, size.lag_elements, size.rows), size.lag_elements]
        for end, part in zip(ends, slices([stream], size.rows), strict=True):
            where = head if end <= size.lag_head else tail
            where.append(_Part(float(stream.clock[end - 1]), i, part))
    return head, tail


def _late(parts: tuple[list[_Part], list[_Part]], lags: list[float]) -> Arrivals:
    """What arrives when each stream lags by so much."""
    head, tail = (
        [each.part for each in sorted(some, key=lambda p: (p.clock + lags[p.stream], p.stream))]
        for some in parts
    )
    return Arrivals(list(dict.fromkeys(part.name for part in head)), head, tail)


def _dropped(arriving: Arrivals) -> float:
    """Of all elements, which share the merge drops because they cannot matter any more."""
    merge = merge_of("R3", "off")
    for name in arriving.names:
        merge.attach(name)
    for name, batch, stable, _ in (*arriving.head, *arriving.tail):
        merge.apply(name, batch, stable)
    dropped = sum(stream.dropped for stream in merge.statistics().streams)
    return dropped / sum(part.elements for part in (*arriving.head, *arriving.tail))


_PAPER: Final = Span(0, PAPER_SECONDS, "the paper's range")
