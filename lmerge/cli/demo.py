"""``lmerge demo``: three replicas of one query, one of them dies, and the consumer does not notice.

The story itself is in :mod:`lmerge.cli.story`, which loads the merge; this only knows the options.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from lmerge.cli.exits import Exit

HELP: Final = "watch three replicas, one of them dying, become one stream"
DESCRIPTION: Final = """\
Three replicas watch the processes of a small data centre. A process is an event from its start to
its end. Each replica runs another plan, so the same facts reach the merge in other orders, with
other guesses that are corrected later, and at other times. Then the fastest replica is killed.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=7, help="another day in the data centre")
    parser.add_argument("--fast", action="store_true", help="do not wait between the lines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Tells the story; OK only if the proof holds."""
    from lmerge.cli.story import tell

    return Exit.OK if tell(arguments.seed, fast=arguments.fast) else Exit.CONTRADICTION
