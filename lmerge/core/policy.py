"""Policies: when the output says what. Values, chosen for each merge.

All are correct at every prefix; they trade freshness against chattiness. ``docs/policies.md``
has what each costs on the same input, measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from lmerge.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class InsertPolicy:
    """When an event is first output. Use the named constructors."""

    name: str
    fraction: float = 0.0

    @staticmethod
    def first() -> InsertPolicy:
        """As soon as one joined stream has it: freshest; spurious events are seen and removed."""
        return InsertPolicy("first")

    @staticmethod
    def leader() -> InsertPolicy:
        """As soon as the leading stream has it: one stream's spurious events, and its delay."""
        return InsertPolicy("leader")

    @staticmethod
    def half_frozen() -> InsertPolicy:
        """When a stable passes its start: never removed again; waits for a stable."""
        return InsertPolicy("half_frozen")

    @staticmethod
    def quorum(fraction: float) -> InsertPolicy:
        """As soon as that share of the joined streams has it: few spurious events; slower."""
        if not 0.0 < fraction <= 1.0:
            raise ConfigurationError(f"a quorum is a share above 0 and up to 1, not {fraction}")
        return InsertPolicy("quorum", fraction)

    @staticmethod
    def final() -> InsertPolicy:
        """When its end is decided: never revised; the stable point waits for unfinished events."""
        return InsertPolicy("final")

    @staticmethod
    def parse(text: str) -> InsertPolicy:
        """``first``, ``leader``, ``half_frozen``, ``final`` or ``quorum(0.5)``."""
        plain = {p.name: p for p in (InsertPolicy(n) for n in _PLAIN)}
        if text in plain:
            return plain[text]
        if text.startswith("quorum(") and text.endswith(")"):
            try:
                return InsertPolicy.quorum(float(text[7:-1]))
            except ValueError:
                pass
        raise ConfigurationError(
            f"unknown insert policy {text!r}: one of {', '.join(_PLAIN)}, quorum(F) with 0 < F <= 1"
        )

    def __str__(self) -> str:
        return f"quorum({self.fraction:g})" if self.name == "quorum" else self.name

    def support(self, joined: int) -> int:
        """How many of ``joined`` streams must have an event."""
        if self.name == "quorum":
            # The product is rounded first: 0.1 · 30 is 3, not 3.0000000000000004.
            return max(1, math.ceil(round(self.fraction * joined, 9)))
        return _NOBODY if self.name in ("half_frozen", "final") else 1


_PLAIN = ("first", "leader", "half_frozen", "final")
_NOBODY = 2**31  # more streams than there can be: no number of them causes output


class AdjustPolicy(Enum):
    """When a changed end is output."""

    LAZY = "lazy"
    """Only when a stable demands it: few adjusts; ends may be out of date until then."""
    EAGER = "eager"
    """At every change of a joined stream: ends are current; streams that disagree are heard."""


class DivergencePolicy(Enum):
    """What happens to a stream that provably computed something else."""

    REPORT = "report"
    QUARANTINE = "quarantine"
    MAJORITY = "majority"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything a merge may choose."""

    insert: InsertPolicy = field(default_factory=InsertPolicy.first)
    adjust: AdjustPolicy = AdjustPolicy.LAZY
    stable_lag: int = 0
    divergence: DivergencePolicy = DivergencePolicy.REPORT

    def __post_init__(self) -> None:
        if not 0 <= self.stable_lag < 2**62:
            raise ConfigurationError(f"a stable lag is 0 or more, not {self.stable_lag}")
