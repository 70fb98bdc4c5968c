"""Real servers as processes, which tests start, kill and start again."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from lmerge.client import Item, Reader, StablePoint
from lmerge.client.reader import elements_in
from lmerge.core.batch import batch_of
from lmerge.elements import Element, Insert
from lmerge.tdb import Tdb

ROOT = Path(__file__).parents[2]
READY_S_MAX = 60.0
TEST_S_MAX = 120.0
SCHEMA = pa.schema([("k", pa.int64())])

T = TypeVar("T")


class ServerProcess:
    """``lmerge server`` on a port that stays the same when it is started again."""

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        self.port = port or _free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.data_dir = data_dir
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when it listens."""
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmerge", "server", "--listen", self.target,
             "--data-dir", str(self.data_dir), "--durability", "flush"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        threading.Thread(target=_drain, args=(self._process, self._lines), daemon=True).start()
        said: list[str] = []
        while True:
            line = self._lines.get(timeout=READY_S_MAX)
            if line is None:
                raise AssertionError("the server ended:\n" + "".join(said))
            said.append(line)
            if "listening on" in line:
                return

    def kill(self) -> None:
        """As kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _drain(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line)
    lines.put(None)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run(work: Coroutine[Any, Any, T]) -> T:
    """An async test, within bounds."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, TEST_S_MAX)

    return asyncio.run(bounded())


def inserts(*starts: int, length: int = 1000) -> pa.RecordBatch:
    """Events of keys that are their starts."""
    return batch_of([Insert({"k": vs}, vs, vs + length) for vs in starts], SCHEMA)


async def until_stable(reader: Any, vc: int) -> list[Item]:
    """The items up to this stable point."""
    found: list[Item] = []
    async for item in reader:
        found.append(item)
        if isinstance(item, StablePoint) and item.vc >= vc:
            return found
        if getattr(item, "stable", None) is not None and item.stable >= vc:
            return found
    raise AssertionError("the reader ended early")


async def read_all(target: str, merge: str, vc: int, **options: Any) -> list[Item]:
    """The output from its beginning up to a stable point."""
    async with Reader(target, merge, **options) as reader:
        return await until_stable(reader, vc)


def elements(items: list[Item]) -> list[Any]:
    """All elements of some items."""
    return [element for item in items for element in elements_in(item)]


def events(items: list[Item]) -> list[tuple[int, int, int]]:
    """What a stream reconstitutes to: (k, vs, ve), sorted; raises when it is not valid."""
    tdb = Tdb(False, "output")
    for element in elements(items):
        tdb.apply(_hashable(element))
    return sorted((dict(event.payload)["k"], event.vs, event.ve) for event in tdb.events())


def _hashable(element: Any) -> Element:
    if hasattr(element, "payload"):
        replaced: Element = element._replace(payload=tuple(sorted(element.payload.items())))
        return replaced
    found: Element = element
    return found
