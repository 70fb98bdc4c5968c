"""The committed code of the wire contract is what ``proto/`` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proto_generation import PROTO, ROOT, generate


def test_the_generated_code_is_that_of_the_contract(tmp_path: Path) -> None:
    generate(tmp_path / "v1")
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "v1").iterdir()}
    committed = {
        path.name: path.read_text("utf-8")
        for path in (ROOT / "lmerge" / "v1").iterdir()
        if path.is_file()
    }
    assert made.keys() == committed.keys()
    for name, text in made.items():
        assert text == committed[name], f"lmerge/v1/{name} is out of date: run `make proto`"


@pytest.mark.parametrize("path", sorted(PROTO.rglob("*.proto")), ids=lambda path: path.name)
def test_the_contract_is_in_the_standard_style(path: Path) -> None:
    """What buf's STANDARD rules ask for, as far as it can be read off the text."""
    text = re.sub(r"//.*", "", path.read_text("utf-8"))
    assert "package lmerge.v1;" in text
    assert path.parent == PROTO / "lmerge" / "v1"
    assert all(name.endswith("Service") for name in re.findall(r"^service (\w+)", text, re.M))
    calls = re.findall(r"rpc (\w+)\((?:stream )?(\w+)\) returns \((?:stream )?(\w+)\)", text)
    for name, request, response in calls:
        assert (request, response) == (f"{name}Request", f"{name}Response")
    for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.S):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        values = re.findall(r"(\w+) = (\d+);", body)
        assert values[0] == (f"{prefix}_UNSPECIFIED", "0")
        assert all(value.startswith(f"{prefix}_") for value, _ in values)
    for field in re.findall(r"^\s+(?:optional |repeated )?[\w.]+ (\w+) = \d+;", text, re.M):
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*|[A-Z][A-Z0-9_]*", field), field
