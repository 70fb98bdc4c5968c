"""Times and durations of Spark, as the int64 microseconds that lmerge counts in.

Every part of ``replicas`` that turns a Spark value into a time does it here, so that the source,
the plan and the sink mean the same instant by the same value. TIMESTAMP, TIMESTAMP_NTZ (read as
if it were UTC) and DATE (its midnight) become microseconds since the epoch; integers stay what
they are, in the stream's own unit; null stays null.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY

DAY_US: Final = 86_400_000_000

_UNITS: Final = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": DAY_US,
    "d": DAY_US,
    "week": 7 * DAY_US,
}
_TERM: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)")


def micros(expression: str, kind: DataType) -> str:
    """The SQL expression that gives ``expression``, of type ``kind``, as a BIGINT time."""
    if isinstance(kind, TimestampType):
        return f"unix_micros({expression})"
    if isinstance(kind, TimestampNTZType):
        # unix_micros would read it in the session's time zone.
        return f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {expression})"
    if isinstance(kind, DateType):
        return f"(unix_date({expression}) * {DAY_US}L)"
    if isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        return f"CAST(({expression}) AS BIGINT)"
    raise ConfigurationError(
        f"{expression!r} is of type {kind.simpleString()}, which is not a time: "
        "use a timestamp, a timestamp without time zone, a date or an integer"
    )


def duration_us(text: str | int) -> int:
    """Microseconds of ``"10 seconds"``, ``"1 hour 30 minutes"``, ``"5 ms"``; an int is itself.

    Months and years are refused: they have no fixed length.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if 0 <= text < INFINITY:
            return text
        raise ConfigurationError(f"{text} is not a duration in microseconds: it must be 0 or more")
    if not isinstance(text, str):
        raise ConfigurationError(f"{text!r} is not a duration such as '10 seconds'")
    rest = text.strip().lower().removeprefix("interval ").strip()
    if rest.isdecimal():  # options of a data source arrive as text
        return duration_us(int(rest))
    total = Decimal(0)
    place = 0
    while place < len(rest):
        term = _TERM.match(rest, place)
        unit = term and (_UNITS.get(term[2]) or _UNITS.get(term[2].removesuffix("s")))
        if not term or not unit:
            break
        total += Decimal(term[1]) * unit
        place = term.end()
    if not rest or place < len(rest) or total != int(total) or total >= INFINITY:
        raise ConfigurationError(
            f"{text!r} is not a duration such as '10 seconds' or '1 hour 30 minutes' "
            "(units from microseconds to weeks)"
        )
    return int(total)
