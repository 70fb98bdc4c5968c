"""What a stream promises is checked alike however its elements come."""

from __future__ import annotations

from random import Random

import numpy as np

from lmerge.core.promises import INSERT, STABLE, first_broken
from lmerge.times import BEGINNING, INFINITY

EDGES = (BEGINNING, BEGINNING + 1, INFINITY - 1, INFINITY)


def test_ordered_inserts_are_judged_alike_with_a_stable_among_them_and_without() -> None:
    """Inserts alone take a shorter way; a stable that changes nothing sends them the longer."""
    sound = 0
    for seed in range(3000):
        rng = Random(seed)
        rows = rng.randint(1, 20)
        starts = sorted(rng.choices(range(100), k=rows))
        vs = np.array(starts, dtype=np.int64)
        ve = vs + [rng.randint(1, 50) for _ in starts]
        op = np.full(rows, INSERT, dtype=np.int8)
        for _ in range(rng.choice((0, 0, 1))):
            at = rng.randrange(rows)
            wrong = rng.choice(("op", "vs", "ve"))
            if wrong == "op":
                op[at] = rng.choice((1, 7))
            else:
                column = vs if wrong == "vs" else ve
                column[at] = rng.choice((*EDGES, rng.randrange(100)))
        stable = rng.choice((BEGINNING, 0, 20))
        last_vs = rng.choice((BEGINNING, 0, 30))
        strict = rng.random() < 0.5
        vold = np.zeros_like(vs)
        found = first_broken(op, vs, ve, vold, stable, last_vs, True, True, strict)
        longer = first_broken(
            np.insert(op, 0, STABLE), np.insert(vs, 0, stable), np.insert(ve, 0, 0),
            np.insert(vold, 0, 0), stable, last_vs, True, True, strict,
        )  # fmt: skip
        row, reason, *rest = longer
        rest[-1] -= 1  # the stable itself
        assert found == (row - 1, reason, *rest), f"seed {seed}"
        sound += not reason
    assert 500 < sound < 2500
