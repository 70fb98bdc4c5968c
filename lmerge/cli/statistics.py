"""The statistics of a merge as lines of text."""

from __future__ import annotations

from typing import Final

from lmerge.core.statistics import MergeStatistics, StreamStatistics
from lmerge.times import show

_COLUMNS: Final = (
    "stream", "state", "stable", "lag", "share", "inserts", "adjusts", "stables", "dropped",
    "late", "ignored", "conflicts", "verified", "divergent", "skipped",
)  # fmt: skip


def lines(merge: MergeStatistics, arrivals: int, seconds: float) -> list[str]:
    """The run as a whole, the output, and a table of the streams."""
    rate = f", {arrivals / seconds:,.0f}/s" if seconds > 0 else ""
    result = [
        f"{merge.restriction}: {arrivals:,} arrivals in {seconds:.2f} s{rate}",
        f"output: {merge.inserts:,} inserts, {merge.adjusts:,} adjusts, {merge.stables:,} stables,"
        f" stable to {show(merge.stable)}; {merge.live:,} events live,"
        f" {(merge.index_bytes + merge.payload_bytes) / 1e6:.1f} MB",
    ]
    table = [_COLUMNS, *map(_row, merge.streams)]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    result += [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
        if merge.streams
    ]
    return result


def _row(stream: StreamStatistics) -> tuple[str, ...]:
    counts = (getattr(stream, name) for name in _COLUMNS[5:])
    return (
        stream.name,
        stream.state,
        show(stream.stable),
        "-" if stream.lag is None else str(stream.lag),
        f"{stream.share:.0%}",
        *(f"{count:,}" for count in counts),
    )
