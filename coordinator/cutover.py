"""A cutover: from plans that run to another one, verified while nobody depends on it.

Pure: what was seen and the time in, the next value and at most one action out. The edge
(:mod:`coordinator.cutting`) looks, writes the value, and then carries the action out; whoever leads
next goes on from the value. Actions follow from what is *seen*, not from what was done before, so
that one that was carried out already, or only half, or not at all, is no harm.

    STARTING → WARMING → VERIFYING → SWITCHING → DRAINING → DONE
        └─────────┴──────────┴───────────┴──────────┴──→ UNDOING → ROLLED_BACK

- STARTING: the new plan's streams are put on trial (what they send is compared, and has no
  influence on the output), then the plan is added to the spec.
- WARMING: until all its streams are attached, and right from where the output is.
- VERIFYING: until all agree with the output in ``intervals`` intervals, and are not far behind it.
- SWITCHING: they are admitted from their trial. With a declared difference the old plans' streams
  go on trial at the same instant: from there on the new plan alone answers.
- DRAINING: the old plans are taken out of the spec, and their streams leave the merge.
- UNDOING: the new plan is on trial again, then out of the spec, then out of the merge.

Callers may rely on this:
1. At no time are both the old plans and the new one out of the spec by a cutover's doing.
2. The old plans are removed only after every stream of the new one was verified, and has joined.
3. A stream that differs while it is on trial has changed nothing of the output.
4. It ends: by the deadline the old plans are removed or it is UNDOING, and both DRAINING and
   UNDOING go on without who does not answer, as soon as the spec is as it is to be. One thing is
   waited for without a bound: that the old plans, if they were put on trial, are admitted again.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

from lmerge.errors import ConfigurationError
from lmerge.times import show

NAME: Final = "cutover"
"""The value's, in ZooKeeper."""

VERSION: Final = 1
INTERVALS: Final = 10
TIMEOUT_SECONDS: Final = 600.0
BEHIND_SECONDS: Final = 10.0
"""A stream is not far behind when the output was where it is at most so long ago."""
DEATHS_MAX: Final = 3
"""A replica of the new plan that ends so often will not do."""
LEAVE_SECONDS: Final = 60.0
"""So long replicas have to end by themselves before their streams are detached all the same; so
long again, and the cutover ends without them."""


class Stage(Enum):
    """Where a cutover is."""

    STARTING = "starting"
    WARMING = "warming"
    VERIFYING = "verifying"
    SWITCHING = "switching"
    DRAINING = "draining"
    DONE = "done"  # final
    UNDOING = "undoing"
    ROLLED_BACK = "rolled back"  # final


FINAL: Final = (Stage.DONE, Stage.ROLLED_BACK)


