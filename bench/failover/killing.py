"""Kills the leading replica of a real deployment, many times, and times what its consumer gets.

The deployment is the demo's: ZooKeeper, a server, two PySpark replicas with different plans, on
input that is written meanwhile. A gap is the longest time without anything new for the consumer in
a part of the run: from a kill until the replica is back, and, for comparison, in the calm between
two kills. Every kill's gap is kept, so that the histogram is of all of them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.measure import Figure, Result
from lmerge.cli.demonstration.baseline import restart_gap
from lmerge.cli.demonstration.commands import until
from lmerge.cli.demonstration.samples import EVERY_S, Samples
from lmerge.cli.demonstration.scene import FIRST, MERGE, PLANS, Scene, conf
from lmerge.cli.demonstration.watching import Watcher
from replicas.plans.monitoring import SCHEMA

INTERVALS: Final = 3


@dataclass(frozen=True)
class Scale:
    """How much is done."""

    kills: int = 20
    calm_s: float = 8.0  # after each return; a quarter of it is not counted
    restarts: int = 3  # of a query alone
    seed: int = 0


SMALL: Final = Scale(kills=1, calm_s=3.0, restarts=1)
FULL: Final = Scale()


def failover(scale: Scale, directory: Path, say: Callable[[str], None]) -> Result:
    """The whole run."""
    pick = random.Random(scale.seed)  # when to kill; data, and no secret
    with Samples(directory / "before", SCHEMA, scale.seed):
        alone = []
        for number in range(scale.restarts):
            found = restart_gap(
                f"{PLANS}:{FIRST[0]}", conf(directory / "before"), directory / f"alone-{number}"
            )
            alone.append(found["restart_s"])
            say(f"one query, killed and restarted: {alone[-1]:.2f} s without results")
    with ExitStack() as stack:
        scene = Scene(directory, say)
        samples = stack.enter_context(Samples(scene.input, SCHEMA, scale.seed))
        stack.callback(scene.deployment.down)
        scene.up()
        watcher = Watcher(scene.server, MERGE)
        stack.callback(watcher.stop)
        until("output", lambda: bool(watcher.latest) or bool(watcher.broken))
        calm = [_calm(watcher, scale.calm_s, pick)]
        kills: list[dict[str, Any]] = []
        for number in range(scale.kills):
            leader = scene.leader()
            death = scene.kill(leader, scene.deployment.pid(leader))
            gap = watcher.longest_gap(death.killed, death.returned)
            kills.append({"stream": leader, "gap_s": gap, "away_s": death.returned - death.killed})
            calm.append(_calm(watcher, scale.calm_s, pick))
            say(f"kill {number + 1} of {scale.kills}: {leader}, longest gap {gap:.2f} s")
        start = time.monotonic()
        status, _ = scene.cut_over(FIRST[1], INTERVALS, say)
        cutover = watcher.longest_gap(start, time.monotonic())
        end = samples.finish()
        until("the output is complete", lambda: bool(watcher.broken) or watcher.stable >= end)
        scene.deployment.down()
        compared = scene.compare(watcher, end)
    gaps = sorted(kill["gap_s"] for kill in kills)
    usual, middle = max(calm), statistics.median(gaps)
    return Result(
        [
            Figure("gap around a kill, p50, against the longest without", middle / usual, "x",
                   at_most=1.2),
            Figure("gap around a kill, most, against the longest without", gaps[-1] / usual, "x",
                   at_most=2.0),
            Figure("gap around a kill, p50, against a query restarted alone",
                   middle / statistics.median(alone), "x", at_most=0.1),
            Figure("the same, most", gaps[-1] / statistics.median(alone), "x"),
            Figure("events lost", compared.lost, "", at_most=0),
            Figure("events twice or wrong", compared.duplicated_or_wrong, "", at_most=0),
            Figure("cutover: its longest gap beyond the usual", max(0.0, cutover - usual), "s",
                   at_most=EVERY_S),
        ],
        {
            "events": compared.events, "broken": watcher.broken, "cutover_status": status,
            "usual_gaps_s": calm, "kills": kills, "alone_s": alone, "cutover_gap_s": cutover,
            "trigger_interval_s": EVERY_S,
        },
    )  # fmt: skip


def _calm(watcher: Watcher, seconds: float, pick: random.Random) -> float:
    """The longest gap while nothing happens; of a length that differs, so that kills do."""
    start = time.monotonic() + seconds / 4
    end = start + seconds * pick.uniform(0.5, 1.0)
    until("calm", lambda: time.monotonic() > end)
    return watcher.longest_gap(start, end)
