"""A row of every Spark type through the sink, a merge and the source, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as sql

from lmerge.errors import ConfigurationError
from replicas.formats import register
from replicas.types import payload_schema
from tests.replicas.test_formats import Sunk, feed_files, sink, source
from tests.server.serving import ServerProcess, server_process

# A name, and SQL for two values: the second with what is odd about the type.
KINDS = {
    "boolean": ("true", "false"),
    "tinyint": ("1Y", "CAST(-128 AS TINYINT)"),
    "smallint": ("1S", "CAST(-32768 AS SMALLINT)"),
    "int": ("1", "CAST(-2147483648 AS INT)"),
    "bigint": ("1L", "CAST('-9223372036854775808' AS BIGINT)"),
    "float": ("CAST(1.5 AS FLOAT)", "CAST('NaN' AS FLOAT)"),
    "double": ("CAST('-Infinity' AS DOUBLE)", "CAST('NaN' AS DOUBLE)"),
    "decimal": ("12.34BD", "CAST(-0.01 AS DECIMAL(4,2))"),
    "wide": ("CAST(1 AS DECIMAL(38,0))", "CAST('-" + "9" * 38 + "' AS DECIMAL(38,0))"),
    "string": ("'é€😀'", "''"),
    "varchar": ("CAST('ab' AS VARCHAR(3))", "CAST('' AS VARCHAR(3))"),
    "char": ("CAST('ab' AS CHAR(3))", "CAST('abc' AS CHAR(3))"),
    "binary": ("X'00FF'", "X''"),
    "date": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "timestamp": ("TIMESTAMP'1969-12-31 23:59:59.999999Z'", "TIMESTAMP'9999-12-31 23:59:59Z'"),
    "ntz": ("TIMESTAMP_NTZ'2024-03-31 02:30:00.123456'", "TIMESTAMP_NTZ'0001-01-01 00:00:00'"),
    "time": ("TIME'23:59:59.999999'", "TIME'00:00:00'"),
    "daytime": (
        "INTERVAL '1 2:03:04.000005' DAY TO SECOND",
        "INTERVAL -'0 0:00:00.000001' DAY TO SECOND",
    ),
    "array": ("array(1, NULL, 3)", "CAST(array() AS ARRAY<INT>)"),
    "nested": ("array(array(1), NULL, array())", "array(array(CAST(NULL AS INT)))"),
    "map": ("map('b', 1, 'a', NULL)", "CAST(map() AS MAP<STRING, INT>)"),
    "struct": ("named_struct('x', 1, 'y', 'a')", "named_struct('x', CAST(NULL AS INT), 'y', NULL)"),
    "deep": (
        "array(named_struct('m', map(1, array(named_struct('t', TIMESTAMP'2024-01-01')))))",
        "array(named_struct('m', CAST(NULL AS MAP<INT, ARRAY<STRUCT<t: TIMESTAMP>>>)))",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server") / "data") as started:
        yield started


def test_a_row_of_every_type_comes_back_as_it_was(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    register(spark)
    spark.conf.set("spark.sql.timeType.enabled", "true")
    files = tmp_path / "in"
    names = list(KINDS)
    values = [", ".join(f"{KINDS[name][n]} AS `{name}`" for name in names) for n in (0, 1)]
    whole = spark.sql(f"SELECT 1L AS vs, {values[0]} UNION ALL SELECT 2L, {values[1]}")
    nulls = ", ".join(f"IF(false, {KINDS[name][0]}, NULL)" for name in names)
    whole = whole.union(spark.sql(f"SELECT 3L, {nulls}")).coalesce(1)
    # TIME has no form in files yet: a stream computes the rows instead of reading them.
    trigger = feed_files(spark, files, "n INT")
    spark.range(1).selectExpr("CAST(id AS INT) AS n").write.mode("append").parquet(str(files))
    df = trigger.crossJoin(whole).drop("n")
    sink(df, server, tmp_path / "c", "append", merge="types", stream="a", vs="vs")
    read = source(spark, server, "types", delivery="eager")
    found = {f.name: f.dataType.simpleString() for f in read.schema.fields if f.name in names}
    assert found == {
        f.name: f.dataType.simpleString() for f in whole.schema.fields if f.name != "vs"
    }
    # As text that Spark makes: no conversion to Python can hide a difference. Spark promises no
    # order for a map's entries, and the payload has them sorted.
    shown = [f"CAST(`{name}` AS STRING)" for name in names]
    shown[names.index("map")] = "CAST(array_sort(map_entries(map)) AS STRING)"
    got = Sunk(read.selectExpr("vs", *shown), tmp_path / "d").ended()
    wanted = [tuple(row) for row in whole.selectExpr("vs", *shown).collect()]
    assert len(wanted) == 3
    for one, other in zip(sorted(got), sorted(wanted), strict=True):
        assert dict(zip(names, one[1:], strict=True)) == dict(zip(names, other[1:], strict=True))


def test_the_sign_of_zero_is_kept_on_the_way(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    register(spark)
    files = tmp_path / "in"
    df = feed_files(spark, files, "vs BIGINT, d DOUBLE")
    spark.sql("SELECT 1L AS vs, -0.0D AS d").write.mode("append").parquet(str(files))
    sink(df, server, tmp_path / "c", "append", merge="zero", stream="a", vs="vs")
    read = source(spark, server, "zero", delivery="eager").selectExpr("CAST(d AS STRING)")
    assert Sunk(read, tmp_path / "d").ended() == [("-0.0",)]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (sql.VariantType(), "VARIANT, which cannot be sent: to_json"),
        (sql.YearMonthIntervalType(), "cannot be sent: CAST"),
        (sql.CalendarIntervalType(), "an INTERVAL DAY TO SECOND can be sent"),
        (sql.StringType("UNICODE_CI"), "has the collation UNICODE_CI"),
        (sql.ArrayType(sql.VariantType()), "column 'c.element' is VARIANT"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(kind: sql.DataType, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        payload_schema(sql.StructType([sql.StructField("c", kind)]))


def test_reserved_and_repeated_names_are_refused() -> None:
    for names, reason in ((["VS"], "cannot be called 'VS'"), (["a", "a"], "more than one column")):
        schema = sql.StructType([sql.StructField(name, sql.LongType()) for name in names])
        with pytest.raises(ConfigurationError, match=reason):
            payload_schema(schema)
