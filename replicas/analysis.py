"""Which restriction a query's result satisfies, derived from its plan (§IV.G of the paper).

Callers may rely on this: what an :class:`Analysis` claims follows from the plan, the mode and
what was declared; what does not follow is not claimed. Without a key that is R4, with one R3.

- Append mode only inserts. An aggregate by a watermarked window emits each group once, behind the
  watermark: also from disordered input its rows come in the order of their windows, as behind the
  paper's *Cleanse*. One row a window is R0; an array of each, in its order, R1; groups in it, R2.
- Update and complete mode revise: R3 by the grouping columns. The sink does not sort revisions, so
  that no order is claimed there, whatever is declared.
- What replicas may compute differently (``rand()``, ``first()``, …) breaks no promise that one
  stream makes of itself. It is noted: no merge makes unequal results equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lmerge.core.properties import Restriction, StreamProperties, choose
from lmerge.errors import ConfigurationError
from replicas import catalyst
from replicas.catalyst import Instant
from replicas.columns import SESSION, WINDOW, Column, Kept, Reading, Role, Step
from replicas.operators import kept

MODES: Final = ("append", "update", "complete")
DECLARABLE: Final = {
    "ordered_input": "every source gives its rows in the order of what becomes the start",
    "keyed_input": "no source gives the same row twice",
    "ordered": "the result's starts do not decrease",
    "strictly_increasing": "the result's starts increase",
    "deterministic_ties": "rows of the same start come in the same order in every replica",
    "keyed": "no two rows of the result have the same start and payload",
    "insert_only": "no row of the result is ever revised",
}
"""What a plan cannot show; the server verifies it of the result while the query runs."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window column of a result."""

    column: str
    duration_us: int
    slide_us: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """The event time of a query, and how late rows may be."""

    column: str
    delay_us: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """What follows from a plan."""

    restriction: Restriction
    properties: StreamProperties
    keys: tuple[str, ...] = ()  # grouping columns of the result, the window among them
    window: Window | None = None
    look_back_us: int | None = None
    """Input of time t matters to no event that ends after t + this; None: it may to any."""
    behind_us: int | None = None
    """How far before the watermark a new row can start; 0 makes stable(watermark) exact, with more
    the stable must stay that far behind, or such rows are late; None: not known."""
    watermark: Watermark | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    why: tuple[str, ...] = field(default=())  # the restriction's reasons


def analyse(
    df: DataFrame,
    mode: str = "append",
    *,
    vs: str | None = None,
    ve: str | None = None,
    payload: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    **declared: bool,
) -> Analysis:
    """Derive what ``df``'s result satisfies in ``mode``; ``declared``: see :data:`DECLARABLE`.

    ``vs``, ``ve``, ``payload`` and ``key`` are those of :func:`replicas.attach`. Without ``vs`` a
    windowed result is taken to live in its default lifetime.
    """
    if mode not in MODES:
        raise ConfigurationError(f"mode is append, update or complete, not {mode!r}")
    unknown = sorted(set(declared) - set(DECLARABLE))
    if unknown:
        can = ", ".join(DECLARABLE)
        raise ConfigurationError(f"{unknown[0]!r} cannot be declared; what can is {can}")
    said = {name for name, value in declared.items() if value}
    plan = _plan(df)
    reading = Reading(mode, "ordered_input" in said, "keyed_input" in said)
    known = kept(plan, reading)
    window = _window(known)
    start, end = _lifetime(df, vs, ve, window, known)
    result = _Result(known, start, end)
    held = set(payload) if payload is not None else {
        each.name for each in known.columns if each.name not in (vs, ve)
    }  # fmt: skip
    held |= {vs} if vs is not None else set()
    has_key = _keyed(known, held) or (mode != "append" and key is not None)
    properties, why = _properties(mode, result, said, has_key, reading)
    _note_doubts(known, reading)
    _note_refusal(df, plan, mode, reading)
    marks = [Watermark(name, delay) for name, delay in known.watermarks]
    if len({(each.column, each.delay_us) for each in marks}) > 1:
        reading.note("of several watermarks Spark follows the slowest, unless it is told otherwise")
    restriction = choose([properties])
    keys = tuple(c.name for c in known.columns if known.key is not None and c.id in known.key)
    return Analysis(
        restriction,
        properties,
        tuple(key) if key is not None else keys,
        window,
        result.look_back_us,
        result.behind_us if mode != "complete" else None,
        marks[0] if marks else None,
        tuple(reading.steps),
        tuple(reading.notes),
        (*why, f"so {restriction.value}: {_MEANS[restriction]}"),
    )


_MEANS: Final = {
    Restriction.R0: "only inserts, strictly increasing starts",
    Restriction.R1: "only inserts, ordered, equal starts in one order everywhere",
    Restriction.R2: "only inserts, ordered, start and payload are a key",
    Restriction.R3: "any order and revisions, start and payload are a key",
    Restriction.R4: "no restriction: a multiset",
}


def _plan(df: DataFrame) -> Any:
    try:
        return df._jdf.queryExecution().analyzed()
    except AttributeError:
        raise ConfigurationError(
            "plans are read in the driver's JVM, which a Spark Connect session does not show"
        ) from None


def _window(known: Kept) -> Window | None:
    """The result's one window; with several there is no default lifetime."""
    found = [c for c in known.columns if _is_window(c)]
    if len({c.role.origin for c in found if c.role is not None}) != 1:
        return None
    role = found[0].role
    assert role is not None  # noqa: S101 - _is_window has seen it
    return Window(found[0].name, role.duration_us, role.slide_us)


