"""Which figures there are, and how they are run: the results as one JSON value."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.figures.cleansed import figure_7
from bench.figures.disorder import figure_4
from bench.figures.lag import figure_5
from bench.figures.masking import figure_8, figure_9
from bench.figures.measuring import Step
from bench.figures.ordered import figure_2, figure_3, figure_6
from bench.figures.outcome import Outcome
from bench.figures.sizes import Size
from bench.figures.switching import figure_10
from bench.measure import commit, machine
from lmerge.core.warmup import compile_everything

FORMAT: Final = 1
"""Of the results' JSON."""


@dataclass(frozen=True)
class Experiment:
    """One figure of the paper."""

    number: str
    run: Callable[[Size, int, Step], Outcome]
    weight: float
    """About how long it takes against the others, for the estimate of the time left."""

    @property
    def title(self) -> str:
        """What it shows."""
        return (self.run.__doc__ or "").strip().rstrip(".")


EXPERIMENTS: Final = (
    Experiment("2", figure_2, 2),
    Experiment("3", figure_3, 5),
    Experiment("4", figure_4, 1.5),
    Experiment("5", figure_5, 8),
    Experiment("6", figure_6, 12),
    Experiment("7", figure_7, 6),
    Experiment("8", figure_8, 1.5),
    Experiment("9", figure_9, 1),
    Experiment("10", figure_10, 30),
)
ON_THE_CORE: Final = tuple(e.number for e in EXPERIMENTS if e.number != "10")
"""What needs no Spark."""

Progress = Callable[[Experiment, float], None]
"""Told which experiment runs, and which share of all the work is done."""


def run(
    chosen: Sequence[str],
    size: Size,
    seed: int,
    progress: Progress = lambda _, __: None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run the chosen figures; all that was measured, and where."""
    compile_everything()
    experiments = [each for each in EXPERIMENTS if each.number in chosen]
    whole = sum(each.weight for each in experiments)
    before = 0.0
    figures: dict[str, Any] = {}
    for each in experiments:

        def step(share: float, each: Experiment = each, before: float = before) -> None:
            progress(each, (before + share * each.weight) / whole)

        step(0.0)
        start = time.perf_counter()
        outcome = each.run(size, seed, step)
        took = time.perf_counter() - start
        figures[each.number] = {
            "title": each.title,
            "seconds": round(took, 1),
            **outcome.as_json(),
        }
        say(f"figure {each.number} ({took:.0f} s): {figures[each.number]['verdict']}")
        before += each.weight
    return {
        "format": FORMAT,
        "command": command(chosen, size.name, seed),
        "machine": machine(),
        "commit": commit(),
        "seed": seed,
        "size": size.name,
        "repeats": size.repeats,
        "figures": figures,
    }


def command(chosen: Sequence[str], size: str, seed: int) -> str:
    """What repeats this run."""
    words = ["lmerge bench figures"]
    if size == "quick":
        words.append("--quick")
    if tuple(chosen) != ON_THE_CORE:
        words.append("--only " + ",".join(chosen))
    return " ".join([*words, f"--seed {seed}"])
