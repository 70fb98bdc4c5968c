"""The machine of a cutover, apart from everything: scripts of looks, and random worlds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.cutover import (
    BEHIND_SECONDS,
    DEATHS_MAX,
    LEAVE_SECONDS,
    Action,
    Cutover,
    Seen,
    Stage,
    StreamSeen,
    step,
)
from lmerge.errors import ConfigurationError

OLD, NEW = ("old-1", "old-2"), ("new-1",)


def cutover(**changes: Any) -> Cutover:
    values: dict[str, Any] = {
        "plan": {"name": "new"}, "streams": NEW, "replaces": ("old",), "old_streams": OLD,
        "intervals": 3, "timeout": 100.0, **changes,
    }  # fmt: skip
    return Cutover(**values)


# -- a world in which actions take effect ----------------------------------------------------------


@dataclass
class World:
    """What there is; :meth:`look` shows it, and :meth:`do` carries an action out."""

    c: Cutover
    plans: set[str] = field(default_factory=lambda: {"old"})
    trials: set[str] = field(default_factory=set)
    streams: dict[str, StreamSeen] = field(
        default_factory=lambda: {
            s: StreamSeen(member=True, attached=True, state="joined", ready=True, behind=0.0)
            for s in OLD
        }
    )
    now: float = 1000.0
    stable: int = 0
    away: bool = False  # the server
    refused: str = ""
    done: list[Action] = field(default_factory=list)
    were_verified: set[str] = field(default_factory=set)
    were_joined: set[str] = field(default_factory=set)

    def look(self) -> Seen:
        if self.away:
            return Seen(frozenset(self.plans), problem="the server is away")
        trials = frozenset(self.trials)
        return Seen(
            frozenset(self.plans), looked=True, stable=self.stable, trials=trials,
            some_trials=trials, streams=dict(self.streams), refused=self.refused,
        )  # fmt: skip

    def turn(self, *, write: bool = True, act: bool = True) -> Action | None:
        """One turn of a leader, who may end before it has written, or before it has acted."""
        seen = self.look()
        for name, found in seen.streams.items():
            if found.verified >= self.c.intervals and found.diverged is None:
                self.were_verified.add(name)
            if found.state == "joined":
                self.were_joined.add(name)
        c, action = step(self.c, seen, self.now)
        if not write:
            return None
        self.c = Cutover.decoded(c.encoded())
        assert self.c == c
        if action is not None and act:
            self.do(action)
        return action

    def do(self, action: Action) -> None:
        c = self.c
        self.done.append(action)
        if action is Action.ADD_PLAN:
            self.plans.add(c.name)
        elif action is Action.REMOVE_OLD:
            assert self.were_verified.issuperset(c.streams) or not c.intervals
            assert self.were_joined.issuperset(c.streams)
            assert c.name in self.plans
            self.plans -= set(c.replaces)
        elif action is Action.REMOVE_NEW:
            assert "old" in self.plans
            self.plans.discard(c.name)
        elif not self.away:
            self._ask_server(action)
        assert self.plans, f"both plans are gone after {self.done}"

    def _ask_server(self, action: Action) -> None:
        c = self.c
        if action is Action.PUT_ON_TRIAL:
            self.trials |= set(c.streams)
        elif action is Action.SWITCH:
            if c.differs_from is not None and self.stable > c.differs_from:
                self.refused = "it is too late"
                return
            self.trials -= set(c.streams)
            if c.differs_from is not None:
                self.trials |= set(OLD)
        elif action is Action.SWITCH_BACK:
            self.trials |= set(c.streams)
            self.trials -= set(OLD)
        elif action is Action.FORGET:
            self.trials -= {*c.streams, *OLD}
        else:
            streams = OLD if action is Action.DETACH_OLD else c.streams
            for stream in streams:
                self.streams.pop(stream, None)
        for stream, found in self.streams.items():
            counts = stream not in self.trials and found.ready
            self.streams[stream] = replace(found, state="joined" if counts else "joining")

    def attach(self, stream: str, **said: Any) -> None:
        state = "joining" if stream in self.trials else "joined"
        seen = StreamSeen(member=True, attached=True, state=state, ready=True, behind=0.0)
        self.streams[stream] = replace(seen, **said)

    def end(self, *streams: str) -> None:
        """Processes end; who has no member is detached."""
        for stream in streams:
            self.streams.pop(stream, None)

    def until(self, stage: Stage) -> None:
        for _ in range(20):
            if self.c.stage is stage:
                return
            self.now += 1
            self.turn()
        raise AssertionError(f"{self.c.stage}, not {stage}: {self.done}")


def verifying(**changes: Any) -> World:
    world = World(cutover(**changes))
    world.until(Stage.WARMING)
    world.attach("new-1")
    world.until(Stage.VERIFYING)
    return world


# -- scripts ---------------------------------------------------------------------------------------


def test_a_better_plan_takes_over() -> None:
    world = World(cutover())
    assert [world.turn(), world.turn(), world.turn()] == [
        Action.PUT_ON_TRIAL, Action.ADD_PLAN, None,
    ]  # fmt: skip
    assert world.c.stage.value == "warming"
    world.attach("new-1", ready=False)
    assert world.turn() is None
    world.attach("new-1", verified=2)
    world.until(Stage.VERIFYING)
    assert world.turn() is None
    world.attach("new-1", verified=3)
    assert world.turn() is Action.SWITCH
    assert world.turn() is Action.REMOVE_OLD
    assert world.c.stage.value == "draining"
    assert world.turn() is None  # their processes are ending
    world.end(*OLD)
    world.turn()
    assert world.c.stage is Stage.DONE
    assert (world.plans, world.trials) == ({"new"}, set())
    assert world.turn() is None


def test_one_that_differs_is_undone_and_the_difference_named() -> None:
    world = verifying()
    world.attach("new-1", verified=2, diverged=(40, 50))
    assert world.turn() is Action.REMOVE_NEW
    assert world.c.reason == ("stream 'new-1' has other events ending in [40, 50) than the output")
    assert (world.c.diverged, world.c.failed_in) == (("new-1", 40, 50), "verifying")
    world.end("new-1")
    assert world.turn() is Action.FORGET
    world.turn()
    assert world.c.stage is Stage.ROLLED_BACK
    assert (world.plans, world.trials) == ({"old"}, set())


def test_one_that_keeps_dying_is_undone() -> None:
    world = World(cutover())
    world.until(Stage.WARMING)
    world.streams["new-1"] = StreamSeen(deaths=DEATHS_MAX, last_words="ValueError: no")
    world.turn()
    assert world.c.reason == f"replica 'new-1' ended {DEATHS_MAX} times: ValueError: no"


@pytest.mark.parametrize(
    ("said", "waiting"),
    [
        ({}, "agrees in 0 of 3 intervals"),
        ({"verified": 3, "behind": BEHIND_SECONDS + 1}, "is 11 s behind the output"),
        ({"verified": 3, "ready": False}, "not right yet from where the output is"),
    ],
)
def test_one_that_never_gets_there_runs_into_the_time_out(
    said: dict[str, Any], waiting: str
) -> None:
    world = verifying()
    world.attach("new-1", **said)
    began = world.c.began
    assert began is not None
    world.now = began + 99
    assert world.turn() is None
    world.now = began + 100
    assert world.turn() is Action.REMOVE_NEW
    assert waiting in world.c.reason
    assert "not through within 100 s" in world.c.reason


def test_a_lag_is_bounded_in_the_streams_own_time_when_that_is_said() -> None:
    world = verifying(lag_max=20)
    world.attach("new-1", verified=3, lag=21)
    assert world.turn() is None
    world.attach("new-1", verified=3, lag=20, behind=1e9)
    assert world.turn() is Action.SWITCH


def test_with_a_declared_difference_the_old_plan_goes_on_trial_as_the_new_one_is_admitted() -> None:
    world = verifying(differs_from=50)
    world.stable = 50
    world.attach("new-1", verified=3)
    assert world.turn() is Action.SWITCH
    assert world.trials == set(OLD)
    world.attach("new-1", verified=3, diverged=(48, 52))  # it begins before, and ends after
    assert world.turn() is Action.REMOVE_OLD
    world.end(*OLD)
    assert world.turn() is Action.FORGET
    world.turn()
    assert (world.c.stage, world.trials) == (Stage.DONE, set())


def test_a_declared_difference_does_not_excuse_an_earlier_one() -> None:
    world = verifying(differs_from=50)
    world.attach("new-1", diverged=(49, 50))
    assert world.turn() is Action.REMOVE_NEW


@pytest.mark.parametrize("stage", [Stage.VERIFYING, Stage.SWITCHING])
def test_an_output_that_passes_the_declared_time_too_early_undoes_it(stage: Stage) -> None:
    world = verifying(differs_from=50)
    if stage is Stage.SWITCHING:
        world.attach("new-1", verified=3)
        world.turn(act=False)
    world.stable = 51
    world.turn()
    assert "was to begin at 50: declare a later time" in world.c.reason
    world.end("new-1")
    world.until(Stage.ROLLED_BACK)


def test_a_switch_that_the_server_refuses_undoes_it() -> None:
    world = verifying()
    world.refused = "it is too late"
    world.turn()
    assert (world.c.stage, world.c.reason) == (Stage.UNDOING, "it is too late")


def test_what_was_switched_is_switched_back_when_the_new_plan_fails_before_the_old_is_removed() -> (
    None
):
    world = verifying(differs_from=50)
    world.attach("new-1", verified=3)
    world.turn()
    assert world.trials == set(OLD)
    world.c = replace(world.c, aborted=True)
    assert world.turn() is Action.SWITCH_BACK
    assert world.trials == {"new-1"}
    assert world.turn() is Action.REMOVE_NEW


def test_there_is_no_way_back_once_the_old_plan_is_removed() -> None:
    world = verifying()
    world.attach("new-1", verified=3)
    world.until(Stage.DRAINING)
    assert world.plans == {"new"}
    world.c = replace(world.c, aborted=True)
    world.streams["new-1"] = StreamSeen(deaths=9)
    world.now += 1000  # its processes do not end, and are not waited for any longer
    world.turn()
    assert world.c.stage is Stage.DONE
    assert "old-1, old-2" in world.c.note


def test_the_last_plan_is_not_removed() -> None:
    world = verifying()
    world.plans = {"new"}  # somebody else took the old one out
    world.until(Stage.ROLLED_BACK)
    assert world.plans == {"new"}
    assert "the only one" in world.c.note


def test_streams_of_somebody_else_are_let_be() -> None:
    world = World(cutover())
    world.attach("new-1")
    assert world.turn() is None
    assert world.c.stage is Stage.ROLLED_BACK
    assert "there is a stream 'new-1' already" in world.c.reason
    assert world.trials == set()


def test_without_intervals_nobody_is_on_trial() -> None:
    world = World(cutover(intervals=0))
    assert world.turn() is Action.ADD_PLAN
    world.until(Stage.WARMING)
    world.attach("new-1")
    world.until(Stage.DRAINING)
    assert Action.PUT_ON_TRIAL not in world.done


@pytest.mark.parametrize(
    "changes",
    [
        {"streams": ()}, {"replaces": ()}, {"replaces": ("new",)}, {"intervals": -1},
        {"timeout": 0.0}, {"intervals": 0, "differs_from": 5},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        cutover(**changes)


@pytest.mark.parametrize("value", [None, 7, [], {}, {"version": 2}, {"version": 1, "stage": "x"}])
def test_what_another_version_wrote_is_not_read(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        Cutover.decoded(value)


# -- any world -------------------------------------------------------------------------------------


def _happens(world: World, pick: Random) -> None:
    """Something that nobody asked for."""
    kind = pick.randrange(12)
    new = pick.choice(world.c.streams)
    if kind <= 1 and world.c.name in world.plans:
        world.attach(new, verified=pick.choice((0, 2, 3)), behind=pick.choice((0.0, 99.0)))
    elif kind == 2 and new in world.streams:
        start = pick.randrange(80)
        world.streams[new] = replace(world.streams[new], diverged=(start, start + 10))
    elif kind == 3:
        world.end(pick.choice((new, *OLD)))
    elif kind == 4 and new in world.streams:
        found = world.streams[new]
        world.streams[new] = replace(found, attached=False, deaths=found.deaths + 1)
    elif kind == 5:
        world.away = pick.random() < 0.5
    elif kind == 6 and pick.random() < 0.1:
        world.c = replace(world.c, aborted=True)
    elif kind == 7:
        world.now += pick.choice((5.0, 30.0, 70.0))
    elif kind == 8:
        world.now -= 2.0  # another leader's clock
    elif kind == 9:
        world.stable += pick.choice((1, 10, 40))
    elif kind == 10 and pick.random() < 0.05:
        world.plans.add("other")
    elif kind == 11 and new in world.streams and world.streams[new].verified:
        world.attach(new, verified=5)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    turns=st.integers(0, 60),
    declared=st.sampled_from([None, None, 20, 50]),
    intervals=st.sampled_from([0, 3, 3]),
)
def test_whatever_happens_a_plan_runs_and_the_cutover_ends(
    seed: int, turns: int, declared: int | None, intervals: int
) -> None:
    """Leaders end at any point of a turn, servers go away, replicas die, lag, differ and return."""
    pick = Random(seed)
    differs_from = declared if intervals else None
    world = World(
        cutover(streams=("new-1", "new-2"), differs_from=differs_from, intervals=intervals)
    )
    for _ in range(turns):
        _happens(world, pick)
        world.turn(write=pick.random() < 0.8, act=pick.random() < 0.8)
        world.now += pick.random()
        assert world.plans & {"old", "new"}
        # Who counts was verified, or is being taken back, or nothing is verified at all.
        counting = {s for s in world.c.streams if s in world.streams} - world.trials
        if intervals and world.c.stage in (Stage.STARTING, Stage.WARMING, Stage.VERIFYING):
            assert not counting, f"{world.c.stage}: {world.done}"
    # From here on everybody does what was asked, and nobody helps.
    world.away, since = False, world.now
    while not world.c.ended:
        assert world.now < since + world.c.timeout + 3 * LEAVE_SECONDS, f"{world.c}: {world.done}"
        if "old" not in world.plans:
            world.end(*OLD)
        if "new" not in world.plans:
            world.end(*world.c.streams)
        world.turn()
        world.now += 1.0
    assert world.plans & {"old", "new"}
    if world.c.stage is Stage.DONE:
        assert "new" in world.plans
        return
    assert "old" not in world.plans or not world.trials.intersection(OLD)
    if not world.c.note:
        assert "old" in world.plans
        assert "new" not in world.plans
