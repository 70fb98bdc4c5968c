"""One line of JSON for one element: the codec for people, tests and debugging.

Callers may rely on this: whatever the bytes, :func:`parse_line` returns a value or raises
:class:`~lmerge.errors.InputError`; and ``parse_line(format_line(x)) == x``.

A payload is any JSON value, held as its *canonical* text: keys sorted, no spaces, text not
escaped, whole numbers written as integers (``1.0`` is ``1``, ``-0.0`` is ``0``), ``NaN`` and
``Infinity`` as those words. So two payloads are the same when their texts are equal.

A time is an integer in int64 without its two extremes, which are the infinities and have no
number: ``null`` stands for infinity in ``ve``, ``vold`` and ``vc``, and nowhere else. Keys that
are not known are ignored.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import date, time
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lmerge.elements import Adjust, Element, Insert, Op, Stable
from lmerge.errors import InputError
from lmerge.times import BEGINNING, INFINITY


class Arrival(NamedTuple):
    """An element of a stream; of the only one when ``stream`` is ``None``."""

    stream: str | None
    element: Element


class Attach(NamedTuple):
    """A stream begins; right for all that ends at or after ``from_time``, or from the beginning."""

    stream: str | None
    from_time: int | None


class Detach(NamedTuple):
    """A stream ends."""

    stream: str | None


class Gap(NamedTuple):
    """Of what ended in ``[from_time, to_time)`` the stream knows nothing."""

    stream: str | None
    from_time: int | None
    to_time: int


Line = Arrival | Attach | Detach | Gap

KNOWN_OPS: Final = ("insert", "adjust", "stable", "attach", "detach", "gap", "feedback")

SHOWN_MAX: Final = 40
"""How much of an offending value an error repeats."""

REMEMBERED_COUNT: Final = 8192
REMEMBERED_SIZE: Final = 4096
"""How many payloads' canonical texts are kept, and up to which length: some 64 MB at most."""

_INTEGER = r"-?(?:0|[1-9][0-9]{0,18})"
# The lines that lmerge writes itself, or json.dumps in the same order of keys. What follows
# `"payload":` is one JSON value exactly when no other key comes after it, so anything else fails
# to decode there and takes the general way.
_PLAIN_LINE: Final = re.compile(
    r'\{(?:"in": ?"([^"\\\x00-\x1f]*)", ?)?(?:"at": ?(?:0|[1-9][0-9]*), ?)?'
    r'"op": ?"(?:insert|(adjust))", ?'
    rf'"vs": ?({_INTEGER}), ?(?:"vold": ?({_INTEGER}|null), ?)?"ve": ?({_INTEGER}|null), ?'
    r'"payload": ?(.+)\}[ \t\r\n]*'
).fullmatch


class _Whole(int):
    """A whole number that was written as a float: an integer in a payload, never a time."""


def _number(text: str) -> float | _Whole:
    value = float(text)
    if not value.is_integer():
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number is too large")
        return value
    return _Whole(value)


_DECODER: Final = json.JSONDecoder(parse_float=_number)
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
)


def parse_line(text: bytes | str, source: str, number: int) -> Line | None:
    """What line ``number`` of ``source`` says; ``None`` when it is blank or feedback."""
    try:
        # Text may hold lone surrogates, which no output could encode.
        text = text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        place = getattr(error, "start", 0) + 1
        raise InputError(source, number, f"not UTF-8 (at {place} of the line)") from None
    plain = _PLAIN_LINE(text)
    if plain is not None:
        arrival = _plain_arrival(*plain.groups())
        if arrival is not None:
            return arrival
    return _general(text, source, number)


def format_line(line: Line) -> str:
    """The line that :func:`parse_line` reads as ``line``, without a line end."""
    head = {} if line.stream is None else {"in": line.stream}
    if isinstance(line, Arrival):
        return format_element(line.element, **head)
    if isinstance(line, Attach):
        start = {} if line.from_time is None else {"from": line.from_time}
        return _dump({**head, "op": "attach", **start})
    if isinstance(line, Detach):
        return _dump({**head, "op": "detach"})
    end = None if line.to_time == INFINITY else line.to_time
    return _dump({**head, "op": "gap", "from": line.from_time, "to": end})


def format_element(element: Element, **extra: Any) -> str:
    """The element's line, with ``extra`` keys (``in``, ``at``) first; the payload verbatim."""
    head = "".join(f"{_dump(key)}:{_dump(value)}," for key, value in extra.items())
    if isinstance(element, Insert):
        return format_row(Op.INSERT, element.vs, element.ve, 0, element.payload, head)
    if isinstance(element, Adjust):
        return format_row(Op.ADJUST, element.vs, element.ve, element.vold, element.payload, head)
    return format_row(Op.STABLE, element.vc, 0, 0, None, head)


def format_row(op: int, vs: int, ve: int, vold: int, payload: str | None, head: str = "") -> str:
    """The line of one row of an element batch, with ``head`` (ending in a comma) first."""
    if op == Op.STABLE:
        return f'{{{head}"op":"stable","vc":{_shown(vs)}}}'
    if op == Op.INSERT:
        return f'{{{head}"op":"insert","vs":{vs},"ve":{_shown(ve)},"payload":{payload}}}'
    return (
        f'{{{head}"op":"adjust","vs":{vs},"vold":{_shown(vold)},"ve":{_shown(ve)}'
        f',"payload":{payload}}}'
    )


