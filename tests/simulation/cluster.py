"""One seed: servers, replicas and consumers, what befalls them, and whether all is well.

:func:`run` draws a scenario from the seed, lets it happen until everybody is through, and raises
when something is wrong. The same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from lmerge.client import Retry
from lmerge.client.reader import Delivery
from lmerge.errors import UnavailableError
from lmerge.server.calls import Desk
from lmerge.server.config import Limits, ServerConfig
from lmerge.server.hub import Hub, Served
from lmerge.server.security import Guard
from tests.oracle.runs import _Presenter
from tests.oracle.tdb import Element, Tdb
from tests.simulation.checks import Transcript, WrongError
from tests.simulation.consumers import Consumer, Tastes
from tests.simulation.loop import Process, StuckError, VirtualLoop, spawn
from tests.simulation.network import Endpoint, Network
from tests.simulation.replicas import MERGE, Habits, Lineage, Replica

DELIVERIES: Final[tuple[Delivery, ...]] = ("eager", "consistent", "final")
TROUBLE_SECONDS: Final = 60.0  # after so long nothing more befalls anybody
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run was like."""

    seed: int
    seconds: float  # virtual
    steps: int
    entries: int  # that readers got
    elements: int  # that consumers judged
    lives: int  # of replicas and consumers
    starts: int  # of servers
    faults: int  # of the network

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.seconds:.0f} s, {self.steps} steps, {self.entries} entries,"
            f" {self.elements} elements, {self.lives} lives, {self.starts} starts,"
            f" {self.faults} faults"
        )


class Server:
    """A merge server that crashes and returns, with the same directory."""

    def __init__(
        self, name: str, directory: Path, limits: Limits, rng: random.Random, network: Network
    ) -> None:
        self.endpoint = Endpoint(name)
        self.starts = 0
        self.hub: Hub | None = None
        self._config = ServerConfig(data_dir=directory, durability="flush", limits=limits)
        self._rng = rng
        self._network = network
        self._process = Process(name)

    @property
    def served(self) -> Served | None:
        """The merge, when the server is there and has it."""
        return None if self.hub is None else self.hub.merges.get(MERGE)

    async def start(self) -> None:
        """Opens what the directory has, and listens."""
        self.starts += 1
        process = Process(f"{self.endpoint.name}#{self.starts}")
        self._process = process
        opening = spawn(process, self._open())
        hub = await opening
        if hub.faults:
            raise WrongError(f"{self.endpoint.name} cannot be opened: {hub.faults}")
        self.hub = hub
        self.endpoint.server = (process, Desk(hub, Guard(self._config)))

    async def _open(self) -> Hub:
        hub = Hub(self._config)
        # Before it opens anything: it may die in the middle of that.
        self._process.opened.append(_Lock(hub))
        await hub.open()
        return hub

    def crash(self) -> None:
        """Gone in the middle of whatever it was doing."""
        self.endpoint.server = None
        self.hub = None
        self._process.crash(self._rng)
        self._network.server_died(self._process)

    async def stop(self) -> None:
        """As on SIGTERM."""
        hub, self.endpoint.server, self.hub = self.hub, None, None
        if hub is not None:
            hub.end_sessions(UnavailableError("the server is stopping: try again soon"))
            await asyncio.sleep(self._rng.expovariate(2.0))
            await spawn(self._process, hub.close())
        self.crash()

    async def snapshot(self) -> None:
        """One more than it takes by itself."""
        served = self.served
        if served is not None:
            work = spawn(self._process, served.host.snapshot())
            await asyncio.wait((work,))
            if not work.cancelled():
                work.result()


