"""One run of a merge: from rounds of arrivals to lines of output.

Callers may rely on this: what is written is a valid stream at every instant, also when the input
turns out bad; it is flushed after every round, so that a reader of a pipe sees what there is;
memory follows what the merge holds, not what has passed (of a detached stream its name is kept).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lmerge.cli.notices import Place, located
from lmerge.cli.reconstitution import source_of
from lmerge.cli.terminal import Terminal
from lmerge.core.merge import Merge
from lmerge.core.output import Gap, NoticeKind, Output
from lmerge.elements import Stable
from lmerge.errors import ConfigurationError, InputError
from lmerge.files import Control, JsonWriter, Part, Round, Writer
from lmerge.jsonlines import Attach, Detach, canonical
from lmerge.times import BEGINNING, INFINITY


class StrictError(Exception):
    """A promise was broken, and that is to be the end."""


class Job:
    """One run: what is attached, and the way from a round to lines of output."""

    def __init__(
        self, arguments: argparse.Namespace, merge: Merge, writer: Writer, terminal: Terminal
    ) -> None:
        self.merge = merge
        self.arrivals = 0
        self._arguments = arguments
        self._source = source_of(arguments.file)
        self._writer = writer
        self._terminal = terminal
        self._attached: set[str] = set()
        self._gone: dict[str, bool] = {}  # detached streams, and whether we complained of them

    def take_all(self, rounds: Iterable[Round]) -> None:
        """Merges every round, in order; what it gives is visible before the next is read."""
        for item in rounds:
            if isinstance(item, Control):
                self._change(item.change, item.line)
            else:
                self._take(item.parts)
            self._writer.flush()

    # -- streams come and go

    def _change(self, change: Attach | Detach, line: int) -> None:
        self.arrivals += 1
        name = self._name(change.stream, line)
        place = Place(self._source, line, line)
        if isinstance(change, Attach):
            self._attach(name, change.from_time, place)
            return
        with self._at(line):
            output = self.merge.detach(name)
        self._attached.discard(name)
        self._gone[name] = False
        self._emit(output, place)

    def _attach(self, name: str, since: int | None, place: Place) -> None:
        with self._at(place.first):
            output = self.merge.attach(name, since)
        self._attached.add(name)
        self._gone.pop(name, None)
        self._emit(output, place)

    def _name(self, stream: str | None, line: int) -> str:
        if stream is None:
            raise InputError(
                self._source,
                line,
                'no "in": a merge must know which stream each line is of; add "in":"a" to every '
                "line of the first stream, and so on",
            )
        return stream

    @contextmanager
    def _at(self, line: int) -> Iterator[None]:
        """A stream that cannot come or go is the fault of the line that says so."""
        try:
            yield
        except ConfigurationError as error:
            raise InputError(self._source, line, str(error)) from error

    # -- elements

    def _take(self, parts: list[Part]) -> None:
        nameless = next((part for part in parts if part.stream is None), None)
        bad_line = None if nameless is None else int(nameless.lines[0])
        for part in parts:
            if part is nameless:
                continue
            # Of a round with a bad line only what comes before that line counts.
            rows = len(part.lines) if bad_line is None else int(part.lines.searchsorted(bad_line))
            if rows:
                self._part(Part(part.stream, part.batch.slice(0, rows), part.lines[:rows]))
        if bad_line is not None:
            self._name(None, bad_line)

    def _part(self, part: Part) -> None:
        first = int(part.lines[0])
        name = self._name(part.stream, first)
        place = Place(self._source, first, int(part.lines[-1]))
        self.arrivals += len(part.lines)
        if name in self._gone:
            self._complain(name, first)
            return
        if name not in self._attached:
            self._attach(name, None, place)
        with self._terminal.patience():
            output = self.merge.apply(name, part.batch)
        self._emit(output, place, part)

    def _complain(self, name: str, line: int) -> None:
        if not self._gone[name]:
            self._gone[name] = True
            self._terminal.say(
                f"{self._source}:{line}: stream {name!r} sends elements after its detach; they "
                "are ignored until it attaches again"
            )
        if self._arguments.strict:
            raise StrictError

    # -- output

    def _emit(self, output: Output, place: Place, cause: Part | None = None) -> None:
        """Writes what a call of the merge gave; allows the gap that it may have left."""
        self._write(output, place.first)
        if output.notices:
            self._writer.flush()  # so that on a terminal the output comes before what is said of it
        broken = False
        for notice in output.notices:
            self._terminal.say(located(notice, place, cause, trace=self._arguments.trace))
            broken |= notice.kind is NoticeKind.QUARANTINED
        if broken and self._arguments.strict:
            raise StrictError
        if self._arguments.allow_gaps and self.merge.stalled:
            self._emit(self.merge.allow_gap(), place)

    def _write(self, output: Output, line: int) -> None:
        at = line if self._arguments.trace else None
        parts: list[Any] = list(output.parts)
        for part in parts:
            if isinstance(part, Stable):
                self._writer.write_stable(part.vc, at=at)
            elif isinstance(part, Gap):
                self._text("", "gap", at, f'"from":{_time(part.start)},"to":{_time(part.end)}')
            else:
                column = None if at is None else np.full(part.num_rows, at, np.int64)
                self._writer.write(part, at=column)
        for owed in output.feedback:
            to = f'"to":{canonical(owed.stream)},'
            self._text(to, "feedback", at, f'"before":{_time(owed.before)}')

    def _text(self, head: str, op: str, at: int | None, rest: str) -> None:
        """Writes a line that is no element; the command line has ruled out tables for them."""
        if not isinstance(self._writer, JsonWriter):
            raise ConfigurationError(f"a table has no row for a {op}")
        cause = "" if at is None else f'"at":{at},'
        self._writer.write_text(f'{{{head}{cause}"op":"{op}",{rest}}}')


def _time(t: int) -> str:
    return "null" if t in (BEGINNING, INFINITY) else str(t)
