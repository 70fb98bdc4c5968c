"""``lmerge scale``: another number of replicas of a plan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lmerge.cli import deployment
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.terminal import Terminal

if TYPE_CHECKING:
    from coordinator.spec import Spec

DESCRIPTION = """\
Changes how many replicas of a plan are to run. Those that are too many finish the batch at hand and
leave the merge; their checkpoints are of no use any more. It returns when the change is made: the
leader of the deployment carries it out (lmerge ps shows how far it is).
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "scale",
        help="change the number of a plan's replicas",
        description=DESCRIPTION,
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", metavar="PLAN", help="the plan's name")
    parser.add_argument("replicas", metavar="N", type=int, help="how many replicas of it")
    deployment.add_to(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Changes the spec."""
    with deployment.session(arguments) as session:
        from coordinator import spec as specs

        before = 0

        def scaled(spec: Spec) -> Spec:
            nonlocal before
            before = spec.plan(arguments.plan).replicas
            return spec.scaled(arguments.plan, arguments.replicas)

        specs.change(session.deployment, scaled)
        print(f"plan {arguments.plan}: {before} → {arguments.replicas} replicas")
        if not session.deployment.members("coordinator"):
            Terminal().say("nobody runs the deployment now: lmerge up will carry it out")
    return Exit.OK
