"""Servers for tests, and peers that say exactly what they are told to.

- :func:`server_process` runs ``lmerge server`` as a process of its own, which can be killed::

      with server_process(tmp_path) as server:
          async with channel_to(server.target) as channel: ...
          server.kill()  # or server.terminate(); both wait for its end

- :func:`server_here` runs one in the test's own event loop.
- :class:`Replica`, :class:`Consumer` and the stubs of :func:`operator` speak to either, on the raw
  stubs: nothing of lmerge.client is between a test and the wire.

Every wait is bounded by ``WAIT_SECONDS``, and whatever was started ends with its ``with``.
:func:`bounded` makes a test of a coroutine function. A refusal is read with :func:`refusal`: it
returns the status code and the error that the server meant.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, ParamSpec

import grpc
import pyarrow as pa

from lmerge.core.batch import element_schema
from lmerge.errors import LMergeError
from lmerge.server.config import ServerConfig
from lmerge.server.serving import Server
from lmerge.v1 import common_pb2, consumer_pb2, replica_pb2
from lmerge.v1.consumer_pb2_grpc import ConsumerServiceStub
from lmerge.v1.operator_pb2_grpc import OperatorServiceStub
from lmerge.v1.replica_pb2_grpc import ReplicaServiceStub
from lmerge.wire import PROTOCOL_VERSION, rows
from lmerge.wire.statuses import error_of

WAIT_SECONDS: Final = 60.0
TEST_SECONDS: Final = 180.0
PAYLOAD: Final = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
_LISTENING: Final = re.compile(r"listening on ([0-9.]+|localhost|::1):(\d+)")
_P = ParamSpec("_P")

Row = tuple[Any, ...]
"""An insert ``("+", vs, ve, k, v)`` or an adjust ``("~", vs, vold, ve, k, v)``."""


# -- servers -----------------------------------------------------------------------------------


class ServerProcess:
    """A running ``lmerge server``; ``log`` is what it has said so far, a line each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self.port = 0
        self._more = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.log.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    @property
    def target(self) -> str:
        """What a channel is made to."""
        return f"localhost:{self.port}"

    @property
    def text(self) -> str:
        """The whole log."""
        return "\n".join(self.log)

    def wait_for_line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """The first line of the log in which the pattern is found; waits for it, bounded."""
        seen, deadline = 0, time.monotonic() + WAIT_SECONDS
        with self._more:
            while True:
                for line in self.log[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.log)
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    raise AssertionError(f"no line {pattern!r} in the log:\n{self.text}")
                self._more.wait(left)

    def wait(self) -> int:
        """The exit status; waits for it, bounded."""
        status = self.process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        return status

    def terminate(self) -> int:
        """SIGTERM: it drains. Returns its exit status."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> int:
        """SIGKILL: a crash."""
        self.process.kill()
        return self.wait()


@contextmanager
def starting(*arguments: str | Path) -> Iterator[ServerProcess]:
    """``lmerge server`` with these arguments; it may fail to start."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmerge", "server", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = ServerProcess(process)
    try:
        yield server
    finally:
        process.kill()
        process.wait()
        server._reader.join(WAIT_SECONDS)
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def server_process(
    data_dir: Path, *arguments: str | Path, config: Path | str | None = None, port: int = 0
) -> Iterator[ServerProcess]:
    """A server that listens. ``config`` is a TOML file, or its text (kept beside the data)."""
    said: list[str | Path] = ["--listen", f"127.0.0.1:{port}", "--data-dir", data_dir, *arguments]
    if isinstance(config, str):
        file = data_dir.with_name(data_dir.name + ".toml")
        file.write_text(config)
        config = file
    if config is not None:
        said += ["--config", config]
    with starting(*said) as server:
        server.port = int(server.wait_for_line(_LISTENING)[2])
        yield server


@asynccontextmanager
async def server_here(config: ServerConfig) -> AsyncIterator[Server]:
    """A server in this loop; ``config.listen`` should have port 0. Connect to ``target_of``."""
    server = Server(config)
    try:
        await server.start()
    except BaseException:
        await server.hub.close()
        raise
    try:
        yield server
    finally:
        await server.stop()


def target_of(server: Server) -> str:
    """What a channel to a server in this loop is made to."""
    return f"localhost:{server.port}"


