"""``lmerge gen``: writes workloads of the paper's kind as one file of interleaved arrivals."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.output import writing
from lmerge.cli.terminal import Terminal
from lmerge.workload import SCHEMA, Workload, arrivals, generate

INTERLEAVED_ROWS: Final = 8
"""Elements of one stream in a row: few, so that the streams take turns as live ones would."""
CHUNK_ARRIVALS: Final = 512

EXAMPLE: Final = ("--elements", "4", "--streams", "2", "--payload-size", "2", "--live", "2")

DESCRIPTION: Final = """\
Writes streams that differ physically (order, revisions, spurious events, places of stables) and
agree logically, interleaved as they would arrive. The same arguments give the same file. The
defaults are the paper's, except that the streams are short and the payloads small; the paper has
--elements 200000 --live 10000 --payload-size 1000.
"""
EPILOG: Final = f"""\
example: the merge of three streams has the events of each
  lmerge gen --elements 10000 --lag 500 -o in.jsonl
  lmerge merge in.jsonl -o out.jsonl
  lmerge check in.jsonl out.jsonl
  lmerge gen --elements 10000 | lmerge merge --stats - > out.jsonl
  lmerge gen {" ".join(EXAMPLE)}

"""

# Flag, type, default, help. Field names are the flags' own.
_OPTIONS: Final[tuple[tuple[str, type, Any, str], ...]] = (
    ("streams", int, 3, "how many streams"),
    ("elements", int, 10_000, "elements of each stream, stables included"),
    ("stable-freq", float, 0.01, "the share of stables"),
    ("duration", int, None, "mean lifetime of an event (default: such that --live are alive)"),
    ("live", int, 1_000, "events alive at any time"),
    ("max-gap", int, 20, "largest distance between starts"),
    ("disorder", float, 0.2, "the share of inserts that come late"),
    ("revisions", float, 0.36, "the share of adjusts among inserts and adjusts"),
    ("spurious", float, 0.05, "the share of adjusts that remove an event no other stream has"),
    ("lag", int, 0, "application time that each stream arrives behind the one before"),
    ("payload-size", int, 16, "characters of random text in a payload"),
    ("restriction", str, "R3", "what the streams promise: R0 to R4"),
    ("duplicates", float, None, "the share of repeated events, for R4 (default there: 0.1)"),
    ("infinite", float, 0.0, "the share of ends that are infinite"),
    ("seed", int, 0, "another seed gives other streams"),
)


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "gen",
        help="write streams to try things out on",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag, kind, default, text in _OPTIONS:
        shown = text if default is None else f"{text} (default: {default})"
        command.add_argument(f"--{flag}", type=kind, default=default, help=shown)
    command.add_argument(
        "-o", dest="output", metavar="FILE",
        help="where to: JSON lines, .parquet or .arrow (default: stdout)",
    )  # fmt: skip
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the workload."""
    names = [flag.replace("-", "_") for flag, *_ in _OPTIONS]
    workload = Workload(**{name: getattr(arguments, name) for name in names})
    with Terminal() as terminal:
        total = workload.streams * workload.elements
        progress = terminal.counting("writing", total, arguments.output)
        streams = generate(workload)
        done = 0
        with writing(arguments.output, SCHEMA, streams=True) as writer:
            for names, batch in _chunks(arrivals(streams, INTERLEAVED_ROWS)):
                writer.write(batch, stream=names)
                done += batch.num_rows
                if progress is not None:
                    progress(done)
    return Exit.OK


def _chunks(
    found: Iterator[tuple[str, pa.RecordBatch]],
) -> Iterator[tuple[list[str], pa.RecordBatch]]:
    """The arrivals in order in batches worth a write, with the stream of each row."""
    while chunk := list(islice(found, CHUNK_ARRIVALS)):
        names = [name for name, batch in chunk for _ in range(batch.num_rows)]
        yield names, pa.concat_batches([batch for _, batch in chunk])
