"""What is known of a stream between two operators of a plan: its columns, its key, its order.

Everything here is true of every run of the plan on any input that is as declared, or it is absent:
None always means "not known", never "no". A column's *role* says what it has to do with time, so
that the start of a result's row can be followed back to the input; its *doubt* says why two
replicas may compute different values for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from replicas import catalyst
from replicas.catalyst import Expression, Node

INSTANT: Final = "instant"
WINDOW: Final = "window"
SESSION: Final = "session"


@dataclass(frozen=True, slots=True)
class Role:
    """What a column has to do with time: it is one, or a window, or a part of a window."""

    origin: int  # the column it goes back to: copies of one window have the same
    kind: str  # INSTANT, WINDOW or SESSION
    part: str | None = None  # of a window: "start", "end", "time" (the end less 1 µs)
    duration_us: int = 0
    slide_us: int = 0
    reach_us: int | None = 0  # how far after the input it comes from it (a window: its end) can lie
    watermarked: bool = False
    behind_us: int | None = None  # how far before the watermark a new row's (end) can be; None: any


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an operator's output."""

    id: int
    name: str
    role: Role | None = None
    doubt: str | None = None  # why replicas may not agree on it
    unsorted: bool = False  # an array, and only its order is in doubt


@dataclass(frozen=True, slots=True)
class Order:
    """The rows come in order from epoch to epoch; within one the sink sorts them, stably."""

    by: int | None  # the origin of a time; None: what becomes the start, as was declared
    strict: bool = False  # no two rows have the same time
    ties: bool = False  # rows of the same time come in an order that the data alone determines


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of the stream that leaves an operator."""

    columns: tuple[Column, ...] = ()
    key: frozenset[int] | None = None  # together they tell any two rows apart
    order: Order | None = None
    bounded: bool = True  # a row depends on no input but that which its times are taken from
    delay_us: int | None = 0  # how far the watermark that operators see here trails the query's
    watermarks: tuple[tuple[str, int], ...] = ()
    aggregated: bool = False

    def column(self, identity: int | None) -> Column | None:
        """The column of that identity."""
        return next((each for each in self.columns if each.id == identity), None)

    def role(self, identity: int | None) -> Role | None:
        """The role of that column."""
        found = self.column(identity)
        return None if found is None else found.role

    def names(self, identities: frozenset[int]) -> str:
        """Their names, in the order of the columns."""
        return ", ".join(each.name for each in self.columns if each.id in identities)


@dataclass(frozen=True, slots=True)
class Step:
    """An operator, and in plain words what it keeps or loses; ``depth``: 0 is the result's."""

    operator: str
    says: str
    depth: int = 0


@dataclass(slots=True)
class Reading:
    """One reading of a plan: what is declared of its sources, and what was found on the way."""

    mode: str
    ordered: bool = False
    keyed: bool = False  # no source gives the same row twice
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: dict[int, Kept] = field(default_factory=dict)  # what WITH … AS defined
    depth: int = 0

    def step(self, operator: str, says: str) -> None:
        """The next operator; sources come first."""
        self.steps.append(Step(operator, says, self.depth))

    def note(self, said: str) -> None:
        """Something the user should know, once."""
        if said not in self.notes:
            self.notes.append(said)


def columns_of(node: Node) -> tuple[Column, ...]:
    """The columns that leave a node, with nothing known of them."""
    found = catalyst.sequence(node.output())
    return tuple(Column(int(each.exprId().id()), str(each.name())) for each in found)


def renamed(node: Node, known: Kept) -> Kept:
    """The same rows under other column identities, in the same places."""
    pairs = list(zip(known.columns, columns_of(node), strict=True))
    to = {old.id: new.id for old, new in pairs}
    return reborn(
        replace(
            known,
            columns=tuple(replace(old, id=new.id, name=new.name) for old, new in pairs),
            key=None if known.key is None else frozenset(to[each] for each in known.key),
        )
    )


def reborn(known: Kept) -> Kept:
    """The same, with times that go back no further than here.

    Two sides of a join may read one source: the same origin would say that their times are equal.
    """
    first: dict[int, int] = {}
    for each in known.columns:
        if each.role is not None:
            first.setdefault(each.role.origin, each.id)
    columns = tuple(
        each if each.role is None
        else replace(each, role=replace(each.role, origin=first[each.role.origin]))
        for each in known.columns
    )  # fmt: skip
    order = known.order
    if order is not None and order.by is not None:
        order = replace(order, by=first[order.by]) if order.by in first else None
    return replace(known, columns=columns, order=order)


def column(named: Expression, known: Kept) -> Column:
    """The column that a named expression over ``known`` makes."""
    identity, name = int(named.exprId().id()), str(named.name())
    expression = catalyst.bare(named)
    source = known.column(catalyst.column_id(expression))
    if source is not None:
        return replace(source, id=identity, name=name)
    role = role_of(named, expression, identity, known)
    reason, unsorted = doubt(expression, known)
    return Column(identity, name, role, reason, unsorted)


