"""Rows on the wire: what goes out comes in as it was, and hostile bytes are refused.

The mutations run in a process of their own: when one of them makes Arrow crash, this is a failed
test that names the seed, and not the end of the test run.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
import subprocess
import sys
import zoneinfo
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmerge.core.batch import element_schema
from lmerge.errors import WireError
from lmerge.wire import rows

MUTATIONS_SECONDS = 120
SEED = 20260

# -- round trips -------------------------------------------------------------------------------

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
INSTANTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
ZONES = ("UTC", "Europe/Berlin", "+05:30")


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    return st.integers(-most, most).map(
        lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


FLAT: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), INT64),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=6)),
    (pa.large_string(), st.text(max_size=6)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.large_binary(), st.binary(max_size=6)),
    (pa.decimal128(10, 2), decimals(10, 2)),
    (pa.decimal128(38, 0), decimals(38, 0)),
    (pa.decimal256(60, 5), decimals(60, 5)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.duration("ms"), st.integers(-(2**40), 2**40)),
    (pa.timestamp("us"), INSTANTS),
    (pa.timestamp("ns"), st.integers(-(2**50), 2**50).map(lambda n: 1_000 * n)),
    *(
        (
            pa.timestamp("us", tz=zone),
            INSTANTS.map(lambda t: t.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))),
        )
        for zone in ZONES
    ),
    (pa.null(), st.none()),
]

PLAIN = [each for each in FLAT if "view" not in str(each[0])]  # what may be within others


@st.composite
def typed(
    draw: st.DrawFn, depth: int = 2, outermost: bool = True
) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """An Arrow type, and values of it (nulls among them)."""
    shape = draw(st.sampled_from(["flat"] * 3 + ["list", "large_list", "fixed", "struct", "map"]))
    if depth == 0 or shape == "flat":
        kind, values = draw(st.sampled_from(FLAT if outermost else PLAIN))
    elif shape == "struct":
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        inner = [draw(typed(depth - 1, False)) for _ in names]
        kind = pa.struct([pa.field(n, k) for n, (k, _) in zip(names, inner, strict=True)])
        values = st.fixed_dictionaries({n: v for n, (_, v) in zip(names, inner, strict=True)})
    elif shape == "map":
        value_kind, value = draw(typed(depth - 1, False))
        kind = pa.map_(pa.string(), value_kind)
        values = st.lists(st.tuples(st.text(max_size=4), value), max_size=3)
    else:
        item_kind, item = draw(typed(depth - 1, False))
        size = draw(st.integers(0, 3))
        kind = {
            "list": pa.list_(item_kind),
            "large_list": pa.large_list(item_kind),
            "fixed": pa.list_(item_kind, size),
        }[shape]
        least = size if shape == "fixed" else 0
        values = st.lists(item, min_size=least, max_size=max(size, least))
    return kind, st.none() | values


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    columns = [draw(typed()) for _ in names]
    size = draw(st.integers(0, 5))
    schema = pa.schema([pa.field(n, k) for n, (k, _) in zip(names, columns, strict=True)])
    arrays = [
        pa.array(draw(st.lists(values, min_size=size, max_size=size)), kind)
        for kind, values in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def same(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    """Equal, where a NaN is equal to itself; Python's values, so that Arrow need not judge."""
    return left.schema.equals(right.schema) and alike(left.to_pydict(), right.to_pydict())


def alike(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(alike(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    return bool(left == right)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
def test_what_goes_out_comes_in_as_it_was(batch: pa.RecordBatch) -> None:
    schema = rows.schema_of(rows.schema_bytes(batch.schema))
    assert schema.equals(batch.schema, check_metadata=True)
    found = rows.batch_of(rows.batch_bytes(batch), schema)
    assert same(found, batch)
    assert same(rows.batch_of(rows.batch_bytes(batch).to_pybytes(), schema), batch)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(batches(), st.integers(0, 5), st.integers(0, 5))
def test_a_slice_travels_without_the_rest(batch: pa.RecordBatch, start: int, rest: int) -> None:
    piece = batch.slice(min(start, batch.num_rows), rest)
    assert same(rows.batch_of(rows.batch_bytes(piece), piece.schema), piece)


def test_metadata_of_whoever_made_the_schema_stays_behind() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), metadata={"a": "b"})], metadata={"c": "d"})
    found = rows.schema_of(rows.schema_bytes(schema))
    assert found.metadata is None
    assert found.field(0).metadata is None


