"""From the start of a killed server's successor until its health is SERVING.

Events come and go in order, so that exactly so many are live however long the history is. Two
replicas send them; then the server is killed, and started on the same data.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.measure import Figure, Result
from bench.server.processes import play, serving
from bench.server.scale import Scale
from bench.server.streams import sliding

_NAMES = ("a", "b")


def recovery(scale: Scale) -> Result:
    """The start after kill -9, by live events and by history."""
    many, few, times = scale.recovery_live, scale.recovery_few, scale.recovery_history
    found = {
        "many": _run(scale, many, many),
        "longer": _run(scale, many, times * many),
        "few": _run(scale, few, few),
    }
    seconds = {label: numbers["seconds"] for label, numbers in found.items()}
    figures = [
        Figure(f"recovery, {many:,} live", seconds["many"], "s", at_most=10),
        Figure(
            f"recovery, {many:,} live, {times} times the history",
            seconds["longer"],
            "s",
            at_most=10,
        ),
        Figure(f"recovery, {few:,} live", seconds["few"], "s"),
        Figure(
            f"recovery, {times} times the history against one", seconds["longer"] / seconds["many"]
        ),
    ]
    return Result(figures, found)


def _run(scale: Scale, live: int, events: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory,
        serving("flush") as server,
    ):
        paths = sliding(Path(directory), events, live, scale.recovery_rows, _NAMES)
        server.begin("m")
        files = {name: str(path) for name, path in zip(_NAMES, paths, strict=True)}
        play([("replica", {"target": server.target, "merge": "m", "files": files, "wait": True})])
        before = server.describe("m")
        server.kill()
        seconds = server.again()
        after = server.describe("m")
    for field in ("inserts", "stable", "live", "next_sequence"):
        if getattr(before.output, field) != getattr(after.output, field):
            raise RuntimeError(f"{field} is not as it was before the kill")
    return {
        "seconds": round(seconds, 2),
        "events": events,
        "live": int(after.output.live),
        "arrivals_bytes": int(before.log.arrivals_bytes),
        "output_bytes": int(before.log.output_bytes),
        "snapshot_bytes": int(before.log.snapshot_bytes),
        "arrivals": int(before.log.arrivals),
        "snapshot_arrival": int(before.log.snapshot_arrival),
    }
