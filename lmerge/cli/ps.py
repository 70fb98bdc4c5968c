"""``lmerge ps``: what a deployment runs now, as ZooKeeper, this machine and the servers know it.

Callers may rely on this: what one of the three does not say (ZooKeeper is away, a server starts) is
left open and named, and the rest is shown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli import connection, deployment
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import clean, console
from lmerge.errors import ConfigurationError, LMergeError, NotFoundError
from lmerge.times import show

if TYPE_CHECKING:
    from coordinator.deployment import Deployment, Member
    from coordinator.home import Home
    from coordinator.spec import Spec

ZOOKEEPER_SECONDS: Final = 3.0
SERVER_SECONDS: Final = 3.0


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "ps",
        help="what a deployment runs now",
        description="Shows a deployment's servers, replicas and coordinators, and who leads.",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    deployment.add_to(parser)
    connection.add_caller_to(parser.add_argument_group("calls to servers that ask who calls"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the deployment once."""
    found = picture(arguments)
    if arguments.json:
        print(json.dumps(found))
    else:
        _show(found)
    return Exit.OK


def picture(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that is known, as JSON's own types."""
    home = _home(arguments)
    hosts = deployment.hosts(arguments)
    found: dict[str, Any] = {
        "deployment": arguments.deployment,
        "directory": None if home is None else str(home.directory),
        "zookeeper": {"hosts": hosts, "embedded": home is not None and home.embedded},
        "problems": [], "leader": None, "term": None, "merge": None, "cutover": None,
        "servers": [], "replicas": [], "coordinators": [],
    }  # fmt: skip
    spec: Spec | None = None
    members: dict[str, dict[str, Member]] = {}
    try:
        with deployment.session(arguments, ZOOKEEPER_SECONDS) as session:
            spec, members = _from_zookeeper(session.deployment, found)
    except ConfigurationError:
        raise
    except LMergeError as error:
        found["problems"].append(str(error))
    found["zookeeper"]["answers"] = bool(members)
    if spec is not None:
        found["merge"] = spec.merge
    _add_servers(found, spec, members.get("server", {}), home)
    streams = {} if spec is None else _streams(arguments, spec, found)
    _add_replicas(found, spec, members.get("replica", {}), streams, home)
    return found


def _home(arguments: argparse.Namespace) -> Home | None:
    """The state directory; a deployment whose ZooKeeper is named may run elsewhere."""
    try:
        return deployment.home(arguments)
    except ConfigurationError:
        if arguments.zk is None:
            raise
        return None


def _from_zookeeper(
    opened: Deployment, found: dict[str, Any]
) -> tuple[Spec | None, dict[str, dict[str, Member]]]:
    from coordinator import spec as specs
    from coordinator.deployment import KINDS

    members: dict[str, dict[str, Member]] = {kind: opened.members(kind) for kind in KINDS}
    try:
        spec, _ = specs.read(opened)
    except NotFoundError as error:
        found["problems"].append(str(error))
        spec = None
    if (leads := opened.read("leader")) is not None:
        found["leader"], found["term"] = leads.value["leader"], leads.value["number"]
    if (cutover := opened.read("cutover")) is not None:
        found["cutover"] = cutover.value
    found["coordinators"] = [
        {
            "name": name,
            "host": member.address,
            "pid": member.details.get("pid"),
            "leads": name == found["leader"],
        }
        for name, member in sorted(members["coordinator"].items())
    ]
    return spec, members


def _add_servers(
    found: dict[str, Any], spec: Spec | None, members: Mapping[str, Member], home: Home | None
) -> None:
    from coordinator.calls import listens
    from coordinator.commands import SERVER

    wanted = {} if spec is None else {each.name: each.listen for each in spec.servers}
    names = [*wanted, *(name for name in members if name not in wanted)]
    for name in names:
        process = _process(home, f"{SERVER}{name}")
        member = members.get(name)
        place = wanted.get(name) or (member.address if member is not None else "")
        answers = bool(place) and listens(place)
        state = "ready" if answers else "starting" if process["pid"] is not None else "down"
        found["servers"].append({"name": name, "address": place, "state": state, **process})


def _streams(
    arguments: argparse.Namespace, spec: Spec, found: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """What the first server that answers says of each stream."""
    from coordinator.calls import Calls

    calls = Calls(connection.security(arguments), SERVER_SECONDS)
    for place in spec.addresses:
        try:
            merge = calls.describe(place, spec.merge)
        except LMergeError as error:
            found["problems"].append(str(error))
            continue
        return {
            stream.name: {
                "stream_state": stream.state,
                "connected": stream.connected,
                "lag": stream.lag if stream.HasField("lag") else None,
                "stable": stream.stable,
                "share": stream.share,
                "divergent": stream.divergent,
            }
            for stream in (() if merge is None else merge.streams)
        }
    return {}


def _add_replicas(
    found: dict[str, Any],
    spec: Spec | None,
    members: Mapping[str, Member],
    streams: Mapping[str, Mapping[str, Any]],
    home: Home | None,
) -> None:
    from coordinator.commands import REPLICA

    plans = {} if spec is None else {name: plan.name for name, plan in spec.streams().items()}
    by_name = {
        member.name: member
        for member in members.values()
        if spec is None or member.merge == spec.merge
    }
    left = [] if home is None else home.processes.names()
    leaving = [name.removeprefix(REPLICA) for name in left if name.startswith(REPLICA)]
    for name in dict.fromkeys([*plans, *by_name, *leaving]):
        member, process = by_name.get(name), _process(home, f"{REPLICA}{name}")
        ours = member is not None and member.details.get("pid") == process["pid"]
        if member is not None and not ours:
            state = "elsewhere"
        elif process["pid"] is None:
            state = "down"
        elif name not in plans and spec is not None:
            state = "leaving"
        elif member is not None and member.details.get("attached"):
            state = "ready"
        else:
            state = "starting"
        found["replicas"].append(
            {
                "stream": name,
                "plan": plans.get(name) or (member.plan if member is not None else ""),
                "state": state,
                "incarnation": None if member is None else member.incarnation,
                "lineage": None if member is None else member.lineage,
                **process,
                **_NOT_SAID,
                **streams.get(name, {}),
            }
        )


_NOT_SAID: Final[Mapping[str, Any]] = dict.fromkeys(
    ("stream_state", "connected", "lag", "stable", "share", "divergent")
)


def _process(home: Home | None, name: str) -> dict[str, Any]:
    """What this machine knows of a process."""
    known = None if home is None else home.processes.known(name)
    running = None if home is None else home.processes.running(name)
    return {
        "pid": None if running is None else running.pid,
        "restarts": None if known is None else known.restarts,
        "said": home.processes.words(name) if home is not None and running is None else "",
    }


def _show(found: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = console()
    zookeeper = found["zookeeper"]
    own = " (embedded)" if zookeeper["embedded"] else ""
    leader = found["leader"] or "nobody"
    screen.print(f"deployment {found['deployment']}, merge {found['merge'] or '-'}")
    screen.print(f"ZooKeeper {zookeeper['hosts']}{own}; {leader} leads")
    for kind, columns in (
        ("servers", {"name": "server", "address": "", "state": "", "pid": "", "restarts": ""}),
        ("replicas", {
            "stream": "replica", "plan": "", "state": "", "pid": "", "incarnation": "",
            "restarts": "", "stream_state": "stream", "connected": "", "lag": "", "stable": "",
        }),
        ("coordinators", {"name": "coordinator", "host": "", "pid": "", "leads": ""}),
    ):  # fmt: skip
        if not found[kind]:
            continue
        table = Table(box=box.SIMPLE_HEAD)
        for key, title in columns.items():
            table.add_column(title or key, no_wrap=True, overflow="ellipsis")
        for row in found[kind]:
            table.add_row(*(Text(_cell(key, row[key])) for key in columns))
        screen.print(table)
    for row in found["replicas"] + found["servers"]:
        if row["state"] == "down" and row["said"]:
            name = row.get("stream") or row["name"]
            screen.print(clean(f"{name} said: {row['said']}"))
    if isinstance(found["cutover"], dict):
        stage = found["cutover"].get("stage", "?")
        if stage not in ("done", "rolled back"):
            screen.print(f"a cutover is going on: {stage}")
    for problem in found["problems"]:
        screen.print(clean(problem))


def _cell(key: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in ("lag", "stable"):
        return show(value)
    return clean(str(value))
