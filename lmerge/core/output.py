"""What a call of the merge returns: output in order, feedback owed, and notices for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from lmerge.elements import Stable
from lmerge.times import show


class Gap(NamedTuple):
    """Nothing is known of what ended in ``[start, end)``: an operator has allowed that."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"gap({show(self.start)}, {show(self.end)})"


class Feedback(NamedTuple):
    """Nothing of ``stream`` with ``ve < before`` is needed any more."""

    stream: str
    before: int


class NoticeKind(Enum):
    """What a person may want to know."""

    JOINED = "joined"
    QUARANTINED = "quarantined"
    DIVERGED = "diverged"
    CONFLICT = "conflict"
    STALLED = "stalled"


class Notice(NamedTuple):
    """One thing that happened beside the output."""

    kind: NoticeKind
    stream: str | None
    text: str

    def __str__(self) -> str:
        return self.text


Part: TypeAlias = Any  # pa.RecordBatch | Stable | Gap, but pyarrow has no types


@dataclass(slots=True)
class Output:
    """The result of one call, to be taken as a whole: a stable never overtakes its elements."""

    parts: list[Part] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches of elements alone."""
        return (part for part in self.parts if isinstance(part, pa.RecordBatch))

    @property
    def stable(self) -> int | None:
        """The last stable, if there is one."""
        vcs = [part.vc for part in self.parts if isinstance(part, Stable)]
        return vcs[-1] if vcs else None

    @property
    def rows(self) -> int:
        """How many inserts and adjusts there are."""
        return sum(batch.num_rows for batch in self.batches())
