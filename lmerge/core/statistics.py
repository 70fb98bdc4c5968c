"""What a merge says of itself: plain values, each field documented."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """One attached stream, since it attached."""

    name: str
    state: str  # joining, joined or quarantined
    since: int  # its `from`
    stable: int  # its own stable point
    lag: int | None  # how far that is behind the output, in application time; None: no stable yet
    share: float  # of the output's inserts, those it delivered first
    inserts: int
    adjusts: int
    stables: int
    first: int  # output inserts that it delivered first
    dropped: int  # elements that were old news
    late: int  # events live for it that the output had already decided against
    ignored: int  # elements that came while it was quarantined
    conflicts: int  # events promised by the output that it denied
    verified: int  # intervals in which it agrees with the output
    divergent: int  # intervals in which it does not
    skipped: int  # intervals that it said to have skipped, after feedback
    reason: str  # why it is quarantined
    on_trial: bool  # compared with the output, and without influence on it
    diverged: tuple[int, int] | None  # the first interval in which it does not agree


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """The merge as a whole."""

    restriction: str
    inserts: int  # output
    adjusts: int  # output
    stables: int  # output
    stable: int  # the output's stable point
    decided: int  # the largest stable point of its streams that was applied
    live: int  # events in the index
    index_bytes: int
    payload_bytes: int
    interval: int  # the width of a divergence interval now
    stalled: bool
    streams: list[StreamStatistics]
