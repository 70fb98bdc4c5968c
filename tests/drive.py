"""Runs arrivals of the oracle through the product, and translates what comes out.

The oracle's elements are tuples with infinities as floats; the product's are Arrow batches with
infinities as int64. Nothing else is shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lmerge.core.merge import Merge
from lmerge.core.output import Gap, Output
from lmerge.core.policy import Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Op, Stable
from lmerge.times import INFINITY

SCHEMA = pa.schema([("p", pa.string())])
ELEMENTS = pa.schema(
    [("op", pa.int8()), ("vs", pa.int64()), ("ve", pa.int64()), ("vold", pa.int64()), *SCHEMA]
)
KEY = bytes(range(32))


def to_int(t: float) -> int:
    return INFINITY if t == math.inf else int(t)


def from_int(t: int) -> float | int:
    return math.inf if t == INFINITY else t


def to_batch(elements: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Elements of one stream, stables included, as the product takes them."""
    rows: list[tuple[Any, ...]] = []
    for kind, *rest in elements:
        if kind == "stable":
            rows.append((Op.STABLE, to_int(rest[0]), 0, 0, None))
        elif kind == "insert":
            p, vs, ve = rest
            rows.append((Op.INSERT, to_int(vs), to_int(ve), 0, str(p)))
        else:
            p, vs, vold, ve = rest
            rows.append((Op.ADJUST, to_int(vs), to_int(ve), to_int(vold), str(p)))
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[]] * 5
    arrays = [pa.array(c, field.type) for c, field in zip(columns, ELEMENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ELEMENTS)


def from_output(output: Output) -> list[tuple[Any, ...]]:
    """What was output, as the oracle writes it."""
    elements: list[tuple[Any, ...]] = []
    for part in output.parts:
        if isinstance(part, Stable):
            elements.append(("stable", from_int(part.vc)))
        elif isinstance(part, Gap):
            elements.append(("gap", part.start, part.end))
        else:
            elements.extend(_rows(part))
    return elements


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    for row in batch.to_pylist():
        p, vs, ve = row["p"], from_int(row["vs"]), from_int(row["ve"])
        if row["op"] == Op.INSERT:
            yield ("insert", p, vs, ve)
        else:
            yield ("adjust", p, vs, from_int(row["vold"]), ve)


def new_merge(restriction: str, policy: Policy | None = None, **options: Any) -> Merge:
    return Merge(SCHEMA, Restriction(restriction), policy, key=KEY, **options)


def arrive(merge: Merge, arrivals: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Arrivals as one round: control alone, elements grouped by stream; all that they cause."""
    out: list[tuple[Any, ...]] = []
    waiting: dict[str, list[tuple[Any, ...]]] = {}

    def flush() -> None:
        for stream, elements in waiting.items():
            out.extend(from_output(merge.apply(stream, to_batch(elements))))
        waiting.clear()

    for kind, stream, *rest in arrivals:
        if kind == "element":
            waiting.setdefault(stream, []).append(rest[0])
            continue
        flush()
        if kind == "attach":
            since = None if rest[0] is None else to_int(rest[0])
            out.extend(from_output(merge.attach(stream, since)))
        else:
            out.extend(from_output(merge.detach(stream)))
    flush()
    return out


def by_element(elements: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """In an order that does not depend on how ties inside one stable are broken."""
    return sorted(elements, key=repr)
