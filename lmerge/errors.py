"""Every error lmerge raises, as a tree that says who is at fault.

- :class:`ConfigurationError`: the caller asked for something that cannot be.
- :class:`InputError`: bytes that are not what they should be; carries the place.
- :class:`BrokenPromiseError`: a stream broke the contract it declared; carries the
  stream and the element. It quarantines that stream, never the merge.
- :class:`JournalError`: the disk, or what is on it, does not keep what it was given.
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


class WireError(InputError):
    """A message from a peer that cannot be what it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__("message", None, reason)
        self.args = (reason,)

    def __str__(self) -> str:
        return str(self.args[0])


class VersionMismatchError(ConfigurationError):
    """A peer speaks another version of the protocol."""


class EpochOrderError(ConfigurationError):
    """An epoch that does not follow the last one, or does not hold what its commit says."""


class NotFoundError(LMergeError):
    """There is no merge, stream or subscription of that name."""


class ExistsError(LMergeError):
    """There is one of that name already."""


class FencedError(LMergeError):
    """A newer incarnation holds the stream: this one is a zombie, and must not go on."""


class DetachedError(LMergeError):
    """The stream was taken out of the merge."""


class RetiredError(LMergeError):
    """The position asked for is not kept any more, or belongs to another generation."""


class LimitError(LMergeError):
    """Something exceeds a limit of the server; the message names the limit."""


class UnavailableError(LMergeError):
    """The peer is away, stopping or not ready yet: trying again later may help."""


class MergeFaultError(LMergeError):
    """The merge cannot be served, and trying again does not help: an operator must look."""


class UnauthenticatedError(LMergeError):
    """The server does not know who is calling."""


class PermissionDeniedError(LMergeError):
    """The caller is known, and may not do this."""


class JournalError(LMergeError):
    """A journal on disk cannot do what was asked; the message names the file and the cause."""


class JournalDamagedError(JournalError):
    """A journal is not as it was written. Only a person may decide what to give up of it."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(f"{file}: damaged at byte {offset}: {reason}")


class JournalFullError(JournalError):
    """There is no room on the disk for what was to be written; nothing of it was kept."""


class JournalRetiredError(JournalError, LookupError):
    """The record asked for was kept once, and has been given up since."""


class InvariantError(LMergeError):
    """A structure of ours does not satisfy what ``check()`` asserts: a defect of lmerge."""
