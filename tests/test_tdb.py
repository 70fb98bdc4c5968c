"""The model: what a stream reconstitutes to, what breaks its contract, what two streams share."""

from __future__ import annotations

import itertools

import pytest

from lmerge.elements import Adjust, Element, Event, Freeze, Insert, Stable
from lmerge.errors import BrokenPromiseError
from lmerge.tdb import Tdb, compatible, equivalent
from lmerge.times import BEGINNING, INFINITY


def tdb(*elements: Element, keyed: bool = False, name: str = "s") -> Tdb:
    return Tdb(keyed, name).apply_all(elements)


def test_the_papers_two_streams_reconstitute_to_the_same_events() -> None:
    one = tdb(
        Insert("A", 6, INFINITY), Insert("B", 8, INFINITY), Adjust("B", 8, INFINITY, 10),
        Stable(11), Adjust("A", 6, INFINITY, 12), Stable(INFINITY),
    )  # fmt: skip
    two = tdb(Insert("B", 8, 15), Insert("A", 6, 12), Adjust("B", 8, 15, 10), Stable(INFINITY))
    assert one.events() == two.events() == [Event("A", 6, 12), Event("B", 8, 10)]
    assert equivalent(one, two) is None
    assert (one.inserts, one.adjusts, one.stables, len(one)) == (2, 2, 2, 2)


def test_events_are_sorted_by_start_payload_and_end() -> None:
    t = tdb(Insert("b", 1, 9), Insert("a", 2, 3), Insert("b", 1, 4), Insert("a", 1, 5))
    assert list(t) == [Event("a", 1, 5), Event("b", 1, 4), Event("b", 1, 9), Event("a", 2, 3)]


def test_an_adjust_to_the_start_removes_one_of_two_equal_events() -> None:
    t = tdb(Insert("a", 1, 5), Insert("a", 1, 5), Adjust("a", 1, 5, 1))
    assert t.events() == [Event("a", 1, 5)]
    t.apply(Adjust("a", 1, 5, 1))
    assert (t.events(), len(t), list(t.keys())) == ([], 0, [])


def test_freezing_is_strict_at_both_ends() -> None:
    t = tdb(Insert("ends at", 1, 10), Insert("ends before", 1, 9), Insert("starts at", 10, 11))
    t.apply(Stable(10))
    assert [t.freeze(e) for e in t.events()] == [
        Freeze.HALF_FROZEN, Freeze.FULLY_FROZEN, Freeze.UNFROZEN,
    ]  # fmt: skip
    assert set(t.freeze_counts().values()) == {1}


VIOLATIONS = [
    (Insert("a", 9, 20), "insert below its own stable point 10"),
    (Insert("a", 12, 12), "insert with an empty lifetime"),
    (Insert("a", INFINITY, INFINITY), "start that is not a finite time"),
    (Insert("a", BEGINNING, 20), "start that is not a finite time"),
    (Adjust("a", INFINITY, INFINITY, INFINITY), "start that is not a finite time"),
    (Insert("k", 11, 30), "second event with the same start and payload (the first ends at 20)"),
    (Adjust("old", 1, 9, 15), "adjust of an end (vold) below its own stable point 10"),
    (Adjust("half", 2, 15, 9), "adjust to an end (ve) below its own stable point 10"),
    (Adjust("half", 2, 15, 1), "adjust to an end before the start"),
    (Adjust("half", 2, 15, 2), "adjust to an end (ve) below its own stable point 10"),
    (Adjust("k", 11, 11, 12), "adjust of an empty lifetime (vold is not after vs)"),
    (Adjust("k", 11, 19, 21), "adjust of an event that is not there (with this"),
    (Adjust("z", 11, 19, 21), "adjust of an event that is not there"),
    (Stable(9), "stable point goes back from 10"),
]


