from lmerge.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "write", "commit", "abort", "detach")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    write: Write
    commit: Commit
    abort: Abort
    detach: Detach
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., write: _Optional[_Union[Write, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., detach: _Optional[_Union[Detach, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "merge", "stream", "lineage", "incarnation", "instance", "schema", "properties", "from_time", "options")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    merge: str
    stream: str
    lineage: str
    incarnation: int
    instance: str
    schema: bytes
    properties: _common_pb2.StreamProperties
    from_time: int
    options: _common_pb2.MergeOptions
    def __init__(self, protocol_version: _Optional[int] = ..., merge: _Optional[str] = ..., stream: _Optional[str] = ..., lineage: _Optional[str] = ..., incarnation: _Optional[int] = ..., instance: _Optional[str] = ..., schema: _Optional[bytes] = ..., properties: _Optional[_Union[_common_pb2.StreamProperties, _Mapping]] = ..., from_time: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.MergeOptions, _Mapping]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("epoch", "batch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    batch: bytes
    def __init__(self, epoch: _Optional[int] = ..., batch: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("epoch", "stable", "parts", "skipped_before", "rows", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    stable: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    skipped_before: int
    rows: int
    counters: _containers.ScalarMap[str, float]
    def __init__(self, epoch: _Optional[int] = ..., stable: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., skipped_before: _Optional[int] = ..., rows: _Optional[int] = ..., counters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Detach(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("partition", "attempt")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    attempt: int
    def __init__(self, partition: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "acknowledged", "feedback", "detached")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    acknowledged: Acknowledged
    feedback: Feedback
    detached: Detached
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., feedback: _Optional[_Union[Feedback, _Mapping]] = ..., detached: _Optional[_Union[Detached, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "generation", "incarnation", "next_epoch", "stable", "horizon", "window_bytes", "message_bytes", "epoch_bytes", "state", "restriction")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESTRICTION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    generation: str
    incarnation: int
    next_epoch: int
    stable: int
    horizon: int
    window_bytes: int
    message_bytes: int
    epoch_bytes: int
    state: str
    restriction: str
    def __init__(self, protocol_version: _Optional[int] = ..., generation: _Optional[str] = ..., incarnation: _Optional[int] = ..., next_epoch: _Optional[int] = ..., stable: _Optional[int] = ..., horizon: _Optional[int] = ..., window_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ..., epoch_bytes: _Optional[int] = ..., state: _Optional[str] = ..., restriction: _Optional[str] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("epoch", "state", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    state: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: int
    def __init__(self, before: _Optional[int] = ...) -> None: ...

class Detached(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("header", "batch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    header: StageHeader
    batch: bytes
    def __init__(self, header: _Optional[_Union[StageHeader, _Mapping]] = ..., batch: _Optional[bytes] = ...) -> None: ...

class StageHeader(_message.Message):
    __slots__ = ("protocol_version", "merge", "stream", "incarnation", "epoch", "part")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    merge: str
    stream: str
    incarnation: int
    epoch: int
    part: Part
    def __init__(self, protocol_version: _Optional[int] = ..., merge: _Optional[str] = ..., stream: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("rows", "bytes")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    bytes: int
    def __init__(self, rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
