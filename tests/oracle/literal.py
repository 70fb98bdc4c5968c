"""The algorithms R0 to R4 of the LMerge paper, one element at a time, on Python objects.

Numbers in comments are the lines of the paper's pseudo-code. Where the code departs from them the
comment says why. Policies are the default ones: an insert is output when the first joined stream
has it, adjusts are lazy, the stable point does not lag.

Departures that all algorithms share:

1. A stream that guarantees only what ends at or after its `from` is JOINING until the output has
   got that far. In R3 and R4 it is recorded in the index, and neither outputs nor decides; in R0
   to R2 its elements wait in order. Streams due at the same moment are joined in the order in
   which they attached; each contributes its events, then its stable, before the next one is.
2. The first stream to attach fixes where the output begins. In R3 and R4 a stable below that
   moves nothing: the stream that sent it may not know what lives there, and half freezing a
   partial answer could not be mended by a stream that knows better.
3. The output never breaks its own stable promise, whatever the inputs do.

Cost: as printed. In particular a stable visits every node with `vs < t`.
"""

from collections.abc import Iterator
from typing import Any

from sortedcontainers import SortedDict

from .tdb import INF, ContractError, Element, Payload, Time

JOINING = "JOINING"
JOINED = "JOINED"


class Stream:
    """An attached input. `waiting` and `last_vs` are used by R0 to R2 only."""

    __slots__ = ("from_", "joined", "last_vs", "name", "stable", "waiting")

    def __init__(self, name: str, from_: Time) -> None:
        self.name = name
        self.from_ = from_
        self.joined = False
        self.stable: Time = -INF
        self.last_vs: Time = -INF
        self.waiting: list[Element] = []


class LiteralMerge:
    """What the five algorithms share: streams, their states, and the contract of their stables."""

    def __init__(self) -> None:
        self.max_stable: Time = -INF  # 1
        self.begin: Time | None = None  # fixed by the first stream to attach
        self.conflicts = 0
        self._streams: dict[str, Stream] = {}
        self._gone: set[str] = set()
        self._joining = 0
        self._out: list[Element] = []

    @property
    def states(self) -> dict[str, str]:
        """The state of each attached stream, in the order in which they attached."""
        return {s.name: JOINED if s.joined else JOINING for s in self._streams.values()}

    def attach(self, stream: str, from_: Time | None = None) -> None:
        """Attach a stream that promises the right TDB for every event with ve >= from_."""
        if stream in self._streams:
            raise ContractError(f"stream {stream!r} is attached already")
        s = Stream(stream, -INF if from_ is None else from_)
        if self.begin is None:
            self.begin = s.from_
        self._streams[stream] = s
        self._gone.discard(stream)
        if s.from_ <= self._progress():
            s.joined = True  # it has shown nothing yet, so there is nothing to contribute
        else:
            self._joining += 1

    def detach(self, stream: str) -> None:
        """Forget a stream's entries; what it alone supported waits for a stable to decide."""
        s = self._streams.pop(stream, None)
        if s is None:
            raise ContractError(f"stream {stream!r} is not attached")
        self._gone.add(stream)
        if not s.joined:
            self._joining -= 1
        self._forget(s)

    def arrive(self, stream: str, element: Element) -> list[Element]:
        """Take one element of a stream; the output elements that it causes."""
        s = self._streams.get(stream)
        if s is None:
            if stream in self._gone:
                raise ContractError(f"stream {stream!r} was detached, and sends {element}")
            self.attach(stream)
            s = self._streams[stream]
        out: list[Element] = []
        self._out = out
        self._element(element, s)
        if self._joining:
            self._join_those_due()
        return out

    def apply(self, arrival: tuple[Any, ...]) -> list[Element]:
        """Take an arrival of any kind; the output elements that it causes."""
        if arrival[0] == "element":
            return self.arrive(arrival[1], arrival[2])
        if arrival[0] == "attach":
            self.attach(arrival[1], arrival[2])
        else:
            self.detach(arrival[1])
        return []

    def _join_those_due(self) -> None:
        # Each one that joins may move the output, and so make another one due.
        while due := [s for s in self._streams.values() if not s.joined]:
            progress = self._progress()
            s = next((s for s in due if s.from_ <= progress), None)
            if s is None:
                return
            s.joined = True
            self._joining -= 1
            self._contribute(s)

    def _progress(self) -> Time:
        """How far the output has got: a stream that promises what comes after may join."""
        assert self.begin is not None
        return max(self.begin, self.max_stable)

    def _element(self, element: Element, s: Stream) -> None:
        raise NotImplementedError

    def _contribute(self, s: Stream) -> None:
        raise NotImplementedError

    def _forget(self, s: Stream) -> None:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------
