"""``lmerge status``: the merges of a server, their streams and subscriptions, now.

:func:`fetch` and :func:`render` are ``lmerge top``'s as well. What replicas wrote (reasons) is
shown without the characters that would move a terminal's cursor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli import connection
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.errors import LMergeError, NotFoundError, PermissionDeniedError
from lmerge.times import show

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from lmerge.v1.operator_pb2 import DescribeMergeResponse, MergeSummary

WIDTH_WITHOUT_TERMINAL: Final = 200
Rates = Mapping[tuple[str, ...], float]
"""Elements a second: of (merge,) the output's, of (merge, stream) the stream's."""


@dataclass(frozen=True, slots=True)
class View:
    """A merge as the server showed it; ``detail`` is None when ``problem`` says why."""

    summary: MergeSummary
    detail: DescribeMergeResponse | None
    problem: str = ""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "status",
        help="the merges of a server, their streams and subscriptions",
        description="Shows the merges of a server, their streams and subscriptions.",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--merge", metavar="NAME", help="only this one (default: all)")
    command.add_argument("--json", action="store_true", help="one JSON object, for programs")
    connection.add_to(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the server once."""
    with connection.operator(arguments) as call:
        views = fetch(call, arguments.merge)
    if arguments.json:
        found = [_view_values(view) for view in views]
        print(json.dumps({"server": arguments.server, "merges": found}))
    else:
        console().print(render(views, {}), end="")
    return Exit.OK


def fetch(call: connection.Call, merge: str | None) -> list[View]:
    """The merges, by name. Only a merge that was asked for by name must be there."""
    from lmerge.v1 import operator_pb2 as pb

    summaries = sorted(call("ListMerges", pb.ListMergesRequest()).merges, key=lambda m: m.name)
    if merge is not None:
        found = [summary for summary in summaries if summary.name == merge]
        if not found or not found[0].fault:
            # The server's own words for one that is unknown or hidden are the best there are.
            detail = call("DescribeMerge", pb.DescribeMergeRequest(merge=merge))
            summary = found[0] if found else pb.MergeSummary(name=merge)
            return [View(summary, detail)]
        summaries = found
    views = []
    for summary in summaries:
        try:
            if summary.fault:
                views.append(View(summary, None, summary.fault))
                continue
            request = pb.DescribeMergeRequest(merge=summary.name)
            views.append(View(summary, call("DescribeMerge", request)))
        except NotFoundError:
            continue  # deleted since it was listed
        except PermissionDeniedError as error:
            views.append(View(summary, None, str(error)))
    return views


def console() -> Console:
    """stdout; wide when it is no terminal, where nobody could widen it."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        width=None if terminal else WIDTH_WITHOUT_TERMINAL,
        highlight=False,
        markup=False,
        emoji=False,
    )


def render(views: Sequence[View], rates: Rates) -> Group:
    """Everything as tables; with rates, those too."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for view in views:
        parts.append(Text(_headline(view, rates), style="bold"))
        if view.detail is None:
            parts.append(Text("  " + clean(view.problem), style="red"))
        else:
            if view.detail.streams:
                parts.append(_streams(view.detail, rates))
            if view.detail.subscriptions:
                parts.append(_subscriptions(view.detail))
            parts += [
                Text(f"  {clean(stream.name)} says: {_counters(stream.counters)}")
                for stream in view.detail.streams
                if stream.counters
            ]
            parts += [
                Text(f"  {clean(stream.name)}: {clean(stream.reason)}", style="red")
                for stream in view.detail.streams
                if stream.reason
            ]
    return Group(*(parts or [Text("no merges")]))


def _counters(counters: Mapping[str, float]) -> str:
    """What a replica counts of itself, in the order of the names."""
    shown = (
        f"{clean(name).replace('_', ' ')} {counters[name]:,.{0 if counters[name] % 1 == 0 else 1}f}"
        for name in sorted(counters)
    )
    return ", ".join(shown)


