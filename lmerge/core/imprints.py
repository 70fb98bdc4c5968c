"""Imprints: a keyed 128-bit hash of each row, for digests where nothing else tells rows apart.

Equal rows have equal imprints, in the sense of :mod:`lmerge.core.identity`. An imprint costs a
fraction of a fingerprint and promises less: two given rows that differ, chosen without knowledge
of the key, have equal ones with a probability of at most 2⁻⁶³, or (b + 3)/2⁶¹ where a string or a
nested value has b blocks of 1 KiB (b = 1 for what is nested and short). A digest compares sums,
not pairs of rows, so that is enough there; it would not be for the rows of an index.

A row is one long vector of words for NH (UMAC's hash: a sum of products of keyed word pairs,
modulo 2¹²⁸), in which every column has keys of its own. A number is a pair with 0. A string of
less than 64 bytes is its words, padded with 0, and its length is added: of two strings the longer
has a pair more, or the words differ, or the lengths do. A string of 64 bytes to 1 KiB is lines of
64 bytes for two NHs of 32-bit numbers with keys of their own, the one for the low half of the 128
bits and the other for the high: each takes a given difference with a probability of at most
2⁻³² (and 2⁻²⁵⁶, where one of the strings has a line more), whatever the other and the rest of the
row do. Longer strings are hashed modulo p by blocks as in a fingerprint, and nested values are
fingerprints; the result is a number.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lmerge.core.compiled import (
    Int,
    Word,
    Words,
    compiled,
    inlined,
    load_word,
    multiply_add,
    paired_sums,
)
from lmerge.core.identity import (
    BLOCK_WORDS,
    NO_MASK,
    PER_HASH,
    STEP,
    Form,
    Identity,
    Path,
    add_modulo,
    byte_strings,
    decoded,
    form_of,
    parts,
    reduce,
    tail_word,
    values_as_words,
    which_are_valid,
)

# A column's words: a number's key and multiplier, what stands for null (128 bits), NH's keys for a
# string shorter than a line, and those for a block's lines (two words for each of theirs).
_KEY, _TIMES, _NULL_LOW, _NULL_HIGH, _NH, _LINES = 0, 1, 2, 3, 4, 12
_COLUMN_WORDS: Final = _LINES + 2 * BLOCK_WORDS
_SHORT: Final = 8 * BLOCK_WORDS
_LINE: Final = 64
_ROOM_KEPT: Final = 2**16  # rows for which room is kept between calls
_NO_ROOM: Final = np.empty((2, 0), dtype=np.uint64)


@compiled
def _words(values: Words, valid: Any, keys: Words, first: bool, low: Words, high: Words) -> None:
    """Adds a column of 64-bit values to the rows' imprints, or begins them."""
    for i in range(values.size):
        a = b = np.uint64(0)
        if not first:
            a, b = low[i], high[i]
        if valid.size > 0 and not valid[i]:
            a, b = multiply_add(a, b + keys[_NULL_HIGH], keys[_NULL_LOW], np.uint64(1))
        else:
            a, b = multiply_add(a, b, values[i] + keys[_KEY], keys[_TIMES])
        low[i] = a
        high[i] = b


@compiled
def _bytes(
    data: npt.NDArray[np.uint8],
    offsets: Any,
    valid: npt.NDArray[np.bool_],
    keys: Words,
    column: Words,
    first: bool,
    low: Words,
    high: Words,
) -> None:
    """Adds a column of byte strings to the rows' imprints, or begins them."""
    for i in range(offsets.size - 1):
        a = b = np.uint64(0)
        if not first:
            a, b = low[i], high[i]
        if valid.size > 0 and not valid[i]:
            a, b = multiply_add(a, b + keys[_NULL_HIGH], keys[_NULL_LOW], np.uint64(1))
            low[i] = a
            high[i] = b
            continue
        position = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        if end - position > _SHORT:
            value = _long(data, position, end, keys, column)
            a, b = multiply_add(a, b, value + keys[_KEY], keys[_TIMES])
            low[i] = a
            high[i] = b
            continue
        length = np.uint64(end - position)
        a, b = _block(data, position, end, keys, a, b)
        a, b = multiply_add(a, b, length, np.uint64(1))
        low[i] = a
        high[i] = b


