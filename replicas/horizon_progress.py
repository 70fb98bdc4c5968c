"""What Spark says of each micro-batch, as counters of the horizon: time, rows, state purged.

It listens to the queries of one session. Spark tells some tenths of a second after the batch, on a
thread of its own, so no query waits for it; which counters there are is said in
:mod:`replicas.horizon`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from lmerge.times import BEGINNING
from replicas.horizon import HorizonServer


class Progress(StreamingQueryListener):
    """Counts for one server."""

    def __init__(self, server: HorizonServer) -> None:
        self._server = server
        self._runs: set[str] = set()  # the starts of queries whose first batch is done

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Nothing is counted yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """One micro-batch is done."""
        progress = event.progress
        run, rows = str(progress.runId), progress.numInputRows
        if rows and run in self._runs:
            self._server.count("rows_read", rows)
            spent = progress.durationMs.get("triggerExecution", 0) / 1000
            self._server.count("seconds_spent", spent)
        if rows:
            self._runs.add(run)
        if self._server.horizon != BEGINNING:
            purged = sum(operator.numRowsRemoved for operator in progress.stateOperators)
            self._server.count("state_rows_purged", purged)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """No batch."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """What it counted stays."""
        self._runs.discard(str(event.runId))


def watch(spark: SparkSession, server: HorizonServer) -> Callable[[], None]:
    """Count for ``server`` from here on; what is returned ends it."""
    listener = Progress(server)
    spark.streams.addListener(listener)

    def end() -> None:
        # Spark may be stopped already.
        with contextlib.suppress(Py4JError, PySparkException, OSError):
            spark.streams.removeListener(listener)

    return end
