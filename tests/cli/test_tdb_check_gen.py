"""lmerge tdb, check and gen."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lmerge.cli import check, gen, tdb
from lmerge.tdb import equivalent
from tests.cli.running import Ran, reconstituted, run

BROKEN = """\
{"op":"insert","vs":6,"ve":20,"payload":1}
{"op":"stable","vc":10}
{"op":"insert","vs":9,"ve":20,"payload":2}
"""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ---- tdb


def test_the_example_of_tdb_is_true() -> None:
    assert run("tdb", "-", stdin=tdb.EXAMPLE_INPUT) == Ran(0, tdb.EXAMPLE_OUTPUT, "")
    assert tdb.EXAMPLE_OUTPUT in run("tdb", "--help").out


def test_tdb_sorts_by_start_and_payload_and_repeats_duplicates() -> None:
    rows = [(9, 12, "b"), (9, 11, "b"), (9, 12, "a"), (2, 3, "c"), (9, 11, "b")]
    text = "".join(f'{{"op":"insert","vs":{vs},"ve":{ve},"payload":"{p}"}}\n' for vs, ve, p in rows)
    lines = run("tdb", "-", stdin=text).lines
    assert lines == [
        f'{{"vs":{vs},"ve":{ve},"payload":"{p}","freeze":"UF"}}'
        for vs, ve, p in sorted(rows, key=lambda row: (row[0], row[2], row[1]))
    ]


def test_several_streams_are_told_apart_and_one_can_be_chosen() -> None:
    text = (
        '{"in":"b","op":"insert","vs":1,"ve":2,"payload":1}\n'
        '{"in":"a","op":"insert","vs":1,"ve":2,"payload":2}\n'
    )
    assert run("tdb", "-", stdin=text).lines == [
        '{"in":"b","vs":1,"ve":2,"payload":1,"freeze":"UF"}',
        '{"in":"a","vs":1,"ve":2,"payload":2,"freeze":"UF"}',
    ]
    one = run("tdb", "--in", "a", "-", stdin=text)
    assert one == Ran(0, '{"vs":1,"ve":2,"payload":2,"freeze":"UF"}\n', "")
    none = run("tdb", "--in", "c", "-", stdin=text)
    assert none == Ran(2, "", "lmerge: stdin: no stream 'c'; named streams there: 'b', 'a'\n")


def test_a_broken_contract_is_named_with_its_line_and_nothing_is_printed() -> None:
    assert run("tdb", "-", stdin=BROKEN) == Ran(
        3, "", "lmerge: stdin:3: stream 'stdin': insert below its own stable point 10: "
        "insert(2, 9, 20)\n",
    )  # fmt: skip


def test_the_first_of_several_violations_is_named_whatever_the_order_of_streams() -> None:
    good = '{"in":"a","op":"stable","vc":5}\n'
    bad = '{"in":"%s","op":"insert","vs":7,"ve":7,"payload":1}\n'
    result = run("tdb", "-", stdin=good + bad % "b" + bad % "a")
    assert (result.status, result.err.split(" stream")[0]) == (3, "lmerge: stdin:2:")


def test_an_element_after_the_detach_breaks_the_contract() -> None:
    text = '{"in":"a","op":"attach"}\n{"in":"a","op":"detach"}\n{"in":"a","op":"stable","vc":5}\n'
    result = run("tdb", "-", stdin=text)
    assert result == Ran(3, "", "lmerge: stdin:3: stream 'a': element after its detach\n")


def test_a_stream_that_attaches_again_is_a_new_one() -> None:
    element = '{"in":"a","op":"insert","vs":1,"ve":2,"payload":1}\n'
    text = element + '{"in":"a","op":"stable","vc":9}\n{"in":"a","op":"detach"}\n'
    again = text + '{"in":"a","op":"attach"}\n' + element
    assert run("tdb", "-", stdin=again).lines == ['{"vs":1,"ve":2,"payload":1,"freeze":"UF"}']


# ---- check


def test_the_example_of_check_is_true() -> None:
    result = run("check", "-", stdin=check.EXAMPLE_INPUT)
    assert result == Ran(4, check.EXAMPLE_OUTPUT, "")
    assert check.EXAMPLE_OUTPUT in run("check", "--help").out


def test_streams_of_a_workload_and_their_merge_are_equivalent(tmp_path: Path) -> None:
    one, two = str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")
    run("gen", "--elements", "300", "--live", "30", "-o", one)
    run("merge", one, "-o", two)
    result = run("check", one, two)
    assert result.status == 0
    assert result.out.startswith("equivalent: 4 streams, ")


def test_a_contradiction_is_status_1_and_shown(tmp_path: Path) -> None:
    line = '{"op":"insert","vs":6,"ve":%d,"payload":"A"}\n{"op":"stable","vc":%d}\n'
    one = write(tmp_path / "1.jsonl", line % (20, 25))
    two = write(tmp_path / "2.jsonl", line % (22, 30))
    result = run("check", one, two)
    assert result.status == 1
    assert result.out == (
        f'contradictory: payload "A" from 6: {one} has [6, 20), {two} has [6, 22); ends before '
        "25, where both are stable, can no longer change\n"
    )


def test_a_contradiction_between_two_streams_is_found_beside_a_short_third(tmp_path: Path) -> None:
    short = write(tmp_path / "0.jsonl", "")
    line = '{"op":"insert","vs":6,"ve":%d,"payload":"A"}\n{"op":"stable","vc":%d}\n'
    one = write(tmp_path / "1.jsonl", line % (20, 25))
    two = write(tmp_path / "2.jsonl", line % (22, 30))
    assert run("check", short, one, two).status == 1
    assert run("check", short, one).status == 4


def test_a_stream_that_attached_late_is_compared_from_there_on() -> None:
    whole = (
        '{"in":"a","op":"insert","vs":1,"ve":5,"payload":1}\n'
        '{"in":"a","op":"insert","vs":1,"ve":50,"payload":2}\n{"in":"a","op":"stable","vc":60}\n'
    )
    late = '{"in":"b","op":"attach","from":40}\n'
    early_stable = '{"in":"b","op":"stable","vc":30}\n'
    event = '{"in":"b","op":"insert","vs":1,"ve":50,"payload":2}\n'
    end = '{"in":"b","op":"stable","vc":60}\n'
    assert run("check", "-", stdin=whole + late + event + end).status == 0
    assert run("check", "-", stdin=whole + late + end).status == 1
    assert run("check", "-", stdin=whole + late + early_stable).status == 4
    assert run("check", "-", stdin=whole + end).status == 1


def test_keyed_streams_may_not_repeat_an_event() -> None:
    text = '{"op":"insert","vs":6,"ve":20,"payload":1}\n' * 2
    result = run("check", "-", stdin=text)
    assert result == Ran(
        0, "one stream only, stdin, which keeps its contract: 2 event(s), stable to -∞\n", ""
    )
    assert run("check", "--keyed", "-", stdin=text).status == 3


def test_check_names_the_broken_file_and_line(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good", BROKEN[:42]), write(tmp_path / "bad", BROKEN)
    result = run("check", good, bad)
    assert (result.status, result.out) == (3, "")
    assert result.err.startswith(f"lmerge: {bad}:3: ")


def test_a_long_payload_is_cut_in_the_sentence() -> None:
    text = '{"in":"a","op":"insert","vs":6,"ve":20,"payload":"%s"}\n{"in":"b","op":"stable","vc":9}'
    result = run("check", "-", stdin=text % ("é" * 9000) + '\n{"in":"a","op":"stable","vc":9}\n')
    assert result.status == 1
    assert len(result.out) < 400


# ---- gen


def test_gen_writes_interleaved_equivalent_streams() -> None:
    result = run("gen", "--elements", "100", "--live", "9", "--streams", "4", "--lag", "3")
    assert (result.status, result.err, len(result.lines)) == (0, "", 400)
    names = [line[7] for line in result.lines]
    assert len([1 for one, two in itertools.pairwise(names) if one != two]) > 20
    tdbs = [reconstituted(result.out, name, keyed=True) for name in "abcd"]
    assert all(equivalent(tdbs[0], tdb) is None for tdb in tdbs)


def test_gen_repeats_itself_and_another_seed_differs() -> None:
    assert run("gen", "--elements", "50").out == run("gen", "--elements", "50").out
    assert run("gen", "--elements", "50").out != run("gen", "--elements", "50", "--seed", "1").out


def test_the_options_of_gen_reach_the_workload() -> None:
    out = run("gen", "--elements", "200", "--restriction", "R4", "--duplicates", "0.5",
              "--infinite", "0.5", "--duration", "7", "--max-gap", "3", "--disorder", "0",
              "--revisions", "0", "--spurious", "0", "--stable-freq", "0.1",
              "--payload-size", "5").out  # fmt: skip
    tdb_ = reconstituted(out, "a")
    assert (tdb_.stables, tdb_.adjusts) == (20, 0)
    assert len(tdb_.keys()) < len(tdb_)
    assert '"ve":null' in out


@pytest.mark.parametrize("option", [["--elements", "1"], ["--revisions", "1"], ["--seed", "-1"],
                                    ["--restriction", "R5"], ["--duplicates", "0.1"],
                                    ["--elements", "x"], ["-o", "/nowhere/x.parquet"]])  # fmt: skip
def test_gen_refuses_what_cannot_be(option: list[str]) -> None:
    result = run("gen", *option)
    assert (result.status, result.out) == (2, "")
    assert "lmerge" in result.err
    assert "Traceback" not in result.err


def test_the_example_of_gen_runs() -> None:
    assert " ".join(gen.EXAMPLE) in run("gen", "--help").out
    assert len(run("gen", *gen.EXAMPLE).lines) == 8
