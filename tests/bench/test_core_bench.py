"""The benchmarks' small versions run, and show what cannot be noise. Times are never asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from bench import core, memory, policies, speed
from bench.arrivals import prepare, read, slices, tuples, write
from bench.cleanse import CleansedR1
from bench.document import replaced
from bench.lmr3_minus import LMR3Minus
from bench.measure import Figure, Result
from bench.scale import FULL, SMALL, Scale
from bench.speed import Applies, merge_of
from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.tdb import Tdb, equivalent
from lmerge.times import INFINITY
from lmerge.workload import SCHEMA, Stream, Workload, generate
from tests.oracle.literal import make_literal

WORKLOAD = Workload(elements=1_500, live=100, payload_size=24, seed=7)


def elements(batch: pa.RecordBatch) -> list[Element]:
    found: list[Element] = []
    for row in batch.to_pylist():
        payload, vs, ve = (row["x"], row["s"]), row["vs"], row["ve"]
        if row["op"] == Op.INSERT:
            found.append(Insert(payload, vs, ve))
        else:
            found.append(Adjust(payload, vs, row["vold"], ve))
    return found


def tdb_of(merge: Applies, streams: list[Stream], rows: int) -> Tdb:
    """What a merge's output reconstitutes to; the output must keep its contract."""
    tdb = Tdb(keyed=True)
    for stream in streams:
        merge.attach(stream.name)
    for name, batch, stable, _ in slices(streams, rows):
        for part in merge.apply(name, batch, stable).parts:
            tdb.apply_all([part] if isinstance(part, Stable) else elements(part))
    return tdb


@pytest.mark.parametrize("rows", [5, 60, 1_000])
@pytest.mark.parametrize("lag", [0, 400])
@pytest.mark.parametrize("variant", ["LMR3-", "C+LMR1"])
def test_alternatives_give_the_tdb_that_r3_gives(variant: str, lag: int, rows: int) -> None:
    # An event without an end is never fully frozen: Cleanse would hold it for ever.
    infinite = 0.05 if variant == "LMR3-" else 0.0
    streams = generate(replace(WORKLOAD, lag=lag, infinite=infinite))
    make = memory.VARIANTS[variant]
    expected = tdb_of(merge_of("R3"), streams, rows)
    found = tdb_of(make(), streams, rows)
    assert len(expected) > 500
    assert equivalent(found, expected) is None
    assert found.stable_point == expected.stable_point == INFINITY


def test_the_indexes_of_lmr3_minus_are_sound_and_end_empty() -> None:
    streams = generate(WORKLOAD)
    merge = LMR3Minus(SCHEMA)
    for stream in streams:
        merge.attach(stream.name)
    for i, (name, batch, stable, _) in enumerate(slices(streams, 300)):
        merge.apply(name, batch, stable)
        if i % 5 == 0:
            merge.check()
    merge.check()
    assert sum(index.table.live for index in merge._inputs.values()) == 0
    assert merge._output.table.live == 0


def test_what_cleanse_releases_is_in_order_and_never_revised() -> None:
    streams = generate(WORKLOAD)
    merge = CleansedR1(SCHEMA)
    for stream in streams:
        merge.attach(stream.name)
    starts: list[int] = []
    for name, batch, stable, _ in slices(streams, 100):
        for part in merge.apply(name, batch, stable).batches():
            assert set(part.column("op").to_pylist()) == {Op.INSERT}
            starts += part.column("vs").to_pylist()
    assert starts == sorted(starts)


def test_columnar_and_literal_are_given_the_same_arrivals() -> None:
    streams = generate(WORKLOAD)
    arriving = prepare(streams, 50, 600, 400, 200)
    by_element = tuples(streams, 50, 600, 400, 200)
    assert sum(part.elements for part in (*arriving.head, *arriving.tail)) == len(by_element)
    merge, literal = merge_of("R3"), make_literal("R3")
    for name in arriving.names:
        merge.attach(name)
    for name, batch, stable, _ in (*arriving.head, *arriving.tail):
        merge.apply(name, batch, stable)
    for name, element in by_element:
        literal.arrive(name, element)
    assert merge.decided == literal.max_stable


def test_slices_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    written = slices(generate(WORKLOAD), 100)
    found = list(read(write(tmp_path, written)))
    assert [(p.name, p.stable) for p in found] == [(p.name, p.stable) for p in written]
    assert all(a.batch.equals(b.batch) for a, b in zip(found, written, strict=True))


def test_a_figure_knows_whether_it_reaches_what_it_must() -> None:
    assert Figure("speed", 3, at_least=3).met
    assert not Figure("bytes", 3, at_most=2).met
    assert Figure("free", 3).met is None
    assert Figure("bytes", 3, "B", at_most=2).bound == "<= 2 B"


@pytest.mark.parametrize("run", [speed.r3_literal, speed.r4_literal, speed.ordered])
def test_speed_experiments_run(run: Callable[[Scale], Result]) -> None:
    assert all(figure.value > 0 for figure in run(SMALL).figures)


