"""Figure 4: how many adjusts are output as more of the input comes late (§VI.C.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.figures.measuring import Step, cut, elements_of, inputs_digest, watch
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, demand_equal
from bench.figures.sizes import Size
from bench.figures.subquery import until_next
from lmerge.core.merge import Merge
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Op
from lmerge.workload import SCHEMA, Workload, generate

GROUPS: Final = 4
ROWS: Final = 50
INPUTS: Final = 3
STABLE_FREQ: Final = 0.01
WITHOUT: Final = "without LMerge"
LAZY, EAGER = "LMR3+, lazy (default)", "LMR3+, eager"


def _merge(adjust: AdjustPolicy) -> Callable[[], Merge]:
    policy = Policy(adjust=adjust, divergence=DivergencePolicy.OFF)
    return lambda: Merge(SCHEMA, Restriction.R3, policy)


def figure_4(size: Size, seed: int, step: Step) -> Outcome:
    """Output size against disorder: the adjusts of a sub-query, without and with a merge."""
    makes = {LAZY: _merge(AdjustPolicy.LAZY), EAGER: _merge(AdjustPolicy.EAGER)}
    found: dict[str, list[Point]] = {label: [] for label in (WITHOUT, *makes)}
    tdb: dict[str, str] = {}
    for i, disorder in enumerate(size.disorder):
        workload = Workload(
            elements=size.disorder_elements,
            streams=INPUTS,
            live=size.live,
            payload_size=24,
            disorder=disorder,
            revisions=0,
            stable_freq=STABLE_FREQ,
            seed=seed,
        )
        streams = [until_next(stream, GROUPS) for stream in generate(workload)]
        arriving = cut(streams, ROWS, 0, max(stream.batch.num_rows for stream in streams))
        hashes = inputs_digest(arriving)
        adjusts = [
            sum(op == Op.ADJUST for op in stream.batch.column("op").to_pylist())
            for stream in streams
        ]
        percent = 100 * disorder
        found[WITHOUT].append(Point(percent, sorted(adjusts)[1], min(adjusts), max(adjusts)))
        for label, make in makes.items():
            seen = watch(make, arriving, weigh=False)
            found[label].append(Point.exactly(percent, seen.adjusts))
            hashes[label] = seen.digest
        tdb |= {f"{name}, {disorder:.0%}": text for name, text in demand_equal(hashes).items()}
        assert elements_of(arriving.tail) == sum(stream.batch.num_rows for stream in streams)
        step((i + 1) / len(size.disorder))
    series = [Series(label, points) for label, points in found.items()]
    panel = Panel("output size", "late elements, %", "adjusts output", series, "lower", exact=True)
    alone, lazy = panel[WITHOUT], panel[LAZY]
    growing = all(
        before.median < after.median
        for before, after in zip(alone.points, alone.points[1:], strict=False)
    )
    late = [point.x for point in alone.points if point.x > 0]
    shares = [lazy.at(x) / alone.at(x) for x in late]
    findings = [
        Finding(
            f"one input's adjusts grow from {alone.first:,.0f} to {alone.last:,.0f} as late"
            f" elements go from {alone.points[0].x:g} % to {alone.points[-1].x:g} %",
            growing,
        ),
        Finding(
            "the merged output has fewer adjusts than one input at every disorder, "
            f"{min(shares):.2f} to {max(shares):.2f} of them",
            max(shares) < 1,
        ),
        Finding(
            f"eager adjusts would be {panel[EAGER].last / lazy.last:.1f} times as many as lazy"
            f" ones at {late[-1]:g} %",
            panel[EAGER].last > lazy.last,
        ),
    ]
    return Outcome(
        {
            "inputs": INPUTS,
            "input_elements": size.disorder_elements,
            "disorder": size.disorder,
            "stable_freq": STABLE_FREQ,
            "groups": GROUPS,
            "rows_per_batch": ROWS,
        },
        [panel],
        findings,
        tdb,
        notes=[
            "The sub-query ends each event where the next one of its group begins, so that a late"
            " element revises the one before it; each input comes late in places of its own."
            " Without a merge: the input with the middle number of adjusts.",
        ],
    )
