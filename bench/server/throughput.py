"""Bytes of input a second, all parts in processes of their own over loopback.

The clock runs from the first replica's first write until the consumer has the last stable and
every replica its last acknowledgement. Runs of the variants alternate; the first turn warms up, and
there the consumer's events are compared with the streams'.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

from bench.measure import Figure, Result
from bench.server.processes import Server, forwarding, play, serving
from bench.server.scale import MIB, Scale
from bench.server.streams import Prepared, prepare, usual

KEPT_BYTES: Final = 512 * MIB
"""Of the output in the server's memory: without a log nothing waits for a slow consumer."""

_numbers = count()


def merged(server: Server, prepared: Prepared, *, check: bool = False) -> float:
    """One run through a merge server; bytes of input a second."""
    merge = f"m{next(_numbers)}"
    server.begin(merge)
    common = {"target": server.target, "merge": merge}
    roles: list[tuple[str, dict[str, Any]]] = [
        ("replica", {**common, "files": {f"s{place}": str(path)}})
        for place, path in enumerate(prepared.paths)
    ]
    found = play([*roles, ("consumer", {**common, "check": check, "keep": check})])
    server.forget(merge)
    *replicas, consumer = found
    for each in replicas:
        if set(each["states"].values()) != {"joined"}:
            raise RuntimeError(f"a stream was not merged: {each['states']}")
    if check and consumer["digest"] != prepared.digest:
        raise RuntimeError("the consumer's events are not the streams'")
    return _rate(prepared, replicas, consumer)


def forwarded(target: str, prepared: Prepared) -> float:
    """One run through the forwarding server; bytes of input a second."""
    roles = [
        ("bare-replica", {"target": target, "files": {"s": str(path)}, "forwarded": place == 0})
        for place, path in enumerate(prepared.paths)
    ]
    *replicas, consumer = play([*roles, ("bare-consumer", {"target": target})])
    if consumer["bytes"] != replicas[0]["bytes"]:
        raise RuntimeError("the consumer has not got everything")
    if sum(each["bytes"] for each in replicas) != prepared.nbytes:
        raise RuntimeError("the replicas have not sent everything")
    return _rate(prepared, replicas, consumer)


def _rate(prepared: Prepared, replicas: list[dict[str, Any]], consumer: dict[str, Any]) -> float:
    began = min(each["began"] for each in replicas)
    ended = max(consumer["ended"], *(each["ended"] for each in replicas))
    return float(prepared.nbytes / ((ended - began) / 1e9))


def spread(rates: list[float]) -> dict[str, float]:
    """The median and the extremes, in MB/s."""
    return {
        "median_mb_s": round(statistics.median(rates) / 1e6, 1),
        "least_mb_s": round(min(rates) / 1e6, 1),
        "most_mb_s": round(max(rates) / 1e6, 1),
        "runs": len(rates),
    }


def in_turns(variants: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """All variants once, then all again."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            found[name].append(variant())
    return found


def throughput(scale: Scale) -> Result:
    """Three replicas, R3 and one consumer, against a server that forwards one of three."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for size, least in zip(scale.message_bytes, (0.4, 0.5), strict=True):
        with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory, ExitStack() as stack:
            prepared = prepare(
                Path(directory), usual(scale.elements, scale.live, scale.payload), size
            )
            server = stack.enter_context(serving("none", memory_bytes=KEPT_BYTES))
            bare = stack.enter_context(forwarding())
            merged(server, prepared, check=True)
            forwarded(bare, prepared)
            used = server.cpu_seconds()
            rates = in_turns(
                {
                    "merged": lambda: merged(server, prepared),  # noqa: B023 (called at once)
                    "forwarded": lambda: forwarded(bare, prepared),  # noqa: B023 (called at once)
                },
                scale.repeats,
            )
            used = server.cpu_seconds() - used
        name = f"throughput, {_size(size)} messages, against forwarding"
        figures.append(Figure(name, _ratio(rates, "merged", "forwarded"), at_least=least))
        figures.append(
            Figure(
                f"the same in elements, {_size(size)} messages",
                statistics.median(rates["merged"]) * prepared.elements / prepared.nbytes / 1e3,
                "K/s",
            )
        )
        details[name] = {
            **{label: spread(each) for label, each in rates.items()},
            "each_turn": [round(a / b, 3) for a, b in zip(*rates.values(), strict=True)],
            "input_bytes": prepared.nbytes,
            "input_elements": prepared.elements,
            "server_cpu_s_a_run": round(used / scale.repeats, 2),
        }
    return Result(figures, details)


def durability(scale: Scale) -> Result:
    """The same with a log: fsync and flush against none."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    size = scale.message_bytes[0]
    with tempfile.TemporaryDirectory(prefix="lmerge-bench-") as directory, ExitStack() as stack:
        prepared = prepare(Path(directory), usual(scale.elements, scale.live, scale.payload), size)
        servers = {
            kind: stack.enter_context(serving(kind, memory_bytes=KEPT_BYTES))
            for kind in ("none", "flush", "fsync")
        }
        for server in servers.values():
            merged(server, prepared, check=True)
        rates = in_turns(
            {kind: _runs(server, prepared) for kind, server in servers.items()},
            scale.durable_repeats,
        )
        disk = disk_rate(Path(directory), prepared.nbytes)
    for kind, least in (("fsync", 0.6), ("flush", None)):
        name = f"throughput, {_size(size)} messages, {kind} against none"
        figures.append(Figure(name, _ratio(rates, kind, "none"), at_least=least))
    details = {kind: spread(each) for kind, each in rates.items()}
    details["disk_mb_s"] = {"one_file_one_fsync": round(disk / 1e6, 1)}
    return Result(figures, details)


def _runs(server: Server, prepared: Prepared) -> Callable[[], float]:
    return lambda: merged(server, prepared)


def disk_rate(directory: Path, nbytes: int) -> float:
    """Bytes a second that the disk takes of one writer who asks for one fsync at the end."""
    piece = os.urandom(MIB)
    start = time.monotonic()
    with (directory / "disk").open("wb") as file:
        for _ in range(max(1, nbytes // MIB)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return max(1, nbytes // MIB) * MIB / (time.monotonic() - start)


def _ratio(rates: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(rates[over]) / statistics.median(rates[under])


def _size(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"
