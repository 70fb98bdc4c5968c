"""Streams on trial: compared with the output, and without influence on it."""

from __future__ import annotations

from typing import Any

import pytest

from lmerge.core.merge import Merge
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY
from tests.drive import arrive, by_element, from_output, new_merge, to_batch, to_int
from tests.oracle.runs import random_run
from tests.oracle.tdb import Reconstitution

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
POLICIES = {
    "first": Policy(),
    "leader": Policy(InsertPolicy.leader()),
    "everybody": Policy(InsertPolicy.quorum(1.0), AdjustPolicy.EAGER),
    "final": Policy(InsertPolicy.final(), stable_lag=1),
    "majority": Policy(divergence=DivergencePolicy.MAJORITY),
}


def told(merge: Merge, *elements: Any, stream: str) -> list[Any]:
    return from_output(merge.apply(stream, to_batch(elements)))


def insert(p: str, vs: float, ve: float) -> Any:
    return ("insert", p, vs, ve)


def stable(vc: float) -> Any:
    return ("stable", vc)


def statistics(merge: Merge, stream: str) -> Any:
    return next(s for s in merge.statistics().streams if s.name == stream)


def _liar(arrival: Any) -> Any:
    """The same stream, if all its payloads were others."""
    kind, _, *rest = arrival
    if kind == "element" and rest[0][0] != "stable":
        element, p, *times = rest[0]
        rest = [(element, f"~{p}", *times)]
    return (kind, "trial", *rest)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_the_output_is_what_it_would_be_without_the_stream(restriction: str, policy: str) -> None:
    if restriction in ("R0", "R1", "R2") and policy not in ("first", "majority"):
        return
    for seed in range(15):
        run = random_run(seed, restriction=restriction, joins=seed % 2 == 1, missing=seed % 3 == 0)
        without = new_merge(restriction, POLICIES[policy], feedback=True)
        merge = new_merge(restriction, POLICIES[policy], feedback=True)
        names = sorted({stream for _, stream, *_ in run.arrivals})
        shadowed = names[seed % len(names)]
        for arrival in run.arrivals:
            kind, stream, *rest = arrival
            if stream == shadowed:  # it is there twice: once on trial, and lying
                if kind == "attach":
                    since = None if rest[0] is None else to_int(rest[0])
                    out = from_output(merge.attach("trial", since, on_trial=True))
                else:
                    out = arrive(merge, [_liar(arrival)])
                assert out == [], f"{run.seed}: {arrival}"
            expected = arrive(without, [arrival])
            assert by_element(arrive(merge, [arrival])) == by_element(expected), run.seed
            merge.check()
            merge = Merge.restore(merge.snapshot()) if seed % 5 == 0 else merge


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_who_is_admitted_takes_over_without_a_hole(restriction: str) -> None:
    """The stream that the others wait for is replaced by one that was on trial, at any instant."""
    for seed in range(20):
        run = random_run(seed, restriction=restriction, streams=1, detaches=False)
        arrivals = [a for a in run.arrivals if a[0] == "element"]
        at = seed % (len(arrivals) + 1)
        merge = new_merge(restriction)
        merge.attach("old")
        merge.attach("new", on_trial=True)
        out: list[Any] = []
        ahead = arrivals[: (at + seed % 7)]
        for _, _, element in ahead:
            out += told(merge, element, stream="new")
        assert out == []
        for _, _, element in arrivals[:at]:
            out += told(merge, element, stream="old")
        out += from_output(merge.switch(["old"], ["new"]))
        assert merge.streams()["old"].value == "joining"
        for _, _, element in arrivals[len(ahead) :]:
            out += told(merge, element, stream="new")
            merge.check()
        out += told(merge, stable(INFINITY), stream="new")
        result, truth = Reconstitution(), Reconstitution()
        for element in out:
            result.apply(element)
        for _, _, element in arrivals:
            truth.apply(element)
        assert result.tdb() == truth.tdb(), run.seed


def test_its_digests_are_compared_and_the_first_difference_is_known() -> None:
    merge = new_merge("R3")
    merge.attach("a")
    merge.attach("b", on_trial=True)
    told(merge, insert("x", 1, 5), insert("y", 3, 8), insert("z", 3, 9), stable(20), stream="a")
    told(merge, insert("x", 1, 5), insert("y", 3, 7), insert("z", 4, 9), stable(20), stream="b")
    found = statistics(merge, "b")
    assert (found.state, found.on_trial) == ("joining", True)
    assert found.verified == 1
    assert found.diverged == (7, 8)
    assert statistics(Merge.restore(merge.snapshot()), "b") == found
    assert statistics(merge, "a").diverged is None


def test_a_switch_is_refused_when_the_output_has_gone_too_far() -> None:
    merge = new_merge("R3")
    merge.attach("old")
    merge.attach("new", on_trial=True)
    told(merge, insert("x", 1, 50), insert("old", 12, 30), stable(10), stream="old")
    told(merge, insert("x", 1, 50), insert("new", 12, 30), stable(9), stream="new")
    with pytest.raises(ConfigurationError, match="too late"):
        merge.switch(["old"], ["new"], before=9)
    assert merge.streams()["old"].value == "joined"
    assert from_output(merge.switch(["old"], ["new"], before=10)) == [("insert", "new", 12, 30)]
    # From here on it is the new one's answer, whatever the old one says and is ahead.
    assert told(merge, insert("old", 13, 20), stable(60), stream="old") == []
    assert by_element(told(merge, stable(60), stream="new")) == [
        ("adjust", "old", 12, 30, 12),
        ("stable", 60),
    ]


def test_order_alone_decides_like_a_stable_does() -> None:
    merge = new_merge("R0")
    merge.attach("old")
    merge.attach("new", on_trial=True)
    told(merge, insert("x", 10, 50), stream="old")
    with pytest.raises(ConfigurationError, match="too late"):
        merge.switch(["old"], ["new"], before=10)
    merge.switch(["old"], ["new"], before=11)
    assert told(merge, insert("y", 11, 50), stream="new") == [("insert", "y", 11, 50)]


def test_a_merge_with_trials_alone_waits_and_begins_with_who_is_admitted() -> None:
    merge = new_merge("R3")
    merge.attach("a", 5, on_trial=True)
    assert told(merge, insert("x", 6, 9), stable(20), stream="a") == []
    assert not merge.stalled
    assert from_output(merge.switch(admitted=["a"])) == [("insert", "x", 6, 9), ("stable", 20)]
    # What it leads to when all go back on trial, and one of them is admitted again:
    merge.switch(on_trial=["a", "unknown"])
    assert told(merge, insert("y", 21, 22), stream="a") == []
    assert from_output(merge.switch(admitted=["a"])) == [("insert", "y", 21, 22)]


def test_a_trial_does_not_end_by_reaching_the_from_time() -> None:
    merge = new_merge("R3")
    merge.attach("a")
    merge.attach("b", 10, on_trial=True)
    told(merge, stable(30), stream="a")
    assert merge.streams()["b"].value == "joining"
    merge.attach("c", 40)
    merge.detach("a")
    assert merge.stalled  # c alone counts, and is right from 40 only
    out = from_output(merge.allow_gap())
    assert ("gap", 30, 40) in out