def clean(text: str) -> str:
    """The text without what is not printable."""
    return "".join(c if c.isprintable() else "�" for c in text)


def _headline(view: View, rates: Rates) -> str:
    name, detail = clean(view.summary.name), view.detail
    if detail is None:
        return f"{name}  {view.summary.streams} streams, stable to {show(view.summary.stable)}"
    output, log = detail.output, detail.log
    restriction = view.summary.restriction or detail.options.restriction or "not begun"
    parts = [
        f"{name}  {restriction}",
        f"stable to {show(output.stable)}",
        f"{output.inserts:,} inserts, {output.adjusts:,} adjusts, {output.stables:,} stables",
        f"{output.live:,} live in {_bytes(output.index_bytes + output.payload_bytes)}",
        f"entries {output.first_sequence:,} to {output.next_sequence:,}",
        f"log {_bytes(log.arrivals_bytes + log.output_bytes)} ({log.durability})",
    ]
    if (detail.name,) in rates:
        parts.insert(2, f"{rates[(detail.name,)]:,.0f}/s")
    if output.stalled:
        parts.append("STALLED: waits for `lmerge allow-gap`")
    return ", ".join(parts)


def _table(*columns: str, left: int) -> Table:
    """A table whose first columns are text, and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    for index, column in enumerate(columns):
        table.add_column(
            column, justify="left" if index < left else "right", no_wrap=True, overflow="ellipsis"
        )
    return table


def _streams(merge: DescribeMergeResponse, rates: Rates) -> Table:
    from rich.text import Text

    columns = ["stream", "state", "connected", "lag", "share", "stable", "inserts", "adjusts"]
    columns += ["stables", "divergent", "held back"]
    table = _table(*columns, *(["elements/s"] if rates else []), left=3)
    for stream in merge.streams:
        lag = show(stream.lag) if stream.HasField("lag") else "-"
        cells = [
            clean(stream.name),
            "on trial" if stream.on_trial else clean(stream.state),
            "yes" if stream.connected else "no",
            lag,
            f"{stream.share:.0%}",
            show(stream.stable),
            *(f"{n:,}" for n in (stream.inserts, stream.adjusts, stream.stables)),
            f"{stream.divergent:,} of {stream.divergent + stream.verified:,}",
            f"{stream.held_back:,}",
        ]
        if rates:
            rate = rates.get((merge.name, stream.name))
            cells.append("-" if rate is None else f"{rate:,.0f}")
        style = "red" if stream.state == "quarantined" else "" if stream.connected else "yellow"
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _subscriptions(merge: DescribeMergeResponse) -> Table:
    from rich.text import Text

    table = _table("subscription", "connected", "acknowledged", "behind", left=2)
    for each in merge.subscriptions:
        cells = (
            clean(each.name),
            "yes" if each.connected else "no",
            f"{each.acknowledged.sequence:,}",
            f"{each.behind:,}",
        )
        table.add_row(*map(Text, cells))
    return table


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _view_values(view: View) -> dict[str, Any]:
    result = _values(view.summary) | {"problem": view.problem}
    # "streams" is a number in a summary and a list in the detail: the list says both.
    return result if view.detail is None else result | _values(view.detail)


def _values(message: Any) -> dict[str, Any]:
    """The message as JSON. Whole numbers stay numbers, where protobuf's own JSON has texts."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = dict(value)
        elif field.is_repeated:
            result[field.name] = [_values(v) if field.message_type else v for v in value]
        elif field.message_type is not None:
            result[field.name] = _values(value)
        else:
            result[field.name] = _columns(value) if isinstance(value, bytes) else value
    return result


def _columns(schema: bytes) -> dict[str, str] | None:
    """An Arrow schema as names and types; the only bytes there are in these messages."""
    from lmerge.wire.rows import schema_of

    try:
        return {field.name: str(field.type) for field in schema_of(schema)} if schema else None
    except LMergeError:
        return None  # of a newer server, perhaps: no reason to show nothing at all
