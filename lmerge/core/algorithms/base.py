"""What the merge asks of an algorithm, whichever restriction it is for.

The merge calls, in this order, for a batch of one stream: :meth:`Algorithm.data` with the
elements whose promises were checked, then :meth:`Algorithm.stable` if the decided point moves.
Both return elements to output, in order. An algorithm keeps no policy and no stream state but its
index: what it needs to know comes with each call as a :class:`View`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.batch import Batch
from lmerge.core.promises import Broken
from lmerge.elements import Element
from lmerge.times import BEGINNING

ABSENT: Final = BEGINNING  # the end a stream gives an event that it does not have
NEVER: Final = 2**31  # more streams than there can be


@dataclass(slots=True)
class View:
    """What an algorithm may know of the merge at one call."""

    slot: int  # the stream that acts
    decided: int  # the paper's MaxStable, before this call
    joined: npt.NDArray[np.bool_]  # by slot
    stables: npt.NDArray[np.int64]  # each stream's own stable point, by slot
    support: int  # joined streams that must have an event before it is output
    leader_only: bool  # and the acting stream must be the leader
    leader: int  # the leading stream's slot
    eager: bool
    final: bool

    @property
    def may_output(self) -> bool:
        """Whether the acting stream's elements can cause output by themselves."""
        return bool(self.joined[self.slot]) and (not self.leader_only or self.leader == self.slot)


@dataclass(slots=True)
class Effects:
    """What a call did besides its output."""

    output: Batch
    rows: int  # elements that count: all, or those before the one that broke a promise
    span: tuple[int, int] | None = None  # the output is exactly these rows of the batch at hand
    broken: Broken = Broken.NOTHING
    offender: Element | None = None  # when it is not in the batch at hand, but had waited
    dropped: int = 0  # old news
    late: int = 0  # live for the stream, and decided otherwise: a divergence
    conflicts: int = 0  # nodes on which the acting stream has no possible answer
    conflict: tuple[int, Any] | None = None  # the first of them: its start and payload
    held: list[int] = field(default_factory=list)  # starts of nodes now undecided (`final`)
    settled: list[int] = field(default_factory=list)  # ... and no longer


class Algorithm(Protocol):
    """One of R0 to R4."""

    schema: pa.Schema

    def attach(self, slot: int) -> None:
        """A stream begins; nothing is known of it."""

    def detach(self, slot: int) -> None:
        """A stream is gone; what it gave is forgotten."""

    def needed(self, batch: Batch, decided: int) -> npt.NDArray[np.bool_]:
        """Which elements could matter; the others are old news, whatever their payloads."""

    def data(self, batch: Batch, view: View) -> Effects:
        """Inserts and adjusts of one stream."""

    def contribute(self, view: View) -> Effects:
        """A stream has just joined: output what it has and the output lacks."""

    def stable(self, t: int, view: View) -> Effects:
        """The decided point moves to ``t``, with the acting stream as its reference."""

    def bridge(self, t: int, view: View) -> Effects:
        """Like :meth:`stable`, across a gap that an operator has allowed."""

    @property
    def progress(self) -> int:
        """How far order alone has decided (the largest start output in R0 to R2)."""

    @property
    def live(self) -> int:
        """Events in the index."""

    @property
    def index_bytes(self) -> int:
        """Bytes of the index, without payloads."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payloads it holds."""

    def check(self, decided: int, final: bool) -> None:
        """Raise InvariantError unless the index is sound."""

    def save(self) -> dict[str, Any]:
        """Everything, as arrays, Arrow batches and plain values, compactly."""

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
