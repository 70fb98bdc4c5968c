"""What consumers get: every kind of subscription, over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from lmerge.errors import RetiredError
from lmerge.server.config import Limits, ServerConfig
from lmerge.v1 import common_pb2, consumer_pb2
from tests.server.serving import (
    Consumer,
    Replica,
    bounded,
    channel_to,
    refusal,
    server_here,
    target_of,
)

NOW: dict[str, Any] = {"now": consumer_pb2.Now()}
FINAL = consumer_pb2.DELIVERY_FINAL
CONSISTENT = consumer_pb2.DELIVERY_CONSISTENT
PROPERTIES = {
    "R0": common_pb2.StreamProperties(insert_only=True, strictly_increasing=True),
    "R1": common_pb2.StreamProperties(insert_only=True, ordered=True, deterministic_ties=True),
    "R2": common_pb2.StreamProperties(insert_only=True, ordered=True, keyed=True),
    "R3": common_pb2.StreamProperties(keyed=True),
    "R4": common_pb2.StreamProperties(),
}


def config(tmp_path: Path, **limits: int) -> ServerConfig:
    return ServerConfig(listen="127.0.0.1:0", data_dir=tmp_path, limits=Limits(**limits))


@bounded
async def test_a_reader_from_the_beginning_sees_everything_in_order(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a, b = Replica(channel, stream="a"), Replica(channel, stream="b")
        await a.attach()
        await b.attach()
        await a.epoch(0, [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, "y")])
        await b.epoch(0, [("+", 1, 6, 1, "x")], stable=3)
        reader = Consumer(channel)
        await reader.open()
        assert await reader.until_stable(3) == [
            ("+", 1, 5, 1, "x"), ("+", 2, 9, 2, "y"), ("~", 2, 9, 2, 2, "y"), ("stable", 3),
        ]  # fmt: skip


@pytest.mark.parametrize("restriction", PROPERTIES)
def test_a_reader_from_now_gets_what_is_live_and_then_the_changes(
    tmp_path: Path, restriction: str
) -> None:
    @bounded
    async def run() -> None:
        async with (
            server_here(config(tmp_path)) as server,
            channel_to(target_of(server)) as channel,
        ):
            a = Replica(channel, properties=PROPERTIES[restriction])
            assert (await a.attach()).restriction == restriction
            await a.epoch(0, [("+", 1, 5, 1, "x"), ("+", 2, 90, 2, "y"), ("+", 3, 50, 3, "z")])
            await a.epoch(1, [], stable=10)
            reader = Consumer(channel, **NOW)
            await reader.open()
            live = await snapshot(reader)
            assert live == ([("+", 2, 90, 2, "y"), ("+", 3, 50, 3, "z")], 10)
            await a.epoch(2, [("+", 12, 13, 4, "w")], stable=20)
            assert await reader.until_stable(20) == [("+", 12, 13, 4, "w"), ("stable", 20)]

    run()


async def snapshot(reader: Consumer) -> tuple[list[Any], int | None]:
    from tests.server.serving import elements_of

    found: list[Any] = []
    while True:
        answer = await reader.receive()
        assert answer.WhichOneof("response") == "snapshot", answer
        piece = answer.snapshot
        found += elements_of(piece.batch) if piece.batch else []
        if piece.last:
            return sorted(found), piece.stable if piece.HasField("stable") else None


@bounded
async def test_a_snapshot_of_nothing_is_said_at_once(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        await Replica(channel).attach()
        reader = Consumer(channel, **NOW)
        await reader.open()
        assert await snapshot(reader) == ([], None)


@bounded
async def test_final_results_are_frozen_events_that_are_never_revised(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        await a.attach()
        await a.epoch(0, [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, "y"), ("+", 3, 4, 3, "gone")])
        await a.epoch(1, [("~", 1, 5, 7, 1, "x"), ("~", 3, 4, 3, 3, "gone")], stable=4)
        await a.epoch(2, [], stable=8)
        await a.epoch(3, [], stable=20)
        reader = Consumer(channel, delivery=FINAL)
        await reader.open()
        found = await reader.until_stable(20)
        assert [each for each in found if each[0] != "stable"] == [
            ("+", 1, 7, 1, "x"), ("+", 2, 9, 2, "y"),
        ]  # fmt: skip
        promised = [each[1] for each in found if each[0] == "stable"]
        assert promised == sorted(promised)


@pytest.mark.parametrize("restart", [False, True])
def test_a_final_reader_resumes_at_any_position_as_if_it_had_never_stopped(
    tmp_path: Path, restart: bool
) -> None:
    @bounded
    async def run() -> None:
        small = config(tmp_path, snapshot_bytes=1, segment_bytes=4096)
        async with server_here(small) as server, channel_to(target_of(server)) as channel:
            a = Replica(channel)
            await a.attach()
            for n in range(12):
                rows = [
                    ("+", 10 * n + 1, 10 * n + 3 + 7 * (n % 4), n, "x"),
                    ("+", 10 * n + 2, 500, n, "long"),
                ]
                await a.epoch(n, rows, stable=10 * n)
            await a.epoch(12, [], stable=1000)
            if not restart:
                await resumed(channel)
        if restart:
            async with server_here(small) as server, channel_to(target_of(server)) as channel:
                await resumed(channel)

    async def resumed(channel: Any) -> None:
        whole = Consumer(channel, delivery=FINAL)
        await whole.open()
        entries = await tagged(whole)
        assert sum(len(rows) for _, rows in entries) > 24
        places = sorted({position.sequence for position, _ in entries})
        generation = entries[0][0].generation
        for place in [0, *places[:-1]]:
            position = common_pb2.Position(generation=generation, sequence=place)
            reader = Consumer(channel, delivery=FINAL, position=position)
            await reader.open()
            rest = [each for each in entries if each[0].sequence > place]
            assert await tagged(reader) == rest, f"resumed at {place}"
            reader.call.cancel()

    async def tagged(reader: Consumer) -> list[tuple[Any, Any]]:
        from tests.server.serving import parts_of

        found: list[tuple[Any, Any]] = []
        while not (found and found[-1][1][-1] == ("stable", 1000)):
            answer = await reader.receive()
            found.append((answer.entry.next, parts_of(answer.entry)))
        return found

    run()


@bounded
async def test_a_named_subscription_goes_on_from_what_it_acknowledged(tmp_path: Path) -> None:
    for life in range(3):
        async with (
            server_here(config(tmp_path)) as server,
            channel_to(target_of(server)) as channel,
        ):
            a = Replica(channel)
            await a.attach()
            start = 10 * (life + 1)
            await a.epoch(life, [("+", start, start + 5, life, "x")], stable=start)
            reader = Consumer(channel, subscription="sub", beginning=consumer_pb2.Beginning())
            await reader.open()
            assert await reader.until_stable(start) == [
                    ("+", start, start + 5, life, "x"), ("stable", start),
                ]  # fmt: skip
            await reader.acknowledge()
            answer = await reader.receive()
            assert answer.WhichOneof("response") == "acknowledged"
            assert answer.acknowledged.position == reader.next


@bounded
async def test_a_named_subscription_from_now_gets_its_snapshot_until_it_acknowledges(
    tmp_path: Path,
) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        await a.attach()
        await a.epoch(0, [("+", 1, 50, 1, "x")], stable=5)
        for _ in range(2):
            reader = Consumer(channel, subscription="sub", **NOW)
            await reader.open()
            assert await snapshot(reader) == ([("+", 1, 50, 1, "x")], 5)
            reader.call.cancel()


@bounded
async def test_a_group_is_complete_at_its_last_entry_only(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        await a.attach()
        await a.epoch(0, [("+", 1, 5, 1, "x")], stable=1)
        reader = Consumer(channel, delivery=CONSISTENT)
        await reader.open()
        flags = [(await reader.receive()).entry.complete for _ in range(2)]
        assert flags == [False, True]


@bounded
async def test_a_slow_consumer_holds_nobody_and_nothing_back(tmp_path: Path) -> None:
    """It never reads; the others see everything, and the memory kept stays bounded."""
    memory = 1 << 20
    small = config(tmp_path, memory_bytes=memory, segment_bytes=1 << 20)
    async with server_here(small) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        await a.attach()
        slow = Consumer(channel)
        await slow.open()
        text = "x" * 10_000
        for n in range(40):
            await a.epoch(n, [("+", n + 1, 10**9, 100 * n + i, text) for i in range(20)], stable=n)
        output = server.hub.merges["m"].host.output
        assert output.next >= 79
        await output.sync()
        assert output._tail_bytes <= memory
        quick = Consumer(channel)
        await quick.open()
        everything = await quick.until_stable(39)
        assert await slow.until_stable(39) == everything
        assert len(everything) == 40 * 20 + 40 - (everything[0][0] == "stable")


@bounded
async def test_what_is_retired_is_out_of_range_and_now_still_works(tmp_path: Path) -> None:
    small = config(
        tmp_path, retention_bytes=20_000, segment_bytes=4096, snapshot_bytes=4096, memory_bytes=4096
    )
    async with server_here(small) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        await a.attach()
        host = server.hub.merges["m"].host
        for n in range(60):
            await a.epoch(n, [("+", 10 * n + 1, 10 * n + 5, n, "x" * 1000)], stable=10 * n)
            await host.snapshot()
        assert host.output.first > 0
        assert host.output.nbytes < 60_000
        reader = Consumer(channel)
        code, error = await refusal(reader.open())
        assert code is grpc.StatusCode.OUT_OF_RANGE
        assert isinstance(error, RetiredError)
        kept = Consumer(channel, position=host.state.position(host.output.first))
        await kept.open()
        assert (await kept.until_stable(590))[-1] == ("stable", 590)
        final = Consumer(channel, delivery=FINAL, position=host.state.position(host.output.first))
        await final.open()
        assert (await final.until_stable(580))[-1][0] == "stable"
        now = Consumer(channel, **NOW)
        await now.open()
        assert (await snapshot(now))[1] == 590


@bounded
async def test_a_position_of_another_generation_is_refused(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        await Replica(channel).attach()
        foreign = common_pb2.Position(generation="elsewhere", sequence=0)
        code, error = await refusal(Consumer(channel, position=foreign).open())
        assert code is grpc.StatusCode.OUT_OF_RANGE
        assert "begun anew" in str(error)


@bounded
async def test_parallel_parts_count_when_the_commit_names_them(tmp_path: Path) -> None:
    from lmerge.v1 import replica_pb2
    from lmerge.v1.replica_pb2_grpc import ReplicaServiceStub
    from tests.server.serving import data_of, soon

    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a = Replica(channel)
        welcome = await a.attach()

        async def stage(partition: int, attempt: int, *elements: Any) -> None:
            call = ReplicaServiceStub(channel).Stage()
            part = replica_pb2.Part(partition=partition, attempt=attempt)
            header = replica_pb2.StageHeader(
                protocol_version=1, merge="m", stream="a", incarnation=welcome.incarnation,
                epoch=0, part=part,
            )  # fmt: skip
            await call.write(replica_pb2.StageRequest(header=header))
            await call.write(replica_pb2.StageRequest(batch=data_of(elements)))
            await call.done_writing()
            assert (await soon(call)).rows == len(elements)

        await stage(0, 0, ("+", 1, 5, 1, "failed attempt"))
        await stage(0, 1, ("+", 1, 5, 1, "x"))
        await stage(1, 0, ("+", 2, 6, 2, "y"), ("+", 3, 6, 3, "z"))
        await stage(2, 0, ("+", 9, 10, 9, "never named"))
        parts = [
            replica_pb2.Part(partition=0, attempt=1), replica_pb2.Part(partition=1, attempt=0),
        ]  # fmt: skip
        await a.commit(0, stable=4, parts=parts, rows=3)
        await a.commit(0, stable=4, parts=parts, rows=3)  # repeated: acknowledged, and nothing more
        reader = Consumer(channel)
        await reader.open()
        assert await reader.until_stable(4) == [
            ("+", 1, 5, 1, "x"), ("+", 2, 6, 2, "y"), ("+", 3, 6, 3, "z"), ("stable", 4),
        ]  # fmt: skip
        assert server.hub.staged_bytes == 0
        await a.epoch(1, [], stable=5)
        assert await reader.until_stable(5) == [("stable", 5)]


@bounded
async def test_feedback_tells_a_laggard_what_is_no_longer_needed(tmp_path: Path) -> None:
    async with server_here(config(tmp_path)) as server, channel_to(target_of(server)) as channel:
        a, b = Replica(channel, stream="a"), Replica(channel, stream="b")
        await a.attach()
        await b.attach()
        await a.epoch(0, [("+", 1, 5, 1, "x")], stable=100)
        await b.receive()
        assert b.feedback == [100]
        await b.send(commit=commit_that_skipped(before=100))
        await b.acknowledged(0)
        late = Replica(channel, stream="late")
        assert (await late.attach()).horizon == 100


def commit_that_skipped(before: int) -> Any:
    from lmerge.v1 import replica_pb2

    return replica_pb2.Commit(epoch=0, stable=100, skipped_before=before, counters={"rows": 7.0})
