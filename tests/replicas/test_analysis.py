"""Which restriction follows from which plan, expected by the paper's logic (§IV.G).

Each row of the table is a query, its mode, what is declared, and the restriction it must get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError
from replicas.analysis import Analysis, Watermark, Window, analyse

SECOND = 1_000_000
MINUTE = 60 * SECOND

Query = Callable[[SparkSession], DataFrame]


def events(spark: SparkSession, delay: str = "10 seconds") -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.select("timestamp", (F.col("value") % 7).alias("k"), "value").withWatermark(
        "timestamp", delay
    )


def raw(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def others(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.select(
        F.col("timestamp").alias("at"), (F.col("value") % 7).alias("j"), F.col("value").alias("v")
    ).withWatermark("at", "20 seconds")


MEETS = "k = j AND at BETWEEN timestamp AND timestamp + INTERVAL 1 MINUTE"


def tumbling(spark: SparkSession) -> DataFrame:
    return events(spark).groupBy(F.window("timestamp", "10 seconds")).count()


def sliding(spark: SparkSession) -> DataFrame:
    return events(spark).groupBy(F.window("timestamp", "10 seconds", "5 seconds")).count()


def grouped(spark: SparkSession) -> DataFrame:
    return events(spark).groupBy(F.window("timestamp", "10 seconds"), "k").count()


def sessions(spark: SparkSession) -> DataFrame:
    return events(spark).groupBy(F.session_window("timestamp", "10 seconds"), "k").count()


def top(spark: SparkSession) -> DataFrame:
    largest = F.slice(F.sort_array(F.collect_list("value"), asc=False), 1, 3).alias("largest")
    windows = events(spark).groupBy(F.window("timestamp", "10 seconds", "5 seconds"))
    return windows.agg(largest).select("window", F.posexplode("largest"))


def top_unsorted(spark: SparkSession) -> DataFrame:
    some = F.slice(F.collect_list("value"), 1, 3).alias("some")
    windows = events(spark).groupBy(F.window("timestamp", "10 seconds"))
    return windows.agg(some).select("window", F.posexplode("some"))


def joined(how: str) -> Query:
    return lambda spark: events(spark).join(others(spark), F.expr(MEETS), how)


def with_table(spark: SparkSession) -> DataFrame:
    return events(spark).join(spark.createDataFrame([(1, "a")], "k long, name string"), "k")


def with_distinct_table(spark: SparkSession) -> DataFrame:
    table = spark.createDataFrame([(1, "a")], "k long, name string").dropDuplicates(["k"])
    return events(spark).join(table, "k", "left")


def stateful(spark: SparkSession) -> DataFrame:
    def count(key: Any, parts: Iterator[Any], state: Any) -> Iterator[Any]:
        yield from parts

    return (
        events(spark)
        .groupBy("k")
        .applyInPandasWithState(count, "k long", "n long", "update", "NoTimeout")
    )


def through_arrow(spark: SparkSession) -> DataFrame:
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    return events(spark).mapInArrow(same, "timestamp timestamp, k long, value long")


def with_udf(spark: SparkSession) -> DataFrame:
    return tumbling(spark).withColumn("twice", F.udf(lambda n: n * 2, "long")("count"))


def of_windows(spark: SparkSession) -> DataFrame:
    """An aggregate of an aggregate."""
    return grouped(spark).groupBy(F.window(F.window_time("window"), "1 minute")).count()


def after_join(spark: SparkSession) -> DataFrame:
    return joined("inner")(spark).groupBy(F.window("timestamp", "10 seconds")).count()


@dataclass(frozen=True)
class Case:
    name: str
    query: Query
    expected: str
    mode: str = "append"
    options: dict[str, Any] = field(default_factory=dict)


IN_ORDER = {"ordered_input": True}
DISTINCT = {"keyed_input": True}
CASES = [
    # One event for each of strictly increasing timestamps: the paper's third case.
    Case("tumbling count", tumbling, "R0"),
    Case("tumbling count of ordered input", tumbling, "R0", options=IN_ORDER),
    Case("sliding count", sliding, "R0"),
    Case("tumbling count by its start", tumbling, "R0", options={"vs": "window.start"}),
    Case("tumbling count, filtered and projected",
         lambda s: tumbling(s).where("count > 3").select("count", "window"), "R0"),
    Case("tumbling count with a UDF", with_udf, "R0"),
    Case("an aggregate of windows", of_windows, "R0"),
    Case("a windowed count of a join", after_join, "R0"),
    # The start is something else than what the rows are ordered by, yet the window is the key.
    Case("tumbling count with another start", tumbling, "R3", options={"vs": "count"}),
    Case("tumbling count without its window in the payload", tumbling, "R4",
         options={"vs": "count", "payload": ["count"]}),
    # Revisions.
    Case("tumbling count, updated", tumbling, "R3", "update"),
    Case("tumbling count, updated, ordered input", tumbling, "R3", "update", IN_ORDER),
    Case("sliding count, complete", sliding, "R3", "complete"),
    Case("an order that is declared of revisions does not count", tumbling, "R3", "update",
         {"strictly_increasing": True, "insert_only": True}),
    # Duplicate timestamps in a deterministic order: the fourth case.
    Case("top-k of sliding windows", top, "R1"),
    Case("top-k of sliding windows, without positions", lambda s: top(s).drop("pos"), "R1"),
    Case("a top-k whose order is that of arrival", top_unsorted, "R2"),
    # Grouped aggregation: the fifth case in append mode, the sixth with revisions.
    Case("grouped windows", grouped, "R2"),
    Case("grouped windows, ordered input", grouped, "R2", options=IN_ORDER),
    Case("grouped windows, the end only", lambda s: grouped(s).select("window.end", "k", "count"),
         "R2", options={"vs": "end"}),
    Case("grouped windows without the group", lambda s: grouped(s).drop("k"), "R4"),
    Case("grouped windows, updated", grouped, "R3", "update"),
    Case("grouped windows, complete", grouped, "R3", "complete"),
    Case("groups without a window, updated", lambda s: raw(s).groupBy("value").count(), "R3",
         "update"),
    Case("top-k of all, complete",
         lambda s: events(s).groupBy("k").count().orderBy(F.desc("count")).limit(3), "R3",
         "complete"),
    # Sessions end in the watermark's order, but begin in none.
    Case("sessions by their end", sessions, "R2", options={"vs": "session_window.end"}),
    Case("sessions by their start", sessions, "R3", options={"vs": "session_window.start"}),
    Case("sessions, complete", sessions, "R3", "complete", {"vs": "session_window.end"}),
    # Joins emit when the later row comes: no order. Their key is both sides'.
    Case("inner join", joined("inner"), "R4"),
    Case("inner join of distinct rows", joined("inner"), "R3", options=DISTINCT),
    Case("left outer join of distinct rows", joined("leftOuter"), "R3", options=DISTINCT),
    Case("left outer join", joined("leftOuter"), "R4"),
    Case("full outer join of distinct rows", joined("fullOuter"), "R4", options=DISTINCT),
    Case("join of ordered input", joined("inner"), "R4", options=IN_ORDER),
    Case("semi join of distinct rows", joined("leftSemi"), "R3", options=DISTINCT),
    Case("join with a table", with_table, "R4", options=IN_ORDER | DISTINCT),
    Case("join with a table that has a key", with_distinct_table, "R2",
         options={**IN_ORDER, **DISTINCT, "vs": "timestamp"}),
    # Duplicates.
    Case("dropDuplicates", lambda s: events(s).dropDuplicates(["k", "timestamp"]), "R3"),
    Case("dropDuplicates of ordered input",
         lambda s: events(s).dropDuplicates(["k", "timestamp"]), "R2", options=IN_ORDER),
    Case("dropDuplicatesWithinWatermark",
         lambda s: events(s).dropDuplicatesWithinWatermark(["k"]), "R3"),
    Case("dropDuplicatesWithinWatermark without the time",
         lambda s: events(s).dropDuplicatesWithinWatermark(["k"]).drop("timestamp"), "R4"),
    # Stateless.
    Case("select and filter", lambda s: raw(s).where("value > 3").select("value"), "R4"),
    Case("select of distinct input", lambda s: raw(s).where("value > 3"), "R3", options=DISTINCT),
    Case("select of distinct ordered input", lambda s: raw(s).where("value > 3"), "R2",
         options=IN_ORDER | DISTINCT),
    Case("select that loses the key", lambda s: raw(s).select("timestamp"), "R4",
         options=IN_ORDER | DISTINCT),
    Case("declared strictly increasing", raw, "R0", options={"strictly_increasing": True}),
    Case("declared deterministic ties of ordered input", raw, "R1",
         options=IN_ORDER | {"deterministic_ties": True}),
    Case("explode", lambda s: raw(s).select("*", F.explode(F.array("value", "value"))), "R4",
         options=DISTINCT),
    Case("posexplode", lambda s: raw(s).select("*", F.posexplode(F.array("value", "value"))), "R3",
         options=DISTINCT),
    Case("union", lambda s: raw(s).union(raw(s)), "R4", options=IN_ORDER | DISTINCT),
    # Whatever code does.
    Case("applyInPandasWithState", stateful, "R4", "update"),
    Case("applyInPandasWithState with a key", stateful, "R3", "update", {"key": ["k"]}),
    Case("mapInArrow", through_arrow, "R4", options=IN_ORDER | DISTINCT),
    # Values that differ between replicas break no stream's own promise; they are noted.
    Case("rand in a windowed result", lambda s: tumbling(s).withColumn("r", F.rand()), "R0"),
    Case("first in groups",
         lambda s: events(s).groupBy(F.window("timestamp", "10 seconds"), "k")
         .agg(F.first("value")), "R2"),
    Case("collect_list",
         lambda s: events(s).groupBy(F.window("timestamp", "10 seconds"))
         .agg(F.collect_list("value")), "R0"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_the_restriction_follows_from_the_plan(case: Case, spark: SparkSession) -> None:
    found = analyse(case.query(spark), case.mode, **case.options)
    said = "\n".join([*(f"{s.operator}: {s.says}" for s in found.steps), *found.why])
    assert found.restriction is Restriction(case.expected), said
    assert found.properties.insert_only == (case.mode == "append" or "insert_only" in case.options)


def test_a_windowed_result_says_its_keys_window_look_back_and_watermark(
    spark: SparkSession,
) -> None:
    query = events(spark).groupBy(F.window("timestamp", "10 seconds", "5 seconds"), "k").count()
    found = analyse(query)
    assert found.keys == ("window", "k")
    assert found.window == Window("window", 10 * SECOND, 5 * SECOND)
    assert found.watermark == Watermark("timestamp", 10 * SECOND)
    # A row lies at most a window's length before its end, and the result lives for a slide more.
    assert found.look_back_us == 15 * SECOND
    assert found.behind_us == 0


LOOK_BACKS: list[tuple[str, Query, dict[str, Any], int | None]] = [
    ("windows of windows", of_windows, {}, (10 + 60 + 60) * SECOND),
    ("an end of its own", tumbling, {"vs": "window.start", "ve": "window.end"}, 10 * SECOND),
    ("no end", tumbling, {"vs": "window.end"}, None),
    ("sessions", sessions, {"vs": "session_window.start", "ve": "session_window.end"}, None),
    ("all groups", lambda s: events(s).groupBy("k").count(), {"vs": "k", "ve": "k"}, None),
    ("a join", joined("inner"), {"vs": "timestamp", "ve": "at"}, MINUTE),
    ("the join's other time", joined("inner"), {"vs": "at", "ve": "timestamp"}, 0),
    ("windows of a join", after_join, {}, 20 * SECOND),
    ("stateless", events, {"vs": "timestamp", "ve": "timestamp + INTERVAL 5 SECONDS"}, 5 * SECOND),
    ("duplicates of all times", lambda s: events(s).dropDuplicates(["k"]),
     {"vs": "timestamp", "ve": "timestamp"}, None),
    ("duplicates of one time", lambda s: events(s).dropDuplicates(["k", "timestamp"]),
     {"vs": "timestamp", "ve": "timestamp"}, 0),
    ("any code", through_arrow, {"vs": "timestamp", "ve": "timestamp"}, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [each[1:] for each in LOOK_BACKS],
    ids=[each[0] for each in LOOK_BACKS],
)
def test_the_look_back_is_how_long_input_matters(
    query: Query, options: dict[str, Any], expected: int | None, spark: SparkSession
) -> None:
    assert analyse(query(spark), **options).look_back_us == expected


def test_rows_of_a_join_can_start_before_the_watermark(spark: SparkSession) -> None:
    found = analyse(joined("leftOuter")(spark), vs="timestamp")
    assert found.behind_us is not None
    assert found.behind_us >= MINUTE
    assert analyse(after_join(spark)).behind_us == found.behind_us
    assert analyse(events(spark), vs="timestamp").behind_us is None  # late rows pass


@pytest.mark.parametrize(
    ("query", "mode", "part"),
    [
        (lambda s: tumbling(s).withColumn("r", F.rand()), "append", "another value"),
        (lambda s: events(s).groupBy("k").agg(F.first("value")), "update", "order of arrival"),
        (lambda s: events(s).groupBy("k").agg(F.sum(F.col("value") * 0.5e0)), "update", "addition"),
        (lambda s: raw(s).where(F.rand() > 0.5), "append", "filtered"),
        (lambda s: grouped(s).where("count < 5"), "update", "not taken back"),
        (lambda s: raw(s).groupBy("value").count(), "append", "Spark will refuse"),
        (with_table, "append", "read anew"),
    ],
)
def test_what_replicas_may_disagree_on_is_noted(
    query: Query, mode: str, part: str, spark: SparkSession
) -> None:
    assert any(part in note for note in analyse(query(spark), mode).notes)


def test_a_sorted_array_is_in_no_doubt(spark: SparkSession) -> None:
    assert not analyse(top(spark)).notes


def test_mistakes_are_said(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="append, update or complete"):
        analyse(raw(spark), "often")
    with pytest.raises(ConfigurationError, match="'sorted' cannot be declared"):
        analyse(raw(spark), sorted=True)
    with pytest.raises(ConfigurationError, match="no expression"):
        analyse(raw(spark), vs="nothing + 1")


def test_an_analysis_can_be_read_as_steps(spark: SparkSession) -> None:
    found: Analysis = analyse(grouped(spark), "update")
    assert found.steps[0].operator.startswith("Source")
    assert "revised" in found.steps[-1].says
    assert found.steps[-1].depth == 0
    assert found.why[-1].startswith("so R3")
