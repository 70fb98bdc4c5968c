"""Figure 10: plan switching with fast-forward, on PySpark replicas through the server (§VI.E.3).

The experiment is :mod:`bench.replicas.switching`; here it becomes a figure. It needs Spark and
some minutes even when it is quick, so that it runs only where that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bench.figures.measuring import Step
from bench.figures.outcome import Finding, Outcome, Panel, Point, Series
from bench.figures.sizes import Size
from bench.measure import Figure
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from bench.replicas.switching import Switching

ALONE: Final = ("UDF0", "UDF1")
MERGED: Final = "merged"
FEEDBACK: Final = "merged with feedback"
VARIANTS: Final = (*ALONE, MERGED, FEEDBACK)
LEAST: Final = 4.8


def figure_10(size: Size, seed: int, step: Step) -> Outcome:
    """Two plans that are dear in turns: alone, merged, and merged with feedback."""
    try:
        from bench.replicas.switching import switch_plans
    except ImportError as error:
        raise ConfigurationError(
            f"Figure 10 runs PySpark replicas and needs {error.name}: install lmerge[spark,server],"
            " or leave it out (--only 2,3,4,5,6,7,8,9)"
        ) from None
    setting = _setting(size, seed)
    done: list[str] = []

    def said(text: str) -> None:
        done.append(text)
        step(len(done) / len(VARIANTS))

    found = switch_plans(setting, VARIANTS, said)
    return of_results(
        {name: outcome.as_json() for name, outcome in found.items()},
        {
            "rows": setting.rows,
            "rows_of_a_kind": setting.runs,
            "cheap_us": setting.cheap_us,
            "dear_us": setting.dear_us,
        },
        full=size.name == "full",
    )


def _setting(size: Size, seed: int) -> Switching:
    from bench.replicas.switching import Switching

    if size.name == "full":
        return Switching(seed=seed)
    rows = 40_000 if size.name == "quick" else 4_000
    return Switching(rows=rows, runs=(rows // 20, rows * 3 // 20), seed=seed)


def of_results(
    found: dict[str, dict[str, Any]], parameters: dict[str, Any], *, full: bool
) -> Outcome:
    """The figure of what :func:`bench.replicas.switching.switch_plans` found, as JSON."""
    seconds = {name: float(each["seconds"]) for name, each in found.items()}
    best_alone = min(seconds[name] for name in ALONE)
    gain = best_alone / seconds[FEEDBACK]
    progress = Panel(
        "progress", "s since the input was there", "s of input that the output is stable past",
        [Series(name, _progress(each)) for name, each in found.items() if name in VARIANTS],
        over_time=True,
    )  # fmt: skip
    taken = Panel(
        "time", "1 UDF0, 2 UDF1, 3 merged, 4 with feedback", "s until the output is complete",
        [
            Series(name, [Point.exactly(i + 1, seconds[name])])
            for i, name in enumerate(VARIANTS)
        ],
        "lower",
    )  # fmt: skip
    merged, fed = seconds[MERGED], seconds[FEEDBACK]
    findings = [
        Finding(
            f"merged with feedback the plans take {fed:.0f} s, {gain:.1f} times as fast as the"
            f" better plan alone ({best_alone:.0f} s)",
            fed < 0.7 * best_alone,
            timed=True,
        ),
        Finding(
            f"without feedback the merge takes {merged:.0f} s: following the faster plan is not"
            " enough",
            merged > 1.3 * fed,
            timed=True,
        ),
        Finding(
            f"with feedback rows are skipped: {sum(found[FEEDBACK]['rows_skipped'].values()):,.0f}",
            sum(found[FEEDBACK]["rows_skipped"].values()) > 0,
        ),
    ]
    least = LEAST if full else None
    name = "merged with feedback against the better single plan"
    return Outcome(
        parameters,
        [progress, taken],
        findings,
        {name: str(each["digest"]) for name, each in found.items()},
        numbers=[Figure(name, gain, at_least=least)],
        notes=[
            "Each plan is a replica with a Spark of its own; the clock runs from when the input is"
            " there, with Spark started.",
        ],
    )


def _progress(outcome: dict[str, Any]) -> list[Point]:
    """How far the furthest stream was at each sample."""
    return [
        Point.exactly(at, float(max(stable.values(), default=0)))
        for at, stable in outcome["timeline_s"]
    ]
