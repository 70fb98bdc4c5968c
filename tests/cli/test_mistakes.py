"""Every mistake of a user: a status, one line that says what and where, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmerge.cli import exits
from tests.cli.running import Ran, reconstituted, run

GOOD = (
    '{"in":"a","op":"insert","vs":1,"ve":5,"payload":1}\n'
    '{"in":"a","op":"stable","vc":3}\n'
)  # fmt: skip
BAD_LINES = {
    "nonsense": "not JSON",
    "[1]": "not a JSON object",
    "{}": 'line without "op"',
    '{"in":"a","op":"upsert"}': 'unknown "op"',
    '{"in":7,"op":"stable","vc":4}': '"in" must be a string',
    '{"in":"a","op":"stable"}': 'stable without "vc"',
    '{"in":"a","op":"stable","vc":1.5}': '"vc" must be an integer',
    '{"in":"a","op":"insert","vs":null,"ve":5,"payload":1}': '"vs" must be an integer',
    '{"in":"a","op":"insert","vs":1,"ve":5}': 'insert without "payload"',
    '{"in":"a","op":"insert","vs":1,"ve":99999999999999999999,"payload":1}': "out of range",
    '{"in":"a","op":"attach","from":"x"}': '"from" must be an integer',
    '{"in":"a","op":"attach"}': "stream 'a' is attached already: detach it first",
    '{"in":"z","op":"detach"}': "stream 'z' is not attached",
    "\xff": "not UTF-8",
    "[" * 100_000: "nested too deeply",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40])
@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["rounds", "trace"])
def test_a_bad_line_ends_the_merge_after_what_came_before(line: str, options: list[str]) -> None:
    result = run("merge", *options, "-", stdin=GOOD.encode() + line.encode("latin-1") + b"\n")
    assert result.status == 2
    assert result.err.startswith("lmerge: stdin:3: ")
    assert BAD_LINES[line] in result.err
    assert result.err.count("\n") == 1
    tdb = reconstituted(result.out)
    assert (len(tdb), tdb.stable_point) == (1, 3)


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40])
@pytest.mark.parametrize("command", ["tdb", "check"])
def test_a_bad_line_is_named_by_every_command(command: str, line: str) -> None:
    result = run(command, "-", stdin=GOOD.encode() + line.encode("latin-1") + b"\n")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("lmerge: stdin:3: ")
    assert BAD_LINES[line] in result.err


@pytest.mark.parametrize("line", ['{"op":"stable","vc":9}', '{"op":"attach"}', '{"op":"detach"}'])
def test_a_line_that_names_no_stream_is_refused_with_advice(line: str) -> None:
    later = '{"in":"a","op":"stable","vc":7}\n'
    for options in ([], ["--trace"]):
        result = run("merge", *options, "-", stdin=GOOD + line + "\n" + later)
        assert result.status == 2
        assert result.err.startswith('lmerge: stdin:3: no "in": ')
        assert 'add "in":"a"' in result.err
        assert reconstituted(result.out).stable_point == 3


def test_too_many_streams_are_the_fault_of_the_line_that_adds_one() -> None:
    text = "".join(f'{{"in":"s{i}","op":"attach"}}\n' for i in range(1025))
    result = run("merge", "-", stdin=text)
    assert (result.status, result.err.split(": ")[1]) == (2, "stdin:1025")


@pytest.mark.parametrize("command", ["merge", "tdb", "check"])
@pytest.mark.parametrize("name", ["none.jsonl", "none.parquet", "none.arrow"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, command: str, name: str) -> None:
    path = str(tmp_path / name)
    assert run(command, path) == Ran(2, "", f"lmerge: {path}: No such file or directory\n")


@pytest.mark.parametrize("command", ["merge", "tdb", "check"])
def test_a_directory_is_no_file(tmp_path: Path, command: str) -> None:
    assert run(command, str(tmp_path)) == Ran(2, "", f"lmerge: {tmp_path}: Is a directory\n")


@pytest.mark.parametrize("command", ["merge", "tdb", "check"])
@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1\0\0", b"nonsense" * 99])
def test_a_damaged_table_is_refused(
    tmp_path: Path, command: str, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = run(command, str(path))
    assert result.status == 2
    assert result.err.startswith(f"lmerge: {path}: ")
    assert result.err.count("\n") == 1


def test_a_bad_row_of_a_table_is_named_by_its_number(tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    columns = {"in": ["a", "a", None], "op": ["insert", "stable", "stable"], "vs": [1, 3, 4],
               "ve": [5, None, None], "vold": [None, None, None], "x": [1, None, None]}  # fmt: skip
    pq.write_table(pa.table(columns), path)
    result = run("merge", path)
    assert (result.status, len(result.lines)) == (2, 2)
    assert result.err.startswith(f'lmerge: {path}:3: no "in"')
    pq.write_table(pa.table({**columns, "in": ["a"] * 3, "op": ["insert", "stable", "x"]}), path)
    assert run("merge", path).err.startswith(f'lmerge: {path}:3: "op" is null or unknown')


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": [1]}), path)
    result = run("merge", path)
    assert result == Ran(2, "", f"lmerge: {path}: no column 'op'; there are ['x']\n")


WRONG_OPTIONS = [
    (["merge"], "the following arguments are required: FILE"),
    (["merge", "--restriction", "R9", "-"], "invalid choice: 'R9'"),
    (["merge", "--insert-policy", "last", "-"], "unknown insert policy 'last'"),
    (["merge", "--insert-policy", "quorum(2)", "-"], "a quorum is a share above 0 and up to 1"),
    (["merge", "--insert-policy", "quorum(x)", "-"], "unknown insert policy"),
    (["merge", "--restriction", "R1", "--insert-policy", "final", "-"], "needs R3 or R4"),
    (["merge", "--stable-lag", "-4", "-"], "a stable lag is 0 or more"),
    (["merge", "--stable-lag", "x", "-"], "invalid int value"),
    (["merge", "--feedback", "-", "-o", "o.parquet"], "--feedback writes lines that a table has"),
    (["merge", "--allow-gaps", "-", "-o", "o.arrow"], "--allow-gaps writes lines"),
    (["merge", "-", "-o", "/nowhere/o.jsonl"], "cannot write /nowhere/o.jsonl: No such file"),
    (["tdb"], "the following arguments are required: FILE"),
    (["check"], "the following arguments are required: FILE"),
    (["check", "-", "-"], "stdin (-) can be read once only"),
    (["mend"], "invalid choice: 'mend'"),
    ([], "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("argv", "reason"), WRONG_OPTIONS, ids=lambda value: str(value)[:50])
def test_what_cannot_be_is_refused_with_the_reason(argv: list[str], reason: str) -> None:
    result = run(*argv)
    assert (result.status, result.out) == (2, "")
    assert reason in result.err


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(GOOD)
    result = run("merge", str(path), "-o", str(path))
    assert (result.status, path.read_text()) == (2, GOOD)
    assert "is the input" in result.err


def test_an_input_that_cannot_be_read_leaves_the_output_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    assert run("merge", str(tmp_path / "none"), "-o", str(out)).status == 2
    assert out.read_text() == "precious"


def test_a_table_that_was_cut_short_by_bad_input_can_be_read(tmp_path: Path) -> None:
    out = str(tmp_path / "out.parquet")
    assert run("merge", "-", "-o", out, stdin=GOOD + "nonsense\n").status == 2
    assert run("tdb", out).lines == ['{"vs":1,"ve":5,"payload":1,"freeze":"HF"}']


def test_a_full_disk_is_said_in_one_line() -> None:
    result = run("merge", "-", "-o", "/dev/full", stdin=GOOD)
    assert result == Ran(2, "", "lmerge: cannot write /dev/full: No space left on device\n")


def test_the_exit_statuses_are_in_every_help() -> None:
    for command in ([], ["merge"], ["tdb"], ["check"], ["gen"]):
        result = run(*command, "--help")
        assert result.status == 0
        assert exits.EXIT_HELP.strip() in result.out
        assert "example" in result.out
    assert run("--version").out.startswith("lmerge ")
