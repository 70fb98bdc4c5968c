"""The writer against scripted peers: what it sends again, what it waits for, what is final."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lmerge.client import Security, Writer
from lmerge.client.writer import FRAME_BYTES
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    FencedError,
    LimitError,
    RetiredError,
    SchemaMismatchError,
    UnavailableError,
    WireError,
)
from lmerge.v1 import replica_pb2
from tests.client.scripted import ManualTime, ReplicaStubs, acknowledged, serving, welcome
from tests.client.servers import SCHEMA, inserts, run


def writer_to(stubs: ReplicaStubs, time: ManualTime | None = None, **options: Any) -> Writer:
    retry = (time or ManualTime()).retry(options.pop("patience_s", 100.0))
    return Writer("nowhere", "m", "a", SCHEMA, stubs=stubs, retry=retry, **options)


def test_after_a_break_only_what_the_server_lacks_is_sent_again() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(
            serving(welcome(), lambda epoch: epoch < 1),
            serving(welcome(2), lambda epoch: True),  # it had taken 1, and not said so
        )
        async with writer_to(stubs) as writer:
            futures = []
            for start in (0, 10, 20):
                await writer.write(inserts(start))
                futures.append(await writer.commit(stable=start, wait=False))
            assert [(await future).epoch for future in futures] == [0, 1, 2]
            assert writer.reconnects == 1
        assert stubs.kinds(1) == ["hello", "write 2", "commit 2"]
        first, second = (told[0].hello for told in stubs.told)
        assert (first.incarnation, second.incarnation) == (0, 7)
        assert first.instance == second.instance

    run(test())


def test_an_open_epoch_is_sent_again_as_a_whole() -> None:
    async def test() -> None:
        async def breaks(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            await anext(requests)
            yield welcome()
            await anext(requests)
            raise ConnectionError("the network broke")

        stubs = ReplicaStubs(breaks, serving(welcome(), lambda epoch: True))
        async with writer_to(stubs) as writer:
            await writer.write(inserts(1))
            await writer.write(inserts(2))
            assert (await writer.commit(stable=0)).epoch == 0
        assert stubs.kinds(1) == ["hello", "write 0", "write 0", "commit 0"]
        assert stubs.told[1][-1].commit.rows == 2

    run(test())


def test_a_write_beyond_the_window_waits_for_an_acknowledgement() -> None:
    async def test() -> None:
        go_on = asyncio.Event()
        size = inserts(1).serialize().size + FRAME_BYTES

        async def slow(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            await anext(requests)
            yield welcome(window_bytes=2 * size + size // 2)
            async for request in requests:
                if request.WhichOneof("request") == "commit":
                    await go_on.wait()
                    yield acknowledged(request.commit.epoch)

        async with writer_to(ReplicaStubs(slow)) as writer:
            await writer.write(inserts(1))
            await writer.commit(wait=False)
            await writer.write(inserts(2))
            second = asyncio.create_task(writer.write(inserts(3)))
            while not writer.waits:
                await asyncio.sleep(0)
            assert not second.done()
            go_on.set()
            await second
            await writer.commit()

    run(test())


def test_an_epoch_that_alone_exceeds_the_window_is_refused() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(serving(welcome(window_bytes=1000), lambda epoch: True))
        async with writer_to(stubs) as writer:
            with pytest.raises(LimitError, match="epoch 0 has more than 1000 bytes"):
                await writer.write(inserts(*range(1000)))
            await writer.abort()
            assert (await writer.commit()).epoch == 0

    run(test())


def test_an_abort_drops_what_was_written_and_keeps_the_number() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(serving(welcome(5), lambda epoch: True))
        async with writer_to(stubs) as writer:
            await writer.write(inserts(1, 2))
            await writer.abort()
            await writer.write(inserts(3))
            assert (await writer.commit()).epoch == 5
        assert stubs.kinds(0)[-3:] == ["abort 5", "write 5", "commit 5"]
        assert stubs.told[0][-1].commit.rows == 1

    run(test())


def test_a_repeated_epoch_is_acknowledged_without_being_sent() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(serving(welcome(5), lambda epoch: True))
        async with writer_to(stubs) as writer:
            await writer.write(inserts(1), epoch=4)
            assert (await writer.commit(4, stable=1)).repeated
            await writer.write(inserts(2), epoch=5)
            assert not (await writer.commit(5, stable=2)).repeated
        assert stubs.kinds(0) == ["hello", "write 5", "commit 5"]

    run(test())


def test_being_fenced_is_final() -> None:
    async def test() -> None:
        async def fences(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            await anext(requests)
            yield welcome()
            async for _ in requests:
                raise FencedError("taken over")

        stubs = ReplicaStubs(fences)
        writer = writer_to(stubs)
        await writer.write(inserts(1))
        with pytest.raises(FencedError):
            await writer.commit()
        with pytest.raises(FencedError):
            await writer.write(inserts(2))
        await writer.close(drain=False)
        assert len(stubs.told) == 1

    run(test())


def test_a_server_that_lost_acknowledged_epochs_is_not_written_to() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(
            serving(welcome(), lambda epoch: epoch < 2),
            serving(welcome(generation="h"), lambda epoch: True),
        )
        writer = writer_to(stubs)
        for start in (0, 10):
            await writer.write(inserts(start))
            await writer.commit()
        with pytest.raises(RetiredError, match="1 was acknowledged, and generation h"):
            await writer.commit()
        await writer.close(drain=False)
        assert stubs.kinds(1) == ["hello"]

    run(test())


def test_a_server_that_lost_its_data_before_anything_was_acknowledged_is_served() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(
            serving(welcome(), lambda epoch: False),
            serving(welcome(generation="h"), lambda epoch: True),
        )
        async with writer_to(stubs) as writer:
            await writer.write(inserts(1))
            assert (await writer.commit()).epoch == 0

    run(test())


def test_patience_has_an_end_and_waits_become_longer() -> None:
    async def test() -> None:
        async def away(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            raise UnavailableError("nobody there")
            yield

        time = ManualTime()
        writer = writer_to(ReplicaStubs(away), time, patience_s=20.0)
        with pytest.raises(UnavailableError, match="nobody there"):
            await writer.attach()
        await writer.close()
        assert sum(time.slept) == pytest.approx(20.0)
        assert time.slept[0] <= 0.1 < time.slept[4] <= max(time.slept) <= 5.0

    run(test())


def test_an_operators_detach_ends_the_writer() -> None:
    async def test() -> None:
        async def detaches(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            await anext(requests)
            yield welcome()
            yield replica_pb2.AttachResponse(detached=replica_pb2.Detached(reason="cutover"))

        writer = writer_to(ReplicaStubs(detaches))
        with pytest.raises(DetachedError, match="cutover"):
            await writer.commit()
        await writer.close(drain=False)

    run(test())


def test_feedback_moves_the_horizon_forward_only() -> None:
    async def test() -> None:
        async def tells(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            await anext(requests)
            yield welcome(horizon=5)
            for before in (3, 9):
                feedback = replica_pb2.Feedback(before=before)
                yield replica_pb2.AttachResponse(feedback=feedback)
            async for _ in requests:
                pass

        heard: list[int] = []
        async with writer_to(ReplicaStubs(tells), on_feedback=heard.append) as writer:
            async for horizon in writer.feedback():
                if horizon == 9:
                    break
        assert heard == [5, 9]

    run(test())


def test_batches_are_checked_before_anything_is_sent() -> None:
    async def test() -> None:
        stubs = ReplicaStubs(serving(welcome(), lambda epoch: True))
        async with writer_to(stubs) as writer:
            with pytest.raises(SchemaMismatchError, match="'k'"):
                await writer.write(inserts(1).drop_columns(["k"]))
            stable = inserts(1).set_column(0, "op", [[2]])
            with pytest.raises((SchemaMismatchError, WireError)):
                await writer.write(stable)
        assert stubs.kinds(0) == ["hello"]

    run(test())


def test_a_token_does_not_leave_the_machine_in_plain_text() -> None:
    with pytest.raises(ConfigurationError, match="plain text"):
        Writer("example.org:7070", "m", "a", SCHEMA, security=Security(token="secret"))
    Writer("127.0.0.1:7070", "m", "a", SCHEMA, security=Security(token="secret"))
    assert "secret" not in repr(Security(token="secret"))
