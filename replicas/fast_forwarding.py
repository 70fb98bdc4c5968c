"""A step for any plan that drops rows the horizon has passed, before the expensive part.

What callers may rely on:

1. A row is dropped only if its ``ends`` plus ``look_back`` lies before the horizon at the moment
   its Arrow batch is looked at. A row whose ``ends`` is null is kept. The rows that are kept keep
   their columns, order and types.
2. The horizon is read anew for every Arrow batch, so that a micro-batch that is on its way gets
   shorter. The granularity is ``spark.sql.execution.arrow.maxRecordsPerBatch``; 1,000 works well,
   with the default of 10,000 a move often comes too late. What comes after the step in the plan
   reads ahead of itself, some hundred kilobytes of rows, so that small rows may all have passed
   the step before the first of them is worked on. Dear work is therefore best given as ``then``:
   it runs in the same process, gets ``every`` rows at a time, and the horizon is read before each.
3. Event time goes on: a watermark set before the step still holds after it, and moves also by the
   rows that the step drops.

Unlike the jumps of ``replicas.feed`` these drops are not recorded: a micro-batch that is replayed
may drop more. What it drops then was not needed any more either.

Counters: ``rows_seen`` and ``rows_dropped``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import StructType

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, earlier
from replicas.horizon import address_of, count, flush, horizon_at
from replicas.times import duration_us, micros

ENDS: Final = "__lmerge_ends"  # the column that carries the time, within the step
FIRST_WORD_SECONDS: Final = 0.5  # how long the first batch of a process may wait for the horizon

EVERY: Final = 100
"""Rows that the work behind a step gets at a time."""

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fast_forward(
    df: DataFrame,
    ends: str,
    *,
    look_back: str | int = "0 seconds",
    horizon: str | None = None,
    then: Step | None = None,
    schema: str | StructType | None = None,
    every: int = EVERY,
) -> DataFrame:
    """``df`` without the rows that cannot matter any more, by the horizon of each moment.

    ``ends`` is an SQL expression over the columns of ``df``: the latest time until which a row can
    matter. ``horizon`` is as for :func:`replicas.feed`. ``then`` is work on the rows that are
    kept, as ``DataFrame.mapInArrow`` takes it; ``schema`` is that of its rows, by default the one
    they have, which keeps a watermark.
    """
    if every < 1:
        raise ConfigurationError(f"every must be at least 1, not {every}")
    if then is None and schema is not None:
        raise ConfigurationError("schema is that of the rows that then gives: there is no then")
    address = address_of(df.sparkSession, horizon)
    look_back_us = duration_us(look_back)
    if ENDS in df.columns:
        raise ConfigurationError(f"a column may not be called {ENDS}")
    try:
        kind = df.select(expr(ends).alias(ENDS)).schema[ENDS].dataType
    except AnalysisException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"ends={ends!r} is not an expression of it: {reason}") from None
    normal = micros(ends, kind)
    made = df.schema if schema is None else schema
    if address is None:
        return df if then is None else df.mapInArrow(then, made)
    step = dropper(address, look_back_us, None if then is None else every)
    if then is not None:
        step = _both(step, then)
    # The schema carries the metadata by which Spark knows the event-time column.
    return df.withColumn(ENDS, expr(normal)).mapInArrow(step, made)


def _both(step: Step, then: Step) -> Step:
    def drop_then_work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return then(step(batches))

    return drop_then_work


def dropper(address: str, look_back_us: int, every: int | None = None) -> Step:
    """The step as a worker runs it: over batches whose last column is the time in microseconds.

    It gives a batch whole, or ``every`` rows of it at a time, and none that are empty.
    """

    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                count(address, "rows_seen", batch.num_rows)
                if every is None:
                    yield _rows(needed(batch))
                    continue
                rest, seen = batch, BEGINNING
                while rest.num_rows:
                    if (at := horizon_at(address, wait=FIRST_WORD_SECONDS)) != seen:
                        rest, seen = needed(rest), at
                    if rest.num_rows:
                        yield _rows(rest.slice(0, every))
                        rest = rest.slice(every)
        finally:
            flush(address)  # a worker may be killed once its task is done

    def needed(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = horizon_at(address, wait=FIRST_WORD_SECONDS)
        if at == BEGINNING:
            return batch
        ends = batch.column(batch.num_columns - 1)
        kept = batch.filter(pc.fill_null(pc.greater_equal(ends, earlier(at, look_back_us)), True))
        count(address, "rows_dropped", batch.num_rows - kept.num_rows)
        return kept

    return drop


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.remove_column(batch.num_columns - 1)
