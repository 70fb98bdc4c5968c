"""Application time: int64 in the stream's own unit, with both infinities.

``INFINITY`` (the largest int64) is the end of an event that has no known end, and the stable
point of a stream that is complete. ``BEGINNING`` (the smallest) is the stable point of a
stream that has promised nothing yet. Neither is a valid *start* of an event.
"""

from __future__ import annotations

from typing import Final

INFINITY: Final = 2**63 - 1
BEGINNING: Final = -(2**63)


def earlier(t: int, lag: int) -> int:
    """``t - lag``, where the infinities stay what they are and nothing wraps."""
    if t in (INFINITY, BEGINNING):
        return t
    return max(BEGINNING, t - lag)


def show(t: int) -> str:
    """``t`` for a person."""
    if t == INFINITY:
        return "∞"
    return "-∞" if t == BEGINNING else str(t)
