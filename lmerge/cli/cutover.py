"""``lmerge cutover``: another plan takes over, verified before anybody depends on it.

Callers may rely on this: the request is made as a whole or not at all; from then on whoever leads
the deployment carries it out, and this process only watches. Status 0 means that the new plan has
taken over, ``ROLLED_BACK`` that everything is as it was.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli import connection, deployment
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import clean, console
from lmerge.cli.terminal import Terminal
from lmerge.errors import ConfigurationError, UnavailableError
from lmerge.times import show

if TYPE_CHECKING:
    from rich.console import Group

    from coordinator.cutover import Cutover
    from coordinator.deployment import Deployment
    from coordinator.spec import Plan, Spec
    from lmerge.v1.operator_pb2 import DescribeMergeResponse

LOOK_SECONDS: Final = 0.5
CONFLICTS_MAX: Final = 20  # with the leader, who writes what it sees of a cutover that runs
OPTIONS: Final = ("mode", "vs", "ve", "key", "stable", "path")

DESCRIPTION = """\
Starts replicas of another plan beside those that run, and compares what they compute with the
output, on which they have no influence yet. When all of them agree with it and have caught up, they
take over, and the plans before are taken down. When they fail, differ or take too long, everything
is as it was. Consumers see neither. Without --to it shows the cutover that runs, or ran last.
"""

EPILOG = """\
example:
  lmerge cutover --to new_query.py:build -n 2
  lmerge cutover --to new_query.py:build --dry-run
  lmerge cutover --abort

"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "cutover",
        help="let another plan take over, verified, without a gap",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--to", metavar="FILE.py:FUNCTION", help="the new plan")
    add("-n", "--replicas", type=int, default=1, metavar="N", help="of it (default: 1)")
    add("--name", metavar="PLAN", help="its name (default: its file's)")
    add("--replace", metavar="PLAN", action="append", default=[],
        help="a plan that it replaces; may be repeated (default: all)")  # fmt: skip
    add("--merge", metavar="NAME", help="the merge's name, to be sure of it")
    add("--intervals", type=int, metavar="K",
        help="in which each replica has to agree with the output (default: 10; 0: take it as it"
        " is)")  # fmt: skip
    add("--lag-max", type=int, metavar="T",
        help="how far behind the output a replica may be, in the stream's own time (default: where"
        " the output was 10 seconds ago)")  # fmt: skip
    add("--timeout", type=float, metavar="SECONDS", help="for all of it (default: 600)")
    add("--differs-from", type=_time, metavar="T",
        help="what starts at T or later is to be different: a number of the stream's own, or a"
        " time such as 2026-11-18T20:00Z")  # fmt: skip
    add("--dry-run", action="store_true", help="check the new plan, and change nothing")
    add("--no-wait", dest="wait", action="store_false", help="do not wait for the end")
    add("--wait", action="store_true", default=True, help="wait for the end (the default)")
    add("--json", action="store_true", help="JSON lines, for programs")
    add("--abort", action="store_true", help="undo the cutover that runs")
    _add_plan_to(parser.add_argument_group("the new plan"))
    deployment.add_to(parser)
    connection.add_caller_to(parser.add_argument_group("calls to servers that ask who calls"))
    parser.set_defaults(run=run)


def _add_plan_to(group: Any) -> None:
    add = group.add_argument
    add("--mode", choices=("append", "update", "complete"))
    add("--vs", metavar="SQL", help="an event's start: a column or expression")
    add("--ve", metavar="SQL", help="its end; null is infinity")
    add("--key", action="append", metavar="COLUMN", help="may be repeated")
    add("--stable", metavar="SQL", help="default: the query's watermark")
    add("--path", choices=("auto", "driver", "tasks"))
    add("--master", metavar="URL", help="Spark's (default: local[1])")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark's")
    add("--jumpstart", metavar="SAVED", help="a saved checkpoint that its replicas begin from")


def run(arguments: argparse.Namespace) -> int:
    """Asks for a cutover, or to undo it, and watches."""
    if arguments.abort and arguments.to is not None:
        raise ConfigurationError("--abort is of the cutover that runs: --to does not go with it")
    if arguments.dry_run and arguments.to is None:
        raise ConfigurationError("--dry-run checks a plan: name it with --to")
    with deployment.session(arguments) as session:
        opened = session.deployment
        if arguments.abort:
            wanted = _abort(opened)
        elif arguments.to is None:
            wanted = _present(opened)
        else:
            wanted, spec, merge = _wanted(arguments, opened)
            if arguments.dry_run:
                return _dry_run(arguments, wanted, spec, merge)
            _request(opened, wanted)
        if not arguments.wait:
            _tell(arguments, wanted)
            return Exit.OK
        return _watch(arguments, opened, wanted)


