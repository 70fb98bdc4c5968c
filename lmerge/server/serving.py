"""A server process: from its configuration to its end.

Stages: the merges are opened (replayed), the port is bound, health says SERVING. On SIGTERM or
SIGINT health says NOT_SERVING, new calls are refused, open ones are told to go elsewhere, what was
committed is finished, and each merge takes a snapshot. A second signal exits at once: nothing is
lost by that, the next start replays. Every stage is a line in the log.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lmerge.errors import ConfigurationError, UnavailableError
from lmerge.server.allocating import keep_memory
from lmerge.server.calls import Desk, Parsing
from lmerge.server.config import ServerConfig, address, require_loopback
from lmerge.server.consumers import Consumers
from lmerge.server.hub import Hub
from lmerge.server.membership import Membership, Roll
from lmerge.server.metrics import Metrics, Serving
from lmerge.server.operators import Operators, describe
from lmerge.server.replicas import Replicas
from lmerge.server.security import Guard, server_credentials
from lmerge.v1 import consumer_pb2, operator_pb2, replica_pb2
from lmerge.v1.operator_pb2_grpc import add_OperatorServiceServicer_to_server
from lmerge.wire.envelopes import attach_request

log = logging.getLogger("lmerge.server")

KEEPALIVE_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000
SCRAPE_SECONDS: Final = 5.0
SHORT_CALLS_MAX: Final = 256  # at once, beside the sessions: operators, staging tasks, probes
EXIT_AT_ONCE: Final = 130
SWITCH_SECONDS: Final = 0.0005  # for which a thread keeps the interpreter from the others
_SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (replica_pb2, "ReplicaService"),
        (consumer_pb2, "ConsumerService"),
        (operator_pb2, "OperatorService"),
    )
)


class Server:
    """One server; :meth:`start`, then :meth:`stop`."""

    def __init__(self, config: ServerConfig, roll: Roll | None = None) -> None:
        """``roll`` knows which replicas are members: see :mod:`lmerge.server.membership`."""
        self.config = config
        self.hub = Hub(config)
        self._membership = None if roll is None else Membership(self.hub, roll)
        self.port = 0
        self._loop = asyncio.get_running_loop()
        self._metrics = Metrics(self._describe_from_afar)
        self.hub.observe_commit = self._metrics.observe_commit
        self.hub.forgotten = self._metrics.forget
        self._health = health.aio.HealthServicer()
        self._scrapes: Serving | None = None
        self._detaching: asyncio.Task[None] | None = None
        self._grpc: Any = None

    async def start(self) -> None:
        """Opens the merges and the port."""
        config = self.config
        if not config.secured:
            require_loopback(config.listen)
        await self.hub.open()
        limits = config.limits
        room = limits.message_bytes + (64 << 10)  # a message is a little more than its batch
        desk = Desk(self.hub, Guard(config), self._metrics.refused, self._metrics.session)
        self._grpc = grpc.aio.server(
            interceptors=(Parsing(desk),),
            maximum_concurrent_rpcs=limits.sessions + SHORT_CALLS_MAX,
            options=[
                ("grpc.max_receive_message_length", room),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a port that is taken must be an error
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        self._grpc.add_generic_rpc_handlers((_replica_handlers(Replicas(desk)),))
        add_OperatorServiceServicer_to_server(Operators(desk), self._grpc)
        self._grpc.add_generic_rpc_handlers((_consumer_handlers(Consumers(desk)),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)
        self.port = self._bind()
        await self._grpc.start()
        if config.metrics_listen is not None:
            self._scrapes = self._metrics.serve(config.metrics_listen)
            log.info("metrics on http://%s:%d/metrics", address(config.metrics_listen)[0],
                     self._scrapes.port)  # fmt: skip
        if config.detach_after_seconds:
            self._detaching = asyncio.create_task(self._detach_the_silent())
        if self._membership is not None:
            self._membership.start(self._address())
        for name in ("", *_SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        for caution in config.cautions():
            log.warning("%s", caution)
        log.info("listening on %s:%d (%d merges)", address(config.listen)[0], self.port,
                 len(self.hub.merges))  # fmt: skip

    def _bind(self) -> int:
        config = self.config
        try:
            if config.tls is None:
                port = self._grpc.add_insecure_port(config.listen)
            else:
                port = self._grpc.add_secure_port(config.listen, server_credentials(config.tls))
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen on {config.listen}: it is in use, or not an address of this"
                " machine; choose another with --listen"
            ) from error
        return int(port)

    def _address(self) -> str:
        """With the port that was bound."""
        return f"{self.config.listen.rpartition(':')[0]}:{self.port}"

    async def stop(self) -> None:
        """Drains: see the module."""
        log.info("stopping: no new calls; open ones have %g s", self.config.drain_seconds)
        await self._health.enter_graceful_shutdown()
        if self._detaching is not None:
            self._detaching.cancel()
        if self._membership is not None:
            await self._membership.stop()
        self.hub.end_sessions(UnavailableError("the server is stopping: try again soon"))
        if self._grpc is not None:
            await self._grpc.stop(self.config.drain_seconds)
        await self.hub.close()
        if self._scrapes is not None:
            await asyncio.to_thread(self._scrapes.close)
        log.info("stopped")

    async def _detach_the_silent(self) -> None:
        """Streams without a session for too long leave; operators' eyes are not needed for it."""
        from lmerge.server.silence import detach_the_silent

        await detach_the_silent(self.hub, self.config.detach_after_seconds)

    def _describe_from_afar(self) -> list[operator_pb2.DescribeMergeResponse]:
        """For the metrics' thread: the loop describes, so that nothing changes meanwhile."""

        async def describe_all() -> list[operator_pb2.DescribeMergeResponse]:
            return [describe(served) for served in self.hub.merges.values()]

        return asyncio.run_coroutine_threadsafe(describe_all(), self._loop).result(SCRAPE_SECONDS)


