"""lmerge merge: the JSON-lines contract, policies, traces, feedback, attach and detach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmerge.cli import merge
from lmerge.tdb import equivalent
from lmerge.workload import Workload
from tests.cli.running import Ran, reconstituted, run

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]


def insert(stream: str, vs: int, ve: int | None, payload: object = "A") -> str:
    fields = {"in": stream, "op": "insert", "vs": vs, "ve": ve, "payload": payload}
    return json.dumps(fields) + "\n"


def adjust(stream: str, vs: int, vold: int | None, ve: int | None, payload: object = "A") -> str:
    return json.dumps(
        {"in": stream, "op": "adjust", "vs": vs, "vold": vold, "ve": ve, "payload": payload}
    ) + "\n"  # fmt: skip


def stable(stream: str, vc: int | None) -> str:
    return json.dumps({"in": stream, "op": "stable", "vc": vc}) + "\n"


def attach(stream: str, since: int | None = None) -> str:
    return json.dumps({"in": stream, "op": "attach", "from": since}) + "\n"


def detach(stream: str) -> str:
    return json.dumps({"in": stream, "op": "detach"}) + "\n"


def merged(text: str, *options: str) -> Ran:
    return run("merge", *options, "-", stdin=text)


# ---- the example lines of the contract


def test_the_lines_of_the_contract_are_read_and_written_the_same_way() -> None:
    result = merged(
        '{"in":"a","op":"insert","vs":6,"ve":20,"payload":{"k":1}}\n'
        '{"in":"b","op":"stable","vc":3}\n'
        '{"in":"a","op":"adjust","vs":6,"vold":20,"ve":30,"payload":{"k":1}}\n'
        '{"in":"a","op":"stable","vc":11}\n'
        '{"in":"c","op":"attach","from":40}\n'
        '{"in":"b","op":"detach"}\n'
    )
    assert result == Ran(
        0,
        '{"op":"insert","vs":6,"ve":20,"payload":{"k":1}}\n{"op":"stable","vc":11}\n',
        "",
    )


def test_null_is_infinity_in_and_out() -> None:
    result = merged(insert("a", 1, None) + stable("a", None))
    assert result.lines == [
        '{"op":"insert","vs":1,"ve":null,"payload":"A"}',
        '{"op":"stable","vc":null}',
    ]


def test_the_help_of_each_command_shows_what_happens() -> None:
    result = merged(merge.EXAMPLE_INPUT, "--trace")
    assert result == Ran(0, merge.EXAMPLE_OUTPUT, "")
    shown = run("merge", "--help").out
    assert merge.EXAMPLE_INPUT in shown
    assert merge.EXAMPLE_OUTPUT in shown


# ---- Table II of the paper: In1 and In2, and what Out1, Out2 and Out3 say at which line

TABLE_2 = (
    insert("1", 6, 10)
    + insert("2", 6, 12)
    + insert("2", 7, 14, "B")
    + adjust("1", 6, 10, 15)
    + adjust("2", 6, 12, 15)
    + stable("2", 16)
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--adjust-policy", "eager"],
            [(1, "insert", "A", 10), (2, "adjust", "A", 12), (3, "insert", "B", 14),
             (4, "adjust", "A", 15), (6, "stable", None, 16)],
        ),
        (
            ["--insert-policy", "final"],
            [(6, "insert", "A", 15), (6, "insert", "B", 14), (6, "stable", None, 16)],
        ),
        (
            [],
            [(1, "insert", "A", 10), (3, "insert", "B", 14), (6, "adjust", "A", 15),
             (6, "stable", None, 16)],
        ),
    ],
    ids=["Out1", "Out2", "Out3"],
)  # fmt: skip
def test_the_policies_give_the_outputs_of_table_2(
    options: list[str], expected: list[tuple[object, ...]]
) -> None:
    result = merged(TABLE_2, "--trace", *options)
    rows = [json.loads(line) for line in result.lines]
    assert [
        (r["at"], r["op"], r.get("payload"), r.get("ve", r.get("vc"))) for r in rows
    ] == expected
    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("policy", ["first", "leader", "half_frozen", "final", "quorum(0.5)"])
@pytest.mark.parametrize("adjusts", ["lazy", "eager"])
def test_every_policy_gives_the_same_events(policy: str, adjusts: str) -> None:
    text = run("gen", "--elements", "300", "--live", "30", "--seed", "5").out
    result = merged(text, "--insert-policy", policy, "--adjust-policy", adjusts, "--trace")
    assert (result.status, result.err) == (0, "")
    assert equivalent(reconstituted(result.out), reconstituted(text, "a")) is None


@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize("options", [[], ["--trace"], ["--divergence", "off"]])
def test_every_restriction_merges_its_streams(restriction: str, options: list[str]) -> None:
    text = run("gen", "--elements", "300", "--live", "30", "--restriction", restriction).out
    result = merged(text, "--restriction", restriction, *options)
    assert (result.status, result.err) == (0, "")
    assert equivalent(reconstituted(result.out), reconstituted(text, "a")) is None


def test_the_stable_lag_keeps_the_output_behind() -> None:
    assert merged(stable("a", 20), "--stable-lag", "5").lines == ['{"op":"stable","vc":15}']


# ---- trace and feedback


def test_at_counts_every_line_of_the_input() -> None:
    text = "\n" + attach("a") + "\n\n" + insert("a", 1, 5) + '{"op":"feedback"}\n' + stable("a", 9)
    result = merged(text, "--trace")
    assert [json.loads(line)["at"] for line in result.lines] == [5, 7]


def test_feedback_tells_the_streams_that_are_behind() -> None:
    text = attach("a") + insert("b", 1, 5) + insert("a", 1, 5) + stable("a", 9) + stable("b", None)
    assert merged(text, "--feedback").lines == [
        '{"op":"insert","vs":1,"ve":5,"payload":"A"}',
        '{"op":"stable","vc":null}',
        '{"to":"a","op":"feedback","before":null}',
    ]
    assert merged(text, "--feedback", "--trace").lines[1:] == [
        '{"at":4,"op":"stable","vc":9}',
        '{"to":"b","at":4,"op":"feedback","before":9}',
        '{"at":5,"op":"stable","vc":null}',
        '{"to":"a","at":5,"op":"feedback","before":null}',
    ]


def test_the_output_of_a_merge_is_input_of_the_other_commands() -> None:
    text = insert("b", 1, 5) + insert("a", 1, 5) + stable("a", 9)
    result = merged(text, "--feedback", "--trace")
    assert run("tdb", "-", stdin=result.out).lines == [
        '{"vs":1,"ve":5,"payload":"A","freeze":"FF"}'
    ]


# ---- streams come and go


def test_a_stream_that_attaches_late_joins_and_says_so() -> None:
    text = insert("a", 1, 5) + attach("c", 8) + stable("c", 20) + stable("a", 9)
    result = merged(text, "--trace")
    assert result.lines[-2:] == ['{"at":4,"op":"stable","vc":9}', '{"at":4,"op":"stable","vc":20}']
    assert result.err.startswith("lmerge: stdin:4: stream 'c' has joined")


def test_a_stalled_merge_says_so_and_skips_only_what_is_allowed() -> None:
    text = insert("a", 1, 50) + stable("a", 4) + attach("c", 30) + detach("a") + stable("c", 40)
    result = merged(text)
    assert result.status == 0
    assert "stalled" in result.err
    assert result.lines[-1] == '{"op":"stable","vc":4}'
    allowed = merged(text, "--allow-gaps", "--trace")
    assert '{"at":4,"op":"gap","from":4,"to":30}' in allowed.lines
    assert allowed.lines[-1] == '{"at":5,"op":"stable","vc":40}'
    reconstituted(allowed.out)


def test_a_detached_stream_is_not_heard_until_it_attaches_again() -> None:
    text = insert("a", 1, 5) + insert("b", 1, 5) + detach("b") + insert("b", 2, 6) * 3
    result = merged(text)
    assert (result.status, len(result.lines)) == (0, 1)
    assert result.err == (
        "lmerge: stdin:4: stream 'b' sends elements after its detach; they are ignored until it "
        "attaches again\n"
    )
    strict = merged(text, "--strict")
    assert (strict.status, strict.out) == (3, result.out)
    again = merged(insert("b", 1, 5) + detach("b") + attach("b") + insert("b", 2, 6), "--strict")
    assert (again.status, len(again.lines), again.err) == (0, 2, "")


# ---- broken promises


def test_a_stream_that_breaks_its_promise_is_named_with_the_line() -> None:
    text = stable("a", 10) + insert("b", 12, 19) + insert("a", 4, 12, {"k": 1}) + stable("b", 20)
    for options in ([], ["--trace"]):
        result = merged(text, *options)
        assert result.status == 0
        assert result.err.startswith("lmerge: stdin:3: stream 'a' is quarantined: ")
        assert result.err.endswith(': insert({"k":1}, 4, 12)\n')
        assert result.lines[-1].endswith('"op":"stable","vc":20}')


def test_strict_stops_at_the_broken_promise_and_keeps_what_was_before() -> None:
    text = insert("a", 1, 9) + stable("a", 10) + insert("a", 4, 12) + stable("b", 20)
    result = merged(text, "--strict", "--trace")
    assert result.status == 3
    assert result.lines == [
        '{"at":1,"op":"insert","vs":1,"ve":9,"payload":"A"}',
        '{"at":2,"op":"stable","vc":10}',
    ]
    assert result.err.startswith("lmerge: stdin:3: ")


def test_a_place_that_cannot_be_told_exactly_is_given_as_a_range() -> None:
    text = insert("a", 1, 9) + insert("b", 1, 9) + insert("a", 1, 9)
    result = merged(text)
    assert result.err.startswith("lmerge: stdin:1-3: stream 'a' is quarantined")
    assert merged(text, "--trace").err.startswith("lmerge: stdin:3: stream 'a' is quarantined")


def test_divergence_is_reported_or_ignored_as_asked() -> None:
    text = "".join(insert(s, 1, 3, s) + stable(s, 10_000) for s in "ab")
    reported, ignored = merged(text), merged(text, "--divergence", "off")
    assert (reported.status, ignored.status, ignored.err) == (0, 0, "")
    assert "'b'" in reported.err
    assert reported.out == ignored.out


# ---- files


@pytest.mark.parametrize("extension", ["parquet", "arrow"])
def test_tables_are_read_and_written_by_extension(tmp_path: Path, extension: str) -> None:
    table, out = str(tmp_path / f"in.{extension}"), str(tmp_path / f"out.{extension}")
    options = ["--elements", "400", "--live", "40"]
    assert run("gen", *options, "-o", table) == Ran(0, "", "")
    text = run("gen", *options).out
    assert run("merge", table, "-o", out) == Ran(0, "", "")
    assert run("tdb", out).out == run("tdb", "-", stdin=merged(text).out).out
    assert run("merge", "--trace", table).out == merged(text, "--trace").out
    assert run("merge", "--trace", table, "-o", out) == Ran(0, "", "")
    assert run("check", table, out).status == 0


def test_an_attach_before_the_first_element_of_a_table_is_no_problem(tmp_path: Path) -> None:
    text = tmp_path / "in.jsonl"
    text.write_text(attach("a", 3) + insert("a", 1, 5) + stable("a", None))
    table = str(tmp_path / "out.parquet")
    assert run("merge", str(text), "-o", table) == Ran(0, "", "")
    assert run("tdb", table).lines == ['{"vs":1,"ve":5,"payload":"A","freeze":"FF"}']


def test_an_empty_file_merges_to_an_empty_one(tmp_path: Path) -> None:
    assert merged("") == Ran(0, "", "")
    table = str(tmp_path / "out.parquet")
    assert run("merge", "-", "-o", table) == Ran(0, "", "")
    assert run("tdb", table) == Ran(0, "", "")


def test_statistics_go_to_stderr() -> None:
    result = merged(TABLE_2, "--stats")
    assert result.out == merged(TABLE_2).out
    assert result.err.startswith("lmerge: R3: 6 arrivals in ")
    assert len(result.err.splitlines()) == 5


def test_a_merge_of_merges_is_a_merge() -> None:
    w = Workload(elements=200, live=20, payload_size=2)
    text = run("gen", "--elements", str(w.elements), "--live", "20", "--payload-size", "2").out
    outs = [merged(text, *options).out for options in ([], ["--insert-policy", "final"])]
    both = "".join(
        line.replace("{", f'{{"in":"{name}",', 1) + "\n"
        for name, out in zip("xy", outs, strict=True)
        for line in out.splitlines()
    )
    again = merged(both, "--strict")
    assert (again.status, again.err) == (0, "")
    assert equivalent(reconstituted(again.out), reconstituted(text, "a")) is None