# -- asking ----------------------------------------------------------------------------------------


def _wanted(
    arguments: argparse.Namespace, opened: Deployment
) -> tuple[Cutover, Spec, DescribeMergeResponse]:
    """The cutover as it is asked for; an error when it cannot be."""
    from coordinator import spec as specs
    from coordinator.calls import Calls
    from coordinator.cutover import INTERVALS, TIMEOUT_SECONDS, Cutover

    spec, _ = specs.read(opened)
    if arguments.merge not in (None, spec.merge):
        raise ConfigurationError(
            f"deployment {opened.name!r} has merge {spec.merge!r}, not {arguments.merge!r}"
        )
    calls = Calls(connection.security(arguments))
    merge = calls.describe(spec.addresses[0], spec.merge)
    if merge is None:
        raise ConfigurationError(f"merge {spec.merge!r} has not begun: there is nothing to replace")
    plan = _plan(arguments, spec, merge.options.restriction)
    replaces = arguments.replace or [each.name for each in spec.plans]
    old = [spec.plan(name) for name in replaces]  # an unknown one is refused, with those there are
    wanted = Cutover(
        asdict(plan),
        plan.streams,
        tuple(dict.fromkeys(replaces)),
        tuple(stream for each in old for stream in each.streams),
        merge=spec.merge,
        intervals=INTERVALS if arguments.intervals is None else arguments.intervals,
        lag_max=arguments.lag_max,
        timeout=TIMEOUT_SECONDS if arguments.timeout is None else arguments.timeout,
        differs_from=arguments.differs_from,
    )
    if wanted.intervals and merge.options.divergence == "off":
        raise ConfigurationError(
            f"merge {spec.merge!r} keeps no digests (divergence off), so that nothing can be"
            " verified: --intervals 0 does without"
        )
    past = wanted.differs_from is not None and merge.output.stable > wanted.differs_from
    if past:
        raise ConfigurationError(
            f"--differs-from: the output is at {show(merge.output.stable)} already: it has to be"
            " a later time, until which the new plan can be verified"
        )
    return wanted, spec, merge


def _plan(arguments: argparse.Namespace, spec: Spec, restriction: str) -> Plan:
    from coordinator.spec import Plan, build_path

    build = build_path(arguments.to, Path.cwd())
    place, _, function = build.rpartition(":")
    place = place or function
    is_file = place.endswith(".py") or "/" in place
    if is_file and not Path(place).is_file():
        raise ConfigurationError(f"--to: no such file: {place}")
    last = Path(place).stem if is_file else place.rpartition(".")[2]
    taken = {plan.name for plan in spec.plans}
    if arguments.name in taken:
        raise ConfigurationError(f"--name: there is a plan {arguments.name!r} already")
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    return Plan(
        arguments.name or _free(re.sub("[^A-Za-z0-9_-]", "-", last), taken),
        build,
        arguments.replicas,
        arguments.master,
        _conf(arguments.conf),
        # A replica that asks for less than the merge needs would be refused, and one for more.
        {"restriction": restriction, **options},
        jumpstart=None if arguments.jumpstart is None else {"checkpoint": arguments.jumpstart},
    )


