"""The acts of ``lmerge demo --live``, in order, and the report at the end.

Everything is real: ZooKeeper, the merge server, Spark, the kill -9. The report says what was seen,
and holds only if all of it does:

- nothing lost, nothing twice: the consumer's TDB is a batch job's over the same input;
- around the kill the output paused for less than half of what a restarted query's does;
- the killed replica came back, the cutover came to its end, and the laggard skipped input.
"""

from __future__ import annotations

import json
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lmerge.cli.demonstration.baseline import restart_gap
from lmerge.cli.demonstration.commands import send, until
from lmerge.cli.demonstration.samples import Samples
from lmerge.cli.demonstration.scene import FIRST, MERGE, NEXT, PLANS, Scene, conf
from lmerge.cli.demonstration.screen import Screen
from lmerge.cli.demonstration.watching import Watcher

CALM_S: Final = 12.0
PAUSE_S: Final = 8.0
INTERVALS: Final = 3
BETTER: Final = 0.5
"""The pause around a kill against that of a restarted query: at most."""


class Story:
    """One telling."""

    def __init__(self, directory: Path, seed: int, screen: Screen, *, quick: bool) -> None:
        self._directory = directory
        self._seed = seed
        self._screen = screen
        self._quick = quick
        self._scene = Scene(directory, screen.aside)
        self.report: dict[str, Any] = {"seed": seed, "machine": platform.platform()}

    def tell(self) -> bool:
        """Whether all of it held."""
        from replicas.plans.monitoring import SCHEMA

        began = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._screen.close)
            if not self._quick:
                with Samples(self._directory / "before", SCHEMA, self._seed):
                    self._alone(self._directory / "before")
            samples = stack.enter_context(Samples(self._scene.input, SCHEMA, self._seed))
            stack.callback(self._scene.deployment.down)
            self._screen.act(
                "with lmerge", "lmerge up deployment.toml: two plans of the same query"
            )
            self._scene.up()
            watcher = Watcher(self._scene.server, MERGE)
            stack.callback(watcher.stop)
            self._screen.watch(watcher, self._scene.streams)
            self._calm(watcher)
            self._kill(watcher)
            self._cut_over(watcher)
            self._lag()
            end = samples.finish()
            until("the output is complete", lambda: bool(watcher.broken) or watcher.stable >= end)
            self._screen.unwatch()
            self.report |= {
                "samples": samples.written, "elements": watcher.elements, "broken": watcher.broken,
            }  # fmt: skip
            self._screen.act("the end", "lmerge down, and a batch job over the same input")
            self._scene.deployment.down()
            self.report |= asdict(self._scene.compare(watcher, end))
        self.report["seconds"] = round(time.monotonic() - began, 1)
        return self._verdict()

    def _alone(self, directory: Path) -> None:
        self._screen.act("without lmerge", "one Spark query, kill -9, started again at once")
        self.report["alone"] = restart_gap(
            f"{PLANS}:{FIRST[0]}", conf(directory), self._directory / "alone"
        )
        seconds = self.report["alone"]["restart_s"]
        self._screen.fact(f"its users saw nothing for {seconds:.1f} s")

    def _calm(self, watcher: Watcher) -> None:
        self._screen.act("all is well", "the consumer sees one stream")
        until("output", lambda: bool(watcher.latest) or bool(watcher.broken))
        calm = CALM_S / 4 if self._quick else CALM_S
        start = time.monotonic() + calm / 3  # Spark is still warming up
        until("calm", lambda: time.monotonic() > start + calm)
        self.report["usual_gap_s"] = watcher.longest_gap(start, time.monotonic())
        self._screen.fact(f"longest pause of the output: {self.report['usual_gap_s']:.2f} s")

    def _kill(self, watcher: Watcher) -> None:
        leader = self._scene.leader()
        pid = self._scene.deployment.pid(leader)
        self._screen.act("the leading replica dies", f"kill -9 {pid} ({leader})")
        death = self._scene.kill(leader, pid)
        gap = watcher.longest_gap(death.killed, death.returned)
        away = death.returned - death.killed
        self.report |= {"killed": leader, "back_after_s": away, "kill_gap_s": gap}
        self._screen.fact(
            f"{leader} came back after {away:.1f} s; the output's longest pause in that time:"
            f" {gap:.2f} s"
        )

    def _cut_over(self, watcher: Watcher) -> None:
        old = next(name for name in FIRST if not self.report["killed"].startswith(name))
        self._screen.act("a new plan, live", f"lmerge cutover --to {PLANS}:{NEXT} --replace {old}")
        start = time.monotonic()
        status, said = self._scene.cut_over(old, INTERVALS, self._stage)
        gap = watcher.longest_gap(start, time.monotonic())
        self.report["cutover"] = {
            "from": old, "to": NEXT, "status": status, "seconds": time.monotonic() - start,
            "gap_s": gap, "said": said,
        }  # fmt: skip
        self._screen.fact(f"longest pause of the output meanwhile: {gap:.2f} s")

    def _stage(self, line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            said = line
        self._screen.aside(str(said.get("stage", line) if isinstance(said, dict) else line))

    def _lag(self) -> None:
        streams = self._scene.streams()
        laggard = next(name for name in streams if name.startswith(self.report["killed"]))
        pid = self._scene.deployment.pid(laggard)
        self._screen.act("a laggard", f"{laggard} is paused for {PAUSE_S:g} s, and goes on behind")
        before: float = streams[laggard]["counters"].get("rows_skipped", 0.0)
        send(pid, signal.SIGSTOP)
        try:
            resumes = time.monotonic() + PAUSE_S
            until("the pause", lambda: time.monotonic() > resumes)
        finally:
            send(pid, signal.SIGCONT)

        def skipped() -> float:
            found = self._scene.streams().get(laggard, {}).get("counters", {})
            return float(found.get("rows_skipped", 0.0) - before)

        until("the laggard skips what nobody needs any more", lambda: skipped() > 0)
        self.report["laggard"] = {"stream": laggard, "rows_skipped": skipped()}
        self._screen.fact(f"told what is needed no more, it skipped {skipped():.0f} samples")

    def _verdict(self) -> bool:
        report, alone = self.report, self.report.get("alone")
        held = {
            "nothing was lost": report["lost"] == 0 and report["events"] > 0,
            "nothing came twice or wrong": report["duplicated_or_wrong"] == 0,
            "the stream kept its promises": report["broken"] is None,
            "the output did not stall": alone is None
            or report["kill_gap_s"] <= BETTER * alone["restart_s"],
            "the cutover was made": report["cutover"]["status"] == 0,
            "the laggard was fast-forwarded": report["laggard"]["rows_skipped"] > 0,
        }
        report["held"] = held
        self._screen.report(report)
        return all(held.values())


def tell(
    seed: int,
    directory: Path | None,
    on_report: Callable[[dict[str, Any]], None],
    *,
    quick: bool,
) -> bool:
    """Tells the story on stdout; whether all of it held."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmerge-")))
        # A signal must not leave processes behind: it ends the story from within.
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            stack.callback(signal.signal, signal.SIGTERM, before)
        story = Story(directory, seed, Screen(), quick=quick)
        held = story.tell()
        on_report(story.report)
        return held
