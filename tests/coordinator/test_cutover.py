"""Cutovers on a real ZooKeeper and a real server: to better plans and bad ones, and with leaders
that die at every stage. The consumer never sees anything wrong, and never waits for any of it.

Replicas are sessions of the test's own, which do what their plan's name says, a tick of the feed
at a time: each tick is one epoch of each replica, then one look of the leader.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import spec as specs
from coordinator.calls import Calls
from coordinator.cutover import NAME, Action, Cutover, Stage
from coordinator.cutting import Cutting
from coordinator.deployment import ConflictError, Deployment, Term
from coordinator.election import Candidate
from coordinator.membership import Coordination
from coordinator.spec import Plan, ServerSpec, Spec
from coordinator.zookeeper import Ensemble
from lmerge.server.config import ServerConfig
from lmerge.server.serving import Server
from tests.coordinator.waiting import WAIT_SECONDS
from tests.oracle.tdb import Reconstitution
from tests.server.serving import Consumer, Replica, bounded, channel_to, server_here

MERGE = "m"
_NAMES = itertools.count(1)
_LINEAGES = itertools.count(1)


class DiedError(Exception):
    """The leader's process has ended, here."""


# -- the feed, and what plans make of it -----------------------------------------------------------


def event(plan: str, k: int, differs_at: int) -> Any:
    """The k-th result: live in [k, k + 3)."""
    wrong = (plan == "wrong" and k >= differs_at) or (plan == "other" and k >= differs_at)
    return ("+", k, k + 3, k, plan if wrong else "right")


@dataclass
class Run:
    """A replica: a session, and how far it is."""

    session: Replica
    plan: str
    done: int = -1  # the last tick
    sent: int = 0  # results
    epoch: int = 0


@dataclass
class Crew:
    """Runs what the spec asks for, as a supervisor does."""

    channel: Any
    deployment: Deployment
    differs_at: int
    runs: dict[str, Run] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    tick: int = -1

    async def advance(self) -> None:
        """One tick of the feed, and whatever the spec asks for now."""
        self.tick += 1
        spec, _ = await asyncio.to_thread(specs.read, self.deployment)
        wanted = spec.streams()
        for stream in [stream for stream in self.runs if stream not in wanted]:
            self.runs.pop(stream).session.cancel()
        for stream, plan in wanted.items():
            if stream not in self.runs:
                lineage = f"lineage-{next(_LINEAGES)}"
                session = Replica(self.channel, MERGE, stream, lineage=lineage)
                await session.attach()
                self.runs[stream] = Run(session, plan.build.partition(":")[2])
        for stream, run in list(self.runs.items()):
            if run.plan == "crashes" and run.epoch == 1:
                self.runs.pop(stream).session.cancel()
                self.ended[stream] = self.ended.get(stream, 0) + 1
                continue
            await self._write(run)

    async def _write(self, run: Run) -> None:
        to = self.tick
        if run.plan in ("ahead", "wrong"):
            to += 4  # it knows its results earlier than the others
        elif run.plan == "slow" and to > run.done:
            to = run.done + (self.tick % 4 == 0)
        rows = [event(run.plan, k, self.differs_at) for k in range(run.sent, to + 3)]
        await run.session.epoch(run.epoch, rows, to + 1)
        run.done, run.sent, run.epoch = to, to + 3, run.epoch + 1

    def deaths(self, stream: str) -> tuple[int, str]:
        return self.ended.get(stream, 0), "ValueError: this plan does not work"


# -- leaders ---------------------------------------------------------------------------------------


class Mortal(Cutting):
    """A leader that ends before it writes, before it acts, or after it has acted."""

    die = ""

    def tick(self, term: Term) -> None:
        super().tick(term)
        if self.die:
            raise DiedError

    def _look(self, c: Cutover, spec: Spec) -> Any:
        seen = super()._look(c, spec)
        if self.die == "before it wrote":
            raise DiedError
        return seen

    def _act(self, c: Cutover, action: Action, spec: Spec, term: Term) -> None:
        if self.die == "before it acted":
            raise DiedError
        super()._act(c, action, spec, term)


class Leaders:
    """One leader after the other."""

    def __init__(self, hosts: str, name: str, world: World) -> None:
        self._hosts = hosts
        self._name = name
        self._world = world
        self.terms = 0
        self.session: Coordination
        self.cutting: Mortal
        self.term: Term

    def begin(self) -> None:
        """Another one is elected."""
        self.session = Coordination(self._hosts, self._name)
        self.session.start()
        self.session.connect(WAIT_SECONDS)
        self.term = Candidate(self.session, f"c-{self.terms}").wait(WAIT_SECONDS)
        self.terms += 1
        world = self._world
        self.cutting = Mortal(
            self.session.deployment, Calls(), world.crew.deaths, clock=lambda: world.now
        )

    def end(self) -> None:
        self.session.close()

    def lead(self, die: str) -> None:
        """One look; if the leader dies of it, another is elected."""
        self.cutting.die = die
        try:
            self.cutting.tick(self.term)
        except DiedError:
            self.end()
            self.begin()


