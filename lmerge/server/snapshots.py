"""A merge's snapshots on disk: a file each, written whole or not at all.

Callers may rely on this: after :meth:`Store.write` the snapshot survives the loss of power. A
damaged snapshot is passed over for an older one (the log may still reach back that far), and
said so. The newest serves a restart, older ones readers of final results; at most
``SNAPSHOTS_MAX`` are kept.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from lmerge.errors import JournalError, JournalFullError, SnapshotError
from lmerge.server.state import MergeState

log = logging.getLogger("lmerge.server")

SNAPSHOTS_MAX: Final = 8
_SUFFIX: Final = ".snapshot"
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Kept(NamedTuple):
    arrival: int
    sequence: int
    path: Path


class Store:
    """The snapshots of one merge."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        for unfinished in directory.glob("*.tmp"):
            unfinished.unlink()
        self._kept = sorted(_Kept(*_numbers(p), p) for p in directory.glob(f"*{_SUFFIX}"))

    def kept(self) -> list[tuple[int, int]]:
        """The arrival and the entry of the output that each is at, oldest first."""
        return [(each.arrival, each.sequence) for each in self._kept]

    @property
    def newest_bytes(self) -> int:
        """The size of the newest."""
        return self._kept[-1].path.stat().st_size if self._kept else 0

    def write(self, arrival: int, sequence: int, data: bytes) -> None:
        """Keeps a snapshot; JournalError when the disk will not."""
        path = self._directory / f"{arrival:020d}-{sequence:020d}{_SUFFIX}"
        unfinished = path.with_suffix(".tmp")
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            kind = JournalFullError if error.errno in _NO_ROOM else JournalError
            raise kind(f"{path}: {error.strerror or error}") from error
        kept = [each for each in self._kept if each.path != path]
        self._kept = sorted([*kept, _Kept(arrival, sequence, path)])

    def newest(self) -> MergeState | None:
        """The newest sound one, or None."""
        for each in reversed(self._kept):
            try:
                return MergeState.restore(each.path.read_bytes())
            except (SnapshotError, OSError) as error:
                log.warning("%s is passed over: %s", each.path, error)
        return None

    def at_or_before(self, sequence: int) -> MergeState | None:
        """The newest one whose output is not beyond an entry, or None."""
        for each in reversed(self._kept):
            if each.sequence <= sequence:
                try:
                    return MergeState.restore(each.path.read_bytes())
                except FileNotFoundError:
                    continue  # thinned out meanwhile
        return None

    def sequence_older_than(self, seconds: float, otherwise: int) -> int:
        """The newest snapshot's entry that is older than that: all before it is, too."""
        limit = time.time() - seconds
        old = [each.sequence for each in self._kept if each.path.stat().st_mtime < limit]
        return max(old, default=otherwise)

    def thin_out(self, first: int) -> None:
        """Forgets what is older than output that is kept, and some between if there are many."""
        base = max((e.sequence for e in self._kept if e.sequence <= first), default=0)
        keep = [e for e in self._kept if e.sequence >= base]
        while len(keep) > SNAPSHOTS_MAX:
            # The one that is missed least: so they stay evenly spread over the output kept.
            gaps = [keep[i + 1].sequence - keep[i - 1].sequence for i in range(1, len(keep) - 1)]
            del keep[1 + gaps.index(min(gaps))]
        for gone in set(self._kept) - set(keep):
            gone.path.unlink(missing_ok=True)
        self._kept = keep


def _numbers(path: Path) -> tuple[int, int]:
    arrival, _, sequence = path.name.removesuffix(_SUFFIX).partition("-")
    try:
        return int(arrival), int(sequence)
    except ValueError:
        raise JournalError(f"{path} is not the name of a snapshot") from None
