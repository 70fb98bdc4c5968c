"""The commands that the demo runs, as a user would type them, and what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from lmerge.errors import LMergeError

READY_S: Final = 240.0
END_S: Final = 120.0
LOOK_S: Final = 0.1


class ActError(LMergeError):
    """Something that the demo was to show did not happen."""


def until(what: str, holds: Callable[[], bool], seconds: float = READY_S) -> None:
    """Waits until it holds; ActError when it does not in time."""
    give_up = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > give_up:
            raise ActError(f"{what}: not within {seconds:g} s")
        time.sleep(LOOK_S)


class Command:
    """One that goes on while others are run; its lines are told as they come."""

    def __init__(self, *arguments: str, on_line: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._on_line = on_line
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101  # it was asked for
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._on_line(self.lines[-1])

    def until(self, what: str, holds: Callable[[], bool], seconds: float = READY_S) -> None:
        """Waits, as long as the command runs."""

        def either() -> bool:
            return holds() or self.process.poll() is not None

        until(what, either, seconds)
        if not holds():
            told = "\n  ".join(self.lines[-8:])
            raise ActError(f"{what}: it ended with status {self.process.poll()}\n  {told}")

    def wait(self, seconds: float = READY_S) -> int:
        """Its exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ActError(f"it did not end within {seconds:g} s") from None
        self._reader.join(END_S)
        return status

    def kill(self) -> None:
        """It, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(END_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Deployment:
    """A deployment in a directory."""

    def __init__(self, directory: Path, on_line: Callable[[str], None]) -> None:
        self._options = ["--deployment", "demo", "--dir", str(directory / "state")]
        self._on_line = on_line
        self._up: Command | None = None

    def up(self, file: Path) -> None:
        """``lmerge up``; returns when all of it is ready."""
        self._up = Command("-m", "lmerge", "up", str(file), *self._options, on_line=self._on_line)
        lines = self._up.lines
        self._up.until(
            "lmerge up", lambda: any("everything is ready" in line for line in list(lines))
        )

    def start(self, *arguments: str, on_line: Callable[[str], None]) -> Command:
        """Another command of lmerge about the deployment."""
        return Command("-m", "lmerge", *arguments, *self._options, on_line=on_line)

    def ps(self) -> dict[str, Any]:
        """``lmerge ps --json``."""
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "lmerge", "ps", "--json", *self._options],
            capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ActError(f"lmerge ps: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def pid(self, stream: str) -> int:
        """The process of a replica."""
        for replica in self.ps()["replicas"]:
            if replica["stream"] == stream and replica["pid"]:
                return int(replica["pid"])
        raise ActError(f"{stream} does not run")

    def down(self) -> None:
        """``lmerge down``, whatever state it is in. Does nothing the second time."""
        up, self._up = self._up, None
        if up is None:
            return
        down = self.start("down", on_line=lambda line: None)
        try:
            down.wait(END_S)
            up.wait(END_S)
        finally:
            down.kill()
            up.kill()


def family(pid: int) -> list[psutil.Process]:
    """A process and everything that it has started."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def send(pid: int, number: signal.Signals) -> None:
    """A signal to all of a family."""
    for process in family(pid):
        with suppress(psutil.Error):
            process.send_signal(number)
