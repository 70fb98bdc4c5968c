"""Figure 5: throughput as one or two of three inputs fall behind (§VI.C.3)."""

from __future__ import annotations

from typing import Final

from bench.arrivals import Arrivals
from bench.figures.measuring import (
    LMR3,
    VARIANTS,
    Step,
    cut,
    inputs_digest,
    throughput,
    watch,
)
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, Span, demand_equal
from bench.figures.sizes import Size
from bench.speed import merge_of
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
    makes = {LMR3: VARIANTS[LMR3]}
    rates: dict[int, list[Point]] = {1: [], 2: []}
    dropped: dict[int, list[Point]] = {1: [], 2: []}
    hashes = inputs_digest(cut(streams, size.rows, 0, size.lag_elements))
    rounds = [(lag, lagging) for lag in size.lags for lagging in rates]
    for i, (lag, lagging) in enumerate(rounds):
        arriving = _late(streams, lagging, round(lag * second), size)
        seen = watch(makes[LMR3], arriving)
        hashes[f"{lagging} lagging by {lag:g} s"] = seen.digest
        point = throughput(makes, arriving, {LMR3: seen}, size.repeats, lag)[LMR3]
        rates[lagging].append(point)
        dropped[lagging].append(Point.exactly(lag, 100 * _dropped(arriving)))
        step((i + 1) / len(rounds))
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
            f"up to the {max(within):g} s that the paper went to, throughput changes by a factor"
            f" of {gain:.2f}, and the paper's rises",
            gain > 1.03,
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


def _late(streams: list[Stream], lagging: int, lag: int, size: Size) -> Arrivals:
    """The last ``lagging`` of the streams arrive so much later."""
    moved = [
        stream._replace(clock=stream.clock + (lag if i >= len(streams) - lagging else 0))
        for i, stream in enumerate(streams)
    ]
    return cut(moved, size.rows, size.lag_head, size.lag_elements)


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
