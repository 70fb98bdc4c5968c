"""lmerge: N replicas of one streaming query in, one correct stream out.

>>> import pyarrow as pa
>>> from lmerge import Merge, batch_of, Insert, Stable
>>> merge = Merge(pa.schema([("k", pa.int64())]))
>>> out = merge.attach("a"), merge.attach("b")
>>> out = merge.apply("a", batch_of([Insert({"k": 1}, 6, 20)], merge.schema))
>>> [batch.num_rows for batch in out.batches()]
[1]
>>> merge.stable("b", 6).stable
6
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmerge.core.batch import batch_of, elements_of
    from lmerge.core.merge import Merge
    from lmerge.core.output import Feedback, Gap, Notice, NoticeKind, Output
    from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
    from lmerge.core.properties import Restriction, StreamProperties, choose
    from lmerge.core.statistics import MergeStatistics, StreamStatistics
    from lmerge.elements import Adjust, Element, Event, Freeze, Insert, Op, Stable, freeze
    from lmerge.errors import (
        BrokenPromiseError,
        ConfigurationError,
        InputError,
        InvariantError,
        LMergeError,
        SchemaMismatchError,
        SnapshotError,
    )
    from lmerge.times import BEGINNING, INFINITY

__all__ = [
    "BEGINNING",
    "INFINITY",
    "Adjust",
    "AdjustPolicy",
    "BrokenPromiseError",
    "ConfigurationError",
    "DivergencePolicy",
    "Element",
    "Event",
    "Feedback",
    "Freeze",
    "Gap",
    "InputError",
    "Insert",
    "InsertPolicy",
    "InvariantError",
    "LMergeError",
    "Merge",
    "MergeStatistics",
    "Notice",
    "NoticeKind",
    "Op",
    "Output",
    "Policy",
    "Restriction",
    "SchemaMismatchError",
    "SnapshotError",
    "Stable",
    "StreamProperties",
    "StreamStatistics",
    "batch_of",
    "choose",
    "elements_of",
    "freeze",
]

# Loading the merge loads its compiler: a program that only reads a file should not wait for it.
_HOMES = (
    "lmerge.times",
    "lmerge.errors",
    "lmerge.elements",
    "lmerge.core.policy",
    "lmerge.core.properties",
    "lmerge.core.statistics",
    "lmerge.core.output",
    "lmerge.core.batch",
    "lmerge.core.merge",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(home)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
