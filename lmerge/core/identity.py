"""Payload identity: a keyed 122-bit fingerprint of each row, whatever the order of its columns.

Two rows have equal fingerprints if they are equal: nulls equal nulls, NaN equals NaN, -0.0
equals 0.0, and columns are told apart by name, not place. Two different rows have equal ones
with a probability over the secret key that is bounded whatever the rows are, so nobody who does
not know the key can construct a collision:

- A value of at most 64 bits is two numbers below 2³², each multiplied by a secret number modulo
  the prime p = 2⁶¹ − 1; the row is the sum over its columns (multilinear hashing: ≤ 1/p).
- The words of a string go through NH in blocks of 1 KiB (UMAC's hash, a sum of products of
  keyed word pairs: ≤ 2⁻⁶⁴ a block), the block's 128 bits are four more such numbers, and blocks
  are joined as a polynomial (≤ blocks/p).

A fingerprint is two of these under independent keys: for payloads of b blocks a pair of rows
collides with probability at most ((b + 2) / 2⁶¹)². With 10⁷ live events (2⁴⁵·⁴ pairs) of up to
64 KiB that is below 2⁻⁶⁴·⁵ for all of them together, and only events of equal ``vs`` are ever
compared. The key is random for each merge and travels in its snapshots, nowhere else.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lmerge.core.compiled import Int, Int64s, Word, Words, compiled, load_word, multiply_add
from lmerge.errors import ConfigurationError

PRIME: Final = np.uint64(2**61 - 1)
BLOCK_WORDS: Final = 128
_NH_WORDS: Final = BLOCK_WORDS + 2  # the second NH uses the key shifted by one pair (Toeplitz)
# Numbers modulo p a column has for each of its two hashes: four for a block's parts (or a fixed
# value's), one for the length, one for null, one for the polynomial.
PER_HASH: Final = 7
_LENGTH, _NULL, STEP = 4, 5, 6
KEY_BYTES: Final = 32
# Where a value is in a row: names, for fields of structs their number, None for a list's values.
Path: TypeAlias = tuple[str | int | None, ...]
NO_MASK: Final = np.zeros(0, dtype=np.bool_)
_ALL: Final = np.zeros(0, dtype=np.int64)  # of the rows


@compiled
def reduce(low: Word, high: Word) -> Word:
    """``high:low`` modulo 2⁶¹ − 1."""
    r = (low & PRIME) + ((low >> np.uint64(61)) | (high << np.uint64(3)))
    r = (r & PRIME) + (r >> np.uint64(61))
    return r - PRIME if r >= PRIME else r


@compiled
def add_modulo(a: Word, b: Word) -> Word:
    """``a + b`` modulo 2⁶¹ − 1, of numbers below it."""
    r = a + b
    return r - PRIME if r >= PRIME else r


@compiled
def parts(low: Word, high: Word, keys: Words, at: Int, length: Word) -> Word:
    """128 bits and a length, as one number modulo p."""
    half = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    a, b = multiply_add(np.uint64(0), np.uint64(0), low & half, keys[at])
    a, b = multiply_add(a, b, low >> shift, keys[at + 1])
    a, b = multiply_add(a, b, high & half, keys[at + 2])
    a, b = multiply_add(a, b, high >> shift, keys[at + 3])
    a, b = multiply_add(a, b, length, keys[at + _LENGTH])
    return reduce(a, b)


@compiled
def _halves(value: Word, keys: Words, at: Int) -> Word:
    """64 bits as one number modulo p."""
    a, b = multiply_add(np.uint64(0), np.uint64(0), value & np.uint64(0xFFFFFFFF), keys[at])
    a, b = multiply_add(a, b, value >> np.uint64(32), keys[at + 1])
    return reduce(a, b)


@compiled
def _hash_words(values: Words, valid: Any, rows: Int64s, keys: Words, h1: Words, h2: Words) -> None:
    """Adds a column of 64-bit values to the rows' hashes; ``rows``, if any, are those wanted."""
    for i in range(h1.size):
        row = rows[i] if rows.size > 0 else i
        if valid.size > 0 and not valid[row]:
            h1[i] = add_modulo(h1[i], keys[_NULL])
            h2[i] = add_modulo(h2[i], keys[PER_HASH + _NULL])
            continue
        h1[i] = add_modulo(h1[i], _halves(values[row], keys, 0))
        h2[i] = add_modulo(h2[i], _halves(values[row], keys, PER_HASH))


