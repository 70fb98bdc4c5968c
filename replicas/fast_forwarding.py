"""A step for any plan that drops rows the horizon has passed, before the expensive part.

What callers may rely on:

1. A row is dropped only if its ``ends`` plus ``look_back`` lies before the horizon at the moment
   its Arrow batch is looked at. A row whose ``ends`` is null is kept. The rows that are kept keep
   their columns, order and types.
2. The horizon is read anew for every Arrow batch, so that a micro-batch that is on its way gets
   shorter. The granularity is ``spark.sql.execution.arrow.maxRecordsPerBatch``; 1,000 works well,
   with the default of 10,000 a move often comes too late.
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

from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, earlier
from replicas.horizon import address_of, count, flush, horizon_at
from replicas.times import duration_us, micros

ENDS: Final = "__lmerge_ends"  # the column that carries the time, within the step
FIRST_WORD_SECONDS: Final = 0.5  # how long the first batch of a process may wait for the horizon

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fast_forward(
    df: DataFrame, ends: str, *, look_back: str | int = "0 seconds", horizon: str | None = None
) -> DataFrame:
    """``df`` without the rows that cannot matter any more, by the horizon of each moment.

    ``ends`` is an SQL expression over the columns of ``df``: the latest time until which a row can
    matter. ``horizon`` is as for :func:`replicas.feed`.
    """
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
    if address is None:
        return df
    # The schema carries the metadata by which Spark knows the event-time column.
    return df.withColumn(ENDS, expr(normal)).mapInArrow(dropper(address, look_back_us), df.schema)


def dropper(address: str, look_back_us: int) -> Step:
    """The step as a worker runs it: over batches whose last column is the time in microseconds."""

    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                at = horizon_at(address, wait=FIRST_WORD_SECONDS)
                last = batch.num_columns - 1
                times = batch.column(last)
                rows = batch.remove_column(last)
                count(address, "rows_seen", rows.num_rows)
                if at != BEGINNING:
                    kept = rows.filter(
                        pc.fill_null(pc.greater_equal(times, earlier(at, look_back_us)), True)
                    )
                    count(address, "rows_dropped", rows.num_rows - kept.num_rows)
                    rows = kept
                yield rows
        finally:
            flush(address)  # a worker may be killed once its task is done

    return drop
