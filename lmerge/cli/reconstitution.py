"""Reads the streams of a file and reconstitutes each: what ``tdb`` and ``check`` share.

Callers may rely on this: of several violations in a file the one on the first line is reported,
with that line. A stream that detaches and attaches again is a new one, and replaces the old.
Memory is that of all events: this is the model, not the merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmerge.errors import BrokenPromiseError, InputError, LMergeError
from lmerge.files import Control, Part, elements, read_rounds
from lmerge.jsonlines import Attach, Detach
from lmerge.tdb import Tdb
from lmerge.times import BEGINNING


class ContractError(LMergeError):
    """A stream broke its contract; the message has the place, the violation and the element."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        self.line = line
        super().__init__(f"{source}:{line}: {reason}")


@dataclass
class Presented:
    """A stream of a file: what it describes, and from when on it is right."""

    name: str
    tdb: Tdb
    since: int = BEGINNING
    attached: bool = True


def source_of(path: str) -> str:
    """What messages call ``path``."""
    return "stdin" if path == "-" else path


def reconstitute(
    path: str,
    *,
    keyed: bool = False,
    only: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str | None, Presented]:
    """The streams of a file by name (``None``: without one), in order of appearance.

    Of streams that are not ``only``, if that is given, nothing but their names is taken.
    """
    reading = _Reading(source_of(path), keyed, only)
    for item in read_rounds(path, progress=progress):
        if isinstance(item, Control):
            reading.change(item.change, item.line)
        else:
            reading.take(item.parts)
    return reading.streams


class _Reading:
    def __init__(self, source: str, keyed: bool, only: str | None) -> None:
        self.streams: dict[str | None, Presented] = {}
        self._source = source
        self._keyed = keyed
        self._only = only

    def change(self, change: Attach | Detach, line: int) -> None:
        """Takes an attach or a detach."""
        name = change.stream
        stream = self.streams.get(name)
        shown = self._shown(name)
        if isinstance(change, Attach):
            if stream is not None and stream.attached:
                reason = f"stream {shown!r} is attached already: detach it first"
                raise InputError(self._source, line, reason)
            since = BEGINNING if change.from_time is None else change.from_time
            self.streams[name] = Presented(shown, Tdb(self._keyed, shown), since)
        elif stream is None or not stream.attached:
            raise InputError(self._source, line, f"stream {shown!r} is not attached")
        else:
            stream.attached = False

    def take(self, parts: list[Part]) -> None:
        """Takes a round of elements."""
        found = [error for part in parts if (error := self._part(part)) is not None]
        if found:
            # A round has its elements by stream: another stream may have failed on a line before.
            raise min(found, key=lambda error: error.line)

    def _part(self, part: Part) -> ContractError | None:
        stream = self.streams.get(part.stream)
        if stream is None:
            shown = self._shown(part.stream)
            stream = self.streams[part.stream] = Presented(shown, Tdb(self._keyed, shown))
        if self._only is not None and part.stream != self._only:
            return None
        lines = part.lines.tolist()
        if not stream.attached:
            reason = f"stream {stream.name!r}: element after its detach"
            return ContractError(self._source, lines[0], reason)
        for line, element in zip(lines, elements(part.batch), strict=True):
            try:
                stream.tdb.apply(element)
            except BrokenPromiseError as error:
                return ContractError(self._source, line, str(error))
        return None

    def _shown(self, name: str | None) -> str:
        return self._source if name is None else name
