"""Which checkpoints a deployment has, and where: ``checkpoints/<name>`` in ZooKeeper.

A record says what its manifest says, and on which machine the directory is. The directory itself is
what counts: a record may outlive it, and :func:`missing` tells.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coordinator.deployment import ConflictError, Deployment, key_of
from lmerge.errors import ConfigurationError, NotFoundError
from lmerge.server.config import check_name

FOLDER: Final = "checkpoints"
CONFLICTS_MAX: Final = 20

Record = dict[str, Any]


def record(deployment: Deployment, name: str, manifest: Mapping[str, Any]) -> Record:
    """Keep a checkpoint's manifest; one of the same name is replaced."""
    check_name("checkpoint", name)
    value = {**manifest, "host": socket.gethostname()}
    for _ in range(CONFLICTS_MAX):
        known = deployment.read(f"{FOLDER}/{name}")
        try:
            deployment.write(f"{FOLDER}/{name}", value, None if known is None else known.version)
            return value
        except ConflictError:
            continue
    raise ConflictError(f"too many want to record checkpoint {name!r} at once")


def recorded(deployment: Deployment) -> dict[str, Record]:
    """All of them, by name."""
    found = {}
    for name in deployment.names(FOLDER):
        value = deployment.read(f"{FOLDER}/{name}")
        if value is not None and isinstance(value.value, dict):
            found[name] = value.value
    return found


def directory_of(deployment: Deployment, name: str) -> str:
    """Where a recorded checkpoint is."""
    check_name("checkpoint", name)
    value = deployment.read(f"{FOLDER}/{name}")
    if value is None:
        known = ", ".join(deployment.names(FOLDER)) or "none"
        raise NotFoundError(
            f"deployment {deployment.name!r} has no checkpoint {name!r}; it has {known}"
        )
    directory, host = str(value.value.get("directory", "")), value.value.get("host")
    if not Path(directory).exists() and host != socket.gethostname():
        raise ConfigurationError(f"checkpoint {name!r} is on {host}, in {directory}")
    return directory


def forget(deployment: Deployment, name: str) -> None:
    """Remove a record; what it names stays."""
    value = deployment.read(f"{FOLDER}/{name}")
    if value is not None:
        deployment.remove(f"{FOLDER}/{name}", value.version)


def missing(value: Mapping[str, Any]) -> bool:
    """Whether a record of this machine's names what is not there any more."""
    here = value.get("host") == socket.gethostname()
    return here and not Path(str(value.get("directory", ""))).exists()


def member_checkpoint(deployment: Deployment, merge: str, stream: str) -> str:
    """Where a replica that is a member says that its checkpoint is."""
    key = key_of("replica", stream, merge)
    member = deployment.members("replica").get(key)
    if member is None:
        raise NotFoundError(
            f"deployment {deployment.name!r} has no replica {stream!r} of merge {merge!r} now; say"
            " with --from where its checkpoint is"
        )
    directory = member.details.get("checkpoint")
    if not directory:
        raise NotFoundError(
            f"replica {stream!r} does not say where its checkpoint is; say it with --from"
        )
    if member.address != socket.gethostname():
        raise ConfigurationError(
            f"replica {stream!r} runs on {member.address}, its checkpoint is {directory} there:"
            " save it there, or give with --from where that is mounted"
        )
    return str(directory)
