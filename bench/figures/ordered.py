"""Figures 2, 3 and 6: all variants on ordered streams of inserts (§VI.C.1 and §VI.C.4).

Strictly increasing starts satisfy every restriction, so that all variants merge the same streams;
these differ in where they are stable.
"""

from __future__ import annotations

from typing import Final

from bench.arrivals import Arrivals
from bench.figures.measuring import (
    LMR3,
    VARIANTS,
    Step,
    Watched,
    cut,
    first_inputs,
    inputs_digest,
    mib,
    throughput,
    watch,
)
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, demand_equal
from bench.figures.sizes import Size
from lmerge.workload import Workload, generate

SIMPLE: Final = ("LMR0", "LMR1", "LMR2")
COMPARED: Final = (*SIMPLE, LMR3, "LMR4", "LMR3-")
ROWS_STABLE: Final = 100
"""Figure 6: of several stables in a slice the last counts, so slices hold about one at most."""
FLAT: Final = 1.3
"""Memory that grows by less from 2 inputs to 10 is called almost independent of them."""

_MAKES: Final = {label: VARIANTS[label] for label in COMPARED}


def _workload(size: Size, seed: int, streams: int, elements: int, stable_freq: float) -> Workload:
    return Workload(
        elements=elements,
        streams=streams,
        live=size.live,
        payload_size=size.payload,
        stable_freq=stable_freq,
        restriction="R0",
        seed=seed,
    )


def _ordered_inputs(size: Size, seed: int) -> tuple[dict[str, object], Arrivals]:
    workload = _workload(size, seed, max(size.inputs), size.inputs_elements, 0.01)
    parameters = {
        "inputs": size.inputs,
        "elements_per_input": workload.elements,
        "payload_bytes": workload.payload_size,
        "live": workload.live,
        "stable_freq": workload.stable_freq,
        "rows_per_batch": size.rows,
        "disorder": 0,
    }
    return parameters, cut(generate(workload), size.rows, size.inputs_head, workload.elements)


def figure_2(size: Size, seed: int, step: Step) -> Outcome:
    """Memory against the number of ordered inputs, every variant."""
    parameters, arriving = _ordered_inputs(size, seed)
    found: dict[str, list[Point]] = {label: [] for label in COMPARED}
    hashes = inputs_digest(arriving)
    runs = len(size.inputs) * len(COMPARED)
    done = 0
    for count in size.inputs:
        some = first_inputs(arriving, count)
        for label, make in _MAKES.items():
            seen = watch(make, some)
            found[label].append(Point.exactly(count, mib(seen.peak)))
            hashes[f"{label}, {count} inputs"] = seen.digest
            done += 1
            step(done / runs)
    series = [Series(label, points) for label, points in found.items()]
    panel = Panel("memory", "inputs", "peak memory, MiB", series, "lower", exact=True)
    few, many = min(size.inputs), max(size.inputs)
    general, minus = panel[LMR3], panel["LMR3-"]
    simple = max(panel[label].last for label in SIMPLE)
    growth, growth_minus = general.last / general.first, minus.last / minus.first
    findings = [
        Finding(
            f"with {many} inputs LMR0 to LMR2 hold at most {simple:.3f} MiB, LMR3+"
            f" {general.last:.1f} MiB",
            simple < general.last / 20,
        ),
        Finding(
            f"from {few} to {many} inputs the memory of LMR3+ grows {growth:.2f}-fold, almost"
            " independent of them",
            growth < FLAT,
        ),
        Finding(
            f"that of LMR3- grows {growth_minus:.2f}-fold, as linearly as {few + 1} indexes become"
            f" {many + 1}",
            growth_minus > 0.8 * (many + 1) / (few + 1),
        ),
        Finding(
            f"with {many} inputs LMR3- holds {minus.last / general.last:.1f} times what LMR3+ does",
            minus.last > 2 * general.last,
        ),
    ]
    return Outcome(parameters, [panel], findings, demand_equal(hashes), notes=[_NO_DIGESTS])