def test_dictionaries_are_undone() -> None:
    values = pa.array(["x", None, "x", "y"]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([values, pa.array([1, 2, 3, 4])], names=["d", "k"])
    undone = rows.plain_rows(batch)
    assert undone.schema == rows.plain_types(batch.schema)
    found = rows.batch_of(
        rows.batch_bytes(undone), rows.schema_of(rows.schema_bytes(undone.schema))
    )
    assert found.column("d").to_pylist() == ["x", None, "x", "y"]


# -- refusals ----------------------------------------------------------------------------------


def nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]), "'d' is dictionary-encoded"),
        (pa.schema([("d", pa.list_(pa.dictionary(pa.int8(), pa.string())))]), "dictionary-encoded"),
        (pa.schema([("e", pa.uuid())]), "'e' has an extension type"),
        (pa.schema([("l", pa.list_(pa.string_view()))]), "'l.item' is string_view inside"),
        (pa.schema([("s", pa.struct([("b", pa.binary_view())]))]), "'s.b' is binary_view inside"),
        (
            pa.schema([("r", pa.list_(pa.run_end_encoded(pa.int32(), pa.int8())))]),
            "inside another type",
        ),
        (pa.schema([("n", nested(rows.MOST_DEPTH + 1))]), "nested more than"),
        (pa.schema([(f"c{n}", pa.int8()) for n in range(rows.MOST_COLUMNS + 1)]), "columns"),
    ],
)
def test_schemas_that_are_not_taken(schema: pa.Schema, said: str) -> None:
    with pytest.raises(WireError, match=said):
        rows.schema_of(schema.serialize().to_pybytes())


def test_a_schema_nested_as_deep_as_possible_is_taken() -> None:
    schema = pa.schema([("n", nested(rows.MOST_DEPTH))])
    assert rows.schema_of(rows.schema_bytes(schema)) == schema


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("NAME", pa.int8())]),
        pa.schema([("s", pa.struct([("NAME", pa.int8())]))]),
        pa.schema([("t", pa.timestamp("us", tz="NAME"))]),
    ],
)
def test_names_and_zones_that_are_no_text(schema: pa.Schema) -> None:
    with pytest.raises(WireError, match="utf-8"):
        rows.schema_of(schema.serialize().to_pybytes().replace(b"NAME", b"\xffAME"))


def test_a_schema_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="at most"):
        rows.schema_of(bytes(rows.MOST_SCHEMA_BYTES + 1))


BATCH = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "v": ["a", None, "c"]})


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff", bytes(4), bytes(8), b"x" * 100])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(WireError):
        rows.schema_of(data)
    with pytest.raises(WireError):
        rows.batch_of(data, BATCH.schema)


def test_a_message_of_another_kind() -> None:
    with pytest.raises(WireError, match="no Arrow record batch message"):
        rows.batch_of(rows.schema_bytes(BATCH.schema), BATCH.schema)
    with pytest.raises(WireError):
        rows.schema_of(rows.batch_bytes(BATCH).to_pybytes())


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch(codec: str) -> None:
    batch = pa.RecordBatch.from_pydict({"k": [0] * 1_000})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    data = messages[1].serialize().to_pybytes()
    with pytest.raises(WireError, match="compressed"):
        rows.batch_of(data, batch.schema)


def test_a_batch_of_too_many_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows.MOST_ROWS + 1)], names=["n"])
    with pytest.raises(WireError, match="rows; at most"):
        rows.batch_of(rows.batch_bytes(batch), batch.schema)


def test_text_that_is_no_utf_8() -> None:
    wrong = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([wrong], names=["v"])
    with pytest.raises(WireError, match="UTF8"):
        rows.batch_of(rows.batch_bytes(batch), batch.schema)


def test_columns_of_another_schema() -> None:
    data = rows.batch_bytes(BATCH)
    more = BATCH.schema.append(pa.field("w", pa.string()))
    for schema in (more, pa.schema([("k", pa.list_(pa.string())), ("v", pa.int64())])):
        with pytest.raises(WireError):
            rows.batch_of(data, schema)


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        (pa.array([0, 1, 2], pa.int8()), "row 2 has op 2"),
        (pa.array([0, -1, 0], pa.int8()), "row 1 has op -1"),
        (pa.array([0, None, 0], pa.int8()), "without nulls"),
        (pa.array([0, 1, 0], pa.int16()), "must be int8"),
    ],
)
def test_rows_that_are_neither_inserts_nor_adjusts(ops: pa.Array, said: str) -> None:
    with pytest.raises(WireError, match=said):
        rows.check_elements(pa.RecordBatch.from_arrays([ops], names=["op"]))


def test_rows_that_are_inserts_and_adjusts() -> None:
    for ops in ([], [0], [0, 1, 0]):
        batch = pa.RecordBatch.from_arrays([pa.array(ops, pa.int8())], names=["op"])
        rows.check_elements(batch)
        rows.check_elements(batch.slice(1))


# -- mutations ---------------------------------------------------------------------------------


