"""What each policy costs on one and the same workload: ``python -m bench.policies``.

Counts and application time only, so the table is the same on every machine. The inputs' clock is
the largest ``vs`` that has arrived at any of them. An event is *known* when the first input
inserts it. Its *delay* is how far the clock moved from then until the output inserted it, and its
*settling* how far until the output gave its final end. Both are over events of the final TDB that
start in the first part of the run: at its very end a stable at infinity decides everything.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress

from bench.arrivals import Slice, slices
from bench.document import replaced
from bench.measure import commit
from lmerge.core.merge import Merge
from lmerge.core.policy import AdjustPolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Op
from lmerge.workload import SCHEMA, Workload, generate

RESULTS: Final = Path(__file__).parent / "results" / "policies.json"
DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "policies.md"

BATCH_ROWS: Final = 10
COUNTED: Final = 0.8
"""Events that start in this share of the run count for delays."""
STABLE_LAGS: Final = (0, 2_000)
WORKLOAD: Final = Workload(
    elements=20_000, live=1_000, spurious=0.1, lag=300, payload_size=24, stable_freq=0.01
)
SMALL: Final = replace(WORKLOAD, elements=2_000, live=100)

INSERTS: Final = (
    InsertPolicy.first(),
    InsertPolicy.leader(),
    InsertPolicy.quorum(0.5),
    InsertPolicy.quorum(1.0),
    InsertPolicy.half_frozen(),
    InsertPolicy.final(),
)


@dataclass(frozen=True)
class Row:
    """What one policy did with the workload."""

    insert: str
    adjust: str
    stable_lag: int
    inserts: int
    adjusts: int
    removals: int
    """Of the adjusts, those that take an event back."""
    stables: int
    out_for_in: float
    """Elements out for each element in."""
    delay_mean: float
    delay_p95: float
    settling_mean: float
    settling_p95: float
    events: int
    """Of the output's TDB."""


@dataclass(frozen=True)
class _Log:
    """Elements with the clock when they were seen."""

    op: Any
    vs: Any
    ve: Any
    s: pa.ChunkedArray
    clock: Any

    @staticmethod
    def of(seen: list[tuple[pa.RecordBatch, int]]) -> _Log:
        table = pa.Table.from_batches([batch for batch, _ in seen])
        clock = np.repeat([c for _, c in seen], [batch.num_rows for batch, _ in seen])
        op, vs, ve = (table.column(name).to_numpy() for name in ("op", "vs", "ve"))
        return _Log(op, vs, ve, table.column("s"), clock)


def _clocks(arriving: list[Slice]) -> list[int]:
    largest = [max(part.batch.column("vs").to_numpy(), default=0) for part in arriving]
    return [int(clock) for clock in np.maximum.accumulate(largest)]


