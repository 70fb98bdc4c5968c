"""``lmerge explain-plan`` as a person and as a program run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmerge.cli.main import main

QUERY = """\
from pyspark.sql import functions as F

def build(spark):
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    counts = rows.groupBy(F.window("timestamp", "10 seconds"), F.col("value") % 3).count()
    return counts, {"mode": "update"}
"""


def _explained(file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmerge", "explain-plan", str(file), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_explains_a_plan(tmp_path: Path) -> None:
    file = tmp_path / "my_query.py"
    file.write_text(QUERY, "utf-8")
    said = _explained(file, "--conf", "spark.sql.session.timeZone=UTC")
    assert said.returncode == 0, said.stderr
    for part in ("in update mode: R3", "Aggregate by [window", "Source rate", "20 s", "revise"):
        assert part in said.stdout
    found = _explained(file, "--mode", "append", "--json")
    assert found.returncode == 0, found.stderr
    values = json.loads(found.stdout)
    assert values["restriction"] == "R2"
    assert values["mode"] == "append"
    assert values["window"] == {
        "column": "window", "duration_us": 10_000_000, "slide_us": 10_000_000
    }  # fmt: skip
    assert values["steps"][0]["operator"].startswith("Source rate")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.py:build"], "no such file: nowhere.py"),
        (["nowhere.py", "--conf", "x"], "--conf takes KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain-plan", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert len(said.splitlines()) == 1


def test_without_pyspark_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("replicas", "pyspark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["explain-plan", "query.py"]) == 2
    assert "this needs PySpark" in capsys.readouterr().err
