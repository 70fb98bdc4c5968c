"""The state machines, apart from ZooKeeper: against a model of it that forgets and interrupts."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.states import (
    CANDIDACY,
    REGISTRATION,
    SIGHT,
    Action,
    Attendance,
    Candidacy,
    Event,
    Machine,
    Registered,
    Sight,
)

TABLES: list[tuple[Any, type[Enum], set[Enum]]] = [
    (REGISTRATION, Registered, {Registered.LEFT}),
    (CANDIDACY, Candidacy, {Candidacy.LEFT}),
    (SIGHT, Sight, {Sight.CLOSED}),
]


@pytest.mark.parametrize(("table", "states", "final"), TABLES)
def test_every_state_is_left_by_a_close_and_final_ones_by_nothing(
    table: Any, states: type[Enum], final: set[Enum]
) -> None:
    for state in states:
        left = [event for event in Event if (state, event) in table]
        if state in final:
            assert not left
        else:
            assert table[(state, Event.CLOSE)][0] in final


@pytest.mark.parametrize(("table", "states", "final"), TABLES)
def test_nothing_is_claimed_of_a_session_that_is_lost(
    table: Any, states: type[Enum], final: set[Enum]
) -> None:
    for state in states:
        reached, action = table.get((state, Event.LOST), (state, None))
        assert action is None
        assert reached.name in ("AWAY", "FENCED", "LEFT", "CLOSED")


def test_who_is_in_doubt_does_not_lead() -> None:
    assert CANDIDACY[(Candidacy.LEADING, Event.SUSPENDED)] == (Candidacy.DOUBT, None)
    ways = [key for key, (state, _) in CANDIDACY.items() if state is Candidacy.LEADING]
    assert ways == [(Candidacy.STANDING, Event.DONE)]


class World:
    """ZooKeeper, as far as it matters here: sessions, one ephemeral node a name, a counter."""

    def __init__(self) -> None:
        self.up = True
        self.sessions: set[int] = set()
        self.next_session = 1
        self.node: tuple[int, int] | None = None  # session, incarnation
        self.counter = 0

    def expire(self, session: int) -> None:
        self.sessions.discard(session)
        if self.node is not None and self.node[0] == session:
            self.node = None


class Process:
    """A member's edge on the model: what is posted waits, actions are carried out in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = Machine(REGISTRATION, Registered.AWAY)
        self.session: int | None = None
        self.connected = False
        self.incarnation = 0
        self.waiting: list[Event] = []

    def connect(self) -> None:
        if self.session is not None and self.session not in self.world.sessions:
            self.waiting.append(Event.LOST)
            self.session = None
        if self.session is None:
            self.session = self.world.next_session
            self.world.next_session += 1
            self.world.sessions.add(self.session)
        self.connected = True
        self.waiting.append(Event.CONNECTED)

    def disconnect(self) -> None:
        self.connected = False
        self.waiting.append(Event.SUSPENDED)

    def work(self, event: Event) -> None:
        action = self.machine.step(event)
        while action is not None:
            result = self.act(action)
            action = None if result is None else self.machine.step(result)

    def act(self, action: Action) -> Event | None:
        world = self.world
        alive = self.connected and world.up and self.session in world.sessions
        if not alive or self.session is None:
            return None
        if action is Action.UNREGISTER:
            if world.node is not None and world.node[0] == self.session:
                world.node = None
            return None
        assert action is Action.REGISTER
        if not self.incarnation:
            self.incarnation = world.counter + 1
        if world.counter > self.incarnation:
            return Event.FENCED
        world.counter = self.incarnation
        world.node = (self.session, self.incarnation)
        return Event.DONE

    @property
    def settled(self) -> bool:
        return not self.waiting


