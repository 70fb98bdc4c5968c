"""How arrivals are cut into batches changes what is seen on the way, never what is promised."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from tests.drive import arrive, new_merge
from tests.oracle.checker import Checker
from tests.oracle.runs import Run, random_run
from tests.oracle.tdb import Reconstitution, frozen

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
ROUNDS = (1, 7, 1000, 10**9)
POLICIES: dict[str, Policy] = {
    "first": Policy(),
    "leader": Policy(InsertPolicy.leader()),
    "half_frozen": Policy(InsertPolicy.half_frozen()),
    "quorum": Policy(InsertPolicy.quorum(0.5)),
    "everybody": Policy(InsertPolicy.quorum(1.0)),
    "final": Policy(InsertPolicy.final()),
    "eager": Policy(adjust=AdjustPolicy.EAGER),
    "eager_quorum": Policy(InsertPolicy.quorum(0.5), AdjustPolicy.EAGER),
    "lag": Policy(stable_lag=3),
    "lag_final": Policy(InsertPolicy.final(), stable_lag=1),
    "unhashed": Policy(divergence=DivergencePolicy.OFF),
    "quarantine": Policy(divergence=DivergencePolicy.QUARANTINE),
    "majority": Policy(divergence=DivergencePolicy.MAJORITY),
}
ORDERED_POLICIES = ("first", "lag", "unhashed", "quarantine", "majority")


class Promises:
    """What an output has promised: its frozen events at every stable point it reached."""

    def __init__(self, run: Run, policy: Policy, round_size: int) -> None:
        self.at: dict[float, tuple[Counter[Any], Counter[Any]]] = {}
        self._output = Reconstitution(run.restriction)
        merge = new_merge(run.restriction, policy)
        checker = Checker.for_run(run, stable_lag=policy.stable_lag)
        for start in range(0, len(run.arrivals), round_size):
            arrivals = run.arrivals[start : start + round_size]
            out = arrive(merge, arrivals)
            checker.feed(arrivals, out)
            self._follow(out)
        merge.check()
        if policy.insert != InsertPolicy.final():
            checker.finish()

    def _follow(self, out: list[tuple[Any, ...]]) -> None:
        for element in out:
            self._output.apply(element)
            if element[0] == "stable":
                self.at[element[1]] = frozen(self._output.tdb(), element[1])

    @property
    def last(self) -> float:
        return self._output.stable

    @property
    def events(self) -> Counter[Any]:
        return self._output.tdb()


def _same_promises(run: Run, policy: Policy) -> None:
    alone = Promises(run, policy, ROUNDS[0])
    for round_size in ROUNDS[1:]:
        cut = Promises(run, policy, round_size)
        where = f"{run.seed}, rounds of {round_size}"
        for t in alone.at.keys() & cut.at.keys():
            assert cut.at[t] == alone.at[t], f"{where}: at {t}"
        assert cut.last == alone.last, where
        assert cut.events == alone.events, where


@pytest.mark.parametrize("policy", ORDERED_POLICIES)
@pytest.mark.parametrize("restriction", ["R0", "R1", "R2"])
def test_ordered_streams_promise_the_same_however_they_are_cut(
    restriction: str, policy: str
) -> None:
    for seed in range(6):
        run = random_run(seed, restriction=restriction, streams=3, size=12, horizon=12)
        _same_promises(run, POLICIES[policy])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("restriction", ["R3", "R4"])
def test_revising_streams_promise_the_same_however_they_are_cut(
    restriction: str, policy: str
) -> None:
    for seed in range(6):
        run = random_run(seed, restriction=restriction)
        _same_promises(run, POLICIES[policy])


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_streams_that_join_and_leave_promise_the_same_however_they_are_cut(
    restriction: str,
) -> None:
    for seed in range(10):
        run = random_run(seed, restriction=restriction, joins=True)
        _same_promises(run, POLICIES["first"])


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_a_long_run_promises_the_same_however_it_is_cut(restriction: str) -> None:
    run = random_run(1, restriction=restriction, streams=3, size=80, horizon=200)
    _same_promises(run, POLICIES["first"])
    if restriction in ("R3", "R4"):
        _same_promises(run, POLICIES["eager"])


def test_of_several_stables_in_one_batch_the_last_counts() -> None:
    merge = new_merge("R3")
    arrive(merge, [("attach", "a", None)])
    elements = [("stable", 2), ("insert", "x", 4, 6), ("stable", 3), ("stable", 5)]
    out = arrive(merge, [("element", "a", element) for element in elements])
    assert out == [("insert", "x", 4, 6), ("stable", 5)]
