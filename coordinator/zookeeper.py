"""A real ZooKeeper on this machine, from the jars that PySpark ships: one node or an ensemble.

Callers may rely on this:
- When a start returns, every node answers requests (its port opens earlier, and a client that
  connects then waits for a whole session timeout).
- The processes end with the ensemble's ``with``, and when this process ends, however it does.
- It listens on loopback only. Nobody is asked who they are, other than by the nodes' own ACLs.
- A directory used again has its data and, unless they are taken, its ports; its number of nodes
  cannot change (new nodes could outvote the one that has the data), and two ensembles at once
  cannot use it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from coordinator import guardian
from lmerge.errors import ConfigurationError, UnavailableError

HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 0.5  # for one word; a node asked too early never answers: ask again
LOOK_SECONDS: Final = 0.02
NODES_MAX: Final = 7
ATTEMPTS: Final = 5  # to find ports that nobody else takes meanwhile
# Below what systems give to outgoing connections: a node's port must be free when it returns.
PORTS: Final = range(15_000, 32_000)

TICK_MS: Final = 500
SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 60_000
LOG_BYTES: Final = "4MB"

_JAVA_OPTIONS: Final = (
    "-Xmx128m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.4lw.commands.whitelist=srvr,conf,ruok,mntr",
    "-Dzookeeper.preAllocSize=1024",  # KiB; 64 MiB of each log would be written first
    "-Djava.net.preferIPv4Stack=true", "-Dlog4j2.disable.jmx=true",
)  # fmt: skip
# Java looks through every jar of the classpath: all of PySpark's would take seconds.
_JARS: Final = (
    "zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "log4j-api-*", "log4j-core-*",
    "log4j-slf4j2-impl-*", "metrics-core-*", "snappy-java-*", "commons-io-*", "netty-buffer-*",
    "netty-codec-[0-9]*", "netty-codec-base-*", "netty-common-*", "netty-handler-[0-9]*",
    "netty-resolver-[0-9]*", "netty-transport-[0-9]*", "netty-transport-classes-epoll-*",
    "netty-transport-native-unix-common-*",
)  # fmt: skip


def classpath() -> str:
    """The jars that a node needs; ConfigurationError when PySpark, or ZooKeeper in it, is not."""
    spec = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME", "")]
    if spec is not None and spec.origin is not None:
        homes.insert(0, str(Path(spec.origin).parent))
    homes = [home for home in homes if home]
    if not homes:
        raise ConfigurationError(
            "the embedded ZooKeeper is made of PySpark's jars, and PySpark is not installed: pip"
            " install 'lmerge[spark]', or name a ZooKeeper of your own with --zk HOST:PORT"
        )
    for home in homes:
        folder = Path(home) / "jars"
        found = [str(jar) for pattern in _JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
        if any(Path(jar).name.startswith("zookeeper-jute") for jar in found):
            return os.pathsep.join(found)
    raise ConfigurationError(
        f"there is no ZooKeeper in {Path(homes[0]) / 'jars'}: name one of your own with --zk"
        " HOST:PORT"
    )


def java() -> str:
    """The Java to run; ConfigurationError when there is none."""
    home = os.environ.get("JAVA_HOME", "")
    inside = Path(home) / "bin" / "java"
    found = str(inside) if home and os.access(inside, os.X_OK) else shutil.which("java")
    if found is None:
        raise ConfigurationError(
            "the embedded ZooKeeper needs Java, and there is none: install a JDK (17 or newer, as"
            " PySpark needs it) or set JAVA_HOME, or name a ZooKeeper of your own with --zk"
            " HOST:PORT"
        )
    return found


def ask(port: int, word: str = "srvr") -> str:
    """What a node answers to a four-letter word; nothing when it does not."""
    try:
        with socket.create_connection((HOST, port), ANSWER_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(word.encode())
            answer = b""
            while received := connection.recv(4096):
                answer += received
            return answer.decode(errors="replace")
    except OSError:
        return ""


def mode(port: int) -> str:
    """``leader``, ``follower`` or ``standalone``; nothing while a node does not serve."""
    for line in ask(port).splitlines():
        name, _, value = line.partition(": ")
        if name == "Mode":
            return value
    return ""


class Node:
    """One ZooKeeper process, and its directory."""

    def __init__(self, number: int, directory: Path, port: int) -> None:
        self.number = number
        self.directory = directory
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process is there; it need not serve."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The guardian's, whose process group holds the node and nothing else."""
        return None if self._process is None else self._process.pid

    def serves(self) -> bool:
        """Whether it answers requests: it, and not another that has taken its port."""
        return bool(mode(self.port)) and f"dataDir={self.directory}{os.sep}" in ask(
            self.port, "conf"
        )

    def launch(self, quorum: bool) -> None:
        """Starts the process."""
        main = "quorum.QuorumPeerMain" if quorum else "ZooKeeperServerMain"
        # Isolated, and without site: the guardian must start fast, and be what it is.
        watched = [sys.executable, "-I", "-S", str(guardian.__file__)]
        command = [
            *watched, java(), *_JAVA_OPTIONS,
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp", classpath(),
            f"org.apache.zookeeper.server.{main}", str(self.directory / "zoo.cfg"),
        ]  # fmt: skip
        with (self.directory / "node.out").open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory,
            )

    def send(self, number: signal.Signals) -> None:
        """To the process and its guardian; nothing when it has ended."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Signals, and waits for the end; SIGKILL when that takes too long."""
        process = self._process
        if process is None:
            return
        self.send(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            process.wait(STOP_SECONDS)
        assert process.stdin is not None  # noqa: S101  # it was asked for
        process.stdin.close()
        self._process = None

    def complaint(self) -> str:
        """The last line of an error in its logs."""
        lines: list[str] = []
        for name in ("node.out", "node.log"):
            try:
                lines += (self.directory / name).read_text(errors="replace").splitlines()
            except OSError:
                continue
        told = [line.strip() for line in lines if "Exception" in line or "rror" in line]
        return (told or lines or ["it said nothing"])[-1][:300]


class Ensemble:
    """One node, or several of which a majority must run; a context manager."""

    def __init__(self, directory: Path, *, nodes: int = 1, port: int | None = None) -> None:
        """``port`` is the first node's, and the others have those after it; None: free ones."""
        if not 1 <= nodes <= NODES_MAX or nodes % 2 == 0:
            raise ConfigurationError(
                f"an ensemble of {nodes} nodes is not possible: 1, 3, 5 or {NODES_MAX}"
                " (an even number bears no more failures than one less)"
            )
        if port is not None and not 0 < port <= 65_536 - nodes:
            raise ConfigurationError(f"{port} is no port for {nodes} nodes")
        self.directory = directory.absolute()
        self._wanted = port
        self._count = nodes
        self._lock = -1
        self._nodes: list[Node] = []

    # -- all of it --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Starts every node, and waits until each answers."""
        java()
        classpath()
        self._claim()
        try:
            remembered = self._remembered()
            for attempt in range(ATTEMPTS):
                ports = remembered if attempt == 0 and remembered else self._choose()
                self._prepare(ports)
                try:
                    self._start_all()
                    return
                except UnavailableError as error:
                    # Somebody else may have taken a port between our look and the node's start.
                    taken = "BindException" in str(error) and self._wanted is None
                    if not taken or attempt == ATTEMPTS - 1:
                        raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends every node. What was written is kept in the directory."""
        for node in self._nodes:
            node.send(signal.SIGCONT)  # one that was paused would not hear the next
            node.send(signal.SIGTERM)
        for node in self._nodes:
            node.end(signal.SIGTERM)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def hosts(self) -> str:
        """The connection string."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes)

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by their numbers from 0 on."""
        return self._nodes

    # -- single nodes -----------------------------------------------------------------------------

    def start(self, number: int, *, wait: bool = True) -> None:
        """Starts a node that was stopped or killed; it has its data and its port.

        Without ``wait`` it returns at once: a node of an ensemble serves only with a majority.
        """
        node = self._nodes[number]
        if node.running:
            return
        node.end(signal.SIGKILL)
        node.launch(self._count > 1)
        if wait:
            self._await(node)

    def stop(self, number: int) -> None:
        """SIGTERM, and waits for the end."""
        self._nodes[number].end(signal.SIGTERM)

    def kill(self, number: int) -> None:
        """SIGKILL, and waits for the end."""
        self._nodes[number].end(signal.SIGKILL)

    def pause(self, number: int) -> None:
        """SIGSTOP: it keeps its connections, and answers nothing."""
        self._nodes[number].send(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        self._nodes[number].send(signal.SIGCONT)

    def leader(self) -> int | None:
        """The number of the node that leads (or stands alone); None while there is none."""
        for node in self._nodes:
            if node.running and mode(node.port) in ("leader", "standalone"):
                return node.number
        return None

    def await_ready(self) -> None:
        """Waits until every node that was started answers."""
        for node in self._nodes:
            if node.running:
                self._await(node)

    # -- how --------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        try:
            for node in self._nodes:
                node.launch(self._count > 1)
            for node in self._nodes:
                self._await(node)
        except BaseException:
            for node in self._nodes:
                node.end(signal.SIGKILL)
            raise

    def _await(self, node: Node) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not (node.running and node.serves()):
            if not node.running:
                raise UnavailableError(f"ZooKeeper did not start: {node.complaint()}")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"ZooKeeper on port {node.port} does not answer after {READY_SECONDS:g} s:"
                    f" {node.complaint()}"
                )
            time.sleep(LOOK_SECONDS)

    def _claim(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep ZooKeeper's data in {self.directory}: {error.strerror}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise ConfigurationError(
                f"another ZooKeeper runs in {self.directory}: use it, or another directory"
            ) from None

    def _remembered(self) -> list[tuple[int, int, int]]:
        """The ports of the last time, when they are ours to use."""
        file = self.directory / "ensemble.json"
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            raise ConfigurationError(f"{file} is damaged: it says where the nodes are") from None
        ports = [tuple(each) for each in found["ports"]]
        if len(ports) != self._count:
            raise ConfigurationError(
                f"{self.directory} holds the data of {len(ports)} node(s), not {self._count}: ask"
                " for as many, or use another directory"
            )
        wanted = self._wanted
        if wanted is not None and [p[0] for p in ports] != list(range(wanted, wanted + len(ports))):
            return []
        return ports if all(_free(port) for each in ports for port in each) else []

    def _choose(self) -> list[tuple[int, int, int]]:
        """Ports for clients, for followers and for elections."""
        chosen: set[int] = set()

        def free(test: Callable[[int], bool] = _free) -> int:
            for _ in range(10_000):
                port = random.choice(PORTS)  # noqa: S311  # no secret
                if port not in chosen and test(port):
                    chosen.add(port)
                    return port
            raise UnavailableError("there is no free port")

        clients = []
        for number in range(self._count):
            port = free() if self._wanted is None else self._wanted + number
            if self._wanted is not None and not _free(port):
                raise ConfigurationError(
                    f"port {port} is in use: choose another with --port, or none for a free one"
                )
            chosen.add(port)
            clients.append(port)
        return [(port, free(), free()) for port in clients]

    def _prepare(self, ports: list[tuple[int, int, int]]) -> None:
        self._nodes = []
        for number, (client, _, _) in enumerate(ports):
            directory = self.directory / f"node-{number}"
            (directory / "data").mkdir(parents=True, exist_ok=True)
            (directory / "data" / "myid").write_text(f"{number + 1}\n")
            (directory / "log4j2.properties").write_text(_logging(directory / "node.log"))
            (directory / "zoo.cfg").write_text(_settings(directory / "data", client, ports))
            self._nodes.append(Node(number, directory, client))
        unfinished = self.directory / "ensemble.json~"
        unfinished.write_text(json.dumps({"ports": ports}))
        unfinished.replace(self.directory / "ensemble.json")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java binds: what lingers of earlier connections does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _settings(data: Path, client: int, ports: list[tuple[int, int, int]]) -> str:
    lines = [
        f"tickTime={TICK_MS}",
        f"minSessionTimeout={SESSION_MS_MIN}",
        f"maxSessionTimeout={SESSION_MS_MAX}",
        f"dataDir={data}",
        f"clientPort={client}",
        f"clientPortAddress={HOST}",
        "admin.enableServer=false",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
        "maxClientCnxns=0",
        "initLimit=20",
        "syncLimit=10",
    ]
    if len(ports) > 1:
        lines += [
            f"server.{number + 1}={HOST}:{peer}:{election}"
            for number, (_, peer, election) in enumerate(ports)
        ]
    return "\n".join(lines) + "\n"


def _logging(file: Path) -> str:
    return f"""\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {LOG_BYTES}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""
