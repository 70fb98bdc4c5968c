"""Replicas as processes of their own, by the command that users have.

Callers may rely on this: what was started here is gone when its context ends, with its JVM and
its workers, and one that dies while it is waited for is an error with what it said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
POLL_S: Final = 0.02


@dataclass(frozen=True)
class Replica:
    """What ``lmerge replica run`` is told."""

    build: str
    name: str
    checkpoint: Path
    conf: Mapping[str, str]


class Running:
    """The processes, and where each writes what it says."""

    def __init__(self, processes: list[tuple[subprocess.Popen[Any], Path]]) -> None:
        self._processes = processes

    def until(self, what: Callable[[], bool], seconds: float, poll_s: float = POLL_S) -> None:
        """Return when ``what`` holds."""
        give_up = time.monotonic() + seconds
        while not what():
            for process, log in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"a replica has ended: {log.read_text('utf-8')[-4000:]}")
            if time.monotonic() > give_up:
                raise RuntimeError(f"not within {seconds:g} s")
            time.sleep(poll_s)


@contextmanager
def replicas(server: str, merge: str, jobs: Sequence[Replica], logs: Path) -> Iterator[Running]:
    """Start them all; they are killed at the end."""
    started: list[tuple[subprocess.Popen[Any], Path]] = []
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    try:
        for job in jobs:
            log = logs / f"{job.name}.log"
            conf = [
                word for key, value in job.conf.items() for word in ("--conf", f"{key}={value}")
            ]
            with log.open("wb") as said:
                process = subprocess.Popen(
                    [
                        sys.executable, "-m", "lmerge", "replica", "run", job.build,
                        "--merge", merge, "--server", server, "--name", job.name,
                        "--checkpoint", str(job.checkpoint), *conf,
                    ],
                    stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
                )  # fmt: skip
            started.append((process, log))
        yield Running(started)
    finally:
        for process, _ in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
