"""The coordinator's state machines: what each does when ZooKeeper comes, goes and forgets.

Pure: an event in, the next state and at most one action out. No I/O, no threads, no clock (times
are handed in). The edges (:mod:`coordinator.membership`, :mod:`coordinator.election`) carry
actions out one after the other, and give each result back as an event. The tables are the
specification; an event for which a state has no row changes nothing.

What ZooKeeper's client says, and what it means:

- CONNECTED: a session is there. It is another one than before when LOST came in between.
- SUSPENDED: no connection. The session may live on, and so may its nodes: nothing is known.
- LOST: the session is over; its ephemeral nodes are gone, or will be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic, TypeVar


class Event(Enum):
    """What happens to a machine."""

    CONNECTED = auto()
    SUSPENDED = auto()
    LOST = auto()
    DONE = auto()  # the action came to its end: registered, elected, read
    FENCED = auto()  # the action met a newer incarnation
    BEATEN = auto()  # the action met another leader
    CHANGED = auto()  # what was read or written is not so any more
    RETRY = auto()  # some time has passed
    CLOSE = auto()


class Action(Enum):
    """What an edge is to do."""

    REGISTER = auto()  # idempotent: takes over what is left of an earlier session
    UNREGISTER = auto()
    STAND = auto()  # idempotent: who leads already is elected again, for the same term
    RESIGN = auto()
    LOOK = auto()


class Registered(Enum):
    """A member's registration. The data path looks at none of this: a replica that is AWAY or in
    DOUBT goes on writing; one that is FENCED is refused by the server as well, and must end."""

    AWAY = auto()  # no session
    JOINING = auto()
    MEMBER = auto()
    DOUBT = auto()  # it was a member when the connection broke
    FENCED = auto()  # a newer incarnation is there: final
    LEFT = auto()  # final


class Candidacy(Enum):
    """Standing for leader. Who is in DOUBT must not act: another may lead by now. (Should it act
    all the same, ZooKeeper refuses: a leader's writes are checked against its term.)"""

    AWAY = auto()
    STANDING = auto()
    LEADING = auto()
    DOUBT = auto()  # it led when the connection broke
    LEFT = auto()  # final


class Sight(Enum):
    """The view of the members. While it is AWAY, what was known stays known."""

    AWAY = auto()
    LOOKING = auto()
    CURRENT = auto()
    CLOSED = auto()  # final


S = TypeVar("S", bound=Enum)
Table = Mapping[tuple[S, Event], tuple[S, Action | None]]

_R, _C, _V, _E, _A = Registered, Candidacy, Sight, Event, Action

REGISTRATION: Final[Table[Registered]] = {
    (_R.AWAY, _E.CONNECTED): (_R.JOINING, _A.REGISTER),
    (_R.AWAY, _E.CLOSE): (_R.LEFT, None),
    (_R.JOINING, _E.DONE): (_R.MEMBER, None),
    (_R.JOINING, _E.FENCED): (_R.FENCED, None),
    (_R.JOINING, _E.RETRY): (_R.JOINING, _A.REGISTER),
    (_R.JOINING, _E.CONNECTED): (_R.JOINING, _A.REGISTER),
    (_R.JOINING, _E.SUSPENDED): (_R.AWAY, None),
    (_R.JOINING, _E.LOST): (_R.AWAY, None),
    (_R.JOINING, _E.CLOSE): (_R.LEFT, _A.UNREGISTER),
    (_R.MEMBER, _E.CHANGED): (_R.JOINING, _A.REGISTER),
    (_R.MEMBER, _E.CONNECTED): (_R.JOINING, _A.REGISTER),
    (_R.MEMBER, _E.SUSPENDED): (_R.DOUBT, None),
    (_R.MEMBER, _E.LOST): (_R.AWAY, None),
    (_R.MEMBER, _E.CLOSE): (_R.LEFT, _A.UNREGISTER),
    (_R.DOUBT, _E.CONNECTED): (_R.JOINING, _A.REGISTER),
    (_R.DOUBT, _E.LOST): (_R.AWAY, None),
    (_R.DOUBT, _E.CLOSE): (_R.LEFT, _A.UNREGISTER),
    (_R.FENCED, _E.CLOSE): (_R.LEFT, None),
}

CANDIDACY: Final[Table[Candidacy]] = {
    (_C.AWAY, _E.CONNECTED): (_C.STANDING, _A.STAND),
    (_C.AWAY, _E.CLOSE): (_C.LEFT, None),
    (_C.STANDING, _E.DONE): (_C.LEADING, None),
    (_C.STANDING, _E.CHANGED): (_C.STANDING, _A.STAND),  # the leader has gone
    (_C.STANDING, _E.RETRY): (_C.STANDING, _A.STAND),
    (_C.STANDING, _E.CONNECTED): (_C.STANDING, _A.STAND),
    (_C.STANDING, _E.SUSPENDED): (_C.AWAY, None),
    (_C.STANDING, _E.LOST): (_C.AWAY, None),
    (_C.STANDING, _E.CLOSE): (_C.LEFT, _A.RESIGN),
    (_C.LEADING, _E.BEATEN): (_C.STANDING, _A.STAND),  # a write of it was refused
    (_C.LEADING, _E.CHANGED): (_C.STANDING, _A.STAND),
    (_C.LEADING, _E.CONNECTED): (_C.STANDING, _A.STAND),
    (_C.LEADING, _E.SUSPENDED): (_C.DOUBT, None),
    (_C.LEADING, _E.LOST): (_C.AWAY, None),
    (_C.LEADING, _E.CLOSE): (_C.LEFT, _A.RESIGN),
    (_C.DOUBT, _E.CONNECTED): (_C.STANDING, _A.STAND),
    (_C.DOUBT, _E.LOST): (_C.AWAY, None),
    (_C.DOUBT, _E.CLOSE): (_C.LEFT, _A.RESIGN),
}

SIGHT: Final[Table[Sight]] = {
    (_V.AWAY, _E.CONNECTED): (_V.LOOKING, _A.LOOK),
    (_V.AWAY, _E.CLOSE): (_V.CLOSED, None),
    (_V.LOOKING, _E.DONE): (_V.CURRENT, None),
    (_V.LOOKING, _E.CHANGED): (_V.LOOKING, _A.LOOK),
    (_V.LOOKING, _E.RETRY): (_V.LOOKING, _A.LOOK),
    (_V.LOOKING, _E.CONNECTED): (_V.LOOKING, _A.LOOK),
    (_V.LOOKING, _E.SUSPENDED): (_V.AWAY, None),
    (_V.LOOKING, _E.LOST): (_V.AWAY, None),
    (_V.LOOKING, _E.CLOSE): (_V.CLOSED, None),
    (_V.CURRENT, _E.CHANGED): (_V.LOOKING, _A.LOOK),
    (_V.CURRENT, _E.CONNECTED): (_V.LOOKING, _A.LOOK),  # plain watches do not survive a session
    (_V.CURRENT, _E.SUSPENDED): (_V.AWAY, None),
    (_V.CURRENT, _E.LOST): (_V.AWAY, None),
    (_V.CURRENT, _E.CLOSE): (_V.CLOSED, None),
}


class Machine(Generic[S]):
    """A table and where in it one is."""

    def __init__(self, table: Table[S], state: S) -> None:
        self._table = table
        self.state = state

    def step(self, event: Event) -> Action | None:
        """Takes an event; returns what is to be done."""
        self.state, action = self._table.get((self.state, event), (self.state, None))
        return action


@dataclass(slots=True)
class Attendance:
    """Which members are so surely gone that their streams are to be detached.

    - Nobody is gone while the view is not current: the merge goes on with the members it knows.
    - After the view has become current, nobody is gone for ``settle`` seconds: ZooKeeper was away,
      and those who live need some time to be members again.
    - After that a member is gone when it has been missing for ``linger`` seconds.
    - Gone are its incarnations up to the newest that was known when it was found missing. A later
      one, of which the view does not know yet, is not.
    """

    settle: float
    linger: float = 0.0
    _current: bool = False
    _settled_at: float = math.inf
    _missing: dict[str, float] = field(default_factory=dict)  # since when
    _newest: dict[str, int] = field(default_factory=dict)

    def away(self) -> None:
        """The view is not current any more."""
        self._current = False

    def look(self, members: Mapping[str, int], newest: Mapping[str, int], now: float) -> None:
        """A current view: the incarnation of each member, and the newest taken of each name.

        Only who has ever taken an incarnation can be missing.
        """
        if not self._current:
            self._current, self._settled_at = True, now + self.settle
        self._newest = {**newest, **{n: max(i, newest.get(n, i)) for n, i in members.items()}}
        gone = self._newest.keys() - members.keys()
        self._missing = {name: self._missing.get(name, now) for name in gone}

    def gone(self, now: float) -> dict[str, int]:
        """Who is gone, with the newest incarnation that is."""
        if not self._current or now < self._settled_at:
            return {}
        return {
            name: self._newest[name]
            for name, since in self._missing.items()
            if now >= since + self.linger
        }

    def fenced(self) -> dict[str, int]:
        """The least incarnation of each name that is not fenced; known also while away."""
        return dict(self._newest)

    def next_at(self, now: float) -> float | None:
        """When :meth:`gone` may come to say more without a further look; None: not at all."""
        if not self._current:
            return None
        due = [max(self._settled_at, since + self.linger) for since in self._missing.values()]
        return min((at for at in due if at > now), default=None)
