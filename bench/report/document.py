"""Puts the figures' results into ``docs/evaluation.md``: ``python -m bench.report.document``.

Everything measured that the document says stands between its markers, and comes from
``bench/results/figures/figures.json``; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.document import ROOT, replaced
from bench.report.compare import load
from bench.report.page import about
from bench.report.paper import REPORTS

DOCUMENT: Final = ROOT / "docs" / "evaluation.md"
RESULTS: Final = ROOT / "bench" / "results" / "figures" / "figures.json"


def written(document: str, results: dict[str, Any]) -> str:
    """The document with these results."""
    document = replaced(document, "run", f"{about(results)}. Made by `{results['command']}`.")
    document = replaced(document, "bounds", _bounds(results["figures"]))
    sections = [_section(number, entry) for number, entry in results["figures"].items()]
    return replaced(document, "figures", "\n\n".join(sections))


def _bounds(figures: dict[str, Any]) -> str:
    lines = ["| figure | what | measured | must reach | met |", "|---|---|--:|--:|---|"]
    for number, entry in figures.items():
        for each in entry["numbers"]:
            bound = ""
            if each["at_least"] is not None:
                bound = f"≥ {each['at_least']:g}"
            elif each["at_most"] is not None:
                bound = f"≤ {each['at_most']:g}"
            met = {True: "yes", False: "**no**", None: ""}[each["met"]]
            lines.append(f"| {number} | {each['name']} | {each['value']:.2f} | {bound} | {met} |")
    return "\n".join(lines)


def _section(number: str, entry: dict[str, Any]) -> str:
    findings = "\n".join(
        f"- {'✓' if finding['holds'] else '✗'} {finding['text']}" for finding in entry["findings"]
    )
    notes = "\n\n" + " ".join(entry["notes"]) if entry["notes"] else ""
    picture = f"![Figure {number}](../bench/results/figures/figure-{number}.svg)"
    same = all(finding["holds"] for finding in entry["findings"])
    verdict = (
        "The shape agrees with the paper's:"
        if same
        else "The shape agrees in part (✗: it does not):"
    )
    return (
        f"## Figure {number}: {entry['title']}\n\n{picture}\n\n"
        f"*The paper:* {REPORTS[number]}\n\n{verdict}\n\n{findings}{notes}"
    )


def main() -> None:
    """Bring the document up to date."""
    path: Path = DOCUMENT
    path.write_text(written(path.read_text("utf-8"), load(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
