"""The story of ``lmerge demo``: three replicas, one of them dies, the consumer does not notice.

A story on the screen, made by the real merge: what each replica says, what the consumer sees, and
at the end the proof that nothing was lost or repeated.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pyarrow as pa

from lmerge.core.batch import element_schema
from lmerge.core.merge import Merge
from lmerge.core.output import Output
from lmerge.elements import Op, Stable
from lmerge.times import BEGINNING, INFINITY

PAYLOAD: Final = pa.schema([("job", pa.string()), ("host", pa.string())])
ELEMENTS: Final = element_schema(PAYLOAD)
ADJUST_DELAY: Final = 3  # time units by which a replica may be late about anything
LENGTH: Final = 120
KILLED: Final = 44
BACK: Final = 68
TICKS_A_LINE: Final = 4
BAR: Final = 12
JOBS: Final = ("etl", "index", "train", "backup", "report", "crawl")

Row = tuple[Op, int, int, int, str, str]


@dataclass(frozen=True)
class Process:
    """A true event."""

    job: str
    host: str
    start: int
    end: int


@dataclass
class Replica:
    """One plan: how late it is, and what it guesses while it does not know an end."""

    name: str
    plan: str
    lag: int
    guess: int | None  # how long it supposes a process to run; None: for ever
    alive: bool = True
    since: int = 0
    agenda: list[tuple[int, Row]] = field(default_factory=list)  # when it says what
    stable: int = BEGINNING

    def plan_agenda(self, processes: list[Process], rng: Random) -> None:
        """Everything it will say, in its own order."""
        self.agenda = []
        for p in processes:
            if p.end < self.since:
                continue  # a replica that returns knows only what it promised to know
            seen = max(p.start, self.since) + rng.randint(0, ADJUST_DELAY)
            told = p.end + rng.randint(0, ADJUST_DELAY)
            first = INFINITY if self.guess is None else p.start + self.guess
            if first < told + ADJUST_DELAY:
                first = INFINITY  # a guess that would run out too early is not made
            self.agenda.append((seen, (Op.INSERT, p.start, first, 0, p.job, p.host)))
            at = max(seen + 1, told)
            self.agenda.append((at, (Op.ADJUST, p.start, p.end, first, p.job, p.host)))
        self.agenda.sort(key=lambda item: item[0])

    def say(self, clock: int) -> tuple[list[Row], int | None]:
        """What it has to say by now, and how far it vouches for it."""
        now = clock - self.lag
        due = [row for at, row in self.agenda if at <= now]
        self.agenda = [item for item in self.agenda if item[0] > now]
        ahead = min((min(_times(row)) for _, row in self.agenda), default=INFINITY)
        vouch = min(now - ADJUST_DELAY, ahead)
        if not self.agenda:
            vouch = INFINITY
        if vouch <= max(self.stable, self.since):
            return due, None
        self.stable = vouch
        return due, vouch


def _times(row: Row) -> list[int]:
    op, vs, ve, vold, *_ = row
    return [vs] if op == Op.INSERT else [ve, vold]


class Consumer:
    """Takes the output and nothing else, and keeps a view of what runs."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str, int, int]] = Counter()
        self.stable = BEGINNING
        self.elements = 0
        self.broken: list[str] = []

    def take(self, output: Output) -> None:
        """Apply the output; whatever breaks its promises is remembered."""
        for part in output.parts:
            if isinstance(part, Stable):
                if part.vc <= self.stable:
                    self.broken.append(f"{part} after stable({self.stable})")
                self.stable = part.vc
                continue
            for row in part.to_pylist():
                self.elements += 1
                self._apply(row)

    def _apply(self, row: dict[str, Any]) -> None:
        key = (row["job"], row["host"], row["vs"])
        if row["op"] == Op.INSERT:
            if row["vs"] < self.stable:
                self.broken.append(f"insert below the stable point: {row}")
            self.events[(*key, row["ve"])] += 1
            return
        if min(row["vold"], row["ve"]) < self.stable or not self.events[(*key, row["vold"])]:
            self.broken.append(f"adjust that cannot be: {row}")
        self.events[(*key, row["vold"])] -= 1
        if row["ve"] != row["vs"]:
            self.events[(*key, row["ve"])] += 1

    def counts(self, clock: int) -> tuple[int, int]:
        """How many processes run now, and of how many the end is final."""
        live = [e for e, n in self.events.items() if n > 0]
        running = sum(1 for *_, vs, ve in live if vs <= clock < ve)
        return running, sum(1 for *_, ve in live if ve < self.stable)


