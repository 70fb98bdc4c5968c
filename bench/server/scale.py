"""The sizes of the server's experiments, and small ones that keep the code honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEED: Final = 0
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Scale:
    """Sizes of every experiment; ``elements`` are those of each stream."""

    elements: int = 150_000
    live: int = 10_000
    payload: int = 1000
    message_bytes: tuple[int, ...] = (MIB, 4 * MIB)
    repeats: int = 7
    durable_repeats: int = 5
    latency_seconds: float = 20
    latency_rate: int = 5_000
    """Elements a second, of all replicas together."""
    latency_epochs: int = 100
    """Commits a second of each replica."""
    latency_lead_seconds: float = 1
    """What is committed before is not counted: the peers' processes are as new as their code."""
    memory_elements: int = 400_000
    memory_live: int = 200_000
    memory_payload: int = 100
    replicas: tuple[int, int] = (2, 10)
    recovery_live: int = 1_000_000
    recovery_few: int = 100_000
    recovery_history: int = 3
    """The longer history has so many times the events of the shorter."""
    recovery_rows: int = 10_000


FULL: Final = Scale()
SMALL: Final = Scale(
    elements=3_000,
    live=300,
    message_bytes=(64 << 10, 256 << 10),
    repeats=1,
    durable_repeats=1,
    latency_seconds=0.5,
    latency_lead_seconds=0.1,
    memory_elements=2_000,
    memory_live=500,
    recovery_live=10_000,
    recovery_few=1_000,
    recovery_rows=1_000,
)
