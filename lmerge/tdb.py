"""The temporal database that a stream reconstitutes to, and the comparison of two of them.

:class:`Tdb` takes one stream's elements in order. Callers may rely on this: after every element
it holds exactly the multiset of events that the elements so far describe; an element that breaks
the stream's contract raises :class:`~lmerge.errors.BrokenPromiseError` and changes nothing.

Payloads are hashable and compared by equality; sorted output orders them by their text. An
element costs O(1), a comparison O(events). Nothing is freed: this is the model, for people,
tests and ``lmerge check``, not the merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from typing import Any, NamedTuple

from lmerge.elements import Adjust, Element, Event, Freeze, Insert, Stable
from lmerge.elements import freeze as freeze_status
from lmerge.errors import BrokenPromiseError
from lmerge.times import BEGINNING, INFINITY, show

Key = tuple[int, Any]
"""``(vs, payload)``: what an adjust cannot change."""

Ends = dict[int, int]
"""A multiset of ends: how many events of a key end when."""


class Tdb:
    """Reconstitutes one stream. ``keyed`` streams have at most one event for a (vs, payload)."""

    def __init__(self, keyed: bool = False, name: str = "stream") -> None:
        self.name = name
        self.keyed = keyed
        self.stable_point = BEGINNING
        self.inserts = 0
        self.adjusts = 0
        self.stables = 0
        self._ends: dict[Key, Ends] = {}
        self._size = 0

    def apply(self, element: Element) -> None:
        """Takes the next element, or raises ``BrokenPromiseError`` and stays as it was."""
        if isinstance(element, Insert):
            self._insert(element)
        elif isinstance(element, Adjust):
            self._adjust(element)
        else:
            self._stable(element)

    def apply_all(self, elements: Iterable[Element]) -> Tdb:
        """Takes many elements, and returns itself."""
        for element in elements:
            self.apply(element)
        return self

    def __len__(self) -> int:
        """The number of events, duplicates counted."""
        return self._size

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events())

    def events(self) -> list[Event]:
        """The events, sorted by (vs, payload, ve); duplicates repeated."""
        return [
            Event(payload, vs, ve)
            for vs, payload in sorted(self._ends, key=_order)
            for ve in _listed(self._ends[vs, payload])
        ]

    def ends(self, vs: int, payload: Any) -> tuple[int, ...]:
        """When the events of a key end, in order; empty when there are none."""
        return _listed(self._ends.get((vs, payload), {}))

    def freeze(self, event: Event) -> Freeze:
        """How much of ``event`` the stream's stable point has fixed."""
        return freeze_status(event.vs, event.ve, self.stable_point)

    def freeze_counts(self) -> dict[Freeze, int]:
        """How many events there are of each status."""
        counts = dict.fromkeys(Freeze, 0)
        for (vs, _), ends in self._ends.items():
            for ve, count in ends.items():
                counts[freeze_status(vs, ve, self.stable_point)] += count
        return counts

    def keys(self) -> KeysView[Key]:
        """The (vs, payload) of which there are events, in no particular order."""
        return self._ends.keys()

    def _insert(self, element: Insert) -> None:
        payload, vs, ve = element
        self._check_start(vs, element)
        if ve <= vs:
            raise self._broken("insert with an empty lifetime", element)
        if vs < self.stable_point:
            raise self._broken(
                f"insert below its own stable point {show(self.stable_point)}", element
            )
        ends = self._ends.setdefault((vs, payload), {})
        if ends and self.keyed:
            raise self._broken(
                f"second event with the same start and payload (the first ends at "
                f"{show(next(iter(ends)))})",
                element,
            )
        ends[ve] = ends.get(ve, 0) + 1
        self._size += 1
        self.inserts += 1

    def _adjust(self, element: Adjust) -> None:
        payload, vs, vold, ve = element
        self._check_start(vs, element)
        if vold <= vs:
            raise self._broken("adjust of an empty lifetime (vold is not after vs)", element)
        if ve < vs:
            raise self._broken("adjust to an end before the start", element)
        if vold < self.stable_point:
            raise self._broken(
                f"adjust of an end (vold) below its own stable point {show(self.stable_point)}",
                element,
            )
        if ve < self.stable_point:
            raise self._broken(
                f"adjust to an end (ve) below its own stable point {show(self.stable_point)}",
                element,
            )
        ends = self._ends.get((vs, payload), {})
        if vold not in ends:
            there = ", ".join(map(show, _listed(ends)))
            hint = f" (with this start and payload there are events ending at {there})"
            raise self._broken(
                f"adjust of an event that is not there{hint if ends else ''}", element
            )
        _remove(ends, vold)
        if ve > vs:
            ends[ve] = ends.get(ve, 0) + 1
        else:
            self._size -= 1
            if not ends:
                del self._ends[vs, payload]
        self.adjusts += 1

    def _stable(self, element: Stable) -> None:
        if element.vc < self.stable_point:
            raise self._broken(f"stable point goes back from {show(self.stable_point)}", element)
        self.stable_point = element.vc
        self.stables += 1

    def _check_start(self, vs: int, element: Element) -> None:
        if not BEGINNING < vs < INFINITY:
            raise self._broken("start that is not a finite time", element)

    def _broken(self, reason: str, element: Element) -> BrokenPromiseError:
        return BrokenPromiseError(self.name, reason, str(element))


