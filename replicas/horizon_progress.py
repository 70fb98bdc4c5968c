"""What Spark says of each micro-batch, as counters of the horizon: time, rows, state purged.

It looks at the queries of one session when the counters are asked for, as the sink does at every
commit. A listener would be told of each batch: but PySpark takes what it is told apart in hundreds
of calls into the JVM, which cost more than a small micro-batch. Which counters there are is said in
:mod:`replicas.horizon`.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lmerge.times import BEGINNING
from replicas.horizon import HorizonServer

QUERIES_MAX: Final = 16
"""Queries that have ended are forgotten beyond so many."""


def batches_since(query: Any, told: int) -> list[dict[str, Any]]:
    """Spark's progress of the batches behind ``told``, as far as it keeps it; in order."""
    kept = query._jsq.recentProgress()
    found: list[dict[str, Any]] = []
    for place in range(len(kept) - 1, -1, -1):
        said: dict[str, Any] = json.loads(kept[place].json())
        if said["batchId"] <= told:
            break
        found.append(said)
    return found[::-1]


@dataclass
class _Query:
    query: Any
    told: int = -1
    begun: bool = False  # its first batch with rows is done


class Progress:
    """Counts for one server."""

    def __init__(self, spark: SparkSession, server: HorizonServer) -> None:
        self._spark = spark
        self._server = server
        self._queries: dict[str, _Query] = {}  # by the run
        self._lock = threading.Lock()

    def collect(self) -> None:
        """Count what is new."""
        try:
            with self._lock:
                for query in self._spark.streams.active:
                    self._queries.setdefault(str(query.runId), _Query(query))
                for each in self._queries.values():
                    self._count(each)
                while len(self._queries) > QUERIES_MAX:
                    del self._queries[next(iter(self._queries))]
        except (Py4JError, PySparkException, OSError):
            return  # Spark has been stopped: what was counted stays

    def _count(self, known: _Query) -> None:
        for said in batches_since(known.query, known.told):
            known.told = said["batchId"]
            rows = said["numInputRows"]
            if rows and known.begun:
                self._server.count("rows_read", rows)
                spent = said["durationMs"].get("triggerExecution", 0) / 1000
                self._server.count("seconds_spent", spent)
            known.begun |= rows > 0
            if self._server.horizon != BEGINNING:
                purged = sum(each["numRowsRemoved"] for each in said["stateOperators"])
                self._server.count("state_rows_purged", purged)
