"""Every refusal that a peer can provoke: its status, its class, and words that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from lmerge import errors
from lmerge.times import BEGINNING, INFINITY
from lmerge.v1 import common_pb2, consumer_pb2, operator_pb2, replica_pb2
from lmerge.v1.consumer_pb2_grpc import ConsumerServiceStub
from lmerge.v1.replica_pb2_grpc import ReplicaServiceStub
from lmerge.wire import rows
from tests.server.serving import (
    PAYLOAD,
    Consumer,
    Replica,
    ServerProcess,
    bounded,
    channel_to,
    data_of,
    operator,
    refusal,
    server_process,
    soon,
)

EVENTS = [("+", 1, 5, 1, "x"), ("+", 2, 9, 2, None)]
LIMITS = """
[limits]
message_bytes = "64KiB"
epoch_bytes = "128KiB"
staged_bytes = "256KiB"
streams = 2
subscriptions = 2
merges = 40
"""
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all, with small limits: each test has a merge of its own."""
    folder = tmp_path_factory.mktemp("refusals")
    with server_process(folder / "data", "--durability", "flush", config=LIMITS) as server:
        yield server
        assert "by our fault" not in server.text


async def stage(channel: Any, header: Any, *batches: bytes) -> Any:
    requests = [replica_pb2.StageRequest(header=header)] if header else []
    requests += [replica_pb2.StageRequest(batch=batch) for batch in batches]
    return await ReplicaServiceStub(channel).Stage(iter(requests))


def header_of(replica: Replica, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "merge": replica.hello.merge,
        "stream": replica.hello.stream,
        "incarnation": replica.welcome.incarnation,
        "epoch": 1,
        "part": replica_pb2.Part(partition=1, attempt=1),
    }
    return replica_pb2.StageHeader(**(fields | changes))


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_of_the_protocol(server: ServerProcess, version: int) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "version")
            await replica.attach()
            for refused in (
                Replica(channel, "version", "b", protocol_version=version).attach(),
                Consumer(channel, "version", protocol_version=version).open(),
                stage(channel, header_of(replica, protocol_version=version)),
            ):
                code, error = await refusal(refused)
                assert code == Code.FAILED_PRECONDITION
                assert isinstance(error, errors.VersionMismatchError)
                assert f"version {version}" in str(error)

    run()


