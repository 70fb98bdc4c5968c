"""Clients of a merge server: replicas write streams, consumers read the merged one.

>>> from lmerge.client import Reader, Writer  # asyncio
>>> from lmerge.client import SyncReader, SyncWriter  # blocking
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmerge.client.connection import Retry, Security, may_retry
from lmerge.client.epochs import Acknowledgement
from lmerge.client.items import Elements, Gap, Item, Position, Snapshot, StablePoint
from lmerge.client.mirrored import MirroredWriter
from lmerge.client.reader import Reader
from lmerge.client.staging import Share, Staged, stage, stage_sync
from lmerge.client.sync import SyncMergedReader, SyncMirroredWriter, SyncReader, SyncWriter
from lmerge.client.writer import Welcome, Writer

if TYPE_CHECKING:
    from lmerge.client.merged import MergedReader

__all__ = [
    "Acknowledgement",
    "Elements",
    "Gap",
    "Item",
    "MergedReader",
    "MirroredWriter",
    "Position",
    "Reader",
    "Retry",
    "Security",
    "Share",
    "Snapshot",
    "StablePoint",
    "Staged",
    "SyncMergedReader",
    "SyncMirroredWriter",
    "SyncReader",
    "SyncWriter",
    "Welcome",
    "Writer",
    "may_retry",
    "stage",
    "stage_sync",
]


def __getattr__(name: str) -> Any:
    # Merging brings the core's compiler along, for which a plain reader need not wait.
    if name == "MergedReader":
        return import_module("lmerge.client.merged").MergedReader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
