"""Runs to merge: physically different, logically equivalent streams, interleaved.

A run is a list of arrivals: `("attach", stream, from_or_None)`, `("detach", stream)`,
`("element", stream, element)`. All its streams present one truth, a TDB drawn at random:

- every stream is valid by itself, and its stables are as large as what it still has to say allows,
  often exactly that large, so that ends and starts equal to a stable point are frequent;
- a stream that attached without a `from` and lacks nothing tends to the truth, so that any prefixes
  of such streams are mutually consistent;
- a stream with a `from` is right about every event with `ve >= from`, and may omit, or be wrong
  about, whatever ends before;
- the backbone, the first of `Run.streams`, attaches first, is complete, and never leaves.

The same arguments always give the same run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from .tdb import INF, Element, Event, Key, Tdb, Time, reconstitute

Arrival: TypeAlias = tuple[Any, ...]

PAYLOADS = "abcd"


@dataclass(frozen=True)
class Run:
    """Arrivals, and what the merge of them must come to."""

    seed: object
    restriction: str
    streams: tuple[str, ...]
    arrivals: list[Arrival]
    truth: Tdb
    begin: Time = -INF
    """The `from` of the first stream: what ends before it is not promised."""
    doubtful: frozenset[Key] = field(default_factory=frozenset)
    """The (p, vs) that some stream lacks, so that the output may lack or misjudge them."""
    consistent: bool = True
    """All streams present everything from the beginning: the paper's conditions apply as printed.
    """


def elements_by_stream(arrivals: Sequence[Arrival]) -> dict[str, list[list[Element]]]:
    """For each stream id the elements of each of its physical streams (one per attach)."""
    result: dict[str, list[list[Element]]] = {}
    attached: set[str] = set()
    for kind, stream, *rest in arrivals:
        if kind == "detach":
            attached.discard(stream)
            continue
        if stream not in attached:
            attached.add(stream)
            result.setdefault(stream, []).append([])
        if kind == "element":
            result[stream][-1].append(rest[0])
    return result


# ---------------------------------------------------------------------------------------------
# Random runs


def random_run(
    seed: int,
    *,
    restriction: str,
    streams: int | None = None,
    size: int | None = None,
    horizon: int | None = None,
    joins: bool = False,
    late_begin: bool = False,
    missing: bool = False,
    detaches: bool = True,
    revisions: bool = True,
) -> Run:
    """A run of 1..6 streams over `size` true events with times in a small range.

    `joins`: the streams other than the backbone come and go, return under their id, and guarantee
    only what ends from some time on. `late_begin`: the backbone has a `from` too. `missing`: some
    streams lack some events. `detaches`: some leave in the middle. `revisions`: provisional ends
    and spurious events (R3 and R4 only).
    """
    flags = f"{streams},{size},{horizon},{joins},{late_begin},{missing},{detaches},{revisions}"
    rng = Random(f"{seed}/{restriction}/{flags}")
    count = rng.choice((1, 2, 2, 3, 3, 4, 5, 6)) if streams is None else streams
    names = tuple(f"s{i}" for i in range(count))
    truth_size = rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 10)) if size is None else size
    span = rng.choice((3, 6, 12)) if horizon is None else horizon
    present = _Presenter(rng, restriction, truth_size, span, revisions)
    begin: Time = rng.randint(0, span + 2) if late_begin else -INF

    doubtful: set[Key] = set()
    lists: list[list[Arrival]] = []
    for number, name in enumerate(names):
        backbone = number == 0
        arrivals: list[Arrival] = []
        lives = 1 if backbone or not joins else rng.choice((1, 1, 2, 3))
        for life in range(lives):
            from_: Time | None = None
            if backbone and late_begin:
                from_ = begin
            elif joins and not backbone and rng.random() < 0.75:
                from_ = rng.randint(-1, span + 4)
            lacking = missing and rng.random() < 0.5
            elements = present.stream(from_, begin, doubtful if lacking else None)
            stays = backbone or (life == lives - 1 and not (detaches and rng.random() < 0.3))
            unfinished = not backbone and rng.random() < 0.15  # when the run ends
            if unfinished or not stays:
                elements = elements[: rng.randint(0, len(elements))]
            arrivals.append(("attach", name, from_))
            arrivals.extend(("element", name, e) for e in elements)
            if not stays:
                arrivals.append(("detach", name))
        lists.append(arrivals)

    return Run(
        seed=f"random_run({seed}, restriction={restriction!r}, streams={streams}, size={size}, "
        f"horizon={horizon}, joins={joins}, late_begin={late_begin}, missing={missing}, "
        f"detaches={detaches}, revisions={revisions})",
        restriction=restriction,
        streams=names,
        arrivals=_interleave(rng, lists, late=joins),
        truth=Counter(present.truth),
        begin=begin,
        doubtful=frozenset(doubtful),
        consistent=not (joins or late_begin or missing),
    )


def _interleave(rng: Random, lists: list[list[Arrival]], late: bool) -> list[Arrival]:
    """Any order that keeps each list's own; the first list's attach comes first."""
    result = [lists[0][0]]
    queues = [lists[0][1:], *lists[1:]]
    if not late and rng.random() < 0.5:  # all attach before anything else
        for queue in queues[1:]:
            result.append(queue.pop(0))
    weights = [rng.choice((0.1, 0.5, 1, 1, 1, 3)) for _ in queues]
    starts = [0.0] * len(queues)
    for i in range(1, len(queues)):
        if late or rng.random() < 0.3:
            starts[i] = rng.random() * 1.2 * len(queues[0])
    burst = rng.choice((1, 1, 2, 5))
    done = 0
    while any(queues):
        ready = [i for i, q in enumerate(queues) if q and starts[i] <= done]
        if not ready:  # nobody is running who could make the late ones due
            ready = [i for i, q in enumerate(queues) if q]
        i = rng.choices(ready, [weights[i] for i in ready])[0]
        for _ in range(rng.randint(1, burst)):
            if queues[i]:
                result.append(queues[i].pop(0))
                done += 1
    return result


class _Presenter:
    """One truth, and as many different streams of it as are asked for."""

    def __init__(
        self, rng: Random, restriction: str, size: int, span: int, revisions: bool
    ) -> None:
        self.rng = rng
        self.restriction = restriction
        self.span = span
        self.revisions = revisions
        self.keyed = restriction in ("R2", "R3")
        self.truth: list[Event] = []
        for _ in range(size):
            self._draw_event()
        if restriction in ("R0", "R1", "R2"):
            self.truth.sort(key=lambda event: event[1])  # keeps the drawn order of ties, for R1
        self.true_keys = {(p, vs) for p, vs, _ in self.truth}
        # Streams draw their spurious events from few keys, so that they sometimes share one.
        self.spurious = [
            key
            for _ in range(3)
            if (key := (rng.choice(PAYLOADS), rng.randint(0, span))) not in self.true_keys
            or restriction == "R4"
        ]

    def _draw_event(self) -> None:
        rng = self.rng
        if self.restriction in ("R1", "R4") and self.truth and rng.random() < 0.35:
            p, vs, ve = rng.choice(self.truth)  # the same (p, vs), with the same or another end
            self.truth.append((p, vs, ve if rng.random() < 0.5 else self._end(vs)))
            return
        p, vs = rng.choice(PAYLOADS), rng.randint(0, self.span)
        if self.keyed and any((p, vs) == (q, v) for q, v, _ in self.truth):
            return
        if self.restriction == "R0" and any(vs == other for _, other, _ in self.truth):
            return
        self.truth.append((p, vs, self._end(vs)))

    def _end(self, vs: Time) -> Time:
        rng = self.rng
        if rng.random() < 0.12:
            return INF
        return vs + rng.randint(1, rng.choice((2, self.span)))

    def stream(self, from_: Time | None, begin: Time, doubtful: set[Key] | None) -> list[Element]:
        """A complete stream; with `doubtful`, one that lacks some events, which are added to it."""
        events = list(self.truth)
        if doubtful is not None:
            events = self._without_some(events, doubtful)
        # In R1 streams are told apart from replays by counting ties, so that one which is merged
        # from the beginning cannot be allowed to skip or to add any.
        if from_ is not None and not (self.restriction == "R1" and from_ <= begin):
            events = self._right_from(events, from_)
        if self.restriction in ("R0", "R1", "R2"):
            return self._in_order(events)
        return self._in_any_order(events)

    def _without_some(self, events: list[Event], doubtful: set[Key]) -> list[Event]:
        rng = self.rng
        if not events:
            return events
        lacks: set[int] = set()
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(events))
            lacks.add(i)
            if self.restriction == "R1":  # also the ties after it: counting cannot see a hole
                vs = events[i][1]
                lacks.update(j for j in range(i, len(events)) if events[j][1] == vs)
        doubtful.update((events[i][0], events[i][1]) for i in lacks)
        return [event for i, event in enumerate(events) if i not in lacks]

    def _right_from(self, events: list[Event], from_: Time) -> list[Event]:
        """What a stream with a `from` may show instead: right only about ve >= from."""
        rng = self.rng
        shown: list[Event] = []
        for p, vs, ve in events:
            if ve >= from_:
                shown.append((p, vs, ve))
            elif rng.random() < 0.6:
                wrong = rng.random() < 0.5
                shown.append((p, vs, rng.randint(int(vs) + 1, int(from_) - 1) if wrong else ve))
        for _ in range(rng.choice((0, 0, 1, 2))):
            if from_ < 2:
                break
            p, vs = rng.choice(PAYLOADS), rng.randint(0, min(self.span, int(from_) - 2))
            taken = (p, vs) in self.true_keys or any((p, vs) == (q, v) for q, v, _ in shown)
            if self.restriction == "R0":
                taken = any(vs == v for _, v, _ in shown)
            if not taken or self.restriction in ("R1", "R4"):
                shown.append((p, vs, rng.randint(vs + 1, int(from_) - 1)))
        if self.restriction in ("R0", "R1", "R2"):
            shown.sort(key=lambda event: event[1])
        return shown

    def _in_order(self, events: list[Event]) -> list[Element]:
        events = list(events)
        if self.restriction == "R2":
            self.rng.shuffle(events)
            events.sort(key=lambda event: event[1])
        return self._with_stables([[("insert", *event)] for event in events], disorder=0)

    def _in_any_order(self, events: list[Event]) -> list[Element]:
        rng = self.rng
        chains = [self._chain(p, vs, ve) for p, vs, ve in events]
        if self.revisions:
            keys = {(p, vs) for p, vs, _ in events}
            for p, vs in dict.fromkeys(self.spurious):
                free = self.restriction == "R4" or (p, vs) not in keys
                if free and rng.random() < 0.4:
                    chains.append(self._chain(p, vs, None))
        rng.shuffle(chains)
        return self._with_stables(chains, disorder=rng.choice((0.0, 0.3, 0.7, 1.0)))

    def _chain(self, p: Any, vs: Time, ve: Time | None) -> list[Element]:
        """The elements about one event, ending with `ve`, or with its removal (None)."""
        rng = self.rng
        steps: list[Time | None] = []  # ends to show one after the other; None removes
        if self.revisions or ve is None:
            for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
                guess = self._end(vs)
                if ve is not None and rng.random() < 0.4:
                    guess = max(vs + 1, ve + rng.choice((-2, -1, 1, 2)))
                steps.append(guess)
                if rng.random() < 0.12:
                    steps.append(None)
            if ve is None and not steps:
                steps.append(self._end(vs))
        steps.append(ve)
        chain: list[Element] = []
        now: Time | None = None
        for end in steps:
            if now is None and end is not None:
                chain.append(("insert", p, vs, end))
            elif now is not None and end is None:
                chain.append(("adjust", p, vs, now, vs))
            elif now is not None and end is not None and (now != end or rng.random() < 0.1):
                chain.append(("adjust", p, vs, now, end))
            now = end
        return chain

    def _with_stables(self, chains: list[list[Element]], disorder: float) -> list[Element]:
        """Interleave chains, with stables as far as what is still to come allows."""
        rng = self.rng
        result: list[Element] = []
        stable: Time = -1
        often = rng.choice((0.1, 0.3, 0.5))
        chains = [list(chain) for chain in chains if chain]
        while chains:
            limits = [min(_limit(element) for element in chain) for chain in chains]
            if rng.random() < often:
                limit = min(limits)
                draw = rng.random()
                if draw < 0.6 or limit == INF:
                    stable = limit
                elif draw < 0.9:
                    stable = rng.randint(int(stable), int(limit))
                result.append(("stable", stable))  # else the same once more
            i = limits.index(min(limits))
            if rng.random() < disorder:
                i = rng.randrange(len(chains))
            result.append(chains[i].pop(0))
            if not chains[i]:
                del chains[i]
        while stable < INF and rng.random() < 0.4:
            stable = max(stable, 0) + rng.randint(0, self.span)
            result.append(("stable", stable))
        result.append(("stable", INF))
        if rng.random() < 0.1:
            result.append(("stable", INF))
        return result


def _limit(element: Element) -> Time:
    """The largest stable point under which the element may still come."""
    limit: Time = element[2] if element[0] == "insert" else min(element[3], element[4])
    return limit


# ---------------------------------------------------------------------------------------------
# Exhaustive runs


def _i(p: str, vs: Time, ve: Time) -> Element:
    return ("insert", p, vs, ve)


def _a(p: str, vs: Time, vold: Time, ve: Time) -> Element:
    return ("adjust", p, vs, vold, ve)


def _s(vc: Time) -> Element:
    return ("stable", vc)


_END = _s(INF)

_R0_CASES: dict[str, list[list[Element]]] = {
    "leaders change": [
        [_i("a", 1, 3), _i("b", 2, 4), _s(3), _END],
        [_i("a", 1, 3), _s(2), _i("b", 2, 4), _END],
    ],
    "a start equal to the stable point": [
        [_s(1), _i("a", 1, 5), _s(2), _i("b", 2, INF)],
        [_i("a", 1, 5), _i("b", 2, INF), _END],
    ],
    "three streams": [
        [_i("a", 1, 2), _i("b", 2, 3), _END],
        [_i("a", 1, 2), _s(2), _i("b", 2, 3)],
        [_s(1), _i("a", 1, 2), _i("b", 2, 3)],
    ],
}

_R1_CASES: dict[str, list[list[Element]]] = {
    "ties and a duplicate": [
        [_i("b", 1, 3), _i("a", 1, 3), _i("b", 1, 3), _END],
        [_i("b", 1, 3), _i("a", 1, 3), _i("b", 1, 3), _s(2)],
    ],
    "a tie at the stable point": [
        [_i("a", 1, 3), _s(1), _i("a", 1, 4), _i("b", 2, 3), _END],
        [_i("a", 1, 3), _i("a", 1, 4), _s(2), _i("b", 2, 3)],
    ],
    "three streams of ties": [
        [_i("a", 1, 2), _i("b", 1, 2), _END],
        [_i("a", 1, 2), _s(1), _i("b", 1, 2)],
        [_i("a", 1, 2), _i("b", 1, 2), _s(2)],
    ],
}

_R2_CASES: dict[str, list[list[Element]]] = {
    "ties in either order": [
        [_i("a", 1, 3), _i("b", 1, 4), _i("c", 2, 3), _END],
        [_i("b", 1, 4), _i("a", 1, 3), _s(2), _i("c", 2, 3)],
    ],
    "a tie at the stable point": [
        [_s(1), _i("a", 1, 3), _s(1), _i("b", 1, 4), _END],
        [_i("b", 1, 4), _i("a", 1, 3), _s(2)],
    ],
    "three streams of ties": [
        [_i("a", 1, 2), _i("b", 1, 2), _END],
        [_i("b", 1, 2), _s(1), _i("a", 1, 2)],
        [_i("b", 1, 2), _i("a", 1, 2), _s(2)],
    ],
}

_R3_CASES: dict[str, list[list[Element]]] = {
    "an end revised twice": [
        [_i("a", 1, 9), _a("a", 1, 9, 4), _a("a", 1, 4, 5), _s(6), _END],
        [_i("a", 1, 5), _s(5), _END],
    ],
    "an end equal to the stable point": [
        [_i("a", 1, 5), _s(5), _a("a", 1, 5, 7), _END],
        [_i("a", 1, 7), _s(7), _END],
    ],
    "an extension step by step": [
        [_i("a", 1, 3), _s(3), _a("a", 1, 3, 5), _s(5), _a("a", 1, 5, 7)],
        [_i("a", 1, 9), _s(2), _a("a", 1, 9, 7), _END],
    ],
    "a start equal to the stable point": [
        [_s(2), _i("a", 2, 3), _s(3), _END],
        [_i("a", 2, 4), _s(2), _a("a", 2, 4, 3), _END],
    ],
    "a spurious event": [
        [_i("x", 2, 6), _i("a", 1, 4), _a("x", 2, 6, 2), _END],
        [_i("a", 1, 4), _s(2), _s(4), _END],
    ],
    "a spurious event in both": [
        [_i("x", 2, 6), _s(2), _a("x", 2, 6, 2), _END],
        [_i("x", 2, 3), _a("x", 2, 3, 5), _a("x", 2, 5, 2), _s(3)],
    ],
    "removed and inserted again": [
        [_i("a", 2, 5), _a("a", 2, 5, 2), _i("a", 2, 4), _END],
        [_i("a", 2, 4), _s(3), _END],
    ],
    "an infinite end made finite": [
        [_i("a", 1, INF), _s(3), _a("a", 1, INF, 3), _END],
        [_i("a", 1, 3), _s(3), _END],
    ],
    "an infinite end kept": [
        [_i("a", 1, INF), _s(2), _END],
        [_i("a", 1, 4), _s(4), _a("a", 1, 4, INF), _END],
    ],
    "equal starts and equal payloads": [
        [_i("a", 1, 3), _i("b", 1, 2), _i("a", 2, 3), _END],
        [_i("a", 2, 3), _i("b", 1, 4), _a("b", 1, 4, 2), _i("a", 1, 3), _s(3)],
    ],
    "three streams": [
        [_i("a", 1, 9), _a("a", 1, 9, 3), _END],
        [_i("a", 1, 3), _s(3), _s(4)],
        [_i("x", 1, 2), _a("x", 1, 2, 1), _i("a", 1, 4)],
    ],
    "three streams and a removal": [
        [_i("a", 2, 4), _s(2), _a("a", 2, 4, 2), _END],
        [_i("a", 2, 9), _a("a", 2, 9, 2), _s(4)],
        [_s(2), _s(3)],
    ],
}

_R4_CASES: dict[str, list[list[Element]]] = {
    "two ends for one key": [
        [_i("a", 1, 3), _i("a", 1, 5), _s(4), _END],
        [_i("a", 1, 5), _i("a", 1, 5), _a("a", 1, 5, 3), _END],
    ],
    "a duplicate": [
        [_i("a", 1, 3), _i("a", 1, 3), _s(3), _END],
        [_i("a", 1, 4), _i("a", 1, 2), _a("a", 1, 4, 3), _a("a", 1, 2, 3), _s(4)],
    ],
    "a spurious duplicate": [
        [_i("a", 1, 3), _i("a", 1, 3), _a("a", 1, 3, 1), _END],
        [_i("a", 1, 4), _s(2), _a("a", 1, 4, 3), _s(4)],
    ],
    "two ends change places": [
        [_i("a", 1, 4), _i("a", 1, 6), _s(4), _a("a", 1, 4, 8), _END],
        [_i("a", 1, 8), _i("a", 1, 6), _s(7), _END],
    ],
    "two infinite ends, one of them kept": [
        [_i("a", 1, INF), _i("a", 1, INF), _s(2), _a("a", 1, INF, 2), _END],
        [_i("a", 1, 2), _i("a", 1, INF), _s(3)],
    ],
    "three streams of duplicates": [
        [_i("a", 1, 2), _i("a", 1, 4), _END],
        [_i("a", 1, 4), _i("a", 1, 2), _s(3)],
        [_i("a", 1, 3), _s(1), _a("a", 1, 3, 4)],
    ],
}

_STREAM_CASES: dict[str, dict[str, list[list[Element]]]] = {
    "R0": _R0_CASES,
    "R1": {**_R0_CASES, **_R1_CASES},
    "R2": {**_R0_CASES, **_R2_CASES},
    "R3": {**_R0_CASES, **_R2_CASES, **_R3_CASES},
    "R4": {**_R0_CASES, **_R1_CASES, **_R3_CASES, **_R4_CASES},
}

# The second stream of each comes later, with the given `from`, and leaves in the end. What it says
# of events that end before `from` is wrong on purpose.
_JOIN_CASES_ORDERED: dict[str, tuple[list[Element], Time, list[Element]]] = {
    "joins": (
        [_i("a", 1, 9), _i("b", 2, 3), _i("c", 4, 5), _END],
        3,
        [_i("a", 1, 9), _i("b", 2, 3), _s(3), _i("c", 4, 5)],
    ),
    "joins without what has ended": (
        [_i("a", 1, 2), _s(2), _i("b", 3, 5), _END],
        3,
        [_i("x", 0, 1), _i("b", 3, 5), _END],
    ),
}
_JOIN_CASES_REVISING: dict[str, tuple[list[Element], Time, list[Element]]] = {
    "joins and leads": (
        [_i("a", 1, 9), _s(3), _a("a", 1, 9, 5), _END],
        3,
        [_i("x", 1, 2), _i("a", 1, 5), _END],
    ),
    "joins with a wrong past": (
        [_i("a", 1, 2), _i("b", 2, 4), _s(4), _END],
        3,
        [_i("a", 1, 7), _a("a", 1, 7, 1), _i("b", 2, 4), _s(6)],
    ),
    "promises what is far away": (
        [_i("a", 1, INF), _s(2), _a("a", 1, INF, 4), _END],
        5,
        [_s(6), _END],
    ),
}


def exhaustive_runs(restriction: str) -> Iterator[Run]:
    """Every interleaving of the hand-picked streams that a restriction admits."""
    for name, streams in _STREAM_CASES[restriction].items():
        names = tuple(f"s{i}" for i in range(len(streams)))
        truth = _truth_of(streams, restriction)
        attaches: list[Arrival] = [("attach", stream, None) for stream in names]
        lists: list[list[Arrival]] = [
            [("element", stream, e) for e in elements]
            for stream, elements in zip(names, streams, strict=True)
        ]
        for number, arrivals in enumerate(_interleavings(lists)):
            seed = f"exhaustive {restriction}, {name}, number {number}"
            yield Run(seed, restriction, names, attaches + arrivals, truth)
    cases = dict(_JOIN_CASES_ORDERED)
    if restriction in ("R3", "R4"):
        cases |= _JOIN_CASES_REVISING
    for name, (backbone, from_, joiner) in cases.items():
        truth = reconstitute(backbone, restriction)
        lists = [
            [("element", "s0", e) for e in backbone],
            [
                ("attach", "s1", from_),
                *(("element", "s1", e) for e in joiner),
                ("detach", "s1"),
            ],
        ]
        for number, arrivals in enumerate(_interleavings(lists)):
            seed = f"exhaustive {restriction}, {name}, number {number}"
            attach: list[Arrival] = [("attach", "s0", None)]
            yield Run(seed, restriction, ("s0", "s1"), attach + arrivals, truth, consistent=False)


def _truth_of(streams: list[list[Element]], restriction: str) -> Tdb:
    truth = reconstitute(streams[0], restriction)
    for elements in streams[1:]:
        # Only streams that have ended agree; the others must merely be able to.
        if elements[-1] == _END and reconstitute(elements, restriction) != truth:
            raise ValueError(f"streams of a case disagree: {streams}")
    return truth


def _interleavings(lists: list[list[Arrival]]) -> Iterator[list[Arrival]]:
    if not any(lists):
        yield []
        return
    for i, arrivals in enumerate(lists):
        if arrivals:
            rest = [*lists[:i], arrivals[1:], *lists[i + 1 :]]
            for tail in _interleavings(rest):
                yield [arrivals[0], *tail]
