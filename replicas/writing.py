"""``df.writeStream.format("lmerge")``: a query's results as one stream of a merge.

For append and complete mode; Spark gives no Python sink the update mode, which
:func:`replicas.attach` has. What callers may rely on:

1. A batch is an epoch, and counts once: tasks stage their parts, each under a name of its own, and
   the commit names those of the attempts that Spark took. A batch that is run again after a crash
   has the same number, and changes nothing when the server has it.
2. The lineage is the query's id, which Spark keeps in the checkpoint: a restart from it goes on
   where it was, and a new checkpoint is a new lineage, however it is called.
3. ``stable`` is never ahead of what the query knows. It is ``watermark`` (the default where ``vs``
   is a timestamp or date): that of the batch, as the checkpoint's own log has it; or a column,
   whose largest value promises that no further row starts before it; or ``none``.
4. A row that starts before what the stream has promised is late: it is left out and counted.

``vs`` and ``ve`` are columns: a sink sees rows, not expressions. A null ``ve``, or none, is
infinity. With ``slide`` instead (``"5 minutes"``) a column ``window`` gives the lifetime
``[window.end, window.end + slide)``. ``payload`` names the other columns that count (all, if not
said).

Complete mode sends the difference to the result before, which is kept beside the checkpoint;
``key`` names the columns by which a row replaces another (by default the whole payload). Its rows
go through the driver.

What is not here: a server that is restarted between a task's staging and the commit has forgotten
the staged part. The commit is refused, the query fails, and its next start runs the batch again.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import types as sql
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from lmerge.client import Share, SyncWriter, Welcome, stage_sync
from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError, DetachedError, FencedError
from lmerge.times import BEGINNING, INFINITY
from replicas.events import Events, events_of
from replicas.lifetimes import STABLE, VE, VS
from replicas.options import Options
from replicas.results import Results
from replicas.revisions import Revisions
from replicas.times import duration_us
from replicas.types import payload_schema

TAKEOVERS_MAX: Final = 20
"""How often a task says hello again when others of its epoch have said it at the same moment."""

_KNOWN: Final = (
    "stream", "vs", "ve", "slide", "payload", "stable", "key", "from_time", "restriction",
)  # fmt: skip
_WINDOW: Final = "window"
_TIMES: Final = (sql.TimestampType, sql.TimestampNTZType, sql.DateType)
T = TypeVar("T")


class Settings:
    """The options of a sink, checked against the rows' schema."""

    def __init__(self, given: Mapping[str, str], schema: sql.StructType, complete: bool) -> None:
        self.options = options = Options(given, _KNOWN)
        self.stream = options.needed("stream")
        self.complete = complete
        self.vs, self.ve, slide = options.get("vs"), options.get("ve"), options.get("slide")
        self.slide_us: int | None = None
        if self.vs is None:
            if slide is None or _WINDOW not in schema.names or self.ve is not None:
                raise ConfigurationError(
                    "no lifetime: name the columns of an event's start and end with vs and ve, or"
                    " say with slide how far apart the windows of the column 'window' begin"
                )
            self.slide_us = duration_us(slide)
        self.in_micros = self.vs is None or isinstance(_kind(schema, "vs", self.vs), _TIMES)
        if self.ve is not None:
            self._same_unit(schema, "ve", self.ve)
        promise = options.get("stable") or ("watermark" if self.in_micros else "none")
        self.watermark = promise == "watermark"
        self.stable = None if promise in ("watermark", "none") else promise
        if self.stable is not None:
            self._same_unit(schema, "stable", self.stable)
        if self.watermark and not self.in_micros:
            raise ConfigurationError(
                "vs is a number and a watermark a time: name a column as stable"
            )
        if (self.watermark or complete) and options.checkpoint is None:
            raise ConfigurationError(
                "the checkpoint must be named by the option checkpointLocation of the stream:"
                " complete mode and stable=watermark need it; stable=none promises nothing"
            )
        apart = (self.vs, self.ve, self.stable)
        names = options.names("payload") or [n for n in schema.names if n not in apart]
        for name in (*names, *(options.names("key") or ())):
            _kind(schema, "payload", name)
        fields = sql.StructType([schema[name] for name in names])
        self.payload = payload_schema(fields)
        self.keys = tuple(options.names("key") or names)
        self.restriction = options.get("restriction")
        if self.restriction not in (None, *(each.value for each in Restriction)):
            raise ConfigurationError(f"restriction is R0 to R4, not {self.restriction!r}")
        since = options.get("from_time")
        if since is not None and not since.lstrip("-").isdecimal():
            raise ConfigurationError(f"from_time is a whole number, not {since!r}")
        self.from_time = None if since is None else int(since)

    def _same_unit(self, schema: sql.StructType, what: str, name: str) -> None:
        if isinstance(_kind(schema, what, name), _TIMES) != self.in_micros:
            raise ConfigurationError(
                f"{what} ({name}) and vs are in different units: one is a timestamp or date, which"
                " counts in microseconds, and the other a number"
            )

    def writer(self, holder: Holder, lineage: str) -> SyncWriter:
        """A session of the stream, not attached yet."""
        options = self.options
        chosen = None if self.restriction is None else Restriction(self.restriction)
        return SyncWriter(
            options.server, options.merge, self.stream, self.payload,
            lineage=lineage, incarnation=holder.incarnation, instance=holder.instance,
            from_time=self.from_time, security=options.security(), retry=options.retry(),
            properties=None if chosen is None else chosen.requires,
            options=None if chosen is None else {"restriction": chosen.value},
        )  # fmt: skip

    def events(self, rows: pa.RecordBatch) -> Events:
        """What came out of Spark, checked."""
        if self.vs is None:
            vs = _micros(pc.struct_field(rows.column(_WINDOW), "end"))
            ve = pc.add(vs, self.slide_us)
        else:
            vs = _micros(rows.column(self.vs))
            ve = pa.nulls(len(vs), pa.int64()) if self.ve is None else _micros(rows.column(self.ve))
        timed = {name: rows.column(name) for name in self.payload.names}
        timed |= {VS: vs, VE: pc.fill_null(ve, INFINITY)}
        if self.stable is not None:
            timed[STABLE] = _micros(rows.column(self.stable))
        return events_of(pa.table(timed), self.payload)