def _free(name: str, taken: set[str]) -> str:
    """The name, or the next of its kind."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free


def _conf(said: list[str]) -> dict[str, str]:
    conf = {}
    for each in said:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--conf takes KEY=VALUE, not {each!r}")
        conf[key] = value
    return conf


def _request(opened: Deployment, wanted: Cutover) -> None:
    """The cutover is there, unless another one runs."""
    from coordinator.cutover import NAME, Cutover
    from coordinator.deployment import ConflictError

    if not opened.members("coordinator"):
        raise ConfigurationError(
            f"nobody runs deployment {opened.name!r} now, so that nobody would carry it out: start"
            " it with lmerge up"
        )
    found = opened.read(NAME)
    running = None if found is None else Cutover.decoded(found.value)
    if running is not None and not running.ended:
        raise ConfigurationError(
            f"a cutover to plan {running.name!r} runs already ({running.stage.value}): wait for"
            " it, or end it with lmerge cutover --abort"
        )
    try:
        opened.write(NAME, wanted.encoded(), None if found is None else found.version)
    except ConflictError:
        raise ConfigurationError("somebody else has begun a cutover just now") from None


def _present(opened: Deployment) -> Cutover:
    from coordinator.cutover import NAME, Cutover

    found = opened.read(NAME)
    if found is None:
        raise ConfigurationError("there was no cutover yet: begin one with --to FILE.py:FUNCTION")
    return Cutover.decoded(found.value)


def _abort(opened: Deployment) -> Cutover:
    """The one that runs is to be undone."""
    from coordinator.cutover import NAME, Cutover, abortable
    from coordinator.deployment import ConflictError

    for _ in range(CONFLICTS_MAX):
        found = opened.read(NAME)
        running = None if found is None else Cutover.decoded(found.value)
        if found is None or running is None or running.ended:
            raise ConfigurationError("no cutover runs: there is nothing to abort")
        if not abortable(running):
            raise ConfigurationError(
                f"the cutover to plan {running.name!r} is {running.stage.value}: it is too late to"
                " abort it"
            )
        try:
            opened.write(NAME, replace(running, aborted=True).encoded(), found.version)
            return running
        except ConflictError:
            continue
    raise UnavailableError("the cutover changes all the time")


# -- watching --------------------------------------------------------------------------------------


def _watch(arguments: argparse.Namespace, opened: Deployment, wanted: Cutover) -> int:
    """Shows the cutover until it has ended."""
    from coordinator.cutover import NAME, Cutover

    with _shown(arguments) as tell:
        c, away = wanted, False
        while True:
            tell(c)
            if c.ended:
                break
            try:
                time.sleep(LOOK_SECONDS)
                found = opened.read(NAME)
            except UnavailableError:
                if not away:
                    Terminal().say("ZooKeeper does not answer; the cutover goes on when it does")
                away = True
                continue
            except KeyboardInterrupt:
                Terminal().say("the cutover goes on: lmerge cutover shows it, --abort undoes it")
                raise
            away = False
            now = None if found is None else Cutover.decoded(found.value)
            if now is None or now.id != wanted.id:
                raise ConfigurationError("another cutover has taken the place of this one")
            c = now
    if c.note:
        Terminal().say(c.note)
    if c.reason:
        Terminal().say(f"rolled back while {c.failed_in}: {c.reason}")
        return Exit.ROLLED_BACK
    return Exit.OK


@contextmanager
def _shown(arguments: argparse.Namespace) -> Iterator[Any]:
    """What shows a cutover, again and again: a table that changes, or lines."""
    screen = console()
    if arguments.json or not screen.is_terminal:
        told: list[Any] = []

        def tell(c: Cutover) -> None:
            values = _values(c) if arguments.json else c.stage.value
            if told[-1:] != [values]:
                told[:] = [values]
                _tell(arguments, c)

        yield tell
        return
    from rich.live import Live

    with Live(console=screen, auto_refresh=False) as live:
        yield lambda c: live.update(_table(c), refresh=True)


def _tell(arguments: argparse.Namespace, c: Cutover) -> None:
    """One line."""
    if arguments.json:
        print(json.dumps(_values(c)), flush=True)
    else:
        at = time.strftime("%H:%M:%S", time.localtime(c.history[-1][1] if c.history else None))
        print(f"{at} {clean(c.name)}: {c.stage.value}", flush=True)
    if sys.stdout is not None:
        sys.stdout.flush()


def _values(c: Cutover) -> dict[str, Any]:
    return {
        "id": c.id, "plan": c.name, "streams": list(c.streams), "replaces": list(c.replaces),
        "stage": c.stage.value, "ended": c.ended,
        "history": [{"stage": stage, "at": at} for stage, at in c.history],
        "reason": c.reason, "failed_in": c.failed_in, "note": c.note,
        "diverged": None if c.diverged is None else dict(
            zip(("stream", "start", "end"), c.diverged, strict=True)
        ),
        "output": c.output, "progress": {name: dict(of) for name, of in c.progress.items()},
    }  # fmt: skip


def _table(c: Cutover) -> Group:
    """The stages, and what the streams do."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stages = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    ends = [at for _, at in c.history[1:]] + [c.history[-1][1] if c.ended else time.time()]
    for (stage, began), end in zip(c.history, ends, strict=True):
        last = stage == c.history[-1][0]
        mark = (
            ("✓" if c.stage.value == "done" else "✗") if last and c.ended else "…" if last else "✓"
        )
        stages.add_row(mark, stage, "" if last and c.ended else f"{max(0.0, end - began):.0f} s")
    streams = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("stream", "state", "agrees in", "behind", "ended"):
        streams.add_column(column, justify="left" if column in ("stream", "state") else "right")
    for stream, of in c.progress.items():
        behind = of.get("behind")
        new = stream in c.streams
        streams.add_row(
            clean(stream), of.get("state") or "away",
            f"{of.get('verified', 0)} of {c.intervals}" if new else "",
            "" if behind is None else f"{behind:.0f} s", str(of.get("deaths", 0)) if new else "",
        )  # fmt: skip
    title = f"cutover from {', '.join(c.replaces)} to {c.name}"
    return Group(Text(clean(title), style="bold"), stages, Text(), streams)


