"""A deployment's state directory: its processes, their logs and data, and where its ZooKeeper is.

    <directory>/
        deployment.json     which deployment, and its ZooKeeper
        run/, logs/         see coordinator.processes
        zookeeper/          of the embedded one
        servers/<name>/     a server's data
        checkpoints/<stream>/

Callers may rely on this: the directory belongs to one deployment, and says so; of several who need
the embedded ZooKeeper at once one starts it; it has the same ports at every start, unless they are
taken. A checkpoint is never deleted while a replica may go on from it: what is given up is kept,
one for each stream, as ``<stream>.left``.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from coordinator.processes import Processes
from coordinator.spec import Plan, ServerSpec, Spec
from coordinator.zookeeper import PORTS, READY_SECONDS
from lmerge.errors import ConfigurationError, UnavailableError
from lmerge.server.config import address, check_name

FOLDER: Final = Path(".lmerge")
ZOOKEEPER: Final = "zookeeper"
LOOK_SECONDS: Final = 0.05
END_SECONDS: Final = 20.0
PORTS_TRIED: Final = 200


class Home:
    """One state directory."""

    def __init__(self, deployment: str, directory: Path | None = None, *, make: bool) -> None:
        """Without ``make`` it must be there."""
        check_name("deployment", deployment)
        self.deployment = deployment
        self.directory = (FOLDER / deployment if directory is None else directory).absolute()
        self._file = self.directory / "deployment.json"
        found = self._said()
        if not found and not make:
            raise ConfigurationError(
                f"there is no deployment in {self.directory}: start it with lmerge up, say where"
                " its state is with --dir, or name its ZooKeeper with --zk"
            )
        if found and found.get("deployment") != deployment:
            raise ConfigurationError(
                f"{self.directory} is the state of deployment {found.get('deployment')!r}, not of"
                f" {deployment!r}: say which is meant with --deployment, or where with --dir"
            )
        self.processes = Processes(self.directory)

    def _said(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self._file} cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}

    # -- ZooKeeper --------------------------------------------------------------------------------

    @property
    def hosts(self) -> str | None:
        """The ZooKeeper that the deployment was started with last."""
        return self._said().get("zookeeper")

    @property
    def embedded(self) -> bool:
        """Whether that is the one of this directory."""
        return bool(self._said().get("embedded"))

    def remember(self, hosts: str, *, embedded: bool) -> None:
        """For the commands to come."""
        said = {"deployment": self.deployment, "zookeeper": hosts, "embedded": embedded}
        draft = self._file.with_suffix(".json~")
        draft.write_text(json.dumps(said))
        draft.replace(self._file)

    def zookeeper(self) -> str:
        """The embedded ZooKeeper's hosts; it is started unless it runs."""
        with self.alone():
            if self.processes.running(ZOOKEEPER) is not None and (hosts := self.hosts):
                return hosts
            data = self.directory / ZOOKEEPER
            command = [
                sys.executable, "-m", "lmerge", "zk", "--outlive-parent", "--json",
                "--data", str(data),
            ]  # fmt: skip
            self.processes.start(ZOOKEEPER, command)
            hosts = self._answering()
            self.remember(hosts, embedded=True)
            return hosts

    def revive_zookeeper(self) -> bool:
        """Starts the embedded ZooKeeper again when its process has ended; whether it had."""
        if not self.embedded or self.processes.running(ZOOKEEPER) is not None:
            return False
        self.zookeeper()
        return True

    def _answering(self) -> str:
        deadline = time.monotonic() + 2 * READY_SECONDS
        while time.monotonic() < deadline:
            words = self.processes.words(ZOOKEEPER)
            if words.startswith("{"):
                hosts: str = json.loads(words)["hosts"]
                return hosts
            if self.processes.running(ZOOKEEPER) is None:
                raise UnavailableError(f"the embedded ZooKeeper did not start: {words}")
            time.sleep(LOOK_SECONDS)
        raise UnavailableError("the embedded ZooKeeper does not answer")

    # -- where things are -------------------------------------------------------------------------

    def checkpoint(self, plan: Plan, stream: str) -> str:
        """A replica's."""
        base = plan.checkpoint or str(self.directory / "checkpoints")
        return f"{base.rstrip('/')}/{stream}"

    def data_dir(self, server: ServerSpec) -> str:
        """A server's."""
        return server.data_dir or str(self.directory / "servers" / server.name)

    def set_aside(self, checkpoint: str) -> None:
        """A replica is not to go on from it any more."""
        if "://" in checkpoint:
            raise ConfigurationError(
                f"{checkpoint} is of no use any more, and only who has access can remove it"
            )
        left = Path(f"{checkpoint}.left")
        if Path(checkpoint).exists():
            shutil.rmtree(left, ignore_errors=True)
            Path(checkpoint).rename(left)

    def resolved(self, spec: Spec) -> Spec:
        """With free ports where the spec leaves them open: they stay, as replicas know them."""
        taken: set[int] = set()
        servers = []
        for server in spec.servers:
            host, port = address(server.listen)
            if port == 0:
                port = _free_port(host, taken)
                shown = f"[{host}]" if ":" in host else host
                server = replace(server, listen=f"{shown}:{port}")
            taken.add(port)
            servers.append(server)
        return replace(spec, servers=tuple(servers))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For what only one process may do at a time."""
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def end(self, names: list[str], seconds: float, say: Callable[[str], None]) -> None:
        """Ends processes of this directory, all at once; SIGKILL for who takes too long."""
        running = [name for name in names if self.processes.running(name) is not None]
        for name in running:
            self.processes.signal(name, signal.SIGTERM)
        deadline, killed = time.monotonic() + seconds, False
        while running:
            for name in [each for each in running if self.processes.running(each) is None]:
                running.remove(name)
                self.processes.sweep(name)
                say(f"{shown(name)} ended")
            late = time.monotonic() > deadline
            if late and killed:
                raise UnavailableError(f"these do not end: {', '.join(map(shown, running))}")
            if late:
                killed, deadline = True, time.monotonic() + END_SECONDS
                for name in running:
                    say(f"{shown(name)} has not ended after {seconds:g} s; it is killed")
                    self.processes.signal(name, signal.SIGKILL)
            if running:
                time.sleep(LOOK_SECONDS)


def shown(name: str) -> str:
    """A process's name, for people."""
    return name.replace("-", " ", 1)


def _free_port(host: str, taken: set[int]) -> int:
    for port in random.sample(PORTS, PORTS_TRIED):  # they need not be unpredictable
        if port in taken:
            continue
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ConfigurationError(f"no free port was found for a server on {host}")