def test_another_schema(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            await Replica(channel, "schema").attach()
            for schema, said in (
                (pa.schema([("k", pa.int64())]), "'v' is missing"),
                (PAYLOAD.append(pa.field("w", pa.int8())), "'w' is not expected"),
                (PAYLOAD.set(0, pa.field("k", pa.int32())), "'k' is int32 instead of int64"),
            ):
                refused = Replica(channel, "schema", "b", schema=rows.schema_bytes(schema))
                code, error = await refusal(refused.attach())
                assert code == Code.FAILED_PRECONDITION
                assert isinstance(error, errors.SchemaMismatchError)
                assert said in str(error)
            twice = pa.schema([("k", pa.int8()), ("k", pa.int8())])
            refused = Replica(channel, "twice", schema=rows.schema_bytes(twice))
            _, error = await refusal(refused.attach())
            assert isinstance(error, errors.SchemaMismatchError)

    run()


def test_another_restriction(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            await Replica(channel, "restricted").attach()
            options = common_pb2.MergeOptions(restriction="R4")
            refused = Replica(channel, "restricted", "b", options=options)
            code, error = await refusal(refused.attach())
            assert code == Code.FAILED_PRECONDITION
            assert "is R3, and the hello asks for R4" in str(error)
            none = common_pb2.StreamProperties()
            refused = Replica(channel, "restricted", "b", properties=none)
            code, error = await refusal(refused.attach())
            assert code == Code.FAILED_PRECONDITION
            assert "does not promise what that needs: keyed" in str(error)

    run()


def test_a_zombie_is_fenced(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            old = Replica(channel, "fenced", instance="old")
            await old.attach()
            await old.epoch(1, EVENTS, 3)
            await old.write(2, [("+", 4, 9, 3, "late")])
            new = Replica(channel, "fenced", instance="new")
            welcome = await new.attach()
            assert (welcome.incarnation, welcome.next_epoch) == (2, 2)
            # The late commit is on its way when the call has ended, or meets its end.
            late = replica_pb2.AttachRequest(commit=replica_pb2.Commit(epoch=2, stable=10))
            with_late = asyncio.ensure_future(old.call.write(late))
            code, error = await refusal(old.ended())
            await asyncio.wait([with_late])
            with_late.exception()
            assert code in (Code.ABORTED, Code.INTERNAL)  # our gRPC's word for a late write
            if code == Code.ABORTED:
                assert isinstance(error, errors.FencedError)
            # Nor can it come back, or let its tasks write.
            back = Replica(channel, "fenced", instance="old", incarnation=1)
            code, error = await refusal(back.attach())
            assert (code, type(error)) == (Code.ABORTED, errors.FencedError)
            same = Replica(channel, "fenced", instance="old", incarnation=2)
            assert (await refusal(same.attach()))[0] == Code.ABORTED
            refused = stage(channel, header_of(old, epoch=2), data_of(EVENTS))
            assert (await refusal(refused))[0] == Code.ABORTED
            assert not new.call.done()
            await new.epoch(2, [("+", 4, 9, 3, "right")], 5)
            consumer = Consumer(channel, "fenced")
            await consumer.open()
            output = await consumer.until_stable(5)
            assert output == [*EVENTS, ("stable", 3), ("+", 4, 9, 3, "right"), ("stable", 5)]

    run()


def test_the_old_session_hears_aborted(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            old = Replica(channel, "aborted")
            await old.attach()
            await Replica(channel, "aborted").attach()
            code, error = await refusal(old.ended())
            assert (code, type(error)) == (Code.ABORTED, errors.FencedError)
            assert "taken over by incarnation 2" in str(error)

    run()


def test_nothing_of_that_name(tmp_path: Path) -> None:
    @bounded
    async def run(target: str) -> None:
        async with channel_to(target) as channel:
            for refused in (
                Replica(channel, "nowhere").attach(),
                Consumer(channel, "nowhere").open(),
                ConsumerServiceStub(channel).Inspect(consumer_pb2.InspectRequest(merge="nowhere")),
                stage(channel, replica_pb2.StageHeader(protocol_version=1, merge="nowhere")),
            ):
                code, error = await refusal(refused)
                assert (code, type(error)) == (Code.NOT_FOUND, errors.NotFoundError)
                assert "'nowhere'" in str(error)
            # Declared, and not begun: that is another thing.
            code, error = await refusal(Consumer(channel, "later").open())
            assert (code, type(error)) == (Code.UNAVAILABLE, errors.UnavailableError)
            replica = Replica(channel, "later")
            await replica.attach()
            header = header_of(replica, stream="nobody")
            assert (await refusal(stage(channel, header)))[0] == Code.NOT_FOUND

    config = 'create_on_attach = false\n[[merges]]\nname = "later"\n'
    with server_process(tmp_path / "data", config=config) as server:
        run(server.target)


def test_one_of_that_name_already(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            request = operator_pb2.CreateMergeRequest(
                name="taken", schema=rows.schema_bytes(PAYLOAD)
            )
            await soon(operator(channel).CreateMerge(request))
            code, error = await refusal(operator(channel).CreateMerge(request))
            assert (code, type(error)) == (Code.ALREADY_EXISTS, errors.ExistsError)

    run()


def test_positions_that_are_not_kept(tmp_path: Path) -> None:
    @bounded
    async def run(target: str) -> None:
        async with channel_to(target) as channel:
            replica = Replica(channel)
            generation = (await replica.attach()).generation
            for sequence, of, said in (
                (0, "other", "has begun anew"),
                (1, generation, "does not exist"),
                (2**64 - 1, generation, "does not exist"),
            ):
                position = common_pb2.Position(generation=of, sequence=sequence)
                code, error = await refusal(Consumer(channel, position=position).open())
                assert (code, type(error)) == (Code.OUT_OF_RANGE, errors.RetiredError)
                assert said in str(error)
            for epoch in range(1, 9):
                event = [("+", epoch, 100 + epoch, epoch, "z" * 2_000)]
                await replica.epoch(epoch, event, epoch)
            # What is kept in memory is the newest only, and there is no disk here.
            code, error = await refusal(Consumer(channel).open())
            assert (code, type(error)) == (Code.OUT_OF_RANGE, errors.RetiredError)
            assert "has been retired" in str(error)
            reader = Consumer(channel, now=consumer_pb2.Now())
            await reader.open()
            assert (await reader.receive()).snapshot.last

    config = '[limits]\nmemory_bytes = "4KiB"\n'
    with server_process(tmp_path / "data", "--durability", "none", config=config) as server:
        run(server.target)


def test_an_acknowledgement_ahead_of_the_output(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            await Replica(channel, "ahead").attach()
            consumer = Consumer(channel, "ahead", subscription="s")
            await consumer.open()
            generation = consumer.opened.position.generation
            await consumer.acknowledge(common_pb2.Position(generation=generation, sequence=5))
            code, error = await refusal(consumer.ended())
            assert (code, type(error)) == (Code.INVALID_ARGUMENT, errors.WireError)
            assert "ahead of the output" in str(error)

    run()


def test_limits(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "limits", "a")
            welcome = await replica.attach()
            assert (welcome.message_bytes, welcome.epoch_bytes) == (64 << 10, 128 << 10)
            await Replica(channel, "limits", "b").attach()
            code, error = await refusal(Replica(channel, "limits", "c").attach())
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)
            assert "2 streams" in str(error)
            for name in ("s", "t"):
                await Consumer(channel, "limits", subscription=name).open()
            code, error = await refusal(Consumer(channel, "limits", subscription="u").open())
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)
            assert "2 subscriptions" in str(error)
            await Consumer(channel, "limits", subscription="t").open()  # it is there already
            await Consumer(channel, "limits").open()  # and this is none
            large = [("+", 1, 5, 1, "x" * 50_000)]
            parts = [data_of(large)] * 3
            code, error = await refusal(stage(channel, header_of(replica), *parts))
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)
            assert "epoch_bytes" in str(error)
            for _ in range(2):
                await replica.write(1, large)
            await replica.write(1, large)
            code, error = await refusal(replica.ended())
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)
            assert "epoch_bytes" in str(error)

    run()


def test_a_stream_that_left_and_returns_counts_as_one_more(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            first = Replica(channel, "returns", "a")
            await first.attach()
            await first.send(detach=replica_pb2.Detach(reason="over"))
            assert (await first.receive()).WhichOneof("response") == "detached"
            await Replica(channel, "returns", "b").attach()
            await Replica(channel, "returns", "c").attach()
            again = Replica(channel, "returns", "a", lineage="lineage-2")
            code, error = await refusal(again.attach())
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)

    run()


def test_what_is_staged_by_everybody(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "staged", "a")
            await replica.attach()
            data = data_of([("+", 1, 5, 1, "x" * 50_000)])
            for attempt in range(5):
                part = replica_pb2.Part(partition=1, attempt=attempt)
                await soon(stage(channel, header_of(replica, part=part), data))
            part = replica_pb2.Part(partition=1, attempt=5)
            code, error = await refusal(stage(channel, header_of(replica, part=part), data))
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)
            assert "staged_bytes" in str(error)
            # An abort gives the room back.
            await replica.send(abort=replica_pb2.Abort(epoch=1))
            await replica.epoch(1, EVENTS, 3)
            await soon(stage(channel, header_of(replica, epoch=2), data))
            await replica.send(abort=replica_pb2.Abort(epoch=2))
            await replica.epoch(2, [], 4)

    run()


def test_a_message_too_large(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "large")
            await replica.attach()
            await replica.write(1, [("+", 1, 5, 1, "x" * 300_000)])
            code, error = await refusal(replica.ended())
            assert (code, type(error)) == (Code.RESOURCE_EXHAUSTED, errors.LimitError)

    run()


def test_epochs_out_of_order(server: ServerProcess) -> None:
    async def fails(channel: Any, said: str, *requests: Any, **commit: Any) -> None:
        replica = Replica(channel, "order")
        await replica.attach()
        for request in requests:
            await replica.send(**request)
        await replica.send(commit=replica_pb2.Commit(**commit))
        code, error = await refusal(replica.ended())
        assert (code, type(error)) == (Code.FAILED_PRECONDITION, errors.EpochOrderError)
        assert said in str(error)

    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "order")
            await replica.attach()
            await replica.epoch(5, EVENTS, 3)  # the first may have any number
            assert (await replica.commit(4)).epoch == 4  # repeated: acknowledged again
            await replica.end()
            await fails(channel, "the next is 6", epoch=7)
            await fails(channel, "0 rows here, and its commit says 2", epoch=6, rows=2)
            part = replica_pb2.Part(partition=3, attempt=1)
            await fails(channel, "partition 3, attempt 1 was not staged", epoch=6, parts=[part])
            replica = Replica(channel, "order")
            assert (await replica.attach()).next_epoch == 6
            await replica.write(8, EVENTS)
            code, error = await refusal(replica.ended())
            assert (code, type(error)) == (Code.FAILED_PRECONDITION, errors.EpochOrderError)
            code, error = await refusal(stage(channel, header_of(replica, epoch=8)))
            assert (code, type(error)) == (Code.FAILED_PRECONDITION, errors.EpochOrderError)

    run()


