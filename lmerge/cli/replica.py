"""``lmerge replica run``: a PySpark query as a replica of a merge."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmerge.cli import connection, coordination
from lmerge.cli.checkpoint import saved_directory
from lmerge.cli.exits import Exit
from lmerge.cli.terminal import Terminal
from lmerge.errors import ConfigurationError, DetachedError, FencedError

if TYPE_CHECKING:
    from replicas.runner import Membership

DESCRIPTION = """\
Starts Spark, runs build(spark) of a Python file, and attaches the streaming DataFrame that it
returns to a merge. SIGTERM pauses the replica after the batch at hand; run again with the same
--checkpoint, it goes on where it was. With --zk it is a member of a deployment.
"""

EPILOG = """\
example, my_query.py:
  def build(spark):
      return (spark.readStream.format("rate").load()
              .withWatermark("timestamp", "5 seconds")
              .groupBy(F.window("timestamp", "10 seconds")).count())

  lmerge replica run my_query.py:build --merge counts --server 127.0.0.1:7070 --name r1
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser("replica", help="run a PySpark query as a replica")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run_parser = actions.add_parser(
        "run",
        help="run until it is told to stop",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_parser.add_argument("build", metavar="FILE.py:FUNCTION", help="gives the DataFrame")
    run_parser.add_argument("--merge", required=True, help="the merge to attach to")
    run_parser.add_argument("--name", required=True, help="the stream's, one for each replica")
    run_parser.add_argument(
        "--checkpoint", metavar="DIR", help="default: checkpoints/MERGE/NAME beside you"
    )
    run_parser.add_argument(
        "--jumpstart", metavar="SAVED",
        help="begin a new replica from a saved checkpoint: its directory, or its name with --zk",
    )  # fmt: skip
    run_parser.add_argument(
        "--trust-checkpoint", action="store_true", default=None,
        help="take a checkpoint though it belongs to another plan",
    )  # fmt: skip
    run_parser.add_argument("--mode", choices=("append", "update", "complete"))
    run_parser.add_argument("--vs", metavar="SQL", help="an event's start: a column or expression")
    run_parser.add_argument("--ve", metavar="SQL", help="its end; null is infinity")
    run_parser.add_argument("--key", action="append", metavar="COLUMN", help="may be repeated")
    run_parser.add_argument("--stable", metavar="SQL", help="default: the query's watermark")
    run_parser.add_argument("--restriction", choices=("R0", "R1", "R2", "R3", "R4"))
    run_parser.add_argument("--path", choices=("auto", "driver", "tasks"))
    run_parser.add_argument("--master", help="Spark's; default local[1]")
    run_parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark's; may be repeated"
    )
    run_parser.add_argument(
        "--log-level", default="FATAL", choices=("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG"),
        help="of Spark's own log, on stderr (default: FATAL; why a query died is told anyway)",
    )  # fmt: skip
    run_parser.add_argument("--json", action="store_true", help="progress as JSON lines")
    run_parser.add_argument(
        "--plan", metavar="NAME", default="", help="what it is a replica of, for the members' list"
    )
    connection.add_to(run_parser)
    coordination.add_to(run_parser)
    run_parser.set_defaults(dir=None)  # of a deployment's state, for --jumpstart NAME
    run_parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the replica."""
    conf = {}
    for each in arguments.conf:
        key, equals, value = each.partition("=")
        if not equals:
            raise ConfigurationError(f"--conf takes KEY=VALUE, not {each!r}")
        conf[key] = value
    try:
        from replicas.runner import Job, ReplicaError
        from replicas.runner import run as run_job
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ConfigurationError("this needs PySpark: pip install 'lmerge[spark]'") from error
    names = ("mode", "vs", "ve", "key", "stable", "restriction", "path", "trust_checkpoint")
    said = {name: getattr(arguments, name) for name in names}
    default = Path("checkpoints") / arguments.merge / arguments.name
    checkpoint = arguments.checkpoint or str(default.absolute())
    job = Job(
        arguments.build,
        arguments.merge,
        arguments.server,
        arguments.name,
        checkpoint,
        arguments.master,
        conf,
        {name: value for name, value in said.items() if value is not None},
        connection.security(arguments),
        arguments.json,
        arguments.log_level,
        _membership(arguments, checkpoint),
        None if arguments.jumpstart is None else saved_directory(arguments, arguments.jumpstart),
    )
    try:
        return run_job(job, lambda text: print(text, flush=True))
    except FencedError as error:
        Terminal().say(str(error))
        return Exit.FENCED
    except DetachedError as error:
        Terminal().say(str(error))
        return Exit.DETACHED
    except ReplicaError as error:
        Terminal().say(str(error))
        return Exit.DIED


def _membership(arguments: argparse.Namespace, checkpoint: str) -> Membership | None:
    """The replica's part in a deployment; None without --zk."""
    if arguments.zk is None:
        return None
    try:
        from coordinator.enrolment import Enrolment
    except ModuleNotFoundError as error:
        raise coordination.missing_kazoo(error) from error
    return Enrolment(
        arguments.zk,
        arguments.deployment,
        arguments.merge,
        arguments.name,
        plan=arguments.plan,
        checkpoint=checkpoint,
        credentials=coordination.credentials(arguments),
    )
