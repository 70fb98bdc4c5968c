"""What the page on replicas shows is so."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import replicas
from lmerge.cli import explain_plan
from lmerge.cli.status import console
from replicas.analysis import analyse
from replicas.loading import load_build, query_of

PAGE = (Path(__file__).parents[2] / "docs" / "replicas.md").read_text("utf-8")


def explained(spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    [(name, text)] = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.S)
    (folder / name).write_text(text, "utf-8")
    [asked] = re.findall(r"<!-- explained: (\S+) -->", PAGE)
    df, options = query_of(load_build(f"{folder}/{asked}"), asked, spark)
    mode = options["mode"]
    console().print(explain_plan._render(asked, mode, analyse(df, mode)), end="")
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


def test_the_plan_is_explained_as_it_is_printed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [printed] = re.findall(r"<!-- explained: \S+ -->\n```\n(.*?)\n```", PAGE, re.S)
    assert explained(spark, tmp_path, capsys) == printed


def test_what_the_examples_call_is_there_and_takes_what_they_give() -> None:
    blocks = re.findall(r"<!-- python: [^>]* -->\n```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 3
    calls = [
        (node.func.attr, node)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "replicas"
    ]
    assert {name for name, _ in calls} == {"attach", "register", "feed", "fast_forward"}
    for name, node in calls:
        names = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        inspect.signature(getattr(replicas, name)).bind(*node.args, **dict.fromkeys(names))
        unknown = set(names) - set(inspect.signature(getattr(replicas, name)).parameters)
        assert not unknown, f"{name} has no {unknown}"


def test_options_and_counters_named_on_the_page_exist() -> None:
    from replicas.analysis import DECLARABLE
    from replicas.sink import Counters

    for name in DECLARABLE:
        assert f"`{name}=True`" in PAGE, name
    for name in Counters().values():
        assert f"`{name}`" in PAGE, name
