"""From a row of a query's result to an event: when it lives, and what its payload is.

- ``vs`` and ``ve`` are columns or SQL expressions over the row; a null ``ve`` is infinity.
- A plain column named as ``vs`` or ``ve`` is the lifetime, and not part of the payload: an end that
  is revised must not make another payload. Every other column is payload.
- Without them a windowed result lives in ``[window.end, window.end + slide)``, the time during
  which it is the latest answer; the window itself stays in the payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegralType, StructType

from lmerge.errors import ConfigurationError
from lmerge.times import INFINITY
from replicas.times import micros

VS: Final = "__lmerge_vs"
VE: Final = "__lmerge_ve"
STABLE: Final = "__lmerge_stable"
_RESERVED: Final = {"op", "vs", "ve", "vold"}


@dataclass(frozen=True)
class Lifetimes:
    """How rows become events; ``select`` adds VS and VE behind the payload's columns."""

    vs: str  # SQL: a BIGINT
    ve: str
    payload: tuple[str, ...]
    schema: StructType  # the payload's
    in_micros: bool  # false: the stream's own unit, which no watermark can be compared with

    def select(self, rows: DataFrame, promise: str | None) -> DataFrame:
        """The payload's columns, then VS and VE, and STABLE where rows promise a stable point."""
        columns = [_quoted(name) for name in self.payload]
        columns += [f"{self.vs} AS {VS}", f"{self.ve} AS {VE}"]
        if promise is not None:
            columns.append(f"{promise} AS {STABLE}")
        return rows.selectExpr(*columns)

    def time_of(self, df: DataFrame, expression: str) -> str:
        """Another time of a result's row, as SQL."""
        sql, in_micros = _time(df, "stable", expression)
        if in_micros != self.in_micros:
            raise ConfigurationError(f"stable {expression!r} is in another unit than vs")
        return sql


def lifetimes(
    df: DataFrame,
    vs: str | None,
    ve: str | None,
    payload: list[str] | None,
    window: Any | None,
) -> Lifetimes:
    """What the options mean for this result; ``window`` is what the plan's analysis found."""
    if vs is None:
        if window is None:
            raise ConfigurationError(
                "no lifetime: the result has no window column with a known slide; say with vs and"
                " ve from which column or SQL expression an event's start and end come"
            )
        end = f"{_quoted(window.column)}.end"
        vs = end
        ve = ve or f"{end} + INTERVAL {window.slide_us} MICROSECONDS"
    start, in_micros = _time(df, "vs", vs)
    finish, end_in_micros = (
        (f"CAST({INFINITY} AS BIGINT)", in_micros) if ve is None else _time(df, "ve", ve)
    )
    if in_micros != end_in_micros:
        raise ConfigurationError(
            f"vs ({vs}) and ve ({ve}) are in different units: one is a timestamp or date, which"
            " counts in microseconds, and the other a number"
        )
    names = payload if payload is not None else [c for c in df.columns if c not in (vs, ve)]
    missing = sorted(set(names) - set(df.columns))
    if missing:
        raise ConfigurationError(f"no payload columns {missing}; the result has {df.columns}")
    taken = sorted(_RESERVED & set(names))
    if taken:
        raise ConfigurationError(
            f"payload columns named {taken}: elements have columns of these names; rename them"
        )
    schema = StructType([df.schema[name] for name in names])
    return Lifetimes(start, f"coalesce({finish}, {INFINITY}L)", tuple(names), schema, in_micros)


def _time(df: DataFrame, what: str, expression: str) -> tuple[str, bool]:
    """An expression as a BIGINT, and whether that counts microseconds."""
    source = _quoted(expression) if expression in df.columns else f"({expression})"
    try:
        kind = df.selectExpr(f"{source} AS time").schema["time"].dataType
    except PySparkException as error:
        said = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"{what} {expression!r} is no expression: {said}") from error
    return micros(source, kind), not isinstance(kind, IntegralType)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
