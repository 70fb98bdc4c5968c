"""The sizes of the replicas' experiments, and small ones that keep the code honest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bench.replicas.switching import Switching

SEED: Final = 0


@dataclass(frozen=True)
class Scale:
    """Sizes of every experiment."""

    sink_rows: int = 500_000
    """Of one micro-batch."""
    sink_repeats: int = 5
    small_rows: int = 100
    """Of one micro-batch."""
    small_batches: int = 60
    small_repeats: int = 3
    switching: Switching = field(default_factory=Switching)


FULL: Final = Scale()
SMALL: Final = Scale(
    sink_rows=20_000,
    sink_repeats=1,
    small_batches=12,
    small_repeats=1,
    switching=Switching(rows=4_000, runs=(500, 1_000), rows_per_batch=200),
)
