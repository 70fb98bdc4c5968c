from lmerge.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListMergesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMergesResponse(_message.Message):
    __slots__ = ("merges",)
    MERGES_FIELD_NUMBER: _ClassVar[int]
    merges: _containers.RepeatedCompositeFieldContainer[MergeSummary]
    def __init__(self, merges: _Optional[_Iterable[_Union[MergeSummary, _Mapping]]] = ...) -> None: ...

class MergeSummary(_message.Message):
    __slots__ = ("name", "restriction", "streams", "stable", "stalled", "fault")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESTRICTION_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    restriction: str
    streams: int
    stable: int
    stalled: bool
    fault: str
    def __init__(self, name: _Optional[str] = ..., restriction: _Optional[str] = ..., streams: _Optional[int] = ..., stable: _Optional[int] = ..., stalled: _Optional[bool] = ..., fault: _Optional[str] = ...) -> None: ...

class DescribeMergeRequest(_message.Message):
    __slots__ = ("merge",)
    MERGE_FIELD_NUMBER: _ClassVar[int]
    merge: str
    def __init__(self, merge: _Optional[str] = ...) -> None: ...

class DescribeMergeResponse(_message.Message):
    __slots__ = ("name", "options", "schema", "generation", "output", "streams", "subscriptions", "log", "on_trial")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ON_TRIAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: _common_pb2.MergeOptions
    schema: bytes
    generation: str
    output: OutputStatistics
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatistics]
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionStatistics]
    log: LogStatistics
    on_trial: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.MergeOptions, _Mapping]] = ..., schema: _Optional[bytes] = ..., generation: _Optional[str] = ..., output: _Optional[_Union[OutputStatistics, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[StreamStatistics, _Mapping]]] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionStatistics, _Mapping]]] = ..., log: _Optional[_Union[LogStatistics, _Mapping]] = ..., on_trial: _Optional[_Iterable[str]] = ...) -> None: ...

class OutputStatistics(_message.Message):
    __slots__ = ("inserts", "adjusts", "stables", "stable", "live", "index_bytes", "payload_bytes", "stalled", "first_sequence", "next_sequence")
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    ADJUSTS_FIELD_NUMBER: _ClassVar[int]
    STABLES_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    inserts: int
    adjusts: int
    stables: int
    stable: int
    live: int
    index_bytes: int
    payload_bytes: int
    stalled: bool
    first_sequence: int
    next_sequence: int
    def __init__(self, inserts: _Optional[int] = ..., adjusts: _Optional[int] = ..., stables: _Optional[int] = ..., stable: _Optional[int] = ..., live: _Optional[int] = ..., index_bytes: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., stalled: _Optional[bool] = ..., first_sequence: _Optional[int] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class StreamStatistics(_message.Message):
    __slots__ = ("name", "state", "connected", "lineage", "incarnation", "last_epoch", "from_time", "stable", "lag", "share", "inserts", "adjusts", "stables", "dropped", "late", "ignored", "conflicts", "verified", "divergent", "skipped", "feedback_sent", "held_back", "staged_bytes", "reason", "counters", "on_trial", "diverged_start", "diverged_end")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    ADJUSTS_FIELD_NUMBER: _ClassVar[int]
    STABLES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DIVERGENT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_SENT_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    ON_TRIAL_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_START_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_END_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    connected: bool
    lineage: str
    incarnation: int
    last_epoch: int
    from_time: int
    stable: int
    lag: int
    share: float
    inserts: int
    adjusts: int
    stables: int
    dropped: int
    late: int
    ignored: int
    conflicts: int
    verified: int
    divergent: int
    skipped: int
    feedback_sent: int
    held_back: int
    staged_bytes: int
    reason: str
    counters: _containers.ScalarMap[str, float]
    on_trial: bool
    diverged_start: int
    diverged_end: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., connected: _Optional[bool] = ..., lineage: _Optional[str] = ..., incarnation: _Optional[int] = ..., last_epoch: _Optional[int] = ..., from_time: _Optional[int] = ..., stable: _Optional[int] = ..., lag: _Optional[int] = ..., share: _Optional[float] = ..., inserts: _Optional[int] = ..., adjusts: _Optional[int] = ..., stables: _Optional[int] = ..., dropped: _Optional[int] = ..., late: _Optional[int] = ..., ignored: _Optional[int] = ..., conflicts: _Optional[int] = ..., verified: _Optional[int] = ..., divergent: _Optional[int] = ..., skipped: _Optional[int] = ..., feedback_sent: _Optional[int] = ..., held_back: _Optional[int] = ..., staged_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., counters: _Optional[_Mapping[str, float]] = ..., on_trial: _Optional[bool] = ..., diverged_start: _Optional[int] = ..., diverged_end: _Optional[int] = ...) -> None: ...

