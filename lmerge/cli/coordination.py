"""The command line's way to ZooKeeper: the options, and who calls."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from coordinator.deployment import Credentials

VARIABLE: Final = "LMERGE_ZK_CREDENTIALS"
DEPLOYMENT: Final = "default"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where ZooKeeper is, and which deployment is meant."""
    group = parser.add_argument_group("coordination")
    add = group.add_argument
    add("--zk", metavar="HOST:PORT,...", help="the ZooKeeper to take part in")
    add("--deployment", metavar="NAME", default=DEPLOYMENT,
        help=f"the deployment in it (default: {DEPLOYMENT})")  # fmt: skip
    add("--zk-credentials", metavar="FILE",
        help=f"holds NAME:PASSWORD for the deployment's rights (default: ${VARIABLE})")  # fmt: skip


def credentials(arguments: argparse.Namespace) -> Credentials | None:
    """Who calls, as the options and the environment say."""
    from coordinator.deployment import Credentials

    said, place = os.environ.get(VARIABLE, ""), f"${VARIABLE}"
    if arguments.zk_credentials:
        place = arguments.zk_credentials
        try:
            said = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise ConfigurationError(f"{place} cannot be read: {reason}") from None
    elif not said:
        return None
    name, colon, password = said.partition(":")
    if not (name and colon and password):
        raise ConfigurationError(f"{place} holds no NAME:PASSWORD")
    return Credentials(name, password)


def missing_kazoo(error: ModuleNotFoundError) -> ConfigurationError:
    """One line for who has not installed what ZooKeeper needs; anything else is raised."""
    if error.name is None or error.name.partition(".")[0] not in ("kazoo", "coordinator"):
        raise error
    return ConfigurationError("--zk needs ZooKeeper's client: pip install 'lmerge[zookeeper]'")
