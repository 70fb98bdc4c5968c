"""``lmerge replica run``: one replica as a process of its own.

It starts Spark, runs the user's ``build(spark)``, attaches the result, and reports each batch in a
line of Spark's own progress fields. SIGTERM and SIGINT drain: the batch at hand is finished and
committed, and the stream pauses (its checkpoint resumes it). A query that dies ends the process
with the reason in a line and a status that is not 0.

With a :class:`Membership` it is a member before it attaches, and ends when it is fenced. Whoever
keeps the members may be away for as long as he likes: the data path does not depend on him.

A build may return a DataFrame, or a DataFrame and a dict of :func:`replicas.attach`'s options: what
belongs to the plan (``mode``, ``vs``, ``ve``, ``key``, …) then stands beside it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lmerge.client import Security
from lmerge.errors import DetachedError, FencedError, LMergeError
from replicas.attaching import Replica, attach
from replicas.checkpointing import jumpstart, local
from replicas.horizon_progress import batches_since
from replicas.loading import Build, load_build, query_of, reason
from replicas.session import session

Say = Callable[[str], None]

QUARANTINED: Final = "quarantined"
POLL_S: Final = 0.2
"""How long it may take until a signal, a dead query or a new batch is noticed."""


class Membership(Protocol):
    """Who knows the members. Only ``join`` may block, for a bounded time."""

    @property
    def fenced(self) -> bool:
        """Whether a newer incarnation is there: this one must end."""

    def start(self) -> None:
        """The replica's process is there."""

    def join(self, lineage: str) -> int:
        """The incarnation to attach with; 0 when nobody answers: the server gives one."""

    def attached(self, incarnation: int) -> None:
        """The server has taken the stream."""

    def close(self) -> None:
        """The replica is no member any more."""


@dataclass(frozen=True)
class Job:
    """What to run."""

    build: str  # file.py:function
    merge: str
    server: str
    name: str
    checkpoint: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # attach's
    security: Security | None = None
    as_json: bool = False
    log_level: str = "FATAL"  # of Spark: what ends the query is told in a line of ours
    membership: Membership | None = None
    jumpstart: str | None = None  # a saved checkpoint, which a new replica begins from


def run(job: Job, say: Say) -> int:
    """Run until a signal or the query's end; 0 when it was asked to stop, or had no more to do."""
    build = load_build(job.build)
    if job.jumpstart is not None:
        saved = jumpstart(Path(job.jumpstart), local(job.checkpoint))
        if saved is not None:
            say(f"replica {job.name} begins from checkpoint {saved.name}, batch {saved.batch}")
    if job.membership is None:
        return _run(job, build, say)
    job.membership.start()
    try:
        return _run(job, build, say)
    finally:
        job.membership.close()


def _run(job: Job, build: Build, say: Say) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    spark = session(f"lmerge {job.merge}/{job.name}", job.master, job.conf)
    spark.sparkContext.setLogLevel(job.log_level)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Python's handlers again: the JVM's gateway has put its own in their place.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        replica = start(job, spark, build, say)
        say(f"replica {job.name} attached to {job.merge} at {job.server}")
        try:
            _watch(replica, stopping, say, job)
        finally:
            replica.stop()
        if job.membership is not None and job.membership.fenced:
            raise FencedError(f"replica {job.name} is fenced: a newer incarnation of it is there")
        failed = replica.failure or (None if stopping.is_set() else replica.query.exception())
        if isinstance(failed, FencedError):
            raise failed
        if isinstance(failed, DetachedError) and replica.writer.state != QUARANTINED:
            raise failed
        if failed is not None:
            raise ReplicaError(reason(failed))
        say(f"replica {job.name} paused after epoch {replica.sink.epoch}")
    except (Py4JError, ConnectionError) as error:
        if not stopping.is_set():
            raise ReplicaError(f"Spark's JVM has ended: {reason(error)}") from error
        # The signal was sent to all of them. What was not committed is run again.
        say(f"replica {job.name} paused; Spark had ended before the batch at hand did")
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()
    return 0


class ReplicaError(LMergeError):
    """The query of a replica has died."""


def start(job: Job, spark: SparkSession, build: Build, say: Say) -> Replica:
    """Build and attach."""
    df, plan = query_of(build, job.build, spark)
    membership = job.membership

    def join(lineage: str) -> int:
        incarnation = 0 if membership is None else membership.join(lineage)
        if membership is not None and not incarnation:
            say(f"replica {job.name} attaches without ZooKeeper, which does not answer")
        return incarnation

    replica = attach(
        df,
        merge=job.merge,
        server=job.server,
        stream=job.name,
        checkpoint=job.checkpoint,
        security=job.security,
        incarnation=join,
        **{**plan, **job.options},
    )
    if membership is not None:
        membership.attached(replica.writer.incarnation)
    return replica


def _watch(replica: Replica, stopping: threading.Event, say: Say, job: Job) -> None:
    told = -1
    while not stopping.wait(POLL_S) and replica.query.isActive:
        told = _tell(replica, told, say, as_json=job.as_json)
        if job.membership is not None and job.membership.fenced:
            break
    _tell(replica, told, say, as_json=job.as_json)


def _tell(replica: Replica, told: int, say: Say, *, as_json: bool) -> int:
    """Say what is new of the query's progress; the last batch that has been told of."""
    for progress in batches_since(replica.query, told):
        told = int(progress["batchId"])
        if as_json:
            say(json.dumps(progress))
            continue
        duration = progress["durationMs"].get("triggerExecution", 0)
        watermark = progress.get("eventTime", {}).get("watermark", "-")
        say(
            f"batch {told}: {progress['numInputRows']} rows in {duration} ms, watermark"
            f" {watermark}, {replica.writer.state}"
        )
    return told