class _Lock:
    """The lock of a hub's directory, which a process that dies lets go of."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def abandon(self) -> None:
        if self._hub._lock >= 0:
            os.close(self._hub._lock)
            self._hub._lock = -1


class Cluster:
    """Everybody of one seed."""

    def __init__(self, seed: int, directory: Path, say: Say) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"simulation/{seed}")
        self.faults = 0
        self._say = say
        self._calm = False
        self.transcript = Transcript()
        self.network = Network(rng, rng.choice((0.001, 0.02, 0.2)), self.transcript.tap)
        self._retry = Retry(
            first_s=0.1, most_s=5.0, patience_s=600.0,
            sleep=asyncio.sleep, clock=self._now, random=rng,
        )  # fmt: skip
        self._draw_truth()
        self._limits = self._draw_limits()
        names = ("east", "west") if rng.random() < 0.3 else ("east",)
        self.servers = [
            Server(name, directory / name, self._limits, rng, self.network) for name in names
        ]
        self.replicas = [r for server in self.servers for r in self._draw_replicas(server)]
        self.consumers = self._draw_consumers()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def say(self, text: str) -> None:
        """For the log."""
        self._say(f"{self._now():8.3f}  {text}")

    # -- drawing --------------------------------------------------------------------------------

    def _draw_truth(self) -> None:
        rng = self.rng
        self.restriction = rng.choice(("R0", "R1", "R2", "R3", "R3", "R3", "R4", "R4"))
        size, span = rng.choice((4, 12, 30, 50)), rng.choice((8, 25, 60))
        self._presenter = _Presenter(rng, self.restriction, size, span, rng.random() < 0.8)
        self.truth: Tdb = Counter(self._presenter.truth)
        self._span = span
        self.options: dict[str, Any] = {"restriction": self.restriction}
        if self.restriction in ("R3", "R4"):
            policies = ("first", "first", "leader", "half_frozen", "quorum(0.5)", "final")
            self.options["insert_policy"] = rng.choice(policies)
            self.options["adjust_policy"] = rng.choice(("lazy", "eager"))
        self.options["stable_lag"] = rng.choice((0, 0, 0, 3))

    def _draw_limits(self) -> Limits:
        rng = self.rng
        self._retires = rng.random() < 0.15
        return Limits(
            window_bytes=rng.choice((16 << 10, 64 << 10, 1 << 20)),
            retention_bytes=rng.choice((4 << 10, 16 << 10)) if self._retires else 1 << 30,
            memory_bytes=rng.choice((1 << 10, 8 << 10, 1 << 20)),
            segment_bytes=rng.choice((2 << 10, 8 << 10, 1 << 20)),
            snapshot_bytes=rng.choice((1 << 10, 8 << 10, 1 << 20)),
        )

    def _draw_replicas(self, server: Server) -> list[Replica]:
        rng = self.rng
        count = rng.choice((1, 2, 2, 3, 4))
        pace = rng.choice((0.2, 1.0, 3.0))
        found = []
        for number in range(count):
            lineages = self._draw_lineages(f"s{number}", backbone=number == 0)
            habits = Habits(
                pace=pace * rng.choice((0.5, 1.0, 2.0)),
                pipelined=rng.choice((0.0, 0.5, 1.0)),
                staged=rng.choice((0.0, 0.0, 0.3, 1.0)),
                crashes=rng.choice((0.0, 0.03, 0.1)),
                zombies=rng.choice((0.0, 0.5, 1.0)),
            )
            replica = Replica(
                f"s{number}", server.endpoint, self.network, rng, lineages, habits, self.options,
                self._retry, calm=self._is_calm, say=self.say,
            )  # fmt: skip
            found.append(replica)
        return found

    def _draw_lineages(self, name: str, *, backbone: bool) -> list[Lineage]:
        rng = self.rng
        lives = 1 if backbone else rng.choice((1, 1, 2))
        found = []
        for number in range(lives):
            joins = not backbone and rng.random() < 0.5
            since = rng.randint(0, self._span) if joins else None
            epochs = _cut(rng, self._presenter.stream(since, -1, None))
            lineage = Lineage(f"{name}/{number}", epochs, rng.choice((0, 0, 7)), since)
            lineage.follows_feedback = self.restriction != "R1" and rng.random() < 0.3
            if not backbone and (number < lives - 1 or rng.random() < 0.2):
                lineage.ends_early = rng.randint(0, len(epochs))
            found.append(lineage)
        return found

    def _draw_consumers(self) -> list[Consumer]:
        rng = self.rng
        found = []
        for server in self.servers:
            for number in range(rng.randint(2, 5)):
                tastes = Tastes(
                    delivery=DELIVERIES[number % 3] if number < 3 else rng.choice(DELIVERIES),
                    start=rng.choice(("beginning", "beginning", "now")),
                    subscription=rng.random() < 0.4,
                    crashes=rng.choice((0.0, 0.05, 0.2)),
                    slowness=rng.choice((0.0, 0.05, 0.5)),
                    saves=rng.choice((0.1, 0.5, 1.0)),
                    delay=rng.choice((0.0, rng.uniform(0, TROUBLE_SECONDS))),
                    may_be_retired=self._retires,
                )
                found.append(self._consumer(f"c{number}", [server.endpoint], tastes))
        if len(self.servers) > 1:
            tastes = Tastes(
                delivery=rng.choice(("eager", "final")),
                start="beginning",
                subscription=False,
                crashes=rng.choice((0.0, 0.05)),
                slowness=rng.choice((0.0, 0.1)),
                saves=0.0,
                merged=True,
                may_be_retired=self._retires,
            )
            found.append(self._consumer("both", [s.endpoint for s in self.servers], tastes))
        return found

    def _consumer(self, name: str, endpoints: list[Endpoint], tastes: Tastes) -> Consumer:
        return Consumer(
            f"{endpoints[0].name}.{name}", endpoints, self.network, self.rng, tastes, self.truth,
            self.options, self._retry, calm=self._is_calm, say=self.say,
        )  # fmt: skip

    def _is_calm(self) -> bool:
        return self._calm

    # -- what happens ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Everything, from the first start to the last check."""
        self.say(f"{self.restriction} {self.options} {self._limits}")
        for server in self.servers:
            await server.start()
        work: list[asyncio.Task[None]] = []
        for server in self.servers:
            mine = [r for r in self.replicas if r._endpoint is server.endpoint]
            work += [asyncio.create_task(r.run()) for r in mine[:1]]
            work += [asyncio.create_task(self._after(mine[0], r)) for r in mine[1:]]
        work += [asyncio.create_task(c.run()) for c in self.consumers]
        trouble = [asyncio.create_task(self._trouble(server)) for server in self.servers]
        trouble.append(asyncio.create_task(self._disturb()))
        everything = asyncio.gather(*work, *trouble)
        try:
            await everything
        finally:
            for task in (*work, *trouble):
                task.cancel()
        await self._check_end()

    async def _after(self, backbone: Replica, replica: Replica) -> None:
        """The first stream fixes where the output begins; the others come later."""
        await backbone.attached.wait()
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.uniform(0, TROUBLE_SECONDS / 2))
        await replica.run()

    async def _disturb(self) -> None:
        rng = self.rng
        rate = rng.choice((0.0, 0.3, 1.0, 4.0))
        while rate and self._now() < TROUBLE_SECONDS:
            await asyncio.sleep(rng.expovariate(rate))
            what = self.network.disturb()
            if what:
                self.faults += 1
                self.say(what)
        await asyncio.sleep(max(0.0, TROUBLE_SECONDS - self._now()))
        self._calm = True

    async def _trouble(self, server: Server) -> None:
        rng, name = self.rng, server.endpoint.name
        crashes, snapshots = rng.choice((0.0, 0.05, 0.3)), rng.choice((0.0, 0.2, 1.0))
        total = crashes + snapshots
        while total and self._now() < TROUBLE_SECONDS:
            await asyncio.sleep(rng.expovariate(total))
            if rng.random() * total < snapshots:
                await server.snapshot()
                continue
            if rng.random() < 0.8:
                self.say(f"{name} crashes")
                server.crash()
            else:
                self.say(f"{name} stops")
                await server.stop()
            await asyncio.sleep(rng.choice((0.01, 1.0, rng.uniform(0, 20))))
            while rng.random() < 0.1:  # it does not even get up
                starting = asyncio.create_task(server.start())
                await asyncio.sleep(rng.expovariate(1 / 0.005))
                server.crash()
                await asyncio.wait((starting,))
                if not starting.cancelled():
                    starting.result()
                    server.crash()
            await server.start()
            self.say(f"{name} is back")

    # -- checks ---------------------------------------------------------------------------------

    async def _check_end(self) -> None:
        for replica in self.replicas:
            if replica.wrong:
                raise WrongError("; ".join(replica.wrong))
        if self.network.defects:
            raise WrongError("; ".join(self.network.defects))
        for server in self.servers:
            self._check_streams(server)
            first = self._limits.retention_bytes == 1 << 30
            # Once more after a last crash: from the log alone.
            server.crash()
            await server.start()
            self._check_streams(server)
            tastes = Tastes(
                "eager", "beginning" if first else "now", False, 0.0, 0.0, 0.0,
                may_be_retired=self._retires,
            )  # fmt: skip
            await self._consumer("last", [server.endpoint], tastes).run()
            await server.stop()

    def _check_streams(self, server: Server) -> None:
        """Every epoch of every stream counts, once."""
        served = server.served
        if served is None:
            raise WrongError(f"{server.endpoint.name} has lost its merge")
        if served.host.fault:
            raise WrongError(served.host.fault)
        known = {s.name: s for s in served.host.state.merge.statistics().streams}
        for replica in (r for r in self.replicas if r._endpoint is server.endpoint):
            lineage, record = replica.lineage, served.host.state.streams[replica.name]
            if record.attached is replica.gone:
                raise WrongError(f"{replica.name}: gone is {replica.gone}, and {record}")
            if replica.gone:
                continue
            wanted, found = lineage.count(), known[replica.name]
            if (found.inserts, found.adjusts) != wanted or record.last_epoch != lineage.end - 1:
                raise WrongError(f"{replica.name}: wrote {wanted}, {lineage.end}; {found} {record}")
            honest = lineage.from_time is None
            if found.state == "quarantined" or (honest and (found.divergent or found.conflicts)):
                raise WrongError(f"{replica.name} is held for wrong: {found}")

    def outcome(self, loop: VirtualLoop) -> Outcome:
        """What it was like."""
        everybody: list[Replica | Consumer] = [*self.replicas, *self.consumers]
        return Outcome(
            self.seed,
            loop.now,
            loop.steps,
            self.transcript.entries,
            sum(c.elements for c in self.consumers),
            sum(each.lives for each in everybody),
            sum(server.starts for server in self.servers),
            self.faults,
        )


