"""``python -m tests.crash --kills N [--seed S]``: the crash proof, as long as you like."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash import proof


def main() -> int:
    """Runs the proof; 0 when it holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=proof.__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--durability", choices=("fsync", "flush"), default="fsync")
    arguments = parser.parse_args()
    repeat = f"make crash KILLS={arguments.kills} SEED={arguments.seed}"
    began = time.monotonic()

    def say(kills: int, entries: int) -> None:
        if kills % 10 == 0:
            sys.stdout.write(f"{kills} kills, {entries} entries seen\n")
            sys.stdout.flush()

    async def run(directory: Path) -> proof.Proof:
        async with proof.server(directory, arguments.durability) as process:
            attempt = proof.Proof(process, arguments.seed)
            await attempt.run(arguments.kills, proof.kill, say)
            return attempt

    with tempfile.TemporaryDirectory(prefix="lmerge-crash-") as directory:
        try:
            done = asyncio.run(run(Path(directory)))
        except proof.ProofError as error:
            sys.stdout.write(f"FAILED: {error}\nrepeat it with: {repeat}\n")
            return 1
    sys.stdout.write(
        f"{arguments.kills} kills in {time.monotonic() - began:.0f} s: {done.eager.last} entries,"
        f" {sum(done.epochs)} epochs; nothing lost, nothing twice, nothing changed"
        f" (seed {arguments.seed})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