# -- the world -------------------------------------------------------------------------------------


@dataclass
class World:
    server: Server
    consumer: Consumer
    crew: Crew
    deployment: Deployment
    leaders: Leaders = field(init=False)
    now: float = 1000.0
    harassed: bool = False
    stages: list[str] = field(default_factory=list)

    async def request(self, build: str, replicas: int = 1, **said: Any) -> None:
        plan = Plan("new", f"plans:{build}", replicas)
        values = {"intervals": 4, "lag_max": 2, "timeout": 60.0, "merge": MERGE, **said}
        c = Cutover(asdict(plan), plan.streams, ("old",), ("old-1", "old-2"), **values)
        found = await asyncio.to_thread(self.deployment.read, NAME)
        version = None if found is None else found.version
        await asyncio.to_thread(self.deployment.write, NAME, c.encoded(), version)

    async def value(self) -> Cutover:
        found = await asyncio.to_thread(self.deployment.read, NAME)
        assert found is not None
        return Cutover.decoded(found.value)

    async def turn(self, die: str = "") -> Cutover:
        """One tick of the feed, which reaches the consumer at once, and one of the leader."""
        await self.crew.advance()
        self.now += 1.0
        stable = self.server.hub.merges[MERGE].host.state.stable_point
        assert stable is not None
        assert stable >= self.crew.tick + 1, f"the output stood still at tick {self.crew.tick}"
        await asyncio.to_thread(self.leaders.lead, die)
        c = await self.value()
        if not self.stages or self.stages[-1] != c.stage.value:
            self.stages.append(c.stage.value)
        return c

    async def ended(self) -> Cutover:
        """The cutover's end; every stage is survived by nobody who leads, in each way."""
        met: dict[str, int] = {}
        ways = ("before it wrote", "before it acted", "after it acted")
        for _ in range(200):
            stage = (await self.value()).stage.value
            number = met[stage] = met.get(stage, -1) + 1
            c = await self.turn(ways[number] if self.harassed and number < len(ways) else "")
            if c.ended:
                for _ in range(8):  # what comes after is right as well
                    await self.turn()
                return c
        raise AssertionError(f"it does not end: {await self.value()}")

    async def plans(self) -> list[str]:
        spec, _ = await asyncio.to_thread(specs.read, self.deployment)
        return [plan.name for plan in spec.plans]

    async def check(self, answers: str = "", *, revised: bool = False) -> None:
        """What the consumer saw: at each stable everything frozen is right, and nothing is missing.

        Unless it is ``revised``, no element ever was wrong.
        """
        last = self.crew.tick + 1
        seen = await self.consumer.until_stable(last)
        result = Reconstitution("R3")
        for kind, *rest in seen:
            if kind == "stable":
                result.apply(("stable", *rest))
            elif kind == "+":
                vs, ve, k, v = rest
                result.apply(("insert", (k, v), vs, ve))
                if not revised:
                    assert (kind, *rest) == event("old", vs, self.crew.differs_at)
            else:
                vs, vold, ve, k, v = rest
                assert revised, f"an adjust: {rest}"
                result.apply(("adjust", (k, v), vs, vold, ve))
        plan = answers or "old"
        truth = {event(plan, k, self.crew.differs_at) for k in range(last)}
        found = {("+", vs, ve, k, v) for ((k, v), vs, ve) in result.tdb() if vs < last}
        assert found == truth
        streams = self.server.hub.merges[MERGE].host.state.merge.streams()
        assert {state.value for state in streams.values()} == {"joined"}
        assert self.server.hub.merges[MERGE].host.state.on_trial == set()


@asynccontextmanager
async def worlds(
    tmp_path: Path, zookeeper: Ensemble, *, harassed: bool = False, differs_at: int = 14
) -> AsyncIterator[World]:
    name = f"cut-{next(_NAMES)}"
    config = ServerConfig(listen="127.0.0.1:0", data_dir=tmp_path / "data", durability="flush")
    async with server_here(config) as server:
        with Coordination(zookeeper.hosts, name) as session:
            deployment = await asyncio.to_thread(session.connect, WAIT_SECONDS)
            spec = Spec(
                MERGE,
                (ServerSpec(listen=f"127.0.0.1:{server.port}"),),
                (Plan("old", "plans:old", 2),),
            )
            await asyncio.to_thread(deployment.write, specs.NAME, spec.encoded(), None)
            async with channel_to(f"localhost:{server.port}") as channel:
                crew = Crew(channel, deployment, differs_at)
                await crew.advance()
                consumer = Consumer(channel, MERGE)
                await consumer.open()
                world = World(server, consumer, crew, deployment, harassed=harassed)
                world.leaders = Leaders(zookeeper.hosts, name, world)
                await asyncio.to_thread(world.leaders.begin)
                try:
                    yield world
                finally:
                    await asyncio.to_thread(world.leaders.end)
                    for run in crew.runs.values():
                        run.session.cancel()


