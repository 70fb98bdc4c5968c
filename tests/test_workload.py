"""Workloads: valid streams of one TDB, with the shares that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmerge.elements import Op
from lmerge.errors import ConfigurationError
from lmerge.files import elements
from lmerge.tdb import Tdb, equivalent
from lmerge.times import INFINITY
from lmerge.workload import Stream, Workload, arrivals, generate

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"max_gap": 1, "payload_size": 0},
    {"duration": 3, "infinite": 0.2, "spurious": 0.5, "revisions": 0.7},
    {"stable_freq": 1.0, "disorder": 0.9},
    {"stable_freq": 0.0, "disorder": 0.0},
    {"elements": 2},
    {"revisions": 0.0},
]


def small(**changes: Any) -> Workload:
    return Workload(**{"elements": 2000, "live": 100, "payload_size": 4, **changes})


def column(stream: Stream, name: str) -> Any:
    return stream.batch.column(name).to_numpy(zero_copy_only=False)


@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_streams_keep_their_contract_and_reconstitute_to_the_same_tdb(
    restriction: str, variant: dict[str, Any], seed: int
) -> None:
    w = small(**variant, restriction=restriction, seed=seed)
    streams = generate(w)
    assert [stream.name for stream in streams] == ["a", "b", "c"]
    tdbs = [
        Tdb(restriction != "R4", stream.name).apply_all(elements(stream.batch))
        for stream in streams
    ]
    for stream, tdb in zip(streams, tdbs, strict=True):
        assert equivalent(tdbs[0], tdb) is None
        assert tdb.stable_point == INFINITY
        assert len(tdb) > 0
        assert stream.batch.num_rows == len(stream.clock) == w.elements
        between = np.split(column(stream, "op"), np.flatnonzero(column(stream, "op") == Op.STABLE))
        assert all((ops == Op.INSERT).any() for ops in between[:-1])


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_the_same_workload_gives_the_same_streams_and_another_seed_others(
    restriction: str,
) -> None:
    one, two = (generate(small(restriction=restriction)) for _ in range(2))
    other = generate(small(restriction=restriction, seed=1))
    for a, b, c in zip(one, two, other, strict=True):
        assert a.batch.equals(b.batch)
        assert not a.batch.equals(c.batch)
    assert not one[0].batch.equals(one[1].batch)


def test_more_streams_leave_the_first_ones_as_they_are() -> None:
    assert generate(small(streams=1))[0].batch.equals(generate(small(streams=30))[0].batch)
    assert generate(small(streams=30))[27].name == "ab"


def test_the_shares_are_those_asked_for() -> None:
    for stream in generate(Workload(elements=40_000, live=2000, payload_size=8)):
        ops = column(stream, "op")
        data = ops[ops != Op.STABLE]
        assert np.mean(ops == Op.STABLE) == pytest.approx(0.01, abs=1e-3)
        assert np.mean(data == Op.ADJUST) == pytest.approx(0.36, abs=1e-3)
        vs, ve = column(stream, "vs"), column(stream, "ve")
        starts = vs[ops == Op.INSERT]
        late = starts < np.maximum.accumulate(starts)
        assert np.mean(late) == pytest.approx(0.2, abs=0.02)
        removed = (ops == Op.ADJUST) & (ve == vs)
        assert removed.sum() / (ops == Op.ADJUST).sum() == pytest.approx(0.05, abs=1e-3)
        # The stable point follows the present, at a small part of a lifetime's distance.
        inside = (ops == Op.STABLE) & (vs != INFINITY)
        assert np.mean(stream.clock[inside] - vs[inside]) < 0.1 * 2000 * 10


def test_about_as_many_events_live_at_once_as_asked_for() -> None:
    w = Workload(elements=40_000, live=2000, payload_size=8, streams=1)
    events = Tdb().apply_all(elements(generate(w)[0].batch)).events()
    middle = events[len(events) // 2].vs
    alive = sum(event.vs <= middle < event.ve for event in events)
    assert alive == pytest.approx(2000, rel=0.1)


def test_infinite_ends_and_duplicates_appear_as_often_as_asked_for() -> None:
    w = small(elements=20_000, infinite=0.25, restriction="R4", duplicates=0.3)
    events = Tdb().apply_all(elements(generate(w)[0].batch)).events()
    assert np.mean([event.ve == INFINITY for event in events]) == pytest.approx(0.25, abs=0.03)
    distinct = {(event.vs, event.payload) for event in events}
    assert 1 - len(distinct) / len(events) == pytest.approx(0.3, abs=0.02)


def test_each_restriction_has_the_order_it_promises() -> None:
    def starts(restriction: str) -> list[Any]:
        streams = generate(small(restriction=restriction, max_gap=2))
        return [s.batch.filter(column(s, "op") == Op.INSERT) for s in streams]

    r0, r1, r2 = (starts(name) for name in ("R0", "R1", "R2"))
    assert (np.diff(r0[0]["vs"].to_numpy()) > 0).all()
    for streams in (r1, r2):
        gaps = np.diff(streams[0]["vs"].to_numpy())
        assert (gaps >= 0).all()
        assert (gaps == 0).any()
    assert r1[0].equals(r1[1])
    assert r2[0]["vs"].equals(r2[1]["vs"])
    assert not r2[0]["s"].equals(r2[1]["s"])


def test_payloads_are_those_of_the_paper() -> None:
    (stream,) = generate(Workload(elements=3000, streams=1))
    data = stream.batch.filter(column(stream, "op") != Op.STABLE)
    x = data["x"].to_numpy()
    assert (x.min(), x.max()) == (0, 400)
    assert {len(text) for text in data["s"].to_pylist()} == {1000}
    stables = stream.batch.filter(column(stream, "op") == Op.STABLE)
    assert stables["x"].null_count == stables["s"].null_count == stables.num_rows


@pytest.mark.parametrize("batch_rows", [1, 7, 5000])
def test_arrivals_are_all_rows_of_each_stream_in_order(batch_rows: int) -> None:
    streams = generate(small())
    seen: dict[str, list[Any]] = {}
    for name, batch in arrivals(streams, batch_rows):
        assert 1 <= batch.num_rows <= batch_rows
        seen.setdefault(name, []).extend(batch.to_pylist())
    assert seen == {stream.name: stream.batch.to_pylist() for stream in streams}


def test_streams_arrive_together_or_behind_by_their_lag() -> None:
    def lateness(lag: int) -> float:
        """By how many batches on average the last stream's arrive behind the first's."""
        order = [name for name, _ in arrivals(generate(small(lag=lag)), 10)]
        first, last = ([i for i, n in enumerate(order) if n == name] for name in "ac")
        return float(np.mean(np.array(last) - np.array(first))) / 3

    assert abs(lateness(0)) < 3
    assert lateness(1000) > 10


@pytest.mark.parametrize(
    "changes",
    [{"restriction": "R5"}, {"elements": 1}, {"max_gap": 0}, {"disorder": 1.5}, {"revisions": 1},
     {"duplicates": 0.1}, {"duration": 0}, {"lag": -1}, {"elements": 10**7}],
)  # fmt: skip
def test_what_cannot_be_generated_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Workload(**changes)
    with pytest.raises(ConfigurationError):
        list(arrivals([], 0))
