"""The files of a run: results, plots and the page, in one directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.figures.experiments import command
from bench.report import plots
from bench.report.page import page

RESULTS: Final = "figures.json"
PAGE: Final = "report.html"


def write_results(directory: Path, results: dict[str, Any]) -> Path:
    """The results, first of all: a failing plot must not lose what took minutes to measure."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / RESULTS
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def write_report(directory: Path, results: dict[str, Any], *, draw: bool = True) -> Path:
    """Plots and the page."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = plots.write(directory, results) if draw else {}
    path = directory / PAGE
    path.write_text(page(results, drawn), encoding="utf-8")
    return path


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """New results, and the old ones of figures that were not run again, if alike and comparable."""
    alike = ("format", "size", "seed", "repeats", "machine")
    if any(old.get(key) != new[key] for key in alike):
        return new
    figures = {**old["figures"], **new["figures"]}
    ordered = {number: figures[number] for number in sorted(figures, key=int)}
    said = command(tuple(ordered), new["size"], new["seed"])
    return {**new, "command": said, "figures": ordered}
