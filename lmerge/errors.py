"""Every error lmerge raises, as a tree that says who is at fault.

- :class:`ConfigurationError`: the caller asked for something that cannot be.
- :class:`InputError`: bytes that are not what they should be; carries the place.
- :class:`BrokenPromiseError`: a stream broke the contract it declared; carries the
  stream and the element. It quarantines that stream, never the merge.
- :class:`InvariantError`: a fault of ours. It is never caught to carry on.
"""

from __future__ import annotations


class LMergeError(Exception):
    """The root: catching it catches everything lmerge raises on purpose."""


class ConfigurationError(LMergeError):
    """What was asked for cannot be: the message says what, and what can be instead."""


class SchemaMismatchError(ConfigurationError):
    """A stream's payload columns are not those of the merge; the message names the difference."""


class SnapshotError(ConfigurationError):
    """A snapshot is damaged, or was written by another version."""


class InputError(LMergeError):
    """Input that cannot be read as elements."""

    def __init__(self, source: str, line: int | None, reason: str) -> None:
        self.source = source
        self.line = line
        self.reason = reason
        place = source if line is None else f"{source}:{line}"
        super().__init__(f"{place}: {reason}")


class BrokenPromiseError(LMergeError):
    """A stream broke its own contract. ``element`` is the offender, as text."""

    def __init__(self, stream: str, reason: str, element: str) -> None:
        self.stream = stream
        self.reason = reason
        self.element = element
        super().__init__(f"stream {stream!r}: {reason}: {element}")


class InvariantError(LMergeError):
    """A structure of ours does not satisfy what ``check()`` asserts: a defect of lmerge."""