def _kind(schema: sql.StructType, what: str, name: str) -> sql.DataType:
    if name not in schema.names:
        raise ConfigurationError(
            f"{what} names the column {name!r}, and the result has {schema.names}; an expression"
            " can be made a column with selectExpr"
        )
    kind = schema[name].dataType
    if what != "payload" and not isinstance(kind, (*_TIMES, sql.IntegralType)):
        raise ConfigurationError(
            f"{what} ({name}) is {kind.simpleString()}: a time is a timestamp, a date or a number"
        )
    return kind


def _micros(column: pa.Array) -> pa.Array:
    """A time as Spark hands it over, as int64."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz))
    return column.cast(pa.int64())


@dataclass(frozen=True)
class Holder:
    """Who holds the stream for one batch: all its tasks, and its commit.

    Tasks cannot ask for a number and tell each other, so the planner takes one from the clock. A
    later batch, of this driver or the next, has a larger one, and what the former left staged is
    dropped.
    """

    incarnation: int
    instance: str

    @staticmethod
    def new() -> Holder:
        """For a batch that is planned now."""
        return Holder(time.time_ns() // 1000, uuid.uuid4().hex)


@dataclass
class Written(WriterCommitMessage):
    """What a task has done."""

    holder: Holder
    lineage: str
    part: tuple[int, int] | None  # None: nothing is staged
    rows: int
    late: int
    stable: int
    result: bytes | None = None  # complete mode: the rows themselves


class MergeWriter(DataSourceStreamArrowWriter):
    """``write`` runs in the executors, ``commit`` and ``abort`` beside the driver."""

    def __init__(self, given: Mapping[str, str], schema: sql.StructType, overwrite: bool) -> None:
        self._settings = Settings(given, schema, overwrite)
        self._holder = Holder.new()  # once a batch: every batch is planned anew

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's work."""
        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("the sink runs in the tasks of a streaming query")
        lineage = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        if not lineage or not number:
            raise ConfigurationError("Spark has not told the task which batch of which query it is")
        settings, epoch = self._settings, int(number)
        said = Written(self._holder, lineage, None, 0, 0, BEGINNING)
        if settings.complete:
            tables = []
            for batch in iterator:
                events = settings.events(batch)
                said.stable = max(said.stable, events.stable)
                timed = events.payload.append_column("vs", pa.array(events.vs))
                tables.append(timed.append_column("ve", pa.array(events.ve)))
            said.result = _bytes(pa.concat_tables(tables)) if tables else None
            return said
        welcome = self._hello(lineage)
        if welcome.next_epoch is not None and epoch < welcome.next_epoch:
            return said  # the server has it

        def elements() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                events = settings.events(batch)
                timely = events.where(events.vs >= welcome.stable)
                said.late += len(events.vs) - len(timely.vs)
                said.stable = max(said.stable, events.stable)
                yield from timely.inserts()

        options = settings.options
        # A name that no other attempt has, not even of another driver with the same checkpoint.
        part = (context.partitionId(), uuid.uuid4().int >> 65)
        share = Share(options.merge, settings.stream, self._holder.incarnation, epoch, *part)
        security = options.security()
        staged = stage_sync(options.server, share, settings.payload, elements(), security=security)
        said.part, said.rows = part, staged.rows
        return said

    def _hello(self, lineage: str) -> Welcome:
        """Be the holder, so that shares are taken; where the stream is."""

        def hello(writer: SyncWriter) -> Welcome:
            return writer.attach()

        return self._as_holder(self._holder, lineage, hello)

    def _as_holder(self, holder: Holder, lineage: str, work: Callable[[SyncWriter], T]) -> T:
        """Do something in a session, again when a task of the same epoch took it over."""
        for attempt in range(TAKEOVERS_MAX):
            writer = self._settings.writer(holder, lineage)
            try:
                return work(writer)
            except FencedError:
                if attempt == TAKEOVERS_MAX - 1:
                    raise
            finally:
                writer.close(drain=False)
        raise FencedError("unreachable")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The epoch counts."""
        found = [each for each in messages if isinstance(each, Written)]
        if not found:
            raise ConfigurationError(f"no task has written anything of batch {batchId}")

        def commit(writer: SyncWriter) -> None:
            self._commit(writer, found, batchId)

        self._as_holder(found[0].holder, found[0].lineage, commit)

    def _commit(self, writer: SyncWriter, found: list[Written], epoch: int) -> None:
        settings, welcome = self._settings, writer.attach()
        if welcome.next_epoch is not None and epoch < welcome.next_epoch:
            return
        stable = max(each.stable for each in found)
        results = None
        if settings.options.checkpoint is not None and (settings.watermark or settings.complete):
            results = Results(settings.options.checkpoint)
            if settings.watermark:
                stable = max(stable, results.watermark(epoch))
        late, rows = sum(each.late for each in found), sum(each.rows for each in found)
        if settings.complete and results is not None:
            revisions = Revisions(settings.payload, settings.keys, complete=True)
            batches, late = results.difference(
                revisions, epoch, [e.result for e in found if e.result], welcome.stable
            )
            for batch in batches:
                rows += batch.num_rows
                writer.write(batch, epoch=epoch)
        parts = [each.part for each in found if each.part is not None]
        said = writer.commit(
            epoch,
            stable if stable > welcome.stable else None,
            counters={"rows": float(rows), "late": float(late)},
            parts=parts,
            part_rows=rows if parts else None,
        )
        if said.state == "quarantined":
            raise DetachedError(f"stream {settings.stream!r} is quarantined: {said.reason}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was staged is dropped: a new holder has nothing to do with it."""
        found = [each for each in messages if isinstance(each, Written)]
        if found and not self._settings.complete:
            self._as_holder(Holder.new(), found[0].lineage, lambda writer: writer.attach())


def _bytes(table: pa.Table) -> bytes:
    sink: Any = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