# -- only looking ----------------------------------------------------------------------------------


def _dry_run(
    arguments: argparse.Namespace, c: Cutover, spec: Spec, merge: DescribeMergeResponse
) -> int:
    """What would be done, and whether the new plan fits."""
    checks = _checks(arguments, c, merge)
    fits = all(fine for _, fine, _ in checks)
    if arguments.json:
        found = [{"check": name, "holds": fine, "says": says} for name, fine, says in checks]
        print(json.dumps({**_values(c), "checks": found, "fits": fits}))
        return Exit.OK if fits else Exit.BAD_INPUT
    kept = [plan.name for plan in spec.plans if plan.name not in c.replaces]
    behind = "has caught up" if c.lag_max is None else f"is at most {c.lag_max} behind"
    print(f"would start plan {c.name} ({c.plan['build']}): {', '.join(c.streams)}")
    if c.intervals:
        print(f"would verify until each agrees in {c.intervals} intervals and {behind}")
    else:
        print("would verify nothing")
    print(f"would take down {', '.join(c.replaces)}: {', '.join(c.old_streams) or 'no replicas'}")
    if c.differs_from is not None:
        print(f"would switch before the output is at {show(c.differs_from)}, or not at all")
    if kept:
        print(f"would keep {', '.join(kept)}")
    print(f"would give up after {c.timeout:g} s")
    for name, fine, says in checks:
        print(clean(f"{'ok ' if fine else 'NOT'} {name}: {says}"))
    print("nothing was changed")
    return Exit.OK if fits else Exit.BAD_INPUT


def _checks(
    arguments: argparse.Namespace, c: Cutover, merge: DescribeMergeResponse
) -> list[tuple[str, bool, str]]:
    """What Spark says of the new plan: it loads, and its results are those of the merge."""
    try:
        from replicas.analysis import DECLARABLE, analyse
        from replicas.lifetimes import lifetimes
        from replicas.loading import load_build, query_of
        from replicas.session import session
        from replicas.types import payload_schema
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "py4j"):
            raise
        return [("the query", True, "not looked at: PySpark is not installed here")]
    from lmerge.core.batch import describe_difference, plain
    from lmerge.core.properties import Restriction
    from lmerge.wire.rows import schema_of

    build = load_build(str(c.plan["build"]))
    spark = session("lmerge cutover", more=_conf(arguments.conf))
    try:
        df, beside = query_of(build, str(c.plan["build"]), spark)
        given = {name: getattr(arguments, name) for name in ("vs", "ve", "key")}
        said = {**beside, **{name: value for name, value in given.items() if value is not None}}
        mode = arguments.mode or said.get("mode", "append")
        known = {
            name: said[name] for name in ("vs", "ve", "payload", "key", *DECLARABLE) if name in said
        }
        found = analyse(df, mode, **known)
        times = lifetimes(df, said.get("vs"), said.get("ve"), said.get("payload"), found.window)
        schema = payload_schema(times.schema)
    finally:
        spark.stop()
    difference = describe_difference(schema_of(merge.schema), plain(schema))
    needed = Restriction(merge.options.restriction)
    lacking = found.properties.missing(needed.requires)
    fits = f"the merge is {needed.value}, and the plan's results are {found.restriction.value}"
    if lacking:
        fits += f"; that they are {', '.join(lacking)} is not certain, and verified as it runs"
    return [
        ("the query", True, f"loads, in {mode} mode"),
        ("its columns", not difference, difference or "are those of the merge"),
        ("its restriction", True, fits),
    ]


def _time(text: str) -> int:
    """A number of the stream's own, or a point in time in microseconds."""
    try:
        return int(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
