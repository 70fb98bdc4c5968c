"""The end of a deployment on this machine: replicas first, then servers, then its ZooKeeper.

Callers may rely on this: who takes it down is seen by everybody else, and nobody starts anything
meanwhile; what was acknowledged, the checkpoints and the spec stay where they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from coordinator.commands import COORDINATOR, REPLICA, SERVER
from coordinator.home import ZOOKEEPER, Home
from lmerge.errors import UnavailableError

NAME: Final = "down"
COORDINATOR_SECONDS: Final = 30.0
REPLICA_SECONDS: Final = 90.0
SERVER_SECONDS: Final = 30.0
ZOOKEEPER_SECONDS: Final = 30.0


def begin(home: Home) -> None:
    """This process takes it down."""
    home.processes.enter(NAME, [sys.executable, *sys.argv])


def under_way(home: Home) -> bool:
    """Whether somebody else does."""
    known = home.processes.running(NAME)
    return known is not None and known.pid != os.getpid()


def refuse_while(home: Home) -> None:
    """UnavailableError while somebody does."""
    if under_way(home):
        raise UnavailableError(
            f"deployment {home.deployment!r} is being taken down: try again when that is done"
        )


def runs(home: Home) -> bool:
    """Whether anything but ZooKeeper does."""
    return any(
        name.startswith((COORDINATOR, REPLICA, SERVER))
        for name in home.processes.names()
        if home.processes.running(name) is not None
    )


def take_down(home: Home, say: Callable[[str], None]) -> None:
    """Ends everything. What is known of replicas stays: their streams may have to be detached."""
    processes = home.processes
    begin(home)
    try:
        for prefix, seconds in (
            (COORDINATOR, COORDINATOR_SECONDS),
            (REPLICA, REPLICA_SECONDS),
            (SERVER, SERVER_SECONDS),
            (ZOOKEEPER, ZOOKEEPER_SECONDS),
        ):
            names = [name for name in processes.names() if name.startswith(prefix)]
            home.end(names, seconds, say)
            for name in names:
                if prefix != REPLICA:
                    processes.forget(name)
    finally:
        processes.forget(NAME)
