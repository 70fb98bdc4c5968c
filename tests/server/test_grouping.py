"""Epochs that have gathered before the log become one step: only their number tells."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lmerge.core.batch import batch_of, element_schema, elements_of, payload_schema
from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.server.config import Limits
from lmerge.server.grouping import GATHERED_BYTES, Waiting, gathered
from lmerge.server.host import MergeHost
from lmerge.server.state import MergeState, Step, begin, complete_options
from lmerge.tdb import Tdb
from lmerge.v1 import common_pb2, consumer_pb2, log_pb2
from lmerge.wire.rows import batch_bytes
from lmerge.workload import Workload, generate

PAYLOAD = pa.schema([("s", pa.string()), ("x", pa.int64())])
COLUMNS = element_schema(payload_schema(PAYLOAD))


def opening(restriction: str = "R3") -> log_pb2.Begin:
    return begin(complete_options(common_pb2.MergeOptions(restriction=restriction), None), PAYLOAD)


def attached(stream: str) -> log_pb2.Arrival:
    return log_pb2.Arrival(attached=log_pb2.StreamAttached(stream=stream, lineage=stream))


def waiting(arrival: log_pb2.Arrival, batches: list[pa.RecordBatch] | None = None) -> Waiting:
    data = [bytes(batch_bytes(batch)) for batch in batches or []]
    return Waiting(arrival, batches, data, [], size=sum(map(len, data)))


def epoch(
    stream: str, number: int, elements: Sequence[Element] = (), stable: int | None = None
) -> Waiting:
    rows = batch_of(elements, PAYLOAD) if elements else None
    return epoch_of(stream, number, [] if rows is None else [rows.select(COLUMNS.names)], stable)


def epoch_of(
    stream: str, number: int, batches: list[pa.RecordBatch], stable: int | None
) -> Waiting:
    said = log_pb2.EpochCommitted(stream=stream, epoch=number, stable=stable)
    if number:
        said.follows = number - 1
    return waiting(log_pb2.Arrival(epoch=said), batches)


def insert(key: int, vs: int, ve: int) -> Insert:
    return Insert({"s": "a", "x": key}, vs, ve)


def applied(state: MergeState, group: list[Waiting]) -> list[Step]:
    return [state.apply(each.arrival, each.batches) for each in group]


def elements(steps: list[Step]) -> list[Element]:
    found: list[Element] = []
    for step in steps:
        for entry in step.entries:
            said = consumer_pb2.SubscribeResponse.FromString(entry).entry
            if said.WhichOneof("part") == "stable":
                found.append(Stable(said.stable))
            else:
                found += elements_of(pa.ipc.read_record_batch(said.batch, COLUMNS))
    return found


def events(found: list[Element]) -> list[Any]:
    """The TDB of some elements, comparably."""
    tdb = Tdb()
    for element in found:
        if isinstance(element, Insert | Adjust):
            element = element._replace(payload=tuple(element.payload.values()))
        tdb.apply(element)
    return sorted(tdb.events())


def epochs(seed: int, restriction: str) -> list[list[Waiting]]:
    """Those of three streams: small ones, some of them empty, most of them without a stable."""
    rng = random.Random(seed)
    found: list[list[Waiting]] = []
    usual = Workload(elements=400, live=40, payload_size=8, restriction=restriction, seed=seed)
    for place, stream in enumerate(generate(usual)):
        mine: list[Waiting] = []
        start = 0
        while start < stream.batch.num_rows:
            every = list(elements_of(stream.batch.slice(start, rng.choice((1, 3, 20)))))
            start += len(every)
            rows = [element for element in every if not isinstance(element, Stable)]
            stables = [element.vc for element in every if isinstance(element, Stable)]
            mine.append(epoch(f"s{place}", len(mine), rows, max(stables, default=None)))
        found.append(mine)
    return found


def alternating(seed: int, parts: list[list[Waiting]]) -> list[Waiting]:
    """One order in which they may come, each stream's own kept."""
    rng, left = random.Random(seed), [list(reversed(part)) for part in parts]
    order = [place for place, part in enumerate(parts) for _ in part]
    rng.shuffle(order)
    return [left[place].pop() for place in order]


