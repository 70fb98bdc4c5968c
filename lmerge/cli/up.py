"""``lmerge up``: a deployment's servers and replicas on this machine, kept as they are to be."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli import connection, coordination, deployment
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from coordinator.home import Home
    from coordinator.membership import Coordination
    from coordinator.spec import Spec

CONNECT_SECONDS: Final = 20.0

DESCRIPTION = """\
Runs the servers and replicas of a deployment, and starts again what dies. Without --zk it starts a
ZooKeeper of its own. What it runs outlives it: run it a second time, and that one takes over when
the first dies. Ctrl-C or SIGTERM takes everything down, unless another one stands by; a second one
exits at once, and leaves everything running.
"""

EPILOG = """\
example, deployment.toml:
  merge = "counts"

  [[plans]]
  name = "by_word"
  build = "my_query.py:build"
  replicas = 2

  lmerge up deployment.toml
  lmerge up --plan my_query.py:build -n 2 --merge counts      the same without a file
  lmerge ps
  lmerge scale by_word 3
  lmerge down

Without a file and --plan it runs what was deployed last.

"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "up",
        help="run a deployment: servers and replicas, kept alive",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, nargs="?", metavar="FILE.toml", help="what is to be deployed")
    add("--plan", metavar="FILE.py:FUNCTION", help="one plan, without a file")
    add("--name", metavar="NAME", help="the plan's name (default: its file's)")
    add("-n", "--replicas", type=int, metavar="N", help="of the plan (default: 1)")
    add("--merge", metavar="NAME", help="the merge's name (default: main)")
    add("--listen", metavar="HOST:PORT", help="the server's (default: a free port of 127.0.0.1)")
    add("--master", metavar="URL", help="Spark's, for the plan (default: local[1])")
    deployment.add_to(parser)
    connection.add_caller_to(parser.add_argument_group("calls to servers that ask who calls"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs until a signal says stop."""
    home = deployment.home(arguments, make=True)
    given = _given(arguments)
    stopping = threading.Event()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, lambda *_: _stop(stopping))
            stack.callback(signal.signal, number, before)
        return _run(arguments, home, given, stopping)


def _stop(stopping: threading.Event) -> None:
    if stopping.is_set():
        say("a second signal: exiting at once; what runs runs on")
        os._exit(Exit.INTERRUPTED)
    stopping.set()


def say(text: str) -> None:
    """One event, one line."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _run(
    arguments: argparse.Namespace, home: Home, given: Spec | None, stopping: threading.Event
) -> int:
    from coordinator import taking_down
    from coordinator.calls import Calls
    from coordinator.commands import COORDINATOR, Options
    from coordinator.cutting import Cutting, deaths_of
    from coordinator.membership import Coordination
    from coordinator.running import Coordinator
    from coordinator.supervision import Event

    taking_down.refuse_while(home)
    hosts = _zookeeper(arguments, home)
    name = f"{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:60]}-{os.getpid()}"
    with Coordination(
        hosts, home.deployment, credentials=coordination.credentials(arguments)
    ) as session:
        session.connect(CONNECT_SECONDS)
        _settle(session, home)
        _deploy(arguments, session, home, given)
        home.processes.enter(f"{COORDINATOR}{name}", [sys.executable, *sys.argv])
        calls = Calls(connection.security(arguments))
        coordinator = Coordinator(
            home, session, name,
            calls=calls,
            options=_options(arguments, Options),
            endings={Exit.FENCED: Event.FENCED, Exit.DETACHED: Event.DETACHED},
            say=say,
            duties=[Cutting(session.deployment, calls, deaths_of(home.processes), say=say)],
        )  # fmt: skip
        try:
            coordinator.run(stopping)
        finally:
            home.processes.forget(f"{COORDINATOR}{name}")
            stays = coordinator.others() or taking_down.under_way(home)
            if not stays:
                taking_down.begin(home)  # before another could lead
    if stays:
        say(f"{name} has left; the deployment runs on")
        return Exit.OK
    taking_down.take_down(home, say)
    say(f"deployment {home.deployment} is down; its data is in {home.directory}")
    return Exit.OK


def _given(arguments: argparse.Namespace) -> Spec | None:
    """What the file or the options ask for; None when they ask for nothing."""
    from coordinator.spec import Plan, ServerSpec, Spec, build_path

    names = {"--name": "name", "-n": "replicas", "--merge": "merge", "--listen": "listen",
             "--master": "master"}  # fmt: skip
    said = [option for option, name in names.items() if getattr(arguments, name) is not None]
    if arguments.file is not None:
        if arguments.plan is not None or said:
            option = "--plan" if arguments.plan is not None else said[0]
            raise ConfigurationError(
                f"{option} is not possible beside a file: say it in {arguments.file}"
            )
        return Spec.load_toml(arguments.file)
    if arguments.plan is None:
        if said:
            raise ConfigurationError(f"{said[0]} is of a plan: name it with --plan")
        return None
    place, _, function = arguments.plan.rpartition(":")
    plan = Plan(
        arguments.name or re.sub("[^A-Za-z0-9_-]", "-", Path(place or function).stem),
        build_path(arguments.plan, Path.cwd()),
        1 if arguments.replicas is None else arguments.replicas,
        arguments.master,
    )
    usual = Spec()
    servers = usual.servers if arguments.listen is None else (ServerSpec(listen=arguments.listen),)
    return Spec(arguments.merge or usual.merge, servers, (plan,))


def _zookeeper(arguments: argparse.Namespace, home: Home) -> str:
    """The one that was named, now or before, or one of the deployment's own."""
    hosts: str | None = arguments.zk
    if hosts is None and not home.embedded:
        hosts = home.hosts
    if hosts is not None:
        home.remember(hosts, embedded=False)
        return hosts
    if home.processes.running("zookeeper") is None:
        say("starting ZooKeeper")
    return home.zookeeper()


def _settle(session: Coordination, home: Home) -> None:
    """A deployment runs on one machine, out of one directory: others would start all of it anew."""
    from coordinator.deployment import ConflictError

    place = {"host": socket.gethostname(), "directory": str(home.directory)}
    found = session.deployment.read("home")
    if found is not None and found.value == place:
        return
    if found is not None:
        there = session.deployment.members("coordinator").values()
        if any(member.details.get("directory") == found.value["directory"] for member in there):
            raise ConfigurationError(
                f"deployment {home.deployment!r} runs on {found.value['host']}, out of"
                f" {found.value['directory']}: use that with --dir, or another --deployment"
            )
    try:
        session.deployment.write("home", place, None if found is None else found.version)
    except ConflictError:
        _settle(session, home)


def _deploy(
    arguments: argparse.Namespace, session: Coordination, home: Home, given: Spec | None
) -> None:
    """The spec in ZooKeeper is what was asked for."""
    from coordinator import spec as specs
    from coordinator.taking_down import runs

    with home.alone():
        found = session.deployment.read(specs.NAME)
        if found is None and given is None:
            raise ConfigurationError(
                f"nothing is deployed as {home.deployment!r} yet: say what, with a file or --plan"
                " (lmerge up --help shows both)"
            )
        if given is None:
            return
        if found is None:
            after = home.resolved(given)
        else:
            before = specs.Spec.decoded(found.value)
            if arguments.file is None:  # one plan more, or another number of its replicas
                merge = arguments.merge or before.merge
                servers = before.servers if arguments.listen is None else given.servers
                (plan,) = given.plans
                given = replace(before.with_plan(plan), merge=merge, servers=servers)
            after = home.resolved(specs.succeeding(before, given, running=runs(home)))
            if after == before:
                return
        version = None if found is None else found.version
        session.deployment.write(specs.NAME, after.encoded(), version)


def _options(arguments: argparse.Namespace, kind: Any) -> Any:
    """What the processes are told, as they were not started by who was told it."""
    zookeeper, caller = [], []
    if arguments.zk_credentials:
        zookeeper += ["--zk-credentials", str(Path(arguments.zk_credentials).absolute())]
    for option in ("token_file", "tls_ca", "tls_cert", "tls_key"):
        if (value := getattr(arguments, option)) is not None:
            caller += [f"--{option.replace('_', '-')}", str(Path(value).absolute())]
    if arguments.tls:
        caller.append("--tls")
    return kind(tuple(zookeeper), tuple(caller))
