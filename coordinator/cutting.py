"""The edge of a cutover: looks at ZooKeeper, servers and processes, and does what the machine says.

A :class:`coordinator.running.Duty`. Each tick reads the value, looks, steps
:func:`coordinator.cutover.step`, writes the next value under the leader's term, and only then acts.
So whoever leads next, at whatever point the one before ended, goes on; and who does not lead any
more has changed nothing by its last tick but what its successor would have.
What is kept here is lost with the leader, and no harm: where the output was some seconds ago (then
a stream that is not level with it counts as far behind until that is known again), and what a
server has refused (it is asked again).
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from coordinator import spec as specs
from coordinator.calls import Calls
from coordinator.commands import REPLICA
from coordinator.cutover import NAME, Action, Cutover, Seen, StreamSeen, step
from coordinator.deployment import Deployment, Term, key_of
from coordinator.processes import Processes
from coordinator.spec import Plan, Spec
from lmerge.errors import (
    ConfigurationError,
    LMergeError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from lmerge.times import BEGINNING
from lmerge.v1 import operator_pb2

log = logging.getLogger("lmerge.coordinator")

TRAIL_MAX: Final = 128  # looks at the output that are remembered
WORDS_BYTES: Final = 16 << 10
OFF: Final = "off"  # the divergence policy under which nothing is compared

Deaths = Callable[[str], tuple[int, str]]
"""Of a stream: how often its process has ended by itself, and what it said last."""


class Cutting:
    """What a leader does for the cutover of its deployment."""

    def __init__(
        self,
        deployment: Deployment,
        calls: Calls,
        deaths: Deaths = lambda stream: (0, ""),
        *,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` is a wall clock: what it says is kept, and compared with other leaders'."""
        self._deployment = deployment
        self._calls = calls
        self._deaths = deaths
        self._say = say
        self._clock = clock
        self._id = ""
        self._trails: dict[str, Trail] = {}  # by server
        self._refused = ""

    def tick(self, term: Term) -> None:
        """One look, one step, at most one action."""
        found = self._deployment.read(NAME)
        if found is None:
            return
        before = Cutover.decoded(found.value)
        if before.ended:
            self._trails.clear()
            return
        if before.id != self._id:
            self._id, self._refused = before.id, ""
            self._trails.clear()
        spec = self._spec()
        before = _as_deployed(before, spec)
        after, action = step(before, self._look(before, spec), self._clock())
        encoded = after.encoded()
        if encoded != found.value:
            self._deployment.write(NAME, encoded, found.version, term)
        if after.stage is not before.stage or not before.history:
            why = f" ({after.reason})" if after.reason and not before.reason else ""
            self._say(f"cutover to plan {after.name}: {after.stage.value}{why}")
        if action is not None:
            self._act(after, action, spec, term)

    def _spec(self) -> Spec:
        try:
            return specs.read(self._deployment)[0]
        except NotFoundError:
            return Spec()  # nothing is deployed any more

    # -- looking ----------------------------------------------------------------------------------

    def _look(self, c: Cutover, spec: Spec) -> Seen:
        seen = Seen(plans=frozenset(plan.name for plan in spec.plans), refused=self._refused)
        members = self._deployment.members("replica")
        streams = {
            stream: self._process(c, stream, key_of("replica", stream, c.merge) in members)
            for stream in (*c.streams, *c.old_streams)
        }
        try:
            answers = [self._describe(server, c.merge) for server in spec.addresses]
        except LMergeError as error:
            return replace(seen, streams=streams, problem=str(error))
        trials = [frozenset(answer.on_trial) for answer in answers]
        for stream in streams:
            said = [
                _said(answer, stream, self._trail(server))
                for server, answer in zip(spec.addresses, answers, strict=True)
            ]
            streams[stream] = _least(streams[stream], said)
        stables = [answer.output.stable for answer in answers]
        return replace(
            seen,
            looked=True,
            compares=all(answer.options.divergence != OFF for answer in answers),
            stable=None if min(stables) == BEGINNING else max(stables),
            trials=frozenset.intersection(*trials),
            some_trials=frozenset.union(*trials),
            streams=streams,
        )

    def _process(self, c: Cutover, stream: str, member: bool) -> StreamSeen:
        deaths, words = self._deaths(stream) if stream in c.streams else (0, "")
        return StreamSeen(member=member, deaths=deaths, last_words=words)

    def _describe(self, server: str, merge: str) -> operator_pb2.DescribeMergeResponse:
        answer = self._calls.describe(server, merge)
        if answer is None:
            raise UnavailableError(f"merge {merge!r} has not begun at {server}")
        self._trail(server).add(time.monotonic(), answer.output.stable)
        return answer

    def _trail(self, server: str) -> Trail:
        return self._trails.setdefault(server, Trail())

    # -- acting -----------------------------------------------------------------------------------

    def _act(self, c: Cutover, action: Action, spec: Spec, term: Term) -> None:
        log.info("cutover to plan %s: %s", c.name, action.value)
        try:
            if action in _SPEC_CHANGES:
                specs.change(self._deployment, lambda spec: _SPEC_CHANGES[action](spec, c), term)
            else:
                for server in spec.addresses:
                    self._ask(server, c, action)
        except (ConfigurationError, PermissionDeniedError, UnauthenticatedError) as error:
            self._refused = str(error)
            self._say(f"cutover to plan {c.name}: cannot {action.value}: {error}")

    def _ask(self, server: str, c: Cutover, action: Action) -> None:
        if action in (Action.DETACH_OLD, Action.DETACH_NEW):
            gone = c.old_streams if action is Action.DETACH_OLD else c.streams
            for stream in gone:
                self._calls.detach(server, c.merge, stream, f"the cutover to plan {c.name}")
            return
        self._calls.call(server, "SwitchStreams", _switch(c, action))


