"""Figures 8 and 9: bursts smoothed and congestion masked (§VI.E.1 and §VI.E.2).

The delivery is simulated (:mod:`bench.figures.delivery`); what merges is the core itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from bench.figures.delivery import Delivered, Floats, Link, deliver, truncated_normal
from bench.figures.measuring import Step, part_of, variation
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, Span, demand_equal
from bench.figures.sizes import Size
from bench.measure import Figure
from lmerge.workload import Stream, Workload, generate

PAYLOAD: Final = 24
DISORDER: Final = 0.2

SPARE: Final = 4.0
"""So many times what its source gives can travel to a merge that was congested."""

BURSTY: Final = 4
BURST_SPARE: Final = 20.0
"""The same of what waited in a queue: at 5,000 elements/s, 100,000, as fast as it is processed."""
BURST_CHANCES: Final = (0.003, 0.005)
"""The chance of a delay before an element; each stream has its own in this range."""
BURST_DELAY: Final = (100, 25)
"""Its mean and deviation, in the source's gaps: at 5,000 elements/s, 20 and 5 ms."""
BINS: Final = (50, 100, 250, 500)
"""Over how long a rate is taken, in the source's gaps."""
BIN: Final = 100
"""The one whose variation counts: as long as a delay is."""
SHOWN: Final = 60
"""So many bins the figure shows, from a quarter of the run on."""
TICK: Final = 5
"""The source's gaps between two looks at what has arrived."""
STEADIER: Final = 0.3

CONGESTED: Final = {"a": ((4.0, 8.0),), "b": ((11.0, 14.0), (17.0, 20.0)), "c": ((17.5, 21.5),)}
"""When each stream is; two of them at once around second 18, as in the paper."""
CONGESTION_DELAY: Final = (4, 1)
"""Between two elements of a congested stream, mean and deviation in the source's gaps: about a
fifth of the source's rate gets through."""
CONGESTION_TICK: Final = 20
KEPT: Final = 0.9
_RATE: Final = "elements per second"
_SIMULATED: Final = (
    "Delivery is simulated on a virtual clock, tick by tick, and drives the real merge: the figure"
    " is of rates of delivery, not of this machine's speed."
)


def _streams(count: int, seconds: float, rate: float, seed: int) -> list[Stream]:
    return generate(
        Workload(
            elements=int(seconds * rate),
            streams=count,
            live=1_000,
            payload_size=PAYLOAD,
            disorder=DISORDER,
            revisions=0,
            stable_freq=0.01,
            seed=seed,
        )
    )


