"""What is done when a process dies, hangs, is fenced or is not wanted any more."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.supervision import Action, Event, Patience, Phase, Unit

PATIENCE = Patience(
    first_seconds=1, most_seconds=8, healthy_seconds=20, end_seconds=10, again_seconds=5
)


def started(**options: bool) -> Unit:
    unit = Unit(PATIENCE, **options)
    assert unit.step(Event.TICK, 0) is Action.START
    return unit


def test_who_keeps_dying_waits_twice_as_long_each_time_up_to_a_bound() -> None:
    unit, now, waits = started(), 0.0, []
    for _ in range(6):
        assert unit.step(Event.DIED, now) is None
        waits.append(unit.waits(now))
        assert unit.step(Event.TICK, now + waits[-1] - 0.1) is None
        now += waits[-1]
        assert unit.step(Event.TICK, now) is Action.START
    assert waits == [1, 2, 4, 8, 8, 8]
    assert (unit.restarts, unit.keeps_dying) == (6, True)


def test_who_was_healthy_for_a_while_is_forgiven() -> None:
    unit = started()
    for now in (0.0, 1.0, 3.0):
        unit.step(Event.DIED, now)
        unit.step(Event.TICK, now + unit.waits(now))
    unit.step(Event.READY, 10)
    unit.step(Event.DIED, 29)
    assert unit.waits(29) == 8
    unit.step(Event.TICK, 37)
    unit.step(Event.READY, 40)
    unit.step(Event.DIED, 60)
    assert unit.waits(60) == 1


def test_who_does_not_end_is_killed() -> None:
    unit = started()
    assert unit.step(Event.UNWANTED, 5) is Action.END
    assert unit.step(Event.UNWANTED, 6) is None
    assert unit.step(Event.TICK, 14.9) is None
    assert unit.step(Event.TICK, 15) is Action.KILL
    assert unit.step(Event.TICK, 16) is None
    assert unit.step(Event.TICK, 20) is Action.KILL
    assert unit.step(Event.DIED, 21) is None
    assert unit.phase is Phase.GONE


def test_who_is_wanted_otherwise_ends_and_is_started_at_once() -> None:
    unit = started()
    assert unit.step(Event.CHANGED, 5) is Action.END
    assert unit.step(Event.CHANGED, 5) is None
    assert unit.step(Event.DIED, 6) is Action.START
    assert not unit.keeps_dying


def test_who_was_fenced_is_not_started_while_another_has_its_place() -> None:
    unit = started()
    assert unit.step(Event.FENCED, 1) is None
    assert unit.step(Event.TICK, 1000) is None
    assert unit.step(Event.FREE, 1001) is Action.START


def test_what_is_left_of_who_is_not_wanted_is_cleared_away_before_it_begins_again() -> None:
    unit = started(retires=True)
    unit.step(Event.UNWANTED, 1)
    assert unit.step(Event.DIED, 2) is Action.RETIRE
    assert unit.step(Event.WANTED, 3) is None
    assert unit.step(Event.TICK, 6.9) is None
    assert unit.step(Event.TICK, 7) is Action.RETIRE  # the first attempt has failed
    assert unit.step(Event.RETIRED, 8) is Action.START


def test_what_was_left_by_an_earlier_leader_is_cleared_away_as_well() -> None:
    assert Unit(PATIENCE, retires=True, was=True).step(Event.UNWANTED, 0) is Action.RETIRE
    never = Unit(PATIENCE, retires=True)
    assert never.step(Event.UNWANTED, 0) is None
    assert never.gone


def test_who_was_detached_begins_without_what_it_knew_when_that_is_refused() -> None:
    unit = started()
    unit.step(Event.READY, 1)
    unit.step(Event.DETACHED, 2)
    assert not unit.anew
    assert unit.step(Event.TICK, 3) is Action.START
    unit.step(Event.DETACHED, 4)
    assert unit.anew
    assert unit.step(Event.TICK, 6) is Action.START


def test_who_is_found_running_is_not_started() -> None:
    unit = Unit(PATIENCE)
    assert unit.step(Event.ADOPTED, 0) is None
    assert unit.step(Event.TICK, 100) is None
    assert unit.step(Event.DIED, 101) is None
    assert unit.step(Event.TICK, 102) is Action.START


class Supervised(RuleBasedStateMachine):
    """A process that does as it likes, beside a unit; and what may never happen."""

    @initialize(retires=st.booleans(), runs=st.booleans())
    def begin(self, retires: bool, runs: bool) -> None:
        self.unit = Unit(PATIENCE, retires=retires, was=runs)
        self.now = 0.0
        self.runs = runs
        self.wanted = True
        self.holder = False  # somebody else has its place
        self.told_at = math.inf  # to end
        self.left = runs  # what a process leaves behind
        self.retires = retires
        self.died_at: float | None = None
        if runs:
            self.take(self.unit.step(Event.ADOPTED, 0))

    def take(self, action: Action | None) -> None:
        if action is Action.START:
            assert not self.runs
            assert self.wanted
            assert not self.holder
            self.runs, self.left, self.died_at = True, True, None
        elif action is Action.END:
            assert self.runs
            self.told_at = self.now
        elif action is Action.KILL:
            assert self.now >= self.told_at + PATIENCE.end_seconds
        elif action is Action.RETIRE:
            assert self.retires
            assert not self.runs
            assert self.left

    def step(self, event: Event) -> None:
        self.take(self.unit.step(event, self.now))

    @rule()
    def want(self) -> None:
        if not self.unit.gone:
            self.wanted = True
            self.step(Event.WANTED)

    @rule()
    def do_not_want(self) -> None:
        self.wanted = False
        self.step(Event.UNWANTED)

    @rule(event=st.sampled_from([Event.CHANGED, Event.READY]))
    def hear(self, event: Event) -> None:
        if self.runs:
            self.step(event)

    @rule(event=st.sampled_from([Event.DIED, Event.DETACHED, Event.FENCED]))
    def die(self, event: Event) -> None:
        if self.runs:
            self.runs, self.died_at, self.told_at = False, self.now, math.inf
            self.holder = event is Event.FENCED and self.wanted
            self.step(event)

    @precondition(lambda self: self.holder)
    @rule()
    def make_room(self) -> None:
        self.holder = False
        self.step(Event.FREE)

    @precondition(lambda self: self.unit.phase is Phase.RETIRING)
    @rule()
    def retire(self) -> None:
        self.left = False
        self.step(Event.RETIRED)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.step(Event.TICK)

    @invariant()
    def it_knows_whether_there_is_a_process(self) -> None:
        assert self.unit.there == self.runs
        assert self.unit.wanted == self.wanted

    @invariant()
    def who_is_wanted_comes_back_within_the_bound(self) -> None:
        if self.unit.phase is Phase.DOWN and self.wanted:
            assert self.unit.waits(self.now) <= PATIENCE.most_seconds

    @invariant()
    def who_is_not_wanted_goes(self) -> None:
        if not self.wanted:
            assert self.unit.phase in (Phase.ENDING, Phase.RETIRING, Phase.GONE)
        if self.unit.gone:
            assert not self.runs
            assert not (self.retires and self.left)


TestSupervised = Supervised.TestCase
TestSupervised.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
