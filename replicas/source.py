"""``spark.readStream.format("lmerge")``: a merge's output as a stream of rows.

Callers may rely on this:

1. Every row comes exactly once from a checkpoint: an offset is a position in the output, which
   never changes once it was seen, so a batch that is replayed has the same rows, in the same
   order, also after the server was restarted. A position that is not kept any more, or a merge
   that was begun anew, stops the query with the reason.
2. Rows of one batch are in the output's order. ``consistent`` and ``final`` results are never cut
   inside a group: a batch has the whole output of an epoch, or nothing of it.
3. ``max_rows_per_batch`` bounds a batch, but for a single group (or, eager, a single entry of the
   output) that has more rows: that is a batch of its own.

``delivery`` is ``final`` by default: only what will never be revised, with the columns ``vs``,
``ve`` and the payload's. ``eager`` and ``consistent`` also give revisions: ``op`` is ``insert`` or
``adjust``, which moves the end of the event (payload, ``vs``, ``vold``) to ``ve`` and removes it
when ``ve = vs``; of an insert ``vold`` is null. ``times`` is ``number`` (BIGINT, an infinite end is
the largest) or ``timestamp`` (microseconds as TIMESTAMP, an infinite end is null).

A watermark: final results come group by group in the order of their ends. With
``times=timestamp``, ``withWatermark("ve", "0 seconds")`` therefore drops nothing. Of ``vs`` no
order is promised: there the delay must be the longest lifetime.

``start`` is ``beginning`` (the default), ``now`` or a position. From ``now`` or a position on,
eager and consistent rows are the changes alone, and may revise events that were inserted before.
With ``seed=FILE`` (:mod:`replicas.seeding`) the first batch is what was live when the file was
saved, as inserts in the order of their starts, and the second begins at that very position. The
file must stay as long as that batch can be run again, and executors must reach it. Final results
need no seed: what is live becomes final behind the position.

What it costs: the planner reads the output once more than the tasks do, to count rows and to learn
what is final; without a limit, eager and consistent results are planned without reading them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lmerge.client import Elements, Gap, Item, Position, Reader, Snapshot, SyncReader
from lmerge.client.connection import ANSWER_S, Backoff, failure_of, may_retry, open_channel
from lmerge.client.reader import Delivery
from lmerge.client.sync import LoopThread
from lmerge.elements import Op
from lmerge.errors import ConfigurationError, RetiredError, UnavailableError
from lmerge.times import INFINITY
from lmerge.v1 import consumer_pb2, consumer_pb2_grpc
from lmerge.wire.rows import schema_of
from replicas.options import Options
from replicas.seeding import events, position_of
from replicas.types import RESERVED, as_spark, payload_schema, spark_schema

SETTLE_S: Final = 0.2
"""How long final results may take to follow the output: what makes nothing final says nothing."""

_KNOWN: Final = ("delivery", "start", "seed", "times", "max_rows_per_batch", "gaps")
_MICROS: Final = pa.timestamp("us", tz="UTC")

Offset = dict[str, Any]


@dataclass(frozen=True)
class Inspected:
    """Where a merge is."""

    elements: pa.Schema
    first: Position
    next: Position


class Settings:
    """The options of a source, read and checked."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.options = Options(given, _KNOWN)
        self.delivery = cast(
            Delivery, self.options.one_of("delivery", ("final", "eager", "consistent"))
        )
        self.timestamps = self.options.one_of("times", ("number", "timestamp")) == "timestamp"
        self.skip_gaps = self.options.one_of("gaps", ("fail", "skip")) == "skip"
        self.rows_per_batch = self.options.whole("max_rows_per_batch")
        self.seed = self.options.get("seed")
        if self.seed is not None and (self.options.get("start") or self.delivery == "final"):
            raise ConfigurationError(
                "a seed says itself where to start, and is for eager and consistent delivery"
            )
        start = self.options.get("start") or "beginning"
        self.start: str | Position = (
            start.lower() if start.lower() in ("beginning", "now") else Position.parse(start)
        )

    def inspect(self) -> Inspected:
        """Ask the server; tried again while it is away."""
        thread = LoopThread("lmerge-inspect")
        try:
            return thread.do(self._inspect())
        finally:
            thread.stop()

    async def _inspect(self) -> Inspected:
        options, security = self.options, self.options.security()
        backoff = Backoff(options.retry())
        while True:
            channel = open_channel(options.server, security)
            try:
                stub = consumer_pb2_grpc.ConsumerServiceStub(channel)
                said = await stub.Inspect(
                    consumer_pb2.InspectRequest(merge=options.merge),
                    metadata=security.metadata(), timeout=ANSWER_S,
                )  # fmt: skip
                return Inspected(
                    schema_of(said.schema), _position(said.first), _position(said.next)
                )
            except Exception as caught:
                error = failure_of(caught)
                if error is None or not may_retry(error):
                    raise error or caught from None
                await backoff.pause(error)
            finally:
                await channel.close(None)

    def reader(self, start: Position) -> Reader:
        """A reader for an event loop that is running."""
        options = self.options
        return Reader(
            options.server, options.merge, start=start, delivery=self.delivery,
            security=options.security(), retry=options.retry(),
        )  # fmt: skip

    # -- columns --------------------------------------------------------------------------------

    def columns(self, elements: pa.Schema) -> sql.StructType:
        """What Spark shows for elements of this schema."""
        time = sql.TimestampType() if self.timestamps else sql.LongType()
        head = [sql.StructField("vs", time), sql.StructField("ve", time)]
        if self.delivery != "final":
            head = [sql.StructField("op", sql.StringType()), *head, sql.StructField("vold", time)]
        return sql.StructType([*head, *spark_schema(_payload(elements)).fields])

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Elements with the columns of :meth:`columns`."""
        payload = payload_schema(spark_schema(_payload(batch.schema)))
        names, columns = ["vs", "ve"], [self._time(batch["vs"]), self._time(batch["ve"])]
        if self.delivery != "final":
            inserted = pc.equal(batch["op"], int(Op.INSERT))
            word = pc.if_else(inserted, "insert", "adjust")
            old = pc.if_else(inserted, pa.scalar(None, pa.int64()), batch["vold"])
            names, columns = ["op", *names, "vold"], [word, *columns, self._time(old)]
        rest = as_spark(batch.select(payload.names), payload)
        return pa.RecordBatch.from_arrays([*columns, *rest.columns], names=[*names, *payload.names])

    def _time(self, column: pa.Array) -> pa.Array:
        if not self.timestamps:
            return column
        endless = pc.equal(column, INFINITY)
        return pc.if_else(endless, pa.scalar(None, pa.int64()), column).cast(_MICROS)


def _position(said: Any) -> Position:
    return Position(said.generation, said.sequence)


def _payload(elements: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in elements if field.name not in RESERVED])


class Part(InputPartition):
    """The output from one position to another; as text, for executors of another version.

    With a seed it is the seed's events, and both are the position behind it.
    """

    def __init__(self, start: str, end: str, *, seeded: bool = False) -> None:
        self.start = start
        self.end = end
        self.seeded = seeded


class _Scan:
    """Reads ahead in the planner: which positions a batch may end at, and the rows before each."""

    def __init__(self, settings: Settings, start: Position) -> None:
        self._settings = settings
        self._thread = LoopThread("lmerge-planner")
        self._reader: Reader | None = None
        self.marks: deque[tuple[Position, int]] = deque()
        self.start = start  # of what is in the marks
        self.end = start
        self._rows = 0  # since the last mark
        self._settled: Position | None = None  # nothing more came of what there was up to here

    def close(self) -> None:
        """End reading."""
        try:
            if self._reader is not None:
                self._thread.do(self._reader.close())
        finally:
            self._thread.stop()

    def drop_to(self, start: Position) -> None:
        """A batch begins at a mark: what lies before it is not needed any more."""
        while self.marks and self.marks[0][0].sequence <= start.sequence:
            self.marks.popleft()
        self.start = start

    @property
    def rows(self) -> int:
        """How many the marks hold."""
        return sum(rows for _, rows in self.marks)

    def read(self, upto: Position, most: float) -> None:
        """Read until ``upto``, or until there are more than ``most`` rows."""
        final = self._settings.delivery == "final"
        rows = self.rows
        while rows <= most and self.end.sequence < upto.sequence and self._settled != upto:
            item = self._thread.do(self._next(SETTLE_S if final else ANSWER_S))
            if item is None:
                if not final:
                    raise UnavailableError(f"the server has not sent its output up to {upto}")
                self._settled = upto
                return
            if isinstance(item, Elements | Snapshot):
                self._rows += item.batch.num_rows
            position = self._reader.position if self._reader is not None else None
            if position is not None and position.sequence > self.end.sequence:
                self.marks.append((position, self._rows))
                rows += self._rows
                self.end, self._rows = position, 0

    async def _next(self, seconds: float) -> Item | None:
        """The next item; None when none comes in time. Nothing is lost by not waiting longer."""
        if self._reader is None:
            self._reader = self._settings.reader(self.end)
        reader = self._reader
        await reader.open()
        try:
            return await asyncio.wait_for(anext(reader), seconds)
        except TimeoutError:
            return None


class MergeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are ``{"position": "GENERATION@NUMBER"}``; ``read`` runs in the executors.

    Before the seed was read they have ``"seed": true``, and the position behind it.
    """

    def __init__(self, given: Mapping[str, str], schema: sql.StructType) -> None:
        self._settings = Settings(given)
        self._schema = schema
        self._scan: _Scan | None = None
        self._last: Position | None = None  # of a query that stops at what is there now

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scan": None}  # connections stay in the planner

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Where ``start`` says."""
        start = self._settings.start
        if self._settings.seed is not None:
            return self._seeded(self._settings.seed)
        if isinstance(start, Position):
            return _offset(start)
        found = self._inspect()
        if start == "now":
            return _offset(found.next)
        if found.first.sequence:
            raise RetiredError(
                f"the beginning of merge {self._settings.options.merge!r} is not kept any more:"
                f" start at now, or at a position from {found.first} on"
            )
        return _offset(found.first)

    def _seeded(self, seed: str) -> Offset:
        found, position = self._inspect(), position_of(seed)
        if (
            position.generation != found.next.generation
            or not found.first.sequence <= position.sequence <= found.next.sequence
        ):
            raise RetiredError(
                f"seed {seed} goes on at {position}, and merge {self._settings.options.merge!r} is"
                f" kept from {found.first} to {found.next}: save a new seed"
            )
        return {**_offset(position), "seed": True}

    def _inspect(self) -> Inspected:
        found = self._settings.inspect()
        columns = self._settings.columns(found.elements)
        if columns.simpleString() != self._schema.simpleString():
            raise ConfigurationError(
                f"merge {self._settings.options.merge!r} has the columns"
                f" {columns.simpleString()}, not {self._schema.simpleString()}"
            )
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """What ``max_rows_per_batch`` says."""
        most = self._settings.rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """What is output from here on is for another run."""
        self._last = self._inspect().next

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """As far as ``limit`` allows, but at least one group if there is one."""
        begin = Position.parse(start["position"])
        if start.get("seed"):
            return _offset(begin)  # the seed is a batch of its own
        upto = self._last or self._inspect().next
        if begin.generation != upto.generation:
            raise RetiredError(
                f"merge {self._settings.options.merge!r} was begun anew: the query is at {begin},"
                f" and the output is at {upto}; start with a new checkpoint"
            )
        most = float(limit.max_rows) if isinstance(limit, ReadMaxRows) else float("inf")
        if most == float("inf") and self._settings.delivery != "final":
            return _offset(max(begin, upto))
        return _offset(self._take(begin, upto, most))

    def _take(self, begin: Position, upto: Position, most: float) -> Position:
        if self._scan is None or not self._scan.start.sequence <= begin.sequence <= (
            self._scan.end.sequence
        ):
            self._close()
            self._scan = _Scan(self._settings, begin)
        scan = self._scan
        scan.drop_to(begin)
        scan.read(upto, most)
        end, rows = begin, 0
        for position, more in scan.marks:
            if position.sequence > upto.sequence or (rows and rows + more > most):
                break
            end, rows = position, rows + more  # with what has no rows behind them: stables
        return end

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 (Spark's name)
        """The end of the output, for the query's progress."""
        return _offset(self._inspect().next)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One: rows are in the output's order."""
        if start == end:
            return []
        return [Part(start["position"], end["position"], seeded=bool(start.get("seed")))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows between two positions."""
        assert isinstance(partition, Part)  # noqa: S101 (Spark gives back what it was given)
        settings, options = self._settings, self._settings.options
        if partition.seeded:
            yield from self._seed_rows(partition.end)
            return
        end = Position.parse(partition.end)
        with SyncReader(
            options.server, options.merge, start=Position.parse(partition.start),
            delivery=settings.delivery, security=options.security(), retry=options.retry(),
        ) as reader:  # fmt: skip
            for item in reader:
                if isinstance(item, Gap) and not settings.skip_gaps:
                    raise RetiredError(
                        f"nothing is known of what ended from {item.start} to {item.end}: an"
                        " operator has allowed that; gaps=skip reads over it"
                    )
                if isinstance(item, Elements) and item.batch.num_rows:
                    yield settings.rows(item.batch)
                if reader.position is not None and reader.position.sequence >= end.sequence:
                    return

    def _seed_rows(self, position: str) -> Iterator[pa.RecordBatch]:
        seed = self._settings.seed
        if seed is None or str(position_of(seed)) != position:
            raise ConfigurationError(
                f"the query began with another seed, which goes on at {position}, and the batch"
                " that reads it has to be run again: give it that seed"
            )
        for batch in events(seed):
            yield self._settings.rows(batch)

    def commit(self, end: Offset) -> None:
        """Nothing is held for a batch once it is done: positions are kept by the checkpoint."""

    def _close(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.close()

    def stop(self) -> None:
        """End reading ahead."""
        self._close()


def _offset(position: Position) -> Offset:
    return {"position": str(position)}
