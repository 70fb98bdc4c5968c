"""A process's part in a deployment: its session with ZooKeeper, its registration, the others.

Callers may rely on this:
- Nothing here is needed for data to flow. ZooKeeper may be away, at the start too: what is asked
  for is done when it is back, and meanwhile what was known stays known.
- ZooKeeper's callbacks only post. One thread takes what was posted, steps the machines of
  :mod:`coordinator.states`, and does what they say, one action after the other. Callers' own
  callbacks are called by that thread: they must not block either.
- A registration outlives its session: it is made anew after a lost one, with its incarnation,
  unless a newer incarnation was taken meanwhile. Then it is FENCED, for good.
- An incarnation is taken, and its member made, in one step: no view shows one without the other.

Bounds: what is posted is kept as the set of what has changed, so it does not grow with time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from coordinator.deployment import Credentials, Deployment, Kind, Member, asking
from coordinator.states import REGISTRATION, SIGHT, Action, Event, Machine, Registered, Sight
from lmerge.errors import ConfigurationError, FencedError, LMergeError, UnavailableError

log = logging.getLogger("lmerge.coordinator")
_client_log = logging.getLogger("lmerge.coordinator.client")
_client_log.setLevel(logging.ERROR)  # each failed attempt to connect would be a line

SESSION_SECONDS: Final = 6.0
SESSION_SECONDS_MIN: Final = 1.0
SESSION_SECONDS_MAX: Final = 60.0
RETRY_SECONDS: Final = 0.5
CONNECT_DELAY_SECONDS_MAX: Final = 1.0  # between attempts to reach ZooKeeper
CLOSE_SECONDS: Final = 20.0
CONFLICTS_MAX: Final = 20  # of one attempt to register
_EVENTS: Final = {
    KazooState.CONNECTED: Event.CONNECTED,
    KazooState.SUSPENDED: Event.SUSPENDED,
    KazooState.LOST: Event.LOST,
}


class Part(Protocol):
    """What takes events: a machine, and the way it acts."""

    def step(self, event: Event) -> None:
        """Takes an event, and does what follows from it."""


class _Inbox:
    """What was posted and not taken. Of states, whether the session was lost, and the last."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._lost = False
        self._last: Event | None = None
        self._changed: dict[Part, None] = {}
        self._closing = False

    def state(self, event: Event) -> None:
        with self._more:
            self._lost |= event is Event.LOST
            self._last = event
            self._more.notify()

    def changed(self, part: Part) -> None:
        with self._more:
            self._changed[part] = None
            self._more.notify()

    def close(self) -> None:
        with self._more:
            self._closing = True
            self._more.notify()

    def take(self, seconds: float) -> tuple[list[Event], list[Part], bool]:
        """States, parts with changes, and whether to close; waits a while for any of it."""
        with self._more:
            self._more.wait_for(
                lambda: self._last or self._changed or self._closing, timeout=seconds
            )
            states = [Event.LOST] if self._lost and self._last is not Event.LOST else []
            states += [] if self._last is None else [self._last]
            parts = list(self._changed)
            self._lost, self._last, self._changed = False, None, {}
            return states, parts, self._closing


