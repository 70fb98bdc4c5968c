"""Plots of the figures' results, as SVG and PNG. The same results give the same files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.figures.outcome import Panel, Series, Span, panels_of
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that stay apart for the colour-blind (Okabe and Ito); what we propose has one of its own
# in every figure, and the merged output is black.
COLOURS: Final = {
    "LMR0": "#56B4E9",
    "LMR1": "#009E73",
    "LMR2": "#CC79A7",
    "LMR3+": "#0072B2",
    "LMR4": "#E69F00",
    "LMR3-": "#D55E00",
    "C+LMR1": "#7F7F7F",
    "LMR3+, lazy (default)": "#0072B2",
    "LMR3+, eager": "#E69F00",
    "without LMerge": "#7F7F7F",
    "merged": "#000000",
    "inputs": "#56B4E9",
    "input a": "#56B4E9",
    "input b": "#E69F00",
    "input c": "#009E73",
    "UDF0": "#56B4E9",
    "UDF1": "#E69F00",
    "merged with feedback": "#0072B2",
}
_OTHERS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS: Final = "os^Dv<>P"
_WIDTH, _HEIGHT = 5.2, 3.5
_ALONE: Final = 7.4
_DPI: Final = 110
_STYLE: Final[Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "lmerge",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
}


def require() -> None:
    """ConfigurationError, with what to do, when the plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "plots need matplotlib: pip install 'lmerge[bench]', or leave them out (--no-plots)"
        ) from None


def draw(number: str, entry: dict[str, Any]) -> dict[str, bytes]:
    """The plot of one figure's JSON by its kind, "svg" and "png"."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = panels_of(entry)
    with matplotlib.rc_context(_STYLE):
        width = _WIDTH * len(panels) if len(panels) > 1 else _ALONE
        figure = Figure(figsize=(width, _HEIGHT), layout="constrained")
        for i, panel in enumerate(panels):
            _draw(figure.add_subplot(1, len(panels), i + 1), panel)
        figure.suptitle(f"Figure {number}. {entry['title']}", fontsize=10, x=0.01, ha="left")
        return {kind: _rendered(figure, kind) for kind in ("svg", "png")}


def write(directory: Path, results: dict[str, Any]) -> dict[str, dict[str, bytes]]:
    """Draw all figures, as files too; the plots by number and kind."""
    require()
    plots: dict[str, dict[str, bytes]] = {}
    for number, entry in results["figures"].items():
        plots[number] = draw(number, entry)
        for kind, data in plots[number].items():
            (directory / f"figure-{number}.{kind}").write_bytes(data)
    return plots


def _rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without the date and the version, so that a plot changes only when its data do.
    nothing = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
    figure.savefig(buffer, format=kind, dpi=_DPI, metadata=nothing)
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel) -> None:
    for span in panel.spans:
        _shade(axes, panel, span)
    for i, series in enumerate(panel.series):
        colour = COLOURS.get(series.label, _OTHERS[i % len(_OTHERS)])
        _line(axes, panel, series, colour, _MARKERS[i % len(_MARKERS)])
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    xs = sorted({point.x for series in panel.series for point in series.points})
    if panel.log_x or (len(xs) <= 6 and not panel.over_time):
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off() if panel.log_x and not panel.log_y else None
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.legend(loc="best")


def _line(axes: Axes, panel: Panel, series: Series, colour: str, marker: str) -> None:
    xs = [point.x for point in series.points]
    middle = [point.median for point in series.points]
    if panel.over_time:
        width = 2.0 if series.label.startswith("merged") else 1.2
        axes.plot(xs, middle, color=colour, linewidth=width, label=series.label)
        return
    axes.plot(xs, middle, color=colour, marker=marker, markersize=4, label=series.label)
    low = [point.low for point in series.points]
    high = [point.high for point in series.points]
    if low != high:
        axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)


def _shade(axes: Axes, panel: Panel, span: Span) -> None:
    first = span.label.split()[0]
    colour = COLOURS.get(f"input {first}", "#bbbbbb")
    axes.axvspan(span.start, span.end, color=colour, alpha=0.15, linewidth=0)
    row = 0.99 if panel.spans.index(span) % 2 == 0 else 0.93
    axes.text(
        span.start, row, f" {span.label}", fontsize=7, ha="left", va="top",
        transform=axes.get_xaxis_transform(), color="#444444",
    )  # fmt: skip
