"""Replicas: each writes one physical stream, epoch by epoch, through crashes of its own.

What an epoch holds is decided once for a lineage (:meth:`Lineage.content`), as Spark's offset log
does it, so that whoever writes it again writes the same. An acknowledged epoch is noted, and no
later welcome may deny it.

A process that is replaced may stay as a zombie: it goes on writing, and must be refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lmerge.client import Acknowledgement, Retry, Share, Writer, stage
from lmerge.core.properties import Restriction
from lmerge.errors import (
    DetachedError,
    EpochOrderError,
    FencedError,
    LMergeError,
    UnavailableError,
)
from tests.oracle.tdb import Element, Key, Time
from tests.simulation.checks import SCHEMA, WrongError, batch_of, keys_of, number, time
from tests.simulation.loop import Process, spawn
from tests.simulation.network import Endpoint, Network

MERGE: Final = "m"
LIVES_MAX: Final = 60
ATTEMPTS_MAX: Final = 40


class Content(NamedTuple):
    """An epoch as it is written."""

    elements: list[Element]
    stable: Time | None
    skipped_before: int | None


@dataclass
class Lineage:
    """A physical stream, cut into epochs, and what is known of how far it got."""

    name: str
    epochs: list[list[Element]]
    first: int = 0  # the number of the first epoch
    from_time: Time | None = None
    acknowledged: int | None = None
    follows_feedback: bool = False
    ends_early: int | None = None  # so many epochs, then it leaves
    leaving: bool = False  # it has asked to
    contents: dict[int, Content] = field(default_factory=dict)
    _skipped: set[Key] = field(default_factory=set)
    _skipped_before: int | None = None

    @property
    def end(self) -> int:
        """The number behind the last epoch."""
        count = len(self.epochs) if self.ends_early is None else self.ends_early
        return self.first + count

    def content(self, epoch: int, horizon: int | None) -> Content:
        """What the epoch holds: from the first asking on, always the same."""
        if epoch not in self.contents:
            elements = self.epochs[epoch - self.first]
            if self.follows_feedback and horizon is not None:
                self._skip(epoch, horizon)
            data = [e for e in elements if e[0] != "stable" and (e[1], e[2]) not in self._skipped]
            stables = [e[1] for e in elements if e[0] == "stable"]
            stable = stables[-1] if stables else None
            self.contents[epoch] = Content(data, stable, self._skipped_before)
        return self.contents[epoch]

    def _skip(self, epoch: int, horizon: int) -> None:
        """Events that end before the horizon, whatever is said of them, and are yet unheard of."""
        to_come = [e for each in self.epochs[epoch - self.first :] for e in each]
        said = [e for each in self.epochs[: epoch - self.first] for e in each]
        latest: dict[Key, Time] = {}
        for e in to_come:
            if e[0] != "stable":
                key = (e[1], e[2])
                latest[key] = max(latest.get(key, e[2]), *e[3:])
        old = {key for key, end in latest.items() if end < time(horizon)}
        self._skipped |= old - keys_of(said)
        self._skipped_before = max(horizon, self._skipped_before or horizon)

    def count(self) -> tuple[int, int]:
        """Inserts and adjusts that were written."""
        kinds = [e[0] for n in range(self.first, self.end) for e in self.contents[n].elements]
        return kinds.count("insert"), kinds.count("adjust")


@dataclass(frozen=True)
class Habits:
    """How a replica writes."""

    pace: float  # mean seconds between epochs
    pipelined: float  # shares of epochs
    staged: float
    crashes: float  # per epoch
    zombies: float  # share of crashes
    aborts: float = 0.1


class Replica:
    """One stream of one server, over all its lives."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        network: Network,
        rng: random.Random,
        lineages: list[Lineage],
        habits: Habits,
        options: dict[str, Any],
        retry: Retry,
        *,
        calm: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.attached = asyncio.Event()
        self.lineage = lineages[0]
        self.gone = False  # it has left the merge
        self.lives = 0
        self.fenced = 0
        self.wrong: list[str] = []
        self._endpoint = endpoint
        self._network = network
        self._rng = rng
        self._lineages = lineages
        self._habits = habits
        self._options = options
        self._retry = retry
        self._calm = calm
        self._say = say
        self._incarnation = 0  # the newest that a welcome named
        self._welcomed = asyncio.Event()
        self._through = False
        self._zombies: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Write everything."""
        for lineage in self._lineages:
            self.lineage, self.gone = lineage, False
            while not await self._life(lineage):
                await asyncio.sleep(self._rng.expovariate(1.0))
        self._through = True
        self._welcomed.set()
        await asyncio.gather(*self._zombies)

    async def _life(self, lineage: Lineage) -> bool:
        """One process, until the stream is through (True), it crashed, or has to begin anew."""
        self.lives += 1
        if self.lives > LIVES_MAX:
            raise WrongError(f"{self.name} does not get through in {LIVES_MAX} lives")
        name = f"{self._endpoint.name}.{self.name}#{self.lives}"
        process = Process(name)
        writer = Writer(
            "simulation:1", MERGE, self.name, SCHEMA,
            lineage=lineage.name,
            from_time=None if lineage.from_time is None else number(lineage.from_time),
            properties=Restriction(self._options["restriction"]).requires,
            options=self._options,
            retry=self._retry,
            stubs=self._network.stubs(self._endpoint),
            instance=name,
        )  # fmt: skip
        work = spawn(process, self._write(writer, lineage), name)
        crash_after = self._rng.expovariate(self._habits.crashes) if self._habits.crashes else None
        if self._calm():
            crash_after = None
        await asyncio.wait((work,), timeout=crash_after)
        if work.done():
            process.crash(self._rng)
            self._network.client_died(process)
            try:
                work.result()
            except (EpochOrderError, FencedError, UnavailableError) as error:
                self._excuse(error)
                return False
            except DetachedError:
                if lineage.ends_early is None:
                    raise
                self.gone = True  # its life before heard nothing of it
            return True
        if writer.welcome is not None and self._rng.random() < self._habits.zombies:
            self._say(f"{name} becomes a zombie")
            work.cancel()
            haunting = self._haunt(process, writer)
            self._zombies.append(asyncio.get_running_loop().create_task(haunting))
        else:
            self._say(f"{name} crashes")
            process.crash(self._rng)
            self._network.client_died(process)
        return False

    def _excuse(self, error: LMergeError) -> None:
        """What can happen to a replica in order: it begins anew from its checkpoint."""
        self._say(f"{self.name} has to begin anew: {type(error).__name__}: {error}")
        if isinstance(error, EpochOrderError) and "was not staged here" not in str(error):
            raise WrongError(f"{self.name}: {error}") from error
        if isinstance(error, FencedError):
            # A hello of an earlier life came late, and was taken for a newer one.
            self.fenced += 1

    # -- writing --------------------------------------------------------------------------------

    async def _write(self, writer: Writer, lineage: Lineage) -> None:
        rng, habits = self._rng, self._habits
        welcome = await writer.attach()
        known = lineage.acknowledged
        if lineage.leaving and welcome.next_epoch is None:
            # It had left without hearing so, and with its `from` it is taken for a new stream.
            await writer.detach("enough")
            self.gone = True
            return
        if known is not None and (welcome.next_epoch is None or welcome.next_epoch <= known):
            raise WrongError(f"{self.name}: epoch {known} was acknowledged; now {welcome}")
        self._incarnation = max(self._incarnation, welcome.incarnation)
        self._welcomed.set()
        self._welcomed = asyncio.Event()
        self.attached.set()
        epoch = (
            lineage.first if known is None else max(lineage.first, known + 1 - rng.randint(0, 2))
        )
        while epoch < lineage.end:
            await asyncio.sleep(rng.expovariate(1 / habits.pace))
            content = lineage.content(epoch, writer.horizon)
            style = rng.random()
            if style < habits.staged and writer.next_epoch == epoch:
                # Stage calls would overtake commits that are on their way.
                await writer.drain()
                await self._write_in_parts(writer, lineage, epoch, content)
            else:
                await self._write_plainly(writer, epoch, content)
                done = await self._commit(writer, epoch, content)
                done.add_done_callback(lambda done: self._note(lineage, done))
                if style > 1 - habits.pipelined:
                    epoch += 1
                    continue
                await asyncio.shield(done)
            await writer.drain()
            epoch += 1
        await writer.drain()
        if lineage.ends_early is not None:
            lineage.leaving = True
            await writer.detach("enough")
            self.gone = True
            return
        await writer.close()

    def _note(self, lineage: Lineage, done: asyncio.Future[Acknowledgement]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        said = done.result()
        lineage.acknowledged = max(said.epoch, lineage.acknowledged or 0)
        if said.state == "quarantined":
            self.wrong.append(f"{self.name} is quarantined: {said.reason}")

    async def _write_plainly(self, writer: Writer, epoch: int, content: Content) -> None:
        rng = self._rng
        if rng.random() < self._habits.aborts and writer.next_epoch == epoch:
            await writer.write(batch_of(_poison(content)), epoch=epoch)
            await writer.abort()
        for piece in _pieces(rng, content.elements, rng.randint(1, 3)):
            await writer.write(batch_of(piece), epoch=epoch)

    async def _commit(
        self, writer: Writer, epoch: int, content: Content, **parts: Any
    ) -> asyncio.Future[Acknowledgement]:
        stable = None if content.stable is None else number(content.stable)
        return await writer.commit(
            epoch, stable, content.skipped_before, {"lives": self.lives}, wait=False, **parts
        )

    async def _write_in_parts(
        self, writer: Writer, lineage: Lineage, epoch: int, content: Content
    ) -> None:
        rng = self._rng
        shares = _pieces(rng, content.elements, rng.randint(1, 3))
        if rng.random() < 0.3:  # what the session itself writes comes first in the merge
            await writer.write(batch_of(shares.pop(0)), epoch=epoch)
        staged_rows = sum(map(len, shares))
        tasks = [
            self._stage(writer, epoch, partition, share) for partition, share in enumerate(shares)
        ]
        attempts = await asyncio.gather(*tasks)
        parts = list(enumerate(attempts))
        rows = staged_rows if rng.random() < 0.5 else None
        done = await self._commit(writer, epoch, content, parts=parts, part_rows=rows)
        done.add_done_callback(lambda done: self._note(lineage, done))
        await asyncio.shield(done)

    async def _stage(
        self, writer: Writer, epoch: int, partition: int, elements: list[Element]
    ) -> int:
        """A task with its attempts: the one that counts."""
        rng = self._rng
        for attempt in range(ATTEMPTS_MAX):
            share = Share(MERGE, self.name, writer.incarnation, epoch, partition, attempt)
            fails = rng.random() < 0.2
            batches = _broken(elements) if fails else _slow(rng, elements)
            try:
                staged = await stage(
                    "simulation:1", share, SCHEMA, batches,
                    stubs=self._network.stubs(self._endpoint),
                )  # fmt: skip
            except (UnavailableError, _TaskError):
                await asyncio.sleep(rng.expovariate(1.0))
                continue
            if staged.rows != len(elements):
                raise WrongError(f"{self.name}: {len(elements)} rows staged, and {staged} there")
            if rng.random() < 0.15:
                continue  # the task's host is lost: its result is not known
            return attempt
        raise UnavailableError("no attempt succeeded")

    # -- zombies --------------------------------------------------------------------------------

    async def _haunt(self, process: Process, writer: Writer) -> None:
        """Goes on writing when somebody else has taken over."""
        assert writer.welcome is not None
        own = writer.welcome.incarnation
        while self._incarnation <= own and not self._through:
            await self._welcomed.wait()
        if self._incarnation > own:
            work = spawn(process, _write_poison(writer))
            try:
                acknowledged = await work
                self.wrong.append(f"a zombie of {self.name} was heard: {acknowledged}")
            except (FencedError, DetachedError, EpochOrderError) as error:
                self._say(f"{process.name}, a zombie, is refused: {error}")
            except UnavailableError as error:
                self._say(f"{process.name}, a zombie, heard nothing: {error}")
        process.crash(self._rng)
        self._network.client_died(process)


async def _write_poison(writer: Writer) -> Acknowledgement:
    await writer.write(batch_of([("insert", "zombie", 1, 2)]))
    return await writer.commit(stable=None)


class _TaskError(Exception):
    """A task of an epoch fails by itself."""


def _poison(content: Content) -> list[Element]:
    """What is written to an epoch and then aborted."""
    return [("insert", "aborted", 0, 1), *content.elements[:1]]


def _pieces(rng: random.Random, elements: list[Element], count: int) -> list[list[Element]]:
    cuts = sorted(rng.randint(0, len(elements)) for _ in range(count - 1))
    edges = [0, *cuts, len(elements)]
    return [elements[low:high] for low, high in pairwise(edges)]


async def _slow(rng: random.Random, elements: list[Element]) -> AsyncIterator[pa.RecordBatch]:
    for piece in _pieces(rng, elements, 2):
        await asyncio.sleep(rng.expovariate(10))
        yield batch_of(piece)


async def _broken(elements: list[Element]) -> AsyncIterator[pa.RecordBatch]:
    yield batch_of([("insert", "broken", 0, 1), *elements[:1]])
    await asyncio.sleep(0.1)
    raise _TaskError("a task fails")
