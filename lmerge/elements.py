"""The elements of a physical stream, and the freeze status of an event.

An *event* ``(payload, vs, ve)`` lives in ``[vs, ve)``. A stream presents events by three kinds
of elements. After ``stable(vc)`` no insert has ``vs < vc`` and no adjust has ``vold < vc`` or
``ve < vc``. These objects are for people, tests and small work; the merge itself works on
columns (see :mod:`lmerge.batch`).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, NamedTuple

from lmerge.times import show


class Op(IntEnum):
    """The kind of an element, as the ``op`` column of a batch encodes it."""

    INSERT = 0
    ADJUST = 1
    STABLE = 2


class Event(NamedTuple):
    """A row of the temporal database."""

    payload: Any
    vs: int
    ve: int


class Insert(NamedTuple):
    """Adds the event ``(payload, vs, ve)``."""

    payload: Any
    vs: int
    ve: int

    def __str__(self) -> str:
        return f"insert({self.payload}, {show(self.vs)}, {show(self.ve)})"


class Adjust(NamedTuple):
    """Moves the end of ``(payload, vs, vold)`` to ``ve``; removes the event when ``ve == vs``."""

    payload: Any
    vs: int
    vold: int
    ve: int

    def __str__(self) -> str:
        return f"adjust({self.payload}, {show(self.vs)}, {show(self.vold)} → {show(self.ve)})"


class Stable(NamedTuple):
    """Promises that everything before ``vc`` stays as it is."""

    vc: int

    def __str__(self) -> str:
        return f"stable({show(self.vc)})"


Element = Insert | Adjust | Stable


class Freeze(Enum):
    """How much of an event a stable point has fixed."""

    UNFROZEN = "UF"
    HALF_FROZEN = "HF"
    FULLY_FROZEN = "FF"


def freeze(vs: int, ve: int, vc: int) -> Freeze:
    """The status of ``[vs, ve)`` under ``stable(vc)``; both comparisons are strict.

    >>> freeze(6, 20, 20).value, freeze(6, 20, 21).value, freeze(6, 20, 6).value
    ('HF', 'FF', 'UF')
    """
    if ve < vc:
        return Freeze.FULLY_FROZEN
    return Freeze.HALF_FROZEN if vs < vc else Freeze.UNFROZEN
