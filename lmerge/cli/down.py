"""``lmerge down``: ends a deployment's processes on this machine, and keeps its data."""

from __future__ import annotations

import argparse
from typing import Any

from lmerge.cli import deployment
from lmerge.cli.exits import EXIT_HELP, Exit

DESCRIPTION = """\
Ends what lmerge up has started: the coordinators, the replicas (each finishes the batch at hand),
the servers, and the embedded ZooKeeper. Data, checkpoints and what is deployed are kept: lmerge up
goes on where this ended.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "down",
        help="end a deployment's processes, and keep its data",
        description=DESCRIPTION,
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    deployment.add_to(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ends everything, and returns when it has ended."""
    home = deployment.home(arguments)
    from coordinator import taking_down

    taking_down.refuse_while(home)
    taking_down.take_down(home, lambda text: print(text, flush=True))
    print(f"deployment {home.deployment} is down; its data is in {home.directory}")
    return Exit.OK
