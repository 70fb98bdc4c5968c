"""DuckDB in memory: a table with a primary key, and upserts in which the last write wins.

Per batch, as its documentation recommends for many changes: one transaction, with the batch
scanned as Arrow, never a statement per row. An upsert cannot touch a row twice, so that of a
batch's changes of one key the last is taken. A removed event stays as a row whose end is its
start, lest a late copy of it be inserted again.
"""

from __future__ import annotations

import time

import duckdb
import pyarrow as pa
from given import Part, main

UPSERT = """
INSERT INTO events
SELECT vs, x, s, last(ve ORDER BY place) FROM
  (SELECT vs, x, s, ve, row_number() OVER () AS place FROM arriving)
GROUP BY vs, x, s
ON CONFLICT (vs, x, s) DO UPDATE SET ve = excluded.ve
"""


def merge(given: list[Part]) -> tuple[pa.Table, float, list[float]]:
    """Upsert every batch."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute(
        "CREATE TABLE events (vs BIGINT, x BIGINT, s VARCHAR, ve BIGINT, PRIMARY KEY (vs, x, s))"
    )
    latencies = []
    begin = time.perf_counter()
    for part in given:
        start = time.perf_counter()
        connection.register("arriving", pa.Table.from_batches([part.batch]))
        connection.execute(UPSERT)
        connection.unregister("arriving")
        latencies.append(time.perf_counter() - start)
    seconds = time.perf_counter() - begin
    result = connection.execute("SELECT vs, ve, x, s FROM events WHERE ve > vs")
    return result.to_arrow_table(), seconds, latencies


if __name__ == "__main__":
    main(merge, duckdb.__version__)
