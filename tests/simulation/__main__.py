"""``python -m tests.simulation``: many seeds, or one again."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.simulation.cluster import run


def main() -> int:
    """The exit status: 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="this one alone, and tell of it")
    parser.add_argument("--keep-going", action="store_true", help="after a failure, too")
    options = parser.parse_args()
    if options.seed is not None:
        logging.basicConfig(stream=sys.stderr, format="          %(name)s: %(message)s")
        return _one(options.seed, verbose=True)
    began, failed = time.monotonic(), 0
    for done, seed in enumerate(range(options.start, options.start + options.seeds), 1):
        failed += _one(seed, verbose=False)
        if failed and not options.keep_going:
            return 1
        if done % 50 == 0 or done == options.seeds:
            each = (time.monotonic() - began) / done
            print(f"{done} seeds, {failed} failed, {each:.3f} s each", flush=True)  # noqa: T201
    return 1 if failed else 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _one(seed: int, *, verbose: bool) -> int:
    try:
        outcome = run(seed, _tell) if verbose else run(seed)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        _tell(f"seed {seed} fails: {type(error).__name__}: {str(error)[:2000]}")
        _tell(f"to repeat it: make sim SEED={seed}")
        return 1
    if verbose:
        _tell(str(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
