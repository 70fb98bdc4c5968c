"""What every peer is given, and what it hands back. Imports nothing but pyarrow.

A peer is a script of its own, ``python NAME_peer.py WORK RESULT``, in an environment of its own,
so this file must not import lmerge. WORK is an Arrow stream of the replicas' batches as they
arrive; a batch's metadata says whose it is. RESULT is the table of events that the peer ends with.
What it measured is one line of JSON on stdout.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

INSERT, ADJUST = 0, 1
EVENT = pa.schema([("vs", pa.int64()), ("ve", pa.int64()), ("x", pa.int64()), ("s", pa.string())])


class Part(NamedTuple):
    """A batch of one replica: the columns op, vs, ve, vold, x and s, and its stable point."""

    replica: str
    batch: pa.RecordBatch
    stable: int | None


def parts(path: Path) -> Iterator[Part]:
    """The batches in the order in which they arrive."""
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            stable = metadata["stable"].decode()
            yield Part(metadata["name"].decode(), batch, int(stable) if stable else None)


def main(run: Callable[[list[Part]], tuple[pa.Table, float, list[float]]], version: str) -> None:
    """Run a peer's function, which returns its events, the seconds it took, and each batch's."""
    work, result = Path(sys.argv[1]), Path(sys.argv[2])
    given = list(parts(work))
    elements = sum(part.batch.num_rows for part in given)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    events, seconds, latencies = run(given)
    cpu = time.process_time() - cpu
    with pa.OSFile(str(result), "wb") as sink, pa.ipc.new_stream(sink, events.schema) as writer:
        writer.write_table(events)
    found: dict[str, Any] = {
        "version": version,
        "elements": elements,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "latency_ms": quantiles(latencies),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "given_mib": before / 1024,
    }
    print(json.dumps(found))


def quantiles(seconds: list[float]) -> dict[str, float] | None:
    """In milliseconds; None where a batch cannot be told from the next."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {
        name: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
