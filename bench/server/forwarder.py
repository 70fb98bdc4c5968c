"""What the merge server is compared with: it forwards one replica's messages, and merges nothing.

``python -m bench.server.forwarder PORT``. Messages are opaque bytes. What the other replicas send
is received and dropped. At most ``_AHEAD`` messages wait for the consumer; then the replica does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio
import uvloop

_SERVICE: Final = "bench.Forwarder"
FORWARD: Final = f"/{_SERVICE}/Forward"
DISCARD: Final = f"/{_SERVICE}/Discard"
RECEIVE: Final = f"/{_SERVICE}/Receive"
OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
)
_AHEAD: Final = 16


class Forwarder:
    """One consumer at a time."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)

    async def forward(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """A replica's call: its messages go to the consumer."""
        size = 0
        async for request in requests:
            size += len(request)
            await self._queue.put(request)
        await self._queue.put(None)
        return b"%d" % size

    async def discard(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """The call of a replica that nobody needs."""
        size = 0
        async for request in requests:
            size += len(request)
        return b"%d" % size

    async def receive(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """The consumer's call."""
        await context.send_initial_metadata(())
        while (message := await self._queue.get()) is not None:
            yield message


async def _serve(port: int) -> None:
    forwarder = Forwarder()
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, Any] = {
        "Forward": grpc.stream_unary_rpc_method_handler(forwarder.forward),
        "Discard": grpc.stream_unary_rpc_method_handler(forwarder.discard),
        "Receive": grpc.unary_stream_rpc_method_handler(forwarder.receive),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
