"""What a replica's sink remembers from epoch to epoch, kept beside the query's checkpoint.

An epoch's memory is written before the epoch is committed to the server, so whichever epoch Spark
runs again after a crash, the memory of the one before it is there. Memory is the rows of each epoch
since the last whole state, which :class:`Revisions` applies again; older files are removed. A copy
of the checkpoint directory takes it along.

Of a stream that only inserts the latest end that it ever said is kept, in the name of a file: who
begins anew from its checkpoint says nothing again, and so can vouch only for what ends later.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING
from replicas.revisions import Int64s, Revisions
from replicas.storage import Storage

FOLDER: Final = "lmerge"
ENDS: Final = f"{FOLDER}/ends"
WHOLE_EVERY: Final = 50
"""Epochs between whole states: what a restart applies again, at most."""
_WHOLE: Final = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Progress:
    """How far the stream is after an epoch."""

    stable: int = BEGINNING
    skipped_before: int = BEGINNING  # what ends before this was left out, or may be incomplete


class Memory:
    """The memory of one query."""

    def __init__(self, storage: Storage, revisions: Revisions | None) -> None:
        self._storage = storage
        self._revisions = revisions
        self._at: int | None = None  # the epoch that progress and revisions are behind
        self._progress = Progress()
        self._end: int | None = None  # the latest; None: not looked up yet

    def lineage(self) -> str:
        """The name of what this checkpoint descends from; made on the first asking."""
        name = f"{FOLDER}/lineage"
        known = self._storage.read(name)
        if known is None:
            known = uuid.uuid4().hex.encode()
            self._storage.write(name, known)
        return known.decode()

    def begin_anew(self) -> None:
        """What comes is not what came before: another physical stream."""
        self._storage.remove(f"{FOLDER}/lineage")
        for each in self._storage.names(f"{FOLDER}/epochs"):
            self._storage.remove(f"{FOLDER}/epochs/{each}")

    def end(self) -> int | None:
        """No event that was said ends later than this; None when that was not kept."""
        return max(self._ends(), default=None)

    def is_kept(self) -> bool:
        """Whether any epoch is remembered: not by a checkpoint that no replica has made."""
        return any(name.isdecimal() for name in self._storage.names(f"{FOLDER}/epochs"))

    def said(self, end: int) -> None:
        """Events up to this end are about to be said."""
        if self._end is None:
            self._end = self.end()
        if self._end is not None and end <= self._end:
            return
        self._storage.write(f"{ENDS}/{end}", b"")
        # After the new one is there: at every instant one of them is.
        for each in self._ends():
            if each < end:
                self._storage.remove(f"{ENDS}/{each}")
        self._end = end

    def _ends(self) -> list[int]:
        return [int(name) for name in self._storage.names(ENDS) if _WHOLE.fullmatch(name)]

    def before(self, epoch: int) -> Progress:
        """Where the stream is before an epoch; the revisions are taken there, too."""
        if self._at != epoch - 1:
            self._go_to(epoch - 1)
        return self._progress

    def after(self, epoch: int, progress: Progress, rows: pa.Table, vs: Int64s, ve: Int64s) -> None:
        """The revisions have been applied: keep what led to where the stream is now."""
        self._at, self._progress = epoch, progress
        whole = epoch % WHOLE_EVERY == 0 or self._revisions is None or self._revisions.complete
        if self._revisions is None:
            content = b""
        elif whole:
            content = self._revisions.save()
        else:
            content = self._revisions.rows_bytes(rows, vs, ve)
        head = json.dumps({"whole": whole, **asdict(progress)}).encode()
        self._storage.write(f"{FOLDER}/epochs/{epoch}", head + b"\n" + content)
        if whole:
            # The whole one before this stays: Spark may run the last epoch again.
            self._remove_before(epoch - (1 if self._at_every_epoch else WHOLE_EVERY))

    @property
    def _at_every_epoch(self) -> bool:
        return self._revisions is None or self._revisions.complete

    def _remove_before(self, epoch: int) -> None:
        for name in self._storage.names(f"{FOLDER}/epochs"):
            if name.isdecimal() and int(name) < epoch:
                self._storage.remove(f"{FOLDER}/epochs/{name}")

    def _go_to(self, epoch: int) -> None:
        names = self._storage.names(f"{FOLDER}/epochs")
        known = sorted(int(name) for name in names if name.isdecimal())
        self._at, self._progress = epoch, Progress()
        if epoch < 0 or not known or known[0] > epoch:
            if epoch >= 0 and known:
                raise ConfigurationError(
                    f"the checkpoint's memory begins after epoch {epoch}: it is not that of this"
                    " query; start with a new checkpoint"
                )
            if self._revisions is not None:
                self._revisions.clear()
            return
        chain: list[tuple[dict[str, int], bytes]] = []
        for each in reversed([number for number in known if number <= epoch]):
            head, _, content = (self._storage.read(f"{FOLDER}/epochs/{each}") or b"").partition(
                b"\n"
            )
            chain.append((json.loads(head), content))
            if chain[-1][0]["whole"]:
                break
        for said, content in reversed(chain):
            if self._revisions is not None:
                if said["whole"]:
                    self._revisions.load(content)
                else:
                    table, vs, ve = self._revisions.rows_of(content)
                    self._revisions.apply(table, vs, ve, self._progress.stable)
                self._revisions.forget(max(said["stable"], said["skipped_before"]))
            self._progress = Progress(said["stable"], said["skipped_before"])
