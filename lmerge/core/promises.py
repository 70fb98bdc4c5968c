"""What a stream promises about its own elements, checked before any algorithm sees them.

:func:`first_broken` is one pass over a batch: the contract of the model (stable points, lifetimes)
and the properties the stream declared. What needs the index to be told (an adjust of an event
that is not there, a second event with one key) the algorithms report with the same reasons.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np

from lmerge.core.compiled import Int, Int8s, Int64s, compiled
from lmerge.elements import Op
from lmerge.times import BEGINNING, INFINITY


class Broken(IntEnum):
    """How an element can break a stream's promises."""

    NOTHING = 0
    INSERT_BELOW_STABLE = 1
    ADJUST_BELOW_STABLE = 2
    EMPTY_LIFETIME = 3
    STABLE_GOES_BACK = 4
    BAD_START = 5
    NO_SUCH_EVENT = 6
    SECOND_EVENT = 7
    NOT_INSERT_ONLY = 8
    NOT_ORDERED = 9
    NOT_STRICTLY_INCREASING = 10
    NO_ELEMENT = 11


REASONS: Final[dict[Broken, str]] = {
    Broken.INSERT_BELOW_STABLE: "an insert below the stream's own stable point",
    Broken.ADJUST_BELOW_STABLE: "an adjust below the stream's own stable point",
    Broken.EMPTY_LIFETIME: "an empty lifetime",
    Broken.STABLE_GOES_BACK: "a stable going back",
    Broken.BAD_START: "a start that is not a finite time",
    Broken.NO_SUCH_EVENT: "an adjust of an event that is not there",
    Broken.SECOND_EVENT: "a second event with the same start and payload",
    Broken.NOT_INSERT_ONLY: "an adjust in a stream declared insert-only",
    Broken.NOT_ORDERED: "a start before an earlier one in a stream declared ordered",
    Broken.NOT_STRICTLY_INCREASING: "a repeated start in a stream declared strictly increasing",
    Broken.NO_ELEMENT: "an op that is no element's",
}

INSERT: Final = int(Op.INSERT)
ADJUST: Final = int(Op.ADJUST)
STABLE: Final = int(Op.STABLE)

_INSERT_BELOW = int(Broken.INSERT_BELOW_STABLE)
_ADJUST_BELOW = int(Broken.ADJUST_BELOW_STABLE)
_EMPTY = int(Broken.EMPTY_LIFETIME)
_BACK = int(Broken.STABLE_GOES_BACK)
_START = int(Broken.BAD_START)
_INSERT_ONLY = int(Broken.NOT_INSERT_ONLY)
_ORDERED = int(Broken.NOT_ORDERED)
_STRICT = int(Broken.NOT_STRICTLY_INCREASING)
_NO_ELEMENT = int(Broken.NO_ELEMENT)


@compiled
def _all_in_order(
    op: Int8s, vs: Int64s, ve: Int64s, stable: Int, last_vs: Int, strict: bool
) -> Any:
    """Whether these are inserts by start that break no promise; there is at least one."""
    step = np.int64(1) if strict else np.int64(0)
    if vs[0] == BEGINNING or vs[0] < stable or vs[0] < last_vs or (strict and vs[0] == last_vs):
        return False
    broken = (op[0] != INSERT) | (ve[0] <= vs[0])
    for i in range(1, vs.size):  # no branches, so that it is done several at a time
        # An end after the start also says that neither start is infinite: nothing wraps.
        broken |= (op[i] != INSERT) | (ve[i] <= vs[i]) | (vs[i] < vs[i - 1] + step)
    return not broken


@compiled
def first_broken(
    op: Int8s,
    vs: Int64s,
    ve: Int64s,
    vold: Int64s,
    stable: Int,
    last_vs: Int,
    insert_only: bool,
    ordered: bool,
    strict: bool,
) -> Any:
    """The first offending row and its reason, ``(rows, 0)`` when there is none.

    Also the stream's stable point and last start before that row, and how many inserts, adjusts
    and stables precede it.
    """
    inserts = adjusts = stables = 0
    reason = 0
    row = op.size
    if insert_only and ordered and row > 0 and _all_in_order(op, vs, ve, stable, last_vs, strict):
        return row, reason, stable, vs[row - 1], row, adjusts, stables
    for i in range(op.size):
        start = vs[i]
        if op[i] == STABLE:
            if start < stable:
                reason = _BACK
            else:
                stable = start
                stables += 1
        elif start in (BEGINNING, INFINITY):
            reason = _START
        elif op[i] == INSERT:
            if ve[i] <= start:
                reason = _EMPTY
            elif start < stable:
                reason = _INSERT_BELOW
            elif ordered and start < last_vs:
                reason = _ORDERED
            elif strict and start == last_vs:
                reason = _STRICT
            else:
                last_vs = start
                inserts += 1
        elif op[i] != ADJUST:
            reason = _NO_ELEMENT
        elif insert_only:
            reason = _INSERT_ONLY
        elif ve[i] < start or vold[i] <= start:
            reason = _EMPTY
        elif vold[i] < stable or ve[i] < stable:
            reason = _ADJUST_BELOW
        else:
            adjusts += 1
        if reason != 0:
            row = i
            break
    return row, reason, stable, last_vs, inserts, adjusts, stables
