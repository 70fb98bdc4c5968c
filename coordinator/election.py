"""One leader among the coordinators of a deployment.

Callers may rely on this: at most one term is the present one, and a write with a term that is over
is refused by ZooKeeper itself, so that a leader who was paused and knows nothing of its successor
changes nothing. ``on_leading`` gets the term when it begins, and None when it may be over: what was
going on is to be stopped then, and is the next leader's to take up.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from coordinator.deployment import Term
from coordinator.membership import Coordination
from coordinator.states import CANDIDACY, Action, Candidacy, Event, Machine
from lmerge.errors import UnavailableError
from lmerge.server.config import check_name

log = logging.getLogger("lmerge.coordinator")


class Candidate:
    """Stands for leader until it is closed."""

    def __init__(
        self,
        coordination: Coordination,
        name: str,
        on_leading: Callable[[Term | None], None] = lambda term: None,
    ) -> None:
        check_name("coordinator", name)
        self.name = name
        self.term: Term | None = None  # the present one, while it leads
        self._coordination = coordination
        self._deployment = coordination.deployment
        self._path = f"{self._deployment.path}/leader"
        self._machine = Machine(CANDIDACY, Candidacy.AWAY)
        self._on_leading = on_leading
        self._elected: Term | None = None
        self._news = threading.Condition()
        coordination.add(self)

    @property
    def state(self) -> Candidacy:
        """Where the candidacy stands."""
        return self._machine.state

    def wait(self, seconds: float) -> Term:
        """The term, once it leads; UnavailableError after some time."""
        with self._news:
            if not self._news.wait_for(lambda: self.term is not None, timeout=seconds):
                raise UnavailableError(f"{self.name!r} does not lead after {seconds:g} s")
            assert self.term is not None  # noqa: S101  # just waited for
            return self.term

    def leader(self) -> str | None:
        """Who leads now; None while nobody does. Asks ZooKeeper."""
        try:
            return str(json.loads(self._deployment.get(self._path)[0])["leader"])
        except NoNodeError:
            return None

    # -- in the thread ----------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Takes an event, and does what follows from it."""
        action = self._machine.step(event)
        while action is not None:
            act = self._stand if action is Action.STAND else self._resign
            result = self._coordination.attempt(f"to lead {self._deployment.name!r}", act)
            action = self._machine.step(result) if result is Event.DONE else None
        now = self._elected if self.state is Candidacy.LEADING else None
        if now != self.term:
            with self._news:
                self.term = now
                self._news.notify_all()
            log.info("coordinator %s: %s", self.name, self.state.name)
            self._on_leading(now)

    def _stand(self) -> Event:
        deployment, me = self._deployment, self._coordination.session
        try:
            data, stat = deployment.get(self._path, self._watch)
            if stat.ephemeralOwner != me:
                return Event.BEATEN
            self._elected = Term(**json.loads(data))
            return Event.DONE
        except NoNodeError:
            pass
        found = deployment.read("term")
        number = 1 if found is None else int(found.value["number"]) + 1
        version = 0 if found is None else found.version + 1
        term = Term(number, self.name, version)
        value = json.dumps({"number": number, "leader": self.name}).encode()
        path = f"{deployment.path}/term"
        change: tuple[str, tuple[Any, ...]]
        if found is None:
            change = ("create", (path, value, deployment.acl))
        else:
            change = ("set_data", (path, value, found.version))
        mine = json.dumps({"number": number, "leader": self.name, "version": version}).encode()
        try:
            deployment.commit(change, ("create", (self._path, mine, deployment.acl, True)))
        except (BadVersionError, NodeExistsError):
            # Somebody was faster; a watch on what is there now follows with the next attempt.
            return Event.BEATEN
        self._elected = term
        deployment.get(self._path, self._watch)
        return Event.DONE

    def _resign(self) -> None:
        try:
            _, stat = self._deployment.get(self._path)
        except NoNodeError:
            return
        if stat.ephemeralOwner == self._coordination.session:
            self._deployment.commit(("delete", (self._path, stat.version)))

    def _watch(self, event: Any) -> None:
        self._coordination.post(self)