def _switch(c: Cutover, action: Action) -> operator_pb2.SwitchStreamsRequest:
    """Who is on trial, and who not any more."""
    new, old = c.streams, c.old_streams
    request = operator_pb2.SwitchStreamsRequest(merge=c.merge)
    if action is Action.PUT_ON_TRIAL:
        request.on_trial.extend(new)
    elif action is Action.SWITCH:
        request.admitted.extend(new)
        if c.differs_from is not None:
            request.on_trial.extend(old)
            request.before = c.differs_from
    elif action is Action.SWITCH_BACK:
        request.on_trial.extend(new)
        request.admitted.extend(old)
    else:
        request.admitted.extend((*new, *old))
    return request


def _with_new(spec: Spec, c: Cutover) -> Spec:
    known = any(plan.name == c.name for plan in spec.plans)
    return spec if known else spec.with_plan(Plan(**c.plan))


def _without_old(spec: Spec, c: Cutover) -> Spec:
    if all(plan.name != c.name for plan in spec.plans):
        return spec  # somebody has taken the new one out meanwhile
    return replace(spec, plans=tuple(p for p in spec.plans if p.name not in c.replaces))


def _without_new(spec: Spec, c: Cutover) -> Spec:
    if all(plan.name not in c.replaces for plan in spec.plans):
        return spec
    return replace(spec, plans=tuple(p for p in spec.plans if p.name != c.name))


_SPEC_CHANGES: Final[dict[Action, Callable[[Spec, Cutover], Spec]]] = {
    Action.ADD_PLAN: _with_new,
    Action.REMOVE_OLD: _without_old,
    Action.REMOVE_NEW: _without_new,
}


class Trail:
    """When the output first was where; so old that it is known how far behind it a stream is."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=TRAIL_MAX)

    def add(self, now: float, stable: int) -> None:
        """The output's stable point, now."""
        if not self._looks or self._looks[-1][1] != stable:
            self._looks.append((now, stable))
        self._now = now

    def behind(self, stable: int) -> float:
        """So many seconds ago the output passed this; infinity when that was before the trail."""
        for number, (at, passed) in enumerate(self._looks):
            if passed > stable:
                return self._now - at if number else math.inf
        return 0.0


def _as_deployed(c: Cutover, spec: Spec) -> Cutover:
    """With the streams that the plans have now: they may have been scaled."""
    new, old = list(c.streams), list(c.old_streams)
    for plan in spec.plans:
        if plan.name == c.name and plan.streams:
            new = list(plan.streams)
        elif plan.name in c.replaces:
            old += [stream for stream in plan.streams if stream not in old]
    return replace(c, streams=tuple(new), old_streams=tuple(old))


def _said(
    answer: operator_pb2.DescribeMergeResponse, stream: str, trail: Trail
) -> StreamSeen | None:
    """What one server says of a stream; None when it is not attached."""
    found: Any = next((each for each in answer.streams if each.name == stream), None)
    if found is None:
        return None
    known = found.HasField("diverged_start")
    return StreamSeen(
        attached=True,
        state=found.state,
        ready=found.stable > BEGINNING and found.from_time <= answer.output.stable,
        verified=found.verified,
        diverged=(found.diverged_start, found.diverged_end) if known else None,
        lag=found.lag if found.HasField("lag") else None,
        behind=trail.behind(found.stable),
        reason=found.reason,
    )


def _least(process: StreamSeen, said: list[StreamSeen | None]) -> StreamSeen:
    """What is true of a stream with every server."""
    there = [each for each in said if each is not None]
    if not there:
        return process
    states = [each.state for each in there]
    lags = [each.lag for each in there]
    worst = next((s for s in ("quarantined", "joining") if s in states), states[0])
    everywhere = len(there) == len(said)
    return replace(
        process,
        attached=True,
        state=worst if everywhere or worst == "quarantined" else "joining",
        ready=everywhere and all(each.ready for each in there),
        verified=min(each.verified for each in there),
        diverged=next((each.diverged for each in there if each.diverged is not None), None),
        lag=None if None in lags else max(lag for lag in lags if lag is not None),
        behind=max(each.behind for each in there),
        reason=next((each.reason for each in there if each.reason), ""),
    )


def deaths_of(processes: Processes) -> Deaths:
    """What the processes of this machine's state directory have come to."""

    def deaths(stream: str) -> tuple[int, str]:
        name = f"{REPLICA}{stream}"
        known = processes.known(name)
        if known is None:
            return 0, ""
        ended = known.restarts + (processes.running(name) is None)
        return ended, _last_words(processes, name) if ended else ""

    return deaths


def _last_words(processes: Processes, name: str) -> str:
    """The last line of lmerge's in a log: also of the process before the one that runs now."""
    try:
        with processes.log(name).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - WORDS_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.removeprefix("lmerge: ") for line in lines if line.startswith("lmerge: ")]
    return said[-1][:300] if said else ""
