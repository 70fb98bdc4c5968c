"""Puts measured figures into the documents: ``python -m bench.document`` after a full run.

What stands between two markers of a document comes from a file in ``bench/results`` and from
nowhere else; a test compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
PERFORMANCE: Final = ROOT / "docs" / "performance.md"
CORE: Final = ROOT / "bench" / "results" / "core.json"


def replaced(document: str, name: str, text: str) -> str:
    """The document with ``text`` between the markers of ``name``."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = document.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def core_table(results: dict[str, Any]) -> str:
    """The figures of ``bench.core`` for a reader of Markdown."""
    machine = results["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']},"
        f" {packages}; seed {results['seed']}.",
        "",
        "| figure | measured | must reach | met |",
        "|---|--:|--:|---|",
    ]
    for experiment in results["experiments"].values():
        for f in experiment["figures"]:
            bound = ""
            if f["at_least"] is not None:
                bound = f"≥ {f['at_least']:g} {f['unit']}"
            elif f["at_most"] is not None:
                bound = f"≤ {f['at_most']:g} {f['unit']}"
            met = {True: "yes", False: "**no**", None: ""}[f["met"]]
            lines.append(f"| {f['name']} | {f['value']:,.2f} {f['unit']} | {bound} | {met} |")
    return "\n".join(lines)


def write_core() -> None:
    """Bring ``docs/performance.md`` up to date with ``bench/results/core.json``."""
    table = core_table(json.loads(CORE.read_text("utf-8")))
    PERFORMANCE.write_text(replaced(PERFORMANCE.read_text("utf-8"), "core", table), "utf-8")


if __name__ == "__main__":
    write_core()
