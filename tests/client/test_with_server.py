"""The clients against the real server, which is killed and started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmerge.client import (
    Elements,
    Item,
    MergedReader,
    Position,
    Reader,
    Retry,
    Share,
    Snapshot,
    StablePoint,
    SyncReader,
    SyncWriter,
    Writer,
    stage,
    stage_sync,
)
from lmerge.core.properties import StreamProperties
from lmerge.elements import Adjust, Insert, Stable
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    EpochOrderError,
    FencedError,
    NotFoundError,
    RetiredError,
    SchemaMismatchError,
    UnavailableError,
)
from lmerge.times import INFINITY
from tests.client.servers import (
    SCHEMA,
    ServerProcess,
    elements,
    events,
    inserts,
    read_all,
    run,
    until_stable,
)

KEYED = StreamProperties(keyed=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as process:
        yield process


def writer_to(server: ServerProcess, stream: str = "a", **options: object) -> Writer:
    return Writer(server.target, "m", stream, SCHEMA, properties=KEYED, **options)  # type: ignore[arg-type]  # as the test says


def expected(*starts: int) -> list[tuple[int, int, int]]:
    return [(vs, vs, vs + 1000) for vs in starts]


def test_what_is_written_is_read_in_every_delivery(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            assert writer.welcome is not None
            assert writer.welcome.next_epoch is None
            await writer.write(inserts(1, 2))
            await writer.commit(stable=2)
            await writer.write(inserts(5))
            assert (await writer.commit(stable=INFINITY)).state == "joined"
            eager = await read_all(server.target, "m", INFINITY)
            assert elements(eager) == [
                Insert({"k": 1}, 1, 1001), Insert({"k": 2}, 2, 1002), Stable(2),
                Insert({"k": 5}, 5, 1005), Stable(INFINITY),
            ]  # fmt: skip
            assert events(await read_all(server.target, "m", INFINITY, delivery="final")) == (
                expected(1, 2, 5)
            )
            consistent = await read_all(server.target, "m", INFINITY, delivery="consistent")
            assert elements(consistent) == elements(eager)
            assert [
                item.position for item in consistent if not getattr(item, "complete", True)
            ] != [item.position for item in eager if not getattr(item, "complete", True)]

    run(test())


def test_reading_from_now_begins_with_what_is_live(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            await writer.write(inserts(1, 2))
            await writer.commit(stable=2)
            async with Reader(server.target, "m", start="now") as reader:
                first = await anext(reader)
                assert isinstance(first, Snapshot)
                assert (first.last, first.stable, first.batch.num_rows) == (True, 2, 2)
                await writer.write(inserts(7))
                await writer.commit(stable=8)
                assert elements(await until_stable(reader, 8)) == [
                    Insert({"k": 7}, 7, 1007), Stable(8),
                ]  # fmt: skip

    run(test())


@pytest.mark.parametrize("delivery", ["eager", "consistent", "final"])
def test_nothing_is_lost_or_seen_twice_when_the_server_is_killed(
    server: ServerProcess, delivery: str
) -> None:
    async def test() -> None:
        epochs = 30
        kill_at = {7, 21}

        async def write() -> None:
            async with writer_to(server, lineage="l") as writer:
                for number in range(epochs):
                    await writer.write(inserts(*range(10 * number, 10 * number + 10), length=15))
                    waiting = await writer.commit(stable=10 * number + 5, wait=False)
                    if number in kill_at:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
                        assert (await waiting).epoch == number
                await writer.commit(stable=INFINITY)
                assert writer.reconnects >= len(kill_at)

        writing = asyncio.create_task(write())
        reader = Reader(server.target, "m", delivery=delivery)  # type: ignore[arg-type]  # one of them
        while True:
            try:
                await reader.open()
                break
            except NotFoundError:  # the merge begins with the first hello
                await reader.close()
                reader = Reader(server.target, "m", delivery=delivery)  # type: ignore[arg-type]
        found = await until_stable(reader, INFINITY)
        await reader.close()
        await writing
        again = await read_all(server.target, "m", INFINITY, delivery=delivery)
        assert elements(found) == elements(again)
        assert [e[0] for e in events(found)] == list(range(10 * epochs))

    run(test())


def test_a_position_of_another_generation_is_retired(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            await writer.commit(stable=1)
            with pytest.raises(RetiredError, match="generation"):
                await read_all(server.target, "m", 1, start=Position("another", 0))

    run(test())


def test_a_merge_that_was_begun_anew_is_noticed_by_its_reader(tmp_path: Path) -> None:
    async def test() -> None:
        old = ServerProcess(tmp_path / "old")
        new = ServerProcess(tmp_path / "new", old.port)
        with old:
            async with writer_to(old) as writer:
                await writer.commit(stable=1)
            reader = Reader(old.target, "m")
            await until_stable(reader, 1)
        with new:
            async with writer_to(new) as writer:
                await writer.commit(stable=2)
            with pytest.raises(RetiredError, match="begun anew"):
                await anext(reader)
        await reader.close()

    run(test())


def test_a_kept_subscription_goes_on_where_it_was_acknowledged(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            for start in (1, 2, 3):
                await writer.write(inserts(start))
                await writer.commit(stable=start)
            async with Reader(server.target, "m", subscription="s") as reader:
                await until_stable(reader, 1)
                await reader.acknowledge()
                await until_stable(reader, 2)  # seen, and not acknowledged
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                # The server begins at 1 again; the reader has seen 2.
                assert elements(await until_stable(reader, 3)) == [
                    Insert({"k": 3}, 3, 1003), Stable(3),
                ]  # fmt: skip
            found = await read_all(server.target, "m", 3, subscription="s", start="now")
            assert events_starts(elements(found)) == [2, 3]

    run(test())


def events_starts(found: list[object]) -> list[int]:
    return [element.vs for element in found if isinstance(element, Insert)]


def test_an_acknowledgement_needs_a_name(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            await writer.commit(stable=1)
            async with Reader(server.target, "m") as reader:
                await anext(reader)
                with pytest.raises(ConfigurationError, match="named subscription"):
                    await reader.acknowledge()

    run(test())


def test_a_newer_incarnation_fences_the_older(server: ServerProcess) -> None:
    async def test() -> None:
        old = writer_to(server, lineage="l")
        await old.commit(stable=1)
        async with writer_to(server, lineage="l") as new:
            assert new.incarnation > old.incarnation
            assert new.next_epoch == 1
            with pytest.raises(FencedError):
                await old.commit(stable=2)
            assert (await new.commit(stable=3)).epoch == 1
        await old.close(drain=False)

    run(test())


def test_a_detached_stream_cannot_be_resumed(server: ServerProcess) -> None:
    async def test() -> None:
        writer = writer_to(server, lineage="l")
        await writer.commit(stable=1)
        await writer.detach("done")
        assert writer.state == "detached"
        with pytest.raises(DetachedError, match="detached"):
            await writer_to(server, lineage="l").attach()

    run(test())


def test_parts_of_tasks_count_when_the_commit_names_them(server: ServerProcess) -> None:
    async def test() -> None:
        async with writer_to(server) as writer:
            await writer.write(inserts(1))
            for partition, start in enumerate((10, 20)):
                for attempt in (0, 1):
                    share = Share("m", "a", writer.incarnation, 0, partition, attempt)
                    batches = [inserts(start, start + 1)]
                    if partition:
                        staged = await stage(server.target, share, SCHEMA, batches)
                    else:
                        staged = await asyncio.to_thread(
                            stage_sync, server.target, share, SCHEMA, batches
                        )
                    assert staged.rows == 2
            await writer.commit(stable=30, parts=[(0, 1), (1, 0)], part_rows=4)
            found = await read_all(server.target, "m", 30)
            assert sorted(events_starts(elements(found))) == [1, 10, 11, 20, 21]

    run(test())


def test_staging_fails_with_the_servers_reason(server: ServerProcess) -> None:
    async def test() -> None:
        writer = writer_to(server)
        await writer.attach()
        try:
            share = Share("m", "a", writer.incarnation + 1, 0, 0, 0)
            with pytest.raises(FencedError):
                await stage(server.target, share, SCHEMA, [inserts(1)])
            with pytest.raises(FencedError):
                stage_sync(server.target, share, SCHEMA, [inserts(1)])
            share = Share("m", "a", writer.incarnation, 0, 0, 0)
            for bad in ([inserts(1).drop_columns(["k"])], [inserts(1), inserts(1).select(["op"])]):
                with pytest.raises(SchemaMismatchError):
                    await stage(server.target, share, SCHEMA, bad)
                with pytest.raises(SchemaMismatchError):
                    stage_sync(server.target, share, SCHEMA, bad)
            with pytest.raises(EpochOrderError, match="not staged"):
                await writer.commit(parts=[(7, 0)])
        finally:
            await writer.close(drain=False)

    run(test())


def test_the_blocking_clients_do_the_same(server: ServerProcess) -> None:
    with SyncWriter(server.target, "m", "a", SCHEMA, properties=KEYED) as writer:
        writer.write(inserts(1))
        first = writer.commit_soon(stable=1)
        writer.write(inserts(2))
        assert writer.commit(stable=INFINITY).epoch == 1
        assert first.result(timeout=30).epoch == 0
        with SyncReader(server.target, "m", subscription="s") as reader:
            found = []
            for item in reader:
                found.append(item)
                if isinstance(item, StablePoint) and item.vc == INFINITY:
                    break
            reader.acknowledge()
            position = reader.position
        assert events(found) == expected(1, 2)
        with SyncReader(server.target, "m", start=position) as reader:
            assert reader.schema is not None
        assert list(reader) == []
    with pytest.raises(ConfigurationError):
        writer.commit()


def test_a_server_that_is_not_there_is_reported_in_time(tmp_path: Path) -> None:
    async def test() -> None:
        gone = ServerProcess(tmp_path)  # never started
        with pytest.raises(UnavailableError):
            await Reader(gone.target, "m", retry=Retry(patience_s=0.2)).open()

    run(test())


# -- several servers ---------------------------------------------------------------------------


def test_losing_one_of_two_servers_is_not_noticed(tmp_path: Path) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:
            async with writer_to(x, lineage="l") as to_x, writer_to(y, lineage="l") as to_y:
                await _both(to_x, to_y, 1)
                async with MergedReader([x.target, y.target], "m") as reader:
                    found = await until_stable(reader, 1)
                    await _both(to_x, to_y, 2)
                    found += await until_stable(reader, 2)
                    x.kill()
                    await _both(None, to_y, 3)
                    found += await until_stable(reader, 3)
                    await asyncio.to_thread(x.start)
                    # x goes on behind the others: it takes up what it missed.
                    await _both(to_x, None, 3)
                    await _both(to_x, None, 4)
                    found += await until_stable(reader, 4)
                    y.kill()
                    await _both(to_x, None, 5)
                    found += await until_stable(reader, 5)
                    assert events(found) == expected(1, 2, 3, 4, 5)

    run(test())


def test_a_server_that_lost_its_data_joins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        x, y = ServerProcess(tmp_path / "x"), ServerProcess(tmp_path / "y")
        notices: list[str] = []
        with x, y:
            first = writer_to(x)
            async with writer_to(y) as to_y:
                await _both(first, to_y, 1)
                async with MergedReader(
                    [x.target, y.target], "m", on_notice=notices.append
                ) as reader:
                    found = await until_stable(reader, 1)
                    while set(reader.states.values()) != {"joined"}:
                        await _both(first, to_y, reader_next(found))
                        found += await until_stable(reader, reader_next(found))
                    await first.close()
                    x.kill()
                    with ServerProcess(tmp_path / "empty", x.port) as anew:
                        async with writer_to(anew, from_time=1) as second:
                            seen = reader_next(found) - 1
                            await second.write(inserts(*range(1, seen + 1)))
                            await second.commit(stable=seen)
                            while (
                                not any("joins anew" in notice for notice in notices)
                                or reader.states[x.target] != "joined"
                            ):
                                await _both(second, to_y, reader_next(found))
                                found += await until_stable(reader, reader_next(found))
                            top = reader_next(found)
                            y.kill()
                            await _both(second, None, top)
                            found += await until_stable(reader, top)
                assert events(found) == expected(*range(1, top + 1))

    run(test())


def reader_next(found: list[Item]) -> int:
    return 1 + max(item.vc for item in found if isinstance(item, StablePoint))


async def _both(x: Writer | None, y: Writer | None, number: int) -> None:
    for writer in (x, y):
        if writer is not None:
            await writer.write(inserts(number))
            await writer.commit(stable=number)


def test_two_servers_that_disagree_in_order_give_one_valid_stream(tmp_path: Path) -> None:
    async def test() -> None:
        with ServerProcess(tmp_path / "x") as x, ServerProcess(tmp_path / "y") as y:

            async def write(server: ServerProcess, seed: int) -> None:
                order = random.Random(seed)
                async with writer_to(server) as writer:
                    for base in range(0, 400, 40):
                        starts = list(range(base, base + 40))
                        order.shuffle(starts)
                        await writer.write(inserts(*starts))
                        await writer.commit(stable=base + 40)
                    await writer.commit(stable=INFINITY)

            await asyncio.gather(write(x, 5), write(y, 6))
            for delivery in ("eager", "consistent", "final"):
                async with MergedReader(
                    [x.target, y.target],
                    "m",
                    delivery=delivery,
                ) as reader:
                    found = await until_stable(reader, INFINITY)
                assert events(found) == expected(*range(400))
                assert any(isinstance(item, Elements) for item in found)
                if delivery == "final":
                    assert not any(isinstance(e, Adjust) for e in elements(found))

    run(test())