def measure(policy: Policy, arriving: list[Slice]) -> Row:
    """Merge the arrivals under a policy."""
    clocks = _clocks(arriving)
    merge = Merge(SCHEMA, Restriction.R3, policy)
    for name in dict.fromkeys(part.name for part in arriving):
        merge.attach(name)
    seen: list[tuple[pa.RecordBatch, int]] = []
    for part, clock in zip(arriving, clocks, strict=True):
        out = merge.apply(part.name, part.batch, part.stable)
        seen.extend((batch, clock) for batch in out.batches())
    output = _Log.of(seen)
    known = _Log.of([(p.batch, c) for p, c in zip(arriving, clocks, strict=True)])
    # The texts are random and long enough that each tells its event.
    codes = pa.chunked_array([*known.s.chunks, *output.s.chunks]).combine_chunks()
    codes = codes.dictionary_encode().indices.to_numpy()
    came, left = codes[: len(known.op)], codes[len(known.op) :]
    events = int(codes.max()) + 1
    late = np.iinfo(np.int64).max
    first_known, first_out = np.full(events, late), np.full(events, late)
    settled = np.zeros(events, np.int64)
    start, alive = np.zeros(events, np.int64), np.zeros(events, np.bool_)
    np.minimum.at(first_known, came, known.clock)
    np.minimum.at(first_out, left, output.clock)
    np.maximum.at(settled, left, output.clock)
    start[left] = output.vs
    alive[left] = output.ve > output.vs  # the last element of an event counts
    counted = np.flatnonzero(alive & (start < COUNTED * clocks[-1]))
    delay = first_out[counted] - first_known[counted]
    settling = settled[counted] - first_known[counted]
    found = merge.statistics()
    total = found.inserts + found.adjusts + found.stables
    adjusts = output.op == Op.ADJUST
    return Row(
        insert=str(policy.insert),
        adjust=policy.adjust.value,
        stable_lag=policy.stable_lag,
        inserts=found.inserts,
        adjusts=found.adjusts,
        removals=int((adjusts & (output.ve == output.vs)).sum()),
        stables=found.stables,
        out_for_in=total / sum(part.elements for part in arriving),
        delay_mean=float(delay.mean()),
        delay_p95=float(np.quantile(delay, 0.95)),
        settling_mean=float(settling.mean()),
        settling_p95=float(np.quantile(settling, 0.95)),
        events=int(alive.sum()),
    )


def policies(lags: Sequence[int] = STABLE_LAGS) -> Iterator[Policy]:
    """Every insert policy with every adjust policy and stable lag."""
    for lag in lags:
        for insert in INSERTS:
            for adjust in AdjustPolicy:
                yield Policy(insert, adjust, lag)


def measure_all(workload: Workload, lags: Sequence[int] = STABLE_LAGS) -> list[Row]:
    """A row for each policy."""
    arriving = slices(generate(workload), BATCH_ROWS)
    chosen = list(policies(lags))
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        return [
            measure(policy, arriving) for policy in progress.track(chosen, description="policies")
        ]


def table(rows: list[Row], workload: Workload) -> str:
    """Markdown."""
    kinds = f"{workload.streams} streams of {workload.elements:,} elements"
    shares = (
        f"{workload.revisions:.0%} adjusts, {workload.spurious:.0%} of them removing spurious"
        f" events, {workload.disorder:.0%} disorder, {workload.stable_freq:.0%} stables"
    )
    events = rows[0].events
    lines = [
        f"{kinds} ({shares}); a lifetime is {workload.mean_duration:,} on average, the streams are"
        f" {workload.lag} apart, an event comes every {workload.max_gap // 2} units of time."
        f" The TDB has {events:,} events. Seed {workload.seed}; `python -m bench.policies` makes"
        " this table.",
        "",
        "| insert | adjust | stable lag | inserts | adjusts | removals | stables | out / in"
        " | delay mean | p95 | final end mean | p95 |",
        "|---|---|" + "--:|" * 10,
    ]
    lines += [
        f"| `{r.insert}` | `{r.adjust}` | {r.stable_lag:,} | {r.inserts:,} | {r.adjusts:,}"
        f" | {r.removals:,} | {r.stables:,} | {r.out_for_in:.3f} | {r.delay_mean:,.0f}"
        f" | {r.delay_p95:,.0f} | {r.settling_mean:,.0f} | {r.settling_p95:,.0f} |"
        for r in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.policies", description="Measure the policies."
    )
    parser.add_argument("--quick", action="store_true", help="a small workload; writes nothing")
    parser.add_argument("--seed", type=int, default=WORKLOAD.seed)
    options = parser.parse_args(arguments)
    workload = replace(SMALL if options.quick else WORKLOAD, seed=options.seed)
    rows = measure_all(workload)
    text = table(rows, workload)
    print(text)
    if not options.quick:
        found = {
            "commit": commit(),
            "workload": asdict(workload),
            "batch_rows": BATCH_ROWS,
            "policies": [asdict(row) for row in rows],
        }
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        DOCUMENT.write_text(
            replaced(DOCUMENT.read_text("utf-8"), "policies", text), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
