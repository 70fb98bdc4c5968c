"""The core against the literal algorithms and the independent checker, at every prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lmerge.core.merge import Merge
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from tests.drive import arrive, by_element, new_merge
from tests.oracle.checker import Checker
from tests.oracle.literal import make_literal
from tests.oracle.runs import Run, exhaustive_runs, random_run

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
FEATURES: dict[str, dict[str, bool]] = {
    "plain": {},
    "joins": {"joins": True},
    "missing": {"missing": True},
    "late_begin": {"late_begin": True},
    "joins_missing": {"joins": True, "missing": True},
    "joins_late_begin": {"joins": True, "late_begin": True},
}
POLICIES: dict[str, Policy] = {
    "leader": Policy(InsertPolicy.leader()),
    "half_frozen": Policy(InsertPolicy.half_frozen()),
    "quorum": Policy(InsertPolicy.quorum(0.5)),
    "everybody": Policy(InsertPolicy.quorum(1.0)),
    "final": Policy(InsertPolicy.final()),
    "eager": Policy(adjust=AdjustPolicy.EAGER),
    "eager_leader": Policy(InsertPolicy.leader(), AdjustPolicy.EAGER),
    "lag": Policy(stable_lag=2),
    "lag_final": Policy(InsertPolicy.final(), stable_lag=1),
    "unhashed": Policy(divergence=DivergencePolicy.OFF),
}
SEEDS = range(150)


def _no_fault(merge: Merge, run: Run) -> None:
    """A stream of a run is never at fault, unless it lacks elements."""
    for stream in merge.statistics().streams:
        assert stream.state != "quarantined", f"{run.seed}: {stream}"
        if run.consistent:
            assert stream.conflicts == 0, f"{run.seed}: {stream}"
            assert stream.divergent == 0, f"{run.seed}: {stream}"


def _drive(run: Run, policy: Policy | None = None) -> Iterator[tuple[Any, list[Any], Merge]]:
    """Each arrival with what it causes; the merge is checked inside and out."""
    merge = new_merge(run.restriction, policy)
    lag = policy.stable_lag if policy else 0
    checker = Checker.for_run(run, stable_lag=lag)
    for arrival in run.arrivals:
        out = arrive(merge, [arrival])
        checker.feed(arrival, out)
        merge.check()
        yield arrival, out, merge
    _no_fault(merge, run)
    if policy is None or policy.insert != InsertPolicy.final():
        checker.finish()


def _collapsed(elements: list[Any]) -> list[Any]:
    stables = [e for e in elements if e[0] == "stable"]
    return [e for e in elements if e[0] != "stable"] + stables[-1:]


def _same_as_literal(run: Run) -> None:
    """Output after output, R4's in number only: it may pair ends in other ways."""
    literal = make_literal(run.restriction)
    for arrival, out, merge in _drive(run):
        expected = literal.apply(arrival)
        if run.restriction == "R4":
            assert len(out) == len(expected), f"{run.seed} at {arrival}: {out} != {expected}"
            assert [e for e in out if e[0] == "stable"] == [
                e for e in expected if e[0] == "stable"
            ], run.seed
        else:
            # What waited for a stream to join comes as one batch: its last stable counts.
            assert by_element(_collapsed(out)) == by_element(_collapsed(expected)), (
                f"{run.seed} at {arrival}"
            )
        states = {name: state.name for name, state in merge.streams().items()}
        assert states == literal.states, f"{run.seed} at {arrival}"


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_random_runs_are_right_at_every_prefix(restriction: str, features: str) -> None:
    exact = features in ("plain", "joins") or (
        restriction in ("R3", "R4") and "missing" not in features
    )
    for seed in SEEDS:
        run = random_run(seed, restriction=restriction, **FEATURES[features])
        if exact and restriction != "R4":
            _same_as_literal(run)
        else:
            for _ in _drive(run):
                pass


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_every_interleaving_of_tiny_streams_equals_the_literal_algorithm(restriction: str) -> None:
    for run in exhaustive_runs(restriction):
        _same_as_literal(run)


@pytest.mark.parametrize("features", ["plain", "joins", "missing"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("restriction", ["R3", "R4"])
def test_every_policy_is_right_at_every_prefix(
    restriction: str, policy: str, features: str
) -> None:
    for seed in range(60):
        run = random_run(seed, restriction=restriction, **FEATURES[features])
        for _ in _drive(run, POLICIES[policy]):
            pass