def bounded(
    test: Callable[_P, Coroutine[Any, Any, None]],
) -> Callable[_P, None]:
    """A test of a coroutine function: it runs in a loop of its own, and not for ever."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), TEST_SECONDS))

    return run


@asynccontextmanager
async def channel_to(
    target: str, credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Any]:
    """A channel without limits of its own, closed at the end."""
    # Without the first, channels to one address share a connection, and its end.
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    ]
    if credentials is None:
        channel = grpc.aio.insecure_channel(target, options)
    else:
        channel = grpc.aio.secure_channel(target, credentials, options)
    try:
        yield channel
    finally:
        await channel.close()


# -- refusals ----------------------------------------------------------------------------------


async def soon(answer: Awaitable[Any]) -> Any:
    """The answer, or a failure when it takes too long."""
    return await asyncio.wait_for(answer, WAIT_SECONDS)


async def refusal(answer: Awaitable[Any]) -> tuple[grpc.StatusCode, LMergeError]:
    """What a call is refused with; fails when it is not."""
    try:
        got = await soon(answer)
    except grpc.aio.AioRpcError as failure:
        return failure.code(), error_of(failure)
    raise AssertionError(f"not refused: {got!r}")


# -- rows --------------------------------------------------------------------------------------


def batch_of(elements: Sequence[Row], payload: pa.Schema = PAYLOAD) -> pa.RecordBatch:
    """Rows with the columns op, vs, ve, vold and the payload's (in the order of their names)."""
    columns: list[list[Any]] = [[] for _ in range(4 + len(payload))]
    for kind, *rest in elements:
        if kind == "+":
            vs, ve, *values = rest
            times = (0, vs, ve, ve)
        else:
            vs, vold, ve, *values = rest
            times = (1, vs, ve, vold)
        for column, value in zip(columns, (*times, *values), strict=True):
            column.append(value)
    schema = element_schema(payload)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def data_of(elements: Sequence[Row], payload: pa.Schema = PAYLOAD) -> bytes:
    """The message of some rows."""
    return bytes(rows.batch_bytes(batch_of(elements, payload)).to_pybytes())


def elements_of(data: bytes, payload: pa.Schema = PAYLOAD) -> list[Row]:
    """The inverse of :func:`data_of`."""
    found: list[Row] = []
    for row in rows.batch_of(data, element_schema(payload)).to_pylist():
        op, vs, ve, vold, *values = row.values()
        found.append(("+", vs, ve, *values) if op == 0 else ("~", vs, vold, ve, *values))
    return found


# -- peers -------------------------------------------------------------------------------------

_INSTANCES: Final = itertools.count(1)


def hello_of(merge: str, stream: str, **changes: Any) -> replica_pb2.Hello:
    """A hello that is taken; ``changes`` replace its fields (None: left out)."""
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "merge": merge,
        "stream": stream,
        "lineage": "lineage-1",
        "instance": f"instance-{next(_INSTANCES)}",
        "schema": rows.schema_bytes(PAYLOAD),
        "properties": common_pb2.StreamProperties(keyed=True),
        **changes,
    }
    return replica_pb2.Hello(**{name: value for name, value in fields.items() if value is not None})