def figure_3(size: Size, seed: int, step: Step) -> Outcome:
    """Throughput against the number of ordered inputs, every variant."""
    parameters, arriving = _ordered_inputs(size, seed)
    found: dict[str, list[Point]] = {label: [] for label in COMPARED}
    hashes: dict[str, int] = {}
    for i, count in enumerate(size.inputs):
        some = first_inputs(arriving, count)
        seen = {label: watch(make, some, weigh=False) for label, make in _MAKES.items()}
        hashes |= {f"{label}, {count} inputs": each.digest for label, each in seen.items()}
        step((i + 0.4) / len(size.inputs))
        for label, point in throughput(_MAKES, some, seen, size.repeats, count).items():
            found[label].append(point)
        step((i + 1) / len(size.inputs))
    series = [Series(label, points) for label, points in found.items()]
    panel = Panel(
        "throughput", "inputs", "events output per CPU second", series, "higher", log_y=True
    )
    general, minus = panel[LMR3], panel["LMR3-"]
    slowest = min(panel[label].last for label in SIMPLE)
    many = max(size.inputs)
    findings = [
        Finding(
            f"with {many} inputs the slowest of LMR0 to LMR2 is"
            f" {slowest / general.last:.1f} times as fast as LMR3+",
            slowest > general.last,
            timed=True,
        ),
        Finding(
            f"LMR3+ is {general.last / minus.last:.1f} times as fast as LMR3-",
            general.last > 1.2 * minus.last,
            timed=True,
        ),
    ]
    return Outcome(parameters, [panel], findings, demand_equal(hashes), notes=[_NO_DIGESTS])


def figure_6(size: Size, seed: int, step: Step) -> Outcome:
    """Memory and throughput as stables become more frequent."""
    memory: dict[str, list[Point]] = {label: [] for label in COMPARED}
    speed: dict[str, list[Point]] = {label: [] for label in COMPARED}
    tdb: dict[str, str] = {}
    for i, freq in enumerate(size.stable_freqs):
        workload = _workload(size, seed, 3, size.stable_elements, freq)
        arriving = cut(generate(workload), ROWS_STABLE, size.stable_head, workload.elements)
        seen = {label: watch(make, arriving) for label, make in _MAKES.items()}
        hashes = inputs_digest(arriving) | {label: each.digest for label, each in seen.items()}
        tdb |= {f"{name}, {freq:.3%}": text for name, text in demand_equal(hashes).items()}
        step((i + 0.3) / len(size.stable_freqs))
        rates = throughput(_MAKES, arriving, seen, size.repeats, 100 * freq)
        for label in COMPARED:
            memory[label].append(_held(seen[label], freq))
            speed[label].append(rates[label])
        step((i + 1) / len(size.stable_freqs))
    x = "stables, % of elements"
    panels = [
        Panel(
            "memory", x, "peak memory, MiB", [Series(*each) for each in memory.items()], "lower",
            exact=True, log_x=True,
        ),
        Panel(
            "throughput", x, "events output per CPU second",
            [Series(*each) for each in speed.items()], "higher", log_x=True, log_y=True,
        ),
    ]  # fmt: skip
    by_memory, by_speed = panels
    least, most = (f"{100 * freq:g} %" for freq in (size.stable_freqs[0], size.stable_freqs[-1]))
    findings = [
        Finding(
            f"from {least} to {most} stables the memory of {label} falls to"
            f" {by_memory[label].last / by_memory[label].first:.2f} of what it was",
            by_memory[label].last < 0.9 * by_memory[label].first,
        )
        for label in (LMR3, "LMR4")
    ]
    for label in (LMR3, "LMR4"):
        highest = max(point.median for point in by_speed[label].points)
        fraction = by_speed[label].last / highest
        findings.append(
            Finding(
                f"the throughput of {label} at {most} is {fraction:.2f} of its highest",
                fraction < 0.95,
                timed=True,
            )
        )
    return Outcome(
        {
            "inputs": 3,
            "elements_per_input": size.stable_elements,
            "stable_freqs": size.stable_freqs,
            "payload_bytes": size.payload,
            "live": size.live,
            "rows_per_batch": ROWS_STABLE,
        },
        panels,
        findings,
        tdb,
        notes=[
            _NO_DIGESTS,
            "All variants merge ordered streams here, so that the simple ones can take part.",
        ],
    )


def _held(seen: Watched, freq: float) -> Point:
    return Point.exactly(100 * freq, mib(seen.peak))


_NO_DIGESTS: Final = (
    "The divergence check is off in every variant, since LMR3- and C+LMR1 have none;"
    " docs/performance.md has what it costs."
)
