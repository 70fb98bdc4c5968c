"""The few messages that carry rows, framed without copying the rows more than once.

Callers may rely on this: the bytes are those of the contract's messages (protobuf takes fields in
any order), and :func:`attach_request` takes whatever ``AttachRequest.FromString`` takes. Why by
hand: protobuf copies a ``bytes`` field when it is set, when its message is put into another, when
that is serialized, when it is parsed, and at every look at it. At 1 MiB a message that was more
than the merge itself. Cost: O(bytes), one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lmerge.v1 import consumer_pb2, log_pb2, replica_pb2

_VARINT_BYTES_MAX: Final = 10
# Tags: the field's number and 0 (varint) or 2 (length and bytes).
_EPOCH: Final = 1 << 3  # Write.epoch
_BATCH: Final = bytes([2 << 3 | 2])  # Write.batch, Entry.batch
_WRITE: Final = bytes([2 << 3 | 2])  # AttachRequest.write
_ENTRY: Final = bytes([3 << 3 | 2])  # SubscribeResponse.entry
_BATCHES: Final = bytes([5 << 3 | 2])  # EpochCommitted.batches
_EPOCH_COMMITTED: Final = bytes([3 << 3 | 2])  # Arrival.epoch


class Written(NamedTuple):
    """A ``Write``: its epoch, and the batch's bytes."""

    epoch: int
    batch: bytes


def write_request(epoch: int, batch: Any) -> bytes:
    """An ``AttachRequest`` with a ``Write``, serialized."""
    view = memoryview(batch)
    head = replica_pb2.Write(epoch=epoch).SerializeToString()
    inner = b"".join((head, _BATCH, _varint(view.nbytes)))
    return b"".join((_WRITE, _varint(len(inner) + view.nbytes), inner, view))


def attach_request(message: bytes) -> Written | replica_pb2.AttachRequest:
    """The inverse of ``SerializeToString``; a plain write is Written."""
    return _written(message) or replica_pb2.AttachRequest.FromString(message)


def _written(message: bytes) -> Written | None:
    """None unless the message is exactly one write, with its fields in order."""
    if message[:1] != _WRITE:
        return None
    size, at = _read_varint(message, 1)
    if size != len(message) - at:
        return None
    epoch = 0
    if message[at] == _EPOCH:
        epoch, at = _read_varint(message, at + 1)
    if message[at : at + 1] != _BATCH:
        return None
    size, at = _read_varint(message, at + 1)
    if size != len(message) - at or not 0 <= epoch < 1 << 64:
        return None
    # A copy, so that the rows are aligned: the compiled loops read whole words.
    return Written(epoch, message[at:])


def entry_response(entry: consumer_pb2.Entry, batch: Any) -> bytes:
    """A ``SubscribeResponse`` with ``entry``, which has no part yet, and this batch; serialized."""
    view = memoryview(batch)
    inner = b"".join((entry.SerializeToString(), _BATCH, _varint(view.nbytes)))
    return b"".join((_ENTRY, _varint(len(inner) + view.nbytes), inner, view))


def epoch_parts(epoch: log_pb2.EpochCommitted, batches: Sequence[bytes]) -> list[bytes]:
    """An ``Arrival`` with ``epoch`` and these batches; serialized, in parts, without a copy."""
    parts = [epoch.SerializeToString()]
    for batch in batches:
        parts += (_BATCHES + _varint(len(batch)), batch)
    return [_EPOCH_COMMITTED + _varint(sum(map(len, parts))), *parts]


def _varint(value: int) -> bytes:
    done = bytearray()
    while value > 0x7F:
        done.append(value & 0x7F | 0x80)
        value >>= 7
    done.append(value)
    return bytes(done)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends; a number that nothing has when it does not."""
    value = 0
    for place, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            # Something must follow, so that whoever looks there need not ask.
            return (value, at + place + 1) if at + place + 1 < len(data) else (-1, at)
    return -1, at
