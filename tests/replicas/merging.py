"""What a merge's consumer has got, as a database, for comparison with a batch job's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

import grpc
import pyarrow as pa
from pyspark.sql import DataFrame

from lmerge.client import Elements, SyncReader
from lmerge.client.reader import elements_in
from lmerge.elements import Insert, Stable
from lmerge.v1 import consumer_pb2
from lmerge.v1.consumer_pb2_grpc import ConsumerServiceStub
from tests.oracle.tdb import Reconstitution

Tdb = Counter[Any]
"""(payload, vs, ve), how often."""


def read_until(target: str, merge: str, stable: int) -> Tdb:
    """What the output that is there describes; it must be stable up to ``stable``."""
    with grpc.insecure_channel(target) as channel:
        stub: Any = cast(Any, ConsumerServiceStub)(channel)
        there = stub.Inspect(consumer_pb2.InspectRequest(merge=merge), timeout=60)
    database = Reconstitution("R4")
    with SyncReader(target, merge, start="beginning") as reader:
        for item in reader:
            for element in elements_in(item):
                database.apply(_said(element))
            if item.position is not None and item.position.sequence >= there.next.sequence:
                break
    assert database.stable >= stable, f"stable up to {database.stable} only"
    return database.tdb()


def database(batches: Iterable[pa.RecordBatch]) -> Tdb:
    """What batches of elements describe."""
    found = Reconstitution("R4")
    for batch in batches:
        for element in elements_in(Elements(batch, None, complete=True)):
            found.apply(_said(element))
    return found.tdb()


def _said(element: Any) -> Any:
    if isinstance(element, Stable):
        return ("stable", element.vc)
    kind = "insert" if isinstance(element, Insert) else "adjust"
    return (kind, _payload(element.payload), *element[1:])


def before(events: Iterable[Any], stable: int) -> Tdb:
    """Those that can change no more at ``stable``."""
    return Counter({event: count for event, count in Counter(events).items() if event[2] < stable})


def truth(rows: DataFrame, vs: str, ve: str, payload: list[str] | None = None) -> Tdb:
    """A batch job's result as a database; ``vs`` and ``ve`` are SQL, in microseconds."""
    columns = ["*"] if payload is None else payload
    timed = rows.selectExpr(*columns, f"{vs} AS __vs", f"{ve} AS __ve")
    events: Tdb = Counter()
    for row in timed.toArrow().to_pylist():
        start, end = row.pop("__vs"), row.pop("__ve")
        events[_payload(row), start, end] += 1
    return events


def _payload(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))