@pytest.mark.parametrize("restriction", ["R0", "R1", "R2", "R3", "R4"])
def test_a_group_gives_the_events_of_its_epochs_in_fewer_steps(restriction: str) -> None:
    for seed in range(3):
        arriving = alternating(seed, epochs(seed, restriction))
        alone, grouped = (MergeState(opening(restriction)) for _ in range(2))
        for state in (alone, grouped):
            for place in range(3):
                state.apply(attached(f"s{place}"))
        one_by_one = elements(applied(alone, arriving))  # before they are put together
        rng, steps, together = random.Random(seed), 0, []
        while arriving:
            count = rng.choice((1, 2, 7, 30))
            group, arriving = gathered(arriving[:count]), arriving[count:]
            steps += len(group)
            together += elements(applied(grouped, group))
        assert events(together) == events(one_by_one), seed
        assert grouped.arrivals == 4 + steps < alone.arrivals
        assert grouped.merge.streams() == alone.merge.streams()
        assert {n: r.last_epoch for n, r in grouped.streams.items()} == {
            n: r.last_epoch for n, r in alone.streams.items()
        }


def test_what_is_logged_of_a_group_replays_to_the_same_entries() -> None:
    first = opening()
    live, replayed = MergeState(first), MergeState(first)
    for place in range(3):
        for state in (live, replayed):
            state.apply(attached(f"s{place}"))
    group = gathered(alternating(5, epochs(5, "R3")))
    records = [b"".join(each.record()) for each in group]
    again = [replayed.apply(log_pb2.Arrival.FromString(record)) for record in records]
    assert [step.entries for step in applied(live, group)] == [step.entries for step in again]
    assert len(group) < 30
    assert live.snapshot() == replayed.snapshot()


def test_what_comes_behind_an_inner_stable_must_keep_its_promise() -> None:
    state = MergeState(opening())
    state.apply(attached("a"))
    arriving = [
        epoch("a", 0, [insert(1, 5, 9)], stable=20),
        epoch("a", 1, [insert(2, 7, 30), insert(3, 25, 30)]),
    ]
    (group,) = gathered(arriving)
    (step,) = applied(state, [group])
    assert "insert" in step.notices[0].text
    assert "7" in step.notices[0].text
    assert state.merge.streams()["a"].value == "quarantined"
    assert elements([step]) == [insert(1, 5, 9), Stable(20)]


def test_an_epoch_that_could_be_refused_stays_alone() -> None:
    def count(*group: Waiting) -> int:
        return len(gathered(list(group)))

    assert count(epoch("a", 0), epoch("a", 1)) == 1
    assert count(epoch("a", 0), epoch("a", 2)) == 2, "it follows another"
    assert count(epoch("a", 0, stable=9), epoch("a", 1, stable=8)) == 2, "its stable goes back"
    skipped = epoch("a", 1)
    skipped.arrival.epoch.skipped_before = 3
    assert count(epoch("a", 0), skipped) == 2
    large = [epoch("a", number) for number in range(2)]
    large[1].size = GATHERED_BYTES + 1
    assert count(*large) == 2
    nulls = pa.RecordBatch.from_pylist(
        [{"op": int(Op.INSERT), "vs": None, "ve": 3, "vold": 0}],
        schema=pa.schema([pa.field(f.name, f.type) for f in COLUMNS]),
    )
    assert count(epoch("a", 0), epoch_of("a", 1, [nulls], None)) == 2


def test_nobody_changes_places_with_what_is_no_epoch() -> None:
    detached = waiting(log_pb2.Arrival(detached=log_pb2.StreamDetached(stream="b")))
    group = gathered(
        [epoch("a", 0), epoch("b", 0), epoch("a", 1), detached, epoch("a", 2), epoch("a", 3)]
    )
    found = [each.arrival.WhichOneof("arrival") for each in group]
    assert found == ["epoch", "epoch", "detached", "epoch"]
    assert [each.arrival.epoch.epoch for each in group] == [1, 0, 0, 3]


@pytest.mark.parametrize("durability", ["none", "fsync"])
def test_commits_that_gather_are_all_answered_and_survive(tmp_path: Path, durability: Any) -> None:
    async def run() -> None:
        directory = None if durability == "none" else tmp_path / "m"
        host = MergeHost.begin("m", opening(), directory, durability, Limits())
        host.start()
        await host.submit(attached("a"))
        committed = []
        for number in range(100):
            each = epoch("a", number, [insert(number, number, number + 50)], stable=number + 1)
            committed.append(host.enqueue(each.arrival, each.batches, each.data))
        await asyncio.wait_for(asyncio.gather(*committed), 30)
        state = host.state
        assert state.streams["a"].last_epoch == 99
        assert state.stable_point == 100
        assert state.arrivals < 50, "most of them are parts of others' steps"
        await host.close(snapshot=False)
        if directory is not None:
            again = MergeHost.open("m", directory, durability, Limits())
            assert again.state.snapshot() == state.snapshot()
            again.abandon()

    asyncio.run(run())
