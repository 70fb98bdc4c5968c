"""What users have without lmerge: one Spark query, killed, and started again."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lmerge.cli.demonstration.commands import Command

RESULTS_BEFORE: Final = 6


def restart_gap(build: str, conf: dict[str, str], directory: Path) -> dict[str, float]:
    """Its longest time without results before a kill, and the one around it, in seconds."""
    before = _run(build, conf, directory, lambda found: len(found) >= RESULTS_BEFORE)
    after = _run(build, conf, directory, lambda found: len(found) >= 1)
    # The first results came while Spark was still warming up.
    gaps = [later - earlier for earlier, later in pairwise(before[1:])]
    return {"usual_s": max(gaps), "restart_s": after[0] - before[-1]}


def _run(
    build: str, conf: dict[str, str], directory: Path, enough: Callable[[list[float]], bool]
) -> list[float]:
    settings = [f"--conf={key}={value}" for key, value in conf.items()]
    command = Command(
        "-m", "replicas.plans.alone", build, "--checkpoint", str(directory), *settings,
        on_line=lambda line: None,
    )  # fmt: skip
    try:
        command.until("a query alone", lambda: enough(_times(command.lines)))
        return _times(command.lines)
    finally:
        command.kill()


def _times(lines: list[str]) -> list[float]:
    found: list[dict[str, Any]] = [json.loads(each) for each in list(lines) if each[:1] == "{"]
    return [each["at"] for each in found]
