"""The processes of an experiment: servers and peers, started, awaited and ended.

Callers may rely on this: a process that was started here is gone when its context ends, and every
wait has a bound, after which it is an error with what the process said.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lmerge.v1 import common_pb2, operator_pb2, operator_pb2_grpc
from lmerge.wire.rows import schema_bytes
from lmerge.workload import SCHEMA

_START_SECONDS: Final = 120.0
READY: Final = "ready"
_POLL_SECONDS: Final = 0.01


class Process:
    """A child, and what it says on its standard output."""

    def __init__(self, arguments: Sequence[str], log: Path | None = None) -> None:
        self.log = log
        with ExitStack() as stack:
            errors = None if log is None else stack.enter_context(log.open("ab"))
            self.popen = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def line(self) -> str:
        """The next line it says; RuntimeError when it says nothing any more."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.popen.args!r} ended with {self.popen.wait()}")
        return line.strip()

    def tell(self) -> None:
        """An empty line to it: go."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        """Ends it without asking."""
        self.popen.kill()
        self._wait()

    def stop(self) -> None:
        """Ends it with SIGTERM."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(_START_SECONDS)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self._wait()

    def _wait(self) -> None:
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def memory(self) -> dict[str, int]:
        """Bytes resident now, and at most so far."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text("utf-8")
        found = dict(line.split(":", 1) for line in status.splitlines())
        return {
            "now": int(found["VmRSS"].split()[0]) << 10,
            "most": int(found["VmHWM"].split()[0]) << 10,
        }

    def cpu_seconds(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(Process):
    """A merge server on a port of its own."""

    def __init__(self, directory: Path, durability: str, **limits: int) -> None:
        self.port = _free_port()
        self.target = f"127.0.0.1:{self.port}"
        config = directory / "server.toml"
        lines = [
            f'listen = "{self.target}"',
            f'data_dir = "{directory / "data"}"',
            f'durability = "{durability}"',
            "drain_seconds = 0",
            "[limits]",
            *(f"{name} = {value}" for name, value in limits.items()),
        ]
        config.write_text("\n".join(lines) + "\n", "utf-8")
        self._arguments = ["-m", "lmerge", "server", "--config", str(config)]
        super().__init__(self._arguments, directory / "server.log")

    def await_serving(self) -> None:
        """Returns when its health is SERVING."""
        _await_port(self, self.port)
        with grpc.insecure_channel(self.target) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.RpcError:
                    pass
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the server does not serve; see {self.log}")
                time.sleep(_POLL_SECONDS)

    def again(self) -> float:
        """Starts it anew on the same data; the seconds until it serves."""
        start = time.monotonic()
        super().__init__(self._arguments, self.log)
        self.await_serving()
        return time.monotonic() - start

    @contextmanager
    def operator(self) -> Iterator[Any]:
        """Operator calls to it."""
        with grpc.insecure_channel(self.target) as channel:
            yield operator_pb2_grpc.OperatorServiceStub(channel)

    def begin(self, merge: str) -> None:
        """Makes a merge (R3) for the workload's payload, so that anybody may come first."""
        options = common_pb2.MergeOptions(restriction="R3")
        payload = schema_bytes(pa.schema([SCHEMA.field("x"), SCHEMA.field("s")]))
        request = operator_pb2.CreateMergeRequest(name=merge, options=options, schema=payload)
        with self.operator() as calls:
            calls.CreateMerge(request, timeout=60)

    def forget(self, merge: str) -> None:
        """Deletes a merge."""
        with self.operator() as calls:
            calls.DeleteMerge(operator_pb2.DeleteMergeRequest(name=merge), timeout=60)

    def describe(self, merge: str) -> Any:
        """What it says of a merge."""
        with self.operator() as calls:
            return calls.DescribeMerge(operator_pb2.DescribeMergeRequest(merge=merge), timeout=60)


@contextmanager
def serving(durability: str, **limits: int) -> Iterator[Server]:
    """A merge server with its data in a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory:
        server = Server(Path(directory), durability, **limits)
        try:
            server.await_serving()
            yield server
        finally:
            server.kill()


@contextmanager
def forwarding() -> Iterator[str]:
    """The server that only forwards; its address."""
    port = _free_port()
    process = Process(["-m", "bench.server.forwarder", str(port)])
    try:
        _await_port(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()


@contextmanager
def peers(roles: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[list[Process]]:
    """Processes that are ready for their roles."""
    started: list[Process] = []
    try:
        for role, said in roles:
            started.append(Process(["-m", "bench.server.peer", role, json.dumps(said)]))
        for process in started:
            if process.line() != READY:
                raise RuntimeError(f"{process.popen.args!r} is not ready")
        yield started
    finally:
        for process in started:
            process.kill()


def play(roles: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """All roles at once; what each says in the end."""
    with peers(roles) as started:
        for process in started:
            process.tell()
        return [json.loads(process.line()) for process in started]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _await_port(process: Process, port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.popen.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server on port {port}; see {process.log}") from None
            time.sleep(_POLL_SECONDS)
