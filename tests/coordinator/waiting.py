"""Bounded waits on what can be observed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

WAIT_SECONDS: Final = 40.0
_T = TypeVar("_T")


def until(observed: Callable[[], _T], what: str = "") -> _T:
    """The first true value; fails when there is none in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (value := observed()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_SECONDS:g} s: {what or observed}")
        time.sleep(0.01)  # between two looks
    return value


def group_is_gone(group: int) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
