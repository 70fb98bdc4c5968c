"""The sizes of the core's experiments: the paper's, and small ones that keep the code honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEED: Final = 0


@dataclass(frozen=True)
class Scale:
    """Sizes of every experiment. ``head`` brings a merge to its steady state, and is not timed."""

    elements: int = 200_000
    """Elements a stream (§VI.B)."""
    live: int = 10_000
    head: int = 40_000
    """Elements a stream before the clock runs: more than the longest lifetime."""
    literal: int = 20_000
    """Elements a stream, after the head, over which the literal algorithms are timed."""
    batch_large: int = 10_000
    batch_medium: int = 1_000
    batch_small: int = 100
    tiny: tuple[tuple[int, int], ...] = ((10, 15_000), (1, 2_000))
    """Batches of so many rows, over so many elements a stream."""
    payloads: tuple[int, int] = (24, 1000)
    repeats: int = 3
    many_live: int = 1_000_000
    many_elements: int = 3_000_000
    many_head: int = 2_200_000
    """What follows it is long enough to contain a compaction of the payloads."""
    stables: int = 300
    stable_changes: int = 100
    memory_elements: int = 60_000
    inputs: tuple[int, ...] = (2, 4, 6, 8, 10)
    inputs_elements: int = 80_000
    inputs_head: int = 40_000


FULL: Final = Scale()
SMALL: Final = Scale(
    elements=6_000,
    live=300,
    head=2_000,
    literal=500,
    batch_large=500,
    batch_medium=200,
    batch_small=50,
    tiny=((10, 200), (1, 50)),
    repeats=1,
    many_live=2_000,
    many_elements=6_000,
    many_head=5_000,
    stables=20,
    stable_changes=10,
    memory_elements=6_000,
    inputs=(2, 10),
    inputs_elements=4_000,
    inputs_head=2_000,
)
