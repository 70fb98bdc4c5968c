"""``replicas.attach``: a streaming DataFrame becomes a replica of a merge.

What is not said is derived from the plan (:mod:`replicas.analysis`): the lifetime of a windowed
result, the key of a revised one, the restriction. What is said wins, and is verified while the
query runs: a stream that breaks what it declared is quarantined by the server, and the query
stops with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lmerge.client import Retry, Security, SyncMirroredWriter, SyncWriter
from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError
from lmerge.times import BEGINNING, INFINITY
from lmerge.wire.rows import schema_bytes
from replicas.analysis import Analysis, analyse
from replicas.beginning import beginning, committed
from replicas.epochs import Memory
from replicas.fingerprint import FILE, Fingerprint, check, fingerprint
from replicas.horizon import CONF, HorizonServer, serve
from replicas.lifetimes import Lifetimes, lifetimes
from replicas.revisions import Revisions
from replicas.sink import Sink, Watermarks
from replicas.storage import Storage
from replicas.tasks import Tasks
from replicas.types import payload_schema

WATERMARK: Final = "watermark"
DRAIN_SECONDS: Final = 60.0
"""How long stopping may wait for the batch at hand, which otherwise is run again."""
Mode = Literal["append", "update", "complete"]
Path = Literal["auto", "driver", "tasks"]


class Replica:
    """A started query that is a replica; whatever it has not itself it has from the query."""

    def __init__(
        self, query: StreamingQuery, writer: SyncWriter, sink: Sink, analysis: Analysis
    ) -> None:
        self.query = query
        self.writer = writer
        self.sink = sink
        self.analysis = analysis

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    @property
    def horizon(self) -> int | None:
        """What ends before it is not needed from this replica any more."""
        return self.writer.writer.horizon

    @property
    def failure(self) -> Exception | None:
        """Why the query has stopped, without Spark's trace around it; None while all is well."""
        return self.sink.failure

    def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Stop the query after the batch at hand; the stream pauses, and can be resumed."""
        try:
            self.sink.drain(drain_seconds)
            self.query.stop()
        finally:
            self.writer.close(drain=False)

    def detach(self, reason: str = "") -> None:
        """Stop, and leave the merge for good."""
        self.sink.drain(DRAIN_SECONDS)
        self.query.stop()
        self.writer.detach(reason)
        self.writer.close()


def attach(
    df: DataFrame,
    *,
    merge: str,
    server: str | Sequence[str],
    stream: str,
    checkpoint: str,
    mode: Mode = "append",
    vs: str | None = None,
    ve: str | None = None,
    payload: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    stable: str | None = WATERMARK,
    restriction: Restriction | str | None = None,
    path: Path = "auto",
    from_time: int | None = None,
    incarnation: int | Callable[[str], int] = 0,
    trust_checkpoint: bool = False,
    trigger: Mapping[str, Any] | None = None,
    security: Security | None = None,
    retry: Retry | None = None,
    options: Mapping[str, Any] | None = None,
    **declared: bool,
) -> Replica:
    """Start ``df`` as the stream ``stream`` of ``merge``; returns when the server has taken it.

    - ``server``: its address; of several (also with commas between them) each gets the stream, and
      merges it, and none of them is needed.
    - ``mode``: the output mode. Update and complete revise: they need ``key``, by default the
      columns that the plan groups by.
    - ``vs``, ``ve``, ``payload``: see :mod:`replicas.lifetimes`.
    - ``stable``: ``"watermark"``, or a column or SQL expression over a result's row that promises
      that no further row starts before it; None promises nothing.
    - ``restriction``: overrides what the plan's analysis found, which ``declared`` (for example
      ``ordered_input=True``) informs of what a plan cannot show.
    - ``path``: rows go from the driver, or straight from the tasks (append mode, results that need
      no order); ``auto`` takes the tasks when there are several executors.
    - ``incarnation``: fences off older holders of the stream; 0: the server gives one. A function
      is told the lineage, and called when everything else is ready.
    - ``from_time``: nothing is promised, or sent, of what ends before. From when on a checkpoint
      is right that begins another stream is found by itself (:mod:`replicas.beginning`).
    - ``trust_checkpoint``: take it even if its fingerprint is another plan's.
    - ``trigger``: as ``DataStreamWriter.trigger`` takes it. ``options``: for a new merge.
    """
    if not df.isStreaming:
        raise ConfigurationError("a replica runs a streaming DataFrame; this one is a batch's")
    if mode not in ("append", "update", "complete"):
        raise ConfigurationError(f"mode is append, update or complete, not {mode!r}")
    spark = df.sparkSession
    analysis = analyse(df, mode, vs=vs, ve=ve, payload=payload, key=key, **declared)
    chosen = Restriction(restriction) if restriction is not None else analysis.restriction
    times = lifetimes(df, vs, ve, None if payload is None else list(payload), analysis.window)
    schema = payload_schema(times.schema)
    storage = Storage(spark, checkpoint)
    keys = () if mode == "append" else _keys(key, analysis, times)
    revisions = None if mode == "append" else Revisions(schema, keys, complete=mode == "complete")
    memory = Memory(storage, revisions)
    done = committed(storage)
    plan = fingerprint(df, mode, times, keys)
    _belongs(checkpoint, storage, memory, plan, done, trust=trust_checkpoint)
    # A source or step that skips has made the session's horizon before the plan was complete.
    horizon = serve(spark) if spark.conf.get(CONF, None) else None
    lineage = memory.lineage()
    watermarks = _watermarks(storage, times, analysis) if stable == WATERMARK else None
    begins, promised = None, from_time
    if done is not None:
        reached = watermarks.of(done) if watermarks is not None else None
        begins = beginning(done, reached, memory, revisions)
        from_time = begins.from_time(from_time)
    servers = server.split(",") if isinstance(server, str) else list(server)
    writer = _writer(
        servers,
        _vouching(memory, revisions, horizon),
        merge,
        stream,
        schema,
        lineage=lineage,
        incarnation=incarnation(lineage) if callable(incarnation) else incarnation,
        from_time=from_time,
        properties=chosen.requires,
        options={"restriction": chosen.value, **(options or {})},
        security=security,
        retry=retry,
        on_feedback=None if horizon is None else horizon.advance,
    )
    sink = Sink(
        writer, times, schema, memory, revisions, watermarks,
        promise=None if stable in (None, WATERMARK) else times.time_of(df, str(stable)),
        horizon=None if horizon is None else lambda: horizon.horizon,
        in_order=chosen.requires.ordered,
        tasks=_tasks(df, path, mode, chosen, horizon, len(servers), Tasks(
            servers[0], merge, stream, schema_bytes(schema), security or Security()
        )),
        from_time=promised,
    )  # fmt: skip
    try:
        welcome = writer.attach()
        # Of several servers some may have the stream, and some not: to tell twice is no harm.
        mirrored = len(servers) > 1 and from_time is not None
        if begins is not None and (welcome.next_epoch is None or mirrored):
            begins.tell(writer, from_time)
        if horizon is not None:
            sink.counters.more = horizon.counters
            if welcome.horizon is not None:
                horizon.advance(welcome.horizon)
        started = sink.selected(df).writeStream.outputMode(mode).queryName(f"{merge}-{stream}")
        started = started.option("checkpointLocation", checkpoint).trigger(
            **(trigger or {"processingTime": "0 seconds"})
        )
        query = started.foreachBatch(sink.run).start()
    except BaseException:
        writer.close(drain=False)
        raise
    return Replica(query, writer, sink, analysis)


def _writer(
    servers: Sequence[str], vouch: Callable[[], int | None], *where: Any, **options: Any
) -> SyncWriter:
    """For one server, or for several at once."""
    if len(servers) == 1:
        return SyncWriter(servers[0], *where, **options)
    return SyncMirroredWriter(servers, *where, vouch=vouch, **options)


def _vouching(
    memory: Memory, revisions: Revisions | None, horizon: HorizonServer | None
) -> Callable[[], int | None]:
    """From when on everything is right that is said from now on, for a server that has missed
    some; None when what was said before may still be revised."""

    def since() -> int | None:
        end = None if revisions is not None else memory.end()
        if end is None or end == INFINITY:
            return None
        return max(end + 1, BEGINNING if horizon is None else horizon.horizon)

    return since


def plan_of(
    df: DataFrame,
    *,
    mode: Mode = "append",
    vs: str | None = None,
    ve: str | None = None,
    payload: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    **_: Any,
) -> Fingerprint:
    """The fingerprint that :func:`attach` gives a query; takes all of its options."""
    analysis = analyse(df, mode, vs=vs, ve=ve, payload=payload, key=key)
    times = lifetimes(df, vs, ve, None if payload is None else list(payload), analysis.window)
    return fingerprint(df, mode, times, () if mode == "append" else _keys(key, analysis, times))


def _belongs(
    checkpoint: str, storage: Storage, memory: Memory, plan: Fingerprint, done: int | None,
    *, trust: bool,
) -> None:  # fmt: skip
    """The checkpoint is this plan's, from now on if no batch was ever committed to it."""
    known = storage.read(FILE)
    if done is None:
        # What another plan has tried there does not count, but the server may have heard of it.
        if known is not None and known != plan.encoded():
            memory.begin_anew()
        memory.said(BEGINNING)  # from the first epoch on the latest end is kept
    elif not trust:
        check(known, plan, checkpoint)
    if known is None or trust or done is None:
        storage.write(FILE, plan.encoded())