class Action(Enum):
    """What the edge is to do. All are idempotent."""

    PUT_ON_TRIAL = "put the new plan's streams on trial"
    ADD_PLAN = "add the new plan to the spec"
    SWITCH = "admit the new plan's streams"
    REMOVE_OLD = "take the old plans out of the spec"
    DETACH_OLD = "detach the old plans' streams"
    SWITCH_BACK = "put the new plan's streams on trial, and admit the old plans'"
    REMOVE_NEW = "take the new plan out of the spec"
    DETACH_NEW = "detach the new plan's streams"
    FORGET = "nobody is on trial any more"


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """One stream. With several servers, what the least advanced of them says of it."""

    member: bool = False  # a live process stands for it
    attached: bool = False
    state: str = ""  # joining, joined or quarantined
    ready: bool = False  # it is right from where the output is, and has promised something
    verified: int = 0  # intervals in which it agrees with the output
    diverged: tuple[int, int] | None = None  # the first in which it does not
    lag: int | None = None  # behind the output, in the stream's own time
    behind: float = math.inf  # ... and in seconds
    reason: str = ""  # why it is quarantined
    deaths: int = 0  # how often its process has ended since the cutover began
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at one look."""

    plans: frozenset[str] = frozenset()  # in the spec
    looked: bool = False  # every server has answered
    problem: str = ""  # why not
    compares: bool = True  # the merge keeps digests
    stable: int | None = None  # the output's; None while it has promised nothing
    trials: frozenset[str] = frozenset()  # names that are on trial with every server
    some_trials: frozenset[str] = frozenset()  # ... with some server
    streams: Mapping[str, StreamSeen] = field(default_factory=dict)
    refused: str = ""  # why the last action cannot be carried out, ever

    def of(self, stream: str) -> StreamSeen:
        """A stream; one that nobody has heard of has no process and is not attached."""
        return self.streams.get(stream, StreamSeen())


@dataclass(frozen=True, slots=True)
class Cutover:
    """A cutover as it is kept."""

    plan: Mapping[str, Any]  # the new one, as a spec keeps it
    streams: tuple[str, ...]  # the new plan's
    replaces: tuple[str, ...]  # the old plans' names
    old_streams: tuple[str, ...]
    merge: str = ""
    intervals: int = INTERVALS  # to agree in; 0: the new plan is not put on trial at all
    lag_max: int | None = None  # in the stream's own time; None: BEHIND_SECONDS
    timeout: float = TIMEOUT_SECONDS
    differs_from: int | None = None  # what begins then or later is to be different
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    stage: Stage = Stage.STARTING
    history: tuple[tuple[str, float], ...] = ()  # when each stage began
    reason: str = ""  # why it is undone
    failed_in: str = ""  # the stage that it happened in
    diverged: tuple[str, int, int] | None = None  # stream and interval, if that is why
    aborted: bool = False  # somebody wants it undone
    note: str = ""  # what was left as it is
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for people
    output: int | None = None  # the output's stable point, for people

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigurationError("a cutover needs a plan with at least one replica")
        if not self.replaces:
            raise ConfigurationError("there is no plan to cut over from: scale the new one up")
        if self.name in self.replaces:
            raise ConfigurationError(f"plan {self.name!r} cannot replace itself: give it a --name")
        if self.intervals < 0 or not 0 < self.timeout < math.inf:
            raise ConfigurationError("a cutover verifies 0 or more intervals within some seconds")
        if self.differs_from is not None and not self.intervals:
            raise ConfigurationError(
                "a difference that is declared needs a plan that is verified up to there: 1 or"
                " more intervals"
            )

    @property
    def name(self) -> str:
        """The new plan's."""
        return str(self.plan["name"])

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.stage in FINAL

    @property
    def began(self) -> float | None:
        """When a leader first saw it."""
        return self.history[0][1] if self.history else None

    def since(self, now: float) -> float:
        """How long it has been in its stage. A clock that was put back counts as no time."""
        return max(0.0, now - self.history[-1][1]) if self.history else 0.0

    def encoded(self) -> dict[str, Any]:
        """As it is kept: JSON's own types."""
        values = {**asdict(self), "stage": self.stage.value, "version": VERSION}
        for key in ("streams", "replaces", "old_streams"):
            values[key] = list(values[key])
        values["history"] = [list(each) for each in self.history]
        values["diverged"] = None if self.diverged is None else list(self.diverged)
        return values

    @classmethod
    def decoded(cls, value: Any) -> Self:
        """The inverse; ConfigurationError for what this version did not write."""
        try:
            values = dict(value)
            if (version := values.pop("version", None)) != VERSION:
                raise ConfigurationError(
                    f"the cutover in ZooKeeper has format {version}; this version reads {VERSION}"
                )
            for key in ("streams", "replaces", "old_streams"):
                values[key] = tuple(values[key])
            values["stage"] = Stage(values["stage"])
            values["history"] = tuple((str(stage), float(at)) for stage, at in values["history"])
            if values["diverged"] is not None:
                stream, start, end = values["diverged"]
                values["diverged"] = (stream, start, end)
            return cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"what is at {NAME!r} in ZooKeeper is no cutover: {error!r}"
            ) from None


