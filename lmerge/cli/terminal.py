"""stderr: what a person is told while a command runs.

Callers may rely on this: every message is one line that begins with ``lmerge: ``; a progress bar
appears only when stderr is a terminal that nothing else is being written to and the work is long,
and it never mixes with the messages; a stderr that is closed or full is no reason to fail.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

BAR_BYTES_MIN: Final = 8 << 20
BAR_ROWS_MIN: Final = 200_000
"""Below this the work is over before a bar could tell anything."""

PATIENCE_SECONDS: Final = 1.0
PATIENCE_CALLS: Final = 32
"""A kernel is compiled by the first call that needs it: later ones are not watched."""


class Terminal:
    """Messages and at most one bar; a context manager, which takes the bar away."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._calls_watched = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Writes ``lmerge: text`` as one line."""
        line = "lmerge: " + text.replace("\n", " ")
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif sys.stderr is not None:
            try:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()
            except OSError:
                pass  # nobody listens; the output is what matters

    def reading(self, path: str, output: str | None) -> Callable[[int], None] | None:
        """Shows a bar for reading ``path``; returns what is to be told the bytes read so far."""
        if path == "-" or not self._may_show(output):
            return None
        try:
            found = os.stat(path)
        except OSError:
            return None  # the reader will say so better
        if not stat.S_ISREG(found.st_mode) or found.st_size < BAR_BYTES_MIN:
            return None
        return self._show(os.path.basename(path), found.st_size, is_bytes=True)

    def counting(self, label: str, rows: int, output: str | None) -> Callable[[int], None] | None:
        """Shows a bar for ``rows`` of work; returns what is to be told the rows done so far."""
        if rows < BAR_ROWS_MIN or not self._may_show(output):
            return None
        return self._show(label, rows, is_bytes=False)

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Around a call of the core: explains a long wait, which is compilation, once."""
        if self._calls_watched >= PATIENCE_CALLS or not _is_terminal(sys.stderr):
            yield
            return
        self._calls_watched += 1
        timer = threading.Timer(PATIENCE_SECONDS, self._explain)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _explain(self) -> None:
        self._calls_watched = PATIENCE_CALLS
        self.say("compiling the merge for this machine; this happens once and takes some seconds")

    def _may_show(self, output: str | None) -> bool:
        """Whether a bar can be seen and would not run through the output on the same screen."""
        return _is_terminal(sys.stderr) and (output is not None or not _is_terminal(sys.stdout))

    def _show(self, label: str, total: int, *, is_bytes: bool) -> Callable[[int], None]:
        # Imported here: it takes longer than everything else a short command does.
        from rich import progress
        from rich.console import Console

        amount = (
            [progress.DownloadColumn(), progress.TransferSpeedColumn()]
            if is_bytes
            else [progress.MofNCompleteColumn()]
        )
        bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            *amount,
            progress.TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        task = bar.add_task(label, total=total)
        bar.start()
        self._bar = bar
        return lambda done: bar.update(task, completed=done)


def _is_terminal(file: object) -> bool:
    try:
        return bool(file is not None and file.isatty())  # type: ignore[attr-defined]  # duck-typed
    except ValueError:
        return False  # closed