@pytest.mark.parametrize("harassed", [False, True], ids=["", "leaders die at every stage"])
@pytest.mark.parametrize("build", ["better", "ahead"])
def test_a_better_plan_takes_over(
    tmp_path: Path, zookeeper: Ensemble, build: str, harassed: bool
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper, harassed=harassed) as world:
            await world.request(build, replicas=2)
            c = await world.ended()
            assert (c.stage, c.reason, c.note) == (Stage.DONE, "", "")
            assert await world.plans() == ["new"]
            await world.check()
            if harassed:
                assert world.leaders.terms > 9
            else:
                assert world.stages == [
                    "starting", "warming", "verifying", "switching", "draining", "done",
                ]  # fmt: skip

    test()


@pytest.mark.parametrize("harassed", [False, True], ids=["", "leaders die at every stage"])
def test_a_plan_that_computes_something_else_is_rolled_back_and_nobody_sees_it(
    tmp_path: Path, zookeeper: Ensemble, harassed: bool
) -> None:
    """It is ahead of the others, too: the output would be its own, were it not on trial."""

    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper, harassed=harassed) as world:
            # No other reason to end, and more intervals than the wrong one has right.
            await world.request("wrong", intervals=30)
            c = await world.ended()
            assert c.stage is Stage.ROLLED_BACK
            assert c.diverged == ("new-1", 17, 18)  # the event of 14 is the first that ends there
            assert "other events ending in [17, 18)" in c.reason
            assert await world.plans() == ["old"]
            await world.check()

    test()


@pytest.mark.parametrize("harassed", [False, True], ids=["", "leaders die at every stage"])
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ("crashes", "replica 'new-1' ended 3 times: ValueError: this plan does not work"),
        ("slow", "not through within 60 s: stream 'new-1' is"),
    ],
)
def test_a_plan_that_does_not_get_there_is_rolled_back(
    tmp_path: Path, zookeeper: Ensemble, build: str, reason: str, harassed: bool
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper, harassed=harassed) as world:
            await world.request(build)
            c = await world.ended()
            assert c.stage is Stage.ROLLED_BACK
            assert c.reason.startswith(reason)
            assert await world.plans() == ["old"]
            await world.check()

    test()


@pytest.mark.parametrize("harassed", [False, True], ids=["", "leaders die at every stage"])
def test_from_a_declared_time_on_the_new_plan_alone_answers(
    tmp_path: Path, zookeeper: Ensemble, harassed: bool
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper, harassed=harassed, differs_at=40) as world:
            await world.request("other", differs_from=40)
            c = await world.ended()
            assert (c.stage, c.note) == (Stage.DONE, "")
            while world.crew.tick < 60:
                await world.turn()
            await world.check("other", revised=True)

    test()


def test_a_declared_time_that_comes_too_early_rolls_back(
    tmp_path: Path, zookeeper: Ensemble
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper, differs_at=6) as world:
            await world.request("other", differs_from=6)
            c = await world.ended()
            assert c.stage is Stage.ROLLED_BACK
            assert "declare a later time" in c.reason
            await world.check()

    test()


def test_an_abort_rolls_back_and_another_cutover_may_follow(
    tmp_path: Path, zookeeper: Ensemble
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper) as world:
            await world.request("better", intervals=1000)
            while (await world.turn()).stage is not Stage.VERIFYING:
                pass
            found = await asyncio.to_thread(world.deployment.read, NAME)
            assert found is not None
            aborted = replace(Cutover.decoded(found.value), aborted=True)
            await asyncio.to_thread(world.deployment.write, NAME, aborted.encoded(), found.version)
            c = await world.ended()
            assert (c.stage, c.reason) == (Stage.ROLLED_BACK, "it was aborted")
            await world.request("better")
            assert (await world.ended()).stage is Stage.DONE
            await world.check()

    test()


def test_who_does_not_lead_any_more_changes_nothing(tmp_path: Path, zookeeper: Ensemble) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper) as world:
            await world.request("better")
            old, term = world.leaders.session, world.leaders.term
            zombie = world.leaders.cutting
            # Its session is over and it does not know: as after a pause.
            await asyncio.to_thread(old.close)
            await asyncio.to_thread(world.leaders.begin)
            zombie._deployment = world.deployment
            before = await world.value()
            with pytest.raises(ConflictError):
                await asyncio.to_thread(zombie.tick, term)
            assert await world.value() == before
            assert (await world.ended()).stage is Stage.DONE

    test()


def test_a_merge_that_cannot_be_looked_at_is_waited_for_and_then_given_up(
    tmp_path: Path, zookeeper: Ensemble
) -> None:
    @bounded
    async def test() -> None:
        async with worlds(tmp_path, zookeeper) as world:
            await world.request("better", merge="nowhere", timeout=5.0)
            c = await world.ended()
            assert c.stage is Stage.ROLLED_BACK
            assert "merge 'nowhere' has not begun" in c.reason
            assert await world.plans() == ["old"]

    test()
