"""What a join keeps or loses: of two streams, or of a stream and a table.

Two streams' rows meet when the later one arrives, so that a join has no order; rows are told apart
by the keys of both sides. A table beside a stream is read anew in each micro-batch, and leaves the
order of epochs as it is. How far apart two rows can be that meet comes from the join's condition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from replicas import catalyst
from replicas.catalyst import Bounds, Node
from replicas.columns import Column, Kept, Reading, Role, columns_of, duration, furthest, reborn
from replicas.operators import STATIC, kept

ROUNDING_US: Final = 2_000
"""Watermarks count milliseconds: one on each side."""


def join(node: Node, reading: Reading) -> Kept:
    """What is known of the rows that leave a join."""
    left_node, right_node = node.left(), node.right()
    streaming = [bool(each.isStreaming()) for each in (left_node, right_node)]
    sides = []
    reading.depth += 1
    for side, streams in zip((left_node, right_node), streaming, strict=True):
        own = reading if streams else Reading(STATIC)
        sides.append(reborn(kept(side, own)))
    reading.depth -= 1
    left, right = sides
    how = str(node.joinType().toString())
    bounds = Bounds()
    if node.condition().isDefined():
        bounds = catalyst.join_bounds(
            node.condition().get(),
            {each.id for each in left.columns},
            {each.id for each in right.columns},
        )
    key = _key(how, left, right, bounds)
    if reading.mode == STATIC:
        return Kept(_output(node, left, right), key)
    if all(streaming):
        return _streams(node, how, left, right, bounds, key, reading)
    return _with_table(node, how, left, right, key, streaming[0], reading)


def _key(how: str, left: Kept, right: Kept, bounds: Bounds) -> frozenset[int] | None:
    if how in ("LeftSemi", "LeftAnti"):
        return left.key
    if how not in ("Inner", "LeftOuter", "RightOuter"):
        return None  # of a full outer join, both sides' missing rows look alike
    one, other = left.key, right.key
    if how != "RightOuter" and one is not None and _determined(other, {b for _, b in bounds.equal}):
        return one  # at most one row of the right for each of the left
    if how != "LeftOuter" and other is not None and _determined(one, {a for a, _ in bounds.equal}):
        return other
    return None if one is None or other is None else one | other


def _determined(key: frozenset[int] | None, equal: set[int]) -> bool:
    return key is not None and key <= equal


def _says(key: frozenset[int] | None, columns: tuple[Column, ...]) -> str:
    if key is None:
        return "loses the key: a side has none, or rows without a partner look alike"
    return f"keyed by {', '.join(each.name for each in columns if each.id in key)}"


def _streams(
    node: Node,
    how: str,
    left: Kept,
    right: Kept,
    bounds: Bounds,
    key: frozenset[int] | None,
    reading: Reading,
) -> Kept:
    apart = bounds.widest_us
    delay = furthest([left.delay_us, right.delay_us])
    marked = {
        each.id
        for each in (*left.columns, *right.columns)
        if each.id in bounds.columns and each.role is not None and each.role.watermarked
    }
    behind = None
    if apart is not None and delay is not None and marked == bounds.columns:
        behind = delay + apart + ROUNDING_US
    known = replace(
        left,
        columns=(
            *_reaching(left, right, bounds, bounds.ahead_us, behind),
            *_reaching(right, left, bounds, bounds.behind_us, behind),
        ),
    )
    output = _output(node, known, known)
    within = "any time apart" if apart is None else f"at most {duration(apart)} apart"
    reading.step(f"Join {how} of two streams, rows {within}", f"{_says(key, output)}; loses order")
    if how != "Inner":
        reading.note("rows without a partner come only when the watermark has passed all partners")
    return Kept(
        output,
        key,
        None,
        left.bounded and right.bounded,
        behind,
        (*left.watermarks, *right.watermarks),
        left.aggregated or right.aggregated,
    )


def _reaching(
    own: Kept, other: Kept, bounds: Bounds, after_us: int | None, behind_us: int | None
) -> tuple[Column, ...]:
    """The columns of a side, whose times can lie ``after_us`` after the other side's."""
    theirs = [r.reach_us for c in bounds.columns if (r := other.role(c)) is not None]
    compared = {r.origin for c in bounds.columns if (r := own.role(c)) is not None}
    result = []
    for each in own.columns:
        role = each.role
        if role is not None:
            role = _reach(role, theirs, after_us, is_compared=role.origin in compared)
            if role.origin in compared:
                role = replace(role, behind_us=behind_us)
        result.append(replace(each, role=role))
    return tuple(result)


def _reach(
    role: Role, theirs: list[int | None], after_us: int | None, *, is_compared: bool
) -> Role:
    far = furthest(theirs)
    if not is_compared or after_us is None or far is None or role.reach_us is None or not theirs:
        return replace(role, reach_us=None)
    return replace(role, reach_us=max(role.reach_us, after_us + far))


def _with_table(
    node: Node,
    how: str,
    left: Kept,
    right: Kept,
    key: frozenset[int] | None,
    left_streams: bool,
    reading: Reading,
) -> Kept:
    stream = left if left_streams else right
    output = _output(node, left, right)
    single = how in ("LeftSemi", "LeftAnti") or (key is not None and key == stream.key)
    order = stream.order and replace(
        stream.order, strict=stream.order.strict and single, ties=False
    )  # fmt: skip
    reading.step(f"Join {how} with a table", f"{_says(key, output)}; keeps order")
    reading.note(
        "the table is read anew in each micro-batch: replicas agree only as long as it stays the"
        " same"
    )
    return replace(stream, columns=output, key=key, order=order)


def _output(node: Node, left: Kept, right: Kept) -> tuple[Column, ...]:
    """The columns that leave the join, with what is known of them."""
    return tuple(left.column(each.id) or right.column(each.id) or each for each in columns_of(node))
