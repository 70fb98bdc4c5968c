"""The core's benchmarks: ``python -m bench.core [--quick] [--json FILE] [--only NAME]``.

Every row of the table is a ratio, or bytes, with what it must reach. A full run takes some minutes
and writes ``bench/results/core.json``; a quick one only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import memory, speed
from bench.document import write_core
from bench.measure import Result, commit, machine
from bench.scale import FULL, SEED, SMALL, Scale
from lmerge.core.warmup import compile_everything

RESULTS: Final = Path(__file__).parent / "results" / "core.json"


class Experiment(NamedTuple):
    """One function, for one or a few rows of the table."""

    name: str
    run: Callable[[Scale], Result]

    @property
    def title(self) -> str:
        """What it measures."""
        return (self.run.__doc__ or "").strip()


EXPERIMENTS: Final = (
    Experiment("r3", speed.r3_literal),
    Experiment("r4", speed.r4_literal),
    Experiment("ordered", speed.ordered),
    Experiment("many-live", speed.many_live),
    Experiment("stables", speed.stables),
    Experiment("memory-inputs", memory.inputs_flat),
    Experiment("memory-event", memory.each_event),
    Experiment("by-inputs", memory.by_inputs),
)


def measure(chosen: Sequence[Experiment], scale: Scale) -> dict[str, tuple[Result, float]]:
    """Run experiments; each one's result, and the seconds it took."""
    found: dict[str, tuple[Result, float]] = {}
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("compiling", total=len(chosen))
        compile_everything()
        for experiment in chosen:
            progress.update(task, description=experiment.title)
            start = time.perf_counter()
            result = experiment.run(scale)
            found[experiment.name] = result, time.perf_counter() - start
            progress.advance(task)
    return found


def as_json(found: dict[str, tuple[Result, float]], scale: Scale) -> dict[str, Any]:
    """All that was measured, and where."""
    titles = {experiment.name: experiment.title for experiment in EXPERIMENTS}
    return {
        "machine": machine(),
        "commit": commit(),
        "seed": SEED,
        "scale": asdict(scale),
        "experiments": {
            name: {
                "title": titles[name],
                "seconds": round(took, 1),
                "figures": [figure.as_json() for figure in result.figures],
                "details": result.details,
            }
            for name, (result, took) in found.items()
        },
    }


def show(found: dict[str, tuple[Result, float]], console: Console) -> None:
    """A table for a person."""
    table = Table(title="lmerge: the core's speed and memory")
    for heading in ("experiment", "figure"):
        table.add_column(heading)
    for heading in ("measured", "must reach"):
        table.add_column(heading, justify="right")
    table.add_column("met")
    verdicts = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
    for name, (result, _) in found.items():
        for figure in result.figures:
            value = f"{figure.value:,.2f} {figure.unit}"
            table.add_row(name, figure.name, value, figure.bound, verdicts[figure.met])
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when ``--strict`` and a figure is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description="Measure the core.")
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[experiment.name for experiment in EXPERIMENTS],
        help="an experiment (may be repeated): %(choices)s",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure is missed")
    options = parser.parse_args(arguments)
    chosen = [each for each in EXPERIMENTS if not options.only or each.name in options.only]
    scale = SMALL if options.quick else FULL
    found = measure(chosen, scale)
    show(found, Console(width=None if sys.stdout.isatty() else 120))
    # A part, or small sizes, must not replace the whole by default.
    path = options.json or (None if options.quick or options.only else RESULTS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_json(found, scale), indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")
        if path == RESULTS:
            write_core()
    missed = [f.name for result, _ in found.values() for f in result.figures if f.met is False]
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