@compiled
def _hash_bytes(
    data: npt.NDArray[np.uint8],
    offsets: Any,  # of 32 or 64 bits
    valid: npt.NDArray[np.bool_],
    rows: Int64s,
    nh: Words,
    keys: Words,
    h1: Words,
    h2: Words,
) -> None:
    """Adds a column of byte strings to the rows' hashes; ``rows``, if any, are those wanted."""
    zero = np.uint64(0)
    two = np.int64(2)
    for i in range(h1.size):
        row = rows[i] if rows.size > 0 else i
        if valid.size > 0 and not valid[row]:
            h1[i] = add_modulo(h1[i], keys[_NULL])
            h2[i] = add_modulo(h2[i], keys[PER_HASH + _NULL])
            continue
        position = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        length = np.uint64(end - position)
        x1 = zero
        x2 = zero
        while True:
            a1 = b1 = a2 = b2 = zero
            k = np.int64(0)
            # Whole pairs of words: the loop that large payloads spend their time in.
            pairs = min((end - position) >> np.int64(4), np.int64(BLOCK_WORDS // 2))
            for _ in range(pairs):
                w0 = load_word(data, position)
                w1 = load_word(data, position + np.int64(8))
                a1, b1 = multiply_add(a1, b1, w0 + nh[k], w1 + nh[k + 1])
                a2, b2 = multiply_add(a2, b2, w0 + nh[k + 2], w1 + nh[k + 3])
                position += np.int64(16)
                k += two
            if k < BLOCK_WORDS and position < end:  # what is left of the value, padded with 0
                w0 = tail_word(data, position, end)
                w1 = tail_word(data, position + np.int64(8), end)
                a1, b1 = multiply_add(a1, b1, w0 + nh[k], w1 + nh[k + 1])
                a2, b2 = multiply_add(a2, b2, w0 + nh[k + 2], w1 + nh[k + 3])
                position = end
            last = position >= end
            count = length if last else zero
            x1 = add_modulo(x1, parts(a1, b1, keys, 0, count))
            x2 = add_modulo(x2, parts(a2, b2, keys, PER_HASH, count))
            if last:
                break
            c, d = multiply_add(zero, zero, x1, keys[STEP])
            x1 = reduce(c, d)
            c, d = multiply_add(zero, zero, x2, keys[PER_HASH + STEP])
            x2 = reduce(c, d)
        h1[i] = add_modulo(h1[i], x1)
        h2[i] = add_modulo(h2[i], x2)


@compiled
def tail_word(data: npt.NDArray[np.uint8], position: Int, end: Int) -> Word:
    """The word at ``position``, with 0 for every byte from ``end`` on."""
    left = end - position
    if left <= 0:
        return np.uint64(0)
    if left >= 8:
        return load_word(data, position)
    if position + np.int64(8) <= data.size:
        mask = (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
        return load_word(data, position) & mask
    word = np.uint64(0)
    for j in range(left):
        word |= np.uint64(data[position + j]) << np.uint64(8 * j)
    return word


@compiled
def _hash_lists(
    offsets: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_],
    c1: Words,
    c2: Words,
    keys: Words,
    h1: Words,
    h2: Words,
) -> None:
    """Adds a column of lists, whose values have the hashes ``c1``, ``c2``, to the rows'."""
    zero = np.uint64(0)
    for i in range(offsets.size - 1):
        if valid.size > 0 and not valid[i]:
            h1[i] = add_modulo(h1[i], keys[_NULL])
            h2[i] = add_modulo(h2[i], keys[PER_HASH + _NULL])
            continue
        length = np.uint64(offsets[i + 1] - offsets[i])
        x1 = parts(zero, zero, keys, 0, length)
        x2 = parts(zero, zero, keys, PER_HASH, length)
        for j in range(offsets[i], offsets[i + 1]):
            a, b = multiply_add(zero, zero, x1, keys[STEP])
            x1 = add_modulo(reduce(a, b), c1[j])
            a, b = multiply_add(zero, zero, x2, keys[PER_HASH + STEP])
            x2 = add_modulo(reduce(a, b), c2[j])
        h1[i] = add_modulo(h1[i], x1)
        h2[i] = add_modulo(h2[i], x2)


def require(schema: pa.Schema) -> None:
    """Raise ConfigurationError unless rows of this schema can be told apart."""
    for field in schema:
        _require(field.type)


def _require(kind: pa.DataType) -> None:
    if form_of(kind) is Form.STRUCT:
        for field in kind:
            _require(field.type)
    elif form_of(kind) is Form.LIST:
        for child in (
            [kind.key_type, kind.item_type] if pa.types.is_map(kind) else [kind.value_type]
        ):
            _require(child)
    elif isinstance(kind, pa.BaseExtensionType):
        _require(kind.storage_type)
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        _require(kind.value_type)


class Identity:
    """Fingerprints of the rows of one schema under one secret key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"an identity key has {KEY_BYTES} bytes, not {len(key)}")
        self.key = key
        self._nh = self.random_words(b"nh", _NH_WORDS)
        self._keys: dict[Path, Words] = {}
        self._forms: dict[pa.DataType, Form] = {}

    def fingerprints(
        self, columns: pa.RecordBatch, rows: Int64s | None = None
    ) -> tuple[Words, Words]:
        """Two numbers below 2⁶¹ − 1 for each row, or for those wanted. Cost: the bytes read."""
        count = columns.num_rows if rows is None else len(rows)
        h1, h2 = np.zeros((2, count), dtype=np.uint64)
        if not count:
            return h1, h2
        for name, column in zip(columns.schema.names, columns.columns, strict=True):
            self._accumulate(column, (name,), h1, h2, _ALL if rows is None else rows)
        return h1, h2

    def random_words(self, purpose: bytes, count: int) -> Words:
        """Words that depend on the key and the purpose, and on nothing else."""
        stream = hashlib.shake_256(self.key + purpose).digest(8 * count)
        return np.frombuffer(stream, dtype=np.uint64).copy()

    def column_keys(self, path: Path) -> Words:
        """The numbers modulo p for a column, those of its first hash before those of its second."""
        keys = self._keys.get(path)
        if keys is None:
            # 64 random bits modulo p are uniform to within 2⁻⁶¹.
            keys = self.random_words(b"column:" + repr(path).encode(), 2 * PER_HASH) % PRIME
            self._keys[path] = keys
        return keys

    def _accumulate(
        self, column: pa.Array, path: Path, h1: Words, h2: Words, rows: Int64s = _ALL
    ) -> None:
        kind = column.type
        form = self._forms.get(kind)
        if form is None:
            form = self._forms[kind] = form_of(kind)
        if form is Form.NULL:
            return
        if form is Form.DECODE:
            self._accumulate(decoded(column), path, h1, h2, rows)
            return
        if rows.size and form in (Form.STRUCT, Form.LIST):
            column, rows = column.take(pa.array(rows)), _ALL
        keys = self.column_keys(path)
        valid = which_are_valid(column)
        if form is Form.BYTES:
            data, offsets = byte_strings(column)
            _hash_bytes(data, offsets, valid, rows, self._nh, keys, h1, h2)
        elif form is Form.WORDS:
            first, *others = values_as_words(column)
            _hash_words(first, valid, rows, keys, h1, h2)
            for part, words in enumerate(others):  # wide decimals: like columns of their own
                _hash_words(words, valid, rows, self.column_keys((*path, part)), h1, h2)
        elif form is Form.STRUCT:
            if valid.size:
                _hash_words(np.zeros(len(column), np.uint64), valid, _ALL, keys, h1, h2)
            names: Counter[str] = Counter()
            for field, child in zip(kind, column.flatten(), strict=True):
                # Fields of one name are told apart by their order.
                self._accumulate(child, (*path, field.name, names[field.name]), h1, h2)
                names[field.name] += 1
        else:
            offsets, values = _lists(column)
            c1 = np.zeros(len(values), dtype=np.uint64)
            c2 = np.zeros(len(values), dtype=np.uint64)
            self._accumulate(values, (*path, None), c1, c2)
            _hash_lists(offsets, valid, c1, c2, keys, h1, h2)


class Form(Enum):
    """How a type is hashed."""

    WORDS = 1
    BYTES = 2
    STRUCT = 3
    LIST = 4
    NULL = 5
    DECODE = 6  # as the plain type that it stands for


def form_of(kind: pa.DataType) -> Form:
    """How values of a type are hashed; ConfigurationError when they cannot be."""
    t = pa.types
    if t.is_null(kind):
        return Form.NULL
    if (
        t.is_dictionary(kind) or t.is_run_end_encoded(kind) or t.is_string_view(kind)
        or t.is_binary_view(kind) or isinstance(kind, pa.BaseExtensionType)
    ):  # fmt: skip
        return Form.DECODE
    if t.is_struct(kind):
        return Form.STRUCT
    if (
        t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or t.is_map(kind)
    ):  # fmt: skip
        return Form.LIST
    if (
        t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind)
        or t.is_large_binary(kind) or t.is_fixed_size_binary(kind)
    ) and not t.is_decimal(kind):  # fmt: skip
        return Form.BYTES
    if t.is_primitive(kind) or t.is_decimal(kind) or kind == pa.month_day_nano_interval():
        return Form.WORDS
    raise ConfigurationError(
        f"payload columns of type {kind} are not supported: cast the column to a struct,"
        " a string or a number"
    )


def decoded(column: pa.Array) -> pa.Array:
    """An encoded column as the plain one that it stands for."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.dictionary_decode()
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_decode(column)
    if isinstance(kind, pa.BaseExtensionType):
        return column.storage
    return column.cast(pa.large_binary())


def which_are_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are not null; empty if all are."""
    if column.null_count == 0:
        return NO_MASK
    mask: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


_LARGE: Final = {pa.large_string().id, pa.large_binary().id}
_OF_64_BITS: Final = {
    kind.id
    for kind in (
        pa.int64(), pa.uint64(), pa.timestamp("us"), pa.time64("us"), pa.duration("us"), pa.date64()
    )
}  # fmt: skip


def byte_strings(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Any]:
    """The bytes of a column of strings, and the offsets at which each starts and the last ends."""
    rows, start = len(column), column.offset
    buffers = column.buffers()
    data = np.frombuffer(buffers[-1] or b"", dtype=np.uint8)
    if len(buffers) == 2:  # no offsets: of fixed size
        width = column.type.byte_width
        return data, _read_only(np.arange(start, start + rows + 1, dtype=np.int64) * width)
    large = column.type.id in _LARGE
    if buffers[1] is None or rows == 0:
        return data, _read_only(np.zeros(rows + 1, dtype=np.int64 if large else np.int32))
    offsets = np.frombuffer(buffers[1], dtype=np.int64 if large else np.int32)
    return data, offsets[start : start + rows + 1]


def _read_only(column: Any) -> Any:
    """Like the columns that come from Arrow, so that one compiled version serves both."""
    column.setflags(write=False)
    return column


def _lists(column: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    rows, kind = len(column), column.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = column.values.slice(column.offset * size, rows * size)
        return np.arange(rows + 1, dtype=np.int64) * size, values
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.values
    if pa.types.is_map(kind):
        values = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    first, last = (int(offsets[0]), int(offsets[-1])) if rows else (0, 0)
    return offsets - first, values.slice(first, last - first)


def values_as_words(column: pa.Array) -> list[Words]:
    """The values' bits as 64-bit words, 1, 2 or 4 a value; equal values have equal bits."""
    rows, start, kind = len(column), column.offset, column.type
    if kind.id in _OF_64_BITS and rows:
        return [np.frombuffer(column.buffers()[1], np.uint64, rows, 8 * start)]
    if pa.types.is_boolean(kind):
        bytes_ = column.cast(pa.uint8())
        raw = np.frombuffer(bytes_.buffers()[1] or b"", dtype=np.uint8)
        return [raw[bytes_.offset : bytes_.offset + rows].astype(np.uint64)]
    if pa.types.is_floating(kind):
        width = np.dtype(f"f{kind.bit_width // 8}")
        raw = np.frombuffer(column.buffers()[1] or b"", dtype=width)[start : start + rows]
        with np.errstate(invalid="ignore"):  # what lies under a null may be anything
            floats = raw.astype(np.float64) + 0.0  # -0.0 becomes 0.0
        bits = floats.view(np.uint64)
        bits[np.isnan(floats)] = np.uint64(0x7FF8000000000000)
        return [bits]
    bytes_each = kind.bit_width // 8
    raw_bytes = column.buffers()[1] or b""
    if bytes_each < 8:
        signed = np.dtype(f"i{bytes_each}")
        values = np.frombuffer(raw_bytes, dtype=signed)[start : start + rows]
        return [values.astype(np.int64).view(np.uint64)]
    each = bytes_each // 8
    words = np.frombuffer(raw_bytes, dtype=np.uint64)[start * each : (start + rows) * each]
    if each == 1:
        return [words]
    return [np.ascontiguousarray(words[part::each]) for part in range(each)]