# R0, R1, R2: inserts in order of vs


class OrderedMerge(LiteralMerge):
    """What R0, R1 and R2 share: the order, stables, and elements that wait."""

    strictly_increasing = False

    def __init__(self) -> None:
        super().__init__()
        self.max_vs: Time = -INF  # 1

    def _progress(self) -> Time:
        # Order is a promise too: whoever delivered max_vs has delivered all that is below it.
        return max(super()._progress(), self.max_vs)

    def _element(self, element: Element, s: Stream) -> None:
        kind = element[0]
        if kind == "insert":
            _, _, vs, ve = element
            if ve <= vs or vs < s.stable or vs < s.last_vs:
                raise ContractError(f"{s.name}: {element} is out of order, or empty")
            if self.strictly_increasing and vs == s.last_vs:
                raise ContractError(f"{s.name}: {element} does not increase vs")
            s.last_vs = vs
        elif kind == "stable":
            if element[1] < s.stable:
                raise ContractError(f"{s.name}: {element} is below {s.stable}")
            s.stable = element[1]
        else:
            raise ContractError(f"{s.name}: {element}: not supported")  # R0 6-7, R1 and R2 11-12
        if s.joined:
            self._merge(element, s)
        else:
            s.waiting.append(element)

    def _merge(self, element: Element, s: Stream) -> None:
        if element[0] == "insert":
            # Not in the paper: after stable(m) the output must not insert below m. With streams
            # that lack nothing, such an element is always one that was output before.
            if element[2] >= self.max_stable:
                self._insert(element, s)
        elif element[1] > self.max_stable:  # R0 8-9, R1 and R2 13-14
            self.max_stable = element[1]  # R0 10, R1 and R2 15
            self._out.append(element)  # R0 11, R1 and R2 16

    def _insert(self, e: Element, s: Stream) -> None:
        raise NotImplementedError

    def _contribute(self, s: Stream) -> None:
        waiting, s.waiting = s.waiting, []
        for element in waiting:
            self._merge(element, s)

    def _forget(self, s: Stream) -> None:
        pass


class LiteralR0(OrderedMerge):
    """Strictly increasing vs."""

    strictly_increasing = True

    def _insert(self, e: Element, s: Stream) -> None:  # 2
        vs = e[2]
        if vs > self.max_vs:  # 3
            self.max_vs = vs  # 4
            self._out.append(e)  # 5


