"""The three best scores of each ten seconds, best first, with the player of each.

- :func:`by_sorting` (append) collects a window's scores, sorts them, and takes the first;
- :func:`by_stages` (append) finds the best of each of a few groups of players in a first
  aggregate and the best of those in a second: less state in one place, and parallel;
- :func:`by_revising` (update) is the first plan, which says the best so far at once.

The three give the same rows: equal scores are told apart by the player, so that the order is
that of the values and not of the arrival. A result lives in the default lifetime of a window.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from replicas.plans.inputs import BEGIN, SECOND, TIME, Plan, stream, table, write

K: Final = 3
WINDOW_S: Final = 10
PLAYERS: Final = 8
GROUPS: Final = 4
ROWS_PER_SECOND: Final = 2
SCHEMA: Final = pa.schema(
    [pa.field("at", TIME), pa.field("player", pa.int64()), pa.field("score", pa.int64())]
)
_WINDOW: Final = f"{WINDOW_S} seconds"
_BEST: Final = f"slice(sort_array(collect_list(struct(score, player)), false), 1, {K})"
_BEST_OF_BESTS: Final = f"slice(sort_array(flatten(collect_list(best)), false), 1, {K})"


def by_sorting(spark: SparkSession) -> Plan:
    """All scores of a window at once; final results only."""
    return _sorted(_scores(spark)), {"mode": "append", "options": {"restriction": "R3"}}


def by_revising(spark: SparkSession) -> Plan:
    """The best so far, revised."""
    return _sorted(_scores(spark)), {"mode": "update", "options": {"restriction": "R3"}}


def by_stages(spark: SparkSession) -> Plan:
    """The best of each group of players, then of those."""
    scores = _scores(spark)
    grouped = scores.groupBy(F.window("at", _WINDOW), F.expr(f"player % {GROUPS} AS part"))
    bests = grouped.agg(F.expr(_BEST).alias("best"))
    best = bests.groupBy("window").agg(F.expr(_BEST_OF_BESTS).alias("best"))
    return best, {"mode": "append", "options": {"restriction": "R3"}}


def _scores(spark: SparkSession) -> DataFrame:
    # A row matters until the result of its window is no more the latest.
    return stream(spark, look_back=f"{2 * WINDOW_S} seconds")


def _sorted(scores: DataFrame) -> DataFrame:
    return scores.groupBy(F.window("at", _WINDOW)).agg(F.expr(_BEST).alias("best"))


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """By rank, which only a batch job can."""
    scores = table(spark, directory).select(F.window("at", _WINDOW), "score", "player")
    ranked = scores.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY window ORDER BY score DESC, player DESC) AS rank",
    ).where(f"rank <= {K}")
    best = ranked.groupBy("window").agg(
        F.expr("sort_array(collect_list(struct(rank, score, player)))").alias("ranks")
    )
    return best.selectExpr(
        "window",
        "transform(ranks, each -> struct(each.score, each.player)) AS best",
        "unix_micros(window.end) AS vs",
        f"unix_micros(window.end) + {WINDOW_S * SECOND} AS ve",
    )


def generate(directory: str | Path, rows: int, seed: int, disorder_s: float) -> int:
    """Write the input; what starts before the time that is returned is complete once it is read."""
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    scores = [
        {
            "at": BEGIN + n * SECOND // ROWS_PER_SECOND + pick.randrange(SECOND),
            "player": pick.randrange(PLAYERS),
            "score": pick.randrange(12),  # few, so that there are ties
        }
        for n in range(rows)
    ]
    return write(
        directory,
        SCHEMA,
        scores,
        lambda at, _: {"at": at, "player": 0, "score": 0},
        seed=seed,
        disorder_s=disorder_s,
    )