def test_a_stream_that_was_detached(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "detached")
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            await replica.send(detach=replica_pb2.Detach(reason="over"))
            answer = await replica.receive()
            assert answer.detached.reason == "over"
            with pytest.raises(EOFError):
                await replica.receive()
            code, error = await refusal(Replica(channel, "detached").attach())
            assert (code, type(error)) == (Code.CANCELLED, errors.DetachedError)
            assert "begin a new lineage" in str(error)
            await Replica(channel, "detached", lineage="lineage-2", from_time=3).attach()

    run()


@pytest.mark.parametrize("first", ["write", "commit", "abort", "detach", None])
def test_a_session_that_does_not_begin_with_a_hello(
    server: ServerProcess, first: str | None
) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            call = ReplicaServiceStub(channel).Attach()
            request = replica_pb2.AttachRequest()
            if first is not None:
                getattr(request, first).SetInParent()
            if first == "write":
                request.write.batch = data_of(EVENTS)
            await soon(call.write(request))
            code, error = await refusal(call.read())
            assert (code, type(error)) == (Code.INVALID_ARGUMENT, errors.WireError)

    run()


def test_messages_out_of_place(server: ServerProcess) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, "place")
            await replica.attach()
            header = header_of(replica)
            await replica.send(hello=replica.hello)
            assert (await refusal(replica.ended()))[0] == Code.INVALID_ARGUMENT
            consumer = Consumer(channel, "place")
            await consumer.open()
            await consumer.send(open=consumer.wanted)
            assert (await refusal(consumer.ended()))[0] == Code.INVALID_ARGUMENT
            unknown = Consumer(channel, "place", delivery=0)
            assert (await refusal(unknown.open()))[0] == Code.INVALID_ARGUMENT
            service = ReplicaServiceStub(channel)
            twice = [replica_pb2.StageRequest(header=header)] * 2
            assert (await refusal(service.Stage(iter(twice))))[0] == Code.INVALID_ARGUMENT
            assert (await refusal(service.Stage(iter([]))))[0] == Code.INVALID_ARGUMENT
            stable = pa.RecordBatch.from_pydict({"op": pa.array([2], pa.int8())})
            refused = stage(channel, header, rows.batch_bytes(stable).to_pybytes())
            assert (await refusal(refused))[0] == Code.INVALID_ARGUMENT

    run()


@pytest.mark.parametrize("incarnation", [2**63, 2**64 - 1])
def test_an_incarnation_after_which_there_is_none(server: ServerProcess, incarnation: int) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            refused = Replica(channel, "incarnations", incarnation=incarnation)
            code, error = await refusal(refused.attach())
            assert (code, type(error)) == (Code.INVALID_ARGUMENT, errors.WireError)
            # Nobody is locked out by it.
            assert (await Replica(channel, "incarnations").attach()).incarnation >= 1

    run()


@pytest.mark.parametrize("epoch", [2**63, 2**64 - 1])
def test_an_epoch_after_which_there_is_none(server: ServerProcess, epoch: int) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, f"epochs-{epoch}")
            await replica.attach()
            await replica.send(commit=replica_pb2.Commit(epoch=epoch, stable=1))
            code, _ = await refusal(replica.ended())
            assert code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
            again = Replica(channel, f"epochs-{epoch}")
            assert not (await again.attach()).HasField("next_epoch")

    run()


@pytest.mark.parametrize("stable", [BEGINNING, -5, 0, INFINITY])
def test_any_stable_may_be_said(server: ServerProcess, stable: int) -> None:
    @bounded
    async def run() -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel, f"stable{stable}".replace("-", "_"))
            await replica.attach()
            await replica.epoch(1, [], stable)
            await replica.epoch(2, [], stable)
            assert await replica.end() == Code.OK

    run()


def test_a_server_that_drains(tmp_path: Path) -> None:
    @bounded
    async def run(server: ServerProcess) -> None:
        async with channel_to(server.target) as channel:
            replica = Replica(channel)
            await replica.attach()
            await replica.epoch(1, EVENTS, 3)
            consumer = Consumer(channel)
            await consumer.open()
            await consumer.until_stable(3)
            server.process.terminate()
            for peer in (replica, consumer):
                code, error = await refusal(peer.ended())
                assert (code, type(error)) == (Code.UNAVAILABLE, errors.UnavailableError)
                assert "stopping" in str(error)
            code, error = await refusal(Replica(channel).attach())
            assert (code, type(error)) == (Code.UNAVAILABLE, errors.UnavailableError)

    with server_process(tmp_path / "data") as server:
        run(server)
        assert server.wait() == 0
        assert server.wait_for_line("stopped")
