"""Nothing acknowledged is lost, and nothing seen changes: on real processes and real files."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lmerge.client import Reader, StablePoint, Writer
from lmerge.client.merged import MergedReader
from lmerge.errors import JournalDamagedError, LMergeError, MergeFaultError
from lmerge.server.config import Limits
from lmerge.server.host import MergeHost
from lmerge.times import INFINITY
from tests.crash import load, proof
from tests.oracle.tdb import reconstitute

SEED = 20120401


def prove(
    directory: Path, kills: int, strike: Callable[[proof.Proof], Callable[..., Awaitable[None]]]
) -> proof.Proof:
    async def run() -> proof.Proof:
        async with proof.server(directory) as process:
            attempt = proof.Proof(process, SEED)
            await attempt.run(kills, strike(attempt), lambda *_: None)
            return attempt

    return asyncio.run(run())


def test_ten_kills_lose_nothing_repeat_nothing_and_change_nothing(tmp_path: Path) -> None:
    done = prove(tmp_path, 10, lambda attempt: proof.kill)
    assert sum(done.epochs) > 30


def test_a_server_that_stands_still_longer_than_the_timeouts_loses_nothing(tmp_path: Path) -> None:
    prove(tmp_path, 1, lambda attempt: attempt.stand_still)


def test_a_full_disk_is_an_error_to_the_writers_and_loses_nothing(tmp_path: Path) -> None:
    async def fill_then_kill(process: proof.ServerProcess) -> None:
        await proof.fill(process)
        await proof.kill(process)

    prove(tmp_path, 2, lambda attempt: fill_then_kill)


def test_the_proof_finds_a_server_that_forgets(tmp_path: Path) -> None:
    """The proof itself can fail: here a kill costs the end of the log."""

    async def kill_and_forget(process: proof.ServerProcess) -> None:
        await process.send(signal.SIGKILL)
        arrivals = tmp_path / "data" / "merges" / proof.MERGE / "arrivals"
        for snapshot in (arrivals.parent / "snapshots").iterdir():
            snapshot.unlink()
        last = sorted(arrivals.glob("*.log"))[-1]
        with last.open("r+b") as file:
            file.truncate(max(64, last.stat().st_size - 3000))
        await process.start()

    with pytest.raises((proof.ProofError, LMergeError)):
        prove(tmp_path, 3, lambda attempt: kill_and_forget)


# -- files that were damaged ---------------------------------------------------------------------


def filled(directory: Path, epochs: int) -> Path:
    """The directory of a merge with some epochs, left as a kill -9 leaves it; and its output."""

    async def run() -> None:
        async with proof.server(directory) as process:
            writer = Writer(process.target, proof.MERGE, "w0", load.SCHEMA)
            await writer.attach()
            for epoch in range(epochs):
                await writer.write(load.batch(SEED, 0, epoch))
                await writer.commit(stable=load.stable(epoch))
            await writer.commit(stable=load.stable(epochs))  # a small record comes last
            await process.send(signal.SIGKILL)
            await writer.close(drain=False)

    directory.mkdir(exist_ok=True)
    asyncio.run(run())
    return directory / "data" / "merges" / proof.MERGE


def reopened(directory: Path) -> list[bytes]:
    """Every entry of the output of a merge that is opened, and let go of again."""
    host = MergeHost.open("proof", directory, "fsync", Limits())
    try:
        return asyncio.run(_entries(host))
    finally:
        host.abandon()


async def _entries(host: MergeHost) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < host.output.next:
        found += await host.output.read(len(found))
    return found


def last_record(log: Path) -> int:
    """Where the last record begins: found by cutting, without knowing the format."""
    from lmerge.server.journal import Journal

    journal = Journal.open(log.parent)
    try:
        return journal._offset(journal.written - 1)
    finally:
        journal.close()


def test_a_tail_torn_at_every_byte_of_its_last_record_is_cut(tmp_path: Path) -> None:
    merge = filled(tmp_path / "run", 4)
    whole = reopened(merge)
    log = sorted((merge / "arrivals").glob("*.log"))[-1]
    start, size = last_record(log), log.stat().st_size
    assert size - start > 30
    counts = set()
    for length in range(start, size):
        copy = tmp_path / "torn"
        shutil.copytree(merge / "arrivals", copy / "arrivals")
        with (copy / "arrivals" / log.name).open("r+b") as file:
            file.truncate(length)
        entries = reopened(copy)
        assert entries == whole[: len(entries)], f"torn at byte {length}: the output has changed"
        counts.add(len(entries))
        shutil.rmtree(copy)
    assert len(counts) == 1
    assert counts.pop() < len(whole)


def test_a_flipped_bit_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    merge = filled(tmp_path / "run", 4)
    log = sorted((merge / "arrivals").glob("*.log"))[-1]
    end = last_record(log)
    for place in range(40, end, max(1, end // 40)):
        copy = tmp_path / "flipped"
        shutil.copytree(merge, copy)
        damaged = copy / "arrivals" / log.name
        data = bytearray(damaged.read_bytes())
        data[place] ^= 0x10
        damaged.write_bytes(data)
        with pytest.raises(JournalDamagedError) as caught:
            reopened(copy)
        assert log.name in str(caught.value)
        assert "byte" in str(caught.value)
        shutil.rmtree(copy)


def test_a_damaged_merge_is_not_served_and_the_others_are(tmp_path: Path) -> None:
    merge = filled(tmp_path, 3)
    log = sorted((merge / "arrivals").glob("*.log"))[-1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)

    async def run() -> None:
        async with proof.server(tmp_path) as process:
            async with Writer(process.target, "other", "w", load.SCHEMA) as writer:
                await writer.write(load.batch(SEED, 0, 0))
                await writer.commit(stable=0)
            with pytest.raises(MergeFaultError, match=log.name):
                await Reader(process.target, proof.MERGE).open()

    asyncio.run(run())


# -- two servers ---------------------------------------------------------------------------------


def test_either_of_two_servers_may_be_killed_and_the_consumer_sees_nothing(tmp_path: Path) -> None:
    epochs = 60
    elements: list[tuple[Any, ...]] = []

    async def write(target: str, number: int, gate: asyncio.Event) -> None:
        stream = f"w{number}"
        async with Writer(target, proof.MERGE, stream, load.SCHEMA, lineage=stream,
                          retry=proof.RETRY) as writer:  # fmt: skip
            for epoch in range(epochs):
                if epoch == epochs // 2:
                    await gate.wait()
                await writer.write(load.batch(SEED, number, epoch))
                await writer.commit(epoch=epoch, stable=load.stable(epoch))
            await writer.write(load.closing(SEED, number, epochs))
            await writer.commit(epoch=epochs, stable=INFINITY)

    async def read(targets: list[str], halfway: asyncio.Event) -> None:
        async with MergedReader(targets, proof.MERGE, retry=proof.RETRY) as reader:
            async for item in reader:
                elements.extend(proof._elements(item))
                if isinstance(item, StablePoint):
                    if item.vc >= load.stable(epochs // 4):
                        halfway.set()
                    if item.vc == INFINITY:
                        return

    async def run() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        async with proof.server(tmp_path / "one") as one, proof.server(tmp_path / "two") as two:
            gate, halfway = asyncio.Event(), asyncio.Event()
            async with asyncio.timeout(proof.PROGRESS_SECONDS), asyncio.TaskGroup() as group:
                group.create_task(read([one.target, two.target], halfway))
                for server in (one, two):
                    for number in range(2):
                        group.create_task(write(server.target, number, gate))
                await halfway.wait()
                await proof.kill(one)
                await proof.kill(two)
                gate.set()
                await proof.kill(one)

    asyncio.run(run())
    assert reconstitute(elements, "R3") == load.truth(SEED, epochs)
