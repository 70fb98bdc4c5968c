from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StreamProperties(_message.Message):
    __slots__ = ("insert_only", "ordered", "strictly_increasing", "deterministic_ties", "keyed")
    INSERT_ONLY_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    STRICTLY_INCREASING_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_TIES_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    insert_only: bool
    ordered: bool
    strictly_increasing: bool
    deterministic_ties: bool
    keyed: bool
    def __init__(self, insert_only: _Optional[bool] = ..., ordered: _Optional[bool] = ..., strictly_increasing: _Optional[bool] = ..., deterministic_ties: _Optional[bool] = ..., keyed: _Optional[bool] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("generation", "sequence")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    generation: str
    sequence: int
    def __init__(self, generation: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class MergeOptions(_message.Message):
    __slots__ = ("restriction", "insert_policy", "adjust_policy", "stable_lag", "divergence")
    RESTRICTION_FIELD_NUMBER: _ClassVar[int]
    INSERT_POLICY_FIELD_NUMBER: _ClassVar[int]
    ADJUST_POLICY_FIELD_NUMBER: _ClassVar[int]
    STABLE_LAG_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    restriction: str
    insert_policy: str
    adjust_policy: str
    stable_lag: int
    divergence: str
    def __init__(self, restriction: _Optional[str] = ..., insert_policy: _Optional[str] = ..., adjust_policy: _Optional[str] = ..., stable_lag: _Optional[int] = ..., divergence: _Optional[str] = ...) -> None: ...