class Replica:
    """One session, step by step. ``feedback`` gathers what came between the answers."""

    def __init__(
        self,
        channel: Any,
        merge: str = "m",
        stream: str = "a",
        *,
        metadata: Any = None,
        **hello: Any,
    ) -> None:
        self.hello = hello_of(merge, stream, **hello)
        self.call: Any = ReplicaServiceStub(channel).Attach(metadata=metadata)
        self.welcome: Any = None
        self.feedback: list[int] = []

    async def attach(self) -> Any:
        """Says hello; returns the welcome."""
        await self.send(hello=self.hello)
        answer = await self.receive()
        assert answer.WhichOneof("response") == "welcome", answer
        self.welcome = answer.welcome
        return self.welcome

    async def send(self, **request: Any) -> None:
        """One message: ``hello=``, ``write=``, ``commit=``, ``abort=`` or ``detach=``."""
        await soon(self.call.write(replica_pb2.AttachRequest(**request)))

    async def write(self, epoch: int, elements: Sequence[Row]) -> None:
        """Stages rows."""
        await self.send(write=replica_pb2.Write(epoch=epoch, batch=data_of(elements)))

    async def commit(self, epoch: int, stable: int | None = None, **fields: Any) -> Any:
        """Commits; returns the acknowledgement."""
        await self.send(commit=replica_pb2.Commit(epoch=epoch, stable=stable, **fields))
        return await self.acknowledged(epoch)

    async def acknowledged(self, epoch: int) -> Any:
        """The next acknowledgement, which must be of this epoch."""
        while (answer := await self.receive()).WhichOneof("response") == "feedback":
            pass
        assert answer.WhichOneof("response") == "acknowledged", answer
        assert answer.acknowledged.epoch == epoch
        return answer.acknowledged

    async def epoch(self, epoch: int, elements: Sequence[Row], stable: int | None = None) -> Any:
        """Writes and commits."""
        if elements:
            await self.write(epoch, elements)
        return await self.commit(epoch, stable)

    async def receive(self) -> Any:
        """The next answer; raises AioRpcError when the call was ended with a reason."""
        answer = await soon(self.call.read())
        if answer is grpc.aio.EOF:
            status = await soon(self.call.code())
            assert status == grpc.StatusCode.OK, status
            raise EOFError("the session is over")
        if answer.WhichOneof("response") == "feedback":
            self.feedback.append(answer.feedback.before)
        return answer

    async def end(self) -> grpc.StatusCode:
        """Has nothing more to say; reads what is left, and returns how the call ended."""
        await soon(self.call.done_writing())
        while await soon(self.call.read()) is not grpc.aio.EOF:
            pass
        return await soon(self.call.code())  # type: ignore[no-any-return]  # grpc has no types

    async def ended(self) -> Any:
        """Reads until the server ends the call: the AioRpcError; or EOFError when it was OK."""
        while True:
            await self.receive()

    def cancel(self) -> None:
        """Goes away without a word."""
        self.call.cancel()


class Consumer:
    """One reader, step by step."""

    def __init__(
        self,
        channel: Any,
        merge: str = "m",
        *,
        delivery: int = consumer_pb2.DELIVERY_EAGER,
        metadata: Any = None,
        **fields: Any,
    ) -> None:
        fields = fields or {"beginning": consumer_pb2.Beginning()}
        fields = {"protocol_version": PROTOCOL_VERSION, "merge": merge} | fields
        self.wanted = consumer_pb2.Open(delivery=delivery, **fields)  # type: ignore[arg-type]  # an int is one
        self.call: Any = ConsumerServiceStub(channel).Subscribe(metadata=metadata)
        self.opened: Any = None
        self.next: Any = None  # the position after what was read

    async def open(self) -> Any:
        """Returns what the server says first."""
        await self.send(open=self.wanted)
        answer = await self.receive()
        assert answer.WhichOneof("response") == "opened", answer
        self.opened = answer.opened
        self.next = answer.opened.position
        return self.opened

    async def send(self, **request: Any) -> None:
        """One message: ``open=`` or ``acknowledge=``."""
        await soon(self.call.write(consumer_pb2.SubscribeRequest(**request)))

    async def acknowledge(self, position: Any = None) -> None:
        """Acknowledges, by default what was read; the confirmation is to be received."""
        position = self.next if position is None else position
        await self.send(acknowledge=consumer_pb2.Acknowledge(position=position))

    async def receive(self) -> Any:
        """The next answer; raises AioRpcError when the call was ended with a reason."""
        answer = await soon(self.call.read())
        if answer is grpc.aio.EOF:
            status = await soon(self.call.code())
            assert status == grpc.StatusCode.OK, status
            raise EOFError("the subscription is over")
        if answer.WhichOneof("response") == "entry":
            self.next = answer.entry.next
        return answer

    async def until_stable(self, stable: int) -> list[Any]:
        """What comes up to a stable point: rows, ``("stable", vc)`` and ``("gap", a, b)``."""
        found: list[Any] = []
        while not (found and found[-1][0] == "stable" and found[-1][1] >= stable):
            answer = await self.receive()
            if answer.WhichOneof("response") == "entry":
                found += parts_of(answer.entry)
        return found

    async def ended(self) -> Any:
        """Reads until the server ends the call."""
        while True:
            await self.receive()

    def cancel(self) -> None:
        """Goes away without a word."""
        self.call.cancel()


def parts_of(entry: Any) -> list[Any]:
    """An entry of the output, readable."""
    kind = entry.WhichOneof("part")
    if kind == "batch":
        return list(elements_of(entry.batch))
    if kind == "stable":
        return [("stable", entry.stable)]
    return [("gap", entry.gap.start, entry.gap.end)]


def operator(channel: Any) -> Any:
    """The operators' stub."""
    return OperatorServiceStub(channel)
