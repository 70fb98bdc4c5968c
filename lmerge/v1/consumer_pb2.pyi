from lmerge.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Delivery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_UNSPECIFIED: _ClassVar[Delivery]
    DELIVERY_EAGER: _ClassVar[Delivery]
    DELIVERY_CONSISTENT: _ClassVar[Delivery]
    DELIVERY_FINAL: _ClassVar[Delivery]
DELIVERY_UNSPECIFIED: Delivery
DELIVERY_EAGER: Delivery
DELIVERY_CONSISTENT: Delivery
DELIVERY_FINAL: Delivery

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "acknowledge")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    acknowledge: Acknowledge
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "merge", "delivery", "subscription", "beginning", "now", "position")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    BEGINNING_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    merge: str
    delivery: Delivery
    subscription: str
    beginning: Beginning
    now: Now
    position: _common_pb2.Position
    def __init__(self, protocol_version: _Optional[int] = ..., merge: _Optional[str] = ..., delivery: _Optional[_Union[Delivery, str]] = ..., subscription: _Optional[str] = ..., beginning: _Optional[_Union[Beginning, _Mapping]] = ..., now: _Optional[_Union[Now, _Mapping]] = ..., position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ...) -> None: ...

class Beginning(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Now(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _common_pb2.Position
    def __init__(self, position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("opened", "snapshot", "entry", "acknowledged")
    class Acknowledged(_message.Message):
        __slots__ = ("position",)
        POSITION_FIELD_NUMBER: _ClassVar[int]
        position: _common_pb2.Position
        def __init__(self, position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    snapshot: Snapshot
    entry: Entry
    acknowledged: SubscribeResponse.Acknowledged
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., acknowledged: _Optional[_Union[SubscribeResponse.Acknowledged, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("protocol_version", "schema", "position", "restriction")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESTRICTION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    schema: bytes
    position: _common_pb2.Position
    restriction: str
    def __init__(self, protocol_version: _Optional[int] = ..., schema: _Optional[bytes] = ..., position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., restriction: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("position", "batch", "stable", "last", "since")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    position: _common_pb2.Position
    batch: bytes
    stable: int
    last: bool
    since: int
    def __init__(self, position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., batch: _Optional[bytes] = ..., stable: _Optional[int] = ..., last: _Optional[bool] = ..., since: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("next", "batch", "stable", "gap", "complete")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    next: _common_pb2.Position
    batch: bytes
    stable: int
    gap: Gap
    complete: bool
    def __init__(self, next: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., batch: _Optional[bytes] = ..., stable: _Optional[int] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., complete: _Optional[bool] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("merge",)
    MERGE_FIELD_NUMBER: _ClassVar[int]
    merge: str
    def __init__(self, merge: _Optional[str] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("schema", "restriction", "first", "next", "stable")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    RESTRICTION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    schema: bytes
    restriction: str
    first: _common_pb2.Position
    next: _common_pb2.Position
    stable: int
    def __init__(self, schema: _Optional[bytes] = ..., restriction: _Optional[str] = ..., first: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., next: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., stable: _Optional[int] = ...) -> None: ...
