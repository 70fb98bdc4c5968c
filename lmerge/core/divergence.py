"""Verdicts on streams that computed something else, from the digests of their events.

Once both a stream and the output are stable past an interval, their digests of it must be equal.
What is not covered is left out: ends before the stream's ``from``, and, unless equal, intervals
that it said to have skipped after feedback. Nothing here changes the merge: it returns verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from lmerge.core.batch import Batch
from lmerge.core.digests import NO_INTERVAL, Digests
from lmerge.core.policy import DivergencePolicy
from lmerge.core.streams import Stream, StreamState
from lmerge.times import BEGINNING, show


class Verdict(NamedTuple):
    """A stream and the output differ in the events that end in ``[start, end)``."""

    stream: str | None  # None: the output itself is outvoted
    start: int
    end: int
    quarantine: bool

    def __str__(self) -> str:
        who = "the output" if self.stream is None else f"stream {self.stream!r}"
        than = "most streams" if self.stream is None else "the output"
        return (
            f"{who} has other events ending in [{show(self.start)}, {show(self.end)}) than {than}"
        )


class Divergence:
    """The digests of a merge, and what follows from them."""

    def __init__(self, policy: DivergencePolicy) -> None:
        self.policy = policy
        self.digests = Digests()
        self.on = policy is not DivergencePolicy.OFF
        self._contested: list[tuple[int, int]] = []  # no majority yet (`majority` only)
        self._closable = BEGINNING  # everybody was compared up to here

    def attach(self, stream: Stream) -> None:
        """Begin a stream's digests."""
        if self.on:
            self.digests.attach(stream.slot)
            stream.floor = max(stream.since, self.digests.closed)
            stream.judged = stream.floor
            self._closable = min(self._closable, stream.judged)

    def add(
        self, stream: Stream | None, elements: Batch, output: tuple[int, int] | None = None
    ) -> None:
        """Count elements of a stream, or (None) of the output.

        ``output`` is the range of a stream's inserts that are the output's as well, if one is.
        """
        if not self.on:
            return
        if stream is None:
            # The output never goes back below what was closed: nothing of it is left out.
            self.digests.add(0, elements, BEGINNING, self._closable)
        elif output is None:
            self.digests.add(stream.slot + 1, elements, stream.floor, self._closable)
        else:
            self.digests.add_inserts(
                stream.slot + 1, elements, stream.floor, self._closable, *output
            )

    def judge(self, streams: Collection[Stream], out_stable: int) -> list[Verdict]:
        """Compare what has become comparable."""
        verdicts: list[Verdict] = []
        if not self.on:
            return verdicts
        shift = self.digests.shift
        moved = False
        for stream in streams:
            if stream.slot < 0:
                continue
            passed = stream.stable if stream.stable < out_stable else out_stable
            high = (passed >> shift) << shift
            if high <= stream.judged:
                continue
            moved = True
            low = max(self.digests.align_up(stream.floor), self.digests.align(stream.judged))
            agreeing, differing = self.digests.compare(stream.slot, low, high)
            stream.judged = high
            stream.counts.verified += agreeing
            for start, end in differing:
                if start < stream.skipped:
                    stream.counts.skipped += 1
                    continue
                stream.counts.divergent += 1
                stream.diverged = stream.diverged or (start, end)
                if self.policy is DivergencePolicy.MAJORITY:
                    self._contested.append((start, end))
                quarantine = self.policy is DivergencePolicy.QUARANTINE
                verdicts.append(Verdict(stream.name, start, end, quarantine))
        if self._contested:
            verdicts += self._vote(streams, out_stable)
        if moved:
            judged = [s.judged for s in streams if s.slot >= 0]
            self._closable = min(judged + [start for start, _ in self._contested])
        return verdicts

    def _vote(self, streams: Collection[Stream], out_stable: int) -> list[Verdict]:
        """Quarantine whoever differs from what more than half of the joined streams share."""
        verdicts: list[Verdict] = []
        voters = [s for s in streams if s.slot >= 0 and s.state is StreamState.JOINED]
        still: list[tuple[int, int]] = []
        # Intervals may have been joined since: a vote is on the whole of what they are now.
        width = self.digests.width
        starts = dict.fromkeys(self.digests.align(start) for start, _ in self._contested)
        for start, end in ((start, start + width) for start in starts):
            if out_stable < end:
                still.append((start, end))
                continue
            votes = {
                s.name: self.digests.sum_of(s.slot, start)
                for s in voters
                if s.stable >= end and s.floor <= max(start, self.digests.closed)
            }
            value, count = Counter(votes.values()).most_common(1)[0] if votes else (0, 0)
            if 2 * count > len(voters):
                if value != self.digests.sum_of(None, start):
                    verdicts.append(Verdict(None, start, end, False))
                verdicts += [Verdict(n, start, end, True) for n, v in votes.items() if v != value]
            elif len(votes) < len(voters):
                still.append((start, end))
        self._contested = still
        return verdicts

    def save(self) -> dict[str, Any]:
        """The open intervals."""
        numbers, sums, state, *_ = self.digests.intervals
        used = np.flatnonzero(numbers != NO_INTERVAL)
        return {
            "digests.numbers": numbers[used],
            "digests.sums": np.ascontiguousarray(sums[:, used].T),
            "digests.state": state,
            "contested": self._contested,
            "closable": self._closable,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved."""
        sums = saved["digests.sums"]
        self.digests = Digests(sums.shape[1] - 1)
        self.digests.fill(saved["digests.numbers"], sums, saved["digests.state"])
        self._contested = [(start, end) for start, end in saved["contested"]]
        self._closable = saved["closable"]
