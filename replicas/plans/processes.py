"""Which processes run, from messages that one has started or ended.

A process lives from its start to its end; one that has not ended within ``LONGEST_S`` of its start
counts as running for ever, whatever is heard of it later.

- :func:`running` (update) says at once that a process has started, with an infinite end, and
  revises the end when it is heard of. It keeps every process in its state for good: Spark evicts
  groups by event time, and a process has none that is known beforehand;
- :func:`finished` (append) joins starts with ends. It says a process when both have been heard of,
  or when the watermark has passed the time in which an end could come: then with an infinite end,
  by an outer join. A join without it would never speak of those that stay, and the merge would
  take them back. Its stable point is ``LONGEST_S`` behind, and its state bounded.

Infinite lifetimes never end before a horizon, so that no input can be skipped by feedback.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from lmerge.times import INFINITY
from replicas.plans.inputs import BEGIN, SECOND, TIME, Plan, stream, table, write

LONGEST_S: Final = 60
NEVER_ENDS: Final = 5
"""One in so many processes."""
SCHEMA: Final = pa.schema(
    [pa.field("at", TIME), pa.field("process", pa.int64()), pa.field("what", pa.string())]
)
_IN_TIME: Final = f"started + INTERVAL {LONGEST_S} SECONDS"
_OPTIONS: Final[dict[str, Any]] = {
    "vs": "started",
    "ve": "ended",
    "payload": ["process"],
    "options": {"restriction": "R3"},
}


def running(spark: SparkSession) -> Plan:
    """What is known of each process so far."""
    seen = (
        stream(spark, skips=False)
        .groupBy("process")
        .agg(
            expr("min(at) FILTER (WHERE what = 'started') AS started"),
            expr("min(at) FILTER (WHERE what = 'ended') AS ended"),
        )
        # An end that overtook its start waits for it: there is no lifetime without one.
        .where("started IS NOT NULL")
        .selectExpr("process", "started", f"IF(ended <= {_IN_TIME}, ended, NULL) AS ended")
    )
    return seen, {**_OPTIONS, "mode": "update", "key": ["process"]}


def finished(spark: SparkSession) -> Plan:
    """Each process once, when its end is known, or known not to come."""
    messages = stream(spark, skips=False)
    starts = messages.where("what = 'started'").selectExpr("process", "at AS started")
    ends = messages.where("what = 'ended'").selectExpr("process AS of", "at AS ended")
    condition = f"process = of AND ended >= started AND ended <= {_IN_TIME}"
    joined = starts.join(ends, expr(condition), "left_outer").select("process", "started", "ended")
    return joined, {**_OPTIONS, "mode": "append", "keyed": True}


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """Each process with its end, or without."""
    messages = table(spark, directory).selectExpr("process", "what", "unix_micros(at) AS at")
    starts = messages.where("what = 'started'").selectExpr("process", "at AS vs")
    ends = messages.where("what = 'ended'").selectExpr("process", "at AS ended")
    both = starts.join(ends, "process", "left_outer")
    in_time = f"ended <= vs + {LONGEST_S * SECOND}"
    return both.selectExpr("process", "vs", f"IF({in_time}, ended, {INFINITY}L) AS ve")


def generate(directory: str | Path, rows: int, seed: int, disorder_s: float) -> int:
    """Write the input; what starts before the time that is returned is complete once it is read."""
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    messages: list[dict[str, Any]] = []
    process = 0
    while len(messages) < rows:
        started = BEGIN + process * SECOND + pick.randrange(SECOND)
        messages.append({"at": started, "process": process, "what": "started"})
        if process % NEVER_ENDS:
            # Some of them too late to count.
            ended = started + pick.randrange(1, (LONGEST_S + 10) * SECOND)
            messages.append({"at": ended, "process": process, "what": "ended"})
        process += 1
    del messages[rows:]  # an end, if any: one more that never ends
    return write(
        directory,
        SCHEMA,
        sorted(messages, key=lambda message: int(message["at"])),
        lambda at, n: {"at": at, "process": process + n, "what": "started"},
        seed=seed,
        disorder_s=disorder_s,
    )
