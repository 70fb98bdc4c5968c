"""One process of an experiment: a replica, a consumer, or what stands for them without lmerge.

``python -m bench.server.peer ROLE JSON``. It prepares itself, says ``ready``, waits for a line,
works, and says what it saw, as JSON. Times are those of ``time.monotonic_ns``, which all processes
of a Linux machine share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pyarrow as pa
import uvloop

from bench.arrivals import read
from bench.server.forwarder import DISCARD, FORWARD, OPTIONS, RECEIVE
from bench.server.processes import READY
from bench.server.streams import END, digest
from lmerge.client import Elements, Reader, StablePoint, Writer
from lmerge.workload import SCHEMA

Found = dict[str, Any]
_ready: list[float] = []  # processor time when the clock began to run


async def _go() -> None:
    """Says that all is prepared, and waits for the others."""
    gc.collect()
    gc.freeze()  # what start-up has left is not to be gone through while the clock runs
    _ready.append(time.process_time())
    print(READY, flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)


async def replica(said: Found) -> Found:
    """Sends streams of files, an epoch a batch, its commits pipelined unless ``wait``."""
    prepared = {stream: list(read(Path(path))) for stream, path in said["files"].items()}
    writers = {stream: Writer(said["target"], said["merge"], stream, SCHEMA) for stream in prepared}
    for writer in writers.values():
        await writer.attach()
    await _go()
    began = time.monotonic_ns()

    async def send(stream: str) -> None:
        writer = writers[stream]
        for part in prepared[stream]:
            await writer.write(part.batch)
            if said.get("wait"):
                await writer.commit(stable=part.stable)
            else:
                await writer.commit(stable=part.stable, wait=False)
        await writer.drain()

    await asyncio.gather(*map(send, writers))
    ended = time.monotonic_ns()
    states = {stream: writer.state for stream, writer in writers.items()}
    for writer in writers.values():
        await writer.close()
    return {"began": began, "ended": ended, "states": states}


async def paced(said: Found) -> Found:
    """Commits an epoch at fixed times, whatever the server does; when each commit was made."""
    ((stream, path),) = said["files"].items()
    parts = list(read(Path(path)))
    gap = said["gap_ns"]
    commits: list[int] = []
    writer = Writer(said["target"], said["merge"], stream, SCHEMA)
    async with writer:
        await _go()
        began = time.monotonic_ns() + said["phase_ns"]
        for number, part in enumerate(parts):
            late = began + number * gap - time.monotonic_ns()
            if late > 0:
                await asyncio.sleep(late / 1e9)
            await writer.write(part.batch)
            commits.append(time.monotonic_ns())
            await writer.commit(stable=part.stable, wait=False)
        await writer.drain()
    return {"commits": commits, "states": {stream: writer.state}}


async def consumer(said: Found) -> Found:
    """Reads until the last stable; with ``check``, what it read as a TDB's digest."""
    kept: list[pa.RecordBatch] = []
    rows = stables = entries = 0
    received: list[tuple[int, int]] = []
    async with Reader(said["target"], said["merge"], delivery="eager") as reader:
        await _go()
        async for item in reader:
            if isinstance(item, Elements):
                rows += item.batch.num_rows
                entries += 1
                if said.get("keep"):
                    received.append((time.monotonic_ns(), item.batch.num_rows))
                    kept.append(item.batch)
            elif isinstance(item, StablePoint):
                stables += 1
                if item.vc == END:
                    break
        ended = time.monotonic_ns()
    found: Found = {"ended": ended, "rows": rows, "stables": stables, "entries": entries}
    if said.get("check"):
        found["digest"] = digest(kept)
    if said.get("file"):
        with pa.OSFile(said["file"], "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch in kept:
                writer.write_batch(batch.select(SCHEMA.names))
        found["received"] = received
    return found


async def bare_replica(said: Found) -> Found:
    """The same bytes, serialized beforehand, to the server that forwards them or not."""
    (path,) = said["files"].values()
    messages = [part.batch.serialize().to_pybytes() for part in read(Path(path))]
    method = FORWARD if said["forwarded"] else DISCARD
    async with grpc.aio.insecure_channel(said["target"], options=OPTIONS) as channel:
        await channel.channel_ready()
        call: Any = channel.stream_unary(method)
        await _go()
        began = time.monotonic_ns()

        async def sent() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        answer = await call(sent())
        ended = time.monotonic_ns()
    return {"began": began, "ended": ended, "bytes": int(answer)}


async def bare_consumer(said: Found) -> Found:
    """Reads what is forwarded, until the server says that this was all."""
    size = entries = 0
    async with grpc.aio.insecure_channel(said["target"], options=OPTIONS) as channel:
        await channel.channel_ready()
        receive: Any = channel.unary_stream(RECEIVE)
        call = receive(b"")
        await call.wait_for_connection()
        await _go()
        async for message in call:
            size += len(message)
            entries += 1
        ended = time.monotonic_ns()
    return {"ended": ended, "bytes": size, "entries": entries}


ROLES: Final[dict[str, Callable[[Found], Awaitable[Found]]]] = {
    "replica": replica,
    "paced": paced,
    "consumer": consumer,
    "bare-replica": bare_replica,
    "bare-consumer": bare_consumer,
}


def main() -> None:
    """One role; see the module."""

    async def play() -> Found:
        found = await ROLES[sys.argv[1]](json.loads(sys.argv[2]))
        return {**found, "cpu": round(time.process_time() - _ready[0], 3)}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(play())), flush=True)


if __name__ == "__main__":
    main()
