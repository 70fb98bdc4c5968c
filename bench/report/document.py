"""Puts the figures' results into ``docs/evaluation.md``: ``python -m bench.report.document``.

Everything measured that the document says stands between its markers, and comes from
``bench/results/figures/figures.json``; a test compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.document import ROOT, replaced
from bench.report.compare import load
from bench.report.page import about
from bench.report.paper import REPORTS

DOCUMENT: Final = ROOT / "docs" / "evaluation.md"
RESULTS: Final = ROOT / "bench" / "results" / "figures" / "figures.json"
PEERS: Final = ROOT / "bench" / "results" / "peers.json"


def written(document: str, results: dict[str, Any], peers: dict[str, Any] | None) -> str:
    """The document with these results."""
    document = replaced(document, "run", f"{about(results)}. Made by `{results['command']}`.")
    document = replaced(document, "bounds", _bounds(results["figures"]))
    sections = [_section(number, entry) for number, entry in results["figures"].items()]
    document = replaced(document, "figures", "\n\n".join(sections))
    return replaced(document, "peers", peers_table(peers)) if peers else document


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


def peers_table(results: dict[str, Any]) -> str:
    """The peers' results for a reader of Markdown."""
    machine, rows = results["machine"], results["rows_per_batch"]
    lines = [
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}; commit"
        f" {(results['commit'] or 'unknown')[:12]}, seed {results['seed']}; 3 replicas of"
        f" {results['elements_per_replica']:,} elements, {rows:,} in a batch.",
        "",
        "| case | system | elements/s | peak MiB | latency of a batch, p50 / p99 ms | its answer |",
        "|---|---|--:|--:|--:|---|",
    ]
    for name, case in results["cases"].items():
        for peer, found in case["found"].items():
            lines.append(f"| {name} | {_peer(peer, found)} |")
    lines.append("")
    for number in results["numbers"]:
        bound = "" if number["at_least"] is None else f" (must reach {number['at_least']:g})"
        met = {True: ", met", False: ", **missed**", None: ""}[number["met"]]
        lines.append(f"- {number['name']}: {number['value']:.1f} times{bound}{met}")
    lines += [f"- {peer} was left out: {why}" for peer, why in results["left_out"].items()]
    cases = [f"- *{name}*: {case['what']}." for name, case in results["cases"].items()]
    hows = [f"- {peer}: {how}." for peer, how in results["peers"].items()]
    return "\n".join([*lines, "", "The cases:", "", *cases, "", "What each does:", "", *hows])


def _peer(name: str, found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"{name} | | | | failed: {found['failed']}"
    latency = found["latency_ms"]
    shown = f"{latency['p50']:.1f} / {latency['p99']:.1f}" if latency else ""
    wrong = (
        ("wrong_ends", "wrong ends"),
        ("should_not_exist", "events that should not exist"),
        ("missing", "missing"),
    )
    said = ", ".join(f"{found[key]:,} {what}" for key, what in wrong if found[key])
    answer = f"**wrong**: {said} of {found['events']:,}" if said else "right"
    system = f"{name} {found['version']}".strip()
    return f"{system} | {found['per_s']:,} | {found['peak_mib']:,} | {shown} | {answer}"


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
    text = written(path.read_text("utf-8"), load(RESULTS), load_peers())
    path.write_text(text, encoding="utf-8")


def load_peers() -> dict[str, Any] | None:
    """The peers' results, if there are any."""
    found: dict[str, Any] | None = json.loads(PEERS.read_text("utf-8")) if PEERS.exists() else None
    return found


if __name__ == "__main__":
    main()
