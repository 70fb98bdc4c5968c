"""Puts the replicas' figures into their document: ``python -m bench.replicas.document``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.document import ROOT, core_table, replaced

DOCUMENT: Final = ROOT / "docs" / "replicas-performance.md"
RESULTS: Final[Path] = ROOT / "bench" / "results" / "replicas.json"


def write_replicas() -> None:
    """Bring the document up to date with ``bench/results/replicas.json``."""
    table = core_table(json.loads(RESULTS.read_text("utf-8")))
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), "replicas", table), "utf-8")


if __name__ == "__main__":
    write_replicas()
