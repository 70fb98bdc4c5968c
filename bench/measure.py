"""How the benchmarks measure, and what they say about it.

Machines differ and are shared, so every figure that must be reached is a ratio of two things
measured in turns (A B A B …) in one process, after a warm-up, with the garbage collector off:
the best of the repeats counts, and the medians are kept beside it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Rates:
    """Elements a second, one for each repeat."""

    rates: tuple[float, ...]

    @property
    def best(self) -> float:
        """The least disturbed one."""
        return max(self.rates)

    @property
    def median(self) -> float:
        """The usual one."""
        return statistics.median(self.rates)

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


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(variants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Rates]:
    """Each variant returns a rate; all run once, then all again."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            found[name].append(variant())
    return {name: Rates(tuple(rates)) for name, rates in found.items()}


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
