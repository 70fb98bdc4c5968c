"""One stream at two real servers that are killed, paused and started again in turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from lmerge.client import Gap, MergedReader, MirroredWriter, Reader, Retry, Writer
from lmerge.client.mirrored import BEHIND_S, GIVE_UP_S
from lmerge.core.properties import StreamProperties
from lmerge.errors import ConfigurationError, FencedError, SchemaMismatchError, UnavailableError
from lmerge.v1 import operator_pb2
from lmerge.v1.operator_pb2_grpc import OperatorServiceStub
from tests.client.servers import SCHEMA, ServerProcess, events, inserts, run, until_stable

KEYED = StreamProperties(keyed=True)
LENGTH = 3
"""Of an event: who joins has to wait until all that was said before is over."""


class Replica:
    """Says an event and a stable an epoch, and vouches as a replica's sink does."""

    def __init__(self, *servers: ServerProcess, stream: str = "a", lineage: str = "l") -> None:
        self.epoch = 0
        self.writer = MirroredWriter(
            [each.target for each in servers], "m", stream, SCHEMA, lineage=lineage,
            properties=KEYED, vouch=lambda: self.epoch + LENGTH + 1, retry=Retry(patience_s=60.0),
        )  # fmt: skip

    async def say(self) -> int:
        self.epoch += 1
        await self.writer.write(inserts(self.epoch, length=LENGTH), epoch=self.epoch)
        await self.writer.commit(self.epoch, stable=self.epoch)
        return self.epoch

    async def say_until_written_to(self, count: int) -> None:
        """The epochs go on meanwhile, as a query's do; nothing else tells the time."""
        async with asyncio.timeout(60):
            while len(self.writer._writers()) != count:
                await self.say()


def allow_gap(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub: Any = cast(Any, OperatorServiceStub)(channel)
        stub.AllowGap(operator_pb2.AllowGapRequest(merge="m"), timeout=30)


def expected(last: int) -> list[tuple[int, int, int]]:
    return [(vs, vs, vs + LENGTH) for vs in range(1, last + 1)]


def test_either_server_can_be_killed_in_turn_and_the_consumer_sees_everything(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:
            replica = Replica(x, y)
            await replica.say()
            async with MergedReader([x.target, y.target], "m") as reader:
                found = await until_stable(reader, 1)
                for dying in (x, y):
                    dying.kill()
                    for _ in range(3):
                        found += await until_stable(reader, await replica.say())
                    await asyncio.to_thread(dying.start)
                    # What it missed is sent to it before it is needed.
                    await replica.writer.drain()
                    while not all(state == "joined" for state in reader.states.values()):
                        found += await until_stable(reader, await replica.say())
                assert not replica.writer.left_out
            await replica.writer.close()
            assert events(found) == expected(replica.epoch)

    run(test())


def test_a_server_that_hangs_is_left_out_and_joins_again(tmp_path: Path) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:
            replica = Replica(x, y)
            await replica.say()
            x.pause()
            loop = asyncio.get_running_loop()
            async with MergedReader([y.target], "m") as reader:
                began = loop.time()
                found = await until_stable(reader, await replica.say())
                assert loop.time() - began < BEHIND_S + GIVE_UP_S, "it held the epoch up"
                await replica.writer._leave_out(replica.writer._servers[0], "its window is full")
                await replica.say()
                x.resume()
                await replica.say_until_written_to(2)
                vouched = replica.epoch + LENGTH + 1
                while replica.epoch < vouched + 1:
                    await replica.say()
                found += await until_stable(reader, replica.epoch)
                assert events(found) == expected(replica.epoch)
                # Alone it is right about all that it vouches for. With nobody else to go by, it
                # waits until it is told that what lies between is missing.
                y.kill()
                allow_gap(x)
                await replica.say()
            async with Reader(x.target, "m") as alone:
                items = await until_stable(alone, replica.epoch)
                last = events([item for item in items if not isinstance(item, Gap)])
            await replica.writer.close()
            assert [e for e in last if e[2] >= vouched] == [
                e for e in expected(replica.epoch) if e[2] >= vouched
            ]

    run(test())


def test_a_server_that_comes_after_the_others_joins_from_what_is_vouched_for(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        y = ServerProcess(tmp_path / "y")
        with ServerProcess(tmp_path / "x") as x:
            replica = Replica(x, y)
            for _ in range(3):
                await replica.say()
            assert list(replica.writer.left_out) == [y.target]
            with y:
                await replica.say_until_written_to(2)
                for _ in range(LENGTH + 2):
                    await replica.say()
                async with MergedReader([y.target], "m") as reader:
                    late = events(await until_stable(reader, replica.epoch))
                await replica.writer.close()
        assert late
        assert set(late) <= set(expected(replica.epoch))

    run(test())


def test_what_concerns_the_stream_is_raised_and_no_server_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:
            async with Writer(x.target, "m", "b", SCHEMA, properties=KEYED):
                pass
            replica = Replica(x, y)
            await replica.say()
            usurper = Replica(x, y)
            await usurper.writer.attach()
            with pytest.raises(FencedError):
                await replica.say_until_written_to(0)
            await replica.writer.close(drain=False)
            other = MirroredWriter([x.target], "m", "c", SCHEMA.append(SCHEMA[0].with_name("z")))
            with pytest.raises(SchemaMismatchError):
                await other.attach()
            await usurper.writer.close()
        alone = MirroredWriter([x.target], "m", "a", SCHEMA, retry=Retry(patience_s=0.2))
        with pytest.raises(UnavailableError, match=x.target):
            await alone.attach()
        with pytest.raises(ConfigurationError, match="named twice"):
            MirroredWriter([x.target, x.target], "m", "a", SCHEMA)

    run(test())


def test_the_horizon_is_that_of_the_server_that_is_behind(tmp_path: Path) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:
            moved = asyncio.Event()
            lagging = MirroredWriter(
                [x.target, y.target], "m", "late", SCHEMA, properties=KEYED,
                on_feedback=lambda _: moved.set(),
            )  # fmt: skip
            await lagging.attach()
            async with (
                Writer(x.target, "m", "ahead", SCHEMA, properties=KEYED) as at_x,
                Writer(y.target, "m", "ahead", SCHEMA, properties=KEYED) as at_y,
                MergedReader([x.target], "m") as reader,
            ):
                await at_x.commit(stable=50)
                await until_stable(reader, 50)
                await at_y.commit(stable=20)
                await moved.wait()
                assert lagging.horizon == 20
            await lagging.close()

    run(test())