def test_a_merge_that_ignores_a_stream_is_not_measured() -> None:
    merge = merge_of("R3")
    merge.attach("a")
    speed.demand_joined(merge)
    merge.quarantine("a", "a test")
    with pytest.raises(RuntimeError, match="not all streams"):
        speed.demand_joined(merge)


def test_many_live_events_are_live_when_their_throughput_is_measured() -> None:
    result = speed.many_live(SMALL)
    assert result.details["many"]["live"] > 3 * result.details["few"]["live"]


def test_a_stable_is_measured_with_standing_events() -> None:
    standing = speed._Standing(SMALL.many_live, SMALL.stable_changes)
    for _ in range(5):
        standing.step()
    live = standing._merge.statistics().live
    assert SMALL.many_live <= live <= SMALL.many_live + 3 * SMALL.stable_changes
    assert speed.stables(SMALL).figures[0].value > 0


def test_the_memory_of_r3_is_nearly_flat_in_its_inputs() -> None:
    result = memory.inputs_flat(SMALL)
    assert result.figure("R3 memory, 10 inputs against 2, index and payloads").met


def test_the_memory_for_each_event_is_taken_where_many_are_live() -> None:
    result = memory.each_event(SMALL)
    assert result.details["last"]["live"] >= 0.95 * SMALL.many_live
    assert result.details["held_peak"] >= result.details["last"]["held"]
    assert result.figures[0].value > 8 * 9  # a node has three streams' columns and six more


def test_alternatives_to_r3_grow_with_their_inputs() -> None:
    result = memory.by_inputs(SMALL)
    flat, minus, cleansed = (
        result.figure(f"{label} memory, 10 inputs against 2").value
        for label in ("R3", "LMR3-", "C+LMR1")
    )
    assert flat < 1.3
    assert minus > 2 * flat
    assert cleansed > 2 * flat


def test_the_command_shows_a_table_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "core.json"
    assert core.main(["--quick", "--only", "stables", "--json", str(path)]) == 0
    assert "must reach" in capsys.readouterr().out
    found = json.loads(path.read_text("utf-8"))
    assert found["machine"]["packages"]["numba"]
    assert found["experiments"]["stables"]["figures"][0]["at_most"] == 2


def test_every_experiment_has_a_title_and_a_name_of_its_own() -> None:
    assert len({experiment.name for experiment in core.EXPERIMENTS}) == len(core.EXPERIMENTS)
    assert all(experiment.title for experiment in core.EXPERIMENTS)
    assert FULL.head * 3 > 3 * FULL.live  # past the longest lifetime


@pytest.fixture(scope="module")
def rows() -> list[policies.Row]:
    return policies.measure_all(policies.SMALL)


class TestPolicies:
    def test_all_end_with_the_same_events(self, rows: list[policies.Row]) -> None:
        assert len(rows) == len(list(policies.policies())) == 24
        assert len({row.events for row in rows}) == 1
        assert all(row.inserts - row.removals == row.events for row in rows)

    def test_half_frozen_never_removes_and_final_never_adjusts(
        self, rows: list[policies.Row]
    ) -> None:
        assert all(row.removals == 0 for row in rows if row.insert == "half_frozen")
        assert all(row.adjusts == 0 for row in rows if row.insert == "final")
        assert any(row.removals > 0 for row in rows if row.insert == "first")

    def test_eager_adjusts_at_least_as_often_as_lazy(self, rows: list[policies.Row]) -> None:
        for lazy, eager in zip(rows[::2], rows[1::2], strict=True):
            assert (lazy.insert, lazy.stable_lag) == (eager.insert, eager.stable_lag)
            assert (lazy.adjust, eager.adjust) == ("lazy", "eager")
            assert eager.adjusts >= lazy.adjusts
            assert eager.delay_mean == lazy.delay_mean

    def test_nothing_is_fresher_than_first(self, rows: list[policies.Row]) -> None:
        assert all(row.delay_mean == 0 for row in rows if row.insert == "first")
        by_name = {r.insert: r for r in rows if r.adjust == "lazy" and r.stable_lag == 0}
        order = ["first", "quorum(0.5)", "quorum(1)", "half_frozen", "final"]
        delays = [by_name[name].delay_mean for name in order]
        assert delays == sorted(delays)

    def test_the_table_goes_between_the_markers(self, rows: list[policies.Row]) -> None:
        text = policies.table(rows, policies.SMALL)
        begin, end = "<!-- x:begin -->", "<!-- x:end -->"
        after = replaced(f"a\n{begin}\nold\n{end}\nb\n", "x", text)
        assert after == f"a\n{begin}\n{text}\n{end}\nb\n"
        assert replaced(after, "x", text) == after
        assert replaced(policies.DOCUMENT.read_text("utf-8"), "policies", text)
