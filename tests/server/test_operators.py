"""What operators see and do, through the socket; and what replicas and consumers notice of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lmerge.errors import ConfigurationError, DetachedError, ExistsError, NotFoundError
from lmerge.times import BEGINNING, INFINITY
from lmerge.v1 import common_pb2, consumer_pb2, operator_pb2
from lmerge.wire import rows
from tests.server.serving import (
    PAYLOAD,
    Consumer,
    Replica,
    ServerProcess,
    bounded,
    channel_to,
    operator,
    refusal,
    server_process,
    soon,
)

EVENTS = [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, None)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all: each test has a merge of its own."""
    folder = tmp_path_factory.mktemp("operators")
    with server_process(folder / "data", "--durability", "flush") as server:
        yield server


async def describe(channel: Any, merge: str) -> Any:
    request = operator_pb2.DescribeMergeRequest(merge=merge)
    return await soon(operator(channel).DescribeMerge(request))


async def create(channel: Any, name: str, schema: bytes = b"", **options: Any) -> Any:
    request = operator_pb2.CreateMergeRequest(
        name=name, schema=schema, options=common_pb2.MergeOptions(**options)
    )
    return await operator(channel).CreateMerge(request)


async def listed(channel: Any) -> dict[str, Any]:
    answer = await soon(operator(channel).ListMerges(operator_pb2.ListMergesRequest()))
    return {each.name: each for each in answer.merges}


def test_lists_and_describes_what_there_is(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "seen", "a", lineage="l", incarnation=7)
            await replica.attach()
            await replica.write(4, EVENTS)
            await replica.commit(4, 3, counters={"skipped": 2.0})
            consumer = Consumer(channel, "seen", subscription="s")
            await consumer.open()
            await consumer.until_stable(3)
            await consumer.acknowledge()
            while (await consumer.receive()).WhichOneof("response") != "acknowledged":
                pass
            await replica.write(5, EVENTS[:1])

            summary = (await listed(channel))["seen"]
            assert (summary.restriction, summary.streams, summary.stable) == ("R3", 1, 3)
            assert not summary.stalled
            assert not summary.fault
            found = await describe(channel, "seen")
            assert found.name == "seen"
            assert found.generation == replica.welcome.generation
            assert found.options.insert_policy == "first"
            assert rows.schema_of(found.schema) == PAYLOAD
            assert (found.output.inserts, found.output.stable, found.output.live) == (2, 3, 2)
            assert found.output.next_sequence == consumer.next.sequence
            (stream,) = found.streams
            assert (stream.name, stream.state, stream.connected) == ("a", "joined", True)
            assert (stream.lineage, stream.incarnation, stream.last_epoch) == ("l", 7, 4)
            assert (stream.stable, stream.inserts, stream.share) == (3, 2, 1.0)
            assert dict(stream.counters) == {"skipped": 2.0}
            (subscription,) = found.subscriptions
            assert (subscription.name, subscription.connected) == ("s", True)
            assert subscription.acknowledged == consumer.next
            assert subscription.behind == 0
            assert found.log.durability == "flush"
            assert found.log.arrivals >= 3

            assert await replica.end() == grpc.StatusCode.OK
            assert not (await describe(channel, "seen")).streams[0].connected

    run()


