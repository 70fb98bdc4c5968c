from lmerge.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Arrival(_message.Message):
    __slots__ = ("begin", "attached", "epoch", "detached", "quarantined", "gap_allowed", "acknowledged", "dropped", "incarnation", "switched")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    GAP_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    attached: StreamAttached
    epoch: EpochCommitted
    detached: StreamDetached
    quarantined: StreamQuarantined
    gap_allowed: GapAllowed
    acknowledged: SubscriptionAcknowledged
    dropped: SubscriptionDropped
    incarnation: IncarnationTaken
    switched: StreamsSwitched
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., attached: _Optional[_Union[StreamAttached, _Mapping]] = ..., epoch: _Optional[_Union[EpochCommitted, _Mapping]] = ..., detached: _Optional[_Union[StreamDetached, _Mapping]] = ..., quarantined: _Optional[_Union[StreamQuarantined, _Mapping]] = ..., gap_allowed: _Optional[_Union[GapAllowed, _Mapping]] = ..., acknowledged: _Optional[_Union[SubscriptionAcknowledged, _Mapping]] = ..., dropped: _Optional[_Union[SubscriptionDropped, _Mapping]] = ..., incarnation: _Optional[_Union[IncarnationTaken, _Mapping]] = ..., switched: _Optional[_Union[StreamsSwitched, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("generation", "options", "schema", "key")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    generation: str
    options: _common_pb2.MergeOptions
    schema: bytes
    key: bytes
    def __init__(self, generation: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.MergeOptions, _Mapping]] = ..., schema: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class StreamAttached(_message.Message):
    __slots__ = ("stream", "lineage", "incarnation", "instance", "properties", "from_time")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    stream: str
    lineage: str
    incarnation: int
    instance: str
    properties: _common_pb2.StreamProperties
    from_time: int
    def __init__(self, stream: _Optional[str] = ..., lineage: _Optional[str] = ..., incarnation: _Optional[int] = ..., instance: _Optional[str] = ..., properties: _Optional[_Union[_common_pb2.StreamProperties, _Mapping]] = ..., from_time: _Optional[int] = ...) -> None: ...

class IncarnationTaken(_message.Message):
    __slots__ = ("stream", "incarnation", "instance")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    incarnation: int
    instance: str
    def __init__(self, stream: _Optional[str] = ..., incarnation: _Optional[int] = ..., instance: _Optional[str] = ...) -> None: ...

class EpochCommitted(_message.Message):
    __slots__ = ("stream", "epoch", "stable", "skipped_before", "batches", "follows")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    epoch: int
    stable: int
    skipped_before: int
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    follows: int
    def __init__(self, stream: _Optional[str] = ..., epoch: _Optional[int] = ..., stable: _Optional[int] = ..., skipped_before: _Optional[int] = ..., batches: _Optional[_Iterable[bytes]] = ..., follows: _Optional[int] = ...) -> None: ...

class StreamDetached(_message.Message):
    __slots__ = ("stream", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    reason: str
    def __init__(self, stream: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StreamQuarantined(_message.Message):
    __slots__ = ("stream", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: str
    reason: str
    def __init__(self, stream: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GapAllowed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamsSwitched(_message.Message):
    __slots__ = ("on_trial", "admitted", "before")
    ON_TRIAL_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    on_trial: _containers.RepeatedScalarFieldContainer[str]
    admitted: _containers.RepeatedScalarFieldContainer[str]
    before: int
    def __init__(self, on_trial: _Optional[_Iterable[str]] = ..., admitted: _Optional[_Iterable[str]] = ..., before: _Optional[int] = ...) -> None: ...

class SubscriptionAcknowledged(_message.Message):
    __slots__ = ("subscription", "sequence")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    sequence: int
    def __init__(self, subscription: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class SubscriptionDropped(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...
