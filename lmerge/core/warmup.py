"""Compiles every loop of the core once: ``python -m lmerge.core.warmup``.

numba keeps what it compiles beside the source, so that later runs start at once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lmerge.core.batch import element_schema
from lmerge.core.merge import Merge
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.elements import Op

_PAYLOAD = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))])


def compile_everything() -> None:
    """Run a tiny merge under every restriction, so that every loop is used."""
    schema = element_schema(_PAYLOAD)
    rows: list[dict[str, Any]] = [
        {"op": Op.INSERT, "vs": 1, "ve": 4, "vold": 0, "n": 1, "s": "a", "l": [1]},
        {"op": Op.INSERT, "vs": 2, "ve": 5, "vold": 0, "n": None, "s": None, "l": None},
    ]
    inserts = pa.RecordBatch.from_pylist(rows, schema)
    adjust = pa.RecordBatch.from_pylist([{**rows[0], "op": Op.ADJUST, "ve": 6, "vold": 4}], schema)
    for restriction in Restriction:
        merge = Merge(_PAYLOAD, restriction)
        for name in ("a", "b"):
            merge.attach(name)
            merge.apply(name, inserts)
        merge.attach("c", since=2)
        merge.apply("c", inserts)
        if restriction in (Restriction.R3, Restriction.R4):
            merge.apply("a", adjust)
        merge.stable("a", 3)
        merge.detach("b")
        merge.stable("a", 10)
        Merge.restore(merge.snapshot())
        merge = Merge(_PAYLOAD, restriction, Policy(divergence=DivergencePolicy.OFF))
        merge.attach("a")
        merge.apply("a", inserts, stable=2)
        merge.attach("b")
        merge.apply("b", inserts)
    for restriction in (Restriction.R3, Restriction.R4):
        merge = Merge(_PAYLOAD, restriction, Policy(InsertPolicy.final(), AdjustPolicy.EAGER))
        merge.attach("a")
        merge.apply("a", inserts, stable=10)


if __name__ == "__main__":
    compile_everything()
