"""What the way to the server costs a query, for large batches; what our settings gain for small."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.measure import Figure, Result
from bench.replicas.scale import SEED, Scale
from bench.server.processes import Process, Server, serving

WARM: Final = 2
"""Batches that run before any is timed."""
_FLUSH: Final = "flush"


def sink(scale: Scale) -> Result:
    """Rows a second through the sink to a server, against Spark's noop sink."""
    with tempfile.TemporaryDirectory(prefix="lmerge-sink-") as folder, serving(_FLUSH) as server:
        place = Path(folder)
        batches = WARM + scale.sink_repeats
        write_readings(place / "in", batches, scale.sink_rows)
        variants = {
            "noop": {"sink": "noop"},
            "driver": {"sink": "lmerge", "path": "driver"},
            "tasks": {"sink": "lmerge", "path": "tasks"},
        }
        rates: dict[str, Any] = {}
        for name, said in variants.items():
            common = {
                "input": str(place / "in"), "checkpoint": str(place / name), "batches": batches,
                "server": server.target, "merge": name,
            }  # fmt: skip
            found = spark("large", {**common, **said})["batches"][WARM:]
            took = [batch["ms"]["triggerExecution"] / 1000 for batch in found]
            rates[name] = {
                "rows_per_s": [round(b["rows"] / t) for b, t in zip(found, took, strict=True)],
                "median": statistics.median(
                    b["rows"] / t for b, t in zip(found, took, strict=True)
                ),
            }
            if said["sink"] != "noop":
                _check(server, name, batches * scale.sink_rows)
            shutil.rmtree(place / name)
    against = rates["noop"]["median"]
    return Result(
        [
            Figure(
                f"sink: rows/s to a server against noop, batches of {scale.sink_rows // 1000} K",
                rates["driver"]["median"] / against,
                at_least=0.5,
            ),
            Figure("the same, written by the tasks", rates["tasks"]["median"] / against),
        ],
        rates,
    )


def _check(server: Server, merge: str, rows: int) -> None:
    (stream,) = server.describe(merge).streams
    if stream.inserts != rows or stream.late:
        raise RuntimeError(f"{stream.inserts} rows of {rows} have arrived, {stream.late} late")


def small_batches(scale: Scale) -> Result:
    """The median small micro-batch with our settings, against Spark's defaults."""
    one = {"spark.sql.shuffle.partitions": "1"}
    variants: dict[str, dict[str, Any]] = {
        "ours": {"ours": True},
        "defaults, one shuffle partition": {"ours": False, "conf": one},
        "defaults": {"ours": False},
    }
    times: dict[str, list[list[float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory(prefix="lmerge-small-") as folder, serving(_FLUSH) as server:
        for repeat in range(scale.small_repeats):
            for number, (name, said) in enumerate(variants.items()):
                # With 200 tasks a batch takes seconds: a few show it.
                few = name == "defaults"
                batches = max(6, scale.small_batches // 10) if few else scale.small_batches
                warm = 2 if few else batches // 3
                found = spark(
                    "small",
                    {
                        **said, "rows": scale.small_rows, "batches": batches,
                        "checkpoint": str(Path(folder) / f"{repeat}-{number}"),
                        "server": server.target, "merge": f"m{repeat}-{number}",
                    },
                )["batches"]  # fmt: skip
                times[name].append([b["ms"]["triggerExecution"] for b in found[warm:]])
    medians = {
        name: statistics.median(statistics.median(run) for run in runs)
        for name, runs in times.items()
    }
    title = f"median micro-batch of {scale.small_rows} rows"
    return Result(
        [
            Figure(
                f"{title}: our settings against Spark's with one shuffle partition",
                medians["ours"] / medians["defaults, one shuffle partition"],
                at_most=0.4,
            ),
            Figure(
                f"{title}: our settings against all of Spark's defaults",
                medians["ours"] / medians["defaults"],
                at_most=0.4,
            ),
            Figure(f"{title}, our settings", medians["ours"], "ms"),
        ],
        {"median_ms": medians, "runs_ms": times},
    )


def spark(role: str, said: dict[str, Any]) -> dict[str, Any]:
    """What a process of :mod:`bench.replicas.peer` says in the end."""
    with tempfile.TemporaryDirectory(prefix="lmerge-peer-") as folder:
        log = Path(folder) / "log"
        process = Process(["-m", "bench.replicas.peer", role, json.dumps(said)], log)
        try:
            found: dict[str, Any] = json.loads(process.line())
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text('utf-8')[-4000:]}") from None
        finally:
            process.kill()
        return found


def write_readings(directory: Path, files: int, rows: int) -> None:
    """JSON lines for :func:`bench.replicas.peer.readings`."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(SEED)
    for number in range(files):
        at = 1_700_000_000_000 + np.arange(rows) + number * rows
        values = np.round(rng.random(rows) * 1000, 3)
        machines = rng.integers(0, 1000, rows)
        with (directory / f"part-{number:05d}.json").open("w", encoding="utf-8") as file:
            for each, (time, machine, value) in enumerate(
                zip(at.tolist(), machines.tolist(), values.tolist(), strict=True)
            ):
                seconds, millis = divmod(time, 1000)
                text = str(np.datetime64(seconds, "s"))
                file.write(
                    f'{{"at":"{text}.{millis:03d}Z","machine":"machine-{machine}",'
                    f'"number":{number * rows + each},"value":{value}}}\n'
                )
