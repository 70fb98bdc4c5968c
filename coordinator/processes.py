"""Processes that outlive whoever started them, and are found again by whoever comes after.

Callers may rely on this:
- Each has a name, a session of its own (what ends its starter's terminal does not end it), a log
  that holds its stdout and stderr, and a file that says which process it is.
- A process is known by its number and by when it began, or what it runs: another process that was
  given its number is not taken for it.
- Of one name there is one process: to start one that runs is to find it.
- What a process has left running of its own (Spark's JVM) ends with it.

Bounds: a log that grows beyond ``LOG_BYTES_MAX`` is cut, and its last part kept beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from lmerge.errors import ConfigurationError, UnavailableError

LOG_BYTES_MAX: Final = 16 << 20
LOG_BYTES_KEPT: Final = 1 << 20
WORDS_BYTES: Final = 16 << 10
WORDS_MAX: Final = 300
CLOCK_SECONDS: Final = 5.0  # by which a clock may be put right without an old process seeming new


@dataclass(frozen=True, slots=True)
class Known:
    """A process that was started."""

    pid: int
    created: float
    command: tuple[str, ...]
    restarts: int = 0
    log_at: int = 0  # where its own part of the log begins

    def process(self) -> psutil.Process | None:
        """It, while it runs."""
        try:
            found = psutil.Process(self.pid)
            with found.oneshot():
                if found.status() == psutil.STATUS_ZOMBIE:
                    return None
                same = abs(found.create_time() - self.created) < CLOCK_SECONDS
                return found if same or found.cmdline()[1:] == list(self.command[1:]) else None
        except psutil.Error:
            return None


class Processes:
    """Those of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._run = self.directory / "run"
        self._logs = self.directory / "logs"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._run.mkdir(parents=True, exist_ok=True)
            self._logs.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{self.directory} cannot be a state directory: {error.strerror}; choose another"
                " with --dir"
            ) from None

    def log(self, name: str) -> Path:
        """Where a process's output goes."""
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        """Everything that was started and not forgotten."""
        return sorted(path.stem for path in self._run.glob("*.json"))

    def known(self, name: str) -> Known | None:
        """What was started under a name, and not forgotten."""
        try:
            found = json.loads((self._run / f"{name}.json").read_text())
            return Known(**{**found, "command": tuple(found["command"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def running(self, name: str) -> Known | None:
        """The process, while it runs."""
        child, known = self._children.get(name), self.known(name)
        if child is not None and known is not None and child.pid == known.pid:
            return known if child.poll() is None else None
        return known if known is not None and known.process() is not None else None

    def status(self, name: str) -> int | None:
        """The exit status of one that has ended; None when its starter has ended as well."""
        child, known = self._children.get(name), self.known(name)
        ours = child is not None and known is not None and child.pid == known.pid
        return child.poll() if child is not None and ours else None

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        restarts: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Known:
        """Starts it, unless it runs."""
        with self._alone(name):
            found = self.running(name)
            if found is not None:
                return found
            log = self.log(name)
            try:
                with log.open("ab") as out:
                    child = subprocess.Popen(  # noqa: S603
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        env=None if environment is None else {**os.environ, **environment},
                    )
                    log_at = out.tell()
            except OSError as error:
                raise UnavailableError(f"{name} cannot be started: {error.strerror}") from None
            self._children[name] = child
            return self._keep(name, child.pid, command, restarts, log_at)

    def enter(self, name: str, command: Sequence[str]) -> None:
        """This process itself."""
        self._keep(name, os.getpid(), command, 0, 0)

    def signal(self, name: str, number: signal.Signals) -> None:
        """To the process; SIGKILL also to everything that it has started."""
        known = self.running(name)
        if known is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            if number is signal.SIGKILL and os.getpgid(known.pid) == known.pid:
                os.killpg(known.pid, number)
            else:
                os.kill(known.pid, number)
                # One that is paused would not hear it.
                os.kill(known.pid, signal.SIGCONT)

    def sweep(self, name: str) -> None:
        """Ends what a process that has ended has left running."""
        known = self.known(name)
        # A number that is another process's may be its group's as well; else the group is ours.
        if known is not None and not psutil.pid_exists(known.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(known.pid, signal.SIGKILL)

    def forget(self, name: str) -> None:
        """It is not known any more."""
        self._children.pop(name, None)
        (self._run / f"{name}.json").unlink(missing_ok=True)

    def words(self, name: str, *, ours: bool = False) -> str:
        """The last that a process has said: the last line of lmerge's, if there is one.

        With ``ours`` nothing else: of a process that was killed the last line says nothing.
        """
        known = self.known(name)
        try:
            with self.log(name).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(known.log_at if known else 0, size - WORDS_BYTES) if size else 0)
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        told = [line.removeprefix("lmerge: ") for line in said if line.startswith("lmerge: ")]
        return (told or ([] if ours else said) or [""])[-1][:WORDS_MAX]

    def trim_logs(self) -> None:
        """Cuts logs that have become too long; they are appended to meanwhile."""
        for log in self._logs.glob("*.log"):
            with suppress(OSError), log.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size > LOG_BYTES_MAX:
                    file.seek(size - LOG_BYTES_KEPT)
                    log.with_suffix(".log.1").write_bytes(file.read())
                    file.truncate(0)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Two leaders, one of whom does not know that he is none, start it one after the other."""
        lock = os.open(self._run / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _keep(
        self, name: str, pid: int, command: Sequence[str], restarts: int, log_at: int
    ) -> Known:
        try:
            created = psutil.Process(pid).create_time()
        except psutil.Error:
            created = 0.0  # it has ended already
        known = Known(pid, created, tuple(command), restarts, log_at)
        draft = self._run / f"{name}.json~"
        draft.write_text(json.dumps(asdict(known)))
        draft.replace(self._run / f"{name}.json")
        return known
