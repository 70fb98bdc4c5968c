"""lmerge: the core with its default policies, given the same batches in the same process.

Its output is a stream; the events it ends with are put together after the clock has stopped.
"""

from __future__ import annotations

import time
from importlib import metadata

import pyarrow as pa
from given import ADJUST, EVENT, Part, main

from lmerge.core.merge import Merge
from lmerge.core.properties import Restriction
from lmerge.core.warmup import compile_everything
from lmerge.workload import SCHEMA


def merge(given: list[Part]) -> tuple[pa.Table, float, list[float]]:
    """Merge every batch."""
    compile_everything()
    core = Merge(SCHEMA, Restriction.R3)
    for name in dict.fromkeys(part.replica for part in given):
        core.attach(name)
    output: list[pa.RecordBatch] = []
    latencies = []
    last = {part.replica: i for i, part in enumerate(given)}
    begin = time.perf_counter()
    for i, part in enumerate(given):
        start = time.perf_counter()
        output += core.apply(part.replica, part.batch, part.stable).batches()
        if last[part.replica] == i:
            core.detach(part.replica)
        latencies.append(time.perf_counter() - start)
    seconds = time.perf_counter() - begin
    return _events(output), seconds, latencies


def _events(output: list[pa.RecordBatch]) -> pa.Table:
    ends: dict[tuple[int, int, str], int] = {}
    for batch in output:
        columns = (batch.column(name).to_pylist() for name in ("op", "vs", "ve", "x", "s"))
        for op, vs, ve, x, s in zip(*columns, strict=True):
            if op == ADJUST and ve == vs:
                del ends[vs, x, s]
            else:
                ends[vs, x, s] = ve
    rows = [{"vs": vs, "ve": ve, "x": x, "s": s} for (vs, x, s), ve in ends.items()]
    return pa.Table.from_pylist(rows, schema=EVENT)


if __name__ == "__main__":
    main(merge, metadata.version("lmerge"))
