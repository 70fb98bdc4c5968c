"""``lmerge demo``: replicas of one query, one of them dies, and the consumer does not notice.

The stories are in :mod:`lmerge.cli.story`, which plays one in a moment with the merge alone, and in
:mod:`lmerge.cli.demonstration`, on real parts; this only knows the options.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from lmerge.cli.exits import Exit
from lmerge.errors import ConfigurationError

HELP: Final = "watch replicas, one of them dying, become one stream"
DESCRIPTION: Final = """\
Three replicas watch the processes of a small data centre. A process is an event from its start to
its end. Each replica runs another plan, so the same facts reach the merge in other orders, with
other guesses that are corrected later, and at other times. Then the fastest replica is killed.

With --live all parts are real: ZooKeeper, a merge server and PySpark replicas on input that is
written meanwhile. The leading replica is killed, and comes back; a third plan takes over from
another; a replica that lags skips what is not needed any more. At the end what a consumer saw is
compared with a batch job, and with one Spark query that is killed and restarted.
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
    live = parser.add_argument_group("on real parts")
    live.add_argument("--live", action="store_true", help="start all of them; some minutes")
    live.add_argument("--json", type=Path, metavar="FILE", help="the report as data")
    live.add_argument("--keep", type=Path, metavar="DIR", help="keep everything there")
    live.add_argument(
        "--quick", action="store_true", help="less calm, and no query alone to compare with"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> Exit:
    """Tells the story; OK only if the proof holds."""
    if arguments.live:
        return _live(arguments)
    if arguments.json is not None or arguments.keep is not None or arguments.quick:
        raise ConfigurationError("--json, --keep and --quick are of --live")
    from lmerge.cli.story import tell

    return Exit.OK if tell(arguments.seed, fast=arguments.fast) else Exit.CONTRADICTION


def _live(arguments: argparse.Namespace) -> Exit:
    try:
        from lmerge.cli.demonstration.story import tell
    except ModuleNotFoundError as error:
        if error.name not in ("kazoo", "pyspark", "psutil"):
            raise
        raise ConfigurationError(
            "this needs Spark and ZooKeeper's client: pip install 'lmerge[server,spark,zookeeper]'"
        ) from error
    directory: Path | None = arguments.keep
    if directory is not None:
        if directory.exists():
            raise ConfigurationError(f"{directory} is there already: name a new directory")
        directory.mkdir(parents=True)
        directory = directory.absolute()

    def keep(report: dict[str, Any]) -> None:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")

    held = tell(arguments.seed, directory, keep, quick=arguments.quick)
    return Exit.OK if held else Exit.CONTRADICTION
