"""A deployment as it runs on this machine: one coordinator leads, and keeps it as its spec says.

Callers may rely on this:
- The processes of a deployment are nobody's children for long: they live on when the coordinator
  that started them dies, and whoever leads next finds them and goes on.
- Only who leads starts and ends processes, and has further duties (a cutover). While it is not
  known who leads, as ZooKeeper is away, everything that runs runs on.
- What happens is told in a line each, once.

One thread does all of it: it looks at the processes every ``LOOK_SECONDS``, and steps each one's
:class:`coordinator.supervision.Unit`. Its calls are bounded, so it is late at worst.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from coordinator import spec as specs
from coordinator.calls import Calls, listens
from coordinator.commands import COORDINATOR, REPLICA, SERVER, Options, alike, wanted
from coordinator.deployment import ConflictError, Member, Term, asking, key_of
from coordinator.election import Candidate
from coordinator.home import Home, shown
from coordinator.membership import Coordination, Registration, View
from coordinator.spec import Spec
from coordinator.supervision import Action, Event, Patience, Unit
from lmerge.errors import LMergeError, UnavailableError

log = logging.getLogger("lmerge.coordinator")

LOOK_SECONDS: Final = 0.2
DUTY_SECONDS: Final = 1.0  # between looks at the spec, and at the duties
REVIVE_SECONDS: Final = 2.0
TRIM_SECONDS: Final = 60.0
SERVER_PATIENCE: Final = Patience(end_seconds=30.0)
REPLICA_PATIENCE: Final = Patience()


class Duty(Protocol):
    """Something else that whoever leads does: a cutover.

    Called about once a second while the coordinator leads, by the thread that also looks after the
    processes: it does one step and returns. UnavailableError and ConflictError are logged, and it
    is called again; what it changes, it changes under the term.
    """

    def tick(self, term: Term) -> None:
        """Does what is to be done now."""


class Coordinator:
    """One of those that a deployment has; :meth:`run` is its life."""

    def __init__(
        self,
        home: Home,
        coordination: Coordination,
        name: str,
        *,
        calls: Calls,
        options: Options,
        endings: Mapping[int, Event],
        say: Callable[[str], None],
        duties: Sequence[Duty] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``endings``: the exit statuses of a replica that stand for more than that it died."""
        self.home = home
        self.name = name
        self._coordination = coordination
        self._deployment = coordination.deployment
        self._processes = home.processes
        self._calls = calls
        self._options = options
        self._endings = endings
        self._say = say
        self._duties = tuple(duties)
        self._clock = clock
        self._spec: Spec | None = None
        self._leading: Term | None = None
        self._leader: str | None = None  # as was told last
        self._units: dict[str, Unit] = {}
        self._commands: dict[str, list[str]] = {}
        self._complaint = ""
        self._told_ready = False
        self._members: Mapping[str, Member] = {}
        self._members_known = False
        self._merge_made: set[str] = set()  # servers' addresses
        self._due: dict[str, float] = {}
        self._candidate: Candidate | None = None

    # -- its life ---------------------------------------------------------------------------------

    def run(self, stopping: threading.Event) -> None:
        """Stands for leader, and leads when it is its turn, until it is to stop."""
        member = Member(
            "coordinator", self.name, 0, address=socket.gethostname(),
            details={"pid": os.getpid(), "directory": str(self.home.directory)},
        )  # fmt: skip
        Registration(self._coordination, member)
        View(self._coordination, "replica", self._on_view)
        self._candidate = Candidate(self._coordination, self.name)
        while not stopping.wait(LOOK_SECONDS):
            self._revive_zookeeper()
            term = self._candidate.term
            if term != self._leading:
                self._change_term(term)
            if term is None:
                self._tell_leader()
                continue
            try:
                self._lead(term)
                self._complaint = ""
            except (UnavailableError, ConflictError) as error:
                log.info("%s", error)
            except LMergeError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    self._say(self._complaint)

    def others(self) -> list[str]:
        """Further coordinators of this directory, by their processes: ZooKeeper may be away."""
        return [
            name
            for name in self._processes.names()
            if name.startswith(COORDINATOR)
            and name != f"{COORDINATOR}{self.name}"
            and self._processes.running(name) is not None
        ]

    def _on_view(
        self, current: bool, members: Mapping[str, Member], newest: Mapping[str, int]
    ) -> None:
        self._members, self._members_known = dict(members), current

    def _revive_zookeeper(self) -> None:
        if self._is_due("zookeeper", REVIVE_SECONDS):
            try:
                if self.home.revive_zookeeper():
                    self._say("the embedded ZooKeeper had ended; it is started again")
            except LMergeError as error:
                self._say(str(error))

    def _change_term(self, term: Term | None) -> None:
        self._leading, self._spec = term, None
        self._units.clear()
        self._merge_made.clear()
        self._told_ready = False
        if term is None:
            self._say(
                f"{self.name} does not know whether it leads: ZooKeeper is away, or another does;"
                " what runs runs on"
            )
            self._leader = None
            return
        self._leader = self.name
        self._say(f"{self.name} leads (term {term.number})")
        for each in self._processes.names():
            if each.startswith(COORDINATOR) and self._processes.running(each) is None:
                self._processes.forget(each)
        for key in self._gone_coordinators():
            with suppress(LMergeError):
                self._deployment.forget("coordinator", key)

    def _gone_coordinators(self) -> set[str]:
        """Names that were coordinators' once: each has left its number."""
        try:
            known = self._deployment.incarnations("coordinator")
            return known.keys() - self._deployment.members("coordinator").keys()
        except LMergeError:
            return set()

    def _tell_leader(self) -> None:
        if self._candidate is None or not self._is_due("leader", DUTY_SECONDS):
            return
        try:
            with asking("who leads"):
                leader = self._candidate.leader() if self._coordination.client.connected else None
        except LMergeError as error:
            log.info("%s", error)
            return
        if leader is not None and leader not in (self._leader, self.name):
            self._leader = leader
            self._say(f"{self.name} stands by: {leader} leads")

    # -- leading ----------------------------------------------------------------------------------

    def _lead(self, term: Term) -> None:
        if self._is_due("spec", DUTY_SECONDS) or self._spec is None:
            self._spec, _ = specs.read(self._deployment)
            self._reconcile(self._spec)
        self._look()
        if self._is_due("logs", TRIM_SECONDS):
            self._processes.trim_logs()
        if self._is_due("duties", DUTY_SECONDS):
            for duty in self._duties:
                try:
                    duty.tick(term)
                except (UnavailableError, ConflictError) as error:
                    log.info("%s: %s", type(duty).__name__, error)

    def _reconcile(self, spec: Spec) -> None:
        """The units are those of the spec, and of what is left of earlier ones."""
        now = self._clock()
        self._commands = wanted(spec, self.home, self._coordination.hosts, self._options)
        ours = [n for n in self._processes.names() if n.startswith((REPLICA, SERVER))]
        for name in [*self._commands, *ours]:
            if name not in self._units:
                self._units[name] = self._unit(name, now)
            unit = self._units[name]
            if name not in self._commands:
                if unit.wanted:
                    self._say(f"{shown(name)} is not wanted any more")
                self._act(name, unit.step(Event.UNWANTED, now))
                continue
            unit.step(Event.WANTED, now)
            known = self._processes.running(name)
            if unit.there and known and not alike(known.command, self._commands[name]):
                self._say(f"{shown(name)} is started again: it is wanted otherwise")
                self._act(name, unit.step(Event.CHANGED, now))

    def _unit(self, name: str, now: float) -> Unit:
        known = self._processes.known(name)
        unit = Unit(
            REPLICA_PATIENCE if name.startswith(REPLICA) else SERVER_PATIENCE,
            retires=True,
            was=known is not None,
            restarts=known.restarts if known else 0,
        )
        if (running := self._processes.running(name)) is not None:
            unit.step(Event.ADOPTED, now)
            self._say(f"{shown(name)} runs (pid {running.pid})")
        return unit

    def _look(self) -> None:
        """What has happened to each process since the last look."""
        now = self._clock()
        for name, unit in list(self._units.items()):
            if unit.there:
                known = self._processes.running(name)
                if known is None:
                    self._died(name, unit, now)
                elif not unit.ready and self._is_ready(name, known.pid):
                    unit.step(Event.READY, now)
                    self._say(f"{shown(name)} is ready")
            elif unit.elsewhere and self._members_known and self._key(name) not in self._members:
                self._act(name, unit.step(Event.FREE, now))
            if self._may_begin(name, unit):
                self._act(name, unit.step(Event.TICK, now))
            if unit.gone:
                del self._units[name]
        if not self._told_ready and self._units and all(u.ready for u in self._units.values()):
            self._told_ready = True
            self._say("everything is ready")

    def _may_begin(self, name: str, unit: Unit) -> bool:
        """Replicas wait for a merge whose options are not to be those of the first of them."""
        spec = self._spec
        if spec is None or not spec.merge_options or unit.there or name.startswith(SERVER):
            return True
        for server in spec.servers:
            if server.listen not in self._merge_made and listens(server.listen):
                with suppress(UnavailableError):
                    self._calls.create(server.listen, spec.merge, spec.merge_options)
                    self._merge_made.add(server.listen)
        return self._merge_made.issuperset(spec.addresses)

    def _is_ready(self, name: str, pid: int) -> bool:
        if name.startswith(SERVER):
            spec = self._spec
            server = None if spec is None else spec.server(name.removeprefix(SERVER))
            return server is not None and listens(server.listen)
        member = self._members.get(self._key(name))
        return member is not None and member.details.get("attached") is True and (
            member.details.get("pid") == pid
        )  # fmt: skip

    def _key(self, name: str) -> str:
        merge = self._spec.merge if self._spec is not None else ""
        return key_of("replica", name.removeprefix(REPLICA), merge)

    def _died(self, name: str, unit: Unit, now: float) -> None:
        status = self._processes.status(name)
        words = self._processes.words(name, ours=status is None or status < 0)
        self._processes.sweep(name)
        told = not unit.wanted or unit.ending
        action = unit.step(
            Event.DIED if status is None else self._endings.get(status, Event.DIED), now
        )
        if told:
            self._say(f"{shown(name)} ended")
        elif unit.elsewhere:
            self._say(f"{shown(name)} is fenced: another of its name runs, not of this machine's")
        else:
            often = (
                f"keeps dying ({unit.deaths} times)" if unit.keeps_dying else f"died{_how(status)}"
            )
            again = f"it is started again in {unit.waits(now):.1f} s"
            said = f": {words}" if words else ""
            self._say(f"{shown(name)} {often}; {again}{said}")
        self._act(name, action)

    # -- acting -----------------------------------------------------------------------------------

    def _act(self, name: str, action: Action | None) -> None:
        if action is Action.START:
            self._start(name)
        elif action is Action.END:
            self._processes.signal(name, signal.SIGTERM)
        elif action is Action.KILL:
            self._say(f"{shown(name)} does not end; it is killed")
            self._processes.signal(name, signal.SIGKILL)
        elif action is Action.RETIRE:
            self._retire(name)

    def _start(self, name: str) -> None:
        unit = self._units[name]
        try:
            if unit.anew and name.startswith(REPLICA):
                self._set_aside(name)
                self._say(f"{shown(name)} begins anew: what it knew is not taken any more")
                unit.anew = False
            known = self._processes.start(name, self._commands[name], restarts=unit.restarts)
            self._say(f"{shown(name)} started (pid {known.pid})")
        except (LMergeError, OSError) as error:
            self._say(str(error))
            unit.step(Event.DIED, self._clock())

    def _set_aside(self, name: str) -> None:
        """The checkpoint that a replica has had is not to be gone on from."""
        known = self._processes.known(name)
        if known is not None and "--checkpoint" in known.command:
            self.home.set_aside(known.command[known.command.index("--checkpoint") + 1])

    def _retire(self, name: str) -> None:
        """A replica that is not wanted any more leaves nothing behind; a server its data."""
        unit, spec = self._units[name], self._spec
        assert spec is not None  # noqa: S101  # it has been reconciled with
        if name.startswith(REPLICA):
            stream = name.removeprefix(REPLICA)
            try:
                for server in spec.addresses:
                    self._calls.detach(server, spec.merge, stream, "it is not wanted any more")
                self._deployment.forget("replica", self._key(name))
            except UnavailableError as error:
                log.info("%s", error)
                return
            with suppress(LMergeError, OSError):
                self._set_aside(name)
            self._say(f"{shown(name)} has left the merge")
        self._processes.forget(name)
        self._act(name, unit.step(Event.RETIRED, self._clock()))

    def _is_due(self, what: str, seconds: float) -> bool:
        now = self._clock()
        if now < self._due.get(what, now):
            return False
        self._due[what] = now + seconds
        return True


def _how(status: int | None) -> str:
    """Of an exit status, for people."""
    if status is None:
        return ""
    if status >= 0:
        return f" (status {status})"
    try:
        return f" ({signal.Signals(-status).name})"
    except ValueError:
        return f" (signal {-status})"
