"""The core's memory: what it says it holds, and what its process holds.

Each measurement runs in a process of its own (``python -m bench.memory FILE``), which reads slices
as a server would: a message is freed once it was applied. Memory is compared with that before the
merge, when the compiled loops had been loaded; the allocator gives freed memory back at once.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.arrivals import prepare, read, slices, write
from bench.cleanse import CleansedR1
from bench.lmr3_minus import LMR3Minus
from bench.measure import Figure, Result, in_turns
from bench.scale import SEED, Scale
from bench.speed import Applies, merge_of, rate
from lmerge.core.merge import Merge
from lmerge.core.warmup import compile_everything
from lmerge.workload import SCHEMA, Stream, Workload, generate

_BATCH = 1_000
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # so that there is one allocator to set up
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


def inputs_flat(scale: Scale) -> Result:
    """R3's memory at 10 inputs against 2, with large payloads."""
    payload = scale.payloads[1]
    streams = generate(
        Workload(
            elements=scale.memory_elements,
            streams=10,
            live=scale.live,
            payload_size=payload,
            seed=SEED,
        )
    )
    found = {n: _in_a_process(streams[:n], _BATCH) for n in (2, 10)}
    figures = [
        Figure(
            f"R3 memory, 10 inputs against 2, {what}",
            found[10][key] / max(1, found[2][key]),
            at_most=1.2,
        )
        for what, key in (("index and payloads", "held_peak"), ("process", "rss_peak"))
    ]
    peaks = {
        str(n): {key: each[key] for key in ("held_peak", "rss_peak")} for n, each in found.items()
    }
    return Result(figures, peaks)


def each_event(scale: Scale) -> Result:
    """R3's memory for a live event beyond its payload, many live, three inputs."""
    payload = scale.payloads[0]
    raw = payload + 8  # the text, and x
    streams = generate(
        Workload(
            elements=scale.many_elements,
            live=scale.many_live,
            payload_size=payload,
            seed=SEED,
        )
    )
    found = _in_a_process(streams, scale.batch_large)
    # Wherever many are live: the worst moment, with as many dead payloads as there ever are.
    full = [each for each in found["samples"] if each["live"] >= 0.95 * scale.many_live]
    held, rss = (
        max((each[key] - raw * each["live"]) / each["live"] for each in full)
        for key in ("held", "rss")
    )
    name = f"R3 memory for each of {scale.many_live:,} live events beyond its {raw} B"
    figures = [
        Figure(name, held, "B", at_most=200),
        Figure("the same by the process's memory", rss, "B"),
    ]
    least = min(full, key=lambda each: float(each["held"] / each["live"]))
    details = {"held_peak": found["held_peak"], "rss_peak": found["rss_peak"]}
    return Result(figures, {**details, "best_moment": least, "last": full[-1]})


def _in_a_process(streams: list[Stream], rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory), slices(streams, rows))
        done = subprocess.run(
            [sys.executable, "-m", "bench.memory", str(path)],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **_ENVIRONMENT},
            check=True,
            capture_output=True,
            text=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _own_bytes() -> int:
    """The process's anonymous memory that is resident."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def _trim() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _watch(path: Path) -> dict[str, Any]:
    """Merge the slices of a file; a sample after each of them, and the peaks."""
    compile_everything()
    _trim()
    before = _own_bytes()
    merge = merge_of("R3")
    attached: set[str] = set()
    samples: list[dict[str, int]] = []
    for name, batch, stable, _ in read(path):
        if name not in attached:
            merge.attach(name)
            attached.add(name)
        merge.apply(name, batch, stable)
        del batch
        now = merge.statistics()
        held = now.index_bytes + now.payload_bytes
        sample = {"live": now.live, "held": held, "index": now.index_bytes}
        samples.append({**sample, "rss": _own_bytes() - before})
    peaks = {f"{key}_peak": max(each[key] for each in samples) for key in ("held", "rss")}
    return {**peaks, "samples": samples}


VARIANTS: Final[dict[str, Callable[[], Applies]]] = {
    "R3": lambda: merge_of("R3", "off"),  # the other two keep no digests either
    "LMR3-": lambda: LMR3Minus(SCHEMA),
    "C+LMR1": lambda: CleansedR1(SCHEMA),
}


def held(merge: Applies) -> int:
    """Bytes of index and payloads."""
    if isinstance(merge, Merge):
        now = merge.statistics()
        return now.index_bytes + now.payload_bytes
    assert isinstance(merge, LMR3Minus | CleansedR1)
    return merge.nbytes


def by_inputs(scale: Scale) -> Result:
    """Memory and throughput of R3, LMR3− and C+LMR1, for more and more inputs (§VI.D)."""
    streams = generate(
        Workload(
            elements=scale.inputs_elements,
            streams=max(scale.inputs),
            live=scale.live,
            payload_size=scale.payloads[1],
            disorder=0.5,
            stable_freq=0.001,
            seed=SEED,
        )
    )
    tail = scale.inputs_elements - scale.inputs_head
    table: dict[str, Any] = {}
    for n in scale.inputs:
        arriving = prepare(
            streams[:n], scale.batch_large, scale.inputs_head, tail, scale.batch_large
        )
        peaks: dict[str, int] = {}
        for label, make in VARIANTS.items():
            merge = make()
            for name in arriving.names:
                merge.attach(name)
            peaks[label] = 0
            for part in (*arriving.head, *arriving.tail):
                merge.apply(part.name, part.batch, part.stable)
                peaks[label] = max(peaks[label], held(merge))
        rates = in_turns(
            {label: rate(make, arriving) for label, make in VARIANTS.items()}, scale.repeats
        )
        table[str(n)] = {
            label: {"held_peak": peaks[label], **rates[label].as_json()} for label in VARIANTS
        }
    few, many = (table[str(n)] for n in (min(scale.inputs), max(scale.inputs)))
    figures = [
        Figure(
            f"{label} memory, {max(scale.inputs)} inputs against {min(scale.inputs)}",
            many[label]["held_peak"] / few[label]["held_peak"],
        )
        for label in VARIANTS
    ]
    for label in ("LMR3-", "C+LMR1"):
        for what, key in (("memory", "held_peak"), ("throughput", "best_per_s")):
            over, under = ("R3", label) if what == "throughput" else (label, "R3")
            name = f"{what} at {max(scale.inputs)} inputs, {over} against {under}"
            figures.append(Figure(name, many[over][key] / many[under][key]))
    return Result(figures, {"inputs": table})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the memory of one merge.")
    parser.add_argument("path", type=Path)
    print(json.dumps(_watch(parser.parse_args().path)))