class Members(RuleBasedStateMachine):
    """Processes that all want to be the same member, in a world that fails as it likes."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.processes: list[Process] = [Process(self.world)]

    def _one(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    @rule()
    @precondition(lambda self: len(self.processes) < 4)
    def another_begins(self) -> None:
        self.processes.append(Process(self.world))

    @rule(number=st.integers(0, 3))
    def a_process_connects(self, number: int) -> None:
        process = self._one(number)
        if self.world.up and not process.connected:
            process.connect()

    @rule(number=st.integers(0, 3))
    def a_connection_breaks(self, number: int) -> None:
        process = self._one(number)
        if process.connected:
            process.disconnect()

    @rule(number=st.integers(0, 3))
    def a_session_expires(self, number: int) -> None:
        process = self._one(number)
        if process.session is not None:
            if process.connected:
                process.disconnect()
            self.world.expire(process.session)

    @rule()
    def zookeeper_goes(self) -> None:
        self.world.up = False
        for process in self.processes:
            if process.connected:
                process.disconnect()

    @rule()
    def zookeeper_comes(self) -> None:
        self.world.up = True

    @rule()
    def somebody_deletes_the_node(self) -> None:
        self.world.node = None
        for process in self.processes:
            process.waiting.append(Event.CHANGED)

    @rule(number=st.integers(0, 3))
    def a_process_works(self, number: int) -> None:
        process = self._one(number)
        if process.waiting:
            process.work(process.waiting.pop(0))

    @rule(number=st.integers(0, 3))
    def a_process_tries_again(self, number: int) -> None:
        self._one(number).work(Event.RETRY)

    @rule(number=st.integers(0, 3))
    def a_process_closes(self, number: int) -> None:
        self._one(number).work(Event.CLOSE)

    @invariant()
    def the_node_is_of_the_newest_incarnation(self) -> None:
        if self.world.node is not None:
            assert self.world.node[1] == self.world.counter

    @invariant()
    def who_is_fenced_or_has_left_is_no_member(self) -> None:
        for process in self.processes:
            if process.machine.state is Registered.FENCED and self.world.node is not None:
                assert self.world.node[1] > process.incarnation

    @rule()
    def when_all_is_well_for_a_while_the_newest_is_a_member(self) -> None:
        self.world.up = True
        for process in self.processes:
            if not process.connected:
                process.connect()
            while process.waiting:
                process.work(process.waiting.pop(0))
        for process in self.processes:  # what fencing has deleted is told by watches
            process.work(Event.CHANGED)
            process.work(Event.RETRY)
        for process in self.processes:
            state = process.machine.state
            assert state in (Registered.MEMBER, Registered.FENCED, Registered.LEFT)
            if state is Registered.MEMBER:
                assert self.world.node == (process.session, process.incarnation)
                assert process.incarnation == self.world.counter
        newest = [
            p for p in self.processes if p.incarnation == self.world.counter and p.incarnation
        ]
        left = all(p.machine.state is Registered.LEFT for p in newest)
        assert left or self.world.node is not None


TestMembers = Members.TestCase


# -- attendance -----------------------------------------------------------------------------------


def test_a_member_that_goes_is_gone_at_once_when_nothing_else_is_amiss() -> None:
    roll = Attendance(settle=5)
    roll.look({"a": 7, "b": 1}, {"a": 7, "b": 1}, 100)
    roll.look({"b": 1}, {"a": 7, "b": 1}, 200)
    assert roll.gone(200) == {"a": 7}
    roll.look({"a": 8, "b": 1}, {"a": 8, "b": 1}, 201)
    assert roll.gone(300) == {}


def test_while_zookeeper_is_away_nobody_goes_and_those_who_live_have_time_to_return() -> None:
    roll = Attendance(settle=5)
    roll.look({"a": 7}, {"a": 7}, 0)
    roll.away()
    assert roll.gone(1_000) == {}
    roll.look({}, {"a": 7}, 1_000)
    assert roll.gone(1_004) == {}
    assert roll.next_at(1_004) == 1_005
    roll.look({"a": 7}, {"a": 7}, 1_004)
    assert roll.gone(1_006) == {}
    assert roll.next_at(1_006) is None


def test_who_died_while_the_watcher_was_away_is_gone_once_things_have_settled() -> None:
    roll = Attendance(settle=5, linger=20)
    roll.look({}, {"a": 7}, 100)
    assert roll.gone(119) == {}
    assert roll.gone(120) == {"a": 7}


def test_who_never_was_a_member_is_nobodys_business() -> None:
    roll = Attendance(settle=0)
    roll.look({}, {}, 1)
    assert roll.gone(1_000) == {}
    assert roll.fenced() == {}


_NAMES = st.sampled_from("abc")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.dictionaries(_NAMES, st.integers(1, 9))),
        st.tuples(st.just("away"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 30)),
    ),
    max_size=40,
)


@given(_STEPS, st.integers(0, 10), st.integers(0, 10))
def test_gone_is_who_was_missing_long_enough_in_an_unbroken_current_view(
    steps: list[tuple[str, Any]], settle: int, linger: int
) -> None:
    """The oracle reads the whole history each time; the machine keeps what it needs."""
    roll, now = Attendance(settle, linger), 0
    newest: dict[str, int] = {}
    history: list[tuple[int, dict[str, int] | None]] = []
    for step, value in steps:
        if step == "wait":
            now += value
        elif step == "away":
            roll.away()
            history.append((now, None))
        else:
            for name, incarnation in value.items():
                newest[name] = max(newest.get(name, 0), incarnation)
            roll.look(value, newest, now)
            history.append((now, value))
        expected = {}
        looks = [(at, seen) for at, seen in history if seen is not None]
        if history and history[-1][1] is not None:
            breaks = [i for i, (_, seen) in enumerate(history) if seen is None]
            current_since = history[breaks[-1] + 1 if breaks else 0][0]
            for name, number in newest.items():
                present = [i for i, (_, seen) in enumerate(looks) if name in seen]
                missing = looks[present[-1] + 1 :] if present else looks
                if missing and now >= max(missing[0][0] + linger, current_since + settle):
                    expected[name] = number
        assert roll.gone(now) == expected
        at = roll.next_at(now)
        assert at is None or (at > now and len(roll.gone(at)) > len(expected))
