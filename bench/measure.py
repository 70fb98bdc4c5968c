"""How the benchmarks measure, and what they say about it.

Machines differ and are shared, so every figure that must be reached is a ratio of two things
measured in turns (A B A B …) in one process, after a warm-up, with the garbage collector off.
Time is the process's own CPU time: everything measured is single-threaded and waits for nothing,
and what a neighbour uses does not count. A run is timed in short parts; of each part the best of
the repeats counts (the medians are kept beside it), so that a long run is not more likely than a
short one to have been disturbed in all of them.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGES = ("numba", "llvmlite", "numpy", "pyarrow", "sortedcontainers")


@dataclass(frozen=True)
class Figure:
    """One number, and what it must reach if anything."""

    name: str
    value: float
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it reaches what it must; None when nothing is asked of it."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    @property
    def bound(self) -> str:
        """What it must reach, for a person."""
        if self.at_least is not None:
            return f">= {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"<= {self.at_most:g} {self.unit}"

    def as_json(self) -> dict[str, Any]:
        """As a plain value."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Result:
    """What an experiment found."""

    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)

    def figure(self, name: str) -> Figure:
        """The figure of this name."""
        return next(figure for figure in self.figures if figure.name == name)


class Part(NamedTuple):
    """A part of a run: so many elements took so long."""

    elements: int
    seconds: float


@dataclass(frozen=True)
class Rates:
    """The runs of one variant, each in the same parts."""

    runs: tuple[tuple[Part, ...], ...]

    @property
    def best(self) -> float:
        """Elements a second, of each part the least disturbed repeat."""
        return self._rate(min)

    @property
    def median(self) -> float:
        """Elements a second, of each part the usual repeat."""
        return self._rate(statistics.median)

    def _rate(self, chosen: Callable[[list[float]], float]) -> float:
        parts = list(zip(*self.runs, strict=True))
        took: float = sum(chosen([part.seconds for part in repeats]) for repeats in parts)
        elements: int = sum(repeats[0].elements for repeats in parts)
        return elements / took

    def as_json(self) -> dict[str, float]:
        """As a plain value."""
        return {"best_per_s": round(self.best), "median_per_s": round(self.median)}


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside: with millions of prepared objects it would dominate."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_turns(
    variants: Mapping[str, Callable[[], Sequence[Part]]], repeats: int
) -> dict[str, Rates]:
    """All variants run once, then all again."""
    found: dict[str, list[tuple[Part, ...]]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            found[name].append(tuple(variant()))
    return {name: Rates(tuple(runs)) for name, runs in found.items()}


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def commit() -> str | None:
    """The commit that was measured, marked when the tree differs from it; None outside git."""
    try:
        return _git("rev-parse", "HEAD") + (" with changes" if _git("status", "-s") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True)
    return done.stdout.strip()
