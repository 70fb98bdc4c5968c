"""Fingerprints are equal exactly when rows are: for every type, layout and length."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lmerge.core.identity import KEY_BYTES, Identity
from lmerge.core.imprints import Imprints
from lmerge.core.merge import Merge
from lmerge.errors import ConfigurationError

KEY = bytes(range(KEY_BYTES))
Fingerprint = tuple[int, int]

NAN, UTC = float("nan"), dt.UTC
TEXTS = ["", "a", "b", "ab", "ba", "\0", "\0\0", "a\0", "é", "x" * 16, "x" * 17, None]
BLOBS = [b"", b"\0", b"a", b"ab", b"\0a", b"a\0", b"\xff" * 9, None]
# Values of each type that are pairwise different; None is one of them.
DIFFERENT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    *[(kind, [0, 1, -1, -128, 127, None]) for kind in (pa.int8(), pa.int16(), pa.int32())],
    (pa.int64(), [0, 1, -1, 2**32, -(2**32), 2**63 - 1, -(2**63), None]),
    *[(kind, [0, 1, 127, 128, 255, None]) for kind in (pa.uint8(), pa.uint16(), pa.uint32())],
    (pa.uint64(), [0, 1, 2**32, 2**63, 2**64 - 1, None]),
    *[
        (kind, [0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), NAN, None])
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ],
    (pa.float64(), [5e-324, -5e-324, 1.0, 1.0 + 2**-52, 2.0**1023, None]),
    (pa.decimal128(38, 2), [*map(Decimal, ("0", "0.01", "-0.01", "1e20", "-1e20")), None]),
    (pa.decimal256(76, 0), [*map(Decimal, ("0", "1", "-1", "1e39", "1e60", "-1e60")), None]),
    (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    (pa.date64(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    (pa.time32("ms"), [dt.time(0), dt.time(0, 0, 1), dt.time(23, 59, 59), None]),
    (pa.time64("us"), [dt.time(0), dt.time(0, 0, 0, 1), dt.time(23, 59, 59), None]),
    (pa.timestamp("s"), [0, 1, -1, 2**30, None]),
    (pa.timestamp("us", "Europe/Zurich"), [0, 1, -1, 2**40, None]),
    (pa.duration("ns"), [0, 1000, -1000, 2**40 * 1000, None]),
    (pa.month_day_nano_interval(), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, -1, 0), None]),
    *[(kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())],
    *[(kind, BLOBS) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())],
    (pa.binary(3), [b"\0\0\0", b"\0\0a", b"a\0\0", b"abc", None]),
    (pa.dictionary(pa.int8(), pa.string()), ["", "a", "b", "ab", None]),
    (pa.dictionary(pa.int32(), pa.int64()), [0, 1, 2, None]),
    (pa.run_end_encoded(pa.int32(), pa.string()), ["", "a", "a", "b", None]),
    *[
        (kind(pa.int64()), [[], [0], [0, 0], [1], [1, 2], [2, 1], [None], [None, 0], None])
        for kind in (pa.list_, pa.large_list)
    ],
    (pa.list_(pa.int32(), 2), [[0, 0], [0, 1], [1, 0], [None, 0], [0, None], [None, None], None]),
    (pa.list_(pa.list_(pa.int8())), [[], [[]], [[], []], [[0]], [[0], []], [[], [0]], [None]]),
    (pa.list_(pa.string()), [[], [""], ["", ""], ["ab"], ["a", "b"], ["b", "a"], [None], None]),
    (
        pa.map_(pa.string(), pa.int32()),
        [[], [("a", 1)], [("a", 2)], [("b", 1)], [("a", 1), ("b", 2)], [("a", None)], None],
    ),
    (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [
            {"x": 0, "y": ""}, {"x": 0, "y": None}, {"x": None, "y": ""}, {"x": None, "y": None},
            {"x": 1, "y": ""}, {"x": 0, "y": "1"}, None,
        ],
    ),
    (
        pa.struct([("x", pa.int64()), ("y", pa.int64())]),
        [{"x": 1, "y": 2}, {"x": 2, "y": 1}, {"x": 3, "y": 0}, {"x": 0, "y": 3}, None],
    ),
    (
        pa.list_(pa.struct([("x", pa.list_(pa.bool_()))])),
        [[], [{"x": []}], [{"x": None}], [None], [{"x": [True]}], [{"x": [None]}], None],
    ),
]  # fmt: skip


def fingerprints(column: pa.Array, key: bytes = KEY, name: str = "c") -> list[Fingerprint]:
    batch = pa.RecordBatch.from_arrays([column], names=[name])
    h1, h2 = Identity(key).fingerprints(batch)
    assert all(0 <= int(h) < 2**61 - 1 for h in (*h1, *h2))
    return [(int(a), int(b)) for a, b in zip(h1, h2, strict=True)]


def array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(values, kind.value_type), kind.run_end_type)
    return pa.array(values, kind)


def _times(count: int) -> dict[str, pa.Array]:
    """Of so many inserts of events [1, 5)."""
    ends = {name: pa.array([t] * count, pa.int64()) for name, t in (("ve", 5), ("vold", 0))}
    return {"op": pa.array([0] * count, pa.int8()), "vs": pa.array([1] * count), **ends}


def _classes(values: list[Any]) -> list[int]:
    """For each value the place of the first that is equal to it."""
    seen: dict[str, int] = {}
    return [seen.setdefault(repr(value), place) for place, value in enumerate(values)]


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: str(DIFFERENT[n][0]))
def test_rows_have_equal_fingerprints_exactly_when_they_are_equal(number: int) -> None:
    kind, values = DIFFERENT[number]
    twice = [*values, *reversed(values)]
    found = fingerprints(array(kind, twice))
    assert _classes(found) == _classes(twice), kind
    # Nothing depends on where a value is, or on its neighbours.
    for place, value in enumerate(values):
        assert fingerprints(array(kind, [value])) == [found[place]], f"{kind}: {value}"


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: str(DIFFERENT[n][0]))
def test_slices_have_the_fingerprints_of_their_rows(number: int) -> None:
    kind, values = DIFFERENT[number]
    whole = array(kind, [*values, *values])
    found = fingerprints(whole)
    for start in range(len(whole)):
        for length in {0, 1, len(whole) - start}:
            expected = found[start : start + length]
            assert fingerprints(whole.slice(start, length)) == expected, f"{kind} at {start}"
    inside = pa.StructArray.from_arrays([whole], names=["inner"])
    expected = fingerprints(inside)
    for start in range(len(whole)):
        assert fingerprints(inside.slice(start)) == expected[start:], f"{kind} in a struct"


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: str(DIFFERENT[n][0]))
def test_the_fingerprints_of_a_type_are_of_use_in_a_merge(number: int) -> None:
    kind, values = DIFFERENT[number]
    values = [value for i, value in enumerate(values) if _classes(values)[i] == i]
    merge = Merge(pa.schema([("c", kind)]), key=KEY)
    count = len(values)
    batch = pa.RecordBatch.from_pydict({**_times(count), "c": array(kind, values)})
    merge.attach("a")
    merge.attach("b")
    assert merge.apply("a", batch).rows == count
    assert merge.apply("b", batch).rows == 0
    restored = Merge.restore(merge.snapshot())
    longer = batch.set_column(2, "ve", pa.array([9] * count, pa.int64()))
    longer = longer.set_column(3, "vold", pa.array([5] * count, pa.int64()))
    longer = longer.set_column(0, "op", pa.array([1] * count, pa.int8()))
    for each in (merge, restored):
        assert not each.apply("b", longer).notices
        (out,) = each.stable("b", 7).batches()
        assert repr(out.column("c").to_pylist()) == repr(batch.column("c").to_pylist())


def test_equal_values_in_different_encodings_are_equal() -> None:
    words = ["a", "b", None, "a", "", "a" * 20]
    plain = fingerprints(pa.array(words))
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert fingerprints(array(kind, words)) == plain, kind
    assert fingerprints(array(pa.run_end_encoded(pa.int16(), pa.string()), words)) == plain
    other = pa.DictionaryArray.from_arrays([2, 1, None, 2, 0, 3], ["", "b", "a", "a" * 20])
    assert fingerprints(other) == plain
    lists = [[1, 2], [], None, [None]]
    assert fingerprints(pa.array(lists, pa.list_(pa.int64()))) == fingerprints(
        pa.array(lists, pa.large_list(pa.int64()))
    )


def test_zeros_are_equal_and_so_is_every_nan() -> None:
    for kind, bits, nans in (
        (pa.float64(), np.uint64, [0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001]),
        (pa.float32(), np.uint32, [0x7FC00000, 0xFFC00001, 0x7F800001]),
        (pa.float16(), np.uint16, [0x7E00, 0xFE01, 0x7C01]),
    ):
        raw = np.array(nans, dtype=bits)
        values = pa.Array.from_buffers(kind, len(raw), [None, pa.py_buffer(raw)])
        assert len(set(fingerprints(values))) == 1, kind
        zeros = np.array([0.0, -0.0], dtype=raw.view(f"f{raw.itemsize}").dtype)
        assert len(set(fingerprints(pa.array(zeros)))) == 1, kind


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = np.array([False, True, True, False])
    numbers = pa.array(np.array([1, 2, 3, 4]), mask=mask)
    assert fingerprints(numbers) == fingerprints(pa.array([1, None, None, 4]))
    flags = pa.Array.from_buffers(pa.bool_(), 4, [pa.py_buffer(b"\x09"), pa.py_buffer(b"\x0f")])
    assert fingerprints(flags) == fingerprints(pa.array([True, None, None, True]))
    offsets = pa.py_buffer(np.array([0, 1, 5, 6], np.int32))
    texts = pa.Array.from_buffers(
        pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"aHIDEb")]
    )
    assert fingerprints(texts) == fingerprints(pa.array(["a", None, "b"]))
    structs = pa.StructArray.from_arrays(
        [pa.array([1, 2]), pa.array(["x", "y"])], ["x", "y"], mask=pa.array([False, True])
    )
    plain = pa.array([{"x": 1, "y": "x"}, None], structs.type)
    assert fingerprints(structs) == fingerprints(plain)


def test_columns_are_told_apart_by_name_and_not_by_place() -> None:
    x, y = pa.array([1, 2, None]), pa.array([2, 1, 3])
    identity = Identity(KEY)

    def of(columns: dict[str, pa.Array]) -> list[Fingerprint]:
        h1, h2 = identity.fingerprints(pa.RecordBatch.from_pydict(columns))
        return list(zip(h1.tolist(), h2.tolist(), strict=True))

    assert of({"x": x, "y": y}) == of({"y": y, "x": x})
    straight, crossed = of({"x": x, "y": y}), of({"x": y, "y": x})
    assert all(a != b for a, b in zip(straight, crossed, strict=True))
    assert straight[:2] == [crossed[1], crossed[0]]
    nulls = {"x": pa.array([None, 1]), "y": pa.array([1, None])}
    assert len(set(of(nulls))) == 2


def test_a_column_and_a_field_of_a_column_are_different_places() -> None:
    """However they are named: a name may contain what separates the parts of a path."""
    for separator in ("\0", ".", "/", ""):
        name = f"a{separator}b"
        kind = pa.struct([("b", pa.int64())])
        batch = pa.RecordBatch.from_pydict(
            {"a": pa.array([{"b": 1}, {"b": 2}], kind), name: pa.array([2, 1])}
        )
        h1, _ = Identity(KEY).fingerprints(batch)
        assert h1[0] != h1[1], repr(separator)


def test_fields_of_a_struct_with_one_name_are_different_places_or_refused() -> None:
    kind = pa.struct([("x", pa.int64()), ("x", pa.int64())])
    children = [pa.array([1, 2]), pa.array([2, 1])]
    column = pa.StructArray.from_arrays(children, fields=list(kind))
    try:
        found = fingerprints(column)
    except ConfigurationError:
        return
    assert found[0] != found[1]


def test_other_keys_give_other_fingerprints() -> None:
    values = pa.array(["a", "b", "", None])
    seen: set[int] = set()
    for k in range(20):
        seen.update(h for pair in fingerprints(values, bytes([k] * 32))[:2] for h in pair)
    assert len(seen) == 20 * 2 * 2
    for length in (0, 31, 33):
        with pytest.raises(ConfigurationError, match="32 bytes"):
            Identity(bytes(length))


def test_unsupported_types_are_refused_by_name() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    views = pa.array([[1], []], pa.list_view(pa.int64()))
    for column in (union, views, pa.StructArray.from_arrays([union], ["u"])):
        with pytest.raises(ConfigurationError, match="not supported"):
            fingerprints(column)


def test_a_merge_refuses_payloads_of_an_unsupported_type() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    batch = pa.RecordBatch.from_pydict({**_times(1), "u": union})

    def merge_it() -> None:
        merge = Merge(pa.schema([("u", union.type)]))
        merge.attach("a")
        merge.apply("a", batch)

    with pytest.raises(ConfigurationError, match="not supported"):
        merge_it()


# -- strings

LENGTHS = [*range(41), 1023, 1024, 1025, 2047, 2048, 2049, 5000]


def test_strings_of_every_length_and_their_neighbours_differ() -> None:
    rng = Random(5)
    text = rng.randbytes(max(LENGTHS))
    values: list[bytes] = []
    for length in LENGTHS:
        prefix = text[:length]
        values.append(prefix)  # every one is a prefix of the longer ones
        values.append(bytes(length))  # zeros, which padding could imitate
        for place in {0, length // 2, length - 1}:
            if length:
                flipped = bytearray(prefix)
                flipped[place] ^= 1 << rng.randrange(8)
                values.append(bytes(flipped))
        if length >= 32:  # words, pairs of words and blocks change places
            values.append(prefix[8:16] + prefix[:8] + prefix[16:])
            values.append(prefix[16:32] + prefix[:16] + prefix[32:])
        if length >= 2048:
            values.append(prefix[1024:2048] + prefix[:1024] + prefix[2048:])
    found = fingerprints(pa.array(values, pa.binary()))
    assert _classes(found) == _classes(values)
    assert fingerprints(pa.array(values, pa.large_binary())) == found


def test_a_string_has_one_fingerprint_wherever_its_bytes_lie() -> None:
    """At every alignment, at the end of the buffer, and with neighbours of every length."""
    rng = Random(6)
    for length in (0, 1, 7, 8, 9, 15, 16, 17, 31, 1024, 1030):
        value = rng.randbytes(length)
        (expected,) = fingerprints(pa.array([value], pa.binary()))
        for before in range(18):
            column = pa.array([rng.randbytes(before), value, b"after"], pa.binary())
            assert fingerprints(column)[1] == expected, (length, before)
            assert fingerprints(column.slice(1, 1)) == [expected], (length, before)
            at_end = pa.array([rng.randbytes(before), value], pa.binary())
            assert fingerprints(at_end)[1] == expected, (length, before)
        if length:
            fixed = pa.array([rng.randbytes(length), value], pa.binary(length))
            assert fingerprints(fixed)[1] == expected, length


def test_rows_made_to_look_alike_do_not_collide() -> None:
    count = 100_000
    i = np.arange(count, dtype=np.uint64)
    columns = {
        "few top bits": pa.array(i << np.uint64(47)),
        "few low bits": pa.array(i),
        "both": pa.array((i << np.uint64(47)) | (i & np.uint64(3))),
        "multiples of the prime": pa.array(i * np.uint64(2**61 - 1)),
        "halves that add up": pa.array((i << np.uint64(32)) | (np.uint64(count) - i)),
        "floats": pa.array(i.astype(np.float64) * 2.0**-1022),
    }
    for name, column in columns.items():
        found = fingerprints(column)
        assert len(set(found)) == count, name
        assert len({h1 for h1, _ in found}) == len({h2 for _, h2 in found}) == count, name
    pairs = pa.RecordBatch.from_pydict({"x": pa.array(i), "y": pa.array(np.uint64(count) - i)})
    h1, h2 = Identity(KEY).fingerprints(pairs)
    assert len(set(h1.tolist())) == len(set(h2.tolist())) == count, "columns that add up"
    words = pa.array([f"{n:017d}" for n in range(count)])
    assert len({h1 for h1, _ in fingerprints(words)}) == count, "strings"


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: str(DIFFERENT[n][0]))
def test_fingerprints_of_some_rows_are_those_of_all(number: int) -> None:
    kind, values = DIFFERENT[number]
    column = array(kind, [*values, *reversed(values)])
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    expected = fingerprints(column)
    for rows in ([], [0], list(range(0, len(column), 2)), [len(column) - 1, 0]):
        h1, h2 = Identity(KEY).fingerprints(batch, np.array(rows, dtype=np.int64))
        found = [(int(a), int(b)) for a, b in zip(h1, h2, strict=True)]
        assert found == [expected[row] for row in rows]


# -- imprints


def imprints(column: pa.Array, key: bytes = KEY, name: str = "c") -> list[Fingerprint]:
    batch = pa.RecordBatch.from_arrays([column], names=[name])
    low, high = Imprints(Identity(key)).of(batch)
    return [(int(a), int(b)) for a, b in zip(low, high, strict=True)]


@pytest.mark.parametrize("number", range(len(DIFFERENT)), ids=lambda n: str(DIFFERENT[n][0]))
def test_rows_have_equal_imprints_exactly_when_they_are_equal(number: int) -> None:
    kind, values = DIFFERENT[number]
    twice = [*values, *reversed(values)]
    whole = array(kind, twice)
    found = imprints(whole)
    assert _classes(found) == _classes(twice), kind
    for start in range(len(whole)):
        assert imprints(whole.slice(start, 3)) == found[start : start + 3], f"{kind} at {start}"


def test_imprints_tell_strings_of_all_lengths_and_places_apart() -> None:
    lengths = [*range(70), *range(1000, 1050), 2047, 2048, 2049, 5000]
    values = [bytes(length) for length in lengths]
    for length in (1, 8, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 128, 1023, 1024, 1025, 3000):
        for place in {0, length // 2, max(0, length - 64), length - 1}:
            values.append(bytes(place) + b"\1" + bytes(length - place - 1))
    values = list(dict.fromkeys(values))
    found = imprints(pa.array(values, pa.binary()))
    assert len(set(found)) == len(values)
    assert imprints(pa.array(values, pa.large_binary())) == found
    # The last value of a buffer has nothing behind it that could be read.
    for value, expected in zip(values, found, strict=True):
        assert imprints(pa.array([b"\xff" * 3, value], pa.binary()))[1] == expected


def test_imprints_tell_columns_apart_and_depend_on_the_key() -> None:
    one, two = pa.array([1, 2]), pa.array([2, 1])
    make = Imprints(Identity(KEY)).of
    low, high = (h.copy() for h in make(pa.RecordBatch.from_pydict({"a": one, "b": two})))
    assert (low[0], high[0]) != (low[1], high[1])
    other, _ = make(pa.RecordBatch.from_pydict({"b": two, "a": one}))
    assert other.tolist() == low.tolist()
    assert imprints(one, bytes(32)) != imprints(one)
    assert [len(h) for h in make(pa.RecordBatch.from_pydict({"a": one[:0]}))] == [0, 0]
    assert [h.tolist() for h in make(no_columns(2))] == [[0, 0], [0, 0]]


def no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.nulls(rows)})
