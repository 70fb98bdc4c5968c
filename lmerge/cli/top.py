"""``lmerge top``: the same as ``lmerge status``, live, with rates.

A rate is the difference of two answers by the time between them, so it shows what happened, not
what was asked; it is absent when a counter went back (the stream attached anew).
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from lmerge.cli import connection
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import View, clean, console, fetch, render
from lmerge.errors import UnavailableError

INTERVAL_SECONDS: Final = 1.0
Counts = dict[tuple[str, ...], int]


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "top",
        help="the merges of a server, live, with rates",
        description="Shows the merges of a server live, with rates. q or Ctrl-C ends it.",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--merge", metavar="NAME", help="only this one (default: all)")
    add("--interval", metavar="SECONDS", type=_interval, default=INTERVAL_SECONDS,
        help=f"between two looks (default: {INTERVAL_SECONDS:g})")  # fmt: skip
    add("--iterations", metavar="N", type=_iterations, help="end after so many (default: never)")
    connection.add_to(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the server until somebody has seen enough."""
    try:
        with connection.operator(arguments) as call, _keys() as quit_within:
            _watch(arguments, call, quit_within)
    except KeyboardInterrupt:
        pass  # the way to end it
    return Exit.OK


def rates(before: Counts, after: Counts, seconds: float) -> dict[tuple[str, ...], float]:
    """Elements a second of everything that is in both and did not go back."""
    if seconds <= 0:
        return {}
    return {
        key: (count - before[key]) / seconds
        for key, count in after.items()
        if key in before and count >= before[key]
    }


def counts(views: Sequence[View]) -> Counts:
    """Elements so far: of the output by (merge,), of a stream by (merge, stream)."""
    result: Counts = {}
    for detail in (view.detail for view in views):
        if detail is not None:
            result[(detail.name,)] = detail.output.inserts + detail.output.adjusts
            for stream in detail.streams:
                result[(detail.name, stream.name)] = stream.inserts + stream.adjusts
    return result


def _watch(
    arguments: argparse.Namespace, call: connection.Call, quit_within: Callable[[float], bool]
) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    screen = console()
    views = fetch(call, arguments.merge)  # a server that was never there ends the command
    at, said = time.monotonic(), ""
    known = counts(views)
    shown = render(views, {})
    left = arguments.iterations
    live = Live(screen=True, console=screen, auto_refresh=False) if screen.is_terminal else None
    with live or nullcontext():
        while True:
            page = Group(Text(f"{arguments.server}  {said or 'q ends'}"), shown)
            if live is not None:
                live.update(page, refresh=True)
            else:
                screen.print(page)
                sys.stdout.flush()
            left = None if left is None else left - 1
            if left == 0 or quit_within(arguments.interval):
                return
            try:
                views, said = fetch(call, arguments.merge), ""
            except UnavailableError as error:
                said = clean(str(error))  # the last answer stays, until it is back
                continue
            before, since = known, at
            known, at = counts(views), time.monotonic()
            shown = render(views, rates(before, known, at - since))


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for that long, and says whether q was typed; keys count without a newline."""
    if not _typed():
        yield _pause
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield _quit_typed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _typed() -> bool:
    """Whether a person sits at both ends."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False  # closed


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _quit_typed(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        file = sys.stdin.fileno()
        ready = left > 0 and select.select([file], [], [], left)[0]
        if not ready:
            return False
        typed = os.read(file, 64)
        if not typed or b"q" in typed.lower():
            return True


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise ValueError(text)
    return seconds


def _iterations(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
