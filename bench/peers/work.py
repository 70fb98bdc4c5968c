"""The work: three divergent copies of one stream, and the events that a merge must end with."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bench.arrivals import Slice, slices, write
from lmerge.elements import Op
from lmerge.workload import Stream, Workload, generate

Key = tuple[int, int, str]


@dataclass(frozen=True)
class Work:
    """One case."""

    name: str
    what: str
    revisions: float = 0.36
    dies: bool = False
    """The replica that is last loses the second half of what it had to say."""


CASES: Final = (
    Work("inserts", "three copies in different disorder, inserts alone", revisions=0.0),
    Work("revising", "three copies that revise"),
    Work("dying", "three copies that revise; the one that lags is killed in the middle", dies=True),
)


class Given(NamedTuple):
    """A case, prepared."""

    path: Path
    elements: int
    truth: dict[Key, int]


def prepare(directory: Path, case: Work, elements: int, live: int, rows: int, seed: int) -> Given:
    """The arrivals in a file, and the truth."""
    workload = Workload(
        elements=elements,
        live=live,
        payload_size=24,
        revisions=case.revisions,
        lag=0 if not case.dies else max(1, live * 20 // 8),
        seed=seed,
    )
    streams = generate(workload)
    arriving = slices(streams, rows)
    if case.dies:
        arriving = _without_second_half(arriving, streams[-1].name)
    count = sum(part.batch.num_rows for part in arriving)
    return Given(write(directory, arriving), count, truth(streams[0]))


def _without_second_half(arriving: list[Slice], name: str) -> list[Slice]:
    left = sum(part.name == name for part in arriving) // 2
    kept: list[Slice] = []
    for part in arriving:
        if part.name == name:
            left -= 1
            if left < 0:
                continue
        kept.append(part)
    return kept


def truth(stream: Stream) -> dict[Key, int]:
    """The events of a stream by their key, and when each ends."""
    ends: dict[Key, int] = {}
    columns = (stream.batch.column(name).to_pylist() for name in ("op", "vs", "ve", "x", "s"))
    for op, vs, ve, x, s in zip(*columns, strict=True):
        if op == Op.STABLE:
            continue
        if ve > vs:
            ends[vs, x, s] = ve
        else:
            del ends[vs, x, s]
    return ends


@dataclass(frozen=True)
class Verdict:
    """How a peer's events differ from the truth."""

    events: int
    wrong_ends: int
    should_not_exist: int
    missing: int

    @property
    def right(self) -> bool:
        """Whether they do not."""
        return not (self.wrong_ends or self.should_not_exist or self.missing)

    def as_json(self) -> dict[str, Any]:
        """As a plain value."""
        return {**asdict(self), "right": self.right}


def judge(result: pa.Table, truth: dict[Key, int]) -> Verdict:
    """Compare events with the truth; one of a key too many should not exist either."""
    columns = (result.column(name).to_pylist() for name in ("vs", "ve", "x", "s"))
    seen: Counter[Key] = Counter()
    wrong = spurious = 0
    for vs, ve, x, s in zip(*columns, strict=True):
        key = (vs, x, s)
        seen[key] += 1
        if key not in truth or seen[key] > 1:
            spurious += 1
        elif truth[key] != ve:
            wrong += 1
    return Verdict(result.num_rows, wrong, spurious, sum(key not in seen for key in truth))
