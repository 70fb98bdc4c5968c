"""Reads Spark's analysed plans: the nodes, the expressions, and the times among them.

Everything here answers what an expression *is*; what it means for a stream is the business of
:mod:`replicas.operators`. Plans live in the JVM, and are read through py4j by their class names,
which are the same from Spark 4.0 on; a shape that is not recognised answers None, never a guess.
A call through py4j takes about 0.2 ms, so expressions are read no deeper than a question needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.java_gateway import get_field
from py4j.protocol import Py4JError

from replicas.times import DAY_US

TEXT_CHARS_MAX: Final = 90
_ID: Final = re.compile(r"#\d+L?(-T\d+ms)?")
TIMES: Final = ("timestamp", "timestamp_ntz")

Node = Any
"""A logical plan in the JVM."""
Expression = Any
"""An expression in the JVM."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """What a window expression says: the time it is taken of, and how long and often."""

    time: Expression
    duration_us: int
    slide_us: int


@dataclass(frozen=True, slots=True)
class Instant:
    """``column + offset``, or ``column.part + offset`` of a window's start or end."""

    column: int
    part: str | None
    offset_us: int


@dataclass(slots=True)
class Bounds:
    """What a join's condition says of its times: ``left − right`` lies within them."""

    columns: set[int] = field(default_factory=set)
    ahead_us: int | None = None  # left is at most so much after right
    behind_us: int | None = None  # and at most so much before it
    equal: set[tuple[int, int]] = field(default_factory=set)  # (left, right) columns that are equal

    @property
    def widest_us(self) -> int | None:
        """How far apart two joined rows can be, whichever comes first; None: any distance."""
        if self.ahead_us is None or self.behind_us is None:
            return None
        return max(self.ahead_us, self.behind_us, 0)


def kind(node: Any) -> str:
    """The simple name of a node's or expression's class."""
    return str(node.getClass().getSimpleName())


