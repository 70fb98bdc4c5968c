"""One task's share of an epoch, written beside the stream's session.

What is staged counts when the epoch commits and names the part. Nothing is tried again here:
batches may come from an iterator that cannot be begun anew, and whoever runs tasks runs a failed
one again, as another attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import pyarrow as pa

from lmerge.client.connection import (
    MESSAGE_BYTES_MAX,
    Security,
    dialling,
    ended,
    failure_of,
    open_sync_channel,
    targets_of,
)
from lmerge.client.rows import conformed, elements_schema, payload_of, pieces
from lmerge.client.writer import FRAME_BYTES
from lmerge.errors import UnavailableError
from lmerge.v1 import replica_pb2, replica_pb2_grpc
from lmerge.wire import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Share:
    """Which share of which epoch of which stream."""

    merge: str
    stream: str
    incarnation: int  # that of the session's welcome
    epoch: int
    partition: int
    attempt: int

    def header(self) -> replica_pb2.StageRequest:
        """What a Stage call begins with."""
        return replica_pb2.StageRequest(
            header=replica_pb2.StageHeader(
                protocol_version=PROTOCOL_VERSION,
                merge=self.merge,
                stream=self.stream,
                incarnation=self.incarnation,
                epoch=self.epoch,
                part=replica_pb2.Part(partition=self.partition, attempt=self.attempt),
            )
        )


class Staged(NamedTuple):
    """What the server holds of a share."""

    rows: int
    bytes: int


async def stage(
    target: str,
    share: Share,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch] | AsyncIterable[pa.RecordBatch],
    *,
    security: Security | None = None,
    stubs: Any | None = None,
) -> Staged:
    """Write a share; returns when the server holds all of it."""
    security = security or Security()
    targets = () if stubs is not None else targets_of(target, security)
    dial = dialling(targets, security, replica_pb2_grpc.ReplicaServiceStub, stubs)
    columns = elements_schema(payload_of(schema))
    call: Any = None
    faults: list[Exception] = []

    async def requests() -> AsyncIterator[Any]:
        yield share.header()
        try:
            if isinstance(batches, AsyncIterable):
                async for batch in batches:
                    for request in _requests(batch, columns):
                        yield request
            else:
                for batch in batches:
                    for request in _requests(batch, columns):
                        yield request
        except Exception as error:  # grpc would log it, and say only that the call was cancelled
            faults.append(error)
            call.cancel()

    try:
        async with dial(0) as made:
            call = made.Stage(requests(), metadata=security.metadata())
            response = await call
    except asyncio.CancelledError:
        if faults:
            raise faults[0] from None
        raise await ended(call) from None
    except Exception as error:
        if faults:
            raise faults[0] from None
        raise failure_of(error) or error from error
    return Staged(response.rows, response.bytes)


def stage_sync(
    target: str,
    share: Share,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    security: Security | None = None,
    stubs: Any | None = None,
) -> Staged:
    """The blocking :func:`stage`, for tasks without an event loop."""
    security = security or Security()
    columns = elements_schema(payload_of(schema))
    call: Any = None
    faults: list[Exception] = []

    def requests() -> Iterator[Any]:
        yield share.header()
        try:
            for batch in batches:
                yield from _requests(batch, columns)
        except Exception as error:
            faults.append(error)
            call.cancel()

    channel = None if stubs is not None else open_sync_channel(target, security)
    made: Any = stubs
    if channel is not None:
        made = replica_pb2_grpc.ReplicaServiceStub(channel)
    try:
        call = made.Stage.future(requests(), metadata=security.metadata())
        response = call.result()
    except (grpc.RpcError, grpc.FutureCancelledError) as error:
        if faults:
            raise faults[0] from None
        raise failure_of(error) or UnavailableError("the call was cancelled") from error
    finally:
        if call is not None:
            call.cancel()  # an interrupt ends it as well
        if channel is not None:
            channel.close()
    return Staged(response.rows, response.bytes)


def _requests(batch: pa.RecordBatch, columns: pa.Schema) -> Iterator[Any]:
    rows = conformed(batch, columns)
    for _, data in pieces(rows, MESSAGE_BYTES_MAX - FRAME_BYTES):
        yield replica_pb2.StageRequest(batch=data.to_pybytes())
