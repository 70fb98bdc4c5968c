"""What the demo shows: acts, facts, and a live view of the output where there is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lmerge.cli.demonstration.watching import Watcher
from lmerge.times import BEGINNING

EVERY_S: Final = 0.5
PLAIN_EVERY_S: Final = 4.0
BARS: Final = " ▁▂▃▄▅▆▇█"
SPAN_S: Final = 30.0  # of the line of arrivals
MICROS: Final = 1e6

Streams = Callable[[], Mapping[str, Mapping[str, Any]]]


class Screen:
    """Where the story is told; :meth:`close` leaves the terminal as it was."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._watcher: Watcher | None = None
        self._streams: Streams = dict
        self._live: Live | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def act(self, title: str, what: str) -> None:
        """Something begins."""
        self._console.print(f"\n[bold cyan]▶ {title}[/]  [default]{what}[/]")

    def fact(self, text: str) -> None:
        """Something was seen."""
        self._console.print(f"  [bold green]✔[/] {text}")

    def aside(self, text: str) -> None:
        """What a command says."""
        self._console.print(Text(f"    {text}", style="dim"))

    def watch(self, watcher: Watcher, streams: Streams) -> None:
        """Begins the live view."""
        self._watcher, self._streams = watcher, streams
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._thread = threading.Thread(target=self._run, name="screen", daemon=True)
        self._thread.start()

    def unwatch(self) -> None:
        """Ends it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        """Whatever happened."""
        self.unwatch()

    def _run(self) -> None:
        every = PLAIN_EVERY_S if self._live is None else EVERY_S
        while not self._stopping.wait(every):
            watcher = self._watcher
            if watcher is None:
                continue
            if self._live is not None:
                self._live.update(self._view(watcher), refresh=True)
            else:
                self._console.print(f"    {_line(watcher)}")

    def _view(self, watcher: Watcher) -> RenderableType:
        table = Table(box=None, padding=(0, 2), pad_edge=False)
        for column in ("replica", "stream", "behind the output", "first with", "agreed"):
            table.add_column(column, style="bold" if column == "replica" else "")
        for name, each in sorted(self._streams().items()):
            lag = each["lag"]
            table.add_row(
                name,
                f"{each['state']}{'' if each['connected'] else ', away'}",
                "-" if lag is None else f"{max(0, lag) / MICROS:.1f} s",
                f"{each['share']:.0%}",
                f"{each['verified']} intervals",
            )
        return Group(Text(""), Text(_line(watcher)), Text(_arrivals(watcher)), table)

    def report(self, report: Mapping[str, Any]) -> None:
        """The end."""
        table = Table(title="what the consumer saw", title_justify="left", box=None, padding=(0, 2))
        table.add_column("", style="dim")
        table.add_column("", justify="right")
        cutover, alone = report["cutover"], report.get("alone")
        for name, value in (
            ("samples in", f"{report['samples']:,}"),
            ("elements out", f"{report['elements']:,}"),
            ("events of the batch job", f"{report['events']:,}"),
            ("lost", str(report["lost"])),
            ("duplicated or wrong", str(report["duplicated_or_wrong"])),
            ("longest pause, all well", f"{report['usual_gap_s']:.2f} s"),
            (f"longest pause, {report['killed']} killed", f"{report['kill_gap_s']:.2f} s"),
            ("longest pause, plan changed", f"{cutover['gap_s']:.2f} s"),
            (
                "one Spark query killed and restarted",
                "-" if alone is None else f"{alone['restart_s']:.2f} s",
            ),
            ("samples the laggard skipped", f"{report['laggard']['rows_skipped']:,.0f}"),
        ):
            table.add_row(name, value)
        self._console.print()
        self._console.print(table)
        for what, holds in report["held"].items():
            mark = "[bold green]✔[/]" if holds else "[bold red]✘[/]"
            self._console.print(f"  {mark} {what}")


def _line(watcher: Watcher) -> str:
    """The latest result of each host, and how old the stable point is."""
    hosts = "  ".join(
        f"{host}: {row['samples']} samples, cpu {row['cpu']}"
        for host, (_, row) in sorted(watcher.latest.items())
    )
    if watcher.stable == BEGINNING:
        return hosts or "nothing yet"
    return f"{hosts}   final up to {max(0.0, time.time() - watcher.stable / MICROS):.1f} s ago"


def _arrivals(watcher: Watcher) -> str:
    """When something came, in the last while: a hole would be a hole."""
    width = 60
    now, counts = time.monotonic(), [0] * width
    for at in reversed(watcher.arrivals):
        place = int((now - at) / SPAN_S * width)
        if place >= width:
            break
        counts[width - 1 - place] += 1
    most = max(counts) or 1
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)
    return f"{bars}  the last {SPAN_S:g} s"