def test_creates_with_a_schema_and_without(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            await soon(create(channel, "made", rows.schema_bytes(PAYLOAD), restriction="R4"))
            assert (await listed(channel))["made"].restriction == "R4"
            inspected = await soon(inspect(channel, "made"))
            assert inspected.restriction == "R4"
            assert inspected.stable == BEGINNING
            consumer = Consumer(channel, "made")  # before there is any replica
            await consumer.open()
            replica = Replica(channel, "made")
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            assert await consumer.until_stable(3) == [*EVENTS, ("stable", 3)]

            await soon(create(channel, "later", insert_policy="final"))
            assert isinstance((await refusal(create(channel, "later")))[1], ExistsError)
            assert (await refusal(Consumer(channel, "later").open()))[0].name == "UNAVAILABLE"
            replica = Replica(channel, "later")
            await replica.attach()
            found = await describe(channel, "later")
            assert found.options.insert_policy == "final"
            assert rows.schema_of(found.schema) == PAYLOAD

    run()


async def inspect(channel: Any, merge: str) -> Any:
    from lmerge.v1.consumer_pb2_grpc import ConsumerServiceStub

    return await ConsumerServiceStub(channel).Inspect(consumer_pb2.InspectRequest(merge=merge))


def test_what_cannot_be_made_is_not(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            before = await listed(channel)
            schema = rows.schema_bytes(PAYLOAD)
            for name, options in (
                ("../x", {}),
                ("", {}),
                (".hidden", {}),
                ("x", {"restriction": "R9"}),
                ("x", {"insert_policy": "last"}),
                ("x", {"adjust_policy": "never"}),
                ("x", {"divergence": "ignore"}),
                ("x", {"stable_lag": -1}),
                ("x", {"restriction": "R0", "insert_policy": "final"}),
            ):
                code, error = await refusal(create(channel, name, schema, **options))
                assert isinstance(error, ConfigurationError), (name, options, error)
                assert code == grpc.StatusCode.FAILED_PRECONDITION
            assert await listed(channel) == before

    run()


def test_deletes_with_everything(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "doomed")
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            consumer = Consumer(channel, "doomed")
            await consumer.open()
            await consumer.until_stable(3)
            request = operator_pb2.DeleteMergeRequest(name="doomed")
            await soon(operator(channel).DeleteMerge(request))
            for peer in (replica, consumer):
                code, error = await refusal(peer.ended())
                assert code == grpc.StatusCode.NOT_FOUND
                assert "has been deleted" in str(error)
            assert "doomed" not in await listed(channel)
            _, error = await refusal(operator(channel).DeleteMerge(request))
            assert isinstance(error, NotFoundError)
            # One of the same name is another: nothing of the old one is left.
            again = Replica(channel, "doomed")
            welcome = await again.attach()
            assert welcome.generation != replica.welcome.generation
            assert not welcome.HasField("next_epoch")

            await soon(create(channel, "declared"))
            await soon(
                operator(channel).DeleteMerge(operator_pb2.DeleteMergeRequest(name="declared"))
            )
            await soon(create(channel, "declared"))

    run()


def test_detaches_and_tells_the_replica(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            stays, leaves = Replica(channel, "left", "a"), Replica(channel, "left", "b")
            await stays.attach()
            await leaves.attach()
            await leaves.epoch(1, EVENTS, 3)
            request = operator_pb2.DetachStreamRequest(
                merge="left", stream="b", reason="old age", incarnation=9
            )
            _, error = await refusal(operator(channel).DetachStream(request))
            assert isinstance(error, NotFoundError)  # another incarnation is meant
            request.incarnation = leaves.welcome.incarnation
            await soon(operator(channel).DetachStream(request))
            code, error = await refusal(leaves.ended())
            assert code == grpc.StatusCode.CANCELLED
            assert isinstance(error, DetachedError)
            assert "old age" in str(error)
            assert [s.name for s in (await describe(channel, "left")).streams] == ["a"]
            _, error = await refusal(operator(channel).DetachStream(request))
            assert isinstance(error, NotFoundError)
            # What it had committed counts, and the other goes on alone.
            await stays.epoch(1, EVENTS, 4)
            consumer = Consumer(channel, "left")
            await consumer.open()
            assert await consumer.until_stable(4) == [*EVENTS, ("stable", 3), ("stable", 4)]

    run()


def test_quarantines_and_releases(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            good, bad = Replica(channel, "ward", "good"), Replica(channel, "ward", "bad")
            await good.attach()
            await bad.attach()
            await good.epoch(1, EVENTS, 3)
            quarantine = operator_pb2.QuarantineStreamRequest(
                merge="ward", stream="bad", reason="it lies"
            )
            release = operator_pb2.ReleaseStreamRequest(merge="ward", stream="bad")
            _, error = await refusal(operator(channel).ReleaseStream(release))
            assert "joined, not quarantined" in str(error)
            await soon(operator(channel).QuarantineStream(quarantine))
            # Its commits are taken, and do not count: it is told so.
            answer = await bad.epoch(1, [("+", 50, 60, 9, "lie")], 70)
            assert (answer.state, answer.reason) == ("quarantined", "it lies")
            await good.epoch(2, [], 10)
            consumer = Consumer(channel, "ward")
            await consumer.open()
            assert await consumer.until_stable(10) == [*EVENTS, ("stable", 3), ("stable", 10)]
            await soon(operator(channel).ReleaseStream(release))
            code, error = await refusal(bad.ended())
            assert code == grpc.StatusCode.CANCELLED
            assert "attach anew" in str(error)
            anew = Replica(channel, "ward", "bad", lineage="lineage-2")
            assert (await anew.attach()).state in ("joined", "joining")
            for call, request in (
                (operator(channel).QuarantineStream, quarantine),
                (operator(channel).ReleaseStream, release),
            ):
                request.stream = "nobody"
                assert isinstance((await refusal(call(request)))[1], NotFoundError)

    run()


def test_allows_a_gap_when_only_joining_streams_are_left(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            allow = operator_pb2.AllowGapRequest(merge="gap")
            first = Replica(channel, "gap", "a")
            await first.attach()
            await first.epoch(1, EVENTS, 3)
            _, error = await refusal(operator(channel).AllowGap(allow))
            assert "not stalled" in str(error)
            second = Replica(channel, "gap", "b", from_time=100)
            assert (await second.attach()).state == "joining"
            detach = operator_pb2.DetachStreamRequest(merge="gap", stream="a")
            await soon(operator(channel).DetachStream(detach))
            await second.epoch(1, [("+", 110, 120, 3, "y")], 115)
            assert (await listed(channel))["gap"].stalled
            consumer = Consumer(channel, "gap")
            await consumer.open()
            assert await consumer.until_stable(3) == [*EVENTS, ("stable", 3)]
            await soon(operator(channel).AllowGap(allow))
            output = await consumer.until_stable(115)
            assert ("gap", 3, 100) in output
            assert ("+", 110, 120, 3, "y") in output
            assert not (await listed(channel))["gap"].stalled
            assert (await second.epoch(2, [], INFINITY)).state == "joined"

    run()


def test_a_snapshot_bounds_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"

    @bounded
    async def before(target: str) -> None:
        async with channel_to(target) as channel:
            replica = Replica(channel)
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            request = operator_pb2.TakeSnapshotRequest(merge="m")
            taken = await soon(operator(channel).TakeSnapshot(request))
            found = (await describe(channel, "m")).log
            assert (found.snapshot_arrival, found.snapshot_bytes) == (taken.arrival, taken.bytes)
            assert taken.arrival == found.arrivals
            assert taken.bytes > 0
            await replica.epoch(2, [("+", 6, 7, 3, "y")], 4)

    @bounded
    async def after(target: str) -> None:
        async with channel_to(target) as channel:
            replica = Replica(channel)
            assert (await replica.attach()).next_epoch == 3
            consumer = Consumer(channel)
            await consumer.open()
            assert await consumer.until_stable(4) == [
                *EVENTS, ("stable", 3), ("+", 6, 7, 3, "y"), ("stable", 4),
            ]  # fmt: skip

    with server_process(data, "--durability", "flush") as server:
        before(server.target)
        server.kill()
    with server_process(data) as server:
        assert server.wait_for_line(r"merge m: (\d+) arrivals replayed")[1] == "1"
        after(server.target)


def test_drops_a_subscription(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "read")
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            reader = Consumer(channel, "read", subscription="s")
            await reader.open()
            await reader.until_stable(3)
            await reader.acknowledge()
            while (await reader.receive()).WhichOneof("response") != "acknowledged":
                pass
            reader.cancel()
            again = Consumer(channel, "read", subscription="s")
            assert (await again.open()).position.sequence == reader.next.sequence > 0
            again.cancel()
            drop = operator_pb2.DropSubscriptionRequest(merge="read", subscription="s")
            await soon(operator(channel).DropSubscription(drop))
            assert not (await describe(channel, "read")).subscriptions
            _, error = await refusal(operator(channel).DropSubscription(drop))
            assert isinstance(error, NotFoundError)
            anew = Consumer(channel, "read", subscription="s")
            assert (await anew.open()).position.sequence == 0

    run()


def test_every_call_on_a_merge_that_is_not_there(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            service = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"]
            for method in service.methods:
                fields = method.input_type.fields_by_name
                if method.name in ("ListMerges", "CreateMerge"):
                    continue
                kind = getattr(operator_pb2, method.input_type.name)
                request = kind(**{"merge" if "merge" in fields else "name": "nowhere"})
                code, error = await refusal(getattr(operator(channel), method.name)(request))
                assert code == grpc.StatusCode.NOT_FOUND, method.name
                assert isinstance(error, NotFoundError)

    run()