@inlined
def _block(data: Any, position: Int, end: Int, keys: Words, a: Word, b: Word) -> Any:
    """Adds at most 1 KiB of a string to the sum ``b:a``."""
    eight, sixteen = np.int64(8), np.int64(16)
    if end - position >= np.int64(_LINE):
        c, d = paired_sums(data, position, end - position, keys, np.int64(_LINES))
        return multiply_add(a, b + d, c, np.uint64(1))
    k = np.uint64(_NH)  # unsigned: no test for places below 0
    for _ in range((end - position) >> np.int64(4)):
        w0 = load_word(data, position) + keys[k]
        w1 = load_word(data, position + eight) + keys[k + np.uint64(1)]
        a, b = multiply_add(a, b, w0, w1)
        position += sixteen
        k += np.uint64(2)
    left = end - position
    if left > 0:
        if position + sixteen <= data.size:
            # Two whole words, and what is behind the value masked away.
            shift = np.uint64(8 * (left & np.int64(7)))
            mask = (np.uint64(1) << shift) - np.uint64(1)
            w0 = load_word(data, position)
            w1 = load_word(data, position + eight) & mask
            if left < 8:
                w0 &= mask
                w1 = np.uint64(0)
        else:
            w0 = tail_word(data, position, end)
            w1 = tail_word(data, position + eight, end)
        a, b = multiply_add(a, b, w0 + keys[k], w1 + keys[k + np.uint64(1)])
    return a, b


@compiled
def _long(data: Any, position: Int, end: Int, keys: Words, column: Words) -> Word:
    """A long string as one number modulo p: its blocks' NH as the coefficients of a polynomial."""
    zero = np.uint64(0)
    length = np.uint64(end - position)
    value = zero
    while True:
        until = min(end, position + np.int64(_SHORT))
        a, b = _block(data, position, until, keys, zero, zero)
        position = until
        last = until == end
        value = add_modulo(value, parts(a, b, column, 0, length if last else zero))
        if last:
            return value
        a, b = multiply_add(zero, zero, value, column[STEP])
        value = reduce(a, b)


class Imprints:
    """Imprints of the rows of one schema, under the key of an :class:`Identity`."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._keys: dict[Path, Words] = {}
        self._schema: pa.Schema | None = None
        self._forms: list[tuple[Path, Form]] = []  # of that schema's columns
        # New memory for each batch would cost as much as filling it: pages are mapped anew.
        self._room = _NO_ROOM

    def of(self, columns: pa.RecordBatch) -> tuple[Words, Words]:
        """The low and the high word of each row's imprint, until the next call overwrites them.

        Cost: about the bytes read.
        """
        rows = columns.num_rows
        if rows > self._room.shape[1]:
            self._room = np.empty((2, rows), dtype=np.uint64)
        low, high = self._room[0, :rows], self._room[1, :rows]
        if rows > _ROOM_KEPT:
            self._room = _NO_ROOM
        schema = columns.schema
        if self._schema is None or not schema.equals(self._schema):
            self._schema = schema
            self._forms = [((field.name,), form_of(field.type)) for field in schema]
        first = True
        values = columns.to_struct_array()  # gives its columns sooner than the batch does
        for place, (path, form) in enumerate(self._forms):
            first = self._add(values.field(place), path, form, first, low, high)
        if first:
            low[:] = high[:] = 0
        return low, high

    def _column_keys(self, path: Path) -> Words:
        keys = self._keys.get(path)
        if keys is None:
            purpose = b"imprint:" + repr(path).encode()
            keys = self._keys[path] = self._identity.random_words(purpose, _COLUMN_WORDS)
        return keys

    def _add(
        self, column: pa.Array, path: Path, form: Form, first: bool, low: Words, high: Words
    ) -> bool:
        """Add a column, or begin with it; whether there is still none."""
        if form is Form.NULL:
            return first
        if form is Form.DECODE:
            plain = decoded(column)
            return self._add(plain, path, form_of(plain.type), first, low, high)
        keys = self._column_keys(path)
        if form is Form.BYTES:
            data, offsets = byte_strings(column)
            valid = which_are_valid(column)
            modulo = self._identity.column_keys(path)[:PER_HASH]
            _bytes(data, offsets, valid, keys, modulo, first, low, high)
        elif form is Form.WORDS:
            valid = which_are_valid(column)
            for part, words in enumerate(values_as_words(column)):
                own = keys if part == 0 else self._column_keys((*path, part))
                _words(words, valid, own, first, low, high)
                first = False
        else:
            nested = pa.RecordBatch.from_arrays([column], names=[str(path[0])])
            hashes, _ = self._identity.fingerprints(nested)
            _words(hashes, NO_MASK, keys, first, low, high)
        return False
