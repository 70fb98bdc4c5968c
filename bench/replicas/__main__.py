"""The replicas' benchmarks: ``python -m bench.replicas [--quick] [--json FILE] [--only NAME]``.

Every Spark, server and replica is a process of its own over loopback. A full run takes about a
quarter of an hour and writes ``bench/results/replicas.json``; a quick one only shows that
everything runs. With ``--only`` and ``--json`` of an earlier run's file, what is measured replaces
that part of it: a machine that is shared can be kept quiet for one experiment at a time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from bench.core import show
from bench.measure import Figure, Result, commit, machine
from bench.replicas.document import RESULTS, write_replicas
from bench.replicas.scale import FULL, SEED, SMALL, Scale
from bench.replicas.switching import switch_plans
from bench.replicas.throughput import sink, small_batches


class Experiment(NamedTuple):
    """One function, for one or a few rows of the table."""

    name: str
    run: Callable[[Scale], Result]

    @property
    def title(self) -> str:
        """What it measures."""
        return (self.run.__doc__ or "").strip()


def switching(scale: Scale) -> Result:
    """Two plans that are dear in turns: alone, merged, merged with feedback (Figure 10)."""

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    found = switch_plans(scale.switching, say=say)
    seconds = {name: outcome.seconds for name, outcome in found.items()}
    better = min(seconds["UDF0"], seconds["UDF1"])
    fed_back = seconds["merged with feedback"]
    return Result(
        [
            Figure(
                "plan switching: merged with feedback, faster than the better plan alone",
                better / fed_back,
                at_least=4.8,
            ),
            Figure(
                "plan switching: time with feedback against a plan that is always cheap",
                fed_back / seconds["oracle"],
                at_most=1.3,
            ),
            Figure(
                "plan switching: merged without feedback, faster than the better plan alone",
                better / seconds["merged"],
            ),
            *(Figure(f"the same, {name}", took, "s") for name, took in seconds.items()),
        ],
        {name: outcome.as_json() for name, outcome in found.items()},
    )


EXPERIMENTS: Final = (
    Experiment("sink", sink),
    Experiment("small-batches", small_batches),
    Experiment("switching", switching),
)
_PACKAGES: Final = ("pyspark", "py4j", "pyarrow", "grpcio", "numba", "numpy")


def as_json(found: dict[str, tuple[Result, float]], scale: Scale) -> dict[str, Any]:
    """All that was measured, and where."""
    titles = {experiment.name: experiment.title for experiment in EXPERIMENTS}
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "machine": {**machine(), "packages": packages},
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when ``--strict`` and a figure is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replicas", description="Measure PySpark replicas."
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[experiment.name for experiment in EXPERIMENTS],
        help="an experiment (may be repeated): %(choices)s; replaces that part of FILE",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure is missed")
    options = parser.parse_args(arguments)
    scale = SMALL if options.quick else FULL
    found: dict[str, tuple[Result, float]] = {}
    for experiment in EXPERIMENTS:
        if options.only and experiment.name not in options.only:
            continue
        print(f"{experiment.title} …", file=sys.stderr, flush=True)
        start = time.monotonic()
        found[experiment.name] = experiment.run(scale), time.monotonic() - start
    width = None if sys.stdout.isatty() else 120
    show(found, Console(width=width))
    # A part, or small sizes, must not replace the whole by default.
    path = options.json or (None if options.quick or options.only else RESULTS)
    if path is not None:
        _write(path, as_json(found, scale), partly=bool(options.only))
        print(f"written to {path}")
    missed = [f.name for result, _ in found.values() for f in result.figures if f.met is False]
    return 1 if options.strict and missed else 0


def _write(path: Path, measured: dict[str, Any], *, partly: bool) -> None:
    if partly and path.exists():
        before = json.loads(path.read_text("utf-8"))
        both = {**before["experiments"], **measured["experiments"]}
        order = [experiment.name for experiment in EXPERIMENTS]
        measured["experiments"] = {name: both[name] for name in order if name in both}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    if path.resolve() == RESULTS:
        write_replicas()


if __name__ == "__main__":
    sys.exit(main())
