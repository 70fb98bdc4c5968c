"""Consumers: each reads the merged stream, judges it, crashes, and resumes as it should.

What a consumer has made of its items and its position are saved together; after a crash it goes on
from there: with the position, or by its subscription's name (then it may be given again what it
had, and leaves that out).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lmerge.client import Item, MergedReader, Position, Reader, Retry, Snapshot
from lmerge.client.reader import Delivery
from lmerge.errors import LMergeError, NotFoundError, RetiredError, UnavailableError
from tests.oracle.tdb import Tdb
from tests.simulation.checks import View, WrongError
from tests.simulation.loop import Process, spawn
from tests.simulation.network import Endpoint, Network
from tests.simulation.replicas import MERGE


@dataclass(frozen=True)
class Tastes:
    """How a consumer reads."""

    delivery: Delivery
    start: Literal["beginning", "now"]
    subscription: bool
    crashes: float  # per second
    slowness: float  # mean seconds for a group; 0: none
    saves: float  # share of groups after which it saves
    delay: float = 0.0  # before it begins
    merged: bool = False  # over all servers at once
    may_be_retired: bool = False


class Consumer:
    """One consumer over all its lives."""

    def __init__(
        self,
        name: str,
        endpoints: list[Endpoint],
        network: Network,
        rng: random.Random,
        tastes: Tastes,
        truth: Tdb,
        options: dict[str, Any],
        retry: Retry,
        *,
        calm: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.lives = 0
        self.retired = 0
        self._endpoints = endpoints
        self._network = network
        self._rng = rng
        self._tastes = tastes
        self._truth = truth
        self._restriction: str = options["restriction"]
        self._finals = int(options.get("insert_policy") == "final")
        self._retry = retry
        self._calm = calm
        self._say = say
        self._start: Literal["beginning", "now"] = tastes.start
        self._view = self._new_view()
        self._saved: tuple[View, Position | None] = (self._new_view(), None)

    @property
    def elements(self) -> int:
        """How many its database is made of."""
        return self._view.elements

    def _new_view(self) -> View:
        finals = self._finals + (self._tastes.delivery == "final")
        restriction = self._restriction
        if finals or self._tastes.merged or self._start == "now":
            # Snapshots, final results and merges of merges are not in order.
            restriction = "R3" if restriction in ("R0", "R2", "R3") else "R4"
        return View(self._truth, restriction, finals=finals)

    async def run(self) -> None:
        """Read everything."""
        await asyncio.sleep(self._tastes.delay)
        while not await self._life():
            await asyncio.sleep(self._rng.expovariate(1.0))

    async def _life(self) -> bool:
        self.lives += 1
        process = Process(f"{self.name}#{self.lives}")
        work = spawn(process, self._read())
        crashes = self._tastes.crashes
        timeout = None if self._calm() or not crashes else self._rng.expovariate(crashes)
        await asyncio.wait((work,), timeout=timeout)
        ended = work.done()
        process.crash(self._rng)
        self._network.client_died(process)
        if not ended:
            self._say(f"{process.name} crashes")
            return False
        try:
            work.result()
        except (NotFoundError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and not self._tastes.merged:
                raise WrongError(f"{self.name} gave up: {error}") from error
            return False
        except RetiredError as error:
            self._begin_anew(error)
            # Several servers' outputs from now have no one time since when they are whole, which a
            # verdict would need.
            return self._tastes.merged
        return True

    def _begin_anew(self, error: LMergeError) -> None:
        self._say(f"{self.name}: {error}")
        if not self._tastes.may_be_retired:
            raise WrongError(f"{self.name} lost its place: {error}") from error
        self.retired += 1
        self._start = "now"
        self._saved = (self._new_view(), None)

    # -- reading --------------------------------------------------------------------------------

    async def _read(self) -> None:
        saved, position = self._saved
        self._view = saved.copy()
        if self._tastes.merged:
            await self._read_merged()
            return
        named = f"{self.name}-{self.retired}" if self._tastes.subscription else None
        reader = Reader(
            "simulation:1",
            MERGE,
            start=self._start if position is None or named else position,
            delivery=self._tastes.delivery,
            subscription=named,
            retry=self._retry,
            stubs=self._network.stubs(self._endpoints[0]),
        )
        group: list[Item] = []
        if self._view.ended:
            return
        async for item in reader:
            group.append(item)
            whole = item.last if isinstance(item, Snapshot) else item.complete
            if not whole and self._tastes.delivery != "eager":
                continue
            if isinstance(item, Snapshot) and not item.last:
                continue
            if item.position is None:
                raise WrongError(f"{self.name}: {item} has no position")
            self._take(group, item.position)
            group = []
            if self._view.ended:
                break
            await self._pause()
            await self._save(reader, item.position)
        await reader.close()

    def _take(self, group: list[Item], position: Position) -> None:
        view, after = self._view, position.sequence
        if isinstance(group[-1], Snapshot):
            self._view = view = self._new_view()  # its subscription is not known: from now
        elif view.at is not None and after <= view.at:
            if not self._tastes.subscription:
                raise WrongError(f"{self.name} was at {view.at} and is given {after} again")
            return
        elif self._tastes.delivery != "final" and after != (view.at or 0) + len(group):
            raise WrongError(f"{self.name}: {len(group)} items lead from {view.at} to {after}")
        for item in group:
            view.take(item)
        view.at = after

    async def _pause(self) -> None:
        if self._tastes.slowness:
            await asyncio.sleep(self._rng.expovariate(1 / self._tastes.slowness))

    async def _save(self, reader: Reader, position: Position) -> None:
        if self._rng.random() >= self._tastes.saves or self._view.at != position.sequence:
            return
        self._saved = (self._view.copy(), position)
        if self._tastes.subscription:
            await reader.acknowledge(position, wait=self._rng.random() < 0.3)

    async def _read_merged(self) -> None:
        self._view = self._new_view()  # a merged reader has no position to save
        reader = MergedReader(
            [f"simulation:{number + 1}" for number in range(len(self._endpoints))],
            MERGE,
            delivery=self._tastes.delivery,
            retry=self._retry,
            stubs=[self._network.stubs(endpoint) for endpoint in self._endpoints],
        )
        async for item in reader:
            self._view.take(item)
            if self._view.ended:
                break
            await self._pause()
        await reader.close()
