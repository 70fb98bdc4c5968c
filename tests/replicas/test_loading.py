"""The function that builds a query is found, and each mistake is a line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError
from replicas.loading import load_build, query_of


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def test_a_function_of_a_file_is_loaded_once(tmp_path: Path) -> None:
    file = written(tmp_path, "once_query.py", "def build(spark): return 1\nother = build\n")
    assert load_build(f"{file}:build") is load_build(file)
    assert load_build(f"{file}:other") is load_build(file)


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "neighbour_of_query.py", "VALUE = 5\n")
    text = "from neighbour_of_query import VALUE\ndef build(spark): return VALUE\n"
    assert load_build(written(tmp_path, "importing_query.py", text))(None) == 5  # type: ignore[arg-type]  # unused


def test_a_file_takes_no_other_modules_place(tmp_path: Path) -> None:
    file = written(tmp_path, "json.py", "def build(spark): return 'mine'\n")
    assert load_build(file)(None) == "mine"  # type: ignore[arg-type]  # unused
    import json

    assert json.loads("1") == 1


def test_a_function_of_a_module_is_loaded() -> None:
    found: object = load_build("replicas.loading:load_build")
    assert found is load_build


@pytest.mark.parametrize(
    ("text", "function", "said"),
    [
        ("def other(spark): pass\n", "build", "has no function 'build'; it has other"),
        ("x = 1\n", "build", "has no function 'build'; it has none at all"),
        ("build = 3\n", "build", "is no function, but int"),
        ("\n\nraise ValueError('so bad')\n", "build", "line 3: ValueError: so bad"),
        ("\ndef build(:\n", "build", "line 2: SyntaxError"),
        ("import no_such_module_here\n", "build", "line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "build", "line 2: SystemExit"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(
    text: str, function: str, said: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "wrong_query.py", text)
    with pytest.raises(ConfigurationError) as caught:
        load_build(f"{file}:{function}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("nowhere/query.py:build", "no such file: nowhere/query.py"),
        ("no_such_package.query:build", "no such module: no_such_package.query"),
        (":build", "is not FILE.py:FUNCTION"),
        ("query.py:", "is not FILE.py:FUNCTION"),
    ],
)
def test_what_is_not_there_is_said(said: str, answer: str) -> None:
    with pytest.raises(ConfigurationError, match=answer):
        load_build(said)


def test_a_build_gives_a_dataframe_and_perhaps_options(spark: SparkSession) -> None:
    df = spark.range(3)
    assert query_of(lambda _: df, "q", spark) == (df, {})
    assert query_of(lambda _: (df, {"mode": "update"}), "q", spark) == (df, {"mode": "update"})
    with pytest.raises(ConfigurationError, match="must return a DataFrame"):
        query_of(lambda _: 3, "q", spark)
    with pytest.raises(ConfigurationError, match="a dict, not int"):
        query_of(lambda _: (df, 3), "q", spark)


def test_an_error_of_a_build_names_its_line(tmp_path: Path, spark: SparkSession) -> None:
    text = "def build(spark):\n    df = spark.range(3)\n    return df.select('nothing')\n"
    file = written(tmp_path, "failing_query.py", text)
    with pytest.raises(ConfigurationError, match=r"line 3: .*nothing") as caught:
        query_of(load_build(file), file, spark)
    assert "\n" not in str(caught.value)
