"""Batches are cut and made plain for the wire, and say the same afterwards."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lmerge.client.rows import conformed, elements_schema, payload_of, pieces
from lmerge.errors import LimitError
from lmerge.wire.rows import batch_of as received


def _elements(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    rows = len(next(iter(columns.values())))
    times = {name: pa.array(range(rows), pa.int64()) for name in ("vs", "ve", "vold")}
    return pa.RecordBatch.from_pydict({"op": pa.array([0] * rows, pa.int8()), **times, **columns})


def test_pieces_are_small_and_hold_every_row_in_order() -> None:
    texts = pa.array(["x" * (i % 3_000) for i in range(5_000)])
    batch = _elements({"t": texts})
    schema = elements_schema(payload_of(batch.schema))
    found = list(pieces(conformed(batch, schema)))
    assert len(found) > 2
    assert all(data.size <= 4 << 20 for _, data in found)
    back = [received(data.to_pybytes(), schema) for _, data in found]
    assert [b.num_rows for b in back] == [rows for rows, _ in found]
    assert pa.Table.from_batches(back).column("t").to_pylist() == texts.to_pylist()


def test_encodings_are_undone_and_columns_go_by_name() -> None:
    batch = _elements(
        {
            "z": pa.array(["a", "b", "a"]).dictionary_encode(),
            "b": pa.array(["x", None, "y"], pa.string_view()),
        }
    )
    schema = elements_schema(payload_of(batch.schema))
    assert schema.names[4:] == ["b", "z"]
    plain = conformed(batch, schema)
    assert plain.column("z").to_pylist() == ["a", "b", "a"]
    assert plain.schema.field("b").type == pa.string()


def test_a_row_larger_than_a_message_is_refused() -> None:
    batch = _elements({"t": pa.array(["x" * 5_000])})
    with pytest.raises(LimitError, match="a row of"):
        list(pieces(batch, 1_000))
