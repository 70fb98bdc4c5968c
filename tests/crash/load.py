"""The load of the crash proof: three physical streams of one logical stream, epoch by epoch.

What a writer sends in an epoch is a function of the seed, the writer and the epoch's number, so
that it can be sent again, and the truth can be computed without any server. Epoch e is about the
times ``[SPAN · e, SPAN · (e + 1))``: its events, in an order of the writer's own, some with an end
that a later epoch corrects, and sometimes one that does not exist and is taken back. Its stable
is ``SPAN · e``: what came before e is promised.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa

from lmerge import Adjust, Element, Insert, batch_of
from tests.oracle.tdb import Tdb

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
SPAN = 10
EVENTS = 8  # of an epoch


def _event(seed: int, epoch: int, number: int) -> tuple[tuple[int, str], int, int]:
    """One event of the truth: its payload, start and end."""
    rng = random.Random(f"{seed}/{epoch}/{number}")
    key = epoch * EVENTS + number
    vs = epoch * SPAN + rng.randrange(SPAN)
    ve = vs + 1 + rng.choice((rng.randrange(SPAN), rng.randrange(30 * SPAN)))
    return (key, "x" * rng.choice((0, 5, 200))), vs, ve


def _payload(payload: tuple[int, str]) -> dict[str, object]:
    return {"key": payload[0], "text": payload[1]}


def elements(seed: int, writer: int, epoch: int) -> list[Element]:
    """What a writer sends in an epoch."""
    rng = random.Random(f"{seed}/{writer}/{epoch}")
    sent: list[Element] = [*_corrections(seed, writer, epoch - 1)] if epoch else []
    own: list[Element] = []
    for number in range(EVENTS):
        payload, vs, ve = _event(seed, epoch, number)
        own.append(Insert(_payload(payload), vs, ve + _mistake(seed, writer, epoch, number)))
    if _spurious(seed, writer, epoch):
        own.append(Insert({"key": -epoch - 1, "text": "?"}, *_ghost(epoch)))
    rng.shuffle(own)
    return [*sent, *own]


def _mistake(seed: int, writer: int, epoch: int, number: int) -> int:
    """How much too late a writer first says that an event ends; corrected in the next epoch."""
    rng = random.Random(f"mistake/{seed}/{writer}/{epoch}/{number}")
    return rng.choice((0, 0, 3, 2 * SPAN))


def _spurious(seed: int, writer: int, epoch: int) -> bool:
    return random.Random(f"spurious/{seed}/{writer}/{epoch}").random() < 0.3


def _ghost(epoch: int) -> tuple[int, int]:
    return epoch * SPAN + SPAN - 1, epoch * SPAN + 3 * SPAN


def _corrections(seed: int, writer: int, epoch: int) -> list[Element]:
    """What the epoch before it got wrong. Both ends are at or after the stable in force."""
    made: list[Element] = []
    for number in range(EVENTS):
        payload, vs, ve = _event(seed, epoch, number)
        wrong = ve + _mistake(seed, writer, epoch, number)
        if wrong != ve:
            made.append(Adjust(_payload(payload), vs, wrong, ve))
    if _spurious(seed, writer, epoch):
        vs, ve = _ghost(epoch)
        made.append(Adjust({"key": -epoch - 1, "text": "?"}, vs, ve, vs))
    return made


def stable(epoch: int) -> int:
    """The stable that closes an epoch."""
    return epoch * SPAN


def batch(seed: int, writer: int, epoch: int) -> pa.RecordBatch:
    """What a writer sends in an epoch, in columns."""
    return batch_of(elements(seed, writer, epoch), SCHEMA)


def closing(seed: int, writer: int, epochs: int) -> pa.RecordBatch:
    """What a writer sends after so many epochs, before it promises everything."""
    return batch_of(_corrections(seed, writer, epochs - 1), SCHEMA)


def truth(seed: int, epochs: int) -> Tdb:
    """What the merge of so many epochs must reconstitute to."""
    events = (_event(seed, epoch, n) for epoch in range(epochs) for n in range(EVENTS))
    return Counter(events)