def _replica_handlers(replicas: Replicas) -> Any:
    """By hand: the rows in a request are not copied by protobuf."""
    handlers: dict[str, Any] = {
        "Attach": grpc.stream_stream_rpc_method_handler(
            replicas.Attach,
            request_deserializer=attach_request,
            response_serializer=replica_pb2.AttachResponse.SerializeToString,
        ),
        "Stage": grpc.stream_unary_rpc_method_handler(
            replicas.Stage,
            request_deserializer=replica_pb2.StageRequest.FromString,
            response_serializer=replica_pb2.StageResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler(_SERVICES[0], handlers)


def _consumer_handlers(consumers: Consumers) -> Any:
    """By hand: entries are sent as they are stored, already serialized."""
    handlers: dict[str, Any] = {
        "Subscribe": grpc.stream_stream_rpc_method_handler(
            consumers.Subscribe,
            request_deserializer=consumer_pb2.SubscribeRequest.FromString,
            response_serializer=_serialized,
        ),
        "Inspect": grpc.unary_unary_rpc_method_handler(
            consumers.Inspect,
            request_deserializer=consumer_pb2.InspectRequest.FromString,
            response_serializer=consumer_pb2.InspectResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler(_SERVICES[1], handlers)


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


async def run(config: ServerConfig, roll: Roll | None = None) -> None:
    """Serves until a signal says stop."""
    keep_memory()
    server = Server(config, roll)
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            log.warning("a second signal: exiting at once")
            os._exit(EXIT_AT_ONCE)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await server.start()
    except BaseException:
        with suppress(Exception):
            await server.hub.close()
        raise
    _settle()
    await stopping.wait()
    await server.stop()


def _settle() -> None:
    """Makes pauses short that have nothing to do with the work.

    What start-up has made stays, so the collector need not go through it again and again: that
    took 30 to 90 ms, in which nobody was answered. And the thread that writes the log needs the
    interpreter a few times a group, for microseconds: by default it would wait 5 ms each time.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
