"""``lmerge server``: merges replicas' streams as a service."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmerge.cli import coordination
from lmerge.cli.exits import Exit

if TYPE_CHECKING:
    from lmerge.server.membership import Roll

DESCRIPTION = """\
Serves merges over gRPC: replicas attach, consumers subscribe, operators look and act.
What was acknowledged survives kill -9; SIGTERM drains, a second one exits at once.
"""

EPILOG = """\
example:
  lmerge server --listen 127.0.0.1:7070 --data-dir data
  lmerge gen --elements 1000 --streams 1 -o a.jsonl
  lmerge attach --server 127.0.0.1:7070 --merge m --stream a a.jsonl
  lmerge subscribe --server 127.0.0.1:7070 --merge m

A configuration file (TOML) says the same and more: merges, limits, TLS, tokens.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "server",
        help="serve merges over gRPC",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file")
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:7070; port 0: any")
    parser.add_argument("--data-dir", metavar="DIR", help="logs and snapshots; default lmerge-data")
    parser.add_argument(
        "--durability",
        choices=("fsync", "flush", "none"),
        help="what an acknowledgement survives: power loss (default), kill -9, nothing",
    )
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="Prometheus metrics there")
    parser.add_argument("--log-format", choices=("text", "json"), help="default text")
    coordination.add_to(parser)
    parser.add_argument(
        "--server-name", default="server", metavar="NAME", help="its own in the deployment"
    )
    parser.add_argument(
        "--linger", type=float, default=0.0, metavar="SECONDS",
        help="how long a stream stays when its replica is no member any more (default: 0)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal says stop."""
    from lmerge.server import config, logs, serving

    names = ("listen", "data_dir", "durability", "metrics_listen", "log_format")
    said = {name: getattr(arguments, name) for name in names}
    overrides = {name: value for name, value in said.items() if value is not None}
    chosen = config.load(arguments.config, overrides)
    logs.configure(chosen.log_format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serving.run(chosen, _roll(arguments)))
    return Exit.OK


def _roll(arguments: argparse.Namespace) -> Roll | None:
    """Who knows the members; None without --zk."""
    if arguments.zk is None:
        return None
    try:
        from coordinator.attending import Attending
    except ModuleNotFoundError as error:
        raise coordination.missing_kazoo(error) from error
    return Attending(
        arguments.zk,
        arguments.deployment,
        arguments.server_name,
        credentials=coordination.credentials(arguments),
        linger_seconds=arguments.linger,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, which takes a third off a small message's latency; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
