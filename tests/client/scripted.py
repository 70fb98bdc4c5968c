"""A peer without a network: it answers as the test says, and remembers what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from lmerge.client import Retry
from lmerge.v1 import replica_pb2

Script = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]


class ManualTime:
    """A clock that moves only when somebody sleeps, and records for how long.

    The alarm of an answer that comes in time is cancelled: it never counts.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds >= 30:  # the bound on an answer: scripted peers answer, or never do
            await asyncio.Event().wait()
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def retry(self, patience_s: float | None = None) -> Retry:
        return Retry(patience_s=patience_s, sleep=self.sleep, clock=lambda: self.now)


class Call:
    """What a generated stub returns, as far as the clients use it."""

    def __init__(self, answers: AsyncIterator[Any]) -> None:
        self._answers = answers

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._answers

    def cancel(self) -> None:
        pass


class ReplicaStubs:
    """Takes one script for each call, in order; the last one again and again."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.told: list[list[Any]] = []  # for each call, everything that the client sent

    def Attach(self, requests: AsyncIterator[Any], metadata: Any = ()) -> Call:  # noqa: N802
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        told: list[Any] = []
        self.told.append(told)

        async def recorded() -> AsyncIterator[Any]:
            async for request in requests:
                told.append(request)
                yield request

        return Call(script(recorded()))

    def kinds(self, call: int) -> list[str]:
        """What the client sent in a call: ``write 3``, ``commit 3`` and so on."""
        found = []
        for request in self.told[call]:
            kind = request.WhichOneof("request")
            number = getattr(getattr(request, kind), "epoch", None)
            found.append(kind if number is None else f"{kind} {number}")
        return found


def welcome(next_epoch: int | None = None, **more: Any) -> replica_pb2.AttachResponse:
    values: dict[str, Any] = {
        "protocol_version": 1,
        "generation": "g",
        "incarnation": 7,
        "state": "joined",
    }
    said = replica_pb2.Welcome(**{**values, **more})
    if next_epoch is not None:
        said.next_epoch = next_epoch
    return replica_pb2.AttachResponse(welcome=said)


def acknowledged(epoch: int) -> replica_pb2.AttachResponse:
    said = replica_pb2.Acknowledged(epoch=epoch, state="joined")
    return replica_pb2.AttachResponse(acknowledged=said)


def serving(first: replica_pb2.AttachResponse, acknowledge: Callable[[int], bool]) -> Script:
    """Welcomes; acknowledges commits, and breaks off at the first that it is not to."""

    async def script(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        await anext(requests)
        yield first
        async for request in requests:
            if request.WhichOneof("request") == "commit":
                if not acknowledge(request.commit.epoch):
                    raise ConnectionError("the network broke")
                yield acknowledged(request.commit.epoch)

    return script