@pytest.mark.parametrize(("element", "reason"), VIOLATIONS)
def test_each_broken_promise_is_named_and_changes_nothing(element: Element, reason: str) -> None:
    t = tdb(
        Insert("old", 1, 9), Insert("half", 2, 15), Stable(10), Insert("k", 11, 20),
        keyed=True, name="left",
    )  # fmt: skip
    before = t.events(), t.stable_point, t.inserts, t.adjusts, t.stables, list(t.keys())
    with pytest.raises(BrokenPromiseError) as caught:
        t.apply(element)
    assert caught.value.reason.startswith(reason)
    assert (caught.value.stream, caught.value.element) == ("left", str(element))
    after = t.events(), t.stable_point, t.inserts, t.adjusts, t.stables, list(t.keys())
    assert before == after


def test_what_only_touches_the_boundary_keeps_the_promise() -> None:
    t = tdb(Insert("half", 2, 10), Stable(10), Stable(10), Insert("at", 10, 11))
    t.apply(Adjust("half", 2, 10, 12))
    t.apply(Adjust("half", 2, 12, 10))
    t.apply(Adjust("at", 10, 11, 10))
    assert t.events() == [Event("half", 2, 10)]


def test_an_unkeyed_stream_may_repeat_an_event() -> None:
    assert tdb(Insert("a", 1, 5), Insert("a", 1, 7)).ends(1, "a") == (5, 7)


def test_the_first_difference_is_told_in_a_sentence() -> None:
    a = tdb(Insert("y", 3, 9), Insert("x", 3, INFINITY), name="left")
    b = tdb(Insert("y", 3, 8), Insert("z", 1, 2), name="right")
    found = equivalent(a, b)
    assert found is not None
    assert str(found) == "payload z from 1: left has nothing, right has [1, 2); their events differ"
    b.apply(Adjust("z", 1, 2, 1))
    found = equivalent(a, b)
    assert found is not None
    assert (found.payload, found.vs, found.a, found.b) == ("x", 3, (INFINITY,), ())


def test_a_frozen_end_that_differs_can_never_become_equal() -> None:
    a = tdb(Insert("a", 2, 12), Stable(14))
    b = tdb(Insert("a", 2, 20), Stable(14))
    found = compatible(a, b)
    assert found is not None
    assert "ends before 14" in found.why


def test_an_event_missing_below_both_stables_can_never_be_added() -> None:
    a, b = tdb(Insert("a", 2, 20), Stable(10)), tdb(Stable(10))
    found = compatible(a, b)
    assert found is not None
    assert "neither added nor removed" in found.why
    assert compatible(a, tdb(Stable(2))) is None


# An independent oracle: whether some extension of each prefix makes them equal, by trying all
# small ones. Shares nothing with the rule but Tdb.apply.

TIMES = (0, 1, 2)
ENDS = (1, 2, 3)


def reachable(prefix: tuple[Element, ...]) -> set[tuple[Event, ...]]:
    """Every TDB of at most two events that one payload can still reach."""
    steps: list[Element] = [Insert("p", vs, ve) for vs in TIMES for ve in ENDS if ve > vs]
    steps += [
        Adjust("p", vs, vold, ve)
        for vs, vold, ve in itertools.product(TIMES, ENDS, (0, *ENDS))
        if vold > vs and ve >= vs
    ]
    start = tuple(tdb(*prefix).events())
    seen, frontier = {start}, [start]
    point = tdb(*prefix).stable_point
    while frontier:
        events = frontier.pop()
        for step in steps:
            t = tdb(*(Insert(*event) for event in events), Stable(point))
            try:
                t.apply(step)
            except BrokenPromiseError:
                continue
            after = tuple(t.events())
            if len(after) <= 2 and after not in seen:
                seen.add(after)
                frontier.append(after)
    return seen


def test_compatible_prefixes_are_exactly_those_with_a_common_future() -> None:
    lifetimes = [Insert("p", vs, ve) for vs in TIMES for ve in ENDS if ve > vs]
    prefixes: list[tuple[Element, ...]] = [
        (*events, Stable(vc))
        for count in range(3)
        for events in itertools.combinations_with_replacement(lifetimes, count)
        for vc in range(5)
    ]
    known = [(tdb(*prefix), reachable(prefix)) for prefix in prefixes]
    assert len(known) == 140
    for (one, ones), (two, twos) in itertools.product(known, known):
        assert (compatible(one, two) is None) == bool(ones & twos), (one.events(), two.events())
