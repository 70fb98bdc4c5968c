"""Runs the command line: in this process, with stand-ins for its streams, or as a real process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from lmerge.cli.main import main
from lmerge.elements import Element
from lmerge.jsonlines import Arrival, parse_line
from lmerge.tdb import Tdb

ROOT = Path(__file__).parents[2]


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class _Unclosed(io.BytesIO):
    """Keeps its content when a writer closes it."""

    def close(self) -> None:
        pass


def run(*argv: str, stdin: str | bytes = b"") -> Ran:
    """Runs ``lmerge`` in this process."""
    content = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = _Unclosed(), _Unclosed()
    streams: dict[str, Any] = {
        "stdin": io.TextIOWrapper(io.BytesIO(content)),
        "stdout": io.TextIOWrapper(out, encoding="utf-8"),
        "stderr": io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace"),
    }
    with ExitStack() as stack:
        for name, stream in streams.items():
            stack.enter_context(mock.patch.object(sys, name, stream))
        status = main(list(argv))
        for name in ("stdout", "stderr"):
            streams[name].flush()
    return Ran(int(status), out.getvalue().decode(), err.getvalue().decode())


def process(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts ``python -m lmerge`` with pipes."""
    # Unbuffered output would hide a flush that is missing.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(ROOT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "lmerge", *argv], env=environment, **{**pipes, **options}
    )


def elements_of(text: str, stream: str | None = None) -> list[Element]:
    """The elements of one stream among lines of text."""
    found = (parse_line(line, "text", i) for i, line in enumerate(text.splitlines(), 1))
    return [line.element for line in found if isinstance(line, Arrival) and line.stream == stream]


def reconstituted(text: str, stream: str | None = None, *, keyed: bool = False) -> Tdb:
    """The TDB of one stream among lines of text; raises when the stream is not valid."""
    return Tdb(keyed, stream or "output").apply_all(elements_of(text, stream))
