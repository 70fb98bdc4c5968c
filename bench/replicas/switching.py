"""Plan switching, as in the paper's Figure 10: each plan is the dear one half of the time.

:func:`switch_plans` runs the two plans of :mod:`replicas.plans.selection` over the same input, each
alone and both merged, as ``lmerge replica run`` processes against a server of their own. Callers
may rely on this:

- The clock runs from when the input is there, with Spark started and its first batches done, until
  a consumer has the merged output up to the end of the input.
- Every variant's output has a digest of the events in it. Variants that agree have the same.
- What was started is ended, whatever happens, and every wait has a bound.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.replicas.processes import Replica, replicas
from bench.server.processes import Server, serving
from lmerge.client import Elements, StablePoint, SyncReader
from lmerge.elements import Op
from replicas.plans import inputs, selection

WAIT_S: Final = 1800.0
"""The longest that a variant may take."""
POLL_S: Final = 0.1
WARM_AHEAD_S: Final = 7200
"""The rows that warm the replicas up are so much older than the input."""
PLANS: Final = Path(selection.__file__)


@dataclass(frozen=True)
class Switching:
    """The parameters of the experiment."""

    rows: int = 200_000
    runs: tuple[int, int] = (10_000, 30_000)
    """The shortest and longest run of rows of one kind."""
    cheap_us: int = 100
    dear_us: int = 2_000
    rows_per_batch: int = 500
    warm_rows: int = 4_000
    seed: int = 0

    def lengths(self) -> list[int]:
        """How long each run is, for as many rows as there are."""
        pick = random.Random(self.seed)
        found: list[int] = []
        while sum(found) < self.rows:
            found.append(pick.randint(*self.runs))
        return found


@dataclass(frozen=True)
class Variant:
    """Which plans run, each as a replica of one merge."""

    plans: tuple[str, ...]
    feedback: bool = False


VARIANTS: Final[Mapping[str, Variant]] = {
    "UDF0": Variant(("udf0",)),
    "UDF1": Variant(("udf1",)),
    "oracle": Variant(("always_cheap",)),
    "merged": Variant(("udf0", "udf1")),
    "merged with feedback": Variant(("udf0", "udf1"), feedback=True),
}


@dataclass(frozen=True)
class Sample:
    """Where every stream was, so many seconds after the input was there."""

    seconds: float
    stable: dict[str, int]  # in microseconds of application time


@dataclass(frozen=True)
class Outcome:
    """What a variant did."""

    seconds: float
    digest: str
    events: int
    switches: list[int]
    """The application times at which the input changes."""
    timeline: list[Sample]
    rows_skipped: dict[str, float]
    shares: dict[str, float]
    """Of the output's inserts, those that each stream delivered first."""
    counters: dict[str, dict[str, float]] = field(default_factory=dict)

    def leaders(self) -> list[tuple[float, str]]:
        """Who was ahead from when on."""
        found: list[tuple[float, str]] = []
        for sample in self.timeline:
            best = max(sample.stable, key=lambda name: sample.stable[name], default=None)
            ahead = [n for n, at in sample.stable.items() if best and at == sample.stable[best]]
            if best is None or len(ahead) > 1:
                continue
            if not found or found[-1][1] != best:
                found.append((round(sample.seconds, 2), best))
        return found

    def as_json(self) -> dict[str, Any]:
        """As a plain value, with the timeline thinned."""
        step = max(1, len(self.timeline) // 200)
        begin = inputs.BEGIN
        return {
            "seconds": round(self.seconds, 2),
            "digest": self.digest,
            "events": self.events,
            "rows_skipped": self.rows_skipped,
            "shares": {name: round(share, 3) for name, share in self.shares.items()},
            "leaders": self.leaders(),
            "switches_s": [round((at - begin) / inputs.SECOND) for at in self.switches],
            "timeline_s": [
                [
                    round(sample.seconds, 2),
                    {n: round((at - begin) / inputs.SECOND) for n, at in sample.stable.items()},
                ]
                for sample in self.timeline[::step]
            ],
            "counters": self.counters,
        }


Say = Callable[[str], None]


def switch_plans(
    setting: Switching,
    variants: Sequence[str] = tuple(VARIANTS),
    say: Say = lambda _: None,
) -> dict[str, Outcome]:
    """Run the variants one after the other; RuntimeError when two outputs are not the same."""
    with tempfile.TemporaryDirectory(prefix="lmerge-switching-") as folder:
        given = _Input(Path(folder) / "whole", setting)
        found: dict[str, Outcome] = {}
        for number, name in enumerate(variants):
            place = Path(folder) / str(number)
            place.mkdir()
            found[name] = _run(VARIANTS[name], setting, given, place)
            say(f"{name}: {found[name].seconds:.1f} s")
        if len({outcome.digest for outcome in found.values()}) > 1:
            told = {name: outcome.digest for name, outcome in found.items()}
            raise RuntimeError(f"the variants' outputs are not the same: {told}")
        return found


class _Input:
    """The rows, in parts that are given to a replica one after the other."""

    def __init__(self, directory: Path, setting: Switching) -> None:
        self.rest = directory / "rest"
        lengths = setting.lengths()
        self.complete = selection.generate(
            self.rest, setting.rows, setting.seed, 0.0, lengths=lengths
        )
        starts = [sum(lengths[:n]) for n in range(1, len(lengths))]
        second = inputs.SECOND
        self.switches = [
            inputs.BEGIN + n * second // selection.ROWS_PER_SECOND
            for n in starts
            if n < setting.rows
        ]
        self.first = directory / "first"
        self.warm = directory / "warm"
        begin = inputs.BEGIN - WARM_AHEAD_S * second
        self._write(self.first, "a", begin, 10, 0)
        self.warm_end = begin + second + setting.warm_rows * second // selection.ROWS_PER_SECOND
        self._write(self.warm, "b", begin + second, setting.warm_rows, 10)

    @staticmethod
    def _write(folder: Path, name: str, begin: int, rows: int, number: int) -> None:
        """Rows of both kinds in turns, hundred of each."""
        folder.mkdir(parents=True)
        half = selection.LARGEST // 2
        table = pa.table(
            {
                "at": [begin + n * inputs.SECOND // selection.ROWS_PER_SECOND for n in range(rows)],
                "number": [-1 - number - n for n in range(rows)],
                "x": [n % half + half * (n // 100 % 2) for n in range(rows)],
            },
            schema=selection.SCHEMA,
        )
        pq.write_table(table, folder / f"{name}.parquet")

    def give(self, part: Path, to: Path) -> None:
        """Let the files of a part appear; each whole at once, in the order of their names."""
        for file in sorted(part.iterdir()):
            draft = to / f".{file.name}"
            shutil.copyfile(file, draft)
            draft.rename(to / file.name)


def _run(variant: Variant, setting: Switching, given: _Input, place: Path) -> Outcome:
    directory = place / "in"
    directory.mkdir()
    given.give(given.first, directory)
    conf = {
        inputs.INPUT_CONF: str(directory),
        inputs.ROWS_CONF: str(setting.rows_per_batch),
        inputs.FEEDBACK_CONF: str(variant.feedback).lower(),
        selection.CHEAP_CONF: str(setting.cheap_us),
        selection.DEAR_CONF: str(setting.dear_us),
    }
    jobs = [
        Replica(f"{PLANS}:{plan}", plan, place / f"checkpoint-{plan}", conf)
        for plan in variant.plans
    ]
    with ExitStack() as stack:
        server = stack.enter_context(serving("flush"))
        running = stack.enter_context(replicas(server.target, "selection", jobs, place))
        running.until(lambda: _at_least(server, variant.plans, 1), WAIT_S)
        given.give(given.warm, directory)
        consumer = stack.enter_context(_consuming(server.target))
        warm = given.warm_end - 2 * inputs.DELAY_S * inputs.SECOND
        running.until(lambda: consumer.stable >= warm, WAIT_S)
        before = _described(server)
        timeline: list[Sample] = []
        began = time.monotonic()
        given.give(given.rest, directory)

        def done() -> bool:
            timeline.append(Sample(time.monotonic() - began, _stables(server)))
            return consumer.stable >= given.complete

        running.until(done, WAIT_S, POLL_S)
        after = _described(server)
    digest, events = consumer.events(given.complete)
    return Outcome(
        consumer.reached(given.complete) - began,
        digest,
        events,
        given.switches,
        timeline,
        {
            name: counters.get("rows_skipped", 0.0)
            + counters.get("rows_dropped", 0.0)
            - before[name].get("rows_skipped", 0.0)
            - before[name].get("rows_dropped", 0.0)
            for name, counters in after.items()
        },
        {name: counters["share"] for name, counters in after.items()},
        after,
    )


def _at_least(server: Server, plans: Sequence[str], epochs: int) -> bool:
    """Whether all have attached and committed so many epochs."""
    try:
        streams = server.describe("selection").streams
    except Exception:
        return False  # there is no merge before the first of them
    done = [each.name for each in streams if each.HasField("last_epoch")]
    return len(done) == len(plans) and all(
        each.last_epoch + 1 >= epochs for each in streams if each.name in done
    )


def _stables(server: Server) -> dict[str, int]:
    return {
        each.name: max(each.stable, inputs.BEGIN) for each in server.describe("selection").streams
    }


def _described(server: Server) -> dict[str, dict[str, float]]:
    return {
        each.name: {**dict(each.counters), "share": each.share}
        for each in server.describe("selection").streams
    }


class _Consumer:
    """Reads the merge on a thread of its own."""

    def __init__(self, target: str) -> None:
        self.stable = 0
        self._batches: list[pa.RecordBatch] = []
        self._stables: list[tuple[float, int]] = []
        self._reader = SyncReader(target, "selection", start="beginning")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(Exception):  # the reader is closed to end it
            for item in self._reader:
                if isinstance(item, Elements):
                    self._batches.append(item.batch)
                elif isinstance(item, StablePoint):
                    self._stables.append((time.monotonic(), item.vc))
                    self.stable = item.vc

    def close(self) -> None:
        self._reader.close()
        self._thread.join(WAIT_S)

    def reached(self, stable: int) -> float:
        """When the output was stable so far."""
        return next(at for at, vc in self._stables if vc >= stable)

    def events(self, complete: int) -> tuple[str, int]:
        """A digest of all events that start in the input, and how many there are."""
        ends: dict[tuple[int, int, int], list[int]] = {}
        for batch in self._batches:
            columns = [
                batch.column(c).to_pylist() for c in ("op", "vs", "ve", "vold", "number", "x")
            ]
            for op, vs, ve, vold, number, x in zip(*columns, strict=True):
                if not inputs.BEGIN <= vs < complete:
                    continue
                live = ends.setdefault((vs, number, x), [])
                if op == Op.ADJUST:
                    live.remove(vold)
                if ve > vs:
                    live.append(ve)
        whole = sorted((*key, end) for key, live in ends.items() for end in live)
        return blake2b(repr(whole).encode(), digest_size=16).hexdigest(), len(whole)


@contextmanager
def _consuming(target: str) -> Iterator[_Consumer]:
    consumer = _Consumer(target)
    try:
        yield consumer
    finally:
        consumer.close()
