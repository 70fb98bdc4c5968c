"""``lmerge explain-plan``: what a query's plan keeps or loses, and the restriction that follows.

Spark is started to read the plan; the query itself is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import clean, console
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Group

    from replicas.analysis import Analysis

DESCRIPTION = """\
Starts Spark, runs build(spark) of a Python file, and explains the plan of the streaming DataFrame
that it returns: what each operator keeps or loses, how far back input matters, and which
restriction (R0 to R4) the result can be merged under, and why. The query is not started.
"""

EPILOG = """\
example:
  lmerge explain-plan my_query.py:build --mode update

"""

OPTIONS: Final = ("vs", "ve", "payload", "key")
"""What the analysis takes of the options that a build may return beside its DataFrame."""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "explain-plan",
        help="what a query's plan keeps or loses, and its restriction",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "build", metavar="FILE.py:FUNCTION", help="gives the DataFrame (default function: build)"
    )
    command.add_argument(
        "--mode",
        choices=("append", "update", "complete"),
        help="default: what the build says, else append",
    )
    command.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark's; may be repeated"
    )
    command.add_argument("--json", action="store_true", help="one JSON object, for programs")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explains the plan."""
    conf = {}
    for each in arguments.conf:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--conf takes KEY=VALUE, not {each!r}")
        conf[key] = value
    try:
        from replicas.analysis import DECLARABLE, analyse
        from replicas.loading import load_build, query_of
        from replicas.session import session
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise ConfigurationError("this needs PySpark: pip install 'lmerge[spark]'") from error
    build = load_build(arguments.build)
    spark = session("lmerge explain-plan", more=conf)
    try:
        df, options = query_of(build, arguments.build, spark)
        mode = arguments.mode or options.get("mode", "append")
        said = {name: options[name] for name in (*OPTIONS, *DECLARABLE) if name in options}
        found = analyse(df, mode, **said)
    finally:
        spark.stop()
    if arguments.json:
        print(json.dumps(_values(arguments.build, mode, found)))
    else:
        console().print(_render(arguments.build, mode, found), end="")
    return Exit.OK


def _values(build: str, mode: str, found: Analysis) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    values["restriction"] = found.restriction.value
    return {"query": build, "mode": mode, **values}


def _render(build: str, mode: str, found: Analysis) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    plan = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    plan.add_column("operator", overflow="fold")
    plan.add_column("what it keeps or loses", overflow="fold")
    for step in reversed(found.steps):  # the result first, as Spark prints plans
        branch = "  " * (step.depth - 1) + "└ " if step.depth else ""
        plan.add_row(branch + clean(step.operator), clean(step.says))
    facts = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(found):
        facts.add_row(name, clean(value))
    title = f"{build} in {mode} mode: {found.restriction.value}"
    notes = [Text(f"note: {clean(note)}", style="yellow") for note in found.notes]
    return Group(Text(clean(title), style="bold"), Text(), plan, Text(), facts, *notes)


def _facts(found: Analysis) -> list[tuple[str, str]]:
    from replicas.columns import duration

    properties = dataclasses.asdict(found.properties)
    holds = [name.replace("_", " ") for name, value in properties.items() if value]
    lost = [name.replace("_", " ") for name, value in properties.items() if not value]
    window, watermark = found.window, found.watermark
    look_back, behind = found.look_back_us, found.behind_us
    facts = [
        ("holds", ", ".join(holds) or "nothing"),
        ("not certain", ", ".join(lost) or "nothing"),
        ("keys", ", ".join(found.keys) or "none"),
        (
            "window",
            "none"
            if window is None
            else f"{window.column}, {duration(window.duration_us)} every"
            f" {duration(window.slide_us)}",
        ),
        (
            "watermark",
            "none"
            if watermark is None
            else f"{watermark.column}, {duration(watermark.delay_us)} late",
        ),
        ("look-back", "not bounded" if look_back is None else duration(look_back)),
        (
            "rows start",
            "perhaps any time before the watermark"
            if behind is None
            else f"at most {duration(behind)} before the watermark"
            if behind
            else "never before the watermark",
        ),
    ]
    return [*facts, *(("why" if not place else "", each) for place, each in enumerate(found.why))]
