"""The command line's way to a deployment: its state directory, its ZooKeeper, and what it has.

kazoo is imported when a deployment is looked at: other commands need not have it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmerge.cli import coordination
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from coordinator.home import Home
    from coordinator.membership import Coordination

CONNECT_SECONDS: Final = 10.0


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which deployment is meant."""
    coordination.add_to(parser)
    parser.add_argument(
        "--dir", type=Path, metavar="DIR",
        help="its state on this machine (default: .lmerge/NAME, with the deployment's name)",
    )  # fmt: skip


def home(arguments: argparse.Namespace, *, make: bool = False) -> Home:
    """The state directory; without ``make`` it must be there."""
    try:
        from coordinator.home import Home
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return Home(arguments.deployment, arguments.dir, make=make)


def hosts(arguments: argparse.Namespace) -> str:
    """The ZooKeeper that was named, or that the deployment was started with."""
    if arguments.zk is not None:
        return str(arguments.zk)
    known = home(arguments).hosts
    if known is None:
        raise ConfigurationError("it is not known where ZooKeeper is: say it with --zk")
    return known


@contextmanager
def session(
    arguments: argparse.Namespace, seconds: float = CONNECT_SECONDS
) -> Iterator[Coordination]:
    """A session with the deployment's ZooKeeper, which answers; its ``deployment`` is ready."""
    said = hosts(arguments)
    try:
        from coordinator.membership import Coordination
    except ModuleNotFoundError as error:
        raise missing(error) from error
    with Coordination(
        said, arguments.deployment, credentials=coordination.credentials(arguments)
    ) as opened:
        opened.connect(seconds)
        yield opened


def missing(error: ModuleNotFoundError) -> ConfigurationError:
    """One line for who has not installed what a deployment needs; anything else is raised."""
    if error.name is None or error.name.partition(".")[0] not in ("kazoo", "psutil", "coordinator"):
        raise error
    return ConfigurationError("a deployment needs more: pip install 'lmerge[zookeeper]'")
