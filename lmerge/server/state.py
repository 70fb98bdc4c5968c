"""A merge as the server has it: one state machine from arrivals to entries of the output.

Callers may rely on this:
- The same arrivals give the same entries at the same positions: :meth:`MergeState.apply` reads no
  clock and does no I/O. A restored snapshot goes on identically.
- An arrival that cannot be is an error and changes nothing, now and at every replay.
- An epoch counts once: a repeated one gives nothing.
- Every step's entries are to be taken as a whole; the last of them says so (``complete``).
"""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lmerge.core.batch import element_schema, payload_schema, plain
from lmerge.core.identity import KEY_BYTES
from lmerge.core.merge import MOST_STREAMS, Merge
from lmerge.core.output import Feedback, Gap, Notice, Output
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction, StreamProperties, choose
from lmerge.elements import Stable
from lmerge.errors import ConfigurationError, EpochOrderError, NotFoundError, SnapshotError
from lmerge.server.live import LiveInserts
from lmerge.times import BEGINNING
from lmerge.v1 import common_pb2, consumer_pb2, log_pb2
from lmerge.wire import rows
from lmerge.wire.envelopes import entry_response

ENTRY_BYTES: Final = 2 << 20  # about how large a batch of the output is at most
_MAGIC: Final = b"lmerge snapshot 1\n"
_HEAD: Final = struct.Struct("<IQQ")  # checksum of the rest, bytes of the JSON, of the merge


@dataclass(slots=True)
class StreamRecord:
    """What the server remembers of a stream; it outlives the attachment, so that zombies and
    ended lineages are known for what they are."""

    lineage: str
    incarnation: int
    instance: str
    last_epoch: int | None = None
    attached: bool = True


