"""A network in memory that fails: stubs for the clients, calls of the real servicers behind them.

What the clients may use of a call is here as gRPC has it: messages in order, at most ``WINDOW`` of
them not taken, an end with a status, CANCELLED as asyncio's CancelledError. Messages are bytes in
between, and late by what the seed says.

A call's two ends hear of its loss at different times (:meth:`Call.fail`): at once, or only when
``KEEPALIVE_SECONDS`` have passed; meanwhile what was on its way may still arrive.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final, Literal, NoReturn

import grpc
import grpc.aio

from lmerge.server.calls import Desk
from lmerge.server.consumers import Consumers
from lmerge.server.replicas import Replicas
from lmerge.v1 import consumer_pb2, replica_pb2
from lmerge.wire.envelopes import attach_request
from tests.simulation.loop import PROCESS, Process, spawn

KEEPALIVE_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
WINDOW: Final = 8

Fault = Literal["drop", "server gone", "client gone", "silence"]
FAULTS: Final[tuple[Fault, ...]] = ("drop", "server gone", "client gone", "silence")
Tap = Callable[[str, consumer_pb2.Open, consumer_pb2.SubscribeResponse], None]


class _AbortedError(Exception):
    """What ``context.abort_with_status`` raises in a servicer."""

    def __init__(self, status: Any) -> None:
        super().__init__(status.details)
        self.error = _failure(status.code, status.details, tuple(status.trailing_metadata))


def _failure(
    code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
    )


def _unavailable(why: str) -> grpc.aio.AioRpcError:
    return _failure(grpc.StatusCode.UNAVAILABLE, why)


class _Context:
    """What the servicers use of gRPC's."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer_identities(self) -> None:
        return None

    def peer(self) -> str:
        return self._peer

    async def abort_with_status(self, status: Any) -> NoReturn:
        raise _AbortedError(status)


