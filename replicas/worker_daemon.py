"""Spark's Python daemon without archives on its path: ``spark.python.daemon.module``.

Spark puts pyspark.zip and a jar of its own on the path of every worker, for clusters on which
PySpark is not installed. At the start of each task a worker has Python forget what it knows of
directories, and Python then reads the lists of both archives anew, entry by entry: thousands, in
every task. That costs more than a small micro-batch. Where PySpark is installed as a package the
archives serve no one.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_ARCHIVES: Final = (".zip", ".jar")
_NEEDED: Final = ("pyspark", "py4j")


def without_archives(path: list[str]) -> list[str]:
    """The path without Spark's archives; as it was, where PySpark is nowhere else."""
    kept = [each for each in path if not _is_sparks(each)]
    return kept if all(PathFinder.find_spec(name, kept) for name in _NEEDED) else path


def _is_sparks(place: str) -> bool:
    name = Path(place).name
    return name.endswith(_ARCHIVES) and name.startswith(("pyspark", "py4j", "spark-core"))


def main() -> None:
    """As ``python -m pyspark.daemon``, with the worker's module as the argument."""
    sys.path[:] = without_archives(sys.path)
    for place in list(sys.path_importer_cache):
        if _is_sparks(place) and place not in sys.path:
            del sys.path_importer_cache[place]
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
