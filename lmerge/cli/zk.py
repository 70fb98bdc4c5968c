"""``lmerge zk``: a real ZooKeeper on this machine, for as long as the command runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli.exits import Exit
from lmerge.cli.terminal import Terminal
from lmerge.errors import UnavailableError

if TYPE_CHECKING:
    from coordinator.zookeeper import Ensemble

LOOK_SECONDS: Final = 0.5
RETURNS_MAX: Final = 100  # of nodes that ended by themselves, over all

DESCRIPTION = """\
Starts ZooKeeper from the jars that PySpark ships, and prints its connection string when it answers.
It listens on 127.0.0.1 only. It ends with SIGTERM, SIGINT (Ctrl-C), SIGHUP, and with the process
that started it. A node that dies is started again.
"""

EPILOG = """\
example:
  lmerge zk --data zookeeper --port 2181
  lmerge server --zk 127.0.0.1:2181 --deployment d

Without --data everything is gone at the end. With it, the data and the ports are there again at the
next start. With --ensemble 3, node 2 has port P + 1 and node 3 has port P + 2.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "zk",
        help="run a ZooKeeper from PySpark's jars",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, metavar="P", help="for clients; default: a free one")
    parser.add_argument("--data", type=Path, metavar="DIR", help="default: a temporary directory")
    parser.add_argument("--ensemble", type=int, default=1, metavar="N", help="nodes; default 1")
    parser.add_argument("--json", action="store_true", help="say where it is as JSON")
    parser.add_argument(
        "--outlive-parent", action="store_true", help="go on when whoever started it has ended"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs it until a signal says stop."""
    from coordinator.zookeeper import Ensemble

    stopping = threading.Event()
    parent = os.getppid()
    with ExitStack() as stack:
        # From now on a signal must not leave processes or files behind.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            before = signal.signal(number, lambda *_: stopping.set())
            stack.callback(signal.signal, number, before)
        directory = arguments.data
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmerge-zk-")))
        ensemble = Ensemble(directory, nodes=arguments.ensemble, port=arguments.port)
        stack.enter_context(ensemble)
        _tell(ensemble, as_json=arguments.json, kept=arguments.data is not None)
        returns = 0
        while not stopping.wait(LOOK_SECONDS):
            if os.getppid() != parent and not arguments.outlive_parent:
                break
            for node in ensemble.nodes:
                if not node.running and not stopping.is_set():
                    Terminal().say(f"node {node.number} has ended; it is started again")
                    returns += 1
                    if returns > RETURNS_MAX:
                        raise UnavailableError(f"ZooKeeper keeps ending: {node.complaint()}")
                    ensemble.start(node.number, wait=False)
    return Exit.OK


def _tell(ensemble: Ensemble, *, as_json: bool, kept: bool) -> None:
    if as_json:
        told = {
            "hosts": ensemble.hosts,
            "nodes": [{"port": node.port, "pid": node.pid} for node in ensemble.nodes],
            "data": str(ensemble.directory) if kept else None,
        }
        print(json.dumps(told), flush=True)
        return
    print(ensemble.hosts, flush=True)
    many = len(ensemble.nodes)
    Terminal().say(f"ZooKeeper answers ({many} node{'s' if many > 1 else ''}); Ctrl-C ends it")
