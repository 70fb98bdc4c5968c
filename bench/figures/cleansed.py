"""Figure 7: ordering every input first, then a simple merge, against merging directly (§VI.D)."""

from __future__ import annotations

from typing import Final

from bench.figures.measuring import (
    LMR3,
    VARIANTS,
    Step,
    cut,
    first_inputs,
    inputs_digest,
    mib,
    throughput,
    watch,
)
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series, demand_equal
from bench.figures.sizes import Size
from bench.measure import Figure
from lmerge.workload import Workload, generate

CLEANSED: Final = "C+LMR1"
COMPARED: Final = (LMR3, "LMR3-", CLEANSED)
FLAT: Final = 1.3
LEAST: Final = 7.0
"""How many times LMR3+'s memory C+LMR1 takes at 10 inputs, as the paper has it."""


def figure_7(size: Size, seed: int, step: Step) -> Outcome:
    """Memory, throughput and delay of Cleanse with LMR1 against LMR3+ and LMR3-."""
    workload = Workload(
        elements=size.inputs_elements,
        streams=max(size.inputs),
        live=size.live,
        payload_size=size.payload,
        disorder=0.5,
        revisions=0.36,
        stable_freq=0.001,
        seed=seed,
    )
    arriving = cut(generate(workload), size.rows, size.inputs_head, workload.elements)
    makes = {label: VARIANTS[label] for label in COMPARED}
    memory: dict[str, list[Point]] = {label: [] for label in COMPARED}
    speed: dict[str, list[Point]] = {label: [] for label in COMPARED}
    delay: dict[str, list[Point]] = {label: [] for label in COMPARED}
    hashes = inputs_digest(arriving)
    for i, count in enumerate(size.inputs):
        some = first_inputs(arriving, count)
        seen = {label: watch(make, some) for label, make in makes.items()}
        step((i + 0.4) / len(size.inputs))
        rates = throughput(makes, some, seen, size.repeats, count)
        for label, each in seen.items():
            hashes[f"{label}, {count} inputs"] = each.digest
            memory[label].append(Point.exactly(count, mib(each.peak)))
            delay[label].append(Point.exactly(count, each.delay / workload.mean_duration))
            speed[label].append(rates[label])
        step((i + 1) / len(size.inputs))
    held = Panel("memory", "inputs", "peak memory, MiB", _lines(memory), "lower", exact=True)
    fast = Panel(
        "throughput", "inputs", "events output per CPU second", _lines(speed), "higher", log_y=True
    )
    late = Panel(
        "delay", "inputs", "mean delay of an event, lifetimes", _lines(delay), "lower", exact=True
    )
    many = max(size.inputs)
    growth = {label: held[label].last / held[label].first for label in COMPARED}
    ratio = held[CLEANSED].last / held[LMR3].last
    gains = [fast[LMR3].at(n) / fast[CLEANSED].at(n) for n in (min(size.inputs), many)]
    findings = [
        Finding(
            f"from {min(size.inputs)} to {many} inputs the memory of LMR3+ grows"
            f" {growth[LMR3]:.2f}-fold",
            growth[LMR3] < FLAT,
        ),
        *(
            Finding(f"that of {label} grows {growth[label]:.1f}-fold", growth[label] > 2)
            for label in (CLEANSED, "LMR3-")
        ),
        Finding(
            f"at {many} inputs C+LMR1 takes {ratio:.1f} times the memory of LMR3+ (the paper:"
            " nearly 7)",
            ratio > 2,
        ),
        Finding(
            f"an event waits {late[CLEANSED].last:.2f} lifetimes with C+LMR1 and"
            f" {late[LMR3].last:.3f} with LMR3+",
            late[CLEANSED].last > 4 * late[LMR3].last,
        ),
        Finding(
            f"LMR3+ is {gains[0]:.1f} times as fast as C+LMR1 with {min(size.inputs)} inputs and"
            f" {gains[1]:.1f} times with {many}",
            1 < gains[0] < gains[1],
            timed=True,
        ),
        Finding(
            f"LMR3+ is {fast[LMR3].last / fast['LMR3-'].last:.1f} times as fast as LMR3- with"
            f" {many} inputs",
            fast[LMR3].last > fast["LMR3-"].last,
            timed=True,
        ),
    ]
    # Of the paper's payloads; small ones hold little of anything.
    least = LEAST if size.name != "small" else None
    name = f"memory at {many} inputs, C+LMR1 against LMR3+"
    return Outcome(
        {
            "inputs": size.inputs,
            "elements_per_input": workload.elements,
            "payload_bytes": workload.payload_size,
            "live": workload.live,
            "disorder": workload.disorder,
            "revisions": workload.revisions,
            "stable_freq": workload.stable_freq,
            "rows_per_batch": size.rows,
        },
        [held, fast, late],
        findings,
        demand_equal(hashes),
        numbers=[Figure(name, ratio, at_least=least)],
        notes=[
            "The delay is of application time, from an event's start to its output, in mean"
            " lifetimes; the paper reports it in its text only.",
        ],
    )


def _lines(points: dict[str, list[Point]]) -> list[Series]:
    return [Series(label, each) for label, each in points.items()]
