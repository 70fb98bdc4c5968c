"""Keeping a process as it is wanted: what to do when it dies, hangs, is not wanted any more.

Pure: an event and the time in, an action out. Whoever carries actions out reports what came of it
as further events; to hear the same twice is no harm. The table is in :meth:`Unit.step`.

Callers may rely on this, and the model's test asserts it:
1. There is never more than one process: START only comes after the one before has died.
2. Who is not wanted is not started; who was told to end and does not is killed, after
   ``end_seconds``, and told again every so often (a signal may be lost to a pause).
3. A process that dies is started again after ``first_seconds``, and after twice that when it dies
   again, up to ``most_seconds``; as at first once it was ready for ``healthy_seconds``.
4. One that was fenced is not started while somebody else holds its place: two supervisors would
   fence each other's for ever.
5. What a process leaves behind is cleared away (RETIRE, until that has succeeded) when it is not
   wanted any more, before anything of its name is started again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Phase(Enum):
    """Where a process is."""

    DOWN = auto()  # not there; started when it is time
    STARTING = auto()  # there, and has not shown that it is ready
    READY = auto()
    ENDING = auto()  # told to end
    ELSEWHERE = auto()  # fenced: another one has taken its place
    RETIRING = auto()  # not there, not wanted, and not cleared away
    GONE = auto()  # final


class Event(Enum):
    """What happens."""

    WANTED = auto()
    UNWANTED = auto()
    CHANGED = auto()  # it is wanted otherwise than it runs
    ADOPTED = auto()  # found running
    READY = auto()
    DIED = auto()  # also: it could not be started
    FENCED = auto()  # it died of that
    DETACHED = auto()  # it died of that, or was refused for it
    FREE = auto()  # nobody holds its place
    RETIRED = auto()
    TICK = auto()  # time has passed


class Action(Enum):
    """What is to be done."""

    START = auto()
    END = auto()  # SIGTERM
    KILL = auto()  # SIGKILL
    RETIRE = auto()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take."""

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    healthy_seconds: float = 30.0
    end_seconds: float = 90.0  # a replica's own drain may take a minute
    again_seconds: float = 5.0  # between attempts to kill or to retire


FOREVER_DYING: Final = 5
"""Deaths in a row after which it is said that it keeps dying."""


class Unit:
    """One process: whether it is wanted, and what it is doing."""

    def __init__(
        self, patience: Patience, *, retires: bool = False, was: bool = False, restarts: int = 0
    ) -> None:
        """``retires``: something is to be cleared away when it is not wanted any more, once there
        was a process, and ``was`` says that there has been one before."""
        self.patience = patience
        self.phase = Phase.DOWN
        self.wanted = True
        self.anew = False  # the next one begins without what the last one knew
        self.restarts = restarts
        self.deaths = 0  # in a row
        self._retires = retires
        self._was = was
        self._at = -math.inf  # DOWN, RETIRING: when to act; ENDING: when to kill
        self._ready_at = math.inf

    @property
    def keeps_dying(self) -> bool:
        """Whether it has died too often in a row for that to pass."""
        return self.deaths >= FOREVER_DYING

    @property
    def there(self) -> bool:
        """Whether its process is, as far as is known."""
        return self.phase in (Phase.STARTING, Phase.READY, Phase.ENDING)

    @property
    def ready(self) -> bool:
        """Whether it has shown that it is."""
        return self.phase is Phase.READY

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self.phase is Phase.ENDING

    @property
    def elsewhere(self) -> bool:
        """Whether another one has taken its place."""
        return self.phase is Phase.ELSEWHERE

    @property
    def gone(self) -> bool:
        """Whether nothing is left of it."""
        return self.phase is Phase.GONE

    def waits(self, now: float) -> float:
        """How long until it is started again."""
        return max(0.0, self._at - now) if self.phase is Phase.DOWN else 0.0

    def step(self, event: Event, now: float) -> Action | None:
        """Takes an event; returns what is to be done."""
        if event in (Event.DIED, Event.FENCED, Event.DETACHED):
            return self._died(event, now)
        match event, self.phase:
            case Event.WANTED, _:
                self.wanted = True
            case Event.UNWANTED, _:
                return self._unwanted(now)
            case Event.CHANGED, Phase.STARTING | Phase.READY:
                return self._end(now)
            case Event.ADOPTED, Phase.DOWN | Phase.ELSEWHERE | Phase.RETIRING:
                self._begun()
                return None if self.wanted else self._end(now)
            case Event.READY, Phase.STARTING:
                self.phase, self._ready_at = Phase.READY, now
            case Event.FREE, Phase.ELSEWHERE:
                self.phase, self._at = Phase.DOWN, now
                return self._tick(now)
            case Event.RETIRED, Phase.RETIRING:
                self._was, self.deaths = False, 0
                self.phase, self._at = (Phase.DOWN, now) if self.wanted else (Phase.GONE, now)
                return self._tick(now)
            case Event.TICK, _:
                return self._tick(now)
            case _:
                pass
        return None

    def _tick(self, now: float) -> Action | None:
        patience = self.patience
        if self.phase is Phase.READY and now >= self._ready_at + patience.healthy_seconds:
            self.deaths = 0
        if now < self._at:
            return None
        match self.phase:
            case Phase.DOWN if self.wanted:
                self._begun()
                return Action.START
            case Phase.ENDING:
                self._at = now + patience.again_seconds
                return Action.KILL
            case Phase.RETIRING:
                self._at = now + patience.again_seconds
                return Action.RETIRE
            case _:
                return None

    def _begun(self) -> None:
        self.phase, self._ready_at, self._was = Phase.STARTING, math.inf, True

    def _end(self, now: float) -> Action:
        self.phase, self._at = Phase.ENDING, now + self.patience.end_seconds
        return Action.END

    def _unwanted(self, now: float) -> Action | None:
        self.wanted = False
        if self.phase in (Phase.STARTING, Phase.READY):
            return self._end(now)
        if self.phase in (Phase.DOWN, Phase.ELSEWHERE):
            return self._leave(now)
        return None

    def _died(self, event: Event, now: float) -> Action | None:
        if not self.there:
            return None
        told, refused = self.phase is Phase.ENDING, self.phase is Phase.STARTING
        if self.phase is Phase.READY and now >= self._ready_at + self.patience.healthy_seconds:
            self.deaths = 0
        self._ready_at = math.inf
        if not self.wanted:
            return self._leave(now)
        # The first time it may still vouch for what it knows, and attach as another stream.
        self.anew = event is Event.DETACHED and refused
        self.restarts += 1
        if event is Event.FENCED:
            self.phase = Phase.ELSEWHERE
            return None
        self.phase, self._at = Phase.DOWN, now
        if not told:
            patience, self.deaths = self.patience, self.deaths + 1
            # Not 2.0 ** deaths: it may die a thousand times.
            wait, left = patience.first_seconds, self.deaths - 1
            while left and wait < patience.most_seconds:
                wait, left = 2 * wait, left - 1
            self._at = now + min(wait, patience.most_seconds)
        return self._tick(now)

    def _leave(self, now: float) -> Action | None:
        """It is not there, and not wanted."""
        if not (self._retires and self._was):
            self.phase = Phase.GONE
            return None
        self.phase, self._at = Phase.RETIRING, now
        return self._tick(now)
