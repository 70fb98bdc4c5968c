"""An event loop whose time is virtual and whose every run is the same.

- Time jumps to the next timer as soon as nothing else can run; a run of minutes takes moments.
- "Threads" are jobs of a :class:`Process`: they run inline, after a delay that the seed decides.
- Nothing ready and no timer is a deadlock: :class:`StuckError`, as is a run beyond its bounds.
- Futures and tasks hash by their number, so that no order depends on addresses in memory.

A :class:`Process` is what can crash: everything that was started under it ends at once, and its
disk jobs were done, not begun, or (when they append to a journal) done in part.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

DISK_SECONDS: Final = 0.004  # the mean of what a job takes
STEPS_MAX: Final = 400_000
SECONDS_MAX: Final = 4_000.0
T = TypeVar("T")


class StuckError(AssertionError):
    """Nothing can happen any more, or too much has."""


class Process:
    """What crashes as one; the tasks and disk jobs of a task's context belong to its process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.jobs: dict[_Job, None] = {}
        self.opened: list[Any] = []  # what holds files: its jobs gave it, and it has `abandon`

    def crash(self, rng: random.Random) -> None:
        """Ends everything at once; files are closed, and what was not written to them is lost."""
        self.alive = False
        for job in list(self.jobs):
            job.interrupt(rng, self)
        self.jobs.clear()
        for holder in self.opened:
            holder.abandon()
        for task in list(self.tasks):
            task.cancel()

    def keep(self, result: Any) -> Any:
        """Notes what a job gave."""
        if hasattr(result, "abandon"):
            self.opened.append(result)
        return result


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def spawn(process: Process, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
    """A task of a process."""
    token = PROCESS.set(process)
    try:
        return asyncio.get_running_loop().create_task(work, name=name or process.name)
    finally:
        PROCESS.reset(token)


class _Future(asyncio.Future[Any]):
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, *args: Any, **keywords: Any) -> None:
        self.number = number
        super().__init__(*args, **keywords)

    def __hash__(self) -> int:
        return self.number


class _Job:
    """Work for a thread, which there is none of."""

    def __init__(self, work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self._work = work
        self._done = done

    def run(self, process: Process | None) -> None:
        try:
            result = self._work()
        except Exception as error:
            if not self._done.cancelled():
                self._done.set_exception(error)
            return
        if process is not None:
            process.keep(result)
        if not self._done.cancelled():  # a thread does not stop because nobody waits for it
            self._done.set_result(result)

    def interrupt(self, rng: random.Random, process: Process) -> None:
        """The process dies: before it, after it, or (of an append) in the middle."""
        when = rng.choice(("before", "after", "within"))
        if when == "before":
            return
        directory = _appends_to(self._work)
        before = None if directory is None else _last_file(directory)
        try:
            process.keep(self._work())
        except Exception:  # nobody is left to hear of it
            return
        after = None if directory is None else _last_file(directory)
        if when == "within" and after is not None:
            path, size = after
            least = before[1] if before is not None and before[0] == path else 0
            if size > least:
                with path.open("r+b") as file:
                    file.truncate(rng.randint(least, size))


def _appends_to(work: Callable[[], Any]) -> Path | None:
    """The directory of the journal that a job writes to."""
    function = work
    while isinstance(function, functools.partial):
        # asyncio.to_thread makes partial(context.run, function, …).
        function = function.args[0] if function.args else function.func
    owner = getattr(function, "__self__", None)
    if type(owner).__name__ == "Journal" and getattr(function, "__name__", "") == "write":
        directory: Path = owner._directory  # type: ignore[union-attr]
        return directory
    return None


def _last_file(directory: Path) -> tuple[Path, int] | None:
    found = sorted(directory.glob("*.log"))
    return (found[-1], found[-1].stat().st_size) if found else None


class _Clock(selectors.SelectSelector):
    """Nobody outside ever has news: waiting is letting time pass."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        loop.steps += 1
        if timeout is None:
            raise StuckError("a deadlock: nothing is ready, and there is no timer")
        if timeout > 0:
            loop.now += timeout
        if loop.steps > STEPS_MAX or loop.now > SECONDS_MAX:
            raise StuckError(f"no end after {loop.steps} steps and {loop.now:.0f} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.steps = 0
        self._numbers = itertools.count(1)
        self._rng = rng
        clock = _Clock()
        clock.loop = self
        super().__init__(clock)
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), self)

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = _Task(next(self._numbers), work, loop=loop, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
            if not process.alive:
                task.cancel()
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        process = PROCESS.get()
        if process is not None and not process.alive:
            return done  # the dead do not write
        job = _Job(functools.partial(func, *args), done)

        def run() -> None:
            if process is None:
                job.run(None)
            elif job in process.jobs:
                del process.jobs[job]
                job.run(process)

        if process is not None:
            process.jobs[job] = None
        self.call_later(self._rng.expovariate(1 / DISK_SECONDS), run)
        return done
