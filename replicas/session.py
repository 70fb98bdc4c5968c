"""A Spark session with the settings that make small micro-batches fast.

What each is for is said beside it; ``more`` (the runner's ``--conf``) wins over all of them. The
figures behind them are those of ``make bench-replicas``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError
from replicas.loading import reason

_JAVA: Final = (
    "-XX:+UseSerialGC "  # a small heap needs no threads to collect it
    "-XX:TieredStopAtLevel=1 "  # starts in half the time; peak throughput is lower
    "-Xss8m"  # stopping a foreachBatch query can overflow a smaller stack under this compiler
)

SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Several files are written for each micro-batch: without a rename and a checksum for each.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # A replica's groups are few: 200 tasks for a shuffle would be the whole batch's time.
    "spark.sql.shuffle.partitions": "1",
    # Payloads and window borders must not depend on where a replica runs.
    "spark.sql.session.timeZone": "UTC",
    # Rows that the horizon has made worthless are dropped between Arrow batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}


def session(
    name: str, master: str | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark. Without ``master``, what spark-submit or the environment says, else local[1]."""
    # Workers run on the Python that runs this, unless the environment says otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = dict(SETTINGS)
    local = master is None or master.startswith("local")
    if local:
        settings["spark.driver.extraJavaOptions"] = _JAVA
        # Workers whose tasks start in a tenth of the time; this package is here for sure.
        settings["spark.python.daemon.module"] = "replicas.worker_daemon"
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    settings.update(more or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    elif "spark.master" not in settings:
        builder = builder.master("local[1]")
    try:
        spark = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        said = master or settings.get("spark.master") or "local[1]"
        raise ConfigurationError(
            f"Spark does not start on {said}: {reason(error)}; its own log says more"
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark
