"""Which queries are one plan and which are not; what a checkpoint of another is refused with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

from lmerge.errors import ConfigurationError
from replicas.attaching import attach, plan_of
from replicas.bodies import body
from replicas.fast_forwarding import fast_forward
from replicas.fingerprint import Fingerprint, check
from tests.server.serving import server_process


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def source(spark: SparkSession, rows: int = 5, columns: str = "at TIMESTAMP, v BIGINT") -> Any:
    reader = spark.readStream.option("maxFilesPerTrigger", rows)
    folder = Path(__file__).parent
    return reader.schema(columns).json(str(folder)).withWatermark("at", "20 seconds")


def double(v: int) -> int:
    return v * 2


def steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def query(
    spark: SparkSession,
    *,
    where: str = "v > 0",
    modulus: int = 3,
    result: str = "count(*) AS n",
    window: str = "10 seconds",
    function: Callable[[Any], Any] = double,
    rows: int = 5,
    columns: str = "at TIMESTAMP, v BIGINT",
) -> DataFrame:
    found = source(spark, rows, columns).where(where)
    found = found.withColumn("w", F.udf(function, "bigint", useArrow=False)("v"))
    grouped = found.groupBy(F.window("at", window), F.expr(f"w % {modulus} AS part"))
    made: DataFrame = grouped.agg(F.expr(result))
    return made


def test_the_same_query_has_the_same_fingerprint_each_time_it_is_built(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = plan_of(query(spark))
    assert plan_of(query(spark)).digest == first.digest
    assert plan_of(query(spark, rows=7)).digest == first.digest  # how much at a time
    assert plan_of(query(spark.newSession())).digest == first.digest
    assert Fingerprint.decoded(first.encoded()) == first
    assert first.differences(plan_of(query(spark))) == []


def test_what_spark_picks_anew_makes_no_difference(spark: SparkSession) -> None:
    def built(session: SparkSession) -> DataFrame:
        # The session's horizon is at an address of its own, and goes into the step's function.
        found: DataFrame = fast_forward(source(session), "at").mapInArrow(steps, "v BIGINT")
        return found.withColumn("r", F.rand()).withColumn("u", F.expr("uuid()"))

    plans = [plan_of(built(session), vs="v", ve="v + 1") for session in (spark, spark.newSession())]
    assert plans[0].plan == plans[1].plan
    assert not any("127.0.0.1" in line or "/" in line for line in plans[0].plan), plans[0].plan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"where": "v > 0 AND v < 90"}, "v < cast(90 as bigint)"),
        ({"result": "sum(v) AS n"}, "sum(v)"),
        ({"modulus": 4}, "cast(4 as bigint)"),
        ({"window": "20 seconds"}, "20000000"),
        ({"function": lambda v: v * 3}, "function"),
        ({"columns": "at TIMESTAMP, v INT"}, "v int"),
        ({"mode": "update"}, "the mode is update, and the checkpoint's append"),
        ({"ve": "window.end + INTERVAL 1 HOUR"}, "ve is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_another_query_has_another_fingerprint_and_the_difference_is_said(
    spark: SparkSession, change: dict[str, Any], said: str
) -> None:
    options = {name: change[name] for name in ("mode", "ve") if name in change}
    of_query = {name: value for name, value in change.items() if name not in options}
    known = plan_of(query(spark))
    other = plan_of(query(spark, **of_query), **options)
    assert known.digest != other.digest
    with pytest.raises(ConfigurationError) as refused:
        check(known.encoded(), other, "here")
    assert said in str(refused.value)
    assert "belongs to another plan" in str(refused.value)
    assert len(str(refused.value)) < 2000


SCRIPT = '''
"""A module of a user's."""

{above}LIMIT = {limit}

class Rule:
    """It decides."""
    def __init__(self, least):
        self.least = least
    def holds(self, v):
        return v > self.least and v < LIMIT

def made(least):
    """Makes a function.{doc}"""
    rule = Rule(least)
    def decides({name}):{comment}
        return [each for each in {{1, 2, 3}} if rule.holds({name})]
    return decides
'''


def module_of(tmp_path: Path, number: int, **parts: Any) -> Any:
    said = {"above": "", "limit": 10, "doc": "", "comment": "", "name": "v", **parts}
    path = tmp_path / f"user{number}" / "rules.py"
    path.parent.mkdir()
    path.write_text(SCRIPT.format(**said))
    spec = importlib.util.spec_from_file_location("rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_body_is_what_a_function_does_and_not_where_it_stands(tmp_path: Path) -> None:
    found = body(module_of(tmp_path, 0).made(1))
    moved = module_of(
        tmp_path, 1, above="import os\n\n\n", doc=" Said.", comment="  # why", name="value"
    )
    assert body(moved.made(1)) == found
    assert body(moved.made(2)) != found  # what it encloses
    assert body(module_of(tmp_path, 2, limit=11).made(1)) != found  # what it refers to
    assert body(module_of(tmp_path, 3, name="*v").made(1)) != found


def test_a_checkpoint_of_another_plan_is_refused_unless_it_is_trusted(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    lines = [f'{{"at": "2026-01-01 00:00:{n:02}", "v": {n}}}' for n in range(60)]
    (tmp_path / "in" / "rows.json").write_text("\n".join(lines) + "\n")

    def counted(modulus: int) -> DataFrame:
        found = spark.readStream.schema("at TIMESTAMP, v BIGINT").json(str(tmp_path / "in"))
        rows = found.withWatermark("at", "1 second")
        part = F.expr(f"v % {modulus} AS part")
        return rows.groupBy(F.window("at", "10 seconds"), part).count()

    with server_process(tmp_path / "server") as server:

        def run(modulus: int, **options: Any) -> int:
            replica = attach(
                counted(modulus), merge="m", server=server.target, stream="r",
                checkpoint=str(tmp_path / "checkpoint"), mode="update", **options,
            )  # fmt: skip
            try:
                replica.query.processAllAvailable()
                return replica.sink.epoch or 0
            finally:
                replica.stop()

        run(3)
        with pytest.raises(ConfigurationError, match=r"another plan: «Aggregate.*% cast\(4 as"):
            run(4)
        run(3)
        run(4, trust_checkpoint=True)
        with pytest.raises(ConfigurationError, match="another plan"):
            run(3)  # it is the other's now
