"""One run of the crash proof.

Three writers commit epochs to a real server process, two consumers read, and the server is killed
again and again at instants that a seed chooses, and started anew on the same data. Afterwards:

- every entry of the output that any consumer ever saw is, at its position, what the last server
  still says (nothing changed), and each consumer saw every position once (nothing lost or twice);
- the output reconstitutes, by the oracle, to the truth that the load computes without a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmerge.client import Elements, Position, Reader, Retry, StablePoint, Writer
from lmerge.times import INFINITY
from tests.crash import load
from tests.oracle.tdb import INF, reconstitute

WRITERS = 3
MERGE = "proof"
READY_SECONDS = 120.0
PROGRESS_SECONDS = 120.0
SNAPSHOT_BYTES = 64 << 10  # small, so that many kills fall near one
SEGMENT_BYTES = 32 << 10
CONFIG = f"""
[limits]
snapshot_bytes = {SNAPSHOT_BYTES}
segment_bytes = {SEGMENT_BYTES}
memory_bytes = {1 << 20}

[[merges]]
name = "{MERGE}"
restriction = "R3"
schema = {{ key = "int64", text = "string" }}
"""

RETRY = Retry(first_s=0.02, most_s=0.2, patience_s=READY_SECONDS)


class ProofError(AssertionError):
    """The server lost, repeated or changed something."""


class ServerProcess:
    """A real server on one port and one directory, through many lives."""

    def __init__(self, directory: Path, durability: str = "fsync") -> None:
        self._directory = directory
        self._durability = durability
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None
        self.log: list[str] = []
        self._reading: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._said = asyncio.Event()

    @property
    def target(self) -> str:
        """Where clients find it, in every life."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Starts a process, and returns when it says that it listens."""
        config = self._directory / "server.toml"
        config.write_text(CONFIG, "utf-8")
        self._listening.clear()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lmerge", "server", "--config", str(config),
            "--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self._directory / "data"),
            "--durability", self._durability,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read_log(self.process))
        listening = asyncio.create_task(self._listening.wait())
        try:
            await asyncio.wait(
                (listening, self._reading),
                timeout=READY_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            listening.cancel()
        if not self._listening.is_set():
            raise ProofError("the server did not start:\n" + "\n".join(self.log[-40:]))

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            text = line.decode("utf-8", "replace").rstrip()
            self.log.append(text)
            self._said.set()
            if "listening on 127.0.0.1:" in text:
                self.port = int(text.partition("listening on 127.0.0.1:")[2].split()[0])
                self._listening.set()

    async def says(self, text: str, after: int) -> None:
        """Waits until its log has a line with ``text``, past so many lines."""
        async with asyncio.timeout(PROGRESS_SECONDS):
            while not any(text in line for line in self.log[after:]):
                self._said.clear()
                await self._said.wait()

    async def send(self, number: signal.Signals) -> None:
        """Sends a signal; waits for the end if it is one that ends."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            await self.process.wait()
            assert self._reading is not None
            await self._reading

    async def end(self) -> None:
        """Ends the process, if there is one."""
        if self.process is not None and self.process.returncode is None:
            await self.send(signal.SIGKILL)


@contextlib.asynccontextmanager
async def server(directory: Path, durability: str = "fsync") -> AsyncIterator[ServerProcess]:
    """A started server, which is ended whatever happens."""
    process = ServerProcess(directory, durability)
    try:
        await process.start()
        yield process
    finally:
        await process.end()


@dataclass
class Seen:
    """What a consumer has seen, by position."""

    who: str
    entries: dict[int, Any] = field(default_factory=dict)
    last: int = 0
    stable: float = -INF

    def take(self, item: Any, first: int) -> None:
        """One more item; ``first`` is the position before it."""
        at = item.position.sequence
        if at != first + 1:
            raise ProofError(f"{self.who}: after entry {first} came entry {at}")
        said = content(item)
        if self.entries.setdefault(at, said) != said:
            raise ProofError(f"{self.who}: entry {at} has changed: {self.entries[at]} → {said}")
        self.last = max(self.last, at)


def content(item: Any) -> Any:
    """What an item says, comparable."""
    if isinstance(item, StablePoint):
        return ("stable", item.vc)
    assert isinstance(item, Elements), item
    return tuple(tuple(row.values()) for row in item.batch.to_pylist())


class Proof:
    """The run: load, consumers and kills."""

    def __init__(self, process: ServerProcess, seed: int) -> None:
        self.process = process
        self.seed = seed
        self.rng = random.Random(seed)
        self.eager = Seen("the eager consumer")
        self.named = Seen("the named consumer")
        self.enough = asyncio.Event()  # no new epochs
        self.epochs = [0] * WRITERS
        self.moved = asyncio.Condition()
        self.reader: Reader | None = None  # the eager consumer's
        self._agreed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # -- the parts ----------------------------------------------------------------------------

    async def write(self, number: int) -> None:
        """A writer: epochs until it is enough, then everything promised."""
        writer = Writer(
            self.process.target, MERGE, f"w{number}", load.SCHEMA,
            lineage=f"lineage-{number}", retry=RETRY,
        )  # fmt: skip
        async with writer:
            epoch = 0
            while not (self._agreed.done() and epoch >= self._agreed.result()):
                await writer.write(load.batch(self.seed, number, epoch))
                wait: Any = epoch % 4 == 3
                await writer.commit(epoch=epoch, stable=load.stable(epoch), wait=wait)
                epoch += 1
                self.epochs[number] = epoch
                if self.enough.is_set() and not self._agreed.done():
                    self._agreed.set_result(max(self.epochs) + 1)
            await writer.write(load.closing(self.seed, number, epoch))
            await writer.commit(epoch=epoch, stable=INFINITY)

    async def stand_still(self, process: ServerProcess) -> None:
        """The server is stopped until its clients have given it up, and then goes on."""
        await process.send(signal.SIGSTOP)
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                while self.reader is not None and self.reader.connected:
                    await asyncio.sleep(0.1)
        finally:
            await process.send(signal.SIGCONT)

    async def read_eagerly(self) -> None:
        """A consumer that lives through all of it."""
        async with Reader(self.process.target, MERGE, retry=RETRY) as reader:
            self.reader = reader
            at = 0
            async for item in reader:
                self.eager.take(item, at)
                assert item.position is not None
                at = item.position.sequence
                async with self.moved:
                    self.moved.notify_all()
                if isinstance(item, StablePoint) and item.vc == INFINITY:
                    return

    async def read_by_name(self) -> None:
        """A consumer that keeps dying, and resumes from what it acknowledged last."""
        rng = random.Random(f"{self.seed}/named")
        acknowledged = 0
        while True:
            reader = Reader(
                self.process.target, MERGE, delivery="consistent", subscription="named", retry=RETRY
            )
            lives = rng.randrange(5, 200)
            async with reader:
                at = acknowledged
                async for item in reader:
                    assert item.position is not None
                    # Inside a group the position stays at the group's beginning.
                    if isinstance(item, StablePoint | Elements) and item.complete:
                        at = item.position.sequence
                        self.named.last = max(self.named.last, at)
                    if isinstance(item, StablePoint) and item.vc == INFINITY:
                        return
                    lives -= 1
                    if item.complete and rng.random() < 0.2:  # type: ignore[union-attr]
                        await reader.acknowledge(Position(item.position.generation, at))
                        acknowledged = at
                    if lives <= 0:
                        break

    # -- the run ------------------------------------------------------------------------------

    async def run(self, kills: int, strike: Callable[[ServerProcess], Any], say: Any) -> None:
        """Loads, kills, and checks; raises ProofError."""
        parts = [self.write(number) for number in range(WRITERS)]
        parts += [self.read_eagerly(), self.read_by_name()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            for kill in range(kills):
                await self._progress(tasks, self.rng.randrange(1, 30))
                await asyncio.sleep(self.rng.random() * 0.03)  # an instant of the seed's choice
                await strike(self.process)
                say(kill + 1, self.eager.last)
            await self._progress(tasks, 5)
            self.enough.set()
            done, pending = await asyncio.wait(
                tasks, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if pending:
                raise ProofError("the run does not come to its end: " + self._where())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.check()

    async def _progress(self, tasks: list[asyncio.Task[None]], entries: int) -> None:
        """Waits until the eager consumer has seen so many more entries."""
        wanted = self.eager.last + entries
        async with self.moved:
            for _ in range(int(PROGRESS_SECONDS)):
                for task in tasks:
                    if task.done():
                        task.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self.moved.wait_for(lambda: self.eager.last >= wanted)
                        return
        raise ProofError("nothing comes any more: " + self._where())

    def _where(self) -> str:
        log = "\n".join(self.process.log[-30:])
        return (
            f"epochs {self.epochs}, eager at {self.eager.last}, named at {self.named.last}\n{log}"
        )

    async def check(self) -> None:
        """What is left on the server against what was seen, and against the truth."""
        again = Seen("a new consumer")
        elements: list[tuple[Any, ...]] = []
        async with Reader(self.process.target, MERGE, retry=RETRY) as reader:
            at = 0
            async for item in reader:
                again.take(item, at)
                assert item.position is not None
                at = item.position.sequence
                elements += _elements(item)
                if isinstance(item, StablePoint) and item.vc == INFINITY:
                    break
        if again.entries != self.eager.entries:
            raise ProofError("the output has changed since it was first seen")
        if self.named.last != self.eager.last:
            raise ProofError(f"the named consumer ends at {self.named.last}, not {self.eager.last}")
        found = reconstitute(elements, "R3")
        truth = load.truth(self.seed, self._agreed.result())
        if found != truth:
            raise ProofError(f"lost: {truth - found}; too much: {found - truth}")


def _elements(item: Any) -> list[tuple[Any, ...]]:
    if isinstance(item, StablePoint):
        return [("stable", INF if item.vc == INFINITY else item.vc)]
    batch: pa.RecordBatch = item.batch
    made: list[tuple[Any, ...]] = []
    for row in batch.to_pylist():
        payload = (row["key"], row["text"])
        if row["op"] == 0:
            made.append(("insert", payload, row["vs"], row["ve"]))
        else:
            made.append(("adjust", payload, row["vs"], row["vold"], row["ve"]))
    return made


async def kill(process: ServerProcess) -> None:
    """``kill -9``, and a new life."""
    await process.send(signal.SIGKILL)
    await process.start()


async def fill(process: ServerProcess) -> None:
    """The server's disk is full for a while: whoever writes is told, and tries again."""
    assert process.process is not None
    pid, seen = process.process.pid, len(process.log)
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        await process.says("arrivals are refused", seen)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
