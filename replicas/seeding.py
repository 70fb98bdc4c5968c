"""What is live in a merge that queries read, kept in a file: a new query begins with it.

A query over a long window is right only when a window's length of input has gone through it. If the
events of its input live as long as they matter, those that are live at one position of the merge's
output are all that it has to know of the past. So:

- :func:`save` writes them as a Parquet file of elements: attach(from), an insert for each, and the
  stable point. ``lmerge tdb``, ``check`` and ``merge`` read it like any other;
- ``format("lmerge")`` with ``seed=FILE`` reads the file first, and then the output from that very
  position on;
- :func:`right_from` says from which end on the query's results are right: what ``from_time`` is.

Why that is the merge of the two: the snapshot is what the core itself held at the position, and the
output from the position on is what it said next, to the element. Nothing overlaps and nothing is
missing, so that merging them once more with the core would pass both through unchanged. The price
is that the output must still be kept from that position on: a seed is to be used while it is fresh.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmerge.client import Position, Retry, Security, Snapshot, SyncReader
from lmerge.elements import Op
from lmerge.errors import ConfigurationError, InputError, NotFoundError, UnavailableError
from lmerge.times import BEGINNING, INFINITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS: Final = 65_536
_TIMES: Final = ("op", "vs", "ve", "vold")
_KEY: Final = b"lmerge.seed"


@dataclass(frozen=True)
class Seed:
    """What is known of a seed's file."""

    merge: str
    position: str  # in the merge's output: what comes from here on is not in the file
    stable: int
    since: int  # every event that ends then or later is there
    events: int


def save(
    server: str | Sequence[str],
    merge: str,
    path: str | Path,
    *,
    security: Security | None = None,
    seconds: float = 60.0,
) -> Seed:
    """Write what is live now; the file is there whole or not at all, and is never overwritten."""
    target = Path(path)
    if target.suffix != ".parquet":
        raise ConfigurationError(f"a seed is a Parquet file: {target} must end with .parquet")
    if target.exists():
        raise ConfigurationError(f"{target} is there already, and is not overwritten")
    pieces, last = _snapshot(server, merge, security, seconds)
    if last.position is None:
        raise UnavailableError(f"merge {merge!r} does not say where its output is")
    events = pa.Table.from_batches([piece.batch for piece in pieces], last.batch.schema)
    stable = BEGINNING if last.stable is None else last.stable
    since = BEGINNING if last.since is None else last.since
    seed = Seed(merge, str(last.position), stable, since, events.num_rows)
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.draft"
    draft.parent.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(_elements(events.sort_by("vs"), seed), draft, row_group_size=ROWS)
        os.link(draft, target)  # which fails where a rename would replace
    except FileExistsError:
        raise ConfigurationError(f"{target} is there already, and is not overwritten") from None
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    return seed


def read(path: str | Path) -> Seed:
    """What a seed's file says of itself."""
    try:
        known = (pq.read_schema(path).metadata or {}).get(_KEY)
    except FileNotFoundError:
        raise NotFoundError(f"there is no seed {path}") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(path), None, f"it is no seed: {error}") from None
    if known is None:
        raise InputError(str(path), None, "it is no seed: lmerge checkpoint save --input makes one")
    found = json.loads(known)
    return Seed(**{each.name: found[each.name] for each in fields(Seed)})


def events(path: str | Path) -> Iterator[pa.RecordBatch]:
    """The inserts, in the order of their starts, as batches of elements."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            inserts = batch.filter(pc.equal(batch["op"], "insert"))
            if inserts.num_rows:
                times = [
                    np.full(inserts.num_rows, int(Op.INSERT), np.int8), inserts["vs"],
                    pc.fill_null(inserts["ve"], INFINITY), np.zeros(inserts.num_rows, np.int64),
                ]  # fmt: skip
                payload = inserts.drop_columns(list(_TIMES))
                yield pa.RecordBatch.from_arrays(
                    [*map(pa.array, times), *payload.columns],
                    names=[*_TIMES, *payload.schema.names],
                )


def right_from(
    path: str | Path, df: DataFrame, *, lives: str | int = "0 seconds", **options: Any
) -> int:
    """From which end on the results of ``df`` over the seeded input are right.

    ``lives`` is how long every event of the input lives at least. What the seed lacks ended before
    its ``since``, and so began before ``since - lives``: results that may depend on it end by then
    plus the look-back of the plan. ``options`` are those of :func:`replicas.attach`.
    """
    from replicas.analysis import DECLARABLE, analyse
    from replicas.times import duration_us

    seed = read(path)
    known = ("mode", "vs", "ve", "payload", "key", *DECLARABLE)
    found = analyse(df, **{name: options[name] for name in known if name in options})
    if found.look_back_us is None:
        raise ConfigurationError(
            "the plan's look-back is not bounded: no seed makes its results right; lmerge"
            " explain-plan says why"
        )
    if seed.since == BEGINNING:
        return BEGINNING  # nothing has ended yet: nothing is missing
    return seed.since - duration_us(lives) + found.look_back_us


def _snapshot(
    server: str | Sequence[str], merge: str, security: Security | None, seconds: float
) -> tuple[list[Snapshot], Snapshot]:
    pieces: list[Snapshot] = []
    retry = Retry(patience_s=seconds)
    give_up = time.monotonic() + seconds
    with SyncReader(server, merge, start="now", security=security, retry=retry) as reader:
        for item in reader:
            if not isinstance(item, Snapshot):
                break
            pieces.append(item)
            if item.last:
                return pieces, item
            if time.monotonic() > give_up:
                break
    raise UnavailableError(f"merge {merge!r} has not sent what is live within {seconds:g} s")


def _elements(events: pa.Table, seed: Seed) -> pa.Table:
    """The file's rows: attach, inserts, stable. An infinite end is null there."""
    count = events.num_rows
    none = pa.nulls(1, pa.int64())
    endless = pc.equal(events["ve"], INFINITY)
    ends = pc.if_else(endless, pa.scalar(None, pa.int64()), events["ve"]).combine_chunks()
    starts = events["vs"].combine_chunks()

    def time_of(t: int, absent: int) -> pa.Array:
        return pa.array([None if t == absent else t], pa.int64())

    columns = {
        "op": pa.array(["attach", *["insert"] * count, "stable"]),
        "vs": pa.chunked_array(
            [time_of(seed.since, BEGINNING), starts, time_of(seed.stable, INFINITY)]
        ),
        "ve": pa.chunked_array([none, ends, none]),
        "vold": pa.nulls(count + 2, pa.int64()),
    }
    for name in events.column_names:
        if name not in columns:
            around = pa.nulls(1, events[name].type)
            columns[name] = pa.chunked_array([around, *events[name].chunks, around])
    made = pa.table(columns)
    return made.replace_schema_metadata({_KEY: json.dumps(asdict(seed))})


def position_of(path: str | Path) -> Position:
    """Where the output goes on behind a seed."""
    return Position.parse(read(path).position)
