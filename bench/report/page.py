"""One HTML page with all figures beside what the paper reports; it refers to nothing outside it."""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Final

from bench.report.paper import REPORTS

_CSS: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
       padding: 0 1rem; color: #222; background: #fff; }
h1 { margin-bottom: 0.2rem; } h2 { margin: 2.5rem 0 0.5rem; border-top: 1px solid #ddd;
       padding-top: 1.2rem; }
img { max-width: 100%; height: auto; }
.about, .notes, footer { color: #666; font-size: 13px; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
@media (max-width: 760px) { .two { grid-template-columns: 1fr; } }
.two h3 { margin: 0.3rem 0; font-size: 14px; }
.verdict { border-left: 4px solid #009E73; padding: 0.3rem 0.8rem; background: #f3faf7; }
.verdict.differs { border-color: #D55E00; background: #fdf5ef; }
table { border-collapse: collapse; font-size: 13px; margin: 0.8rem 0; }
td, th { border: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
details { margin: 0.6rem 0; } summary { cursor: pointer; color: #444; }
code { background: #f5f5f5; padding: 0 0.2rem; }
"""


def page(results: dict[str, Any], plots: dict[str, dict[str, bytes]]) -> str:
    """The page."""
    body = [_head(results), _summary(results["figures"])]
    body += [_figure(n, entry, plots.get(n, {})) for n, entry in results["figures"].items()]
    title = "The LMerge paper's evaluation, repeated"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_CSS}</style></head><body>\n<h1>{title}</h1>\n"
        + "\n".join(body)
        + "\n<footer>Repeats are run in turns; a point is their median and a band goes from the"
        " smallest to the largest. Times are of the CPU.</footer>\n</body></html>\n"
    )


def about(results: dict[str, Any]) -> str:
    """Where the results come from, in a line."""
    machine = results["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    commit = results["commit"] or "unknown"
    return (
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python"
        f" {machine['python']}, {packages}; commit {commit[:12]}; size {results['size']}, seed"
        f" {results['seed']}, {results['repeats']} repeats"
    )


def _head(results: dict[str, Any]) -> str:
    return (
        f'<p class="about">{escape(about(results))}.<br>Made by'
        f" <code>{escape(results['command'])}</code></p>"
    )


def _summary(figures: dict[str, Any]) -> str:
    rows = []
    for number, entry in figures.items():
        same = all(finding["holds"] for finding in entry["findings"])
        bounds = "<br>".join(escape(_number(each)) for each in entry["numbers"])
        rows.append(
            f'<tr><td><a href="#figure-{number}">Figure {number}</a></td>'
            f"<td>{escape(entry['title'])}</td><td>{'yes' if same else 'in part'}</td>"
            f"<td>{bounds}</td></tr>"
        )
    return (
        "<table><tr><th>figure</th><th>shows</th><th>shape agrees</th><th>must reach</th></tr>"
        + "".join(rows)
        + "</table>"
    )


def _number(number: dict[str, Any]) -> str:
    said = f"{number['name']}: {number['value']:.2f} {number['unit']}"
    if number["at_least"] is not None:
        said += f" (at least {number['at_least']:g})"
    if number["at_most"] is not None:
        said += f" (at most {number['at_most']:g})"
    return said + {True: ", met", False: ", MISSED", None: ""}[number["met"]]


def _figure(number: str, entry: dict[str, Any], plots: dict[str, bytes]) -> str:
    same = all(finding["holds"] for finding in entry["findings"])
    picture = ""
    if "svg" in plots:
        data = base64.b64encode(plots["svg"]).decode("ascii")
        said = escape(f"Plot of figure {number}: {entry['title']}")
        picture = f'<img alt="{said}" src="data:image/svg+xml;base64,{data}">'
    points = "".join(
        f"<li>{'✓' if f['holds'] else '✗'} {escape(f['text'])}</li>" for f in entry["findings"]
    )
    equal = len(set(entry["tdb"].values()))
    hashes = (
        f"{len(entry['tdb'])} outputs and inputs were compared by the hash of their TDB; those"
        f" that must agree do ({equal} different {'one' if equal == 1 else 'ones'}, one for each"
        " input data set)."
    )
    parameters = "; ".join(f"{name} {value}" for name, value in entry["parameters"].items())
    return f"""<h2 id="figure-{number}">Figure {number}. {escape(entry["title"])}</h2>
{picture}
<p class="verdict{"" if same else " differs"}">{escape(entry["verdict"])}</p>
<div class="two"><div><h3>The paper reports</h3><p>{escape(REPORTS[number])}</p></div>
<div><h3>This run shows</h3><ul>{points}</ul></div></div>
<p class="notes">{escape(" ".join(entry["notes"]))} {hashes}</p>
<details><summary>Parameters and values</summary><p class="notes">{escape(parameters)};
{entry["seconds"]} s</p>{"".join(map(_table, entry["panels"]))}</details>"""


def _table(panel: dict[str, Any]) -> str:
    if panel["over_time"]:
        return ""
    xs = sorted({point["x"] for series in panel["series"] for point in series["points"]})
    head = "".join(f"<th>{x:g}</th>" for x in xs)
    rows = ""
    for series in panel["series"]:
        at = {point["x"]: point for point in series["points"]}
        cells = "".join(f'<td class="n">{_cell(at.get(x))}</td>' for x in xs)
        rows += f"<tr><td>{escape(series['label'])}</td>{cells}</tr>"
    caption = escape(f"{panel['y']}, by {panel['x']}")
    return f"<table><caption>{caption}</caption><tr><th></th>{head}</tr>{rows}</table>"


def _cell(point: dict[str, float] | None) -> str:
    if point is None:
        return ""
    if point["low"] == point["high"]:
        return f"{point['median']:,.4g}"
    return f"{point['median']:,.4g} ({point['low']:,.4g} – {point['high']:,.4g})"
