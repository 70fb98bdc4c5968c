"""The merge as a whole: which algorithm, whose fault, who diverges, and what it says of itself."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lmerge.core.merge import MOST_STREAMS, Merge
from lmerge.core.output import Feedback, NoticeKind, Output
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction, StreamProperties, choose
from lmerge.core.statistics import StreamStatistics
from lmerge.errors import ConfigurationError, SchemaMismatchError
from lmerge.times import BEGINNING, INFINITY
from tests.drive import ELEMENTS, SCHEMA, arrive, from_output, new_merge, to_batch
from tests.oracle.runs import Arrival, random_run
from tests.oracle.tdb import INF, ContractError, Element, Reconstitution

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]


def insert(p: str, vs: float, ve: float) -> Element:
    return ("insert", p, vs, ve)


def adjust(p: str, vs: float, vold: float, ve: float) -> Element:
    return ("adjust", p, vs, vold, ve)


def stable(vc: float) -> Element:
    return ("stable", vc)


def send(merge: Merge, stream: str, *elements: Element) -> Output:
    return merge.apply(stream, to_batch(elements))


def state(merge: Merge, stream: str) -> str:
    return merge.streams()[stream].value


def statistics(merge: Merge, stream: str) -> StreamStatistics:
    return next(s for s in merge.statistics().streams if s.name == stream)


def of_divergence(policy: str, restriction: str = "R3", **options: Any) -> Merge:
    return new_merge(restriction, Policy(divergence=DivergencePolicy(policy)), **options)


# -- choosing the algorithm

PLANS = {
    # The examples of the paper's §IV.G, numbered as there.
    "1 sources that publish nothing": (StreamProperties(), "R4"),
    "1 sources with a key and adjusts": (StreamProperties(keyed=True), "R3"),
    "1 sources ordered, without duplicate times": (
        StreamProperties(insert_only=True, strictly_increasing=True),
        "R0",
    ),
    "2 behind a reordering operator": (
        StreamProperties(insert_only=True, ordered=True, keyed=True),
        "R2",
    ),
    "3 windowed count over an ordered stream": (
        StreamProperties(insert_only=True, strictly_increasing=True),
        "R0",
    ),
    "4 sliding Top-k over an ordered stream": (
        StreamProperties(insert_only=True, ordered=True, deterministic_ties=True),
        "R1",
    ),
    "5 grouped count over an ordered stream": (
        StreamProperties(insert_only=True, ordered=True, keyed=True),
        "R2",
    ),
    "6 grouped count over a disordered stream": (StreamProperties(keyed=True), "R3"),
    "ordered and revising": (StreamProperties(strictly_increasing=True), "R3"),
    "ordered, ties in any order, duplicates": (
        StreamProperties(insert_only=True, ordered=True),
        "R4",
    ),
}


@pytest.mark.parametrize("plan", PLANS)
def test_the_algorithm_follows_from_what_the_streams_promise(plan: str) -> None:
    properties, restriction = PLANS[plan]
    assert choose([properties, properties]).value == restriction


def test_the_stream_that_promises_least_decides() -> None:
    best, keyed = PLANS["3 windowed count over an ordered stream"][0], StreamProperties(keyed=True)
    assert choose([best, best]) is Restriction.R0
    assert choose([best, keyed]) is Restriction.R3
    assert choose([best, keyed, StreamProperties()]) is Restriction.R4


@pytest.mark.parametrize("text", ["leader", "half_frozen", "quorum(0.5)", "final"])
def test_a_policy_that_waits_needs_an_index(text: str) -> None:
    policy = Policy(InsertPolicy.parse(text))
    best = PLANS["3 windowed count over an ordered stream"][0]
    assert choose([best], policy) is Restriction.R3
    assert choose([StreamProperties()], policy) is Restriction.R4
    for restriction in ("R0", "R1", "R2"):
        with pytest.raises(ConfigurationError, match="needs R3 or R4"):
            new_merge(restriction, policy)


def test_a_stream_that_promises_too_little_is_refused_with_what_it_lacks() -> None:
    merge = new_merge("R2")
    with pytest.raises(ConfigurationError, match=r"'a' .* R2 needs: insert only, keyed"):
        merge.attach("a", properties=StreamProperties(ordered=True))
    assert merge.streams() == {}
    merge.attach("a", properties=StreamProperties(insert_only=True, strictly_increasing=True))


# -- callers' mistakes change nothing


def _batch_with(**columns: pa.Array) -> pa.RecordBatch:
    given = {name: columns.get(name, pa.array([0], kind)) for name, kind in _TYPES.items()}
    given |= {name: column for name, column in columns.items() if name not in given}
    return pa.RecordBatch.from_arrays(list(given.values()), names=list(given))


_TYPES = {name: ELEMENTS.field(name).type for name in ("op", "vs", "ve", "vold")}
MISMATCHES = {
    "'p' is missing": _batch_with(),
    "'q' is not expected": _batch_with(p=pa.array(["x"]), q=pa.array([1])),
    "'p' is int64 instead of string": _batch_with(p=pa.array([1])),
    "column 'vs' must be int64, not int32": _batch_with(
        vs=pa.array([1], pa.int32()), p=pa.array(["x"])
    ),
    "column 've' must not contain nulls": _batch_with(
        ve=pa.array([None], pa.int64()), p=pa.array(["x"])
    ),
    "needs one column 'op'": pa.RecordBatch.from_pydict({"p": ["x"]}),
}


@pytest.mark.parametrize("message", MISMATCHES)
def test_a_batch_of_another_schema_is_refused_with_the_difference(message: str) -> None:
    merge = new_merge("R3")
    merge.attach("a")
    before = merge.snapshot()
    with pytest.raises(SchemaMismatchError, match=message):
        merge.apply("a", MISMATCHES[message])
    assert merge.snapshot() == before


def test_columns_may_come_in_any_order() -> None:
    merge = Merge(pa.schema([("x", pa.int64()), ("y", pa.string())]))
    merge.attach("a")
    merge.attach("b")
    row = {"op": 0, "vs": 1, "ve": 5, "vold": 0, "x": 7, "y": "seven"}
    times = {name: pa.array([row[name]], kind) for name, kind in _TYPES.items()}
    payload = {"x": pa.array([7]), "y": pa.array(["seven"])}
    ours = {**payload, **times}
    theirs = dict(reversed(list({**times, **payload}.items())))
    assert merge.apply("a", pa.RecordBatch.from_pydict(ours)).rows == 1
    assert merge.apply("b", pa.RecordBatch.from_pydict(theirs)).rows == 0


def test_payload_columns_with_one_name_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="'x'"):
        Merge(pa.schema([("x", pa.int64()), ("x", pa.string())]))


def test_unknown_and_repeated_streams_are_refused() -> None:
    merge = new_merge("R3")
    for call in (merge.detach, lambda name: send(merge, name, stable(1))):
        with pytest.raises(ConfigurationError, match="'a' is not attached"):
            call("a")
    merge.attach("a")
    with pytest.raises(ConfigurationError, match="attached already"):
        merge.attach("a")
    with pytest.raises(ConfigurationError, match="not stalled"):
        merge.allow_gap()


def test_bad_settings_are_refused() -> None:
    for fraction in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ConfigurationError):
            InsertPolicy.quorum(fraction)
    for text in ("", "First", "quorum", "quorum(x)", "quorum(0)", "quorum(nan)"):
        with pytest.raises(ConfigurationError):
            InsertPolicy.parse(text)
    for lag in (-1, 2**62):
        with pytest.raises(ConfigurationError):
            Policy(stable_lag=lag)
    with pytest.raises(ConfigurationError):
        Merge(SCHEMA, key=b"short")
    for text in ("first", "leader", "half_frozen", "final", "quorum(0.25)"):
        assert str(InsertPolicy.parse(text)) == text


# -- a stream that breaks its promises

BROKEN: dict[str, tuple[list[str], list[Element], Element, str]] = {
    # restrictions; elements before; the offender; the reason
    "insert below its stable": (
        RESTRICTIONS, [stable(10)], insert("x", 9, 12), "an insert below the stream's own stable",
    ),
    "empty insert": (RESTRICTIONS, [], insert("x", 5, 5), "an empty lifetime"),
    "insert that ends before it starts": (
        RESTRICTIONS, [], insert("x", 5, 4), "an empty lifetime",
    ),
    "stable going back": (RESTRICTIONS, [stable(10)], stable(9), "a stable going back"),
    "infinite start": (RESTRICTIONS, [], insert("x", INF, INF), "a start that is not a finite"),
    "adjust from below its stable": (
        ["R3", "R4"], [insert("x", 1, 5), stable(10)], adjust("x", 1, 5, 20), "an adjust below",
    ),
    "adjust to below its stable": (
        ["R3", "R4"], [insert("x", 1, 15), stable(10)], adjust("x", 1, 15, 9), "an adjust below",
    ),
    "removal of a half-frozen event": (
        ["R3", "R4"], [insert("x", 1, 15), stable(10)], adjust("x", 1, 15, 1), "an adjust below",
    ),
    "adjust to before its start": (
        ["R3", "R4"], [insert("x", 5, 9)], adjust("x", 5, 9, 4), "an empty lifetime",
    ),
    "adjust of an empty event": (
        ["R3", "R4"], [insert("x", 5, 9)], adjust("x", 5, 5, 9), "an empty lifetime",
    ),
    "adjust of nothing": (
        ["R3", "R4"], [], adjust("x", 5, 9, 12), "an adjust of an event that is not there",
    ),
    "adjust of another end": (
        ["R3", "R4"], [insert("x", 5, 9)], adjust("x", 5, 8, 12), "an adjust of an event that",
    ),
    "second event": (
        ["R2", "R3"], [insert("x", 5, 9)], insert("x", 5, 12), "a second event with the same",
    ),
    "adjust among inserts": (
        ["R0", "R1", "R2"], [insert("x", 5, 9)], adjust("x", 5, 9, 12), "declared insert-only",
    ),
    "disorder": (
        ["R0", "R1", "R2"], [insert("x", 5, 9)], insert("x", 4, 9), "declared ordered",
    ),
    "repeated start": (
        ["R0"], [insert("x", 5, 9)], insert("y", 5, 9), "declared strictly increasing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "element by element"])
@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_quarantines_its_stream_and_names_the_element(
    promise: str, together: bool
) -> None:
    restrictions, before, offender, reason = BROKEN[promise]
    for restriction in restrictions:
        merge = new_merge(restriction)
        merge.attach("bad")
        merge.attach("good")
        after = [insert("z", 30, 40), stable(35)]
        elements = [*before, offender, *after]
        notices = []
        for part in [elements] if together else [[element] for element in elements]:
            notices += send(merge, "bad", *part).notices
        assert state(merge, "bad") == "quarantined", restriction
        told = [n for n in notices if n.kind is NoticeKind.QUARANTINED]
        assert [n.stream for n in told] == ["bad"], restriction
        assert reason in told[0].text, restriction
        assert reason in statistics(merge, "bad").reason
        shown = str(offender[1]) if offender[0] != "stable" else "stable(9)"
        assert shown in told[0].text
        # What came before it counts, nothing after it does, and the others go on.
        inserts = sum(e[0] == "insert" for e in before)
        assert merge.statistics().inserts == inserts, restriction
        assert merge.statistics().stable == max(
            (e[1] for e in before if e[0] == "stable"), default=BEGINNING
        )
        out = from_output(send(merge, "good", insert("y", 50, 60), stable(55)))
        assert (out[0], out[-1]) == (insert("y", 50, 60), stable(55)), restriction
        merge.check()


def test_what_a_stream_sent_before_it_broke_a_promise_is_counted_exactly() -> None:
    for restriction, offender in (("R3", insert("x", 1, 4)), ("R4", adjust("x", 1, 9, 10))):
        merge = new_merge(restriction)
        merge.attach("a")
        send(merge, "a", insert("x", 1, 3), offender, insert("y", 1, 4), adjust("y", 1, 4, 6))
        assert (statistics(merge, "a").inserts, statistics(merge, "a").adjusts) == (1, 0)


def test_a_quarantined_stream_is_ignored_and_counted_until_it_attaches_again() -> None:
    merge = new_merge("R3")
    merge.attach("a")
    merge.attach("b")
    merge.quarantine("b", "an operator says so")
    assert from_output(send(merge, "b", insert("x", 1, 5), stable(9))) == []
    assert statistics(merge, "b").ignored == 2
    assert merge.statistics().stable == BEGINNING
    merge.detach("b")
    merge.attach("b")
    assert from_output(send(merge, "b", insert("x", 1, 5), stable(4))) == [
        insert("x", 1, 5),
        stable(4),
    ]


def test_a_second_event_of_a_joining_stream_is_a_broken_promise_too() -> None:
    elements = [insert("x", 20, 30), insert("x", 20, 40), insert("y", 21, 30)]
    for restriction in ("R2", "R3"):
        for parts in ([elements], [[element] for element in elements]):
            merge = new_merge(restriction)
            merge.attach("a")
            merge.attach("b", 10)
            for part in parts:
                send(merge, "b", *part)
            send(merge, "a", stable(10))
            assert state(merge, "b") == "quarantined", f"{restriction}, {len(parts)} batches"


def test_an_op_that_is_no_elements_is_a_broken_promise() -> None:
    merge = new_merge("R3")
    merge.attach("a")
    batch = to_batch([insert("x", 1, 5)]).set_column(0, "op", pa.array([7], pa.int8()))
    assert "an op that is no element's" in str(merge.apply("a", batch).notices[0])


# -- streams that compute something else

TRUTH = [insert("x", 1, 5), insert("y", 2, 6), insert("z", 3, 12)]
LIES = {
    "changes a payload": [insert("x", 1, 5), insert("Y", 2, 6), insert("z", 3, 12)],
    "drops an event": [insert("x", 1, 5), insert("z", 3, 12)],
    "adds an event": [*TRUTH[:2], insert("w", 3, 7), TRUTH[2]],
    "moves an end": [insert("x", 1, 5), insert("y", 2, 7), insert("z", 3, 12)],
    "moves a start": [insert("x", 1, 5), insert("y", 3, 6), insert("z", 4, 12)],
}
# In R0 to R2 a start may come once, or an event that nobody else has is simply output.
REVISING = ["R3", "R4"]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("restriction", REVISING)
@pytest.mark.parametrize("policy", ["report", "quarantine", "majority"])
def test_a_laggard_that_diverges_is_caught_though_all_it_says_is_dropped(
    policy: str, restriction: str, lie: str
) -> None:
    merge = of_divergence(policy, restriction)
    for stream in ("a", "b", "liar"):
        merge.attach(stream)
    for stream in ("a", "b"):
        send(merge, stream, *TRUTH, stable(10))
    notices = send(merge, "liar", *LIES[lie], stable(10)).notices
    assert statistics(merge, "liar").divergent >= 1
    assert NoticeKind.DIVERGED in [n.kind for n in notices]
    assert state(merge, "liar") == ("joined" if policy == "report" else "quarantined")
    assert {state(merge, s) for s in ("a", "b")} == {"joined"}
    assert statistics(merge, "a").divergent == 0


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_honest_streams_are_verified_and_nobody_is_accused(restriction: str) -> None:
    merge = of_divergence("quarantine", restriction)
    for stream in ("a", "b"):
        merge.attach(stream)
        send(merge, stream, *TRUTH, stable(INF))
    for stream in ("a", "b"):
        assert statistics(merge, stream).verified == len(TRUTH)
        assert statistics(merge, stream).divergent == 0


def test_off_keeps_no_digests() -> None:
    merge = of_divergence("off")
    for stream, elements in (("a", TRUTH), ("b", LIES["drops an event"])):
        merge.attach(stream)
        send(merge, stream, *elements, stable(INF))
    assert [s.divergent + s.verified for s in merge.statistics().streams] == [0, 0]


def test_without_digests_a_batch_may_mix_old_news_and_new() -> None:
    for restriction in RESTRICTIONS:
        merge = of_divergence("off", restriction)
        merge.attach("a")
        merge.attach("b")
        send(merge, "a", stable(10))
        out = from_output(send(merge, "b", insert("x", 1, 3), insert("y", 12, 15)))
        assert out == [insert("y", 12, 15)], restriction
        assert statistics(merge, "b").dropped == 1


def test_a_majority_outvotes_the_output_and_whoever_led_it_astray() -> None:
    merge = of_divergence("majority")
    for stream in ("liar", "b", "c"):
        merge.attach(stream)
    send(merge, "liar", *LIES["adds an event"], stable(10))
    notices = send(merge, "b", *TRUTH, stable(10)).notices
    assert state(merge, "b") == "joined", "one against one is no majority"
    notices = send(merge, "c", *TRUTH, stable(10)).notices
    assert state(merge, "liar") == "quarantined"
    assert [state(merge, s) for s in ("b", "c")] == ["joined", "joined"]
    assert any(n.kind is NoticeKind.DIVERGED and n.stream is None for n in notices)


def test_without_a_majority_nobody_is_quarantined() -> None:
    merge = of_divergence("majority")
    for stream in ("a", "b"):
        merge.attach(stream)
    send(merge, "a", *TRUTH, stable(10))
    send(merge, "b", *LIES["adds an event"], stable(10))
    assert [state(merge, s) for s in ("a", "b")] == ["joined", "joined"]
    assert statistics(merge, "b").divergent == 1


def test_a_vote_waits_for_laggards_and_hears_them_right_after_intervals_were_joined() -> None:
    merge = of_divergence("majority")
    for stream in ("a", "liar", "laggard", "d", "e"):
        merge.attach(stream)
    for stream in ("a", "d", "e"):
        send(merge, stream, insert("x", 1, 5))
    send(merge, "liar", insert("x", 1, 5), insert("w", 1, 5))
    for stream in ("a", "liar"):
        send(merge, stream, stable(6))
    future = [insert("x", 10 + i, 20 + 3 * i) for i in range(3000)]
    for stream in ("a", "d", "e"):
        send(merge, stream, *future)
    assert merge.statistics().interval > 1
    send(merge, "laggard", insert("x", 1, 5), stable(6))
    for stream in ("d", "e"):
        send(merge, stream, stable(6))
    for stream in ("laggard", "liar"):
        send(merge, stream, *future)
    for stream in ("a", "d", "e", "laggard", "liar"):
        send(merge, stream, stable(10**6))
    honest = [state(merge, s) for s in ("a", "d", "e", "laggard")]
    assert honest == ["joined"] * 4, "an honest laggard is accused of what it has not said yet"
    assert state(merge, "liar") == "quarantined"


def test_joining_intervals_does_not_lose_a_divergence() -> None:
    merge = of_divergence("report")
    rng = Random(3)
    events = [insert(f"p{i}", i, i + rng.randint(1, 40_000)) for i in range(4000)]
    lie = [*events[:700], insert("lie", 700, 20_000), *events[701:]]
    for stream, elements in (("a", events), ("b", events), ("liar", lie)):
        merge.attach(stream)
        send(merge, stream, *elements)
    assert merge.statistics().interval > 1
    for vc in (10_000, 25_000, INF):
        for stream in ("a", "b", "liar"):
            send(merge, stream, stable(vc))
    assert statistics(merge, "liar").divergent > 0
    assert statistics(merge, "a").divergent == statistics(merge, "b").divergent == 0
    assert statistics(merge, "b").verified > 500


def test_intervals_skipped_because_of_feedback_are_left_out() -> None:
    for told in (True, False):
        merge = of_divergence("quarantine", feedback=True)
        for stream in ("a", "b"):
            merge.attach(stream)
        out = send(merge, "a", *TRUTH, stable(10))
        assert out.feedback == [Feedback("b", 10)]
        if told:
            merge.skipped("b", 10)
        send(merge, "b", TRUTH[2], stable(11))
        assert state(merge, "b") == ("joined" if told else "quarantined")
        assert (statistics(merge, "b").skipped > 0) == told


def test_feedback_alone_excuses_no_laggard() -> None:
    merge = of_divergence("quarantine", feedback=True)
    for stream in ("a", "b"):
        merge.attach(stream)
    send(merge, "a", *TRUTH, stable(10))
    send(merge, "b", *LIES["drops an event"], stable(10))
    assert state(merge, "b") == "quarantined"


def test_a_stream_cannot_have_skipped_what_it_was_not_told_to() -> None:
    merge = of_divergence("report", feedback=True)
    for stream in ("a", "b"):
        merge.attach(stream)
    send(merge, "a", stable(10))
    with pytest.raises(ConfigurationError, match="what ends before 10 is not needed"):
        merge.skipped("b", 11)


def test_after_the_horizon_a_stream_must_be_right_again() -> None:
    for honest in (True, False):
        policy = Policy(stable_lag=5, divergence=DivergencePolicy.QUARANTINE)
        merge = new_merge("R3", policy, feedback=True)
        for stream in ("a", "b"):
            merge.attach(stream)
        out = send(merge, "a", *TRUTH, insert("v", 11, 14), stable(10))
        assert out.feedback == [Feedback("b", 5)]
        send(merge, "b", *TRUTH, insert("v", 11, 14 if honest else 15), stable(18))
        assert send(merge, "a", stable(23)).feedback == [], "it is not behind"
        assert state(merge, "b") == ("joined" if honest else "quarantined")


def test_a_stream_is_not_judged_about_what_ends_before_its_from() -> None:
    for honest in (True, False):
        merge = of_divergence("quarantine")
        merge.attach("a")
        send(merge, "a", *TRUTH, stable(7))
        merge.attach("b", 8)
        send(merge, "b", insert("z", 3, 12 if honest else 11), stable(9))
        send(merge, "a", stable(20))
        send(merge, "b", stable(20))
        assert state(merge, "b") == ("joined" if honest else "quarantined")


def test_a_stream_that_returns_is_judged_anew() -> None:
    merge = of_divergence("quarantine")
    for stream in ("a", "b"):
        merge.attach(stream)
    send(merge, "a", *TRUTH, stable(10))
    send(merge, "b", *LIES["drops an event"], stable(10))
    assert state(merge, "b") == "quarantined"
    merge.detach("b")
    merge.attach("b")
    send(merge, "b", *TRUTH, stable(20))
    assert state(merge, "b") == "joined"
    assert statistics(merge, "b").divergent == 0


def test_a_conflict_is_counted_and_the_output_keeps_its_promise() -> None:
    for restriction in REVISING:
        merge = new_merge(restriction)
        for stream in ("a", "b"):
            merge.attach(stream)
        send(merge, "a", insert("x", 1, 15), stable(10))
        out = send(merge, "b", stable(16))
        assert from_output(out) == [stable(16)]
        assert NoticeKind.CONFLICT in [n.kind for n in out.notices]
        assert statistics(merge, "b").conflicts == 1
        assert from_output(send(merge, "a", stable(20))) == [stable(20)]


# -- feedback and statistics


def test_feedback_is_owed_to_whoever_is_behind_when_the_point_moves() -> None:
    merge = new_merge("R3", feedback=True)
    merge.attach("a")
    merge.attach("b")
    merge.attach("c", 30)
    assert send(merge, "a", stable(10)).feedback == [Feedback("b", 10), Feedback("c", 10)]
    assert send(merge, "b", stable(10)).feedback == []
    assert send(merge, "b", stable(12)).feedback == [Feedback("a", 12), Feedback("c", 12)]
    merge.quarantine("c", "")
    assert send(merge, "a", stable(INF)).feedback == [Feedback("b", INFINITY)]


def test_feedback_is_owed_when_a_gap_is_allowed() -> None:
    merge = new_merge("R3", feedback=True)
    merge.attach("a")
    send(merge, "a", stable(10))
    merge.attach("b", 20)
    merge.attach("c", 25)
    merge.detach("a")
    assert merge.allow_gap().feedback == [Feedback("b", 20), Feedback("c", 20)]


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_across_a_gap_what_the_stream_knows_to_live_is_output(restriction: str) -> None:
    merge = new_merge(restriction)
    merge.attach("a")
    send(merge, "a", stable(10))
    merge.attach("b", 20)
    send(merge, "b", insert("x", 15, 30), insert("y", 25, 30))
    merge.detach("a")
    output = Reconstitution(restriction)
    for element in from_output(merge.allow_gap()):
        if element[0] != "gap":
            output.apply(element)
    assert output.tdb() == Counter([("x", 15, 30), ("y", 25, 30)])
    assert output.stable == 20


@pytest.mark.parametrize("restriction", REVISING)
def test_under_final_an_event_is_output_once_also_across_a_gap(restriction: str) -> None:
    merge = new_merge(restriction, Policy(InsertPolicy.final()))
    merge.attach("a")
    send(merge, "a", stable(10))
    merge.attach("b", 20)
    send(merge, "b", insert("x", 15, 30))
    merge.detach("a")
    out = from_output(merge.allow_gap()) + from_output(send(merge, "b", stable(40)))
    assert [e for e in out if e[0] == "insert"] == [insert("x", 15, 30)]


def test_statistics_count_what_happened() -> None:
    merge = new_merge("R3")
    merge.attach("a")
    merge.attach("b")
    assert statistics(merge, "a").lag == 0
    send(merge, "a", insert("x", 1, 5), insert("y", 2, 9), adjust("y", 2, 9, 20), stable(7))
    send(merge, "b", insert("z", 8, 9), insert("x", 1, 5), insert("w", 1, 30))
    a, b, whole = statistics(merge, "a"), statistics(merge, "b"), merge.statistics()
    assert (a.inserts, a.adjusts, a.stables, a.first, a.lag) == (2, 1, 1, 2, 0)
    assert (b.inserts, b.dropped, b.late, b.first, b.lag) == (3, 1, 1, 1, None)
    assert [a.share, b.share] == pytest.approx([2 / 3, 1 / 3])
    assert (whole.inserts, whole.adjusts, whole.stables) == (3, 0, 1)
    assert (whole.stable, whole.decided, whole.live) == (7, 7, 2)
    send(merge, "b", stable(4))
    assert statistics(merge, "b").lag == 3
    send(merge, "a", stable(INF))
    assert statistics(merge, "b").lag is None, "there is no distance to the end of time"


def test_under_final_the_stable_point_lags_behind_what_is_decided() -> None:
    merge = new_merge("R3", Policy(InsertPolicy.final()))
    merge.attach("a")
    send(merge, "a", insert("x", 3, 50), insert("y", 5, 6), stable(10))
    assert (merge.statistics().decided, merge.statistics().stable) == (10, 3)
    assert merge.statistics().live == 1


# -- bounds and determinism


def test_there_may_be_as_many_streams_as_the_bound_says_and_no_more() -> None:
    merge = of_divergence("off")
    for i in range(MOST_STREAMS):
        merge.attach(f"s{i}")
    with pytest.raises(ConfigurationError, match=str(MOST_STREAMS)):
        merge.attach("one more")
    last = f"s{MOST_STREAMS - 1}"
    assert from_output(send(merge, "s0", insert("x", 1, 5))) == [insert("x", 1, 5)]
    assert from_output(send(merge, last, insert("x", 1, 6), stable(10))) == [
        adjust("x", 1, 5, 6),
        stable(10),
    ]
    merge.detach("s7")
    merge.attach("one more")
    merge.check()


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_the_secret_key_does_not_show_in_the_output(restriction: str) -> None:
    for seed in range(10):
        run = random_run(seed, restriction=restriction, joins=bool(seed % 2))
        merges = [Merge(SCHEMA, Restriction(restriction), key=bytes([k] * 32)) for k in range(3)]
        for arrival in run.arrivals:
            first, *others = [arrive(merge, [arrival]) for merge in merges]
            assert all(other == first for other in others), f"{run.seed} at {arrival}"


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_extreme_times_are_merged_like_any_other(restriction: str) -> None:
    low, high = -(2**62), 2**62
    merge = new_merge(restriction)
    merge.attach("a")
    merge.attach("b")
    elements = [
        insert("x", BEGINNING + 1, low), insert("y", low, 0), insert("z", 0, high),
        insert("u", high, INF), insert("v", INFINITY - 1, INF),
    ]  # fmt: skip
    out = Reconstitution(restriction)
    for stream in ("a", "b"):
        for element in (*elements, stable(high), stable(INFINITY - 1), stable(INF)):
            for each in from_output(send(merge, stream, element)):
                out.apply(each)
            merge.check()
    assert out.tdb() == Counter(e[1:] for e in elements)
    assert [s.divergent for s in merge.statistics().streams] == [0, 0]


# -- whatever the inputs do, the output is a valid stream


def _garbled(rng: Random, element: Element) -> Element:
    """The element with some of its parts replaced by something possible, or impossible."""

    def time(t: float) -> float:
        draw = rng.random()
        if draw < 0.6:
            return t
        if draw < 0.9 and t != INF:
            return t + rng.randint(-4, 4)
        return rng.choice((INF, -5, 0, 3, 9, -(2**62)))

    kind, *rest = element
    if kind == "stable":
        return ("stable", time(rest[0]))
    p, vs, *ends = rest
    removal = kind == "adjust" and rng.random() < 0.1
    p = rng.choice("abcd") if rng.random() < 0.3 else p
    garbled = (kind, p, time(vs), *(time(end) for end in ends))
    return (*garbled[:-1], garbled[2]) if removal else garbled


def _corrupted(rng: Random, arrivals: list[Arrival], bad: set[str]) -> list[Arrival]:
    """The arrivals with elements of the bad streams lost, repeated and garbled."""
    rate = rng.choice((0.02, 0.1, 0.4))
    result: list[Arrival] = []
    for arrival in arrivals:
        if arrival[0] != "element" or arrival[1] not in bad or rng.random() >= rate:
            result.append(arrival)
            continue
        draw = rng.random()
        if draw < 0.2:
            continue
        if draw < 0.3:
            result.append(arrival)
        result.append((*arrival[:2], _garbled(rng, arrival[2])))
    return result


def _random_policy(rng: Random, restriction: str) -> Policy:
    names = ("first", "leader", "half_frozen", "quorum(0.5)", "quorum(1)", "final")
    insert_policy = rng.choice(names) if restriction in ("R3", "R4") else "first"
    return Policy(
        InsertPolicy.parse(insert_policy),
        rng.choice(list(AdjustPolicy)),
        rng.choice((0, 0, 0, 1, 3)),
        rng.choice(list(DivergencePolicy)),
    )


def _survives_garbage(seed: int, restriction: str) -> None:
    rng = Random(f"{seed}/{restriction}")
    features = {name: rng.random() < 0.4 for name in ("joins", "late_begin", "missing")}
    run = random_run(seed, restriction=restriction, **features)
    bad = {stream for stream in run.streams if rng.random() < 0.5}
    policy = _random_policy(rng, restriction)
    where = f"seed {seed}, {restriction}, {policy}, bad streams {sorted(bad)}, {run.seed}"
    merge = new_merge(restriction, policy, feedback=rng.random() < 0.5)
    arrivals = _corrupted(rng, run.arrivals, bad)
    output = Reconstitution(restriction)
    step = rng.choice((1, 1, 3, 1000))
    for start in range(0, len(arrivals), step):
        out = arrive(merge, arrivals[start : start + step])
        if merge.stalled and rng.random() < 0.5:
            out += from_output(merge.allow_gap())
        if merge.streams() and rng.random() < 0.02:
            out += from_output(merge.quarantine(rng.choice(list(merge.streams())), "by chance"))
        try:
            for element in out:
                if element[0] != "gap":
                    output.apply(element)
        except ContractError as error:
            raise AssertionError(f"{where}: at arrival {start}: {error}") from error
        merge.check()
    for stream in merge.statistics().streams:
        if stream.name not in bad and "by chance" not in stream.reason:
            broke = stream.state == "quarantined" and "has other events" not in stream.reason
            assert not broke or "cannot be right" in stream.reason, f"{where}: {stream}"


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_garbage_in_some_streams_never_breaks_the_outputs_contract(restriction: str) -> None:
    for seed in range(100):
        _survives_garbage(seed, restriction)


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_nothing_but_garbage_never_breaks_the_outputs_contract(restriction: str) -> None:
    for seed in range(30):
        rng = Random(f"garbage {seed}/{restriction}")
        merge = new_merge(restriction, _random_policy(rng, restriction))
        output = Reconstitution(restriction)
        streams = ("a", "b", "c")
        for _ in range(60):
            stream = rng.choice(streams)
            if stream not in merge.streams():
                merge.attach(stream, rng.choice((None, None, 3, 8)))
            elif state(merge, stream) == "quarantined" or rng.random() < 0.02:
                merge.detach(stream)
                continue
            vs, kind = rng.randint(0, 12), rng.choice(("insert", "insert", "adjust", "stable"))
            ends = [vs + rng.randint(0, 6) for _ in range(2)]
            element = {
                "insert": insert(rng.choice("ab"), vs, ends[0]),
                "adjust": adjust(rng.choice("ab"), vs, *ends),
                "stable": stable(vs),
            }[kind]
            try:
                for each in from_output(send(merge, stream, element)):
                    output.apply(each)
            except ContractError as error:
                raise AssertionError(f"seed {seed}, {restriction}: {error}") from error
            merge.check()


# -- non-chattiness


@pytest.mark.parametrize("restriction", ["R3", "R4"])
def test_no_more_is_output_than_came_in_but_for_removals(restriction: str) -> None:
    """What holds of Theorem 1: an extension step by step needs an adjust for each step.

    Removals of spurious events come on top: nobody need have sent them.
    """
    for seed in range(40):
        run = random_run(seed, restriction=restriction)
        merge = new_merge(restriction)
        received: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        inserted: Counter[tuple[Any, ...]] = Counter()
        for arrival in run.arrivals:
            if arrival[0] == "element":
                received["stable" if arrival[2][0] == "stable" else "change"] += 1
            out = arrive(merge, [arrival])
            adjusted = Counter(e[1:3] for e in out if e[0] == "adjust")
            if restriction == "R3":  # in R4 a node has several events
                assert max(adjusted.values(), default=0) <= 1, f"{run.seed} at {arrival}"
            for element in out:
                removal = element[0] == "adjust" and element[4] == element[2]
                kind = "stable" if element[0] == "stable" else "removal" if removal else "change"
                sent[kind] += 1
                inserted[element[1:3]] += element[0] == "insert"
            where = f"{run.seed} at {arrival}: received {received}, sent {sent}"
            assert sent["change"] <= received["change"], where
            assert sent["stable"] <= received["stable"], where
            assert sent["removal"] <= inserted.total(), where
