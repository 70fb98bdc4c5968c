"""``python -m bench.failover [--kills N] [--seed N] [--quick] [--json FILE]``.

A full run takes some ten minutes, and writes ``bench/results/failover.json`` and a histogram of the
gaps beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench.core import show
from bench.failover.killing import FULL, SMALL, failover
from bench.measure import Result, commit, machine

RESULTS: Final = Path(__file__).parents[1] / "results" / "failover.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when something was lost, twice or wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description="Kill the leading replica, again and again."
    )
    parser.add_argument("--kills", type=int, metavar="N", help=f"default: {FULL.kills}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="when to kill; default 0")
    parser.add_argument("--quick", action="store_true", help="one kill: the figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    options = parser.parse_args(arguments)
    scale = replace(SMALL if options.quick else FULL, seed=options.seed)
    if options.kills is not None:
        scale = replace(scale, kills=max(1, options.kills))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lmerge-failover-") as directory:
        result = failover(scale, Path(directory), lambda text: print(text, file=sys.stderr))
    took = time.monotonic() - start
    show({"failover": (result, took)}, Console(width=None if sys.stdout.isatty() else 120))
    path = options.json or (None if options.quick or options.kills else RESULTS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(as_json(result, took, asdict(scale)), indent=1) + "\n", "utf-8")
        histogram(result, path.with_suffix(".svg"))
        print(f"written to {path}")
    details = result.details
    right = not any(result.figure(name).value for name in ("events lost", "events twice or wrong"))
    return 0 if right and details["broken"] is None and details["cutover_status"] == 0 else 1


def as_json(result: Result, took: float, scale: dict[str, Any]) -> dict[str, Any]:
    """All that was measured, and where."""
    return {
        "machine": machine(),
        "commit": commit(),
        "seed": scale["seed"],
        "scale": scale,
        "experiments": {
            "failover": {
                "title": "Gaps in a consumer's output while the leading replica is killed.",
                "seconds": round(took, 1),
                "figures": [figure.as_json() for figure in result.figures],
                "details": result.details,
            }
        },
    }


def histogram(result: Result, path: Path) -> None:
    """How long the gaps were; nothing where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        print("no plot: pip install 'lmerge[bench]'", file=sys.stderr)
        return
    details = result.details
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    shown = {
        "no kill": details["usual_gaps_s"],
        "the leading replica killed": [kill["gap_s"] for kill in details["kills"]],
        "one query restarted alone": details["alone_s"],
    }
    axes.hist(list(shown.values()), bins=24, label=list(shown))
    axes.set_xlabel("longest time without anything new, s")
    axes.set_ylabel("times")
    axes.legend(frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