class LiteralR1(OrderedMerge):
    """Non-decreasing vs, ties in the same order everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._same_vs_count: dict[str, int] = {}  # 2
        # Instead of MAX(SameVsCount): what was output stays output when its stream detaches.
        self._out_count = 0

    def _insert(self, e: Element, s: Stream) -> None:  # 3
        vs = e[2]
        if vs < self.max_vs:  # 4
            return
        if vs > self.max_vs:  # 5
            self._same_vs_count.clear()  # 6
            self._out_count = 0
            self.max_vs = vs  # 7
        count = self._same_vs_count.get(s.name, 0)
        if count == self._out_count:  # 8
            self._out.append(e)  # 9
            self._out_count += 1
        self._same_vs_count[s.name] = count + 1  # 10

    def _forget(self, s: Stream) -> None:
        self._same_vs_count.pop(s.name, None)


class LiteralR2(OrderedMerge):
    """Non-decreasing vs, ties in any order, (vs, payload) a key."""

    def __init__(self) -> None:
        super().__init__()
        # 2: and who delivered each payload, since a second time by the same stream breaks the key
        self._hash: dict[Payload, set[str]] = {}

    def _insert(self, e: Element, s: Stream) -> None:  # 3
        _, p, vs, _ = e
        if vs < self.max_vs:  # 4
            return
        if vs > self.max_vs:  # 5
            self._hash.clear()  # 6
            self.max_vs = vs  # 7
        delivered_by = self._hash.get(p)
        if delivered_by is None:  # 8
            self._hash[p] = {s.name}  # 9
            self._out.append(e)  # 10
        elif s.name in delivered_by:
            raise ContractError(f"{s.name}: {e}: second event for the key {(p, vs)}")
        else:
            delivered_by.add(s.name)

    def _forget(self, s: Stream) -> None:
        for delivered_by in self._hash.values():
            delivered_by.discard(s.name)


# ---------------------------------------------------------------------------------------------
# R3, R4: revisions and disorder


class IndexedMerge(LiteralMerge):
    """What R3 and R4 share: contracts, and stables of joined streams only."""

    def __init__(self) -> None:
        super().__init__()
        self._index = SortedDict()  # 2: (vs, payload) -> node

    def _element(self, element: Element, s: Stream) -> None:
        kind = element[0]
        if kind == "insert":
            _, p, vs, ve = element
            if ve <= vs or vs < s.stable:
                raise ContractError(f"{s.name}: {element} with stable point {s.stable}")
            self._insert(p, vs, ve, s)
        elif kind == "adjust":
            _, p, vs, vold, ve = element
            if vold <= vs or ve < vs or vold < s.stable or ve < s.stable:
                raise ContractError(f"{s.name}: {element} with stable point {s.stable}")
            self._adjust(p, vs, vold, ve, s)
        else:
            (_, t) = element
            if t < s.stable:
                raise ContractError(f"{s.name}: {element} is below {s.stable}")
            s.stable = t
            if s.joined:
                self._stable(t, s)

    def _find_half_frozen(self, t: Time) -> Iterator[tuple[tuple[Time, Payload], Any]]:
        index = self._index
        # A list, because the loop deletes nodes. (t,) sorts before every (t, payload).
        for key in list(index.irange(maximum=(t,), inclusive=(True, False))):
            yield key, index[key]

    def _unfrozen(self) -> Iterator[tuple[tuple[Time, Payload], Any]]:
        index = self._index
        for key in list(index.irange(minimum=(self.max_stable,))):
            yield key, index[key]

    def _decides_nothing(self, t: Time) -> bool:
        """Line 16 of both, and what begins before the output does (departure 2)."""
        assert self.begin is not None
        return t <= self.max_stable or t < self.begin

    def _others_by_stable(self, s: Stream) -> list[Stream]:
        # sorted() is stable, also in reverse: of equals the one that attached first is asked first
        others = [o for o in self._streams.values() if o.joined and o is not s]
        return sorted(others, key=lambda o: o.stable, reverse=True)

    def _contribute(self, s: Stream) -> None:
        self._output_what_it_has(s)
        self._stable(s.stable, s)

    def _insert(self, p: Payload, vs: Time, ve: Time, s: Stream) -> None:
        raise NotImplementedError

    def _adjust(self, p: Payload, vs: Time, vold: Time, ve: Time, s: Stream) -> None:
        raise NotImplementedError

    def _stable(self, t: Time, s: Stream) -> None:
        raise NotImplementedError

    def _output_what_it_has(self, s: Stream) -> None:
        raise NotImplementedError


class Node2:
    """in2t: the end that each stream gives the event, and the output's (None: not output)."""

    __slots__ = ("ends", "out")

    def __init__(self) -> None:
        self.ends: dict[str, Time] = {}
        self.out: Time | None = None


