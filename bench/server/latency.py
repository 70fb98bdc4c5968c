"""From a replica's commit to the consumer's receipt, with commits at fixed times.

Each event of the output counts once: its receipt, less the first commit of any replica that
inserted it. Commits do not wait for acknowledgements, so a slow server cannot slow the load down.
The first second does not count (``latency_lead_seconds``): every process is new, and runs its code
for the first time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.arrivals import read
from bench.measure import Figure, Result
from bench.server.processes import play, serving
from bench.server.scale import Scale
from bench.server.streams import Prepared, digest, prepare_rows, usual
from lmerge.elements import Op

Key = tuple[int, int, str]


def latency(scale: Scale) -> Result:
    """From a commit to the consumer, at a fixed rate of small epochs."""
    streams = 3
    rows = max(1, round(scale.latency_rate / (streams * scale.latency_epochs)))
    seconds = scale.latency_lead_seconds + scale.latency_seconds
    elements = int(rows * scale.latency_epochs * seconds)
    live = min(scale.live, elements // 4)
    figures: list[Figure] = []
    details: dict[str, Any] = {"rows_an_epoch": rows, "epochs_a_second": scale.latency_epochs}
    with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory:
        prepared = prepare_rows(
            Path(directory), usual(elements, live, scale.payload, streams), rows
        )
        for kind in ("none", "fsync"):
            added = _run(scale, prepared, kind, Path(directory) / f"{kind}.arrows")
            p50, p99 = (float(np.quantile(added, q)) for q in (0.5, 0.99))
            figures.append(Figure(f"latency p50, {kind}", p50, "ms", at_most=5))
            figures.append(Figure(f"latency p99, {kind}", p99, "ms", at_most=25))
            details[kind] = {
                "events": len(added),
                "mean_ms": round(float(np.mean(added)), 2),
                "p999_ms": round(float(np.quantile(added, 0.999)), 2),
                "most_ms": round(float(np.max(added)), 2),
            }
    return Result(figures, details)


def _run(scale: Scale, prepared: Prepared, kind: str, path: Path) -> list[float]:
    gap = int(1e9 / scale.latency_epochs)
    with serving(kind) as server:
        # The first merge of a process loads the compiled loops: that is not the latency meant.
        for merge in ("warm", "timed"):
            server.begin(merge)
            common = {"target": server.target, "merge": merge}
            roles: list[tuple[str, dict[str, Any]]] = [
                (
                    "replica" if merge == "warm" else "paced",
                    {
                        **common,
                        "files": {f"s{place}": str(file)},
                        "gap_ns": gap,
                        "phase_ns": place * gap // len(prepared.paths),
                    },
                )
                for place, file in enumerate(prepared.paths)
            ]
            said = {**common, "keep": True, "file": str(path)}
            *replicas, consumer = play([*roles, ("consumer", said)])
    committed: dict[Key, int] = {}
    for file, replica in zip(prepared.paths, replicas, strict=True):
        for part, at in zip(read(file), replica["commits"], strict=True):
            for key in _inserts(part.batch):
                committed[key] = min(at, committed.get(key, at))
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        batches = list(reader)
    if digest(batches) != prepared.digest:
        raise RuntimeError("the consumer's events are not the streams'")
    counted = min(committed.values()) + int(scale.latency_lead_seconds * 1e9)
    added: list[float] = []
    for batch, (at, _) in zip(batches, consumer["received"], strict=True):
        firsts = [committed[key] for key in _inserts(batch)]
        added += [(at - first) / 1e6 for first in firsts if first >= counted]
    return added


def _inserts(batch: pa.RecordBatch) -> list[Key]:
    columns = (batch.column(name).to_pylist() for name in ("op", "vs", "x", "s"))
    return [(vs, x, s) for op, vs, x, s in zip(*columns, strict=True) if op == Op.INSERT]
