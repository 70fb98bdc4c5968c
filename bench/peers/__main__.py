"""Merging three replicas with lmerge and with what people use today: ``python -m bench.peers``.

Every peer runs in a process and an environment of its own, on the same arrivals, one after the
other; its events are compared with the truth. Elements a second are of the wall clock, without
start-up, and the median of the repeats. A peer that cannot be installed is left out, and the
results say why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.measure import Figure, commit, machine
from bench.peers import environments, work

RESULTS: Final = Path(__file__).parent.parent / "results" / "peers.json"
RUN_SECONDS: Final = 900.0
SEED: Final = 0
LEAST: Final = 3.0


def run(peer: environments.Peer, given: work.Given, repeats: int, place: Path) -> dict[str, Any]:
    """One peer on one case."""
    result = place / f"{peer.name}.arrows"
    script = Path(__file__).parent / peer.script
    found: list[dict[str, Any]] = []
    for _ in range(repeats):
        try:
            done = subprocess.run(
                [str(peer.python), str(script), str(given.path), str(result)],
                capture_output=True, text=True, timeout=RUN_SECONDS, cwd=place,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"it took longer than {RUN_SECONDS:g} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            return {"failed": lines[-1]}
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    with pa.OSFile(str(result)) as source, pa.ipc.open_stream(source) as reader:
        verdict = work.judge(reader.read_all(), given.truth)
    rates = [each["elements"] / each["seconds"] for each in found]
    return {
        "version": found[0]["version"],
        "per_s": round(statistics.median(rates)),
        "per_s_low": round(min(rates)),
        "per_s_high": round(max(rates)),
        "cpu_per_wall": found[-1]["cpu_seconds"] / found[-1]["seconds"],
        "latency_ms": found[-1]["latency_ms"],
        "peak_mib": round(max(each["peak_mib"] for each in found)),
        "given_mib": round(found[-1]["given_mib"]),
        **verdict.as_json(),
    }


def numbers(cases: dict[str, dict[str, dict[str, Any]]]) -> list[Figure]:
    """What must be reached: against the best peer whose answer is right."""
    found: list[Figure] = []
    for name, by_peer in cases.items():
        ours = by_peer.get("lmerge", {}).get("per_s")
        right = {
            peer: each["per_s"]
            for peer, each in by_peer.items()
            if peer != "lmerge" and each.get("right")
        }
        if ours and right:
            best = max(right, key=lambda peer: right[peer])
            least = LEAST if name == "revising" else None
            said = f"elements/s, {name}: lmerge against {best}, the best that is right"
            found.append(Figure(said, ours / right[best], at_least=least))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; writes nothing")
    parser.add_argument(
        "--only", action="append", metavar="PEER", choices=[p.name for p in environments.ALL]
    )
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    elements, live = (20_000, 1_000) if options.quick else (200_000, 10_000)
    chosen = [p for p in environments.ALL if not options.only or p.name in options.only]
    left_out: dict[str, str] = {}
    cases: dict[str, dict[str, dict[str, Any]]] = {case.name: {} for case in work.CASES}
    usable = []
    for peer in chosen:
        reason = environments.install(peer, _say)
        if reason is None:
            usable.append(peer)
        else:
            left_out[peer.name] = reason
            _say(f"{peer.name} is left out: {reason}")
    with tempfile.TemporaryDirectory(prefix="lmerge-peers-") as folder:
        for case in work.CASES:
            given = work.prepare(Path(folder), case, elements, live, 10_000, options.seed)
            for peer in usable:
                repeats = 1 if options.quick else peer.repeats
                found = run(peer, given, repeats, Path(folder))
                cases[case.name][peer.name] = found
                _say(f"{case.name}, {peer.name}: {_told(found)}")
    reached = numbers(cases)
    for number in reached:
        print(f"{number.name}: {number.value:.2f} {number.bound}")
    left_out |= {p.name: "it was not asked for" for p in environments.ALL if p not in chosen}
    if not options.quick:
        results = {
            "machine": machine(),
            "commit": commit(),
            "command": " ".join(
                ["python -m bench.peers", *(f"--only {name}" for name in options.only or ())]
            ),
            "seed": options.seed,
            "elements_per_replica": elements,
            "rows_per_batch": 10_000,
            "peers": {peer.name: peer.how for peer in usable},
            "left_out": left_out,
            "cases": {c.name: {"what": c.what, "found": cases[c.name]} for c in work.CASES},
            "numbers": [number.as_json() for number in reached],
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {RESULTS}")
    return 0


def _told(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"failed: {found['failed']}"
    wrong = (
        "right"
        if found["right"]
        else f"WRONG: {found['wrong_ends']:,} wrong ends, {found['should_not_exist']:,} events that"
        f" should not exist, {found['missing']:,} missing"
    )
    return f"{found['per_s']:,} elements/s, {found['peak_mib']} MiB, {wrong}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
