"""The JSON-lines codec: what it reads, what it refuses, and that it survives any bytes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmerge import jsonlines
from lmerge.elements import Adjust, Element, Insert, Stable
from lmerge.errors import InputError
from lmerge.jsonlines import (
    Arrival,
    Attach,
    Detach,
    Gap,
    Line,
    canonical,
    canonical_text,
    format_element,
    format_line,
    parse_line,
)
from lmerge.times import BEGINNING, INFINITY

DESIGN_LINES: list[tuple[str, Line]] = [
    (
        '{"in":"a","op":"insert","vs":6,"ve":20,"payload":{"k":1}}',
        Arrival("a", Insert('{"k":1}', 6, 20)),
    ),
    (
        '{"in":"a","op":"adjust","vs":6,"vold":20,"ve":30,"payload":{"k":1}}',
        Arrival("a", Adjust('{"k":1}', 6, 20, 30)),
    ),
    ('{"in":"a","op":"stable","vc":11}', Arrival("a", Stable(11))),
    ('{"in":"c","op":"attach","from":40}', Attach("c", 40)),
    ('{"in":"b","op":"detach"}', Detach("b")),
    ('{"op":"stable","vc":null}', Arrival(None, Stable(INFINITY))),
    (
        '{"op":"adjust","vs":-1,"vold":null,"ve":null,"payload":null}',
        Arrival(None, Adjust("null", -1, INFINITY, INFINITY)),
    ),
    ('{"op":"gap","from":null,"to":7}', Gap(None, None, 7)),
]


@pytest.mark.parametrize(("text", "line"), DESIGN_LINES)
def test_the_documented_lines_are_read_and_written_exactly(text: str, line: Line) -> None:
    assert parse_line(text, "f", 1) == parse_line(text.encode() + b"\r\n", "f", 1) == line
    assert format_line(line) == text


@pytest.mark.parametrize("text", ["", "  \t\r\n", '{"to":"b","op":"feedback","before":9}'])
def test_blank_lines_and_feedback_are_skipped(text: str) -> None:
    assert parse_line(text, "f", 3) is None


def test_extra_keys_and_another_order_of_keys_change_nothing() -> None:
    expected = Arrival("a", Insert('{"k":1}', 6, 20))
    for text in (
        '{"payload":{"k":1},"ve":20,"vs":6,"op":"insert","in":"a"}',
        '{"in":"a","at":12,"op":"insert","vs":6,"ve":20,"payload":{"k":1}}',
        '{"in":"a","op":"insert","vs":6,"ve":20,"payload":{"k":1},"at":3}',
        '{"in":"a","op":"insert","vs":6,"vold":9,"ve":20,"payload":{"k":1}}',
        '\ufeff { "in" : "a", "op": "insert", "vs": 6, "ve": 20, "payload": {"k": 1} } ',
        '{"in": "a", "op": "insert", "vs": 6, "ve": 20, "payload": {"k": 1}}',
    ):
        assert parse_line(text, "f", 1) == expected


def test_a_key_that_is_given_twice_counts_as_last_given() -> None:
    line = parse_line('{"op":"insert","vs":1,"ve":2,"payload":3,"payload":4}', "f", 1)
    assert line == Arrival(None, Insert("4", 1, 2))


@pytest.mark.parametrize(
    ("given_text", "text"),
    [
        ('{"b": 1, "a": 2}', '{"a":2,"b":1}'),
        ('[1.0, -0.0, 1e2, 2.50, {"z": -3.0}]', '[1,0,100,2.5,{"z":-3}]'),
        ('"h\\u00e9"', '"hé"'),
        ("NaN", "NaN"),
        ("[-Infinity]", "[-Infinity]"),
        ("true", "true"),
        ('"\\ud83d\\ude00"', '"😀"'),
    ],
)
def test_payloads_are_held_as_canonical_text(given_text: str, text: str) -> None:
    for form in (
        f'{{"op":"insert","vs":1,"ve":2,"payload":{given_text}}}',
        f'{{"payload":{given_text},"op":"insert","vs":1,"ve":2}}',
    ):
        assert parse_line(form, "f", 1) == Arrival(None, Insert(text, 1, 2))
    assert canonical_text(text) == text


REFUSED = [
    ("{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
    ('{"op":"insert",}', "not JSON: "),
    ("[1]", "not a JSON object but an array"),
    ("3", "not a JSON object but 3"),
    ("{}", 'line without "op"'),
    ('{"op":"upsert"}', "unknown \"op\" 'upsert'; there are insert, adjust, stable, attach"),
    ('{"op":["insert"]}', 'unknown "op" an array'),
    ('{"in":1,"op":"detach"}', '"in" must be a string, not 1'),
    ('{"in":null,"op":"detach"}', '"in" must be a string, not null'),
    ('{"op":"insert","ve":2,"payload":1}', 'insert without "vs"'),
    ('{"op":"insert","vs":1,"payload":1}', 'insert without "ve"'),
    ('{"op":"insert","vs":1,"ve":2}', 'insert without "payload"'),
    ('{"op":"adjust","vs":1,"ve":2,"payload":1}', 'adjust without "vold"'),
    ('{"op":"stable"}', 'stable without "vc"'),
    ('{"op":"insert","vs":null,"ve":2,"payload":1}', '"vs" must be an integer, not null'),
    ('{"op":"insert","vs":true,"ve":2,"payload":1}', '"vs" must be an integer, not true'),
    ('{"op":"insert","vs":1.0,"ve":2,"payload":1}', '"vs" must be an integer, not the decimal'),
    ('{"op":"insert","vs":1,"ve":2.5,"payload":1}', '"ve" must be an integer or null (infinity)'),
    ('{"op":"stable","vc":"9"}', "\"vc\" must be an integer or null (infinity), not '9'"),
    ('{"op":"attach","from":"x"}', '"from" must be an integer, not'),
    ('{"op":"stable","vc":1e999}', "a number is too large"),
    (f'{{"op":"insert","vs":1,"ve":2,"payload":{"9" * 9999}}}', "a number has too many digits"),
    (f'{{"op":"insert","vs":1,"ve":2,"payload":{"[" * 99999}', "nested too deeply"),
    ('{"op":"insert","vs":1,"ve":2,"payload":"\\ud800"}', "text with half of a surrogate pair"),
    ('{"in":"\\udfff","op":"detach"}', "text with half of a surrogate pair"),
    ("\ud800", "not UTF-8"),
    (b'{"op":"\xff"}', "not UTF-8 (at 8 of the line)"),
    ('{"at":007,"op":"insert","vs":1,"ve":2,"payload":3}', "not JSON: "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_element_is_refused_with_its_place_and_reason(
    text: str | bytes, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_line(text, "in.jsonl", 7)
    assert caught.value.reason.startswith(reason)
    assert (caught.value.source, caught.value.line) == ("in.jsonl", 7)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("field", ["vs", "vold", "ve"])
@pytest.mark.parametrize("value", [BEGINNING, INFINITY, 2**63, -(2**70)])
def test_times_outside_the_finite_ones_are_refused(field: str, value: int) -> None:
    times = {"vs": 1, "vold": 5, "ve": 6, field: value}
    for fields in (
        {"op": "adjust", **times, "payload": 1},
        {"payload": 1, "op": "adjust", **times},
    ):
        with pytest.raises(InputError, match=f'"{field}" is out of range'):
            parse_line(json.dumps(fields), "f", 1)


def test_the_extreme_finite_times_are_read() -> None:
    low, high = BEGINNING + 1, INFINITY - 1
    element = Insert("1", low, high)
    assert parse_line(format_element(element), "f", 1) == Arrival(None, element)


def test_extra_keys_are_written_first() -> None:
    text = format_element(Stable(4), **{"in": 'a"b'}, at=7)
    assert text == '{"in":"a\\"b","at":7,"op":"stable","vc":4}'


def test_nesting_just_below_the_limit_is_an_element_or_an_input_error() -> None:
    for depth in range(0, sys.getrecursionlimit() + 100, 37):
        text = f'{{"op":"insert","vs":1,"ve":2,"payload":{"[" * depth}1{"]" * depth}}}'
        try:
            assert isinstance(parse_line(text, "f", 1), Arrival)
        except InputError as error:
            assert error.reason == "nested too deeply"  # noqa: PT017 (either outcome is right)


times = st.integers(BEGINNING + 1, INFINITY - 1)
ends = times | st.just(INFINITY)
names = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(
        st.characters(exclude_categories=["Cs"])
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
payloads = values.map(canonical)
elements: st.SearchStrategy[Element] = (
    st.builds(Insert, payloads, times, ends)
    | st.builds(Adjust, payloads, times, ends, ends)
    | st.builds(Stable, ends)
)
lines: st.SearchStrategy[Line] = (
    st.builds(Arrival, names, elements)
    | st.builds(Attach, names, st.none() | times)
    | st.builds(Detach, names)
    | st.builds(Gap, names, st.none() | times, ends)
)


@given(lines)
def test_every_line_reads_back_as_it_was_written(line: Line) -> None:
    assert parse_line(format_line(line), "f", 2) == line
    assert parse_line(format_line(line).encode(), "f", 2) == line


@given(values)
def test_canonical_text_is_its_own_canonical_form_and_valid_json(value: Any) -> None:
    text = canonical(value)
    assert canonical_text(text) == text == canonical(json.loads(text))


@given(lines)
def test_the_short_way_and_the_general_way_agree(line: Line) -> None:
    text = format_line(line)
    assert jsonlines._general(text, "f", 2) == parse_line(text, "f", 2)


fragments = st.sampled_from(
    [b'{"op":', b'"insert"', b'"adjust"', b'"stable"', b'"attach"', b',"vs":', b',"ve":', b"null",
     b',"vold":', b',"payload":', b"1", b"-0", b"1.0", b"1e400", b"NaN", b"9" * 20, b"9" * 5000,
     b"{", b"}", b"[", b"]", b'"', b"\\ud800", b"\xff", b"\x00", b"true", b" ", b',"in":"a"',
     b'{"op":"insert","vs":1,"ve":2,"payload":', b"[" * 2000]
)  # fmt: skip


@given(st.binary() | st.lists(fragments, max_size=12).map(b"".join))
@example(b'{"op":"insert","vs":1,"ve":2,"payload":{"a":1},"ve":3}')
def test_any_bytes_are_a_line_or_an_input_error(data: bytes) -> None:
    for text in (data, data.decode("latin-1"), data.decode("utf-8", "surrogateescape")):
        try:
            line = parse_line(text, "f", 1)
        except InputError:
            continue
        if line is not None:
            assert parse_line(format_line(line), "f", 1) == line
