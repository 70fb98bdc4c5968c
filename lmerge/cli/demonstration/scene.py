"""A deployment of two plans of one query, its input, and what is done to it.

What ``lmerge demo --live`` tells as a story, and the benchmark of failover does many times.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.calls import Calls
from lmerge.cli.demonstration.commands import Deployment, send, until
from lmerge.cli.demonstration.watching import Event, Watcher, text_of
from lmerge.errors import LMergeError

MERGE: Final = "usage"
PLANS: Final = "replicas.plans.monitoring"
FIRST: Final = ("aggressive", "conservative")
NEXT: Final = "staged"

_DEPLOYMENT: Final = """\
merge = "{merge}"

[[servers]]
name = "server"
listen = "127.0.0.1:0"

{plans}"""
_PLAN: Final = """\
[[plans]]
name = "{name}"
build = "{build}"
conf = {{ "spark.lmerge.plans.input" = "{directory}" }}

"""


@dataclass(frozen=True)
class Death:
    """A replica was killed, and came back."""

    stream: str
    killed: float
    returned: float


@dataclass(frozen=True)
class Compared:
    """What a consumer has, against a batch job over the same input."""

    events: int
    lost: int
    duplicated_or_wrong: int


class Scene:
    """One deployment in a directory."""

    def __init__(self, directory: Path, on_line: Callable[[str], None]) -> None:
        self.input = directory / "input"
        self.deployment = Deployment(directory, on_line)
        self.server = ""
        self._file = directory / "deployment.toml"
        self._calls = Calls()

    def up(self) -> None:
        """Everything is ready when it returns."""
        plans = (
            _PLAN.format(name=name, build=f"{PLANS}:{name}", directory=self.input) for name in FIRST
        )
        self._file.write_text(_DEPLOYMENT.format(merge=MERGE, plans="".join(plans)))
        self.deployment.up(self._file)
        self.server = self.deployment.ps()["servers"][0]["address"]

    def streams(self) -> dict[str, dict[str, Any]]:
        """What the server says of each stream; nothing while it does not answer."""
        try:
            found = self._calls.describe(self.server, MERGE)
        except LMergeError:
            return {}
        return {
            each.name: {
                "state": each.state,
                "connected": each.connected,
                "incarnation": each.incarnation,
                "lag": each.lag if each.HasField("lag") else None,
                "share": each.share,
                "verified": each.verified,
                "counters": dict(each.counters),
            }
            for each in (() if found is None else found.streams)
        }

    def leader(self) -> str:
        """Who delivered most of the output first."""
        streams = self.streams()
        return max(streams, key=lambda name: float(streams[name]["share"]))

    def kill(self, stream: str, pid: int) -> Death:
        """``kill -9``; returns when the replica is back in the merge, and goes on."""
        before = self.streams()[stream]["incarnation"]
        killed = time.monotonic()
        send(pid, signal.SIGKILL)

        def back() -> bool:
            found = self.streams().get(stream, {})
            return bool(
                found.get("connected")
                and found["incarnation"] > before
                and found["state"] == "joined"
                and found["lag"] is not None
            )

        until(f"{stream} comes back", back)
        return Death(stream, killed, time.monotonic())

    def cut_over(
        self, old: str, intervals: int, on_line: Callable[[str], None]
    ) -> tuple[int, list[str]]:
        """``lmerge cutover`` from a plan to the next one: its status, and what it said."""
        settings = [f"--conf={key}={value}" for key, value in conf(self.input).items()]
        command = self.deployment.start(
            "cutover", "--to", f"{PLANS}:{NEXT}", "--name", NEXT, "--replace", old,
            "--intervals", str(intervals), "--json", *settings, on_line=on_line,
        )  # fmt: skip
        try:
            return command.wait(), command.lines
        finally:
            command.kill()

    def compare(self, watcher: Watcher, end: int) -> Compared:
        """With a batch job, of what starts before ``end``."""
        from replicas.plans.monitoring import truth
        from replicas.session import session

        found = Counter({e: n for e, n in watcher.events().items() if e[1] < end})
        spark = session("truth")
        try:
            expected: Counter[Event] = Counter()
            for row in truth(spark, self.input).where(f"vs < {end}").toArrow().to_pylist():
                vs, ve = row.pop("vs"), row.pop("ve")
                expected[text_of(row), vs, ve] += 1
        finally:
            spark.stop()
        lost, more = sum((expected - found).values()), sum((found - expected).values())
        return Compared(sum(expected.values()), lost, more)


def conf(directory: Path) -> dict[str, str]:
    """Spark's, for a query over an input."""
    return {"spark.lmerge.plans.input": str(directory)}