def _is_window(column: Column) -> bool:
    return column.role is not None and column.role.kind == WINDOW and column.role.part is None


def _lifetime(
    df: DataFrame, vs: str | None, ve: str | None, window: Window | None, known: Kept
) -> tuple[Instant | None, Instant | None]:
    """Start and end as times of a column, where they can be followed."""
    if vs is None and window is not None:
        column = next(c.id for c in known.columns if c.name == window.column and _is_window(c))
        start = Instant(column, "end", 0)
        end = Instant(column, "end", window.slide_us) if ve is None else _instant(df, ve)
        return start, end
    return _instant(df, vs), _instant(df, ve)


def _instant(df: DataFrame, said: str | None) -> Instant | None:
    if said is None:
        return None
    source = f"`{said.replace('`', '``')}`" if said in df.columns else f"({said})"
    try:
        plan = df.selectExpr(f"{source} AS time")._jdf.queryExecution().analyzed()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"{said!r} is no expression over the result: {reason}") from error
    if catalyst.kind(plan) != "Project":
        return None
    return catalyst.instant(catalyst.sequence(plan.projectList())[0])


@dataclass(frozen=True, slots=True)
class _Result:
    """The result, and its start and end as far as they are known."""

    known: Kept
    start: Instant | None
    end: Instant | None

    @property
    def time(self) -> Role | None:
        """What the start is."""
        return None if self.start is None else self.known.role(self.start.column)

    def part(self, instant: Instant) -> str | None:
        """Which part of a window it is."""
        role = self.known.role(instant.column)
        return instant.part or (role.part if role is not None else None)

    @property
    def in_order(self) -> bool:
        """Whether starts come in order."""
        order = self.known.order
        if order is None:
            return False
        if order.by is None:  # declared of whatever becomes the start
            return True
        time = self.time
        if time is None or self.start is None or time.origin != order.by:
            return False
        # Sessions end in order, but a longer one has begun earlier.
        return time.kind != SESSION or self.part(self.start) in ("end", "time")

    @property
    def look_back_us(self) -> int | None:
        """As the analysis has it."""
        if self.end is None or not self.known.bounded:
            return None
        role = self.known.role(self.end.column)
        if role is None or role.reach_us is None:
            return None
        # A window's start is taken for its end: more look-back than needed does no harm.
        return max(0, role.reach_us + self.end.offset_us)

    @property
    def behind_us(self) -> int | None:
        """As the analysis has it."""
        time = self.time
        if time is None or self.start is None or time.behind_us is None:
            return None
        part = self.part(self.start)
        if part == "start" and time.kind == SESSION:
            return None
        before = {"start": time.duration_us, "time": 1}.get(part or "", 0)
        return max(0, time.behind_us + before - self.start.offset_us)


def _keyed(known: Kept, held: set[str]) -> bool:
    """Whether start and payload tell rows apart: the key is in what they hold."""
    return known.key is not None and all(
        each.name in held for each in known.columns if each.id in known.key
    )


def _properties(
    mode: str, result: _Result, said: set[str], has_key: bool, reading: Reading
) -> tuple[StreamProperties, list[str]]:
    """The properties, and why."""
    order = result.known.order
    appends = mode == "append"
    ordered = appends and result.in_order
    strict = ordered and order is not None and order.by is not None and order.strict
    ties = ordered and order is not None and order.ties
    why = ["append mode only inserts" if appends else f"{mode} mode revises rows"]
    if not appends and said & {"ordered", "strictly_increasing", "deterministic_ties"}:
        reading.note(f"what is declared of the order does not count: {mode} mode does not sort")
    of_result = said if appends else said & {"keyed", "insert_only"}
    for name in sorted(of_result & set(StreamProperties.__slots__)):
        why.append(f"declared: {DECLARABLE[name]}")
    if strict:
        why.append("one row for each time, in order")
    elif ordered:
        why.append("rows come in the order of their starts")
    elif appends and result.known.order is not None:
        why.append("rows come in order, but not of what becomes the start")
    if has_key:
        names = result.known.names(result.known.key) if result.known.key else "as it is said"
        why.append(f"start and payload are a key: {names}")
    elif not strict:
        why.append("no key is certain: rows may be equal")
    properties = StreamProperties(
        insert_only=appends or "insert_only" in of_result,
        ordered=ordered or "ordered" in of_result,
        strictly_increasing=strict or "strictly_increasing" in of_result,
        deterministic_ties=ties or "deterministic_ties" in of_result,
        keyed=has_key or "keyed" in of_result,
    )
    return properties, why


def _note_doubts(known: Kept, reading: Reading) -> None:
    for each in known.columns:
        if each.doubt is not None:
            reading.note(f"replicas may differ in {each.name}: {each.doubt}")


def _note_refusal(df: DataFrame, plan: Any, mode: str, reading: Reading) -> None:
    """What Spark itself will say when the query is started."""
    if not df.isStreaming:
        reading.note("this is a batch DataFrame: a replica runs a streaming one")
        return
    jvm: Any = df.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    try:
        checker.checkForStreaming(plan, output_mode)
    except PySparkException as error:
        said = str(error).strip().splitlines()[0].rstrip(";")
        reading.note(f"Spark will refuse this query in {mode} mode: {said}")
