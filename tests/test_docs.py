"""The examples of the README do what it says."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.document import core_table
from lmerge.server.config import load
from tests.server.serving import server_process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_as_printed() -> None:
    failed, tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_the_shell_examples_print_what_the_readme_shows(tmp_path: Path) -> None:
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```json\n(.*?)```", README, re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    [session] = re.findall(r"```console\n(.*?)```", README, re.S)
    runs = re.findall(r"^\$ lmerge (.*)\n((?:(?!\$ ).*\n)*)", session, re.M)
    assert len(runs) == 3
    for arguments, expected in runs:
        done = subprocess.run(
            [sys.executable, "-m", "lmerge", *shlex.split(arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (done.returncode, done.stderr, done.stdout) == (0, "", expected)


def test_the_servers_examples_do_what_its_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "server.md").read_text("utf-8")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```json\n(.*?)```", page, re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    [session] = re.findall(r"```console\n(.*?)```", page, re.S)
    runs = re.findall(r"^\$ lmerge (.*)\n((?:(?!\$ ).*\n)*)", session, re.M)
    assert len(runs) == 4
    with server_process(tmp_path / "data") as server:
        for arguments, expected in runs:
            said = arguments.replace("127.0.0.1:7070", f"127.0.0.1:{server.port}")
            done = subprocess.run(
                [sys.executable, "-m", "lmerge", *shlex.split(said)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_the_servers_configuration_on_its_page_is_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "server.md").read_text("utf-8")
    [text] = re.findall(r"<!-- config: loaded by a test -->\n```toml\n(.*?)```", page, re.S)
    file = tmp_path / "server.toml"
    file.write_text(text, "utf-8")
    config = load(file)
    assert config.merges[0].name == "orders"
    assert config.limits.retention_bytes == 4 << 30


@pytest.mark.parametrize("seed", [7, 1])
def test_the_demo_holds_what_it_promises(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lmerge", "demo", "--fast", "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated or wrong 0, promises broken 0" in done.stdout


def test_every_module_example_runs_as_printed() -> None:
    import lmerge
    import lmerge.core.properties
    import lmerge.elements

    for module in (lmerge, lmerge.elements, lmerge.core.properties):
        failed, tried = doctest.testmod(module)
        assert tried > 0, module
        assert failed == 0, module


def test_the_figures_in_the_documents_come_from_the_results() -> None:
    results = ROOT / "bench" / "results"
    core = json.loads((results / "core.json").read_text("utf-8"))
    assert core_table(core) in (ROOT / "docs" / "performance.md").read_text("utf-8")
    policies = (ROOT / "docs" / "policies.md").read_text("utf-8")
    rows = json.loads((results / "policies.json").read_text("utf-8"))["policies"]
    assert len(rows) > 10
    for row in rows:
        shown = f"| `{row['insert']}` | `{row['adjust']}` | {row['stable_lag']:,} |"
        assert f"{shown} {row['inserts']:,} | {row['adjusts']:,} |" in policies
