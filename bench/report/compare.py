"""Two results of ``lmerge bench figures``, point by point: which figures changed.

A point changed when its value left the other run's spread: the ranges of the repeats do not
overlap, and the medians differ by more than the tolerance, since two runs on one machine differ by
more than the repeats of one. A panel that is exact changed when any value did. Only what both
files have at the same size and seed is compared.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.figures.experiments import FORMAT
from bench.figures.outcome import Panel, Point, panels_of
from lmerge.errors import ConfigurationError

TOLERANCE: Final = 0.1
"""By how much a time may differ before it counts."""
_EXACT: Final = 1e-9


class Change(NamedTuple):
    """One line of a panel in both results."""

    figure: str
    panel: str
    series: str
    ratio: float
    """B against A: the geometric mean over the points."""
    points: int
    changed: int
    """Of the points, those beyond the spread."""
    better: bool | None
    """None when nothing changed, or there is no better."""


def load(path: Path) -> dict[str, Any]:
    """Results; ConfigurationError when the file has none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or "figures" not in found:
        raise ConfigurationError(f"{path} is not a result of `lmerge bench figures`")
    return found


def compare(a: dict[str, Any], b: dict[str, Any], tolerance: float = TOLERANCE) -> list[Change]:
    """Every line that both results have; ConfigurationError when they are not comparable."""
    for key in ("size", "seed"):
        if a[key] != b[key]:
            raise ConfigurationError(
                f"the results differ in {key} ({a[key]} and {b[key]}): run both alike"
            )
    shared = [number for number in a["figures"] if number in b["figures"]]
    if not shared:
        raise ConfigurationError("the results have no figure in common")
    found: list[Change] = []
    for number in shared:
        after = {panel.name: panel for panel in panels_of(b["figures"][number])}
        for panel in panels_of(a["figures"][number]):
            if panel.name in after:
                found += _panel(number, panel, after[panel.name], tolerance)
    return found


def _panel(number: str, a: Panel, b: Panel, tolerance: float) -> list[Change]:
    found: list[Change] = []
    for series in a.series:
        other = next((each for each in b.series if each.label == series.label), None)
        if other is None:
            continue
        at = {point.x: point for point in other.points}
        pairs = [(point, at[point.x]) for point in series.points if point.x in at]
        if not pairs:
            continue
        beyond = [pair for pair in pairs if _changed(*pair, a.exact, tolerance)]
        ratio = _ratio(pairs)
        better = None
        if beyond and a.better:
            better = (_ratio(beyond) > 1) == (a.better == "higher")
        found.append(Change(number, a.name, series.label, ratio, len(pairs), len(beyond), better))
    return found


def _changed(a: Point, b: Point, exact: bool, tolerance: float) -> bool:
    if exact:
        return not math.isclose(a.median, b.median, rel_tol=_EXACT, abs_tol=_EXACT)
    apart = a.high < b.low or b.high < a.low
    return apart and abs(b.median - a.median) > tolerance * abs(a.median)


def _ratio(pairs: list[tuple[Point, Point]]) -> float:
    logs = [math.log(b.median / a.median) for a, b in pairs if a.median > 0 and b.median > 0]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
