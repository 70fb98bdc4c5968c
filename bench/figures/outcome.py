"""What a figure's experiment returns, and how it is kept in JSON.

Callers may rely on this: :meth:`Outcome.as_json` has only plain values, and plots, report and
comparison read nothing else. A :class:`Point` has the median of its repeats and the smallest and
largest of them; a panel that is ``exact`` has counts or bytes, which the same seed gives again on
any machine, so that its points have no spread.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bench.measure import Figure

Better = Literal["lower", "higher", ""]


@dataclass(frozen=True)
class Point:
    """One measured place of a line."""

    x: float
    median: float
    low: float
    high: float

    @staticmethod
    def of(x: float, repeats: Sequence[float]) -> Point:
        """Of the values that repeats gave."""
        return Point(x, statistics.median(repeats), min(repeats), max(repeats))

    @staticmethod
    def exactly(x: float, value: float) -> Point:
        """Of a value that does not vary."""
        return Point(x, value, value, value)


@dataclass(frozen=True)
class Series:
    """A line of a panel."""

    label: str
    points: list[Point]

    def at(self, x: float) -> float:
        """The median at ``x``."""
        return next(point.median for point in self.points if point.x == x)

    @property
    def first(self) -> float:
        """The median at the smallest x."""
        return self.points[0].median

    @property
    def last(self) -> float:
        """The median at the largest x."""
        return self.points[-1].median


@dataclass(frozen=True)
class Span:
    """A stretch of the x axis that a reader should see."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    name: str
    x: str
    y: str
    series: list[Series]
    better: Better = ""
    exact: bool = False
    log_x: bool = False
    log_y: bool = False
    over_time: bool = False
    """The points are bins of a run, too many to mark each."""
    spans: list[Span] = field(default_factory=list)

    def __getitem__(self, label: str) -> Series:
        return next(each for each in self.series if each.label == label)


@dataclass(frozen=True)
class Finding:
    """One thing that the paper's figure shows, and whether this run shows it too."""

    text: str
    """With this run's numbers, so that it can be read either way."""
    holds: bool
    timed: bool = False
    """It depends on how long things took: never asserted by a test."""


@dataclass(frozen=True)
class Outcome:
    """All that an experiment found."""

    parameters: dict[str, Any]
    panels: list[Panel]
    findings: list[Finding]
    tdb: dict[str, str]
    """A hash of the TDB that each variant's output reconstitutes to; see :func:`demand_equal`."""
    numbers: list[Figure] = field(default_factory=list)
    """With what each must reach."""
    notes: list[str] = field(default_factory=list)
    """Where the experiment differs from the paper's."""

    def panel(self, name: str) -> Panel:
        """The panel of this name."""
        return next(panel for panel in self.panels if panel.name == name)

    def number(self, name: str) -> Figure:
        """The number of this name."""
        return next(number for number in self.numbers if number.name == name)

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "parameters": self.parameters,
            "panels": [asdict(panel) for panel in self.panels],
            "findings": [asdict(finding) for finding in self.findings],
            "verdict": verdict(self.findings),
            "tdb": self.tdb,
            "numbers": [number.as_json() for number in self.numbers],
            "notes": self.notes,
        }


def verdict(findings: Sequence[Finding]) -> str:
    """The sentence that says whether the shape is the paper's."""
    failing = [finding.text for finding in findings if not finding.holds]
    if not failing:
        return "The shape agrees with the paper's: " + "; ".join(f.text for f in findings) + "."
    holding = [finding.text for finding in findings if finding.holds]
    differs = "The shape differs from the paper's: " + "; ".join(failing) + "."
    return differs + (" It agrees in this: " + "; ".join(holding) + "." if holding else "")


def panels_of(entry: dict[str, Any]) -> list[Panel]:
    """The panels of a figure's JSON."""
    return [
        Panel(
            **{
                **panel,
                "series": [
                    Series(each["label"], [Point(**point) for point in each["points"]])
                    for each in panel["series"]
                ],
                "spans": [Span(**span) for span in panel["spans"]],
            }
        )
        for panel in entry["panels"]
    ]


def demand_equal(hashes: dict[str, int]) -> dict[str, str]:
    """The hashes as text; RuntimeError unless all variants came to the same TDB."""
    if len(set(hashes.values())) > 1:
        found = ", ".join(f"{name} {value:016x}" for name, value in hashes.items())
        raise RuntimeError(f"variants that must agree have different results: {found}")
    return {name: f"{value:016x}" for name, value in hashes.items()}
