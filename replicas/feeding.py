"""A replayable streaming source over files in event-time order, which skips what is not needed.

``feed(spark, directory, time="ts")``, or ``spark.readStream.format("lmerge-feed")`` with the same
words as options (after :func:`register_feed`), reads a directory of Parquet, JSON lines or CSV.

What callers may rely on:

1. Files are taken in the order of their names, rows in the order of their file. Files that appear
   later are picked up, if their names come after what has been read; one that comes before it
   stops the query with an error, since it could not be read in order any more.
2. While the horizon is ``t``, rows whose time lies before ``t - look_back`` are skipped: by a jump
   over all that come before the first row that is needed (whole Parquet row groups by their
   statistics, unread), and one by one behind it. A row whose time is not before that, or null, is
   never skipped, however disordered the input is.
3. What a micro-batch skipped and read is in its offset. A batch that is replayed reads exactly the
   same rows, wherever the horizon is by then.

``disorder`` is the promise how far a row may lie behind the largest time before it, which a
watermark builds on; nothing is skipped because of it. Rows that break it are counted.

Counters: ``rows_skipped``, ``batches_skipped`` (in micro-batches of ``rows_per_batch``) and
``rows_disordered`` (found within the part of a file that one task reads).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lmerge.errors import ConfigurationError, InputError
from lmerge.times import BEGINNING, INFINITY, earlier
from replicas.feed_files import FeedFiles
from replicas.horizon import address_of, check_address, count, flush, horizon_at
from replicas.times import duration_us

NAME: Final = "lmerge-feed"
ROWS_PER_BATCH: Final = 100_000
FIRST_WORD_SECONDS: Final = 1.0  # how long the first micro-batch may wait to learn the horizon

Offset = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The options of a feed, read and checked."""

    path: str
    time: str
    format: str | None
    disorder_us: int
    look_back_us: int
    horizon: str | None
    rows_per_batch: int
    files_per_batch: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Options as Spark passes them: names in any case, with or without underscores."""
        plain = {name.lower().replace("_", ""): value for name, value in options.items()}
        unknown = plain.keys() - {
            *("path", "time", "format", "disorder", "lookback", "horizon"),
            *("rowsperbatch", "maxrowspertrigger", "maxfilespertrigger"),
        }
        if unknown:
            raise ConfigurationError(
                f"{NAME} has no option {', '.join(sorted(unknown))}: it has path, time, format, "
                "disorder, look_back, horizon, rows_per_batch and maxFilesPerTrigger"
            )
        for needed in ("path", "time"):
            if not plain.get(needed):
                raise ConfigurationError(f"{NAME} needs the option {needed!r}")
        if plain.get("horizon"):
            check_address(plain["horizon"])
        files = plain.get("maxfilespertrigger")
        rows = plain.get("rowsperbatch") or plain.get("maxrowspertrigger")
        return cls(
            path=plain["path"],
            time=plain["time"],
            format=plain.get("format") or None,
            disorder_us=duration_us(plain.get("disorder", "0 seconds")),
            look_back_us=duration_us(plain.get("lookback", "0 seconds")),
            horizon=plain.get("horizon") or None,
            rows_per_batch=_positive("rows_per_batch", rows or str(ROWS_PER_BATCH)),
            files_per_batch=_positive("maxFilesPerTrigger", files) if files else None,
        )

    def files(self, schema: pa.Schema | None) -> FeedFiles:
        """The directory of the feed."""
        return FeedFiles(self.path, self.format, self.time, schema)


def _positive(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1, not {text!r}")
    return int(text)


def feed(
    spark: SparkSession,
    path: str,
    *,
    time: str,
    format: str | None = None,  # noqa: A002 (Spark's word)
    disorder: str | int = "0 seconds",
    look_back: str | int = "0 seconds",
    horizon: str | None = None,
    rows_per_batch: int = ROWS_PER_BATCH,
    schema: str | StructType | None = None,
) -> DataFrame:
    """The rows of ``path`` as a stream that skips what lies before the horizon.

    ``look_back`` is how far before the horizon input can still matter: for windows, their length
    (a window that ends at the horizon begins so far before it) plus the watermark's delay.
    ``horizon`` is an address of a :class:`replicas.horizon.HorizonServer`; None is the session's
    own, ``""`` none at all.
    """
    options = {
        "path": path,
        "time": time,
        "format": format or "",
        "disorder": str(disorder),
        "look_back": str(look_back),
        "horizon": address_of(spark, horizon) or "",
        "rows_per_batch": str(rows_per_batch),
    }
    settings = Settings.of(options)
    files = settings.files(None)
    files.names()
    if schema is None:
        schema = _spark_schema(files.infer())
    elif isinstance(schema, str):
        schema = _schema_of(spark, schema)
    files.check_time(_arrow_schema(schema))
    name = NAME
    while not _register(spark, FeedSource, name):
        name = f"{NAME}-{next(_numbers)}"
    return spark.readStream.format(name).schema(schema).options(**options).load()


def register_feed(spark: SparkSession) -> None:
    """Make ``spark.readStream.format("lmerge-feed")`` known to the session, with its horizon."""
    address = address_of(spark, None)

    class SessionFeed(FeedSource):
        # Options cannot be late: the horizon of the session is part of the class.
        session_horizon = address

    if not _register(spark, SessionFeed, NAME):
        raise ConfigurationError(
            f"{NAME} was registered with the session from which this one was made, and Spark does "
            "not replace it: use replicas.feed() instead"
        )


_numbers = itertools.count(1)


def _register(spark: SparkSession, source: type[FeedSource], name: str) -> bool:
    """False where the session cannot have one of that name.

    Spark 4.3 neither replaces nor finds a source that was registered with the session
    from which this one was made.
    """

    class Named(source):  # type: ignore[misc, valid-type]  # a class that is only known here
        @classmethod
        def name(cls) -> str:
            return name

    try:
        spark.dataSource.register(Named)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


def _schema_of(spark: SparkSession, text: str) -> StructType:
    try:
        return spark.createDataFrame([], text).schema
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"schema {text!r} is none: {reason}") from None


def _spark_schema(schema: pa.Schema) -> StructType:
    try:
        return from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except Exception as error:
        raise ConfigurationError(f"Spark has no type for a column of the files: {error}") from None


def _arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


class FeedSource(DataSource):
    """The data source as Spark instantiates it."""

    session_horizon: str | None = None

    @classmethod
    def name(cls) -> str:
        """The word after ``format``."""
        return NAME

    def _settings(self) -> Settings:
        options = dict(self.options)
        if self.session_horizon and not any(name.lower() == "horizon" for name in options):
            options["horizon"] = self.session_horizon
        return Settings.of(options)

    def schema(self) -> StructType:
        """The columns of the first file, when the reader was given none."""
        return _spark_schema(self._settings().files(None).infer())

    def streamReader(self, schema: StructType) -> FeedReader:  # noqa: N802 (Spark's name)
        """Plans in one long-lived process beside the driver, and reads in the executors."""
        return FeedReader(self._settings(), schema)


class Part(InputPartition):
    """Rows ``[start, stop)`` of one file, without those before ``before``."""

    def __init__(self, name: str, start: int, stop: int | None, before: int | None) -> None:
        self.name = name
        self.start = start
        self.stop = stop
        self.before = before


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets, and the rows between them.

    An offset is ``{"file", "row"}``, the next row; ``"done"``: it is the end of its file;
    ``"behind"``: how many files came before it; and of the batch that it ends: ``"from"``, where
    reading began after the jump; ``"files"``, over how many files it went; and ``"before"``.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._files = settings.files(_arrow_schema(schema))
        self._last: str | None = None  # of a query that stops at what is there now

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Before the first row of whatever file comes first."""
        return {"file": "", "row": 0, "done": True, "behind": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Rows, or files where the option is set."""
        if self._settings.files_per_batch is not None:
            return ReadMaxFiles(self._settings.files_per_batch)
        return ReadMaxRows(self._settings.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Files that appear from here on are for another run."""
        self._last = max(self._files.names(), default="")

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """Jump over what the horizon has passed, then take as much as ``limit`` allows."""
        names = self._files.names()
        if self._last is not None:
            names = names[: bisect_left(names, self._last + "\0")]
        at, row = self._place(names, start)
        cut = self._cut()
        skipped = 0
        while at < len(names):
            rows = self._files.rows(names[at])
            needed = row if cut is None else self._files.first_needed(names[at], row, cut)
            skipped += needed - row
            row = needed
            if row < rows:
                break
            at, row = at + 1, 0
        if at == len(names) and not skipped:
            return start
        end, stop = self._take(names, at, row, limit)
        if skipped and self._settings.horizon:
            count(self._settings.horizon, "rows_skipped", skipped)
            count(
                self._settings.horizon, "batches_skipped", skipped / self._settings.rows_per_batch
            )
            flush(self._settings.horizon)
        begin = {"file": names[at], "row": row} if at < len(names) else None
        return {
            "file": names[end],
            "row": stop,
            "done": stop == self._files.rows(names[end]),
            "behind": end,
            "from": begin or {"file": names[end], "row": stop},
            "files": end - at + 1 if begin else 1,
            "before": cut,
        }

    def _place(self, names: list[str], start: Offset) -> tuple[int, int]:
        """Where ``start`` is among the files that there are now."""
        at = bisect_left(names, start["file"])
        if at > start["behind"]:
            raise InputError(
                f"{self._settings.path}/{names[at - 1]}",
                None,
                f"a file has appeared among those before {start['file']}, which were read in the "
                f"order of their names, up to {names[at - 1]}: take it away, or name it so that "
                "it comes last",
            )
        if at < len(names) and names[at] == start["file"]:
            return at, start["row"]
        if not start["done"]:
            raise InputError(
                f"{self._settings.path}/{start['file']}",
                None,
                f"the file is gone, but only {start['row']} of its rows were read",
            )
        return at, 0

    def _cut(self) -> int | None:
        address = self._settings.horizon
        if address is None:
            return None
        horizon = horizon_at(address, wait=FIRST_WORD_SECONDS)
        return None if horizon == BEGINNING else earlier(horizon, self._settings.look_back_us)

    def _take(self, names: list[str], at: int, row: int, limit: ReadLimit) -> tuple[int, int]:
        """The file and the row in it before which a batch ends that begins at ``at, row``."""
        if at == len(names):
            return at - 1, self._files.rows(names[at - 1])
        rows_left: float = self._settings.rows_per_batch
        files_left: float = float("inf")
        if isinstance(limit, ReadMaxRows):
            rows_left = limit.max_rows
        elif isinstance(limit, ReadMaxFiles):
            rows_left, files_left = float("inf"), limit.max_files
        elif isinstance(limit, ReadAllAvailable):
            rows_left = float("inf")
        while True:
            rows = self._files.rows(names[at])
            taken = int(min(rows - row, rows_left))
            rows_left -= taken
            files_left -= 1
            if row + taken < rows or rows_left <= 0 or files_left <= 0 or at + 1 == len(names):
                return at, row + taken
            at, row = at + 1, 0

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One for each file of the batch; ``end`` alone says which rows."""
        if "from" not in end or start == end:
            return []
        first, last = end["from"]["file"], end["file"]
        names = [name for name in self._files.names() if first <= name <= last]
        if len(names) != end["files"]:
            raise InputError(
                self._settings.path,
                None,
                f"between {first} and {last} there were {end['files']} files when the batch was "
                f"planned, and there are {len(names)} now: it cannot be read again as it was",
            )
        parts: list[InputPartition] = []
        for name in names:
            low = end["from"]["row"] if name == first else 0
            high = end["row"] if name == last else None
            if high is None or low < high:
                parts.append(Part(name, low, high, end["before"]))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in Arrow batches."""
        assert isinstance(partition, Part)  # noqa: S101 (Spark gives back what it was given)
        skipped = disordered = 0
        latest = BEGINNING
        rows = self._files.read(partition.name, partition.start, partition.stop, partition.before)
        for batch, times, left_out in rows:
            skipped += left_out
            times = times[times != INFINITY]  # a null is behind nothing
            if len(times):
                largest = np.maximum.accumulate(np.maximum(times, latest))
                disordered += int((times < largest - self._settings.disorder_us).sum())
                latest = int(largest[-1])
            if batch is not None:
                yield batch
        if self._settings.horizon:
            if skipped:
                count(self._settings.horizon, "rows_skipped", skipped)
            if disordered:
                count(self._settings.horizon, "rows_disordered", disordered)
            flush(self._settings.horizon)

    def commit(self, end: Offset) -> None:
        """Nothing is held for a batch once it is done."""

    def stop(self) -> None:
        """Nothing is open between calls."""