def _keys(key: Sequence[str] | None, analysis: Analysis, times: Lifetimes) -> tuple[str, ...]:
    keys = tuple(key) if key is not None else analysis.keys
    if not keys:
        raise ConfigurationError(
            "results that are revised need a key: the plan shows no grouping columns; name the"
            " columns that identify a row with key=[…]"
        )
    missing = [name for name in keys if name not in times.payload]
    if missing:
        raise ConfigurationError(
            f"key columns {missing} are not in the payload {list(times.payload)}"
        )
    return keys


def _watermarks(storage: Storage, times: Lifetimes, analysis: Analysis) -> Watermarks | None:
    """What this stream's stable point comes from; an error when it should come and cannot."""
    if times.in_micros:
        return Watermarks(storage, analysis.behind_us or 0)
    if analysis.watermark is not None:
        raise ConfigurationError(
            "vs is a number and the query's watermark a time: say with stable=… what promises"
            " that no earlier row comes, or stable=None"
        )
    return None


def _tasks(
    df: DataFrame,
    path: Path,
    mode: Mode,
    restriction: Restriction,
    horizon: HorizonServer | None,
    servers: int,
    tasks: Tasks,
) -> Callable[[], Tasks | None]:
    """Whether tasks write themselves, asked for each batch: executors come and go."""
    reasons = {
        f"{mode} mode needs the results before": mode != "append",
        f"{restriction.value} needs one order": restriction.requires.ordered,
        "what is partly skipped must be held back": horizon is not None,
        "each of several servers needs all of it": servers > 1,
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if path == "tasks" and against:
        raise ConfigurationError(f"path='tasks' is not possible: {against[0]}")
    if path not in ("auto", "driver", "tasks"):
        raise ConfigurationError(f"path is auto, driver or tasks, not {path!r}")
    if path == "tasks":
        return lambda: tasks
    if path == "driver" or against:
        return lambda: None
    context: Any = df.sparkSession.sparkContext
    if context.master.startswith("local") and not context.master.startswith("local-cluster"):
        return lambda: None
    running = context._jsc.sc()
    # The driver is among them.
    return lambda: tasks if running.getExecutorMemoryStatus().size() - 1 > 1 else None