@dataclass(slots=True)
class Step:
    """What one arrival did."""

    entries: list[bytes] = field(default_factory=list)  # SubscribeResponses, serialized
    feedback: list[Feedback] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class MergeState:
    """One merge, from its first arrival on."""

    def __init__(self, begin: log_pb2.Begin) -> None:
        self.generation = begin.generation
        self.options = begin.options
        self.merge = Merge(
            rows.schema_of(begin.schema),
            Restriction(begin.options.restriction),
            policy_of(begin.options),
            feedback=True,
            key=begin.key,
        )
        self.arrivals = 1  # how many have been applied; this is the first
        self.sequence = 0  # how many entries the output has
        self.streams: dict[str, StreamRecord] = {}
        self.subscriptions: dict[str, int] = {}
        self.on_trial: set[str] = set()  # names, attached or not
        self._prepare()

    def _prepare(self) -> None:
        self.elements = element_schema(self.merge.schema)
        self.live = LiveInserts(self.elements) if self.merge.live_events() is None else None

    # -- arrivals -----------------------------------------------------------------------------

    def apply(self, arrival: log_pb2.Arrival, batches: list[pa.RecordBatch] | None = None) -> Step:
        """One step; ConfigurationError or NotFoundError when it cannot be.

        ``batches`` are an epoch's, where they have been decoded already.
        """
        self.arrivals += 1
        kind = arrival.WhichOneof("arrival")
        step = Step()
        if kind == "epoch":
            self._epoch(arrival.epoch, batches, step)
        elif kind == "attached":
            self._attached(arrival.attached, step)
        elif kind == "incarnation":
            taken = arrival.incarnation
            record = self._record(taken.stream)
            record.incarnation, record.instance = taken.incarnation, taken.instance
        elif kind == "detached":
            self._record(arrival.detached.stream).attached = False
            self._take(self.merge.detach(arrival.detached.stream), step)
        elif kind == "quarantined":
            wanted = arrival.quarantined
            self._record(wanted.stream)
            self._take(self.merge.quarantine(wanted.stream, wanted.reason), step)
        elif kind == "switched":
            self._switched(arrival.switched, step)
        elif kind == "gap_allowed":
            self._take(self.merge.allow_gap(), step)
        elif kind == "acknowledged":
            acknowledged = arrival.acknowledged
            known = self.subscriptions.get(acknowledged.subscription, 0)
            self.subscriptions[acknowledged.subscription] = max(known, acknowledged.sequence)
        elif kind == "dropped":
            if self.subscriptions.pop(arrival.dropped.subscription, None) is None:
                raise NotFoundError(f"there is no subscription {arrival.dropped.subscription!r}")
        else:
            raise ConfigurationError(f"an arrival of an unknown kind: {kind}")
        return step

    def _epoch(
        self, epoch: log_pb2.EpochCommitted, batches: list[pa.RecordBatch] | None, step: Step
    ) -> None:
        record = self._record(epoch.stream)
        if record.last_epoch is not None and epoch.epoch <= record.last_epoch:
            return
        follows = epoch.follows if epoch.HasField("follows") else None
        if follows != record.last_epoch:
            raise EpochOrderError(
                f"epoch {epoch.epoch} of stream {epoch.stream!r} was to follow {follows}, which was"
                f" refused; the last is {record.last_epoch}"
            )
        if batches is None:
            batches = [rows.batch_of(data, self.elements) for data in epoch.batches]
        if epoch.HasField("skipped_before"):
            self.merge.skipped(epoch.stream, epoch.skipped_before)
        stable = epoch.stable if epoch.HasField("stable") else None
        whole = joined(batches, self.elements)
        self._take(self.merge.apply(epoch.stream, whole, stable), step)
        record.last_epoch = epoch.epoch

    def _attached(self, wanted: log_pb2.StreamAttached, step: Step) -> None:
        since = wanted.from_time if wanted.HasField("from_time") else None
        said = wanted.HasField("properties")
        properties = properties_of(wanted.properties) if said else None
        self.require(wanted.stream, properties)
        known = self.streams.get(wanted.stream)
        if known is not None and known.attached:
            # Another lineage under the same name: another physical stream.
            self._take(self.merge.detach(wanted.stream), step)
        on_trial = wanted.stream in self.on_trial
        self._take(self.merge.attach(wanted.stream, since, properties, on_trial=on_trial), step)
        self.streams[wanted.stream] = StreamRecord(
            wanted.lineage, wanted.incarnation, wanted.instance
        )

    def _switched(self, wanted: log_pb2.StreamsSwitched, step: Step) -> None:
        on_trial = (self.on_trial | set(wanted.on_trial)) - set(wanted.admitted)
        if len(on_trial) > MOST_STREAMS:
            raise ConfigurationError(f"at most {MOST_STREAMS} names can be on trial")
        before = wanted.before if wanted.HasField("before") else None
        self._take(self.merge.switch(wanted.on_trial, wanted.admitted, before), step)
        self.on_trial = on_trial

    def require(self, stream: str, properties: StreamProperties | None) -> None:
        """Raise ConfigurationError unless a stream promises what the restriction needs."""
        required = self.merge.restriction.requires
        if properties is not None and not properties.covers(required):
            lacking = ", ".join(properties.missing(required))
            raise ConfigurationError(
                f"the merge is {self.merge.restriction.value}, and stream {stream!r} does not"
                f" promise what that needs: {lacking}"
            )

    def _record(self, stream: str) -> StreamRecord:
        record = self.streams.get(stream)
        if record is None or not record.attached:
            raise NotFoundError(f"stream {stream!r} is not attached")
        return record

    # -- output -------------------------------------------------------------------------------

    def _take(self, output: Output, step: Step) -> None:
        step.feedback += output.feedback
        step.notices += output.notices
        parts: list[Any] = []
        for part in output.parts:
            if isinstance(part, pa.RecordBatch):
                parts += cut(part, ENTRY_BYTES)
            else:
                parts.append(part)
        if self.live is not None:
            self.live.take(output.parts)
        for number, part in enumerate(parts):
            step.entries.append(self._entry(part, complete=number == len(parts) - 1))

    def _entry(self, part: Any, *, complete: bool) -> bytes:
        self.sequence += 1
        entry = consumer_pb2.Entry(next=self.position(self.sequence), complete=complete)
        if isinstance(part, Stable):
            entry.stable = part.vc
        elif isinstance(part, Gap):
            entry.gap.start, entry.gap.end = part.start, part.end
        else:
            return entry_response(entry, rows.batch_bytes(part))
        return consumer_pb2.SubscribeResponse(entry=entry).SerializeToString()

    def position(self, sequence: int) -> common_pb2.Position:
        """A place in this generation's output."""
        return common_pb2.Position(generation=self.generation, sequence=sequence)

    def live_events(self) -> pa.RecordBatch:
        """The output's events that are not fully frozen, as inserts."""
        if self.live is not None:
            return self.live.events(self.merge.stable_point)
        return self.merge.live_events()

    @property
    def stable_point(self) -> int | None:
        """What the output has promised; None before it has."""
        point = self.merge.stable_point
        return None if point == BEGINNING else point

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything; :meth:`restore` gives a state that goes on identically."""
        values = {
            "generation": self.generation,
            "options": self.options.SerializeToString().hex(),
            "arrivals": self.arrivals,
            "sequence": self.sequence,
            "streams": {name: asdict(record) for name, record in self.streams.items()},
            "subscriptions": self.subscriptions,
            "on_trial": sorted(self.on_trial),
        }
        head = json.dumps(values).encode()
        merge = self.merge.snapshot()
        live = b"" if self.live is None else self.live.save(self.merge.stable_point)
        rest = b"".join((head, merge, live))
        return b"".join((_MAGIC, _HEAD.pack(zlib.crc32(rest), len(head), len(merge)), rest))

    @staticmethod
    def restore(data: bytes) -> MergeState:
        """The state that ``data`` is a snapshot of; SnapshotError when it is damaged."""
        start = len(_MAGIC) + _HEAD.size
        if not data.startswith(_MAGIC) or len(data) < start:
            raise SnapshotError("these bytes are no snapshot of a merge of this version")
        checksum, head, merge = _HEAD.unpack_from(data, len(_MAGIC))
        if zlib.crc32(memoryview(data)[start:]) != checksum:
            raise SnapshotError("the snapshot is damaged: its checksum is wrong")
        values = json.loads(data[start : start + head])
        state = MergeState.__new__(MergeState)
        state.generation = values["generation"]
        state.options = common_pb2.MergeOptions.FromString(bytes.fromhex(values["options"]))
        state.arrivals, state.sequence = values["arrivals"], values["sequence"]
        state.streams = {n: StreamRecord(**fields) for n, fields in values["streams"].items()}
        state.subscriptions = values["subscriptions"]
        state.on_trial = set(values.get("on_trial", []))  # a snapshot from before there were trials
        state.merge = Merge.restore(data[start + head : start + head + merge])
        state._prepare()
        if state.live is not None:
            state.live.load(data[start + head + merge :])
        return state


def begin(options: common_pb2.MergeOptions, schema: pa.Schema) -> log_pb2.Begin:
    """The first arrival of a new merge, with its secret key and its generation."""
    return log_pb2.Begin(
        generation=secrets.token_hex(8),
        options=options,
        schema=rows.schema_bytes(plain(payload_schema(rows.plain_types(schema)))),
        key=secrets.token_bytes(KEY_BYTES),
    )


def complete_options(
    options: common_pb2.MergeOptions, properties: StreamProperties | None
) -> common_pb2.MergeOptions:
    """Options with nothing left open: the restriction is chosen from what a stream promises."""
    policy = policy_of(options)
    if options.restriction:
        try:
            restriction = Restriction(options.restriction)
        except ValueError:
            raise ConfigurationError(
                f"unknown restriction {options.restriction!r}: one of R0, R1, R2, R3, R4"
            ) from None
    else:
        restriction = Restriction.R3 if properties is None else choose([properties], policy)
    return common_pb2.MergeOptions(
        restriction=restriction.value,
        insert_policy=str(policy.insert),
        adjust_policy=policy.adjust.value,
        stable_lag=policy.stable_lag,
        divergence=policy.divergence.value,
    )


def policy_of(options: common_pb2.MergeOptions) -> Policy:
    """The policy that options name; ConfigurationError when there is none such."""
    try:
        adjust = AdjustPolicy(options.adjust_policy or AdjustPolicy.LAZY.value)
        divergence = DivergencePolicy(options.divergence or DivergencePolicy.REPORT.value)
    except ValueError as error:
        raise ConfigurationError(
            f"{error}: adjusts are lazy or eager; divergence is report, quarantine, majority or off"
        ) from None
    insert = InsertPolicy.parse(options.insert_policy or "first")
    return Policy(insert, adjust, options.stable_lag, divergence)


def properties_of(message: common_pb2.StreamProperties) -> StreamProperties:
    """What a stream promises."""
    names = StreamProperties.__slots__
    return StreamProperties(**{name: getattr(message, name) for name in names})


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of several; a single one is not copied."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return pa.concat_batches(batches)


def cut(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about so many bytes; a function of the rows alone."""
    pieces = max(1, -(-int(batch.nbytes) // most_bytes))
    if pieces == 1:
        yield batch
        return
    edges = np.linspace(0, batch.num_rows, min(pieces, batch.num_rows) + 1).astype(int)
    for start, end in pairwise(edges):
        yield batch.slice(int(start), int(end - start))