class LiteralR3(IndexedMerge):
    """Any order, revisions, (vs, payload) a key."""

    def _insert(self, p: Payload, vs: Time, ve: Time, s: Stream) -> None:  # 3
        f = self._index.get((vs, p))  # 4
        if f is None:  # 5
            if vs < self.max_stable:  # 6
                return
            f = self._index[vs, p] = Node2()  # 7
        elif s.name in f.ends:
            raise ContractError(f"{s.name}: second event for the key {(p, vs)}")
        # Lines 8 and 9 belong to the making of a node in the paper. Here a joining stream may have
        # made it. A node below max_stable always has its output, so this never comes too late.
        if f.out is None and s.joined:
            self._out.append(("insert", p, vs, ve))  # 8
            f.out = ve  # 9
        f.ends[s.name] = ve  # 10

    def _adjust(self, p: Payload, vs: Time, vold: Time, ve: Time, s: Stream) -> None:  # 11
        f = self._index.get((vs, p))  # 12
        if f is None:  # 13
            return
        if f.ends.get(s.name) != vold:
            raise ContractError(f"{s.name}: there is no event {(p, vs, vold)}")
        if ve == vs:
            del f.ends[s.name]
        else:
            f.ends[s.name] = ve  # 14

    def _stable(self, t: Time, s: Stream) -> None:  # 15
        if self._decides_nothing(t):  # 16
            return
        m = self.max_stable
        for key, f in self._find_half_frozen(t):  # 17-18
            vs, p = key
            in_ve = f.ends.get(s.name, vs)  # 19-20
            if vs < m and in_ve < m:  # it could not be output any more: s is at fault
                in_ve = self._answer_of_another(f, s)
            out_ve = f.out  # 21
            if out_ve is None:  # only joining streams had it
                if in_ve > vs:
                    self._out.append(("insert", p, vs, in_ve))
                    f.out = in_ve
            elif in_ve != out_ve and (in_ve < t or out_ve < t):  # 22-23
                self._out.append(("adjust", p, vs, out_ve, in_ve))  # 24
                f.out = in_ve  # 25: only here, the output keeps its end otherwise
            if in_ve < t:  # 26
                del self._index[key]  # 27
        self.max_stable = t  # 28
        self._out.append(("stable", t))  # 29

    def _answer_of_another(self, f: Node2, s: Stream) -> Time:
        self.conflicts += 1
        for other in self._others_by_stable(s):
            end = f.ends.get(other.name)
            if end is not None and end >= self.max_stable:
                return end
        assert f.out is not None  # every node below max_stable was output
        return f.out

    def _output_what_it_has(self, s: Stream) -> None:
        for (vs, p), f in self._unfrozen():
            if f.out is None and s.name in f.ends:
                f.out = f.ends[s.name]
                self._out.append(("insert", p, vs, f.out))

    def _forget(self, s: Stream) -> None:
        for key, f in list(self._index.items()):
            f.ends.pop(s.name, None)
            if f.out is None and not f.ends:
                del self._index[key]


class Ends:
    """in3t's third tier: a multiset of ends, ordered, and its size."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = SortedDict()
        self.total = 0

    def increment(self, ve: Time) -> None:
        self.counts[ve] = self.counts.get(ve, 0) + 1
        self.total += 1

    def decrement(self, ve: Time) -> None:
        if self.counts[ve] == 1:
            del self.counts[ve]
        else:
            self.counts[ve] -= 1
        self.total -= 1

    def at_least(self, floor: Time) -> list[Time]:
        """The ends >= floor in order, each as often as it occurs."""
        return [ve for ve in self.counts.irange(minimum=floor) for _ in range(self.counts[ve])]


class Node3:
    """in3t: the ends that each stream gives to (vs, payload), and the output's."""

    __slots__ = ("ends", "out")

    def __init__(self) -> None:
        self.ends: dict[str, Ends] = {}
        self.out = Ends()