class _End:
    """The last thing in a pipe."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Pipe:
    """Messages in one direction, in order and late."""

    def __init__(self, network: Network, delay: float) -> None:
        self._network = network
        self._delay = delay
        self._ready: deque[Any] = deque()
        self._under_way = 0
        self._last = 0.0
        self._cut = False
        self._deaf = False
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, message: Any) -> None:
        """Send; waits while the window is full. When it is cut, what is sent is lost."""
        while self._under_way >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._under_way += 1
        self._send(message)

    def end(self, error: BaseException | None) -> None:
        """No more will be sent."""
        self._send(_End(error))

    def _send(self, message: Any) -> None:
        if self._cut:
            return
        loop = asyncio.get_running_loop()
        late = self._network.rng.expovariate(1 / self._delay)
        self._last = max(self._last + 1e-5, loop.time() + late)
        loop.call_at(self._last, self._arrived, message)

    def _arrived(self, message: Any) -> None:
        if not self._deaf:
            self._ready.append(message)
            self._news.set()

    async def get(self) -> Any:
        """The next message, or :class:`_End`; raises the failure."""
        while not self._ready or self._failure is not None:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        if isinstance(self._ready[0], _End):
            return self._ready[0]
        self._under_way -= 1
        self._room.set()
        return self._ready.popleft()

    def cut(self, *, lose: bool) -> None:
        """What is sent from now on is lost; with ``lose`` also what is on its way."""
        self._cut = True
        self._deaf = self._deaf or lose

    def fail(self, error: BaseException) -> None:
        """Whoever reads gets this."""
        if self._failure is None:
            self._failure = error
            self._cut = self._deaf = True
            self._news.set()


class Call:
    """One call: what the client holds of it, and the servicer's task."""

    def __init__(
        self, network: Network, endpoint: Endpoint, method: str, requests: AsyncIterator[Any]
    ) -> None:
        self._network = network
        self.endpoint = endpoint
        self.method = method
        self.client = PROCESS.get()
        self.server: Process | None = None
        self._requests = requests
        self._up = _Pipe(network, network.delay)
        self._down = _Pipe(network, network.delay)
        self._task: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._status: grpc.aio.AioRpcError | None = None
        self._open: consumer_pb2.Open | None = None
        self.over = False  # as far as the client knows
        self.cut = False
        network.calls[self] = None
        later(network.rng.expovariate(1 / network.delay), self._connect)

    # -- the client's end -----------------------------------------------------------------------

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        message = await self._down.get()
        if isinstance(message, _End):
            self._finish()
            if message.error is not None:
                raise message.error
            raise StopAsyncIteration
        return self._parsed(message)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        return await anext(self)

    def cancel(self) -> bool:
        """The client has enough; the server hears of it."""
        if self.over:
            return False
        self._finish()
        self._down.fail(asyncio.CancelledError())
        if not self.cut:
            later(self._network.rng.expovariate(1 / self._network.delay), self._hang_up)
        return True

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED if self._status is None else self._status.code()

    async def details(self) -> str | None:
        return "cancelled" if self._status is None else self._status.details()

    async def trailing_metadata(self) -> Any:
        return () if self._status is None else self._status.trailing_metadata()

    def _finish(self) -> None:
        self.over = True
        self._network.calls.pop(self, None)
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        async for request in self._requests:
            data = request if isinstance(request, bytes) else request.SerializeToString()
            if self.method == "Subscribe" and self._open is None:
                self._open = consumer_pb2.SubscribeRequest.FromString(data).open
            await self._up.put(data)
        self._up.end(None)

    def _parsed(self, data: bytes) -> Any:
        if self.method == "Attach":
            return replica_pb2.AttachResponse.FromString(data)
        if self.method == "Stage":
            return replica_pb2.StageResponse.FromString(data)
        response = consumer_pb2.SubscribeResponse.FromString(data)
        if self._open is not None:
            self._network.tap(self.endpoint.name, self._open, response)
        return response

    # -- the server's end -----------------------------------------------------------------------

    def _connect(self) -> None:
        if self.over:
            return
        if self.client is not None and not self.client.alive:
            self._finish()
            return
        if self.endpoint.server is None:
            if self._network.rng.random() < 0.8:
                self._lose(_unavailable("connection refused"))
            else:
                later(CONNECT_SECONDS, self._lose, _unavailable("no answer to connect"))
            return
        process, desk = self.endpoint.server
        self.server = process
        client = self.client or Process("nobody")
        self._sending = spawn(client, self._send())
        self._task = spawn(process, self._serve(desk))

    async def _serve(self, desk: Desk) -> None:
        context = _Context(self.client.name if self.client is not None else "nobody")
        try:
            if self.method == "Stage":
                answer = await Replicas(desk).Stage(self._incoming(), context)
                await self._down.put(answer.SerializeToString())
            else:
                # As gRPC does it: whoever is cancelled here leaves the generator to the loop.
                servicer: Any = Replicas(desk) if self.method == "Attach" else Consumers(desk)
                async for each in getattr(servicer, self.method)(self._incoming(), context):
                    await self._down.put(
                        each if isinstance(each, bytes) else each.SerializeToString()
                    )
            self._down.end(None)
        except _AbortedError as aborted:
            self._status = aborted.error
            if aborted.error.code() is grpc.StatusCode.CANCELLED:
                self._down.end(asyncio.CancelledError())
            else:
                self._down.end(aborted.error)
            if aborted.error.code() is grpc.StatusCode.INTERNAL:
                self._network.defects.append(f"INTERNAL in {self.method}: {aborted}")

    async def _incoming(self) -> AsyncIterator[Any]:
        parse: Callable[[bytes], Any] = attach_request
        if self.method == "Stage":
            parse = replica_pb2.StageRequest.FromString
        elif self.method == "Subscribe":
            parse = consumer_pb2.SubscribeRequest.FromString
        while True:
            message = await self._up.get()
            if isinstance(message, _End):
                return
            yield parse(message)

    # -- failing --------------------------------------------------------------------------------

    def fail(self, how: Fault) -> None:
        """The connection is lost, and who hears of that when."""
        rng = self._network.rng
        self.cut = True
        soon, late = rng.expovariate(1 / self._network.delay), KEEPALIVE_SECONDS
        client = late if how in ("server gone", "silence") else soon
        server = late if how in ("client gone", "silence") else soon
        self._up.cut(lose=rng.random() < 0.5)
        self._down.cut(lose=rng.random() < 0.5)
        later(client, self._lose, _unavailable(f"the connection was lost ({how})"))
        later(server, self._hang_up)

    def client_died(self) -> None:
        """The client's process is gone: its machine said so, or went with it."""
        self._network.calls.pop(self, None)
        self.over = True
        later(
            KEEPALIVE_SECONDS
            if self._network.rng.random() < 0.3
            else self._network.rng.expovariate(1 / self._network.delay),
            self._hang_up,
        )

    def server_died(self) -> None:
        """The server's process is gone."""
        rng = self._network.rng
        self.cut = True
        self._down.cut(lose=rng.random() < 0.5)
        soon = rng.expovariate(1 / self._network.delay)
        late = KEEPALIVE_SECONDS if rng.random() < 0.2 else soon
        later(late, self._lose, _unavailable("the server died"))

    def _lose(self, error: grpc.aio.AioRpcError) -> None:
        if not self.over:
            self._status = error
            self._finish()
            self._down.fail(error)

    def _hang_up(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()


class Stubs:
    """The stubs of both services, for one client and one server."""

    def __init__(self, network: Network, endpoint: Endpoint) -> None:
        self._network = network
        self._endpoint = endpoint

    def Attach(self, requests: AsyncIterator[Any], metadata: Any = None) -> Call:  # noqa: N802
        return Call(self._network, self._endpoint, "Attach", requests)

    def Stage(self, requests: AsyncIterator[Any], metadata: Any = None) -> Call:  # noqa: N802
        return Call(self._network, self._endpoint, "Stage", requests)

    def Subscribe(self, requests: AsyncIterator[Any], metadata: Any = None) -> Call:  # noqa: N802
        return Call(self._network, self._endpoint, "Subscribe", requests)


class Endpoint:
    """A server's address; ``server`` is who listens there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server: tuple[Process, Desk] | None = None


class Network:
    """All calls."""

    def __init__(self, rng: random.Random, delay: float, tap: Tap) -> None:
        self.rng = rng
        self.delay = delay
        self.tap = tap
        self.calls: dict[Call, None] = {}  # that a client believes to be open
        self.defects: list[str] = []

    def stubs(self, endpoint: Endpoint) -> Stubs:
        """For a client of the server at ``endpoint``."""
        return Stubs(self, endpoint)

    def disturb(self) -> str | None:
        """Some call fails somehow: which, for the log."""
        open_calls = [call for call in self.calls if not call.cut]
        if not open_calls:
            return None
        call = self.rng.choice(open_calls)
        fault = self.rng.choice(FAULTS)
        call.fail(fault)
        client = "nobody" if call.client is None else call.client.name
        return f"{call.method} of {client} at {call.endpoint.name}: {fault}"

    def client_died(self, process: Process) -> None:
        """A client's process is gone."""
        for call in [call for call in self.calls if call.client is process]:
            call.client_died()

    def server_died(self, process: Process) -> None:
        """A server's process is gone."""
        for call in [call for call in self.calls if call.server is process]:
            call.server_died()


def later(seconds: float, what: Callable[..., None], *args: Any) -> None:
    """Calls it then."""
    asyncio.get_running_loop().call_later(seconds, what, *args)
