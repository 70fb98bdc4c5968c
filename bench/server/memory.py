"""The server's resident memory, with many replicas of a stream against few.

Every replica waits for the acknowledgement of an epoch before it sends the next: what is measured
is the merge's state, and not the windows (64 MiB a stream at most), which belong to the traffic.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.measure import Figure, Result
from bench.server.processes import play, serving
from bench.server.scale import MIB, Scale
from bench.server.streams import Prepared, prepare, usual

_MESSAGE_BYTES = MIB // 4


def memory(scale: Scale) -> Result:
    """The server's memory with many replicas against few, on the same logical stream."""
    few, many = scale.replicas
    workload = usual(scale.memory_elements, scale.memory_live, scale.memory_payload, many)
    with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory:
        prepared = prepare(Path(directory), workload, _MESSAGE_BYTES)
        found = {each: _run(prepared, each) for each in scale.replicas}
    name = f"server memory, {many} replicas against {few}"
    figures = [
        Figure(name, found[many]["most"] / found[few]["most"], at_most=1.3),
        Figure(
            "the same beyond an idle server's",
            (found[many]["most"] - found[many]["idle"]) / (found[few]["most"] - found[few]["idle"]),
        ),
    ]
    return Result(figures, {str(each): numbers for each, numbers in found.items()})


def _run(prepared: Prepared, replicas: int) -> dict[str, Any]:
    with serving("none", memory_bytes=16 * MIB) as server:
        server.begin("m")
        idle = server.memory()["now"]
        common = {"target": server.target, "merge": "m"}
        files = {f"s{place}": str(path) for place, path in enumerate(prepared.paths[:replicas])}
        # One process for all: ten would not have two cores to run on.
        replica, consumer = play(
            [
                ("replica", {**common, "files": files, "wait": True}),
                ("consumer", common),
            ]
        )
        if set(replica["states"].values()) != {"joined"}:
            raise RuntimeError(f"a stream was not merged: {replica['states']}")
        after = server.memory()
    return {"idle": idle, "most": after["most"], "end": after["now"], "rows": consumer["rows"]}
