"""The state of one input stream of a merge, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lmerge.core.properties import StreamProperties
from lmerge.times import BEGINNING


class StreamState(Enum):
    """JOINING → JOINED → gone; either → QUARANTINED → gone. See docs/semantics.md."""

    JOINING = "joining"
    JOINED = "joined"
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Counts:
    """What is counted of a stream since it attached."""

    inserts: int = 0
    adjusts: int = 0
    stables: int = 0
    first: int = 0  # output inserts that it caused
    dropped: int = 0  # elements that were old news
    late: int = 0  # events live for it that the output had already decided against
    ignored: int = 0  # elements that came while it was quarantined
    conflicts: int = 0  # nodes on which it had no possible answer
    verified: int = 0  # intervals whose digest equals the output's
    divergent: int = 0  # intervals whose digest does not
    skipped: int = 0  # intervals that it said to have skipped


@dataclass(slots=True)
class Stream:
    """One attached stream."""

    name: str
    slot: int  # its column in the index; -1 when it has none any more
    state: StreamState
    since: int  # its `from`: right for events that end then or later
    properties: StreamProperties
    stable: int = BEGINNING
    last_vs: int = BEGINNING
    floor: int = BEGINNING  # its digests cover events that end from here on
    judged: int = BEGINNING  # ... and were compared up to here
    horizon: int = BEGINNING  # the largest time fed back to it
    skipped: int = BEGINNING  # it has said that it skipped what ends before this
    reason: str = ""  # why it is quarantined
    on_trial: bool = False  # it stays JOINING, whatever its `from`, until it is admitted
    diverged: tuple[int, int] | None = None  # the first interval in which it differs
    counts: Counts = field(default_factory=Counts)

    @property
    def active(self) -> bool:
        """Whether its elements count."""
        return self.state is not StreamState.QUARANTINED
