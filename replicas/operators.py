"""What each operator of a plan keeps or loses of the stream that goes into it (§IV.G of the paper).

Callers may rely on this: what :func:`kept` says is true of every run of the plan, on any input that
is as declared. Where that cannot be shown it says less: an operator that is not known loses
everything. It builds on what Spark does, as seen in runs of it: an aggregate with a watermark in
append mode emits, in each epoch, exactly the groups whose window ends after the last epoch's
watermark and not after this one's; and on what the sink does: it sorts an epoch's rows by start,
and keeps the order of equal starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from replicas import catalyst
from replicas.catalyst import Expression, Node
from replicas.columns import (
    INSTANT,
    SESSION,
    Column,
    Kept,
    Order,
    Reading,
    Role,
    carried,
    column,
    columns_of,
    doubt,
    duration,
    furthest,
    renamed,
    role_of,
)
from replicas.fast_forwarding import ENDS

STATIC: Final = "static"
"""The mode of a reading of a table: nothing of it streams."""


def kept(node: Node, reading: Reading) -> Kept:
    """What is known of the stream that leaves ``node``."""
    name = catalyst.kind(node)
    if name == "WithCTE":
        for definition in catalyst.sequence(node.cteDefs()):
            reading.shared[int(definition.id())] = kept(definition.child(), reading)
        return kept(node.plan(), reading)
    if name == "CTERelationRef" and int(node.cteId()) in reading.shared:
        return renamed(node, reading.shared[int(node.cteId())])
    below = catalyst.children(node)
    if not below:
        return _source(node, name, reading)
    if name == "Join":
        from replicas.joins import join  # which reads both of its sides with this function

        return join(node, reading)
    reading.depth += name not in _SILENT
    inputs = [kept(child, reading) for child in below]
    reading.depth -= name not in _SILENT
    mixed = reading.mode != STATIC and not all(bool(child.isStreaming()) for child in below)
    if not mixed and not _streaming_subquery(node):  # a table's rows among a stream's: unknown
        if name == "Union":
            return _union(node, inputs, reading)
        if name in _SILENT:
            return inputs[0]
        rule = _RULES.get(name)
        if rule is not None and len(inputs) == 1:
            return rule(node, inputs[0], reading)
    reading.step(name, "loses everything: nothing is known of what it does")
    watermarks = tuple(each for known in inputs for each in known.watermarks)
    return Kept(columns_of(node), bounded=False, delay_us=None, watermarks=watermarks)


def _streaming_subquery(node: Node) -> bool:
    return any(bool(each.isStreaming()) for each in catalyst.sequence(node.subqueries()))


def _source(node: Node, name: str, reading: Reading) -> Kept:
    columns = tuple(
        replace(made, role=Role(made.id, INSTANT))
        if catalyst.type_name(attribute) in catalyst.TIMES
        else made
        for made, attribute in zip(
            columns_of(node), catalyst.sequence(node.output()), strict=True
        )
    )  # fmt: skip
    names = ", ".join(each.name for each in columns)
    if reading.mode == STATIC:
        return Kept(columns)
    title = str(node.sourceName()) if name.startswith("StreamingRelation") else name
    says = (
        f"{'declared in order' if reading.ordered else 'its order is not known'}; "
        f"{'declared free of repeated rows' if reading.keyed else 'rows may repeat'}"
    )
    reading.step(f"Source {title} [{names}]", says)
    return Kept(
        columns,
        frozenset(each.id for each in columns) if reading.keyed else None,
        Order(None) if reading.ordered else None,
    )


def _watermark(node: Node, known: Kept, reading: Reading) -> Kept:
    event_time = node.eventTime()
    identity, name = catalyst.column_id(event_time), str(event_time.name())
    delay = catalyst.interval_us(node.delay()) or 0
    reading.step(
        f"Watermark {name}, {duration(delay)}",
        "keeps everything; stateful operators drop rows behind it, stateless ones do not",
    )
    columns = tuple(
        replace(each, role=replace(
            each.role or Role(each.id, INSTANT, reach_us=None), watermarked=True
        ))
        if each.id == identity
        else replace(each, role=each.role and replace(each.role, watermarked=False))
        for each in known.columns
    )  # fmt: skip
    return replace(known, columns=columns, watermarks=(*known.watermarks, (name, delay)))


def _filter(node: Node, known: Kept, reading: Reading) -> Kept:
    condition = node.condition()
    if _belongs_to_window(condition, known):
        return known
    reading.step(f"Filter {catalyst.text(condition)}", "keeps key and order: rows only go")
    reason, _ = doubt(condition, known)
    if reason is not None:
        reading.note(f"{reason}, and rows are filtered by it")
    if known.aggregated and reading.mode == "update":
        reading.note(
            "in update mode a row that no longer passes the filter behind the aggregate is not"
            " taken back: results depend on how the input falls into batches"
        )
    return known


def _belongs_to_window(condition: Expression, known: Kept) -> bool:
    """Whether the analyser put the filter there with a window: nobody wrote it."""
    name = catalyst.kind(condition)
    if name == "IsNotNull":
        return catalyst.type_name(condition.child()) in catalyst.TIMES
    bounds = catalyst.children(condition) if name == "And" else []
    parts = [catalyst.part(catalyst.children(each)[1])
             for each in bounds if each.children().size() == 2]  # fmt: skip
    return len(parts) == 2 and all(p is not None and known.role(p[0]) is not None for p in parts)


def _project(node: Node, known: Kept, reading: Reading) -> Kept:
    expressions = catalyst.sequence(node.projectList())
    columns = tuple(column(each, known) for each in expressions)
    windows = _new_windows(columns, known)
    key = carried(known.key, expressions, columns, known)
    if windows:
        reading.step(windows, "keeps key and order" if key is not None else "keeps order")
    else:
        names = ", ".join(each.name for each in columns)
        says = "keeps order" if key is None else "keeps key and order"
        if known.key is not None and key is None:
            says = f"loses the key: not all of {known.names(known.key)} go on as they are"
        reading.step(f"Project [{names}]", says)
    return replace(known, columns=columns, key=key)


def _new_windows(columns: tuple[Column, ...], known: Kept) -> str:
    origins = {each.role.origin for each in known.columns if each.role is not None}
    for each in columns:
        role = each.role
        if role is not None and role.kind != INSTANT and role.origin not in origins:
            if role.kind == SESSION:
                return f"Session window {each.name}"
            often = duration(role.slide_us)
            return f"Window {each.name}, {duration(role.duration_us)} every {often}"
    return ""


def _expand(node: Node, known: Kept, reading: Reading) -> Kept:
    """Sliding windows and grouping sets: several rows of each."""
    first = catalyst.sequence(node.projections().apply(0))
    columns = []
    for expression, made in zip(first, catalyst.sequence(node.output()), strict=True):
        identity, name = int(made.exprId().id()), str(made.name())
        source = known.column(catalyst.column_id(expression))
        role = source.role if source else role_of(made, expression, identity, known)
        reason = source.doubt if source else None
        columns.append(Column(identity, name, role, reason))
    windows = _new_windows(tuple(columns), known)
    into = "windows" if windows else "groups"
    reading.step(
        windows or "Expand (grouping sets)",
        f"loses key and order: each row goes into several {into}",
    )
    return replace(known, columns=tuple(columns), key=None, order=None)


def _aggregate(node: Node, known: Kept, reading: Reading) -> Kept:
    """One row a group, for good in append mode, for the time being in the others."""
    groups = [e for e in catalyst.sequence(node.groupingExpressions()) if not e.foldable()]
    expressions = catalyst.sequence(node.aggregateExpressions())
    columns = [column(each, known) for each in expressions]
    made = [_made_of(group, expressions, columns) for group in groups]
    key = None if None in made else frozenset(each for each in made if each is not None)
    roles = {c.role.origin: c.role for c in columns if c.id in made and c.role is not None}
    # Spark evicts by the one grouping column that has the watermark; with several it is not clear
    # which one it takes.
    timed = [role for role in roles.values() if role.watermarked]
    order = None
    if len(timed) == 1 and reading.mode == "append":
        order = Order(timed[0].origin, strict=key is not None and len(made) == 1)
    if timed and reading.mode in ("append", "update"):
        delay = known.delay_us
        columns = [
            replace(c, role=replace(c.role, behind_us=delay))
            if c.role is not None and len(timed) == 1 and c.role.origin == timed[0].origin
            else c
            for c in columns
        ]
    named = ", ".join(c.name for c in columns if c.id in made)
    reading.step(f"Aggregate by [{named}]", _grouped(key, order, reading.mode, bool(groups)))
    return replace(
        known,
        columns=tuple(columns),
        key=key,
        order=order,
        # A group whose time is fixed depends on input of that time only.
        bounded=known.bounded and bool(roles),
        aggregated=True,
    )


def _grouped(key: frozenset[int] | None, order: Order | None, mode: str, has_groups: bool) -> str:
    if key is None:
        return "loses the key: not all grouping columns are in the result"
    if not has_groups:
        return "one row, revised for ever"
    says = "one row for each group: that is the key"
    if mode in ("update", "complete"):
        return f"{says}; rows are revised"
    if order is None:
        return f"{says}; loses order"
    return f"{says}; rows come in the order of their time" + (
        ", each with another" if order.strict else ", in any order where it is the same"
    )


def _made_of(group: Expression, expressions: list[Expression], columns: list[Column]) -> int | None:
    """The column of the result that a grouping expression is, if it is among them."""
    for expression, made in zip(expressions, columns, strict=True):
        if catalyst.bare(expression).semanticEquals(catalyst.bare(group)):
            return made.id
    return None


def _deduplicate(node: Node, known: Kept, reading: Reading) -> Kept:
    ids = frozenset(int(each.exprId().id()) for each in catalyst.sequence(node.keys()))
    within = catalyst.kind(node) == "DeduplicateWithinWatermark"
    marked = [c.id for c in known.columns if c.role is not None and c.role.watermarked]
    # Within the watermark the same columns may come again, but then with a later event time:
    # what has the same time is late by then.
    key = ids | set(marked) if within else ids
    says = f"keyed by {known.names(key)}"
    if within:
        says += ": equal ones may come again once the watermark has passed them"
    reading.step(f"{catalyst.kind(node)} [{known.names(ids)}]", f"{says}; keeps order")
    others = [c for c in known.columns if c.id not in ids]
    if others:
        reading.note(
            f"which of the rows with the same {known.names(ids)} stays depends on the order of"
            " arrival"
        )
    columns = tuple(
        replace(
            each,
            role=replace(each.role, behind_us=known.delay_us)
            if each.role is not None and each.id in marked and (within or each.id in ids)
            else each.role,
            doubt=each.doubt if each.id in ids else "depends on the order of arrival",
        )
        for each in known.columns
    )
    # Where a time is among the columns, a row can suppress none of another time.
    by_time = any(known.role(each) is not None for each in ids)
    order = known.order and replace(known.order, ties=False)  # rows are shuffled
    return replace(
        known,
        columns=columns,
        key=key,
        order=order,
        bounded=known.bounded and by_time and not within,
    )


def _sort(node: Node, known: Kept, reading: Reading) -> Kept:
    reading.step("Sort", "keeps the key; the sink orders by start")
    return replace(known, order=known.order and replace(known.order, ties=False))


def _repartition(node: Node, known: Kept, reading: Reading) -> Kept:
    reading.step(catalyst.kind(node), "keeps key and order, but not the order of equal starts")
    return replace(known, order=known.order and replace(known.order, ties=False))


def _sample(node: Node, known: Kept, reading: Reading) -> Kept:
    reading.step("Sample", "keeps key and order: rows only go")
    reading.note("a sample takes other rows in every replica: their outputs will differ")
    return known


def _limit(node: Node, known: Kept, reading: Reading) -> Kept:
    if catalyst.kind(node) != "LocalLimit":  # the two come together
        reading.step(
            f"Limit {catalyst.text(node.limitExpr())}",
            "keeps key and order; which rows go through depends on all before them",
        )
        if reading.mode != "complete":
            reading.note("a limit takes the rows that arrive first, which differ between replicas")
    return replace(known, bounded=False)


def _python(node: Node, known: Kept, reading: Reading) -> Kept:
    function, name = catalyst.python_name(node), catalyst.kind(node)
    made = columns_of(node)
    before = [c.name for c in known.columns]
    if function == "drop" and before == [*(c.name for c in made), ENDS]:
        reading.step("fast_forward", "keeps key and order: rows only go")
        key = None if known.key is None else known.key - {known.columns[-1].id}
        return renamed(node, replace(known, columns=known.columns[:-1], key=key))
    said = "fast_forward, then" if function == "drop_then_work" else f"{name} {function}"
    reading.step(said, "loses key and order: it may make any rows")
    return replace(known, columns=made, key=None, order=None, bounded=False)


def _generate(node: Node, known: Kept, reading: Reading) -> Kept:
    generator = node.generator()
    reason, unsorted = doubt(generator, known)
    made = [Column(int(e.exprId().id()), str(e.name()), doubt=reason)
            for e in catalyst.sequence(node.generatorOutput())]  # fmt: skip
    columns = {each.id: each for each in (*known.columns, *made)}
    output = tuple(columns[each.id] for each in columns_of(node))
    numbered = catalyst.kind(generator) == "PosExplode"
    key = known.key | {made[0].id} if numbered and known.key is not None else None
    if key is not None and not key <= {each.id for each in output}:
        key = None
    before = known.order
    # The rows of one array come in its order.
    ties = (
        before is not None
        and (before.strict or before.ties)
        and reason is None
        and not unsorted
        and catalyst.kind(generator) in ("Explode", "PosExplode")
        and catalyst.type_name(generator.child()).startswith("array")
    )
    says = f"keyed by the position {made[0].name} too" if key else "no key: it may make equal rows"
    if before is not None:
        says += "; keeps order" + (", and equal starts come in the array's" if ties else "")
    reading.step(f"Generate {catalyst.text(generator)}", says)
    if known.aggregated and reading.mode == "update":
        reading.note("in update mode rows of an array that has become shorter are not taken back")
    order = before and replace(before, strict=False, ties=ties)
    return replace(known, columns=output, key=key, order=order)


def _arbitrary(node: Node, known: Kept, reading: Reading) -> Kept:
    reading.step(catalyst.kind(node), "loses everything: its state may do anything")
    return Kept(columns_of(node), bounded=False, delay_us=None, watermarks=known.watermarks)


def _union(node: Node, inputs: list[Kept], reading: Reading) -> Kept:
    reading.step("Union", "loses key and order: the same row may come from several sides")
    columns = []
    for place, made in enumerate(columns_of(node)):
        sides = [known.columns[place] for known in inputs]
        roles = [each.role for each in sides if each.role is not None]
        shapes = {
            (r.kind, r.part, r.duration_us, r.slide_us, r.watermarked) for r in roles
        }  # fmt: skip
        role = None
        if len(roles) == len(sides) and len(shapes) == 1:
            role = replace(
                roles[0],
                origin=made.id,
                reach_us=furthest([each.reach_us for each in roles]),
                behind_us=furthest([each.behind_us for each in roles]),
            )
        reason = next((each.doubt for each in sides if each.doubt), None)
        columns.append(replace(made, role=role, doubt=reason))
    return Kept(
        tuple(columns),
        bounded=all(each.bounded for each in inputs),
        delay_us=furthest([each.delay_us for each in inputs]),
        watermarks=tuple(each for known in inputs for each in known.watermarks),
        aggregated=any(each.aggregated for each in inputs),
    )


Rule = Callable[[Node, Kept, Reading], Kept]
_SILENT: Final = frozenset({"SubqueryAlias", "View", "ResolvedHint", "CollectMetrics"})
"""They change nothing, and nobody needs to read of them."""
_RULES: Final[dict[str, Rule]] = {
    "EventTimeWatermark": _watermark,
    "Filter": _filter,
    "Project": _project,
    "Expand": _expand,
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
    "Sort": _sort,
    "Repartition": _repartition,
    "RepartitionByExpression": _repartition,
    "Sample": _sample,
    "GlobalLimit": _limit,
    "LocalLimit": _limit,
    "MapInArrow": _python,
    "PythonMapInArrow": _python,
    "MapInPandas": _python,
    "Generate": _generate,
    "FlatMapGroupsInPandasWithState": _arbitrary,
    "TransformWithStateInPySpark": _arbitrary,
    "TransformWithStateInPandas": _arbitrary,
    "FlatMapGroupsWithState": _arbitrary,
}