def figure_8(size: Size, seed: int, step: Step) -> Outcome:
    """Four bursty inputs, and the merged output."""
    seconds = size.bursty_seconds
    streams = _streams(BURSTY, seconds, size.rate, seed)
    link, slow = Link(size.rate, BURST_SPARE), Link(size.rate, SPARE)
    delivered, slowly = (
        deliver(
            streams,
            [_bursty(stream, each, (seed, 8, i)) for i, stream in enumerate(streams)],
            TICK * link.gap,
            seconds,
            part_of(step, done, 2),
        )
        for done, each in enumerate((link, slow))
    )
    demand_equal(delivered.hashes | slowly.hashes)
    widths = {width: _variations(delivered, width) for width in BINS}
    means = {width: float(np.mean(inputs)) for width, (inputs, _) in widths.items()}
    varied, steady = widths[BIN]
    ratio = steady / means[BIN]
    varied_slowly, steady_slowly = _variations(slowly, BIN)
    shown, wide = delivered.binned(BIN // TICK), BIN * link.gap
    quarter = len(shown.output) // 4
    stretch = slice(quarter, quarter + SHOWN)
    milliseconds = {width: 1000 * width * link.gap for width in BINS}
    rate = Panel(
        "rate", "virtual time, s", f"{_RATE}, {1000 * wide:g} ms bins",
        [
            Series("input a", _line(shown.inputs["a"], wide)[stretch]),
            Series("merged", _line(shown.output, wide)[stretch]),
        ],
        exact=True, over_time=True,
    )  # fmt: skip
    steadiness = Panel(
        "variation", "width of a bin, ms", "coefficient of variation of the rate",
        [
            Series(
                "inputs",
                [
                    Point(ms, means[width], min(widths[width][0]), max(widths[width][0]))
                    for width, ms in milliseconds.items()
                ],
            ),
            Series(
                "merged",
                [Point.exactly(ms, widths[width][1]) for width, ms in milliseconds.items()],
            ),
        ],
        "lower", exact=True, log_x=True,
    )  # fmt: skip
    findings = [
        Finding(
            f"over bins of {1000 * wide:g} ms the rates of the inputs vary by {min(varied):.2f}"
            f" to {max(varied):.2f} (coefficient of variation), the merged one's by {steady:.2f}",
            steady < min(varied),
        ),
        Finding(
            "it is steadier than every input over bins of every width from"
            f" {milliseconds[BINS[0]]:g} to {milliseconds[BINS[-1]]:g} ms",
            all(output < min(inputs) for inputs, output in widths.values()),
        ),
    ]
    name = "variation of the output's rate against the mean of the inputs'"
    return Outcome(
        {
            "inputs": BURSTY,
            "seconds": seconds,
            "rate": link.rate,
            "capacity": [link.capacity, slow.capacity],
            "delay_chance": BURST_CHANCES,
            "delay_s": [each * link.gap for each in BURST_DELAY],
            "tick_s": TICK * link.gap,
            "disorder": DISORDER,
        },
        [rate, steadiness],
        findings,
        demand_equal(delivered.hashes),
        numbers=[
            Figure(name, ratio, at_most=STEADIER),
            Figure(
                f"the same when what waited comes {SPARE:g} times as fast as the source",
                steady_slowly / float(np.mean(varied_slowly)),
            ),
        ],
        notes=[
            _SIMULATED,
            "The paper gives no unit for its delays; here they are milliseconds. Nor does it say"
            f" how fast a stream catches up: what has waited comes {BURST_SPARE:g} times as fast"
            " as the source. The slower it comes, the more often all inputs are behind at once,"
            " and the output with them.",
        ],
    )


def _bursty(stream: Stream, link: Link, seed: tuple[int, ...]) -> Floats:
    """When the elements of a stream arrive that is delayed now and then."""
    rng = np.random.default_rng(seed)
    count = stream.batch.num_rows
    struck = rng.random(count) < rng.uniform(*BURST_CHANCES)
    extra = np.zeros(count)
    extra[struck] = link.gap * truncated_normal(*BURST_DELAY, int(struck.sum()), rng)
    return link.departures(extra)


def _variations(delivered: Delivered, width: int) -> tuple[list[float], float]:
    """Of each input's rate and of the output's; the first and the last tenth left out."""
    binned = delivered.binned(width // TICK)
    count = len(binned.output)
    inner = slice(count // 10, count - count // 10)
    return [variation(v[inner]) for v in binned.inputs.values()], variation(binned.output[inner])


def _line(counts: Floats, width: float) -> list[Point]:
    return [Point.exactly(round(i * width, 6), float(n / width)) for i, n in enumerate(counts)]


def figure_9(size: Size, seed: int, step: Step) -> Outcome:
    """Three inputs that are congested in turns, two of them at once, and the merged output."""
    seconds = size.congested_seconds
    link = Link(size.rate, SPARE)
    streams = _streams(3, seconds, link.rate, seed)
    arrivals = []
    for i, stream in enumerate(streams):
        rng = np.random.default_rng([seed, 9, i])
        arrivals.append(_congested(stream, link, rng))
    tick = CONGESTION_TICK * link.gap
    delivered = deliver(streams, arrivals, tick, seconds, step)
    by_second = delivered.binned(round(1 / tick))
    output = by_second.output
    inner = np.arange(1, len(output) - 1)  # the first and the last second are not whole
    during = [
        second
        for second in inner
        if any(
            start < second + 1 and second < end
            for spans in CONGESTED.values()
            for start, end in spans
        )
    ]
    median = float(np.median(output[inner]))
    worst = float(output[during].min()) / median
    worst_input = min(
        float(values[during].min()) / float(np.median(values[inner]))
        for values in by_second.inputs.values()
    )
    spike = max(
        float(values[inner].max()) / float(np.median(values[inner]))
        for values in by_second.inputs.values()
    )
    series = [
        Series(f"input {name}", _line(values, 1.0)[1:-1])
        for name, values in by_second.inputs.items()
    ]
    rate = Panel(
        "rate", "virtual time, s", f"{_RATE}, 1 s bins",
        [*series, Series("merged", _line(output, 1.0)[1:-1])],
        exact=True, over_time=True,
        spans=[
            Span(start, end, f"{name} congested")
            for name, spans in CONGESTED.items()
            for start, end in spans
        ],
    )  # fmt: skip
    findings = [
        Finding(
            f"a congested input falls to {worst_input:.2f} of its usual rate, and catches up at"
            f" {spike:.1f} times it",
            worst_input < 0.5 and spike > 1.5,
        ),
        Finding(
            f"in its worst congested second the output has {worst:.2f} of its median rate",
            worst >= KEPT,
        ),
        Finding(
            "so too around second 18, where two inputs are congested at once:"
            f" {float(output[18]) / median:.2f}",
            float(output[18]) / median >= KEPT,
        ),
    ]
    name = "output's rate in the worst congested second against its median"
    return Outcome(
        {
            "inputs": 3,
            "seconds": seconds,
            "rate": link.rate,
            "capacity": link.capacity,
            "congested_s": {name: list(spans) for name, spans in CONGESTED.items()},
            "delay_s": [each * link.gap for each in CONGESTION_DELAY],
            "tick_s": tick,
            "disorder": DISORDER,
        },
        [rate],
        findings,
        demand_equal(delivered.hashes),
        numbers=[Figure(name, worst, at_least=KEPT)],
        notes=[_SIMULATED],
    )


def _congested(stream: Stream, link: Link, rng: np.random.Generator) -> Floats:
    """When the elements of a stream arrive. Whether one is delayed depends on when it travels."""
    count = stream.batch.num_rows
    delays = link.gap * truncated_normal(*CONGESTION_DELAY, count, rng)
    spans = CONGESTED[stream.name]
    found = np.empty(count)
    now = 0.0
    for k in range(count):
        now = max((k + 1) * link.gap, now)
        if any(start <= now < end for start, end in spans):
            now += delays[k]
        now += 1 / link.capacity
        found[k] = now
    return found