def sequence(seq: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [seq.apply(place) for place in range(seq.size())]


def children(node: Any) -> list[Any]:
    """The children of a node or expression."""
    return sequence(node.children())


def text(value: Any) -> str:
    """An expression as a person would write it, cut to a line's length."""
    said = _ID.sub("", str(value.toString()))
    return said if len(said) <= TEXT_CHARS_MAX else said[: TEXT_CHARS_MAX - 1] + "…"


def tree(expression: Expression) -> Iterator[Expression]:
    """The expression and all below it."""
    yield expression
    for child in children(expression):
        yield from tree(child)


def bare(expression: Expression) -> Expression:
    """The expression without the names given to it."""
    while kind(expression) == "Alias":
        expression = expression.child()
    return expression


def column_id(expression: Expression) -> int | None:
    """Which column the expression is, when it is one."""
    return int(expression.exprId().id()) if kind(expression) == "AttributeReference" else None


def metadata(named: Expression) -> dict[str, Any]:
    """What Spark has noted of a named expression: watermarks and windows among it."""
    found: dict[str, Any] = json.loads(named.metadata().json())
    return found


def type_name(expression: Expression) -> str:
    """The SQL name of the expression's type."""
    return str(expression.dataType().simpleString())


def interval_us(interval: Any) -> int | None:
    """Microseconds of a CalendarInterval; None when it has months, which have no fixed length."""
    if get_field(interval, "months"):
        return None
    return int(get_field(interval, "days")) * DAY_US + int(get_field(interval, "microseconds"))


def integer(expression: Expression) -> int | None:
    """The value of a literal whole number."""
    if kind(expression) != "Literal":
        return None
    value = expression.value()
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def time_window(expression: Expression) -> TimeWindow | None:
    """What ``window(…)`` became: ``named_struct(start, …, end, … + duration)``.

    Spark aligns a time to its window by ``time − (time − offset) % slide``, so that the duration
    is what the end adds to the start, and the slide is the modulus.
    """
    if kind(expression) != "CreateNamedStruct":
        return None
    fields = children(expression)
    if len(fields) != 4:
        return None
    end = fields[3]
    while kind(end) in ("KnownNullable", "PreciseTimestampConversion"):
        end = end.child()
    if kind(end) != "Add":
        return None
    start, length = children(end)
    duration = integer(length)
    slide = next((children(e)[1] for e in tree(start) if kind(e) == "Remainder"), None)
    converted = next((e for e in tree(start) if kind(e) == "PreciseTimestampConversion"), None)
    slide_us = None if slide is None else integer(slide)
    if duration is None or slide_us is None or converted is None:
        return None
    return TimeWindow(converted.child(), duration, slide_us)


def window_time_of(expression: Expression) -> int | None:
    """The window column that ``window_time(…)``, which is its end less 1 µs, was taken of."""
    if kind(expression) != "PreciseTimestampConversion" or kind(expression.child()) != "Subtract":
        return None
    converted, less = children(expression.child())
    if kind(converted) != "PreciseTimestampConversion" or integer(less) != 1:
        return None
    field_of = part(converted.child())
    return field_of[0] if field_of is not None and field_of[1] == "end" else None


def part(expression: Expression) -> tuple[int, str] | None:
    """``column.field`` as the column and the field's name."""
    if kind(expression) != "GetStructField":
        return None
    column = column_id(expression.child())
    return None if column is None else (column, str(expression.extractFieldName()))


def instant(expression: Expression, shared: dict[str, Expression] | None = None) -> Instant | None:
    """The expression as a column and a constant offset; ``shared``: what references stand for."""
    shared = shared or {}
    name = kind(expression)
    column = column_id(expression)
    if column is not None:
        return Instant(column, None, 0)
    if name == "GetStructField":
        found = part(expression)
        return None if found is None else Instant(found[0], found[1], 0)
    if name == "CommonExpressionRef":
        meant = shared.get(str(expression.id().toString()))
        return None if meant is None else instant(meant, shared)
    if name in ("Alias", "DatetimeSub") or (
        name == "Cast"
        and type_name(expression) in TIMES
        and type_name(expression) == type_name(expression.child())
    ):
        return instant(children(expression)[0], shared)
    if name in ("TimestampAddInterval", "TimeAdd"):
        base, added = children(expression)
        start, offset = instant(base, shared), _constant_interval(added)
        if start is None or offset is None:
            return None
        return Instant(start.column, start.part, start.offset_us + offset)
    return None


def _constant_interval(expression: Expression) -> int | None:
    if not expression.foldable():
        return None
    try:
        value = expression.eval(None)
    except Py4JError:  # one that only an optimised plan can evaluate
        return None
    if isinstance(value, int):
        # Day-time intervals are microseconds, year-month ones months.
        return (
            value
            if type_name(expression).startswith("interval day") or _finer(type_name(expression))
            else None
        )
    return None if value is None else interval_us(value)


def _finer(type_of: str) -> bool:
    return any(type_of.startswith(f"interval {unit}") for unit in ("hour", "minute", "second"))


def python_name(node: Node) -> str:
    """The name of the Python function that a node runs."""
    return str(node.functionExpr().name())


def join_bounds(condition: Expression, left: set[int], right: set[int]) -> Bounds:
    """What the conjuncts of ``condition`` say of the times and columns of the two sides."""
    bounds = Bounds()
    for compared, shared in _conjuncts(condition, {}):
        operator = kind(compared)
        if operator not in _SIGNS:
            continue
        one, other = (instant(each, shared) for each in children(compared))
        if one is None or other is None:
            continue
        signs = _SIGNS[operator]
        if one.column in right and other.column in left:
            one, other = other, one
            signs = tuple(-sign for sign in signs)
        if one.column not in left or other.column not in right or one.part != other.part:
            continue
        if operator in _EQUALITIES and one.offset_us == other.offset_us:
            bounds.equal.add((one.column, other.column))
        if not _is_time(children(compared)[0], shared):
            continue
        bounds.columns |= {one.column, other.column}
        for sign in signs:  # +1: left ≥ right, −1: left ≤ right, offsets apart
            limit = sign * (one.offset_us - other.offset_us)
            if sign > 0:  # right − left ≤ limit
                bounds.behind_us = (
                    limit if bounds.behind_us is None else min(bounds.behind_us, limit)
                )
            else:  # left − right ≤ limit
                bounds.ahead_us = limit if bounds.ahead_us is None else min(bounds.ahead_us, limit)
    return bounds


_SIGNS: Final[dict[str, tuple[int, ...]]] = {
    "GreaterThan": (1,),
    "GreaterThanOrEqual": (1,),
    "LessThan": (-1,),
    "LessThanOrEqual": (-1,),
    "EqualTo": (1, -1),
    "EqualNullSafe": (1, -1),
}
_EQUALITIES: Final = ("EqualTo", "EqualNullSafe")


def _is_time(expression: Expression, shared: dict[str, Expression]) -> bool:
    """Whether what is compared is a time, or a window of times."""
    if kind(expression) == "CommonExpressionRef":
        expression = shared.get(str(expression.id().toString()), expression)
    name = type_name(expression)
    return name in TIMES or name.startswith("struct<start:timestamp")


def _conjuncts(
    expression: Expression, shared: dict[str, Expression]
) -> Iterator[tuple[Expression, dict[str, Expression]]]:
    """What must all hold, with what the references in it stand for."""
    name = kind(expression)
    if name == "And":
        for child in children(expression):
            yield from _conjuncts(child, shared)
    elif name == "Between":  # it stands for its only child
        yield from _conjuncts(children(expression)[0], shared)
    elif name == "With":
        known = dict(shared)
        for definition in sequence(expression.defs()):
            known[str(definition.id().toString())] = definition.child()
        yield from _conjuncts(expression.child(), known)
    else:
        yield expression, shared
