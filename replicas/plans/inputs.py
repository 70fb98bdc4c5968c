"""What the example plans have in common: settings, reading a directory, and writing one.

Callers may rely on this:

1. What :func:`write` writes depends on its arguments only. The rows are the caller's, whatever
   ``disorder_s`` is; only the order in which they stand in the files depends on it.
2. A row stands at most ``disorder_s`` behind the latest row before it, and that is not more than
   :data:`DELAY_S`: no plan ever drops one as late.
3. Two rows that come last, far later and in files of their own, move every watermark past all that
   is of interest. There are two since the first one's watermark holds from the next batch on,
   and not every plan runs a batch without rows. A run to the end therefore needs them in different
   batches: ``rows_per_batch`` must not be so large that one takes both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from lmerge.errors import ConfigurationError
from replicas.feeding import ROWS_PER_BATCH, feed

INPUT_CONF: Final = "spark.lmerge.plans.input"
ROWS_CONF: Final = "spark.lmerge.plans.rows_per_batch"
FEEDBACK_CONF: Final = "spark.lmerge.plans.feedback"
"""``false``: what feedback says is not listened to, and nothing is skipped."""

SECOND: Final = 1_000_000
BEGIN: Final = 1_699_999_200 * SECOND
"""When the data begins: a full hour."""
DELAY_S: Final = 20
"""The watermark's delay in every plan, and so the most that rows may be disordered."""
FILES: Final = 6
_HOUR: Final = 3600 * SECOND

TIME: Final = pa.timestamp("us", tz="UTC")
Plan = tuple[DataFrame, dict[str, Any]]
"""What a builder returns: a query, and the options of :func:`replicas.attach` that go with it."""
Row = dict[str, Any]


def stream(
    spark: SparkSession, within: str = "", *, look_back: str = "0 seconds", skips: bool = True
) -> DataFrame:
    """The input (its folder ``within``) as a stream with the watermark that every plan has.

    ``look_back`` is that of :func:`replicas.feed`; without ``skips`` feedback is not listened to.
    """
    directory = spark.conf.get(INPUT_CONF, None)
    if not directory:
        raise ConfigurationError(f"{INPUT_CONF} must name the directory of the input: --conf")
    found = feed(
        spark,
        str(Path(directory) / within),
        time="at",
        disorder=f"{DELAY_S} seconds",
        look_back=look_back,
        horizon=horizon(spark) if skips else "",
        rows_per_batch=number(spark, ROWS_CONF, ROWS_PER_BATCH),
    )
    return found.withWatermark("at", f"{DELAY_S} seconds")


def horizon(spark: SparkSession) -> str | None:
    """The ``horizon`` of feeds and steps: the session's, or none where it is turned off."""
    said = (spark.conf.get(FEEDBACK_CONF, None) or "true").lower()
    if said not in ("true", "false"):
        raise ConfigurationError(f"{FEEDBACK_CONF} is true or false, not {said!r}")
    return None if said == "true" else ""


def table(spark: SparkSession, directory: str, within: str = "") -> DataFrame:
    """The same rows for a batch job."""
    return spark.read.parquet(str(Path(directory) / within))


def number(spark: SparkSession, name: str, default: int) -> int:
    """A setting that is a whole number, not negative."""
    said = spark.conf.get(name, None)
    if said is None:
        return default
    if not said.isdecimal():
        raise ConfigurationError(f"{name} must be a whole number, not {said!r}")
    return int(said)


def complete_at(rows: Sequence[Row]) -> int:
    """A full hour, well after the last row: what starts before it is known once all is read."""
    latest: int = max(row["at"] for row in rows)
    return (latest // _HOUR + 2) * _HOUR


def write(
    directory: str | Path,
    schema: pa.Schema,
    rows: Sequence[Row],
    closing: Callable[[int, int], Row],
    *,
    seed: int,
    disorder_s: float,
    complete: int | None = None,
) -> int:
    """Write ``rows`` in files whose names sort in order, as they arrive.

    ``closing`` makes one of the rows that come last from its time and number. They come after
    ``complete``, by default :func:`complete_at`, which is returned.
    """
    if not 0 <= disorder_s <= DELAY_S:
        raise ConfigurationError(
            f"disorder_s must be between 0 and {DELAY_S}, the watermark's delay, not {disorder_s}"
        )
    if not rows:
        raise ConfigurationError("an input needs at least one row")
    pick = random.Random(f"{seed} arrival")  # noqa: S311 (data, and no secret)
    delays = [pick.uniform(0, disorder_s) * SECOND for _ in rows]
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["at"] + delays[i], i))
    arriving = [rows[i] for i in order]
    complete = complete_at(rows) if complete is None else complete
    size = -(-len(arriving) // FILES)
    parts = [arriving[at : at + size] for at in range(0, len(arriving), size)]
    parts += [[closing(complete + (n + 1) * _HOUR, n)] for n in range(2)]
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in enumerate(parts):
        content = pa.Table.from_pylist(part, schema=schema)
        pyarrow.parquet.write_table(content, folder / f"part-{name:05d}.parquet")
    return complete
