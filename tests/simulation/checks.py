"""What a consumer may see: judged by the oracle, which shares no code with lmerge.

- :class:`View` is one consumer's database: a strict reconstitution of what it was given, which at
  every stable point must be the truth as far as that is frozen, and at the end all of it.
- :class:`Transcript` is what all consumers of a server were sent: a position has one content,
  whoever reads it, however often, before and after crashes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pyarrow as pa

from lmerge.client import Elements, Gap, Item, Snapshot, StablePoint
from lmerge.times import INFINITY
from lmerge.v1 import consumer_pb2
from lmerge.wire.rows import schema_of
from tests.oracle.tdb import INF, ContractError, Element, Key, Reconstitution, Tdb, Time, frozen

SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.int8(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("vs", "ve", "vold")),
        pa.field("p", pa.string()),
        pa.field("text", pa.string()),
    ]
)
"""What replicas write; ``text`` follows from ``p``, and makes rows larger."""

_INSERT, _ADJUST = 0, 1


class WrongError(AssertionError):
    """Somebody saw what must not be."""


def batch_of(elements: list[Element]) -> pa.RecordBatch:
    """Data elements of the oracle's kind as replicas write them."""
    rows = []
    for kind, p, vs, *rest in elements:
        vold, ve = (0, rest[0]) if kind == "insert" else rest
        op = _INSERT if kind == "insert" else _ADJUST
        row = {"op": op, "vs": vs, "ve": number(ve), "vold": number(vold)}
        rows.append({**row, "p": p, "text": text_of(p)})
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def text_of(p: str) -> str:
    """The column that makes rows larger."""
    return p * 40


def elements_of(batch: pa.RecordBatch) -> list[Element]:
    """The inverse of :func:`batch_of`."""
    found: list[Element] = []
    for row in batch.to_pylist():
        p, vs, ve = row["p"], row["vs"], time(row["ve"])
        if row["text"] != text_of(p):
            raise WrongError(f"a damaged row: {row}")
        if row["op"] == _INSERT:
            found.append(("insert", p, vs, ve))
        elif row["op"] == _ADJUST:
            found.append(("adjust", p, vs, time(row["vold"]), ve))
        else:
            raise WrongError(f"a row that is no element: {row}")
    return found


def number(t: Time) -> int:
    """A time of the oracle as lmerge has it."""
    return INFINITY if t == INF else int(t)


def time(t: int) -> Time:
    """The inverse of :func:`number`."""
    return INF if t == INFINITY else t


class View:
    """What one consumer has made of its items."""

    def __init__(self, truth: Tdb, restriction: str, *, finals: int) -> None:
        """``finals`` is how often in a row only what is final is passed on."""
        self._truth = truth
        self._finals = finals
        self._tdb = Reconstitution(restriction)
        self._since: Time = -INF  # what ended before is not promised
        self.at: int | None = None  # the position behind the last item
        self.elements = 0

    def copy(self) -> View:
        """As it is, to come back to."""
        other = View(self._truth, "R4", finals=self._finals)
        other.__dict__.update(self.__dict__)
        other._tdb = Reconstitution("R4")
        other._tdb.__dict__.update(self._tdb.__dict__)
        other._tdb.ends = {key: Counter(ends) for key, ends in self._tdb.ends.items()}
        return other

    @property
    def ended(self) -> bool:
        """Whether everything has been said."""
        wanted, stable = self._truth, INF
        for _ in range(self._finals):
            wanted, stable = _finals_of(wanted, stable)
        told: Tdb = Counter({e: n for e, n in wanted.items() if e[2] >= self._since})
        return self._tdb.stable == stable and self._tdb.tdb() == told

    def take(self, item: Item) -> None:
        """One item; WrongError when it cannot be right."""
        if isinstance(item, StablePoint):
            self._apply([("stable", time(item.vc))])
            self._check()
        elif isinstance(item, Gap):
            raise WrongError(f"a gap that nobody allowed: {item}")
        elif isinstance(item, Snapshot):
            self._apply(elements_of(item.batch))
            if item.last and item.since is not None:
                self._since = time(item.since)
            if item.last and item.stable is not None:
                self._apply([("stable", time(item.stable))])
                self._check()
        elif isinstance(item, Elements):
            if not item.batch.num_rows:
                raise WrongError("a batch without rows")
            self._apply(elements_of(item.batch))

    def _apply(self, elements: list[Element]) -> None:
        for element in elements:
            self.elements += 1
            try:
                self._tdb.apply(element)
            except ContractError as error:
                raise WrongError(f"the output breaks its contract: {error}") from None
            if self._finals and element[0] == "adjust":
                raise WrongError(f"a final result is revised: {element}")
            if self._finals and element[0] == "insert":
                _, p, vs, ve = element
                if self._tdb.ends[p, vs][ve] > self._truth[p, vs, ve]:
                    raise WrongError(f"no final result: {element}")

    def _check(self) -> None:
        """At a stable point: what is frozen is the truth, no less and no more."""
        vc = self._tdb.stable
        truth: Tdb = Counter({e: n for e, n in self._truth.items() if e[2] >= self._since})
        wanted_full, wanted_half = frozen(truth, vc)
        found_full, found_half = frozen(self._tdb.tdb(), vc)
        _same(f"frozen before {vc}", wanted_full, found_full)
        _same(f"half frozen at {vc}", wanted_half, found_half)
        if vc == INF:
            _same("in the end", truth, self._tdb.tdb())


def _finals_of(events: Tdb, stable: Time) -> tuple[Tdb, Time]:
    """Of a whole stream what is final, and the stable point of that: an event that does not become
    final (it has no end, say) holds it at its start for ever."""
    final: Tdb = Counter({e: n for e, n in events.items() if e[2] < stable})
    return final, min(stable, *(e[1] for e in events if e[2] >= stable), INF)


def _same(when: str, wanted: Counter[Any], found: Counter[Any]) -> None:
    if wanted != found:
        missing, extra = dict(wanted - found), dict(found - wanted)
        raise WrongError(f"{when}: missing {missing}, too much {extra}")


class Transcript:
    """What was sent for each position."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int, str, bool], Any] = {}
        self._schemas: dict[str, Any] = {}
        self.entries = 0

    def tap(
        self, server: str, opened: consumer_pb2.Open, response: consumer_pb2.SubscribeResponse
    ) -> None:
        """One answer to a reader; WrongError when another was given for the same position."""
        kind = response.WhichOneof("response")
        if kind == "opened":
            self._schemas[server] = schema_of(response.opened.schema)
        if kind != "entry":
            return
        entry, place = response.entry, response.entry.next
        final = opened.delivery == consumer_pb2.DELIVERY_FINAL
        part = entry.WhichOneof("part") or ""
        told = (place.generation, entry.complete, part, self._content(server, entry, final))
        key = (server, place.sequence, part if final else "", final)
        known = self._entries.setdefault(key, told)
        if known != told:
            raise WrongError(f"{server} at {place.sequence}: {known}, and now {told}")
        self.entries += 1

    def _content(self, server: str, entry: consumer_pb2.Entry, final: bool) -> Any:
        """The elements, not their bytes: Arrow may write the same rows in more than one way."""
        if entry.WhichOneof("part") != "batch":
            return (entry.stable, entry.gap.start, entry.gap.end)
        found = elements_of(pa.ipc.read_record_batch(entry.batch, self._schemas[server]))
        return sorted(map(repr, found)) if final else found  # final results come in any order


def keys_of(elements: list[Element]) -> set[Key]:
    """The (p, vs) that data elements are about."""
    return {(e[1], e[2]) for e in elements if e[0] != "stable"}