def tell(seed: int, *, fast: bool) -> bool:
    """Tells the story on stdout; whether the proof held."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    rng = Random(seed)  # noqa: S311  # a story, not a secret
    processes = _processes(rng)
    replicas = [
        Replica("amber", "announces at once, open end", lag=0, guess=None),
        Replica("birch", "guesses 30 units, corrects", lag=3, guess=30),
        Replica("cedar", "the same, on a slow machine", lag=11, guess=40),
    ]
    pause = 0.0 if fast or not console.is_terminal else 0.35
    story = _Story(console, processes, replicas, rng, pause)
    story.tell()
    return story.prove()


def _processes(rng: Random) -> list[Process]:
    found: dict[tuple[str, str, int], Process] = {}
    for number in range(90):
        start = rng.randint(1, LENGTH - 25)
        p = Process(f"{rng.choice(JOBS)}-{number}", f"node{rng.randint(1, 5)}", start,
                    start + rng.randint(4, 24))  # fmt: skip
        found[p.job, p.host, p.start] = p
    return sorted(found.values(), key=lambda p: p.start)


class _Story:
    def __init__(
        self,
        console: Any,
        processes: list[Process],
        replicas: list[Replica],
        rng: Random,
        pause: float,
    ) -> None:
        self.console = console
        self.processes = processes
        self.replicas = replicas
        self.rng = rng
        self.pause = pause
        self.merge = Merge(PAYLOAD, feedback=True)
        self.consumer = Consumer()
        self.silence = {"merged": 0, "amber alone": 0}
        self.longest = dict(self.silence)
        self.input_elements = 0

    def tell(self) -> None:
        """Tick by tick."""
        say = self.console.print
        say("[bold]lmerge[/]: three replicas of one query, one stream for the consumer\n")
        for replica in self.replicas:
            replica.plan_agenda(self.processes, self.rng)
            self.consumer.take(self.merge.attach(replica.name))
            say(f"  [cyan]{replica.name}[/]  {replica.plan}")
        say("\n  bars: how far each vouches for the past (its stable point)\n")
        say(f"  time  {'amber':<{BAR + 2}}{'birch':<{BAR + 2}}{'cedar':<{BAR + 2}}"
            "[bold]the consumer[/]")  # fmt: skip
        # The last ends are known some time after the last start: run until all is said.
        for clock in range(LENGTH + ADJUST_DELAY + 16):
            if clock == KILLED:
                self._kill(self.replicas[0])
            if clock == BACK:
                self._return(self.replicas[0], clock)
            self._tick(clock)
            if clock % TICKS_A_LINE == 0 or self.consumer.stable == INFINITY:
                self._line(clock)
            if self.consumer.stable == INFINITY:
                break

    def _tick(self, clock: int) -> None:
        before = self.consumer.stable
        for replica in self.replicas:
            if not replica.alive:
                continue
            rows, stable = replica.say(clock)
            self.input_elements += len(rows)
            columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(ELEMENTS)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, ELEMENTS, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=ELEMENTS)
            output = self.merge.apply(replica.name, batch, stable)
            self.consumer.take(output)
            for notice in output.notices:
                self.console.print(f"        [yellow]{notice}[/]")
        self._listen("merged", self.consumer.stable > before)
        self._listen("amber alone", self.replicas[0].alive)

    def _listen(self, who: str, heard: bool) -> None:
        self.silence[who] = 0 if heard else self.silence[who] + 1
        self.longest[who] = max(self.longest[who], self.silence[who])

    def _kill(self, replica: Replica) -> None:
        replica.alive = False
        self.consumer.take(self.merge.detach(replica.name))
        self.console.print(f"        [bold red]kill -9 {replica.name}[/], the fastest of them")

    def _return(self, replica: Replica, clock: int) -> None:
        replica.alive, replica.since, replica.stable = True, clock, BEGINNING
        replica.plan_agenda(self.processes, self.rng)
        self.consumer.take(self.merge.attach(replica.name, since=clock))
        self.console.print(
            f"        [bold green]{replica.name} is back[/] and knows only what ends from"
            f" {clock} on: it is joining"
        )

    def _line(self, clock: int) -> None:
        running, final = self.consumer.counts(clock)
        states = self.merge.streams()
        bars = ""
        for replica in self.replicas:
            joined = replica.name in states and states[replica.name].value == "joined"
            colour = "cyan" if joined else "yellow"
            bars += f"[{colour}]{_bar(replica.stable if replica.alive else BEGINNING)}[/]  "
        stable = "all" if self.consumer.stable == INFINITY else str(max(0, self.consumer.stable))
        self.console.print(
            f"  {clock:>4}  {bars}[bold]{running:>2}[/] running, {final:>2} final,"
            f" up to [bold]{stable}[/]"
        )
        time.sleep(self.pause)

    def prove(self) -> bool:
        """Compares what the consumer has with the truth, and says so."""
        truth = Counter((p.job, p.host, p.start, p.end) for p in self.processes)
        seen = +self.consumer.events
        lost, extra = truth - seen, seen - truth
        statistics = self.merge.statistics()
        say = self.console.print
        say("\n[bold]What happened[/]")
        for s in statistics.streams:
            say(
                f"  {s.name:<6} said {s.inserts + s.adjusts:>3} elements, was first with"
                f" {s.share:>3.0%} of the events; {s.divergent} intervals differ"
            )
        say(
            f"  {self.input_elements} elements in, {self.consumer.elements} out\n"
            f"  longest time without progress: [bold]{self.longest['merged']}[/] ticks;"
            f" following amber alone: [bold]{self.longest['amber alone']}[/]"
        )
        say("[bold]Proof[/]")
        held = not (lost or extra or self.consumer.broken) and self.consumer.stable == INFINITY
        say(
            f"  {len(truth)} true events: lost {sum(lost.values())}, duplicated or wrong"
            f" {sum(extra.values())}, promises broken {len(self.consumer.broken)}"
        )
        for broken in self.consumer.broken[:3]:
            say(f"  [red]{broken}[/]")
        say("  [bold green]It held.[/]" if held else "  [bold red]It did not hold.[/]")
        return held


def _bar(stable: int) -> str:
    if stable == BEGINNING:
        return " " * BAR
    filled = BAR if stable >= LENGTH else max(0, stable) * BAR // LENGTH
    return "━" * filled + "╌" * (BAR - filled)
