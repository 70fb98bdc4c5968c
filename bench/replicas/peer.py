"""One Spark of an experiment: ``python -m bench.replicas.peer ROLE JSON``.

It runs one query to its end, and says what each micro-batch took, as JSON on its last line. Each is
a process of its own, since a JVM's settings hold for its life.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from replicas.attaching import attach
from replicas.session import session

WAIT_S: Final = 600.0
POLL_S: Final = 0.01
BEGIN_MS: Final = 1_700_000_000_000
Said = dict[str, Any]


def plain_session(said: Said) -> SparkSession:
    """Spark as it comes, but for what ``said`` names."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("bench").master("local[1]")
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in {**loopback, **said.get("conf", {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def own_session(said: Said) -> SparkSession:
    """As ``lmerge replica run`` starts it."""
    return session("bench", said.get("master"), said.get("conf"))


def readings(spark: SparkSession, directory: str) -> DataFrame:
    """A file of JSON lines a batch, parsed."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    found = reader.schema("at TIMESTAMP, machine STRING, number BIGINT, value DOUBLE")
    return found.json(directory).withWatermark("at", "10 seconds")


def large(said: Said) -> Said:
    """Batches of many rows, into a merge or into ``noop``."""
    spark = own_session(said)
    rows = readings(spark, said["input"])
    if said["sink"] == "noop":
        started = rows.writeStream.format("noop").trigger(processingTime="0 seconds")
        query = started.option("checkpointLocation", said["checkpoint"]).start()
        return _finished(query, said["batches"])
    replica = attach(
        rows, merge=said["merge"], server=said["server"], stream="r1",
        checkpoint=said["checkpoint"], vs="at", ve="at + INTERVAL 1 SECOND",
        payload=["machine", "number", "value"], path=said.get("path", "auto"),
        keyed=True,
    )  # fmt: skip
    return _finished(replica.query, said["batches"], replica.stop)


def small(said: Said) -> Said:
    """A windowed count over batches of few rows, into a merge."""
    spark = own_session(said) if said["ours"] else plain_session(said)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(2 * said["batches"] + 10))
    rate = spark.readStream.format("rate-micro-batch").option("startTimestamp", BEGIN_MS)
    rows = rate.option("rowsPerBatch", said["rows"]).option("advanceMillisPerBatch", 5000).load()
    counts = (
        rows.withWatermark("timestamp", "5 seconds")
        .groupBy(F.window("timestamp", "10 seconds"), (F.col("value") % 10).alias("k"))
        .count()
    )
    replica = attach(
        counts, merge=said["merge"], server=said["server"], stream="r1",
        checkpoint=said["checkpoint"],
    )  # fmt: skip
    return _finished(replica.query, said["batches"], replica.stop)


def _finished(query: Any, batches: int, stop: Callable[[], None] | None = None) -> Said:
    """The batches that had input, once there are so many of them."""
    give_up = time.monotonic() + WAIT_S
    try:
        while True:
            done = {p["batchId"]: p for p in query.recentProgress if p["numInputRows"]}
            if len(done) >= batches:
                break
            if not query.isActive or time.monotonic() > give_up:
                raise RuntimeError(f"{len(done)} of {batches} batches: {query.exception()}")
            time.sleep(POLL_S)
    finally:
        (stop or query.stop)()
    chosen = [done[number] for number in sorted(done)][:batches]
    return {"batches": [{"rows": p["numInputRows"], "ms": dict(p["durationMs"])} for p in chosen]}


ROLES: Final[dict[str, Callable[[Said], Said]]] = {"large": large, "small": small}


def main() -> None:
    """One role; see the module."""
    found = ROLES[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
