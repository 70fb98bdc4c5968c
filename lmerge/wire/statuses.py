"""Errors on the wire: one table from ours to gRPC's, and the way back.

A peer gets the status code, the message, and an ErrorInfo detail whose reason is the error's
class. :func:`error_of` makes the same error of it on the other side, so that a client's caller
handles what the server raised. A leaf of the tree without a row here is a defect (a test says so).
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from lmerge import errors
from lmerge.errors import LMergeError

DOMAIN: Final = "lmerge"
# A message travels twice in the headers of an answer, once percent-encoded, and gRPC replaces an
# answer with headers of more than 8 KiB by RESOURCE_EXHAUSTED: a longer message is cut.
TEXT_ROOM: Final = 7_000

STATUSES: Final[dict[type[LMergeError], grpc.StatusCode]] = {
    errors.ConfigurationError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SchemaMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SnapshotError: grpc.StatusCode.DATA_LOSS,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BrokenPromiseError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WireError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.VersionMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EpochOrderError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FencedError: grpc.StatusCode.ABORTED,
    errors.DetachedError: grpc.StatusCode.CANCELLED,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.ExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.RetiredError: grpc.StatusCode.OUT_OF_RANGE,
    errors.LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.JournalError: grpc.StatusCode.UNAVAILABLE,
    errors.JournalRetiredError: grpc.StatusCode.OUT_OF_RANGE,
    errors.JournalFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.JournalDamagedError: grpc.StatusCode.DATA_LOSS,
    errors.MergeFaultError: grpc.StatusCode.DATA_LOSS,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.InvariantError: grpc.StatusCode.INTERNAL,
}

_BY_REASON: Final = {kind.__name__: kind for kind in STATUSES}
_BY_CODE: Final[dict[grpc.StatusCode, type[LMergeError]]] = {
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.OUT_OF_RANGE: errors.RetiredError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitError,
    grpc.StatusCode.ABORTED: errors.FencedError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.WireError,
    grpc.StatusCode.DATA_LOSS: errors.JournalDamagedError,
    grpc.StatusCode.UNIMPLEMENTED: errors.VersionMismatchError,
}
_NUMBERS: Final = {code.value[0]: code for code in grpc.StatusCode}


def code_of(error: LMergeError) -> grpc.StatusCode:
    """The status code of an error; a class that is not in the table has its parent's."""
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind]
    return grpc.StatusCode.UNKNOWN


def status_of(error: LMergeError) -> Any:
    """What ``context.abort_with_status`` takes."""
    code = code_of(error)
    info = error_details_pb2.ErrorInfo(reason=type(error).__name__, domain=DOMAIN)
    detail = any_pb2.Any()
    detail.Pack(info)
    text = _cut(str(error))
    number = code_pb2.Code.Value(code.name)
    return rpc_status.to_status(status_pb2.Status(code=number, message=text, details=[detail]))


def _cut(text: str) -> str:
    """As much of the text as there is room for."""
    room = TEXT_ROOM
    for place, character in enumerate(text[:TEXT_ROOM]):
        plain = " " <= character <= "~" and character != "%"
        room -= 3 if plain else 5 * len(character.encode())
        if room < 0:
            return text[:place]
    return text


def error_of(failure: Any) -> LMergeError:
    """The error that a grpc.RpcError stands for; UnavailableError when there was no peer."""
    code, text = failure.code(), failure.details() or ""
    kind: type[LMergeError] | None = None
    for key, value in failure.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            kind = _kind_in(value)
    if kind is None:
        kind = _BY_CODE.get(code, errors.UnavailableError)
        text = f"{code.name}: {text}"
    return _made(kind, text)


def _made(kind: type[LMergeError], text: str) -> LMergeError:
    """An error with the server's words: its own constructor may want more than them."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


def _kind_in(data: Any) -> type[LMergeError] | None:
    try:
        status = status_pb2.Status.FromString(bytes(data))
    except Exception:
        # Whatever a stranger sends as details: then the code alone counts.
        return None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            return _BY_REASON.get(info.reason)
    return None
