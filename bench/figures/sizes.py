"""The sizes of the figures' experiments: the paper's, quick ones, and small ones for the tests.

What is not here (shares, frequencies, which variants) is the same at every size and stands in the
experiment itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEED: Final = 0


@dataclass(frozen=True)
class Size:
    """Of all experiments. Elements are counted for each stream, stables included."""

    name: str
    repeats: int
    """After one that warms up and is not counted. Each begins with a head that is not timed."""
    live: int
    """Events active at a time; the lifetime follows from it (§VI.B)."""
    payload: int
    """Bytes of the random text."""

    rows: int
    """Of a batch, where the figure does not ask for its own."""

    inputs: tuple[int, ...]
    """Figures 2, 3 and 7."""
    inputs_elements: int
    inputs_head: int

    disorder: tuple[float, ...]
    """Figure 4: the shares of late elements."""
    disorder_elements: int

    lags: tuple[float, ...]
    """Figure 5: in seconds, of which the mean lifetime is 40."""
    lag_elements: int
    lag_head: int

    stable_freqs: tuple[float, ...]
    """Figure 6."""
    stable_elements: int
    stable_head: int

    rate: float
    """Figures 8 and 9: elements a second from the source of every input."""
    bursty_seconds: float
    """Figure 8, of virtual time."""
    congested_seconds: float
    """Figure 9, likewise."""


FULL: Final = Size(
    name="full",
    repeats=3,
    live=10_000,
    payload=1000,
    rows=1_000,
    inputs=(2, 4, 6, 8, 10),
    inputs_elements=80_000,
    inputs_head=40_000,
    disorder=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    disorder_elements=20_000,
    lags=(0, 1, 2.5, 5, 10, 20, 40, 60, 80),
    lag_elements=160_000,
    lag_head=40_000,
    stable_freqs=(0.00001, 0.0001, 0.001, 0.01),
    stable_elements=150_000,
    stable_head=40_000,
    rate=5_000,
    bursty_seconds=20.0,
    congested_seconds=30.0,
)
QUICK: Final = Size(
    name="quick",
    repeats=3,
    live=2_000,
    payload=1000,
    rows=500,
    inputs=(2, 6, 10),
    inputs_elements=20_000,
    inputs_head=8_000,
    disorder=(0.0, 0.2, 0.5),
    disorder_elements=8_000,
    lags=(0, 5, 20, 60),
    lag_elements=40_000,
    lag_head=8_000,
    stable_freqs=(0.0001, 0.001, 0.01),
    stable_elements=40_000,
    stable_head=8_000,
    rate=5_000,
    bursty_seconds=6.0,
    congested_seconds=30.0,
)
SMALL: Final = Size(
    name="small",
    repeats=1,
    live=300,
    payload=100,
    rows=200,
    inputs=(2, 10),
    inputs_elements=2_400,
    inputs_head=1_000,
    disorder=(0.0, 0.2, 0.5),
    disorder_elements=1_500,
    lags=(0, 60),
    lag_elements=4_000,
    lag_head=1_200,
    stable_freqs=(0.001, 0.01),
    stable_elements=3_000,
    stable_head=1_000,
    rate=500,
    bursty_seconds=8.0,
    congested_seconds=30.0,
)
