"""Fifty seeds of the simulation, its repeatability, and that it can fail."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from lmerge.server.sessions import Sessions
from tests.simulation.cluster import Outcome, run

SEEDS = 50
KNOWN_MISTAKES: dict[str, Any] = {
    "a snapshot is empty": mock.patch(
        "lmerge.server.state.MergeState.live_events",
        lambda self: self.merge.live_events().slice(0, 0),
    ),
    "what was written outlives its session": mock.patch.object(Sessions, "_drop_written"),
}


def outcome_or_failure(seed: int) -> Outcome | str:
    try:
        return run(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(seed: int) -> None:
    outcome = run(seed)
    assert outcome.entries
    assert outcome.elements


@pytest.mark.parametrize("seed", [3, 17, 40])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    assert run(seed) == run(seed)


@pytest.mark.parametrize("mistake", KNOWN_MISTAKES)
def test_a_known_mistake_is_found(mistake: str) -> None:
    with KNOWN_MISTAKES[mistake]:
        found = any(isinstance(outcome_or_failure(seed), str) for seed in range(200))
    assert found, f"{mistake}: no seed of 200 has found it"
