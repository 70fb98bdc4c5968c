"""An environment of its own for every peer, in ``bench/.peers``: none is a dependency of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PEERS: Final = Path(__file__).parent.parent / ".peers"
INSTALL_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Peer:
    """A system, and how it is had."""

    name: str
    how: str
    """What it does with the work, for a reader."""
    script: str
    requires: tuple[str, ...] = ()
    """None: our own environment."""
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))
    repeats: int = 3

    @property
    def python(self) -> Path:
        """What runs it."""
        if not self.requires:
            return Path(sys.executable)
        return PEERS / self.name / "bin" / "python"


ALL: Final = (
    Peer("lmerge", "R3, default policies", "lmerge_peer.py"),
    Peer(
        "duckdb",
        "upserts into a table in memory, last write wins",
        "duckdb_peer.py",
        ("duckdb>=1.2", "pyarrow"),
    ),
    Peer(
        "spark",
        "dropDuplicatesWithinWatermark over the union, the first row is kept",
        "spark_peer.py",
        ("pyspark[sql]>=4.0,<5", "pandas>=2.2,<3", "setuptools"),
        repeats=1,
    ),
)


def install(peer: Peer, say: Callable[[str], None]) -> str | None:
    """Have the peer's environment; the reason why there is none, in a line."""
    low, high = peer.pythons
    if not low <= sys.version_info[:2] <= high:
        versions = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
        return f"it needs Python {versions}, and this is {sys.version.split()[0]}"
    ready = PEERS / peer.name / ".ready"
    wanted = "\n".join(peer.requires)
    if not peer.requires or (ready.exists() and ready.read_text("utf-8") == wanted):
        return None
    say(f"installing {peer.name}")
    shutil.rmtree(PEERS / peer.name, ignore_errors=True)
    pip = [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        for command in ([sys.executable, "-m", "venv", str(PEERS / peer.name)], pip):
            more = list(peer.requires) if command is pip else []
            subprocess.run(
                [*command, *more], check=True, capture_output=True, text=True,
                timeout=INSTALL_SECONDS,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it could not be installed within {INSTALL_SECONDS:g} s"
    except subprocess.CalledProcessError as error:
        return f"it could not be installed: {_last_line(error.stderr)}"
    ready.write_text(wanted, "utf-8")
    return None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]