def victims() -> list[pa.RecordBatch]:
    """Batches of every layout that a message can have."""
    word = [None, "", "a word of more than twelve bytes", "b"]
    columns: dict[str, pa.Array] = {
        "bool": pa.array([True, None, False, True]),
        "int": pa.array([1, None, 3, 4]),
        "double": pa.array([1.5, None, math.nan, math.inf]),
        "string": pa.array(word),
        "large": pa.array(word, pa.large_string()),
        "view": pa.array(word, pa.string_view()),
        "fixed": pa.array([b"abc", None, b"def", b"ghi"], pa.binary(3)),
        "decimal": pa.array([decimal.Decimal("1.25"), None, None, None], pa.decimal128(10, 2)),
        "zoned": pa.array([1, 2, None, 4], pa.timestamp("us", tz="Europe/Berlin")),
        "list": pa.array([[1, 2], None, [], [3]]),
        "lists": pa.array([[["x"], []], None, [None], [["y", None]]]),
        "vectors": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "list_view": pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}, {"a": 2, "b": "y"}]),
        "map": pa.array([[("x", 1)], None, [], [("y", None)]], pa.map_(pa.string(), pa.int8())),
        "null": pa.nulls(4),
        "dense": pa.UnionArray.from_dense(
            pa.array([0, 1, 0, 1], pa.int8()),
            pa.array([0, 0, 1, 1], pa.int32()),
            [pa.array([1, 2]), pa.array(["x", "y"])],
        ),
        "sparse": pa.UnionArray.from_sparse(
            pa.array([0, 1, 0, 1], pa.int8()),
            [pa.array([1, 2, 3, 4]), pa.array(["x", "y", "z", "w"])],
        ),
        "runs": pa.RunEndEncodedArray.from_arrays([3, 4], ["x", "y"]),
    }
    single = [pa.RecordBatch.from_arrays([c], names=[n]) for n, c in columns.items()]
    everything = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    empty = everything.slice(0, 0)
    return [*single, everything, empty]


def mutated(data: bytes, random_: random.Random) -> bytes:
    """The message with something wrong: bytes, numbers, its end, its length, or a repetition."""
    wrong = bytearray(data)
    # Most of what can go wrong is in the metadata, at the beginning.
    reach = len(wrong) if random_.random() < 0.3 else min(len(wrong), 700)
    for _ in range(random_.choice((1, 1, 1, 2, 5))):
        at = random_.randrange(reach)
        what = random_.random()
        if what < 0.4:
            wrong[at] = random_.randrange(256)
        elif what < 0.5:
            wrong[at] ^= 1 << random_.randrange(8)
        elif what < 0.85:
            size = random_.choice((2, 4, 8))
            value = random_.choice((0, 1, 2, 7, 2**15, 2**31 - 1, 2**63 - 1, -1, -8, -(2**63)))
            at -= at % size if random_.random() < 0.8 else 0
            number = (value % (1 << 8 * size)).to_bytes(size, "little")
            wrong[at : at + size] = number[: len(wrong) - at]
        elif what < 0.93:
            del wrong[at:]
        else:
            wrong[at:at] = wrong[at : at + 8]
        if len(wrong) < 1:
            break
        reach = max(1, min(reach, len(wrong)))
    return bytes(wrong)


def used(batch: pa.RecordBatch) -> None:
    """What the server does with rows: reads every value, cuts, joins and sends them."""
    batch.equals(batch)
    twice = pa.concat_batches([batch, batch])
    with suppress(pa.ArrowNotImplementedError):  # views and runs: the merge undoes them first
        twice.take(pa.array([0] if batch.num_rows else [], pa.int64()))
    rows.batch_bytes(batch.slice(0, 1))


def attack(seed: int, rounds: int) -> None:
    """Mutates; the caller sees how this process ends. The last line is what was tried last."""
    random_ = random.Random(seed)
    taken = refused = 0
    batches = victims()
    for number in range(rounds):
        batch = batches[number % len(batches)]
        # What is about to be tried, for whoever finds this process dead.
        sys.stderr.write(f"seed {seed} round {number} column {batch.schema.names[0]}\n")
        try:
            if random_.random() < 0.2:
                schema = rows.schema_of(mutated(batch.schema.serialize().to_pybytes(), random_))
                str(schema)
                rows.batch_of(rows.batch_bytes(batch), schema)
            else:
                data = mutated(rows.batch_bytes(batch).to_pybytes(), random_)
                used(rows.batch_of(data, batch.schema))
            taken += 1
        except WireError:
            refused += 1
    sys.stdout.write(f"{taken} taken, {refused} refused\n")


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_mutated_messages_are_refused_or_harmless(seed: int) -> None:
    code = f"from tests.server.test_wire_rows import attack; attack({seed}, 6_000)"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        capture_output=True,
        text=True,
        timeout=MUTATIONS_SECONDS,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stderr[-3_000:]}"
    assert "refused" in done.stdout


def test_every_truncation_is_refused() -> None:
    schema = element_schema(BATCH.schema)
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    for each in (BATCH, batch):
        whole = rows.batch_bytes(each).to_pybytes()
        for size in range(len(whole)):
            with pytest.raises(WireError):
                rows.batch_of(whole[:size], each.schema)
        text = rows.schema_bytes(each.schema)
        for size in range(len(text) - 8):
            with pytest.raises(WireError):
                rows.schema_of(text[:size])