class LiteralR4(IndexedMerge):
    """No restriction: a multiset of events."""

    def _insert(self, p: Payload, vs: Time, ve: Time, s: Stream) -> None:  # 3
        f = self._index.get((vs, p))  # 4
        if f is None:  # 5
            if vs < self.max_stable:  # 6
                return
            f = self._index[vs, p] = Node3()  # 7
        mine = f.ends.get(s.name)
        if mine is None:
            mine = f.ends[s.name] = Ends()
        mine.increment(ve)  # 8
        if s.joined and vs >= self.max_stable and mine.total > f.out.total:  # 9
            self._out.append(("insert", p, vs, ve))  # 10
            f.out.increment(ve)  # 11

    def _adjust(self, p: Payload, vs: Time, vold: Time, ve: Time, s: Stream) -> None:  # 12
        f = self._index.get((vs, p))  # 13
        if f is None:  # 14
            return
        mine = f.ends.get(s.name)
        if mine is None or vold not in mine.counts:
            raise ContractError(f"{s.name}: there is no event {(p, vs, vold)}")
        if ve > vs:
            mine.increment(ve)  # 15
        mine.decrement(vold)

    def _stable(self, t: Time, s: Stream) -> None:  # 16
        if self._decides_nothing(t):  # 17
            return
        m = self.max_stable
        for key, f in self._find_half_frozen(t):  # 18-19
            vs, p = key
            # Below the old stable point only ends >= m can still change; above it all can, and
            # all of them are >= m.
            mine = f.ends.get(s.name)
            answer = mine.at_least(m) if mine is not None else []
            output = f.out.at_least(m)
            if vs < m and len(answer) != len(output):
                answer = self._answer_of_another(f, s, output)
            wanted, present = _without_equals(answer, output)
            if wanted or present:
                if vs >= m:  # 20
                    self._adjust_output_count(p, vs, t, f.out, wanted, present)  # 22
                self._adjust_output(p, vs, t, f.out, wanted, present)  # 23-26
            if not answer or answer[-1] < t:  # 27
                del self._index[key]  # 28
        self.max_stable = t  # 29
        self._out.append(("stable", t))  # 30

    def _adjust_output_count(
        self, p: Payload, vs: Time, t: Time, out: Ends, wanted: list[Time], present: list[Time]
    ) -> None:
        """Make both sides equally long, so that the fewest adjusts are left to do.

        A pair of ends that are both >= t costs nothing, so what is inserted or removed is taken
        from the ends < t as long as that side has more of them than the other. Of each kind the
        largest go.
        """
        for _ in range(len(wanted) - len(present)):
            ve = _take_surplus(wanted, present, t)
            self._out.append(("insert", p, vs, ve))
            out.increment(ve)
        for _ in range(len(present) - len(wanted)):
            ve = _take_surplus(present, wanted, t)
            self._out.append(("adjust", p, vs, ve, vs))
            out.decrement(ve)

    def _adjust_output(
        self, p: Payload, vs: Time, t: Time, out: Ends, wanted: list[Time], present: list[Time]
    ) -> None:
        """Pair what is left in order; adjust where the difference would become irrevocable."""
        for in_ve, out_ve in zip(wanted, present, strict=True):
            if in_ve < t or out_ve < t:
                self._out.append(("adjust", p, vs, out_ve, in_ve))
                out.decrement(out_ve)
                out.increment(in_ve)

    def _answer_of_another(self, f: Node3, s: Stream, output: list[Time]) -> list[Time]:
        self.conflicts += 1
        for other in self._others_by_stable(s):
            ends = f.ends.get(other.name)
            if ends is not None:
                answer = ends.at_least(self.max_stable)
                if len(answer) == len(output):
                    return answer
        return output

    def _output_what_it_has(self, s: Stream) -> None:
        for (vs, p), f in self._unfrozen():
            mine = f.ends.get(s.name)
            if mine is None or mine.total <= f.out.total:
                continue
            wanted, _ = _without_equals(mine.at_least(vs), f.out.at_least(vs))
            for ve in wanted[: mine.total - f.out.total]:
                self._out.append(("insert", p, vs, ve))
                f.out.increment(ve)

    def _forget(self, s: Stream) -> None:
        for key, f in list(self._index.items()):
            f.ends.pop(s.name, None)
            if not f.out.total and not f.ends:
                del self._index[key]


def _without_equals(left: list[Time], right: list[Time]) -> tuple[list[Time], list[Time]]:
    """What is left of two sorted lists when equal members are matched, one by one."""
    if left == right:
        return [], []
    only_left: list[Time] = []
    only_right: list[Time] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            i += 1
            j += 1
        elif left[i] < right[j]:
            only_left.append(left[i])
            i += 1
        else:
            only_right.append(right[j])
            j += 1
    return only_left + left[i:], only_right + right[j:]


def _take_surplus(longer: list[Time], shorter: list[Time], t: Time) -> Time:
    low = sum(ve < t for ve in longer)
    if low > sum(ve < t for ve in shorter):
        return longer.pop(low - 1)
    return longer.pop()


_ALGORITHMS: dict[str, type[LiteralMerge]] = {
    "R0": LiteralR0,
    "R1": LiteralR1,
    "R2": LiteralR2,
    "R3": LiteralR3,
    "R4": LiteralR4,
}


def make_literal(restriction: str) -> LiteralMerge:
    """The literal algorithm for a restriction, "R0" to "R4"."""
    return _ALGORITHMS[restriction]()