class Coordination:
    """A session with ZooKeeper for one deployment; a context manager. Parts share it."""

    def __init__(
        self,
        hosts: str,
        deployment: str,
        *,
        credentials: Credentials | None = None,
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        if not SESSION_SECONDS_MIN <= session_seconds <= SESSION_SECONDS_MAX:
            raise ConfigurationError(
                f"a session of {session_seconds:g} s is not possible:"
                f" {SESSION_SECONDS_MIN:g} to {SESSION_SECONDS_MAX:g}"
            )
        self.hosts = hosts
        self.session_seconds = session_seconds
        said = None if credentials is None else f"{credentials.name}:{credentials.password}"
        try:
            self.client = KazooClient(
                hosts=hosts,
                timeout=session_seconds,
                auth_data=None if said is None else [("digest", said)],
                randomize_hosts=True,
                connection_retry=KazooRetry(
                    max_tries=-1,
                    delay=0.05,
                    backoff=2,
                    max_jitter=0.2,
                    max_delay=CONNECT_DELAY_SECONDS_MAX,
                ),
                command_retry=KazooRetry(max_tries=0),
                logger=_client_log,
            )
        except ValueError as error:
            raise ConfigurationError(f"--zk {hosts!r} is not HOST:PORT,...: {error}") from None
        self.deployment = Deployment(self.client, deployment, credentials)
        self._inbox = _Inbox()
        self._parts: list[Part] = []
        self._state: Event | None = None  # what the parts know
        self._ensured = False
        self._guard = threading.Lock()
        self._quiet_since = math.inf
        self._worker = threading.Thread(target=self._work, name="lmerge coordination", daemon=True)
        self._started = False
        self._connected = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begins to connect, and returns at once."""
        self._started = True
        self.client.add_listener(self._listen)
        self.client.start_async()
        self._worker.start()

    def connect(self, seconds: float) -> Deployment:
        """Waits until ZooKeeper answers; UnavailableError when it does not in time."""
        if not self._connected.wait(seconds):
            raise UnavailableError(f"ZooKeeper at {self.hosts} does not answer")
        self.ensure()
        return self.deployment

    def close(self) -> None:
        """Takes back the registrations and ends the session. ZooKeeper may be away."""
        if not self._started:
            self.client.close()
            return
        self._started = False
        self._inbox.close()
        self._worker.join(CLOSE_SECONDS)
        self.client.remove_listener(self._listen)
        self.client.stop()
        self.client.close()

    def add(self, part: Part) -> None:
        """A part begins to get events."""
        with self._guard:
            self._parts.append(part)
        self._inbox.changed(part)  # the worker tells it first where things stand

    def remove(self, part: Part) -> None:
        """A part gets no more events."""
        with self._guard:
            if part in self._parts:
                self._parts.remove(part)

    def post(self, part: Part) -> None:
        """Something of a part has changed. From any thread, and from callbacks."""
        self._inbox.changed(part)

    @property
    def session(self) -> int:
        """The number of the present session."""
        known = self.client.client_id
        return 0 if known is None else int(known[0])

    def ensure(self) -> None:
        """The deployment's folders are there."""
        if not self._ensured:
            self.deployment.ensure()
            self._ensured = True

    def mistrust(self) -> None:
        """A folder was missing: ZooKeeper's data may have been lost."""
        self._ensured = False

    def attempt(self, what: str, act: Callable[[], Event | None]) -> Event | None:
        """What an action gives; None when it is to be tried again later."""
        if not self.client.connected:
            return None
        try:
            with asking(what):
                self.ensure()
                return act()
        except NoNodeError:
            self.mistrust()
        except UnavailableError as error:
            log.info("%s", error)
        except (LMergeError, KazooException) as error:
            log.warning("%s: %s: %s", what, type(error).__name__, error)
        return None

    # -- the thread -------------------------------------------------------------------------------

    def _listen(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._inbox.state(_EVENTS[state])

    def _work(self) -> None:
        told: set[int] = set()  # parts that know where things stand
        retry_at = time.monotonic() + RETRY_SECONDS
        while True:
            states, changed, closing = self._inbox.take(max(0.0, retry_at - time.monotonic()))
            with self._guard:
                parts = list(self._parts)
            told &= {id(part) for part in parts}
            self._give_up_old_session(states)
            for event in states:
                self._state = event
                for part in parts:
                    if id(part) in told:
                        self._step(part, event)
            for part in parts:
                if id(part) not in told:
                    told.add(id(part))
                    if self._state is not None:
                        self._step(part, self._state)
                elif part in changed:
                    self._step(part, Event.CHANGED)
            if time.monotonic() >= retry_at:
                retry_at = time.monotonic() + RETRY_SECONDS
                for part in parts:
                    self._step(part, Event.RETRY)
            if closing:
                for part in parts:
                    self._step(part, Event.CLOSE)
                return

    def _give_up_old_session(self, states: list[Event]) -> None:
        """Begins a new session when nothing was heard of the old one for twice its length.

        A ZooKeeper that has lost its data refuses for ever who has seen more than it knows, and
        its client would try for ever. A session that lives after all is not missed: what is left
        of it is taken over.
        """
        if states:
            quiet = states[-1] is Event.SUSPENDED
            self._quiet_since = time.monotonic() if quiet else math.inf
        elif time.monotonic() - self._quiet_since > 2 * self.session_seconds:
            self._quiet_since = time.monotonic()
            self.client.stop()
            self.client.start_async()

    def _step(self, part: Part, event: Event) -> None:
        try:
            part.step(event)
        except Exception:
            # A fault of ours in one part must not end the others'.
            log.exception("a defect of lmerge, at %s", event.name)


class Registration:
    """A member, as long as its process wants to be one."""

    def __init__(
        self,
        coordination: Coordination,
        member: Member,
        on_state: Callable[[Registered], None] = lambda state: None,
    ) -> None:
        """An incarnation of 0 in ``member`` takes the next one."""
        self._coordination = coordination
        self._deployment = coordination.deployment
        self._machine = Machine(REGISTRATION, Registered.AWAY)
        self._member = member
        self._key = member.key
        self._path = self._deployment.member_path(member.kind, self._key)
        self._on_state = on_state
        self._leaving = False
        self._news = threading.Condition()
        coordination.add(self)

    @property
    def member(self) -> Member:
        """As it is, or is to be, registered."""
        with self._news:
            return self._member

    @property
    def state(self) -> Registered:
        """Where the registration stands."""
        return self._machine.state

    def wait(self, seconds: float) -> Member:
        """The member, once it is one; FencedError, or UnavailableError after some time."""
        with self._news:
            self._news.wait_for(
                lambda: self._is_member() or self.state in (Registered.FENCED, Registered.LEFT),
                timeout=seconds,
            )
            if self._is_member():
                return self._member
        if self.state is Registered.FENCED:
            raise FencedError(f"{self._member.kind} {self._key!r}: a newer incarnation is there")
        raise UnavailableError(
            f"{self._member.kind} {self._key!r} is not registered after {seconds:g} s: is there a"
            f" ZooKeeper at {self._coordination.hosts}?"
        )

    def _is_member(self) -> bool:
        return self.state is Registered.MEMBER and self._member.incarnation != 0

    def update(self, **changes: Any) -> None:
        """Says something else of the member (address, plan, lineage, details)."""
        with self._news:
            self._member = replace(self._member, **changes)
        self._coordination.post(self)

    def renew(self) -> None:
        """Takes a new incarnation: for a stream that was detached, and is to attach again."""
        self.update(incarnation=0)

    def close(self) -> None:
        """Takes the registration back, soon, while the session goes on for others."""
        self._leaving = True
        self._coordination.post(self)

    # -- in the thread ----------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Takes an event, and does what follows from it."""
        event = Event.CLOSE if self._leaving else event
        before, action = self.state, self._machine.step(event)
        while action is not None:
            act = self._register if action is Action.REGISTER else self._unregister
            name = f"{self._member.kind} {self._key!r}"
            result = self._coordination.attempt(name, act)
            action = None if result is None else self._machine.step(result)
        with self._news:
            self._news.notify_all()
        if self.state is not before:
            log.info("%s %s: %s", self._member.kind, self._key, self.state.name)
            self._on_state(self.state)
        if self.state is Registered.LEFT:
            self._coordination.remove(self)

    def _register(self) -> Event | None:
        for _ in range(CONFLICTS_MAX):
            try:
                return self._register_once()
            except (BadVersionError, NodeExistsError, NoNodeError):
                # Somebody was faster, or a node of an ended session went just now.
                self._coordination.mistrust()
                self._coordination.ensure()
        return None

    def _register_once(self) -> Event:
        deployment, wanted = self._deployment, self.member
        counter = deployment.incarnation_path(wanted.kind, self._key)
        steps: list[tuple[str, tuple[Any, ...]]] = []
        newest, version = self._newest(counter)
        least = max(newest + 1, int(time.time()))
        member = wanted if wanted.incarnation else replace(wanted, incarnation=least)
        if newest > member.incarnation:
            return Event.FENCED
        number = str(member.incarnation).encode()
        if version is None:
            steps.append(("create", (counter, number, deployment.acl)))
        elif newest < member.incarnation:
            steps.append(("set_data", (counter, number, version)))
        else:
            steps.append(("check", (counter, version)))
        found, owner, at = self._present()
        if owner == self._coordination.session:
            if found != member.encoded():
                steps.append(("set_data", (self._path, member.encoded(), at)))
        else:
            if at is not None:
                steps.append(("delete", (self._path, at)))
            steps.append(("create", (self._path, member.encoded(), deployment.acl, True)))
        deployment.commit(*steps)
        with self._news:
            if self._member is wanted:  # else another update is on its way
                self._member = member
            elif not self._member.incarnation and wanted.incarnation == 0:
                self._member = replace(self._member, incarnation=member.incarnation)
        # Not before: it is to tell of what happens from now on. What has happened since the commit
        # (this process may have been paused just here, and another taken its place) it does not.
        _, stat = deployment.get(self._path, self._watch)
        if stat.ephemeralOwner != self._coordination.session:
            raise BadVersionError
        return Event.DONE

    def _newest(self, counter: str) -> tuple[int, int | None]:
        try:
            data, stat = self._deployment.get(counter)
        except NoNodeError:
            return 0, None
        return int(data), int(stat.version)

    def _present(self) -> tuple[bytes, int, int | None]:
        try:
            data, stat = self._deployment.get(self._path)
        except NoNodeError:
            return b"", 0, None
        return data, int(stat.ephemeralOwner), int(stat.version)

    def _unregister(self) -> None:
        _, owner, version = self._present()
        if version is not None and owner == self._coordination.session:
            self._deployment.commit(("delete", (self._path, version)))

    def _watch(self, event: Any) -> None:
        self._coordination.post(self)


class View:
    """Who is there of a kind, as far as it is known.

    ``on_view`` gets whether that is current, the members by key, and the newest incarnation taken
    of each key; at every change.
    """

    def __init__(
        self,
        coordination: Coordination,
        kind: Kind,
        on_view: Callable[[bool, Mapping[str, Member], Mapping[str, int]], None],
    ) -> None:
        self._coordination = coordination
        self._kind = kind
        self._on_view = on_view
        self._machine = Machine(SIGHT, Sight.AWAY)
        self.members: dict[str, Member] = {}
        self.newest: dict[str, int] = {}
        self._told_current = False
        coordination.add(self)

    @property
    def state(self) -> Sight:
        """Whether what is known is current."""
        return self._machine.state

    def step(self, event: Event) -> None:
        """Takes an event, and does what follows from it."""
        action = self._machine.step(event)
        looked = False
        while action is not None:
            result = self._coordination.attempt(f"the {self._kind}s", self._look)
            looked |= result is not None
            action = None if result is None else self._machine.step(result)
        current = self.state is Sight.CURRENT
        if looked or (self._told_current and self.state in (Sight.AWAY, Sight.CLOSED)):
            self._told_current = current
            self._on_view(current, self.members, self.newest)

    def _look(self) -> Event:
        deployment = self._coordination.deployment
        # In this order: a member that joins in between is seen; the other way round it would seem
        # to be missing, as its incarnation is known and itself is not.
        newest = deployment.incarnations(self._kind, self._watch)
        members = deployment.members(self._kind, self._watch)
        self.members, self.newest = members, newest
        return Event.DONE

    def _watch(self, event: Any) -> None:
        self._coordination.post(self)