def canonical(value: Any) -> str:
    """The canonical text of a Python value, such as Arrow gives for a row.

    >>> canonical({"b": 1.0, "a": [True, None, -0.0]})
    '{"a":[true,null,0],"b":1}'
    """
    return _ENCODER.encode(_plain(value))


def canonical_text(text: str) -> str:
    """The canonical form of JSON text; raises ``ValueError`` or ``RecursionError``."""
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("more than one JSON value")
    result = _checked(_ENCODER.encode(value))
    return text if result == text else result  # so that a cache holds one string, not two


# Replicas repeat each other's payloads, and an adjust repeats its insert's.
_remembered = lru_cache(maxsize=REMEMBERED_COUNT)(canonical_text)


def _plain(value: Any) -> Any:
    """``value`` made of what JSON has, and so that equal values give equal text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)


def _plain_arrival(
    stream: str | None, adjust: str | None, vs: str, vold: str | None, ve: str, payload: str
) -> Arrival | None:
    """The arrival of a line in our own form, or ``None`` when the general way must judge it."""
    start = int(vs)
    end = INFINITY if ve == "null" else int(ve)
    if not BEGINNING < start < INFINITY or not BEGINNING < end <= INFINITY:
        return None
    if end == INFINITY and ve != "null":
        return None
    try:
        text = (_remembered if len(payload) <= REMEMBERED_SIZE else canonical_text)(payload)
    except (ValueError, RecursionError):
        return None
    if adjust is None:
        return Arrival(stream, Insert(text, start, end)) if vold is None else None
    if vold is None:
        return None
    old = INFINITY if vold == "null" else int(vold)
    if not BEGINNING < old <= INFINITY or (old == INFINITY and vold != "null"):
        return None
    return Arrival(stream, Adjust(text, start, old, end))


def _general(text: str, source: str, number: int) -> Line | None:
    if number == 1:
        text = text.removeprefix("\ufeff")  # some editors begin a file so
    if not text.strip(" \t\r\n"):
        return None
    try:
        fields = _DECODER.decode(text)
        if not isinstance(fields, dict):
            raise _RefusedError(f"not a JSON object but {_described(fields)}")
        return _line(fields)
    except _RefusedError as error:
        reason = str(error)
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.pos + 1}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        # int() refuses thousands of digits, and its own advice is of no use here.
        reason = "a number has too many digits" if "digits" in str(error) else str(error)
    raise InputError(source, number, reason)


class _RefusedError(Exception):
    """JSON that is no element: the reason."""


def _line(fields: dict[str, Any]) -> Line | None:
    op = _field(fields, "op", "line")
    if op not in KNOWN_OPS:
        known = ", ".join(KNOWN_OPS)
        raise _RefusedError(f'unknown "op" {_described(op)}; there are {known}')
    if op == "feedback":
        return None
    stream = fields.get("in")
    if "in" in fields and not isinstance(stream, str):
        raise _RefusedError(f'"in" must be a string, not {_described(stream)}')
    if stream is not None:
        _checked(stream)
    if op == "insert":
        vs, ve = _finite(fields, "vs", op), _end(fields, "ve", op)
        return Arrival(stream, Insert(_payload(fields, op), vs, ve))
    if op == "adjust":
        vs, vold, ve = _finite(fields, "vs", op), _end(fields, "vold", op), _end(fields, "ve", op)
        return Arrival(stream, Adjust(_payload(fields, op), vs, vold, ve))
    if op == "stable":
        return Arrival(stream, Stable(_end(fields, "vc", op)))
    if op == "detach":
        return Detach(stream)
    start = None if fields.get("from") is None else _finite(fields, "from", op)
    return Attach(stream, start) if op == "attach" else Gap(stream, start, _end(fields, "to", op))


def _field(fields: dict[str, Any], name: str, op: str) -> Any:
    try:
        return fields[name]
    except KeyError:
        raise _RefusedError(f'{op} without "{name}"') from None


def _finite(fields: dict[str, Any], name: str, op: str) -> int:
    value = _field(fields, name, op)
    if type(value) is not int:  # neither a bool nor a float will do
        raise _RefusedError(f'"{name}" must be an integer, not {_described(value)}')
    return _in_range(value, name)


def _end(fields: dict[str, Any], name: str, op: str) -> int:
    value = _field(fields, name, op)
    if value is None:
        return INFINITY
    if type(value) is not int:
        raise _RefusedError(
            f'"{name}" must be an integer or null (infinity), not {_described(value)}'
        )
    return _in_range(value, name)


def _in_range(value: int, name: str) -> int:
    if not BEGINNING < value < INFINITY:
        raise _RefusedError(
            f'"{name}" is out of range: finite times are {BEGINNING + 1} to {INFINITY - 1}'
        )
    return value


def _payload(fields: dict[str, Any], op: str) -> str:
    return _checked(_ENCODER.encode(_field(fields, "payload", op)))


def _checked(text: str) -> str:
    """``text``, unless UTF-8 cannot say it: an escape such as ``\\ud800`` alone is no character."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(r"text with half of a surrogate pair (such as \ud800)") from None
    return text


def _described(value: Any) -> str:
    """``value`` for an error message: short, and safe for values of any depth."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, _Whole):
        return f"the decimal number {float(value)}"
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def _shown(t: int) -> str:
    return "null" if t == INFINITY else str(t)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
