"""What a physical stream means: its elements, reconstituted strictly to a temporal database.

Elements are tuples: `("insert", p, vs, ve)`, `("adjust", p, vs, vold, ve)`, `("stable", vc)`.
An adjust with `ve == vs` removes the event. A TDB is a Counter of events `(p, vs, ve)`.

A stream that breaks its contract is refused with a `ContractError` that names the violation and
leaves the reconstitution as it was before the offending element.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

INF = math.inf

Time: TypeAlias = float  # ints in practice, and the two infinities
Payload: TypeAlias = Any  # hashable and orderable
Element: TypeAlias = tuple[Any, ...]
Key: TypeAlias = tuple[Payload, Time]  # (p, vs)
Event: TypeAlias = tuple[Payload, Time, Time]  # (p, vs, ve)
Tdb: TypeAlias = Counter[Event]

RESTRICTIONS = ("R0", "R1", "R2", "R3", "R4")


class ContractError(ValueError):
    """A stream broke its own contract."""


class Reconstitution:
    """The TDB of a growing stream; `restriction` adds what R0, R1, R2 and R3 rule out."""

    def __init__(self, restriction: str = "R4") -> None:
        if restriction not in RESTRICTIONS:
            raise ValueError(f"unknown restriction {restriction!r}")
        self.stable: Time = -INF
        self.last_vs: Time = -INF
        self.ends: dict[Key, Counter[Time]] = {}
        self._insert_only = restriction in ("R0", "R1", "R2")
        self._strict_order = restriction == "R0"
        self._keyed = restriction in ("R2", "R3")

    def apply(self, element: Element) -> None:
        """Take one element, or raise ContractError."""
        kind = element[0]
        if kind == "insert":
            self._insert(element)
        elif kind == "adjust":
            self._adjust(element)
        elif kind == "stable":
            (_, vc) = element
            if vc < self.stable:
                raise ContractError(f"{element}: stable point moved back from {self.stable}")
            self.stable = vc
        else:
            raise ContractError(f"{element}: no such kind of element")

    def _insert(self, element: Element) -> None:
        _, p, vs, ve = element
        if not math.isfinite(vs):
            raise ContractError(f"{element}: vs is not finite")
        if ve <= vs:
            raise ContractError(f"{element}: the event is empty, ve <= vs")
        if vs < self.stable:
            raise ContractError(f"{element}: insert below the stable point {self.stable}")
        if self._insert_only and vs < self.last_vs:
            raise ContractError(f"{element}: vs went back from {self.last_vs}")
        if self._strict_order and vs == self.last_vs:
            raise ContractError(f"{element}: vs is not strictly increasing")
        ends = self.ends.setdefault((p, vs), Counter())
        if self._keyed and ends:
            raise ContractError(f"{element}: second event for the key {(p, vs)}")
        ends[ve] += 1
        self.last_vs = max(self.last_vs, vs)

    def _adjust(self, element: Element) -> None:
        _, p, vs, vold, ve = element
        if self._insert_only:
            raise ContractError(f"{element}: adjust in an insert-only stream")
        if not math.isfinite(vs):
            raise ContractError(f"{element}: vs is not finite")
        if vold <= vs:
            raise ContractError(f"{element}: vold <= vs")
        if ve < vs:
            raise ContractError(f"{element}: ve < vs")
        if vold < self.stable:
            raise ContractError(f"{element}: vold is below the stable point {self.stable}")
        if ve < self.stable:
            raise ContractError(f"{element}: ve is below the stable point {self.stable}")
        ends = self.ends.get((p, vs))
        if ends is None or not ends[vold]:
            raise ContractError(f"{element}: there is no event {(p, vs, vold)}")
        ends[vold] -= 1
        if not ends[vold]:
            del ends[vold]
        if ve > vs:
            ends[ve] += 1
        if not ends:
            del self.ends[p, vs]

    def tdb(self) -> Tdb:
        """The events as they stand. O(events)."""
        return Counter(
            {(p, vs, ve): n for (p, vs), ends in self.ends.items() for ve, n in ends.items()}
        )


def reconstitute(elements: Iterable[Element], restriction: str = "R4") -> Tdb:
    """The TDB of a whole stream; raises ContractError at the first violation."""
    stream = Reconstitution(restriction)
    for number, element in enumerate(elements, 1):
        try:
            stream.apply(element)
        except ContractError as error:
            raise ContractError(f"element {number}: {error}") from None
    return stream.tdb()


def frozen(tdb: Tdb, vc: Time) -> tuple[Tdb, Counter[Key]]:
    """The fully frozen events (ve < vc), and how many half-frozen ones each (p, vs) has."""
    full: Tdb = Counter()
    half: Counter[Key] = Counter()
    for (p, vs, ve), n in tdb.items():
        if ve < vc:
            full[p, vs, ve] += n
        elif vs < vc:
            half[p, vs] += n
    return full, half
