"""Puts the server's figures into its document: ``python -m bench.server.document``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.document import ROOT, core_table, replaced

DOCUMENT: Final = ROOT / "docs" / "server-performance.md"
RESULTS: Final[Path] = ROOT / "bench" / "results" / "server.json"


def write_server() -> None:
    """Bring the document up to date with ``bench/results/server.json``."""
    table = core_table(json.loads(RESULTS.read_text("utf-8")))
    DOCUMENT.write_text(replaced(DOCUMENT.read_text("utf-8"), "server", table), "utf-8")


if __name__ == "__main__":
    write_server()
