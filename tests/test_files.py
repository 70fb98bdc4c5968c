"""Element files: every format reads as what was written, at once, and fails with a reason."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import os
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmerge import files
from lmerge.elements import Adjust, Insert, Stable
from lmerge.errors import ConfigurationError, InputError, SchemaMismatchError
from lmerge.files import JSON_SCHEMA, Control, Data, Round, elements, open_writer, read_rounds
from lmerge.jsonlines import Attach, Detach, Gap
from lmerge.times import BEGINNING, INFINITY

TEXT = """\
{"in":"a","op":"attach"}
{"in":"c","op":"attach","from":3}
{"in":"a","op":"insert","vs":6,"ve":20,"payload":{"k":1}}
{"in":"b","op":"insert","vs":6,"ve":null,"payload":null}
{"in":"a","op":"adjust","vs":6,"vold":20,"ve":30,"payload":{"k":1}}
{"in":"a","op":"stable","vc":11}
{"in":"b","op":"adjust","vs":6,"vold":null,"ve":6,"payload":null}
{"in":"b","op":"detach"}
{"op":"insert","vs":-5,"ve":-4,"payload":"no name é"}
{"in":"a","op":"stable","vc":null}
"""


def convert(source: Path, target: Path, max_rows: int = 1) -> None:
    with open_writer(str(target), streams=True) as writer:
        for item in read_rounds(str(source), max_rows=max_rows):
            if isinstance(item, Control):
                writer.write_line(item.change)
            else:
                for part in item.parts:
                    writer.write(part.batch, stream=part.stream)


def flat(rounds: Iterator[Round]) -> list[Any]:
    """Each arrival as (line, stream, element or change), in the order of lines."""
    result: list[Any] = []
    for item in rounds:
        if isinstance(item, Control):
            result.append((item.line, item.change.stream, item.change))
        else:
            for stream, batch, lines in item.parts:
                rows = zip(lines.tolist(), elements(batch), strict=True)
                result += [(line, stream, element) for line, element in rows]
    return sorted(result, key=lambda row: row[0])


def table(path: Path, **changes: Any) -> str:
    """Writes a valid Parquet file of three rows, with columns changed (None: left out)."""
    columns = {"op": ["insert", "adjust", "stable"], "vs": [1, 1, 5], "ve": [9, 8, None],
               "vold": [None, 9, None], "x": [7, 7, None], **changes}  # fmt: skip
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    return str(path)


def test_a_file_survives_the_way_through_every_format(tmp_path: Path) -> None:
    names = ["a.jsonl", "b.parquet", "c.arrow", "d.feather", "e.ipc", "f.json"]
    (tmp_path / names[0]).write_text(TEXT)
    for one, two in itertools.pairwise(names):
        convert(tmp_path / one, tmp_path / two)
    assert (tmp_path / names[-1]).read_text() == TEXT


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet", "c.arrow"])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 1000])
def test_rounds_of_any_size_hold_the_same_arrivals(
    tmp_path: Path, name: str, max_rows: int
) -> None:
    (tmp_path / "a.jsonl").write_text(TEXT)
    if name != "a.jsonl":
        convert(tmp_path / "a.jsonl", tmp_path / name)
    expected = flat(read_rounds(str(tmp_path / "a.jsonl"), max_rows=1))
    assert [line for line, _, _ in expected] == list(range(1, 11))
    assert expected[4] == (5, "a", Adjust('{"k":1}', 6, 20, 30))
    assert expected[9] == (10, "a", Stable(INFINITY))
    rounds = list(read_rounds(str(tmp_path / name), max_rows=max_rows))
    assert flat(iter(rounds)) == expected
    for item in rounds:
        if isinstance(item, Data):
            assert 1 <= sum(part.batch.num_rows for part in item.parts) <= max_rows


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet"])
def test_a_round_has_a_part_for_each_stream_in_order_of_appearance(
    tmp_path: Path, name: str
) -> None:
    rows = [(stream, vs) for vs, stream in enumerate("bacabbc")]
    text = "".join(
        f'{{"in":"{stream}","op":"insert","vs":{vs},"ve":99,"payload":1}}\n' for stream, vs in rows
    )
    (tmp_path / "a.jsonl").write_text(text)
    convert(tmp_path / "a.jsonl", tmp_path / "b.parquet")
    (data,) = read_rounds(str(tmp_path / name))
    assert isinstance(data, Data)
    assert [part.stream for part in data.parts] == ["b", "a", "c"]
    assert [part.lines.tolist() for part in data.parts] == [[1, 5, 6], [2, 4], [3, 7]]
    assert data.parts[0].batch.column("vs").to_pylist() == [0, 4, 5]
    rounds = list(read_rounds(str(tmp_path / name), max_rows=3))
    names = [[part.stream for part in item.parts] for item in rounds if isinstance(item, Data)]
    assert names == [["b", "a", "c"], ["a", "b"], ["c"]]
    assert data.parts[0].batch.schema.equals(JSON_SCHEMA, check_metadata=True)


def test_what_does_not_apply_is_normalised(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", vold=[4, 9, 4], ve=[INFINITY, 8, 3], x=[7, None, 7])
    (data,) = read_rounds(path)
    assert isinstance(data, Data)
    ((stream, batch, _),) = data.parts
    assert stream is None
    assert batch.to_pydict() == {
        "op": [0, 1, 2], "vs": [1, 1, 5], "ve": [INFINITY, 8, 0], "vold": [0, 9, 0],
        "x": [7, None, None],
    }  # fmt: skip


def test_op_may_be_codes_and_times_any_integers(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.parquet",
        op=pa.array([0, 1, 2], pa.int8()),
        vs=pa.array([1, 1, None], pa.uint16()),
    )
    assert [element for _, _, element in flat(read_rounds(path))] == [
        Insert('{"x":7}', 1, 9), Adjust('{"x":7}', 1, 9, 8), Stable(INFINITY),
    ]  # fmt: skip


def test_the_stream_format_of_arrow_is_detected(tmp_path: Path) -> None:
    source = pq.read_table(table(tmp_path / "t.parquet"))
    path = tmp_path / "t.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, source.schema) as writer:
        writer.write_table(source)
    assert len(flat(read_rounds(str(path)))) == 3


BAD_TABLES: list[tuple[dict[str, Any], int | None, str]] = [
    ({"op": None}, None, "no column 'op'"),
    ({"vold": None}, None, "no column 'vold'"),
    ({"vs": ["1", "1", "5"]}, None, "column 'vs' must be int64, not string"),
    ({"ve": [1.0, 2.0, 3.0]}, None, "column 've' must be int64, not double"),
    ({"op": [1.0, 1.0, 1.0]}, None, "column 'op' must be a string or int8"),
    ({"in": [1, 2, 3]}, None, "column 'in' must be a string, not int64"),
    ({"op": ["insert", "adjust", "upsert"]}, 3, '"op" is null or unknown'),
    ({"op": ["insert", None, "stable"]}, 2, '"op" is null or unknown'),
    ({"op": [0, 7, 2]}, 2, '"op" is null or unknown'),
    ({"vs": [None, 1, 5]}, 1, '"vs" of an insert or adjust must be a finite time'),
    ({"vs": [1, INFINITY, 5]}, 2, '"vs" of an insert or adjust must be a finite time'),
    ({"ve": [9, BEGINNING, 0]}, 2, '"ve" is out of range'),
    ({"vold": [0, BEGINNING, 0]}, 2, '"vold" is out of range'),
    ({"vs": [1, 1, BEGINNING]}, 3, '"vs" (the vc) of a stable is out of range'),
    ({"op": ["insert", "attach", "stable"], "vs": [1, INFINITY, 1]}, 2, '"vs" (the from)'),
    ({"vs": pa.array([1, 2**64 - 1, 1], pa.uint64())}, None, "Integer value 18446744073709551615"),
]


@pytest.mark.parametrize(("changes", "row", "reason"), BAD_TABLES)
def test_a_bad_table_is_refused_after_the_rows_before(
    tmp_path: Path, changes: dict[str, Any], row: int | None, reason: str
) -> None:
    path = table(tmp_path / "t.parquet", **changes)
    seen: list[Round] = []
    with pytest.raises(InputError) as caught:
        seen.extend(read_rounds(path))
    assert caught.value.reason.startswith(reason)
    assert (caught.value.source, caught.value.line) == (path, row)
    assert len(flat(iter(seen))) == (row or 1) - 1


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    columns = [pa.array([1])] * 5
    path = tmp_path / "t.arrow"
    source = pa.Table.from_arrays(columns, names=["op", "vs", "ve", "vold", "vs"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, source.schema) as writer:
        writer.write_table(source)
    with pytest.raises(InputError, match="more than one column 'vs'"):
        list(read_rounds(str(path)))


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_a_table_cut_or_damaged_anywhere_is_read_or_refused(tmp_path: Path, name: str) -> None:
    whole = tmp_path / name
    (tmp_path / "a.jsonl").write_text(TEXT)
    convert(tmp_path / "a.jsonl", whole)
    data = whole.read_bytes()
    damaged = tmp_path / f"damaged-{name}"
    refused = 0
    for at in range(0, len(data), 17):
        for content in (data[:at], data[:at] + b"\xff\xff\xff" + data[at + 3 :]):
            damaged.write_bytes(content)
            try:
                flat(read_rounds(str(damaged)))
            except InputError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    assert refused > len(data) // 17


@pytest.mark.parametrize("extension", ["jsonl", "parquet", "arrow"])
def test_what_cannot_be_opened_is_an_input_error(tmp_path: Path, extension: str) -> None:
    directory = tmp_path / f"d.{extension}"
    directory.mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        list(read_rounds(str(directory)))
    with pytest.raises(InputError, match="No such file"):
        list(read_rounds(str(tmp_path / f"none.{extension}")))
    with pytest.raises(ConfigurationError, match="cannot write"):
        open_writer(str(tmp_path / "none" / f"x.{extension}"))


def test_a_bad_line_comes_after_everything_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(TEXT + "\nnonsense\n" + TEXT)
    rounds = read_rounds(str(path))
    seen: list[Round] = []
    with pytest.raises(InputError) as caught:
        seen.extend(rounds)
    assert (caught.value.line, len(flat(iter(seen)))) == (12, 10)


def test_the_last_line_needs_no_line_end_and_lines_may_span_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(TEXT.rstrip("\n").replace("\n", "\r\n"))
    expected = flat(read_rounds(str(path)))
    assert len(expected) == 10
    for size in (1, 7, 64):
        monkeypatch.setattr(files, "CHUNK_BYTES", size)
        assert flat(read_rounds(str(path))) == expected


def test_lines_and_rounds_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"op":"stable","vc":1}\n' * 9)
    monkeypatch.setattr(files, "ROUND_BYTES_MAX", 50)
    assert len(list(read_rounds(str(path)))) == 3
    path.write_text('{"op":"stable","vc":1}\n' + "x" * 500)
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(files, "CHUNK_BYTES", 30)
    rounds = read_rounds(str(path))
    assert isinstance(next(rounds), Data)
    with pytest.raises(InputError, match=r":2: line of over 100 bytes"):
        next(rounds)


def test_a_pipe_is_read_as_soon_as_it_has_whole_lines() -> None:
    read, write = os.pipe()
    # A reader that waits for more than was written would hang; the watchdog then ends the input,
    # and the rounds are not those expected.
    watchdog = threading.Timer(20, os.close, [write])
    watchdog.start()
    rounds = read_rounds(f"/dev/fd/{read}")
    seen = []
    for text in (
        b'{"op":"stable","vc":1}\n{"op":"stable","vc":2}\n{"op":',
        b'"stable","vc":3}\n',
        b'{"op":"stable","vc":4}\n',
    ):
        os.write(write, text)
        item = next(rounds)
        assert isinstance(item, Data)
        seen.append(item.parts[0].batch.column("vs").to_pylist())
    watchdog.cancel()
    os.close(write)
    assert seen == [[1, 2], [3], [4]]
    assert list(rounds) == []
    os.close(read)


def test_plentiful_input_makes_large_rounds_also_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    os.write(write, b'{"op":"stable","vc":1}\n' * 1000)
    os.close(write)
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    with open(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert [item.parts[0].batch.num_rows for item in read_rounds("-", max_rows=600)
                if isinstance(item, Data)] == [600, 400]  # fmt: skip


def test_a_stand_in_for_stdin_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert len(flat(read_rounds("-"))) == 10


def test_stdout_is_written_and_left_open(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for _ in range(2):
        with open_writer("-") as writer:
            writer.write_line(Detach("a"))
            writer.flush()
    assert capfdbinary.readouterr().out == b'{"in":"a","op":"detach"}\n' * 2


def test_flush_makes_lines_visible(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    with open_writer(str(path)) as writer:
        writer.write_line(Gap(None, 3, 4))
        writer.flush()
        assert path.read_text() == '{"op":"gap","from":3,"to":4}\n'


def typed() -> pa.RecordBatch:
    columns = {
        "op": pa.array([0, 2], pa.int8()), "vs": [1, 5], "ve": [INFINITY, 0], "vold": [0, 0],
        "when": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), None]),
        "nano": pa.array([1, None], pa.timestamp("ns")),
        "took": pa.array([3, None], pa.duration("ns")),
        "cost": pa.array([Decimal("1.50"), None]),
        "raw": pa.array([b"\xff\x00", None]),
        "f": pa.array([-0.0, None]),
        "nan": pa.array([float("nan"), None]),
        "deep": pa.array([{"b": [1.0, None], "a": "é"}, None]),
        "tags": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }  # fmt: skip
    return pa.record_batch(columns)


def test_typed_payloads_become_canonical_json() -> None:
    insert, stable = elements(typed())
    assert stable == Stable(5)
    assert insert == Insert(
        '{"cost":"1.50","deep":{"a":"é","b":[1,null]},"f":0,"nan":NaN,'
        '"nano":"1970-01-01T00:00:00.000000001","raw":"/wA=","tags":[["k",1]],"took":3,'
        '"when":"2024-01-02T03:04:05+00:00"}',
        1,
        INFINITY,
    )


@pytest.mark.parametrize("name", ["o.parquet", "o.arrow", "o.jsonl"])
def test_typed_payloads_and_traces_are_written_and_read(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    with open_writer(path, typed().schema, trace=True, streams=True) as writer:
        writer.write(typed(), stream="a", at=np.array([7, 9]))
        writer.write_line(Attach("b", None))
    rows = flat(read_rounds(path))
    assert rows == [*((i, "a", e) for i, e in enumerate(elements(typed()), 1)),
                    (3, "b", Attach("b", None))]  # fmt: skip
    if name == "o.jsonl":
        assert Path(path).read_text().startswith('{"in":"a","at":7,"op":"insert","vs":1,"ve":null')


def test_a_payload_column_called_at_is_kept_unless_it_would_clash(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {"op": pa.array([0], pa.int8()), "vs": [1], "ve": [2], "vold": [0], "at": [5]}
    )
    path = str(tmp_path / "o.parquet")
    with open_writer(path) as writer:
        writer.write(batch)
    assert [element for _, _, element in flat(read_rounds(path))] == [Insert('{"at":5}', 1, 2)]
    with pytest.raises(ConfigurationError, match="'at'"):
        open_writer(path, batch.schema, trace=True)


def test_a_table_takes_one_schema_and_may_be_empty(tmp_path: Path) -> None:
    path = str(tmp_path / "o.parquet")
    with open_writer(path, typed().schema) as writer, pytest.raises(SchemaMismatchError):
        writer.write(pa.RecordBatch.from_pylist([], schema=JSON_SCHEMA))
    assert list(read_rounds(path)) == []


def test_many_small_batches_make_few_row_groups(tmp_path: Path) -> None:
    path = str(tmp_path / "o.parquet")
    with open_writer(path, typed().schema) as writer:
        for _ in range(300):
            writer.write(typed())
    assert pq.ParquetFile(path).num_row_groups == 1
    assert len(flat(read_rounds(path))) == 600
