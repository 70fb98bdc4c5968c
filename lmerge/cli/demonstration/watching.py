"""The demo's consumer: it reads the merged stream, and remembers when what came.

It is a consumer like any other. What it gets, it keeps as a TDB, which refuses whatever breaks the
stream's promises; the time of each arrival is kept for the gaps.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise
from typing import Any, Final

from lmerge.client import Gap, Retry, SyncReader
from lmerge.client.reader import elements_in
from lmerge.elements import Element, Insert, Stable
from lmerge.errors import LMergeError
from lmerge.tdb import Tdb
from lmerge.times import BEGINNING

PATIENCE_S: Final = 120.0
Event = tuple[str, int, int]
"""A payload's text, and a lifetime."""


class Watcher:
    """Reads in a thread, until it is stopped."""

    def __init__(self, server: str, merge: str) -> None:
        self.arrivals: list[float] = []
        self.elements = 0
        self.stable = BEGINNING
        self.latest: dict[str, tuple[int, dict[str, Any]]] = {}  # of each host, by its window's end
        self.broken: str | None = None
        self._tdb = Tdb()
        self._guard = threading.Lock()
        self._reader = SyncReader(
            server, merge, start="beginning", retry=Retry(patience_s=PATIENCE_S)
        )
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the reading."""
        self._stopping = True
        self._reader.close()
        self._thread.join()

    def events(self) -> Counter[Event]:
        """What the stream describes so far."""
        with self._guard:
            return Counter((each.payload, each.vs, each.ve) for each in self._tdb.events())

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time without anything new, in a part of the run."""
        low, high = bisect_left(self.arrivals, start), bisect_right(self.arrivals, end)
        times = [start, *self.arrivals[low:high], end]
        return max(after - before for before, after in pairwise(times))

    def _run(self) -> None:
        try:
            self._reader.open()
            for item in self._reader:
                now = time.monotonic()
                with self._guard:
                    if isinstance(item, Gap):
                        self.broken = "the output has a gap"
                    else:
                        for element in elements_in(item):
                            assert not isinstance(element, Gap)  # noqa: S101  # see above
                            self._take(element)
                    self.arrivals.append(now)
        except (LMergeError, ValueError) as error:
            if not self._stopping:
                self.broken = str(error)

    def _take(self, element: Element) -> None:
        self._tdb.apply(_hashable(element))
        if isinstance(element, Stable):
            self.stable = element.vc
            return
        self.elements += 1
        if isinstance(element, Insert):
            row = element.payload
            known = self.latest.get(row["host"])
            if known is None or known[0] <= element.vs:
                self.latest[row["host"]] = (element.vs, row)


def text_of(payload: dict[str, Any]) -> str:
    """A payload as what it is compared by."""
    return repr(sorted(payload.items()))


def _hashable(element: Element) -> Element:
    if isinstance(element, Stable):
        return element
    return element._replace(payload=text_of(element.payload))