def step(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    """The next value, and what is to be done; ``now`` is a wall clock's, in seconds."""
    if c.ended:
        return c, None
    if not c.history:
        c = replace(c, history=((c.stage.value, now),))
    c = replace(c, progress=_progress(c, seen), output=seen.stable)
    if c.stage is not Stage.UNDOING and (failed := _failure(c, seen, now)) is not None:
        reason, diverged = failed
        c = replace(c, reason=reason, failed_in=c.stage.value, diverged=diverged)
        c = _entered(c, Stage.UNDOING, now)
    return _STEPS[c.stage](c, seen, now)


def abortable(c: Cutover) -> bool:
    """Whether it can still be undone as far as its value says."""
    return c.stage not in (*FINAL, Stage.UNDOING, Stage.DRAINING)


def describe(diverged: tuple[str, int, int]) -> str:
    """The first difference, in words."""
    stream, start, end = diverged
    return (
        f"stream {stream!r} has other events ending in [{show(start)}, {show(end)}) than the output"
    )


# -- what goes wrong -------------------------------------------------------------------------------


def _failure(c: Cutover, seen: Seen, now: float) -> tuple[str, tuple[str, int, int] | None] | None:
    """Why it is to be undone; None while it is not, or when there is no way back any more."""
    if not seen.plans.intersection(c.replaces):
        if c.stage is Stage.DRAINING:
            return None
        return f"the plans to replace ({', '.join(c.replaces)}) are not deployed", None
    if c.aborted:
        return "it was aborted", None
    for stream in c.streams:
        found = seen.of(stream)
        if found.diverged is not None and _counts(c, found.diverged):
            diverged = (stream, *found.diverged)
            return describe(diverged), diverged
        if found.state == "quarantined":
            return f"stream {stream!r} was quarantined: {found.reason}", None
        if found.deaths >= DEATHS_MAX:
            words = f": {found.last_words}" if found.last_words else ""
            return f"replica {stream!r} ended {found.deaths} times{words}", None
    if c.stage is not Stage.STARTING and c.name not in seen.plans:
        return f"plan {c.name!r} was taken out of the spec", None
    if seen.looked and c.intervals and not seen.compares:
        return "the merge keeps no digests (its divergence policy is off): nothing can be "\
            "verified; --intervals 0 does without", None  # fmt: skip
    if seen.refused:
        return seen.refused, None
    if _too_late(c, seen):
        return (
            f"the output was at {show(seen.stable or 0)} before the new plan was verified, and the"
            f" difference was to begin at {show(c.differs_from or 0)}: declare a later time"
        ), None
    began = c.began
    if began is not None and now - began >= c.timeout:
        return f"not through within {c.timeout:g} s: {_waiting_for(c, seen)}", None
    return None


def _counts(c: Cutover, interval: tuple[int, int]) -> bool:
    """Whether a difference in the interval is one that was not declared."""
    return c.differs_from is None or interval[1] <= c.differs_from


def _too_late(c: Cutover, seen: Seen) -> bool:
    """Whether the output has passed the declared time with the old plans' answers."""
    if c.differs_from is None or seen.stable is None or _switched(c, seen):
        return False
    return seen.looked and c.stage is not Stage.DRAINING and seen.stable > c.differs_from


def _switched(c: Cutover, seen: Seen) -> bool:
    """Whether the new plan's streams count, and, with a declared difference, the old do not."""
    old_out = c.differs_from is None or seen.trials.issuperset(c.old_streams)
    return seen.looked and old_out and not seen.some_trials.intersection(c.streams)


def _waiting_for(c: Cutover, seen: Seen) -> str:
    """What was still missing."""
    if not seen.looked:
        return seen.problem or "the servers do not answer"
    for stream in c.streams:
        found = seen.of(stream)
        if not found.attached:
            died = f" (it ended {found.deaths} times)" if found.deaths else ""
            return f"stream {stream!r} is not attached{died}"
        if not found.ready:
            return f"stream {stream!r} is not right yet from where the output is"
        if found.verified < c.intervals:
            return f"stream {stream!r} agrees in {found.verified} of {c.intervals} intervals"
        if not _caught_up(c, found):
            if c.lag_max is not None or found.behind == math.inf:
                return f"stream {stream!r} is {found.lag} behind the output"
            return f"stream {stream!r} is {found.behind:.0f} s behind the output"
        if found.state != "joined":
            return f"stream {stream!r} has not joined"
    return f"it was {c.stage.value}"


# -- the stages ------------------------------------------------------------------------------------


def _starting(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if c.name in seen.plans:
        return _entered(c, Stage.WARMING, now), None
    if not seen.looked:
        return c, None  # to begin a plan that nobody could put on trial would be no use
    if not seen.trials.issuperset(c.streams):
        left = [stream for stream in c.streams if seen.of(stream).attached]
        if left:  # somebody else's: nothing was done yet, and nothing of it is to be undone
            reason = f"there is a stream {left[0]!r} already: choose another --name"
            c = replace(c, reason=reason, failed_in=c.stage.value)
            return _entered(c, Stage.ROLLED_BACK, now), None
        if c.intervals:
            return c, Action.PUT_ON_TRIAL
    return c, Action.ADD_PLAN


def _warming(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if seen.looked and _untried(c, seen):
        return c, Action.PUT_ON_TRIAL
    if seen.looked and all(seen.of(s).attached and seen.of(s).ready for s in c.streams):
        return _entered(c, Stage.VERIFYING, now), None
    return c, None


def _verifying(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if seen.looked and _untried(c, seen):
        return c, Action.PUT_ON_TRIAL  # the plan was scaled, or the server has lost its data
    if seen.looked and all(_verified(c, seen.of(stream)) for stream in c.streams):
        return _entered(c, Stage.SWITCHING, now), Action.SWITCH
    return c, None


def _untried(c: Cutover, seen: Seen) -> bool:
    return c.intervals > 0 and not seen.trials.issuperset(c.streams)


def _switching(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if not seen.looked:
        return c, None
    if not _switched(c, seen):
        return c, Action.SWITCH
    if all(seen.of(stream).state == "joined" for stream in c.streams):
        return _entered(c, Stage.DRAINING, now), Action.REMOVE_OLD
    return c, None


def _draining(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if seen.plans.intersection(c.replaces):
        joined = all(seen.of(stream).state == "joined" for stream in c.streams)
        return c, Action.REMOVE_OLD if seen.looked and joined else None
    return _left(c, seen, now, c.old_streams, Action.DETACH_OLD, Stage.DONE)


def _undoing(c: Cutover, seen: Seen, now: float) -> tuple[Cutover, Action | None]:
    if c.name in seen.plans and not seen.plans.intersection(c.replaces):
        note = f"plan {c.name!r} was left as it is, since it is the only one"
        return replace(_entered(c, Stage.ROLLED_BACK, now), note=note), None
    counting = [s for s in c.streams if seen.of(s).attached and s not in seen.trials]
    out = seen.some_trials.intersection(c.old_streams)
    if seen.looked and (counting or out) and c.since(now) < LEAVE_SECONDS:
        return c, Action.SWITCH_BACK
    if c.name in seen.plans:
        return c, Action.REMOVE_NEW
    if out:
        return c, Action.SWITCH_BACK
    if not seen.looked and c.differs_from is not None and _came_to(c, Stage.SWITCHING):
        return c, None  # who knows whether the old plans are on trial
    return _left(c, seen, now, c.streams, Action.DETACH_NEW, Stage.ROLLED_BACK)


def _came_to(c: Cutover, stage: Stage) -> bool:
    return any(entered == stage.value for entered, _ in c.history)


def _left(
    c: Cutover, seen: Seen, now: float, streams: tuple[str, ...], detach: Action, end: Stage
) -> tuple[Cutover, Action | None]:
    """Streams leave: when their processes have ended, or have had the time to."""
    waited = c.since(now)
    attached = [s for s in streams if seen.of(s).attached]
    alive = [s for s in streams if seen.of(s).member]
    names = seen.some_trials.intersection((*c.streams, *c.old_streams))
    if seen.looked and not (attached or alive or names):
        return _entered(c, end, now), None
    if waited >= 2 * LEAVE_SECONDS:
        # Names of processes that may live stay on trial: they would count if they came back.
        who = ", ".join(alive or attached or names) or seen.problem or "the servers do not answer"
        return replace(_entered(c, end, now), note=f"not everybody has left: {who}"), None
    if not seen.looked:
        return c, None
    if attached:
        return c, detach if not alive or waited >= LEAVE_SECONDS else None
    return c, Action.FORGET if names and not alive else None


_STEPS: Final = {
    Stage.STARTING: _starting,
    Stage.WARMING: _warming,
    Stage.VERIFYING: _verifying,
    Stage.SWITCHING: _switching,
    Stage.DRAINING: _draining,
    Stage.UNDOING: _undoing,
}


def _entered(c: Cutover, stage: Stage, now: float) -> Cutover:
    return replace(c, stage=stage, history=(*c.history, (stage.value, now)))


def _verified(c: Cutover, found: StreamSeen) -> bool:
    enough = found.attached and found.ready and found.verified >= c.intervals
    return enough and _caught_up(c, found)


def _caught_up(c: Cutover, found: StreamSeen) -> bool:
    if c.lag_max is not None:
        return found.lag is not None and found.lag <= c.lag_max
    return found.behind <= BEHIND_SECONDS


def _progress(c: Cutover, seen: Seen) -> dict[str, dict[str, Any]]:
    """What people want to know of the streams."""
    if not seen.looked:
        return {name: dict(known) for name, known in c.progress.items()}
    found = {}
    for stream in (*c.streams, *c.old_streams):
        one = seen.of(stream)
        state = one.state if one.attached else "away"
        found[stream] = {
            "state": "on trial" if state == "joining" and stream in seen.some_trials else state,
            "verified": one.verified,
            "lag": one.lag,
            "behind": None if one.behind == math.inf else round(one.behind, 1),
            "deaths": one.deaths,
        }
    return found