class Difference(NamedTuple):
    """The first key, by (vs, payload), about which two streams disagree, and why that matters."""

    payload: Any
    vs: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    why: str
    name_a: str = "a"
    name_b: str = "b"

    def __str__(self) -> str:
        return (
            f"payload {self.payload} from {show(self.vs)}: {self.name_a} has "
            f"{_lifetimes(self.vs, self.a)}, {self.name_b} has {_lifetimes(self.vs, self.b)}; "
            f"{self.why}"
        )


def equivalent(a: Tdb, b: Tdb) -> Difference | None:
    """``None`` when both are the same multiset of events, whatever their stable points."""
    different = (key for key in a.keys() | b.keys() if a.ends(*key) != b.ends(*key))
    key = min(different, key=_order, default=None)
    return None if key is None else _difference(a, b, key, "their events differ")


def compatible(a: Tdb, b: Tdb) -> Difference | None:
    """``None`` when the two prefixes can still become equivalent.

    With L the smaller stable point, a key that starts at or after L is still free in that
    stream. Of one that starts before L neither stream can add or remove an event any more, and
    the ends before L are final in both: those must be equal, and so must the number of others.
    """
    limit = min(a.stable_point, b.stable_point)
    early = [key for key in a.keys() | b.keys() if key[0] < limit]

    def is_final_different(key: Key) -> bool:
        return _before(a.ends(*key), limit) != _before(b.ends(*key), limit)

    different = (
        key for key in early if len(a.ends(*key)) != len(b.ends(*key)) or is_final_different(key)
    )
    key = min(different, key=_order, default=None)
    if key is None:
        return None
    if is_final_different(key):
        why = f"ends before {show(limit)}, where both are stable, can no longer change"
    else:
        why = (
            f"events starting before {show(limit)}, where both are stable, can be neither added "
            "nor removed"
        )
    return _difference(a, b, key, why)


def _difference(a: Tdb, b: Tdb, key: Key, why: str) -> Difference:
    vs, payload = key
    return Difference(payload, vs, a.ends(*key), b.ends(*key), why, a.name, b.name)


def _order(key: Key) -> tuple[int, str]:
    return key[0], str(key[1])


def _listed(ends: Ends) -> tuple[int, ...]:
    return tuple(ve for ve in sorted(ends) for _ in range(ends[ve]))


def _before(ends: tuple[int, ...], limit: int) -> tuple[int, ...]:
    return tuple(ve for ve in ends if ve < limit)


def _remove(ends: Ends, ve: int) -> None:
    if ends[ve] == 1:
        del ends[ve]
    else:
        ends[ve] -= 1


def _lifetimes(vs: int, ends: tuple[int, ...]) -> str:
    if not ends:
        return "nothing"
    return " and ".join(f"[{show(vs)}, {show(ve)})" for ve in ends)
