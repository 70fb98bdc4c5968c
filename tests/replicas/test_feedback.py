"""A laggard that skips by the horizon: what ends at or after it is right, and nothing is wrong.

A leader that knows the truth is ahead of it by seeded amounts, which it gains between the laggard's
batches; the server tells the laggard so. What is judged is what the laggard itself said.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.client import SyncWriter
from lmerge.core.properties import Restriction
from lmerge.times import BEGINNING
from replicas import Replica, attach, fast_forward, feed
from replicas.analysis import analyse
from replicas.events import events_of
from replicas.horizon import serve
from replicas.lifetimes import lifetimes
from replicas.sink import Sink
from replicas.types import payload_schema
from tests.replicas.merging import Tdb, before, database, truth
from tests.server.serving import ServerProcess, server_process

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND
ROWS = 1500
SPAN = 300 * SECOND
END = BEGIN + SPAN + 60 * SECOND
DISORDER = 4 * SECOND
WATERMARK = "6 seconds"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    return spark.newSession()  # with a horizon of its own


def write_input(directory: Path, pick: random.Random) -> None:
    directory.mkdir()
    at = [BEGIN + SPAN * n // ROWS - pick.randrange(DISORDER) for n in range(ROWS)]
    at += [END + hours * 3600 * SECOND for hours in (1, 2)]  # closes every window before
    table = pa.table(
        {
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "k": pa.array([pick.randrange(4) for _ in at], pa.int64()),
            "v": pa.array([pick.randrange(100) for _ in at], pa.int64()),
        }
    )
    cuts = [0, *sorted(pick.sample(range(1, ROWS), 3)), ROWS, ROWS + 1, ROWS + 2]
    for number, (low, high) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(low, high - low), directory / f"part-{number}.parquet")


Source = Callable[[], DataFrame]
Query = tuple[Callable[[Source], DataFrame], str, str, list[str] | None]
"""A plan over its source, and the start and end of its results in SQL."""


def windows(duration: int, slide: int) -> Query:
    def plan(source: Source) -> DataFrame:
        window = F.window("at", f"{duration} seconds", f"{slide} seconds")
        return source().groupBy(window, "k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))

    return plan, "window.end", f"window.end + INTERVAL {slide} SECONDS", None


def joined(bound: int) -> Query:
    def plan(source: Source) -> DataFrame:
        left = source().filter("v < 30").selectExpr("at", "k", "v")
        right = source().filter("v >= 70").selectExpr("at AS at2", "k AS k2", "v AS v2")
        close = f"k = k2 AND at2 >= at AND at2 <= at + INTERVAL {bound} SECONDS"
        return left.join(right, F.expr(close)).selectExpr("at", "at2", "k", "v", "v2")

    return plan, "at2", "at2 + INTERVAL 2 SECONDS", ["at", "k", "v", "v2"]


QUERIES = {
    "tumbling 10": windows(10, 10),
    "tumbling 45": windows(45, 45),
    "sliding 20 by 5": windows(20, 5),
    "sliding 60 by 15": windows(60, 15),
    "join within 3": joined(3),
    "join within 20": joined(20),
}


def as_micros(sql: str) -> str:
    return f"unix_micros({sql})"


CASES = [
    *((name, seed) for seed, name in enumerate(QUERIES, start=1)),
    ("join within 3", 8),
]
"""Each costs some seconds: every plan has a seed of its own, and one has another."""


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_whatever_was_skipped(
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    seed: int,
) -> None:
    plan, vs, ve, payload = QUERIES[name]
    pick = random.Random(f"{name}/{seed}")
    write_input(tmp_path / "in", pick)
    path = str(tmp_path / "in")

    def stored() -> DataFrame:
        return spark.read.parquet(path).withWatermark("at", WATERMARK)

    def streamed(look_back_us: int) -> DataFrame:
        fed = feed(
            spark, path, time="at", disorder="4 seconds", rows_per_batch=pick.choice((60, 150)),
            look_back=f"{look_back_us} microseconds",
        )  # fmt: skip
        timed = fed.withWatermark("at", WATERMARK)
        return fast_forward(timed, "at", look_back=f"{look_back_us} microseconds")

    options: dict[str, Any] = {"vs": vs, "ve": ve, "payload": payload}
    found = analyse(plan(lambda: streamed(0)), "append", **options)
    look_back = found.look_back_us
    assert look_back is not None
    wanted = truth(plan(stored), as_micros(vs), as_micros(ve), payload)
    merge = f"{name}-{seed}".replace(" ", "-")
    horizon = serve(spark)
    said: list[pa.RecordBatch] = []
    write, commit = SyncWriter.write, Sink._commit

    def written(writer: SyncWriter, batch: pa.RecordBatch, *, epoch: int | None = None) -> None:
        if writer.writer.stream == "laggard":
            said.append(batch)
        write(writer, batch, epoch=epoch)

    def then_the_leader_gains(sink: Sink, *epoch: Any, **more: Any) -> None:
        commit(sink, *epoch, **more)
        own = max(BEGIN, horizon.horizon, epoch[2].stable)
        # Less than the look-back would skip nothing, whatever the seed.
        gain = look_back + pick.randrange(10 * SECOND, 70 * SECOND)
        ahead = min(own + gain, END - 1)
        if ahead > own and pick.random() < 0.4:
            leader.commit(stable=ahead)
            until(lambda: horizon.horizon >= ahead)

    monkeypatch.setattr(SyncWriter, "write", written)
    monkeypatch.setattr(Sink, "_commit", then_the_leader_gains)
    with leading(spark, server, merge, plan(stored), options, found.restriction) as leader:
        replica = attach(
            plan(lambda: streamed(look_back)), merge=merge, server=server.target, stream="laggard",
            checkpoint=str(tmp_path / "checkpoint"), **options,
        )  # fmt: skip
        try:
            replica.query.processAllAvailable()
            until(lambda: skipped(replica) > 0)  # counters come a moment later
        finally:
            replica.stop()
    reached = horizon.horizon
    assert reached > BEGINNING, "the seed has not moved the horizon"
    own = before(database(said), END)
    wanted = before(wanted, END)
    assert ending_from(own, reached) == ending_from(wanted, reached)
    assert not own - wanted, "something was said that is not so"


def skipped(replica: Replica) -> float:
    counters = replica.sink.counters.values()
    return counters.get("rows_skipped", 0.0) + counters.get("rows_dropped", 0.0)


def ending_from(events: Tdb, time: int) -> Tdb:
    return Tdb({event: n for event, n in events.items() if event[2] >= time})


def until(what: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@contextmanager
def leading(
    spark: SparkSession,
    server: ServerProcess,
    merge: str,
    rows: DataFrame,
    options: dict[str, Any],
    restriction: Restriction,
) -> Iterator[SyncWriter]:
    """A stream that has said everything there is, and promises as it is told."""
    times = lifetimes(rows, options["vs"], options["ve"], options["payload"], None)
    schema = payload_schema(times.schema)
    events = events_of(times.select(rows, None).toArrow(), schema).by_start()
    with SyncWriter(
        server.target, merge, "leader", schema, lineage="leader",
        properties=restriction.requires, options={"restriction": restriction.value},
    ) as leader:  # fmt: skip
        for batch in events.inserts():
            leader.write(batch)
        leader.commit()
        yield leader
