"""What the processes of a deployment are started with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.home import Home
from coordinator.spec import Plan, ServerSpec, Spec

REPLICA: Final = "replica-"
SERVER: Final = "server-"
COORDINATOR: Final = "coordinator-"


@dataclass(frozen=True, slots=True)
class Options:
    """What every process is told: who it is to ZooKeeper, and replicas to the servers."""

    zookeeper: Sequence[str] = ()
    caller: Sequence[str] = ()


def wanted(spec: Spec, home: Home, hosts: str, options: Options) -> dict[str, list[str]]:
    """Every process that the spec asks for, by name."""
    member = ["--zk", hosts, "--deployment", home.deployment, *options.zookeeper]
    found = {
        f"{SERVER}{server.name}": [*_server(server, spec, home), *member] for server in spec.servers
    }
    for stream, plan in spec.streams().items():
        command = _replica(stream, plan, spec, home)
        found[f"{REPLICA}{stream}"] = [*command, *member, *options.caller]
    return found


def alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a process that runs is the one that is wanted: which Python runs it, and in which
    order ZooKeeper's hosts were said, may differ from coordinator to coordinator."""
    return _essence(one) == _essence(other)


def _essence(command: Sequence[str]) -> list[str]:
    found = list(command[1:])
    if "--zk" in found:
        at = found.index("--zk") + 1
        found[at : at + 1] = sorted(found[at].split(",")) if at < len(found) else []
    return found


def _lmerge(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lmerge", *arguments]


def _server(server: ServerSpec, spec: Spec, home: Home) -> list[str]:
    config = [] if server.config is None else ["--config", server.config]
    return _lmerge(
        "server", *config, "--listen", server.listen, "--data-dir", home.data_dir(server),
        "--durability", server.durability, "--server-name", server.name,
        "--linger", f"{spec.linger_seconds:g}",
    )  # fmt: skip


def _replica(stream: str, plan: Plan, spec: Spec, home: Home) -> list[str]:
    command = _lmerge(
        "replica", "run", plan.build, "--merge", spec.merge, "--name", stream,
        "--plan", plan.name, "--checkpoint", home.checkpoint(plan, stream),
        "--server", ",".join(spec.addresses),
    )  # fmt: skip
    if plan.jumpstart is not None and "checkpoint" in plan.jumpstart:
        command += ["--jumpstart", str(plan.jumpstart["checkpoint"])]
    if plan.master is not None:
        command += ["--master", plan.master]
    for key, value in plan.conf.items():
        command += ["--conf", f"{key}={value}"]
    for option, value in plan.options.items():
        for each in value if option == "key" else (value,):
            command += [f"--{option}", str(each)]
    return command