class SubscriptionStatistics(_message.Message):
    __slots__ = ("name", "connected", "acknowledged", "behind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    connected: bool
    acknowledged: _common_pb2.Position
    behind: int
    def __init__(self, name: _Optional[str] = ..., connected: _Optional[bool] = ..., acknowledged: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., behind: _Optional[int] = ...) -> None: ...

class LogStatistics(_message.Message):
    __slots__ = ("durability", "arrivals", "arrivals_bytes", "output_bytes", "snapshot_arrival", "snapshot_bytes")
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    durability: str
    arrivals: int
    arrivals_bytes: int
    output_bytes: int
    snapshot_arrival: int
    snapshot_bytes: int
    def __init__(self, durability: _Optional[str] = ..., arrivals: _Optional[int] = ..., arrivals_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., snapshot_arrival: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ...) -> None: ...

class CreateMergeRequest(_message.Message):
    __slots__ = ("name", "options", "schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: _common_pb2.MergeOptions
    schema: bytes
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.MergeOptions, _Mapping]] = ..., schema: _Optional[bytes] = ...) -> None: ...

class CreateMergeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteMergeRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteMergeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DetachStreamRequest(_message.Message):
    __slots__ = ("merge", "stream", "reason", "incarnation")
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    merge: str
    stream: str
    reason: str
    incarnation: int
    def __init__(self, merge: _Optional[str] = ..., stream: _Optional[str] = ..., reason: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DetachStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QuarantineStreamRequest(_message.Message):
    __slots__ = ("merge", "stream", "reason")
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    merge: str
    stream: str
    reason: str
    def __init__(self, merge: _Optional[str] = ..., stream: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantineStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseStreamRequest(_message.Message):
    __slots__ = ("merge", "stream")
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    merge: str
    stream: str
    def __init__(self, merge: _Optional[str] = ..., stream: _Optional[str] = ...) -> None: ...

class ReleaseStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SwitchStreamsRequest(_message.Message):
    __slots__ = ("merge", "on_trial", "admitted", "before")
    MERGE_FIELD_NUMBER: _ClassVar[int]
    ON_TRIAL_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    merge: str
    on_trial: _containers.RepeatedScalarFieldContainer[str]
    admitted: _containers.RepeatedScalarFieldContainer[str]
    before: int
    def __init__(self, merge: _Optional[str] = ..., on_trial: _Optional[_Iterable[str]] = ..., admitted: _Optional[_Iterable[str]] = ..., before: _Optional[int] = ...) -> None: ...

class SwitchStreamsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllowGapRequest(_message.Message):
    __slots__ = ("merge",)
    MERGE_FIELD_NUMBER: _ClassVar[int]
    merge: str
    def __init__(self, merge: _Optional[str] = ...) -> None: ...

class AllowGapResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("merge",)
    MERGE_FIELD_NUMBER: _ClassVar[int]
    merge: str
    def __init__(self, merge: _Optional[str] = ...) -> None: ...

class TakeSnapshotResponse(_message.Message):
    __slots__ = ("arrival", "bytes")
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    arrival: int
    bytes: int
    def __init__(self, arrival: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DropSubscriptionRequest(_message.Message):
    __slots__ = ("merge", "subscription")
    MERGE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    merge: str
    subscription: str
    def __init__(self, merge: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class DropSubscriptionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
