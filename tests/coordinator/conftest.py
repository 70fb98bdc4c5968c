"""ZooKeepers for the tests: one of a single node for all of a run, others as a test needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.zookeeper import Ensemble


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One node, shared: tests use deployments of their own, and leave it running."""
    with Ensemble(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[Ensemble]:
    """One node that the test may kill."""
    with Ensemble(tmp_path / "zookeeper") as ensemble:
        yield ensemble


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Ensemble]:
    """Three nodes that the test may kill."""
    with Ensemble(tmp_path / "three", nodes=3) as ensemble:
        yield ensemble
