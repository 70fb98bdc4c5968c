"""What a reader hands over.

An item's ``position`` is where reading would go on after it: keep it with what was made of the
item, and nothing is seen twice or missed. In consistent and final delivery it moves only with the
last item of a group, so that whoever stops inside a group gets the whole group again. A
:class:`~lmerge.client.merged.MergedReader` has no single position: there it is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lmerge.errors import ConfigurationError
from lmerge.times import show


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a merge's output; as text ``generation@sequence``."""

    generation: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.generation}@{self.sequence}"

    @staticmethod
    def parse(text: str) -> Position:
        """The inverse of ``str``.

        >>> Position.parse("a1@7")
        Position(generation='a1', sequence=7)
        """
        generation, at, sequence = text.rpartition("@")
        if not at or not generation or not (sequence.isascii() and sequence.isdigit()):
            raise ConfigurationError(f"a position is GENERATION@NUMBER, not {text!r}")
        if int(sequence) >= 1 << 64:
            raise ConfigurationError(f"there is no position {text}")
        return Position(generation, int(sequence))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A piece of what is live at ``position``, as inserts; of the last piece ``last`` is true.

    Of final results nothing is live: one piece without rows says where they are.
    """

    batch: pa.RecordBatch
    position: Position | None
    stable: int | None  # the stable point; only in the last piece, if there is one
    last: bool
    since: int | None = None  # what ended before is left out; only in the last piece


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Inserts and adjusts."""

    batch: pa.RecordBatch
    position: Position | None
    complete: bool  # whether a group ends here


@dataclass(frozen=True, slots=True)
class StablePoint:
    """The output's stable point is ``vc`` now."""

    vc: int
    position: Position | None
    complete: bool

    def __str__(self) -> str:
        return f"stable({show(self.vc)})"


@dataclass(frozen=True, slots=True)
class Gap:
    """Nothing is known of what ended in ``[start, end)``: an operator has allowed that."""

    start: int
    end: int
    position: Position | None
    complete: bool


Item: TypeAlias = Snapshot | Elements | StablePoint | Gap
