"""The paper's figures in small: each shows the direction that the paper reports.

Counts, bytes and virtual time are asserted; how long anything took never is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.figures import experiments, masking
from bench.figures.delivery import Link, deliver, truncated_normal
from bench.figures.disorder import EAGER, LAZY, WITHOUT
from bench.figures.measuring import LMR3, hash_of
from bench.figures.ordered import SIMPLE
from bench.figures.outcome import (
    Finding,
    Outcome,
    Panel,
    Point,
    Series,
    demand_equal,
    panels_of,
    verdict,
)
from bench.figures.sizes import FULL, QUICK, SEED, SMALL
from bench.figures.subquery import until_next
from bench.figures.switching import of_results
from bench.report import compare, document, files, plots
from bench.report.paper import REPORTS
from bench.speed import merge_of
from lmerge.cli.main import main
from lmerge.elements import Op
from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY
from lmerge.workload import Workload, generate
from tests.bench.test_core_bench import tdb_of


@lru_cache
def small(number: str) -> Outcome:
    [experiment] = [each for each in experiments.EXPERIMENTS if each.number == number]
    shares: list[float] = []
    outcome = experiment.run(SMALL, SEED, shares.append)
    assert shares == sorted(shares), "progress goes back"
    assert shares[-1] <= 1
    return outcome


def demand_findings(outcome: Outcome) -> None:
    """All that the paper reports and that does not depend on time."""
    wrong = [f.text for f in outcome.findings if not f.timed and not f.holds]
    assert not wrong
    assert any(not f.timed for f in outcome.findings)


def test_2_memory_of_r3_is_flat_in_its_inputs_and_that_of_r3_minus_grows_with_them() -> None:
    outcome = small("2")
    demand_findings(outcome)
    memory = outcome.panel("memory")
    assert memory[LMR3].last < 1.3 * memory[LMR3].first
    assert memory["LMR3-"].last > 3 * memory["LMR3-"].first
    assert all(memory[simple].last < 0.01 * memory[LMR3].last for simple in SIMPLE)
    assert len(set(outcome.tdb.values())) == 1


def test_3_every_variant_gives_the_same_events_at_every_number_of_inputs() -> None:
    outcome = small("3")
    assert len(set(outcome.tdb.values())) == 1
    assert len(outcome.tdb) == 6 * len(SMALL.inputs)
    speed = outcome.panel("throughput")
    assert all(p.low <= p.median <= p.high for each in speed.series for p in each.points)
    assert all(each.last > 0 for each in speed.series)


def test_4_disorder_makes_adjusts_and_the_merge_outputs_fewer_of_them() -> None:
    outcome = small("4")
    demand_findings(outcome)
    size = outcome.panel("output size")
    assert size[WITHOUT].first == size[LAZY].first == 0
    for late in (20, 50):
        assert size[LAZY].at(late) < size[WITHOUT].at(late) < size[EAGER].at(late)


def test_5_what_laggards_bring_is_dropped_and_more_so_of_two() -> None:
    outcome = small("5")
    demand_findings(outcome)
    one, two = outcome.panel("dropped").series
    assert one.first == two.first
    assert one.first < one.last < two.last
    assert len(set(outcome.tdb.values())) == 1


def test_6_frequent_stables_free_memory() -> None:
    outcome = small("6")
    demand_findings(outcome)
    memory = outcome.panel("memory")
    assert memory[LMR3].last < memory[LMR3].first
    assert len(set(outcome.tdb.values())) == len(SMALL.stable_freqs)


def test_7_ordering_first_takes_memory_for_every_input_and_delays() -> None:
    outcome = small("7")
    demand_findings(outcome)
    memory = outcome.panel("memory")
    assert memory["C+LMR1"].last > 5 * memory[LMR3].last
    assert memory["C+LMR1"].last > 3 * memory["C+LMR1"].first
    delay = outcome.panel("delay")
    assert delay["C+LMR1"].last > 1 > 4 * delay[LMR3].last


def test_8_the_merged_output_is_steadier_than_every_bursty_input() -> None:
    outcome = small("8")
    demand_findings(outcome)
    assert outcome.numbers[0].met
    for inputs, merged in zip(*(s.points for s in outcome.panel("variation").series), strict=True):
        assert merged.median < inputs.low


def test_9_the_merged_output_shows_nothing_of_congestion() -> None:
    outcome = small("9")
    demand_findings(outcome)
    assert outcome.numbers[0].met
    rate = outcome.panel("rate")
    assert min(p.median for p in rate["input a"].points) < 0.5 * np.median(
        [p.median for p in rate["input a"].points]
    )


def test_without_its_neighbours_a_bursty_input_is_not_steady() -> None:
    """The merge of one input is as unsteady as it: the measure can tell."""
    [stream] = masking._streams(1, 4.0, 1_000, SEED)
    link = Link(1_000, 4)
    arrivals = [masking._bursty(stream, link, (SEED, 8, 0))]
    alone = deliver([stream], arrivals, 5 * link.gap, 4.0, lambda _: None)
    [varied], steady = masking._variations(alone, masking.BIN)
    assert steady > 0.8 * varied


def switching(seconds: dict[str, float]) -> dict[str, Any]:
    return {
        name: {
            "seconds": took,
            "digest": "00",
            "rows_skipped": {"udf0": 0.0 if name == "merged" else 10.0},
            "timeline_s": [[0.0, {"udf0": 0}], [took, {"udf0": 100}]],
        }
        for name, took in seconds.items()
    }


def test_10_is_a_figure_of_what_plan_switching_found() -> None:
    paper = {"UDF0": 176, "UDF1": 163, "merged": 163, "merged with feedback": 34}
    outcome = of_results(switching(dict(paper)), {}, full=True)
    assert outcome.numbers[0].value == pytest.approx(163 / 34)
    assert all(finding.holds for finding in outcome.findings)
    slow = of_results(switching({**paper, "merged with feedback": 160}), {}, full=True)
    assert not slow.findings[0].holds
    assert slow.numbers[0].met is False


class TestSubquery:
    def streams(self) -> Iterator[Any]:
        workload = Workload(elements=900, live=50, payload_size=12, revisions=0, seed=3)
        return (until_next(stream, 4) for stream in generate(workload))

    def test_its_output_keeps_its_contract_and_does_not_depend_on_disorder(self) -> None:
        hashes = []
        for stream in self.streams():
            data = stream.batch.filter(pa.array(stream.batch.column("op").to_numpy() != Op.STABLE))
            hashes.append(hash_of([data]))
            # The reference model of a stream raises when the contract is broken.
            events = tdb_of(merge_of("R3"), [stream], 50)
            assert len(events) > 500
            assert events.stable_point == INFINITY
        assert len(set(hashes)) == 1

    def test_a_late_element_cuts_the_one_before_it(self) -> None:
        [first, *_] = self.streams()
        ops = first.batch.column("op").to_pylist()
        assert 0 < sum(op == Op.ADJUST for op in ops) < 0.3 * len(ops)


class TestDelivery:
    def test_a_stream_without_delays_arrives_at_its_sources_rate(self) -> None:
        times = Link(1_000, 4).departures(np.zeros(100))
        assert np.allclose(np.diff(times), 0.001)

    def test_what_was_held_up_comes_as_a_spike_and_nothing_comes_early(self) -> None:
        extra = np.zeros(1_000)
        extra[100] = 0.05
        times = Link(1_000, 4).departures(extra)
        assert np.diff(times)[99] > 0.05
        assert np.allclose(np.diff(times)[100:150], 0.00025)
        assert (times >= np.arange(1, 1_001) / 1_000).all()
        assert np.allclose(np.diff(times)[-100:], 0.001)

    def test_a_truncated_normal_is_never_negative(self) -> None:
        values = truncated_normal(1, 2, 5_000, np.random.default_rng(0))
        assert values.min() >= 0
        assert len(values) == 5_000


def test_variants_that_disagree_are_no_result() -> None:
    assert demand_equal({"a": 1, "b": 1}) == {"a": f"{1:016x}", "b": f"{1:016x}"}
    with pytest.raises(RuntimeError, match="must agree"):
        demand_equal({"a": 1, "b": 2})


def test_the_verdict_says_what_differs() -> None:
    good, bad = Finding("x grows", True), Finding("y is flat", False)
    assert verdict([good]) == "The shape agrees with the paper's: x grows."
    assert verdict([good, bad]).startswith("The shape differs from the paper's: y is flat.")


def results(**changes: Any) -> dict[str, Any]:
    timed = Panel("speed", "n", "per s", [Series("a", [Point(1, 10, 9, 11)])], "higher")
    exact = Panel("bytes", "n", "B", [Series("a", [Point.exactly(1, 5)])], "lower", exact=True)
    outcome = Outcome({}, [timed, exact], [Finding("it is so", True)], {"a": "0"})
    figure = {"title": "A figure", "seconds": 1.0, **outcome.as_json()}
    return {
        "format": experiments.FORMAT,
        "command": "lmerge bench figures",
        "machine": {"cores": 2, "memory_gib": 1, "system": "x", "python": "3", "packages": {}},
        "commit": None,
        "seed": 0,
        "size": "small",
        "repeats": 1,
        "figures": {"2": figure},
        **changes,
    }


def with_speed(low: float, high: float) -> dict[str, Any]:
    found = results()
    [point] = found["figures"]["2"]["panels"][0]["series"][0]["points"]
    point.update(low=low, median=(low + high) / 2, high=high)
    return found


class TestCompare:
    def test_the_same_results_do_not_differ(self) -> None:
        assert all(c.changed == 0 and c.ratio == 1 for c in compare.compare(results(), results()))

    @pytest.mark.parametrize(
        ("low", "high", "changed", "better"),
        [(10.5, 13, 0, None), (11.2, 11.4, 1, True), (5, 6, 1, False), (11.01, 10.99, 0, None)],
    )
    def test_a_time_differs_beyond_its_spread_and_the_tolerance(
        self, low: float, high: float, changed: int, better: bool | None
    ) -> None:
        found = compare.compare(results(), with_speed(low, high))[0]
        assert (found.changed, found.better) == (changed, better)

    def test_a_count_differs_when_it_changed_at_all(self) -> None:
        other = results()
        other["figures"]["2"]["panels"][1]["series"][0]["points"][0]["median"] = 5.001
        found = compare.compare(results(), other)[1]
        assert (found.changed, found.better) == (1, False)

    def test_other_seeds_are_not_comparable(self) -> None:
        with pytest.raises(ConfigurationError, match="differ in seed"):
            compare.compare(results(), results(seed=1))

    def test_the_command_tells_by_its_status(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [str(tmp_path / name) for name in ("a.json", "b.json", "c.json")]
        for path, found in zip(paths, (results(), with_speed(5, 6), {}), strict=True):
            Path(path).write_text(json.dumps(found))
        assert main(["bench", "compare", paths[0], paths[0]]) == 0
        assert main(["bench", "compare", paths[0], paths[1]]) == 1
        assert "worse" in capsys.readouterr().out
        assert main(["bench", "compare", paths[0], paths[2]]) == 2
        assert "not a result" in capsys.readouterr().err


class TestReport:
    def test_it_is_one_page_with_plots_and_refers_to_nothing_else(self, tmp_path: Path) -> None:
        found = results()
        found["figures"]["9"] = {"title": "B", "seconds": 1.0, **small("9").as_json()}
        page = files.write_report(tmp_path, found).read_text("utf-8")
        for kind in ("svg", "png"):
            assert 2_000 < (tmp_path / f"figure-9.{kind}").stat().st_size < 200_000
        assert page.count("data:image/svg+xml;base64,") == 2
        assert "http" not in page
        assert "src='" not in page
        assert REPORTS["9"][:20] in page
        assert "In its worst congested second".lower() in page

    def test_the_same_results_give_the_same_plots(self) -> None:
        entry = results()["figures"]["2"]
        assert plots.draw("2", entry) == plots.draw("2", entry)

    def test_a_part_run_again_replaces_only_its_figures(self) -> None:
        old, new = results(), results()
        old["figures"]["4"] = {**old["figures"]["2"], "title": "kept"}
        new["figures"]["2"]["title"] = "new"
        both = files.merged(old, new)["figures"]
        assert (both["2"]["title"], both["4"]["title"]) == ("new", "kept")
        assert list(files.merged(results(seed=1), new)["figures"]) == ["2"]

    def test_panels_come_back_from_json_as_they_were(self) -> None:
        outcome = small("9")
        assert panels_of(json.loads(json.dumps(outcome.as_json()))) == outcome.panels


def test_the_command_measures_writes_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.figures import sizes

    monkeypatch.setattr(sizes, "QUICK", replace(SMALL, congested_seconds=24.0))
    command = ["bench", "figures", "--quick", "-o", str(tmp_path)]
    assert main([*command, "--only", "9"]) == 0
    said = capsys.readouterr()
    assert "met" in said.out
    assert "The shape agrees" in said.err
    found = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert found["machine"]["packages"]["numba"]
    assert list(found["figures"]) == ["9"]
    assert (tmp_path / "report.html").exists()
    assert main(["bench", "report", str(tmp_path / "figures.json")]) == 0
    assert main([*command, "--only", "11"]) == 2
    assert "there is no figure '11'" in capsys.readouterr().err


def test_every_figure_has_sizes_a_title_and_what_the_paper_reports() -> None:
    numbers = [each.number for each in experiments.EXPERIMENTS]
    assert numbers == list(REPORTS) == [str(n) for n in range(2, 11)]
    assert all(each.title for each in experiments.EXPERIMENTS)
    assert (SMALL.repeats, QUICK.repeats, FULL.repeats) == (1, 3, 3)


def test_the_document_has_the_figures_of_the_results() -> None:
    found = compare.load(document.RESULTS)
    text = document.DOCUMENT.read_text("utf-8")
    assert document.written(text, found, document.load_peers()) == text
    for number in found["figures"]:
        for kind in ("svg", "png"):
            assert (document.RESULTS.parent / f"figure-{number}.{kind}").stat().st_size < 200_000
