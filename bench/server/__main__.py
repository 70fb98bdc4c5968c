"""The server's benchmarks: ``python -m bench.server [--quick] [--json FILE] [--only NAME]``.

Everything runs in processes of its own over loopback. A full run takes some minutes and writes
``bench/results/server.json``; a quick one only shows that everything runs.
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
from bench.measure import Result, commit, machine
from bench.server.document import RESULTS, write_server
from bench.server.latency import latency
from bench.server.memory import memory
from bench.server.recovery import recovery
from bench.server.scale import FULL, SEED, SMALL, Scale
from bench.server.throughput import durability, throughput


class Experiment(NamedTuple):
    """One function, for one or a few rows of the table."""

    name: str
    run: Callable[[Scale], Result]

    @property
    def title(self) -> str:
        """What it measures."""
        return (self.run.__doc__ or "").strip()


EXPERIMENTS: Final = (
    Experiment("throughput", throughput),
    Experiment("durability", durability),
    Experiment("latency", latency),
    Experiment("memory", memory),
    Experiment("recovery", recovery),
)
_PACKAGES: Final = ("grpcio", "protobuf", "pyarrow", "numba", "numpy", "uvloop")


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
    parser = argparse.ArgumentParser(prog="python -m bench.server", description="Measure a server.")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_json(found, scale), indent=1) + "\n", encoding="utf-8")
        print(f"written to {path}")
        if path == RESULTS:
            write_server()
    missed = [f.name for result, _ in found.values() for f in result.figures if f.met is False]
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
