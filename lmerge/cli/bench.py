"""``lmerge bench``: the paper's evaluation repeated on this machine, as plots and a page.

The experiments are in the package ``bench``, which is installed beside ``lmerge`` and loaded only
when a benchmark is asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli.exits import Exit
from lmerge.cli.terminal import Terminal
from lmerge.errors import ConfigurationError

if TYPE_CHECKING:
    from bench.figures.experiments import Experiment

OUTPUT: Final = Path("lmerge-figures")
CHANGED: Final = 1
"""The exit status of a comparison that found a difference."""

DESCRIPTION: Final = """\
Repeats the evaluation of the LMerge paper on this machine (figures), makes plots and a page of its
results (report), and says what differs between two results (compare).
"""

FIGURES: Final = """\
Repeats figures of the paper: memory and throughput against inputs (2, 3), output size against
disorder (4), throughput against lag (5), stable frequency (6), ordering first against merging
directly (7), bursts smoothed (8), congestion masked (9), plan switching on PySpark replicas (10).
Writes figures.json, a plot of each as SVG and PNG, and report.html, one page with all of them.
Without --only all but 10 run, which starts Spark and takes long: ask for it.
"""

COMPARE: Final = """\
Says for each figure which lines differ: those whose points lie outside the other's spread, and by
more than the tolerance. What is exact (counts, bytes) differs when any value does.

exit status: 0 nothing differs, 1 something does, 2 the files cannot be compared
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "bench",
        help="repeat the paper's evaluation on this machine",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_figures(kinds)
    _add_report(kinds)
    _add_compare(kinds)


def _add_figures(kinds: Any) -> None:
    parser = kinds.add_parser(
        "figures",
        help="repeat the paper's figures",
        description=FIGURES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a minute or two")
    parser.add_argument("--only", metavar="N,N", help="these figures, for example 7,8")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other data; default 0")
    parser.add_argument(
        "-o", "--output", type=Path, default=OUTPUT, metavar="DIR", help=f"default: {OUTPUT}"
    )
    parser.add_argument("--no-plots", action="store_true", help="results alone, no matplotlib")
    parser.set_defaults(run=run_figures)


def _add_report(kinds: Any) -> None:
    parser = kinds.add_parser("report", help="make plots and the page of results that are there")
    parser.add_argument("results", type=Path, metavar="FIGURES.json")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="default: where the results are"
    )
    parser.set_defaults(run=run_report)


def _add_compare(kinds: Any) -> None:
    parser = kinds.add_parser(
        "compare",
        help="say what differs between two results",
        description=COMPARE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", type=Path, metavar="A.json")
    parser.add_argument("b", type=Path, metavar="B.json")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, metavar="SHARE", help="of a time; default 0.1"
    )
    parser.set_defaults(run=run_compare)


def run_figures(arguments: argparse.Namespace) -> int:
    """Measures, and writes the results."""
    with _installed():
        from bench.figures import experiments, sizes
        from bench.report import compare, files, plots
    if arguments.seed < 0:
        raise ConfigurationError("--seed must not be negative")
    chosen = _chosen(arguments.only, experiments.ON_THE_CORE)
    draw = not arguments.no_plots
    if draw:
        plots.require()  # before the minutes of work, not after them
    size = sizes.QUICK if arguments.quick else sizes.FULL
    with Terminal() as terminal, _bar() as progress:
        results = experiments.run(chosen, size, arguments.seed, progress, terminal.say)
    path = arguments.output / files.RESULTS
    if path.exists():
        results = files.merged(compare.load(path), results)
    files.write_results(arguments.output, results)
    shown = files.write_report(arguments.output, results, draw=draw)
    missed = _print_numbers(results)
    print(f"written to {path} and {shown}")
    return CHANGED if missed else Exit.OK


def run_report(arguments: argparse.Namespace) -> int:
    """Draws results again."""
    with _installed():
        from bench.report import compare, files
    results = compare.load(arguments.results)
    print(files.write_report(arguments.output or arguments.results.parent, results))
    return Exit.OK


def run_compare(arguments: argparse.Namespace) -> int:
    """Compares two results."""
    with _installed():
        from bench.report import compare
    a, b = (compare.load(path) for path in (arguments.a, arguments.b))
    changes = compare.compare(a, b, arguments.tolerance)
    _print_changes(changes)
    changed = [change for change in changes if change.changed]
    print(f"{len(changed)} of {len(changes)} lines differ beyond their spread")
    return CHANGED if changed else Exit.OK


def _chosen(only: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    every = (*usual, "10")
    if only is None:
        return usual
    wanted = [word.strip() for word in only.split(",")]
    unknown = [word for word in wanted if word not in every]
    if unknown:
        raise ConfigurationError(
            f"there is no figure {unknown[0]!r}: --only takes some of {','.join(every)}"
        )
    return tuple(number for number in every if number in wanted)


@contextmanager
def _installed() -> Iterator[None]:
    """Says what is missing when a benchmark cannot be loaded."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the benchmarks need {error.name}, which is not installed: pip install 'lmerge[bench]'"
        ) from None


@contextmanager
def _bar() -> Iterator[Callable[[Experiment, float], None]]:
    """A bar with an estimate of the time left, when stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        task = progress.add_task("compiling", total=1.0, left="")

        def show(experiment: Experiment, share: float) -> None:
            # rich's own estimate looks at the last half minute, in which a figure's speed says
            # little about the next one's.
            elapsed = progress.tasks[0].elapsed or 0.0
            left = f"about {elapsed * (1 - share) / share:.0f} s left" if share > 0.02 else ""
            description = f"figure {experiment.number}: {experiment.title[:48]}"
            progress.update(task, description=description, completed=share, left=left)

        yield show


def _print_numbers(results: dict[str, Any]) -> bool:
    """What must be reached, and whether anything was not."""
    missed = False
    for number, entry in results["figures"].items():
        for each in entry["numbers"]:
            met = each["met"]
            said = "" if met is None else ", met" if met else ", MISSED"
            bound = each["at_least"] if each["at_least"] is not None else each["at_most"]
            words = "at least" if each["at_least"] is not None else "at most"
            limit = "" if bound is None else f" ({words} {bound:g}{said})"
            print(f"figure {number}: {each['name']}: {each['value']:.2f}{limit}")
            missed |= met is False
    return missed


def _print_changes(changes: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("figure", "panel", "line"):
        table.add_column(heading)
    for heading in ("B / A", "points beyond"):
        table.add_column(heading, justify="right")
    table.add_column("")
    words = {True: "better", False: "worse", None: ""}
    for change in changes:
        said = words[change.better] if change.changed else "as before"
        table.add_row(
            change.figure, change.panel, change.series, f"{change.ratio:.3f}",
            f"{change.changed} of {change.points}", said or "differs",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 110).print(table)
