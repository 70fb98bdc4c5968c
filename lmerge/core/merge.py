"""The merge: streams in, one stream out. A deterministic state machine.

Callers may rely on this:
- The same calls in the same order give the same output, whatever the secret key is. Nothing here
  waits, reads a clock or does I/O.
- The output is a valid stream whatever the inputs do: no insert or adjust below its own stable
  point, ever.
- At every instant the output can still become whatever the joined streams become (C1 to C3 of
  the paper), as long as they are mutually consistent.
- A stream's fault is the stream's: it is quarantined and the call returns normally. Exceptions
  are for callers' mistakes (an unknown stream, another schema), and change nothing.

``docs/semantics.md`` has the rules this follows. Cost: O(elements) a batch, and for a stable
what it changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedDict

from lmerge.core import snapshots
from lmerge.core.algorithms.base import Algorithm, Effects, View
from lmerge.core.algorithms.r0 import R0
from lmerge.core.algorithms.r1 import R1
from lmerge.core.algorithms.r2 import R2
from lmerge.core.algorithms.r3 import R3
from lmerge.core.algorithms.r4 import R4
from lmerge.core.batch import Batch, Layout, element_schema, payload_schema, plain
from lmerge.core.compiled import Int64s
from lmerge.core.divergence import Divergence
from lmerge.core.identity import KEY_BYTES, Identity, require
from lmerge.core.imprints import Imprints
from lmerge.core.output import Feedback, Gap, Notice, NoticeKind, Output
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.promises import REASONS, Broken, first_broken
from lmerge.core.properties import Restriction, StreamProperties, supports
from lmerge.core.statistics import MergeStatistics, StreamStatistics
from lmerge.core.streams import Counts, Stream, StreamState
from lmerge.elements import Op, Stable
from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, INFINITY, earlier, show

MOST_STREAMS: Final = 1024

_ALGORITHMS: Final[dict[Restriction, Callable[[pa.Schema, Identity], Algorithm]]] = {
    Restriction.R0: lambda schema, _: R0(schema),
    Restriction.R1: lambda schema, _: R1(schema),
    Restriction.R2: R2,
    Restriction.R3: lambda schema, _: R3(schema),
    Restriction.R4: lambda schema, _: R4(schema),
}


class Merge:
    """One merge of any number of streams with one payload schema."""

    def __init__(
        self,
        schema: pa.Schema,
        restriction: Restriction = Restriction.R3,
        policy: Policy | None = None,
        *,
        feedback: bool = False,
        key: bytes | None = None,
    ) -> None:
        policy = policy or Policy()
        if not supports(restriction, policy):
            raise ConfigurationError(
                f"{restriction.value} outputs an event when it comes or never: the insert policy"
                f" {policy.insert} needs R3 or R4"
            )
        self.schema = plain(payload_schema(schema))
        require(self.schema)
        self.restriction = restriction
        self.policy = policy
        self.feedback = feedback
        self.decided = BEGINNING  # the paper's MaxStable
        self.stable_point = BEGINNING  # what the output has promised; behind under `final`
        self._identity = Identity(key or secrets.token_bytes(KEY_BYTES))
        self._imprints = Imprints(self._identity)
        self._algorithm = _ALGORITHMS[restriction](self.schema, self._identity)
        self._divergence = Divergence(policy.divergence)
        # R0 to R2 tell (most) elements by their order alone; for digests imprints are enough.
        self._identifying = restriction in (Restriction.R3, Restriction.R4)
        self._streams: dict[str, Stream] = {}
        self._joined = np.zeros(2, dtype=np.bool_)
        self._stables = np.full(2, BEGINNING, dtype=np.int64)
        self._begin: int | None = None  # where the output begins; None until a stream attaches
        self._leader = -1
        self._held: SortedDict = SortedDict()  # starts of undecided nodes, counted (`final`)
        self._stalled = False
        self._joining = 0  # how many streams are
        self._support = 1  # how many must have an event before it is output
        self._leader_only = policy.insert == InsertPolicy.leader()
        self._eager = policy.adjust is AdjustPolicy.EAGER
        self._final = policy.insert == InsertPolicy.final()
        self._out = Counts()
        self._layout = Layout(self.schema)
        self._element_schema = element_schema(self.schema)
        self._none = pa.RecordBatch.from_pylist([], schema=self._element_schema)

    # -- streams come and go ------------------------------------------------------------------

    def attach(
        self,
        name: str,
        since: int | None = None,
        properties: StreamProperties | None = None,
        *,
        on_trial: bool = False,
    ) -> Output:
        """A stream begins. ``since`` is its ``from``: the end times from which it is right."""
        if name in self._streams:
            raise ConfigurationError(f"stream {name!r} is attached already: detach it first")
        if len(self._streams) >= MOST_STREAMS:
            raise ConfigurationError(f"a merge has at most {MOST_STREAMS} streams")
        properties = properties or self.restriction.requires
        if not properties.covers(self.restriction.requires):
            lacking = ", ".join(properties.missing(self.restriction.requires))
            raise ConfigurationError(
                f"stream {name!r} does not promise what {self.restriction.value} needs: {lacking}"
            )
        slot = self._free_slot()
        stream = Stream(
            name, slot, StreamState.JOINING, BEGINNING if since is None else since, properties,
            on_trial=on_trial,
        )  # fmt: skip
        self._streams[name] = stream
        self._count_members()
        self._algorithm.attach(slot)
        self._divergence.attach(stream)
        self._stables[slot] = BEGINNING
        out = Output()
        if self._may_join(stream):
            self._join(stream)
        self._notice_stall(out)
        return out

    def detach(self, name: str) -> Output:
        """A stream is gone. What it gave is forgotten; the output stays as it is."""
        stream = self._stream(name)
        out = Output()
        self._release_slot(stream)
        del self._streams[name]
        self._count_members()
        self._notice_stall(out)
        return out

    def quarantine(self, name: str, reason: str) -> Output:
        """Take a stream out of the merge until it is detached."""
        out = Output()
        self._quarantine(self._stream(name), reason, out)
        self._notice_stall(out)
        return out

    def switch(
        self,
        on_trial: Collection[str] = (),
        admitted: Collection[str] = (),
        before: int | None = None,
    ) -> Output:
        """Some streams go on trial, and others are admitted from it, at one instant.

        A stream on trial is JOINING, whatever its ``from``: recorded, compared with the output,
        and without influence on it. Names that are not attached are passed over. Refused, and
        nothing has changed, when the output has decided on what begins at ``before`` or later.
        """
        if before is not None and (self.decided > before or self._algorithm.progress >= before):
            raise ConfigurationError(
                f"it is too late to switch streams before {show(before)}: the output has decided"
                f" up to {show(self._reached)}"
            )
        out = Output()
        for name in on_trial:
            stream = self._streams.get(name)
            if stream is None or not stream.active:
                continue
            stream.on_trial = True
            if stream.state is StreamState.JOINED:
                stream.state = StreamState.JOINING
                self._resign(stream.slot)
        for name in admitted:
            if name in self._streams:
                self._streams[name].on_trial = False
        self._count_members()
        before_this = self.decided
        self._let_join(out)
        self._follow(out, before_this)
        return out

    def skipped(self, name: str, before: int) -> None:
        """A stream has followed feedback: it left out what ends before ``before``."""
        stream = self._stream(name)
        if before > self.decided:
            raise ConfigurationError(
                f"stream {name!r} says that it skipped what ends before {show(before)}, but"
                f" only what ends before {show(self.decided)} is not needed any more"
            )
        stream.skipped = max(stream.skipped, before)

    def allow_gap(self) -> Output:
        """End a stall: join the stream with the smallest ``from``, and mark what is skipped."""
        if not self.stalled:
            raise ConfigurationError("there is no gap to allow: the merge is not stalled")
        stream = min(
            (s for s in self._streams.values() if _is_joining(s)),
            key=lambda s: (s.since, s.slot),
        )
        before = self.decided
        out = Output(parts=[Gap(before, stream.since)])
        self._join(stream)
        out.notices.append(_joined_notice(stream))
        effects = self._algorithm.bridge(stream.since, self._view(stream))
        self._take(effects, stream, out)
        self._move(stream.since, stream, out)
        self._punish(effects, stream, out)
        self._contribute(stream, out)
        self._progress(stream, out, before)
        return out

    # -- elements -----------------------------------------------------------------------------

    def apply(self, name: str, elements: pa.RecordBatch, stable: int | None = None) -> Output:
        """Elements of one stream, closed by ``stable`` if given.

        Of several stables among the elements the last counts.
        """
        stream = self._stream(name)
        batch = Batch.of(elements, self._layout)
        out = Output()
        if not stream.active:
            stream.counts.ignored += len(batch)
            return out
        declared = stream.properties
        row, reason, vc, last_vs, inserts, adjusts, stables = first_broken(
            batch.op, batch.vs, batch.ve, batch.vold, stream.stable, stream.last_vs,
            declared.insert_only, declared.ordered, declared.strictly_increasing,
        )  # fmt: skip
        fault = f"{REASONS[Broken(reason)]}: {batch.element(row)}" if reason else ""
        if not reason and stable is not None:
            if stable < vc:
                fault = f"{REASONS[Broken.STABLE_GOES_BACK]}: {Stable(stable)}"
            else:
                vc, stables = stable, stables + 1
        if inserts or adjusts:
            batch.inserts_only = inserts == len(batch)
            broken, at = self._data(stream, batch.head(row), out)
            if broken is not Broken.NOTHING:
                fault = f"{REASONS[broken]}: {batch.element(at)}"
                before = batch.op[:at]
                inserts, adjusts, stables = (int((before == op).sum()) for op in Op)
                vcs = batch.vs[:at][before == Op.STABLE]
                vc = int(vcs[-1]) if len(vcs) else stream.stable
        stream.last_vs = last_vs
        counts = stream.counts
        counts.inserts += inserts
        counts.adjusts += adjusts
        counts.stables += stables
        if vc > stream.stable:
            stream.stable = vc
            self._stables[stream.slot] = vc
        self._progress(stream, out, self.decided)
        if fault:
            self._quarantine(stream, fault, out)
            self._notice_stall(out)
        return out

    def stable(self, name: str, vc: int) -> Output:
        """A stable of one stream."""
        return self.apply(name, self._none, vc)

    def _data(self, stream: Stream, batch: Batch, out: Output) -> tuple[Broken, int]:
        """Let the algorithm have the elements; which promise the one in which row broke."""
        dropped = 0
        kept: Int64s | None = None
        if self._identifying and not self._divergence.on and self._reached > BEGINNING:
            # Nobody asks what old news says: it need not even be hashed.
            kept = np.flatnonzero(self._algorithm.needed(batch, self.decided))
            dropped = len(batch) - len(kept)
            batch = batch.choose(kept)
        if self._identifying:
            batch.fingerprint(self._identity.fingerprints(batch.payload))
        elif self._divergence.on:
            batch.fingerprint(self._imprints.of(batch.payload))
        effects = self._algorithm.data(batch, self._view(stream))
        effects.dropped += dropped
        self._divergence.add(stream, batch.head(effects.rows), effects.span)
        self._take(effects, stream, out)
        if effects.broken is Broken.NOTHING:
            return Broken.NOTHING, len(batch)
        return effects.broken, int(kept[effects.rows]) if kept is not None else effects.rows

    # -- progress -----------------------------------------------------------------------------

    def _progress(self, stream: Stream, out: Output, before: int) -> None:
        """After a stream has moved: decide, let others join, compare, feed back."""
        self._decide(stream, out)
        self._let_join(out)
        self._follow(out, before)

    def _follow(self, out: Output, before: int) -> None:
        """What follows from the decided point's move from ``before``: compare, feed back."""
        for verdict in self._divergence.judge(self._streams.values(), self.stable_point):
            out.notices.append(Notice(NoticeKind.DIVERGED, verdict.stream, str(verdict)))
            if verdict.quarantine and verdict.stream in self._streams:
                self._quarantine(self._streams[verdict.stream], str(verdict), out)
        if self.feedback and self.decided > before:
            for other in self._streams.values():
                if other.active and other.stable < self.decided:
                    other.horizon = self.decided
                    out.feedback.append(Feedback(other.name, self.decided))
        self._notice_stall(out)

    def _decide(self, stream: Stream, out: Output) -> None:
        t = earlier(stream.stable, self.policy.stable_lag)
        if stream.state is not StreamState.JOINED or t <= self.decided:
            return
        if self._begin is not None and t < self._begin:
            # Before the output begins nobody need know what lives: deciding on it would freeze
            # a part of the truth that a better informed stream could not mend.
            return
        effects = self._algorithm.stable(t, self._view(stream))
        self._take(effects, stream, out)
        self._move(t, stream, out)
        if effects.conflicts:
            stream.counts.conflicts += effects.conflicts
            vs, payload = effects.conflict or (0, None)
            text = (
                f"stream {stream.name!r} cannot be right about {effects.conflicts} event(s) that"
                f" the output has promised; the first: {payload} from {show(vs)} on"
            )
            out.notices.append(Notice(NoticeKind.CONFLICT, stream.name, text))
            if self.policy.divergence is DivergencePolicy.QUARANTINE:
                self._quarantine(stream, text, out)

    def _move(self, t: int, stream: Stream, out: Output) -> None:
        """The decided point is ``t`` now, and with it the output's stable point."""
        self.decided = t
        self._leader = stream.slot
        promise = min(t, self._held.peekitem(0)[0]) if self._held else t
        if promise > self.stable_point:
            self.stable_point = promise
            self._out.stables += 1
            out.parts.append(Stable(promise))

    def _let_join(self, out: Output) -> None:
        """Join every stream whose ``from`` has been reached; each may bring the next one near."""
        while self._joining:
            stream = next((s for s in self._streams.values() if self._may_join(s)), None)
            if stream is None:
                return
            self._join(stream)
            out.notices.append(_joined_notice(stream))
            self._contribute(stream, out)
            self._decide(stream, out)

    def _contribute(self, stream: Stream, out: Output) -> None:
        """Output what a stream that has just joined has, and the output lacks."""
        view = self._view(stream)
        if view.may_output:
            effects = self._algorithm.contribute(view)
            self._take(effects, stream, out)
            self._punish(effects, stream, out)

    def _punish(self, effects: Effects, stream: Stream, out: Output) -> None:
        """Quarantine a stream for what it had said while it was joining."""
        if effects.offender is not None:
            self._quarantine(stream, f"{REASONS[effects.broken]}: {effects.offender}", out)

    def _take(self, effects: Effects, stream: Stream, out: Output) -> None:
        """Account for what an algorithm did, and pass its output on."""
        counts = stream.counts
        counts.dropped += effects.dropped
        counts.late += effects.late
        for vs in effects.held:
            self._held[vs] = self._held.get(vs, 0) + 1
        for vs in effects.settled:
            self._held[vs] -= 1
            if not self._held[vs]:
                del self._held[vs]
        result = effects.output
        if not len(result):
            return
        inserts = len(result) - int(np.count_nonzero(result.op))
        counts.first += inserts
        self._out.inserts += inserts
        self._out.adjusts += len(result) - inserts
        if effects.span is None:  # else it was counted together with the stream's
            self._divergence.add(None, result)
        out.parts.append(result.to_arrow(self._element_schema))

    # -- the streams' bookkeeping -------------------------------------------------------------

    @property
    def _reached(self) -> int:
        return max(self.decided, self._algorithm.progress)

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise ConfigurationError(f"stream {name!r} is not attached")
        return stream

    def _free_slot(self) -> int:
        used = {stream.slot for stream in self._streams.values()}
        slot = next(i for i in range(len(used) + 1) if i not in used)
        if slot >= len(self._joined):
            self._joined = np.append(self._joined, np.zeros(slot + 1, dtype=np.bool_))
            self._stables = np.append(self._stables, np.full(slot + 1, BEGINNING))
        return slot

    def _may_join(self, stream: Stream) -> bool:
        """Whether a stream is to be joined now. The first that could be is: the output begins."""
        if not _is_joining(stream):
            return False
        if self._begin is None:
            self._begin = stream.since
        return stream.since <= max(self._begin, self._reached)

    def _join(self, stream: Stream) -> None:
        stream.state = StreamState.JOINED
        self._joined[stream.slot] = True
        if self._leader < 0:
            self._leader = stream.slot
        self._count_members()

    def _count_members(self) -> None:
        """What depends on how many streams there are of which kind."""
        self._joining = sum(map(_is_joining, self._streams.values()))
        self._support = self.policy.insert.support(int(self._joined.sum()))

    def _release_slot(self, stream: Stream) -> None:
        if stream.slot < 0:
            return
        self._algorithm.detach(stream.slot)
        self._stables[stream.slot] = BEGINNING
        slot, stream.slot = stream.slot, -1
        self._resign(slot)

    def _resign(self, slot: int) -> None:
        """Who was joined is not any more; if it led, somebody else does."""
        self._joined[slot] = False
        if self._leader == slot:
            joined = [s for s in self._streams.values() if s.state is StreamState.JOINED]
            left = [s for s in joined if s.slot >= 0]
            self._leader = max(left, key=lambda s: (s.stable, -s.slot)).slot if left else -1

    def _quarantine(self, stream: Stream, reason: str, out: Output) -> None:
        if not stream.active:
            return
        stream.state = StreamState.QUARANTINED
        stream.reason = reason
        self._release_slot(stream)
        self._count_members()
        text = f"stream {stream.name!r} is quarantined: {reason}"
        out.notices.append(Notice(NoticeKind.QUARANTINED, stream.name, text))

    def _view(self, stream: Stream) -> View:
        return View(
            slot=stream.slot,
            decided=self.decided,
            joined=self._joined,
            stables=self._stables,
            support=self._support,
            leader_only=self._leader_only,
            leader=self._leader,
            eager=self._eager,
            final=self._final,
        )

    @property
    def stalled(self) -> bool:
        """Whether streams are attached, and all that count are still joining. Who is on trial does
        not: without the others the merge waits, as it does without any."""
        return self._joining > 0 and not self._joined.any()

    def _notice_stall(self, out: Output) -> None:
        if not self._joining and not self._stalled:
            return
        stalled = self.stalled
        if stalled and not self._stalled:
            nearest = min(s.since for s in self._streams.values() if _is_joining(s))
            text = (
                f"the merge is stalled at {show(self.decided)}: the streams left are right only"
                f" from {show(nearest)} on; attach one that covers the gap, or allow it"
            )
            out.notices.append(Notice(NoticeKind.STALLED, None, text))
        self._stalled = stalled

    # -- what can be asked --------------------------------------------------------------------

    def streams(self) -> dict[str, StreamState]:
        """The attached streams and their states."""
        return {name: stream.state for name, stream in self._streams.items()}

    def statistics(self) -> MergeStatistics:
        """A documented value; O(streams)."""
        total = self._out.inserts
        streams = [
            StreamStatistics(
                name=s.name,
                state=s.state.value,
                since=s.since,
                stable=s.stable,
                lag=0 if s.stable >= self.decided else _span(s.stable, self.decided),
                share=s.counts.first / total if total else 0.0,
                reason=s.reason,
                on_trial=s.on_trial,
                diverged=s.diverged,
                **asdict(s.counts),
            )
            for s in self._streams.values()
        ]
        return MergeStatistics(
            restriction=self.restriction.value,
            inserts=self._out.inserts,
            adjusts=self._out.adjusts,
            stables=self._out.stables,
            stable=self.stable_point,
            decided=self.decided,
            live=self._algorithm.live,
            index_bytes=self._algorithm.index_bytes,
            payload_bytes=self._algorithm.payload_bytes,
            interval=self._divergence.digests.width,
            stalled=self.stalled,
            streams=streams,
        )

    def live_events(self) -> pa.RecordBatch | None:
        """The output's events that are not fully frozen, as inserts. O(capacity).

        None where the index does not hold them (R0 to R2, and ``final``): there the output is
        inserts alone, and whoever passes it on can keep those that end at or after its stable.
        """
        if self._final or not isinstance(self._algorithm, R3 | R4):
            return None
        return self._algorithm.outputs(self.decided).to_arrow(self._element_schema)

    def check(self) -> None:
        """Raise InvariantError unless every structure is sound. Slow: for tests."""
        self._algorithm.check(self.decided, self._final)

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything, compactly: :meth:`restore` gives a merge that goes on identically."""
        return snapshots.pack(
            {
                "policy": {
                    "insert": str(self.policy.insert),
                    "adjust": self.policy.adjust.value,
                    "stable_lag": self.policy.stable_lag,
                    "divergence": self.policy.divergence.value,
                },
                "restriction": self.restriction.value,
                "feedback": self.feedback,
                "key": self._identity.key.hex(),
                "decided": self.decided,
                "stable_point": self.stable_point,
                "begin": self._begin,
                "leader": self._leader,
                "held": [[int(vs), int(count)] for vs, count in self._held.items()],
                "stalled": self._stalled,
                "out": asdict(self._out),
                "streams": [{**asdict(s), "state": s.state.value} for s in self._streams.values()],
            },
            schema=self.schema,
            parts={"algorithm": self._algorithm.save(), "divergence": self._divergence.save()},
        )

    @staticmethod
    def restore(data: bytes) -> Merge:
        """The merge that ``data`` is a snapshot of; SnapshotError when it is damaged."""
        values, schema, parts = snapshots.unpack(data)
        with snapshots.explained():
            policy = Policy(
                InsertPolicy.parse(values["policy"]["insert"]),
                AdjustPolicy(values["policy"]["adjust"]),
                values["policy"]["stable_lag"],
                DivergencePolicy(values["policy"]["divergence"]),
            )
            merge = Merge(
                schema,
                Restriction(values["restriction"]),
                policy,
                feedback=values["feedback"],
                key=bytes.fromhex(values["key"]),
            )
            merge._fill(values, parts)
        return merge

    def _fill(self, values: dict[str, Any], parts: dict[str, dict[str, Any]]) -> None:
        self.decided, self.stable_point = values["decided"], values["stable_point"]
        self._begin, self._leader = values["begin"], values["leader"]
        self._held.update((vs, count) for vs, count in values["held"])
        self._stalled = values["stalled"]
        self._out = Counts(**values["out"])
        for saved in values["streams"]:
            fields = {
                **saved,
                "state": StreamState(saved["state"]),
                "properties": StreamProperties(**saved["properties"]),
                "counts": Counts(**saved["counts"]),
            }
            if saved.get("diverged"):
                fields["diverged"] = tuple(saved["diverged"])
            stream = Stream(**fields)
            self._streams[stream.name] = stream
        slots = max((s.slot for s in self._streams.values()), default=0) + 1
        self._joined = np.zeros(max(2, slots), dtype=np.bool_)
        self._stables = np.full(max(2, slots), BEGINNING, dtype=np.int64)
        for stream in self._streams.values():
            if stream.slot >= 0:
                self._joined[stream.slot] = stream.state is StreamState.JOINED
                self._stables[stream.slot] = stream.stable
        self._count_members()
        self._algorithm.load(parts["algorithm"])
        self._divergence.load(parts["divergence"])


def _is_joining(stream: Stream) -> bool:
    """Whether it waits for its ``from`` alone."""
    return stream.state is StreamState.JOINING and not stream.on_trial


def _span(start: int, end: int) -> int | None:
    """A distance in time; None when there is no finite one."""
    return None if start == BEGINNING or end == INFINITY else end - start


def _joined_notice(stream: Stream) -> Notice:
    text = f"stream {stream.name!r} has joined (right from {show(stream.since)} on)"
    return Notice(NoticeKind.JOINED, stream.name, text)