def role_of(named: Expression, expression: Expression, identity: int, known: Kept) -> Role | None:
    """What an expression, named so, has to do with time."""
    part = catalyst.part(expression)
    window = known.role(part[0] if part is not None else catalyst.window_time_of(expression))
    if window is None and catalyst.kind(expression) != "CreateNamedStruct":
        return None
    noted = catalyst.metadata(named)
    watermarked = "spark.watermarkDelayMs" in noted
    if window is not None:
        if window.kind == INSTANT:
            return None
        which = "time" if part is None else part[1]
        return replace(window, part=which, watermarked=watermarked)
    if "spark.sessionWindow" in noted:
        # A session grows as long as rows come: its end can be any time after a row of it.
        return Role(identity, SESSION, reach_us=None, watermarked=watermarked)
    found = catalyst.time_window(expression) if "spark.timeWindow" in noted else None
    if found is None:
        return None
    time = known.role(catalyst.column_id(found.time))
    # A time that is not followed back may be computed from anything.
    reach = None if time is None or time.reach_us is None else time.reach_us + found.duration_us
    return Role(
        identity, WINDOW, None, found.duration_us, found.slide_us, reach, watermarked
    )  # fmt: skip


def doubt(expression: Expression, known: Kept) -> tuple[str | None, bool]:
    """Why replicas may compute it differently, and whether only an array's order is in doubt."""
    name = catalyst.kind(expression)
    if name == "AttributeReference":
        found = known.column(catalyst.column_id(expression))
        return (None, False) if found is None else (found.doubt, found.unsorted)
    if name in _EACH_ITS_OWN:
        return f"{catalyst.text(expression)} is another value in every replica", False
    reason, unsorted = None, False
    for child in catalyst.children(expression):
        of_child, child_unsorted = doubt(child, known)
        if of_child is not None and (reason is None or not child_unsorted):
            reason, unsorted = of_child, child_unsorted
    if name in _BY_ARRIVAL:
        return f"{catalyst.text(expression)} depends on the order of arrival", name in _ARRAYS
    if name in _SUMS and any(
        catalyst.type_name(each) in ("float", "double") for each in catalyst.children(expression)
    ):
        return (
            f"{catalyst.text(expression)} of floating point depends on the order of addition",
            False,
        )
    if unsorted and name == "SortArray":
        return None, False
    if reason is None and not expression.deterministic():
        return f"{catalyst.text(expression)} is declared nondeterministic", False
    return reason, unsorted and name in ("AggregateExpression", "Alias")


# By name, since Spark counts neither the clock nor a sum's rounding as nondeterministic; what it
# does count so, and is not here, is found by its flag.
_EACH_ITS_OWN: Final = frozenset({
    "Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform", "MonotonicallyIncreasingID",
    "SparkPartitionID", "CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp",
    "CurrentBatchTimestamp", "InputFileName",
})  # fmt: skip
_ARRAYS: Final = frozenset({"CollectList", "CollectSet"})
_BY_ARRIVAL: Final = _ARRAYS | {
    "First", "Last", "AnyValue", "MaxBy", "MinBy", "ListAgg", "Mode", "ApproximatePercentile",
    "HistogramNumeric",
}  # fmt: skip
_SUMS: Final = frozenset({
    "Sum", "Average", "TrySum", "TryAverage", "StddevSamp", "StddevPop", "VarianceSamp",
    "VariancePop", "Corr", "CovSample", "CovPopulation", "Skewness", "Kurtosis",
})  # fmt: skip


def carried(
    key: frozenset[int] | None,
    expressions: Sequence[Expression],
    columns: tuple[Column, ...],
    known: Kept,
) -> frozenset[int] | None:
    """The key as the expressions carry it on; None when a part of it stays behind."""
    if key is None:
        return None
    same: dict[int, int] = {}
    for named, made in zip(expressions, columns, strict=True):
        identity = catalyst.column_id(catalyst.bare(named))
        if identity is not None:
            same.setdefault(identity, made.id)
    result = set()
    for each in key:
        found = same.get(each)
        role = known.role(each)
        if found is None and role is not None and role.kind != INSTANT:
            # Windows of one length have one start for each end: either tells as much as the
            # window. Sessions of one group do not overlap: the same holds.
            alike = (c.id for c in columns if c.role and c.role.origin == role.origin)
            found = next(alike, None)
        if found is None:
            return None
        result.add(found)
    return frozenset(result)


def furthest(distances: Sequence[int | None]) -> int | None:
    """The largest; None, which is any distance, is larger than all."""
    known = [each for each in distances if each is not None]
    return max(known, default=0) if len(known) == len(distances) else None


def duration(microseconds: int) -> str:
    """Microseconds in the largest unit that leaves a whole number."""
    for unit, name in _UNITS:
        if microseconds and microseconds % unit == 0:
            return f"{microseconds // unit} {name}"
    return f"{microseconds} µs" if microseconds else "0"


_UNITS: Final = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"),
                 (1_000_000, "s"), (1_000, "ms"))  # fmt: skip
