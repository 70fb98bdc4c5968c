"""Is the output of a merge right at this instant? An independent judge of any merge, any policy.

It is fed with every arrival and the output elements that it caused (or with a batch of arrivals
and what the batch caused), and after each feed checks, at that prefix:

(a) the output alone is a valid stream: strict contract, order for R0 to R2, key for R2 and R3;
(b) R3: the paper's conditions C1, C2 and C3 (III.D) against every input prefix seen, those of
    detached streams included;
(c) R4: up to the output's stable point L, the fully frozen events are those of every input that
    has got at least that far, and for each (p, vs) so is the number of half-frozen ones;
(d) R0 to R2: every output event is an event of some input, no more often than there, and what
    starts before L is exactly what the inputs that have got that far have there;
(e) if the truth is known: what is frozen in the output is frozen there too, and the other way
    round, as far as the output promised (`begin`) and the inputs knew it (`doubtful`).

For runs with streams that join later or lack elements the inputs contradict each other by right,
so (b) to (d) do not apply, and (e) judges alone; C1 always applies.

Departure from the paper: C2 as printed accepts a half-frozen output event for the sake of a
half-frozen input event if `L_m <= L`. Its own reason ("so the output event can be adjusted to
match any changes in TDB_m") and C3 need `L <= L_m`; as printed it would refuse every output that
lags. The two agree when the output does not lag.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from .runs import Arrival, Run
from .tdb import INF, ContractError, Element, Key, Reconstitution, Tdb, Time


class Checker:
    """Judges one run. Cost of a feed: O(inputs * events)."""

    def __init__(
        self,
        restriction: str,
        stable_lag: Time = 0,
        *,
        seed: object = None,
        truth: Tdb | None = None,
        begin: Time = -INF,
        doubtful: Collection[Key] = (),
        consistent: bool = True,
    ) -> None:
        """Declare what the run is; `consistent=False` needs the truth to have anything to check."""
        self.restriction = restriction
        self.stable_lag = stable_lag
        self.output = Reconstitution(restriction)
        self._seed = seed
        self._begin = begin
        self._doubtful = frozenset(doubtful)
        self._consistent = consistent
        self._true_ends: dict[Key, Counter[Time]] | None = None
        if truth is not None:
            self._true_ends = {}
            for (p, vs, ve), n in truth.items():
                self._true_ends.setdefault((p, vs), Counter())[ve] += n
        self._attached: dict[str, Reconstitution] = {}
        self._inputs: list[Reconstitution] = []  # also of streams that have left
        self._decided_before: Time = -INF
        self._number = 0
        self._now = "before the first arrival"

    @classmethod
    def for_run(cls, run: Run, stable_lag: Time = 0) -> "Checker":
        """A checker that knows all that the run knows."""
        return cls(
            run.restriction,
            stable_lag,
            seed=run.seed,
            truth=run.truth,
            begin=run.begin,
            doubtful=run.doubtful,
            consistent=run.consistent,
        )

    def feed(self, arrivals: Arrival | Sequence[Arrival], outputs: Iterable[Element]) -> None:
        """Take an arrival or a list of them, and what it caused; AssertionError if it is wrong."""
        batch = [arrivals] if isinstance(arrivals, tuple) else list(arrivals)
        for arrival in batch:
            self._number += 1
            self._now = f"arrival {self._number} {arrival}"
            self._arrive(arrival)
        for element in outputs:
            try:
                self.output.apply(element)
            except ContractError as error:
                self._fail("(a) output contract", str(error))
        self._check()

    def finish(self) -> None:
        """The run is over: the output must have got as far as the inputs that are attached."""
        reached = max((s.stable for s in self._attached.values()), default=-INF)
        if self.output.stable < self._lagged(reached):
            self._fail(
                "liveness", f"output is stable at {self.output.stable}, an input at {reached}"
            )

    # -- the inputs

    def _arrive(self, arrival: Arrival) -> None:
        kind, stream, *rest = arrival
        if kind == "detach":
            del self._attached[stream]
            return
        if stream not in self._attached:
            self._attached[stream] = Reconstitution(self.restriction)
            self._inputs.append(self._attached[stream])
        if kind == "element":
            self._attached[stream].apply(rest[0])

    def _lagged(self, t: Time) -> Time:
        return t if t == INF else t - self.stable_lag

    # -- the conditions

    def _check(self) -> None:
        self._check_c1()
        if self._consistent:
            if self.restriction == "R3":
                self._check_c2()
                self._check_c3()
            elif self.restriction == "R4":
                self._check_multisets()
            else:
                self._check_ordered()
        if self._true_ends is not None:
            self._check_truth(self._true_ends)
            self._check_what_all_deciders_have(self._true_ends)
        self._decided_before = self.output.stable

    def _check_c1(self) -> None:
        largest = max((s.stable for s in self._inputs), default=-INF)
        if self.output.stable > self._lagged(largest):
            self._fail(
                "C1",
                f"output is stable at {self.output.stable}, the inputs only at {largest}"
                f" (lag {self.stable_lag})",
            )

    def _check_c2(self) -> None:
        lag = self.output.stable
        for key, ends in self.output.ends.items():
            _, vs = key
            for ve in ends:  # one at most: (a) checks the key
                if vs >= lag:
                    continue  # unfrozen: no constraint
                if ve < lag:
                    if not any(ve in s.ends.get(key, ()) and ve < s.stable for s in self._inputs):
                        self._fail("C2", f"{(*key, ve)} is fully frozen only in the output")
                elif not any(self._can_follow(s, key) for s in self._inputs):
                    self._fail("C2", f"{(*key, ve)} is half frozen in the output without support")

    def _can_follow(self, s: Reconstitution, key: Key) -> bool:
        """C2, half frozen: whatever the input's event becomes, the output's can become too."""
        for vm in s.ends.get(key, ()):
            if vm < s.stable:
                if self.output.stable <= vm:
                    return True
            elif key[1] < s.stable and self.output.stable <= s.stable:
                return True
        return False

    def _check_c3(self) -> None:
        lag = self.output.stable
        fully: dict[Key, set[Time]] = {}
        half: dict[Key, Time] = {}
        for s in self._inputs:
            for key, ends in s.ends.items():
                for ve in ends:
                    if ve < s.stable:
                        fully.setdefault(key, set()).add(ve)
                    elif key[1] < s.stable:
                        half[key] = max(half.get(key, -INF), s.stable)
        for key, true_ends in fully.items():
            if len(true_ends) > 1:
                raise ValueError(f"{self._seed}: the inputs contradict each other about {key}")
            if lag <= key[1]:
                continue
            (ve,) = true_ends
            shown = self.output.ends.get(key, ())
            if lag <= ve and not any(vo >= lag for vo in shown):
                self._fail("C3.1", f"{(*key, ve)} is final, and not half frozen in the output")
            if ve < lag and ve not in shown:
                self._fail("C3.1", f"{(*key, ve)} is final, the output has ends {list(shown)}")
        for key, largest in half.items():
            if key in fully or lag <= key[1]:
                continue
            if lag > largest:
                self._fail("C3.2", f"{key} may still change below the output's stable point")
            if not any(vo >= lag for vo in self.output.ends.get(key, ())):
                self._fail("C3.2", f"{key} is half frozen in an input, and not in the output")

    def _check_multisets(self) -> None:
        lag = self.output.stable
        got = _frozen_by_key(self.output.ends, lag)
        for s in self._inputs:
            if s.stable < lag:
                continue
            expected = _frozen_by_key(s.ends, lag)
            for key in got.keys() | expected.keys():
                if got.get(key, _NOTHING) != expected.get(key, _NOTHING):
                    self._fail(
                        "R4",
                        f"{key}: (fully frozen ends, number of half frozen) are"
                        f" {got.get(key, _NOTHING)}, an input with stable point {s.stable} has"
                        f" {expected.get(key, _NOTHING)}",
                    )

    def _check_ordered(self) -> None:
        lag = self.output.stable
        for key, ends in self.output.ends.items():
            for ve, n in ends.items():
                if n > max((s.ends.get(key, _NO_ENDS)[ve] for s in self._inputs), default=0):
                    self._fail("order", f"{(*key, ve)} is output {n} times, more than by any input")
        got = {key: ends for key, ends in self.output.ends.items() if key[1] < lag}
        for s in self._inputs:
            if s.stable >= lag:
                expected = {key: ends for key, ends in s.ends.items() if key[1] < lag}
                if got != expected:
                    self._fail("order", f"below {lag} the output has {got}, an input {expected}")

    def _check_truth(self, truth: dict[Key, Counter[Time]]) -> None:
        lag, begin = self.output.stable, self._begin
        ordered = self.restriction in ("R0", "R1", "R2")
        for key in self.output.ends.keys() | truth.keys():
            shown, true = self.output.ends.get(key, _NO_ENDS), truth.get(key, _NO_ENDS)
            if key in self._doubtful:
                self._check_doubtful(key, shown, true)
                continue
            if ordered:
                # Nothing is ever taken back, so that what is output must be true from the start.
                self._check_ends(key, shown, true, begin, None, exact=key[1] < lag)
                continue
            if key[1] >= lag:
                continue
            self._check_ends(key, shown, true, begin, lag, exact=True)
            # Half frozen: with the stable point before `begin` the output may hold more, since
            # that can still come to end before `begin`.
            have = sum(n for ve, n in shown.items() if ve >= lag)
            need = sum(n for ve, n in true.items() if ve >= max(lag, begin))
            if have < need or (have > need and lag >= begin):
                self._fail(
                    "truth", f"{key}: {have} half frozen at {lag}, ends {dict(shown)}; true {true}"
                )

    def _check_ends(
        self,
        key: Key,
        shown: Counter[Time],
        true: Counter[Time],
        low: Time,
        high: Time | None,
        *,
        exact: bool,
    ) -> None:
        """Ends in [low, high) are as many as are true, or (not exact) not more. None: no limit."""
        for ve in shown.keys() | true.keys():
            if low <= ve and (high is None or ve < high):
                have, need = shown[ve], true[ve]
                if have > need or (exact and have < need):
                    self._fail("truth", f"{(*key, ve)}: {have} in the output, {need} in truth")

    def _check_doubtful(self, key: Key, shown: Counter[Time], true: Counter[Time]) -> None:
        """Some stream lacks it: it may be lost, and its end misjudged, but not made up."""
        if self.restriction in ("R0", "R1", "R2"):
            self._check_ends(key, shown, true, self._begin, None, exact=False)
            return
        frozen = key[1] < self.output.stable
        if frozen and self._begin == -INF and shown.total() > true.total():
            self._fail("truth", f"{key}: {dict(shown)} in the output, {dict(true)} in truth")

    def _check_what_all_deciders_have(self, truth: dict[Key, Counter[Time]]) -> None:
        """V.C: an element survives if the stream that moves the stable past its vs has it."""
        lag = self.output.stable
        if self.restriction in ("R0", "R1", "R2") or self._begin != -INF:
            return  # there a higher vs decides, which may come before any stable
        for key in self._doubtful:
            if not self._decided_before <= key[1] < lag:
                continue
            # One arrival can move the output several times, so that any of these may have decided.
            deciders = [s for s in self._inputs if self._lagged(s.stable) > key[1]]
            if all(key in s.ends for s in deciders):
                least = min(s.ends[key].total() for s in deciders)
                have = self.output.ends.get(key, _NO_ENDS).total()
                if have < min(least, truth[key].total()):
                    self._fail("V.C", f"{key}: all who could decide have it, the output {have}")

    def _fail(self, condition: str, reason: str) -> None:
        inputs = "\n".join(
            f"  input {i}: stable {s.stable}, {dict(s.tdb())}" for i, s in enumerate(self._inputs)
        )
        raise AssertionError(
            f"{condition} fails at {self._now}: {reason}\n"
            f"  run: {self._seed}\n"
            f"  output: stable {self.output.stable}, {dict(self.output.tdb())}\n{inputs}"
        )


_NO_ENDS: Counter[Time] = Counter()
_NOTHING: tuple[dict[Time, int], int] = ({}, 0)


def _frozen_by_key(
    ends_by_key: dict[Key, Counter[Time]], vc: Time
) -> dict[Key, tuple[dict[Time, int], int]]:
    """For each (p, vs) with vs < vc: its ends below vc, and how many others it has."""
    return {
        key: (
            {ve: n for ve, n in ends.items() if ve < vc},
            sum(n for ve, n in ends.items() if ve >= vc),
        )
        for key, ends in ends_by_key.items()
        if key[1] < vc
    }