def _cut(rng: random.Random, elements: list[Element]) -> list[list[Element]]:
    """A stream in epochs."""
    most = rng.choice((2, 6, 15))
    epochs = []
    while elements:
        size = rng.randint(1, most)
        epochs.append(elements[:size])
        elements = elements[size:]
    return epochs


def run(seed: int, say: Say = lambda text: None) -> Outcome:
    """One seed; raises when something is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="lmerge-simulation-", dir=_scratch()))
    rng = random.Random(f"loop/{seed}")
    loop = VirtualLoop(rng)
    surprises: list[str] = []
    loop.set_exception_handler(lambda _, context: surprises.append(_described(context)))
    collecting = gc.isenabled()
    gc.disable()  # so that nothing is finalized at a time of its own
    logging.disable(logging.CRITICAL if say.__name__ == "<lambda>" else logging.INFO)
    try:
        with (
            mock.patch("secrets.token_hex", lambda n: rng.randbytes(n).hex()),
            mock.patch("secrets.token_bytes", rng.randbytes),
            mock.patch("os.urandom", rng.randbytes),
        ):
            cluster = loop.run_until_complete(_run(seed, directory, say))
            loop.run_until_complete(_settle())
    except StuckError:
        for task in sorted(asyncio.all_tasks(loop), key=hash):
            say(f"waits: {task.get_name()}: {' < '.join(_places(task))}")
        raise
    finally:
        logging.disable(logging.NOTSET)
        _close(loop)
        if collecting:
            gc.enable()
        shutil.rmtree(directory, ignore_errors=True)
    if surprises:
        raise WrongError("; ".join(surprises))
    return cluster.outcome(loop)


async def _run(seed: int, directory: Path, say: Say) -> Cluster:
    cluster = Cluster(seed, directory, say)
    await cluster.run()
    return cluster


async def _settle() -> None:
    """Lets those who were cancelled end."""
    await asyncio.sleep(100)


def _close(loop: VirtualLoop) -> None:
    loop.set_exception_handler(lambda _, context: None)
    for _ in range(3):
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _places(task: asyncio.Task[Any]) -> list[str]:
    """Where a task waits, innermost first."""
    places: list[str] = []
    waiting: Any = task.get_coro()
    while hasattr(waiting, "cr_frame") or hasattr(waiting, "ag_frame"):
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return places[::-1]


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {type(error).__name__}: {error}"


def _scratch() -> str | None:
    """Memory, where there is some: the files need not outlive anything."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
