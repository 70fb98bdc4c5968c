"""The core's structures against plain models, action after action, and their checks against us."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lmerge.core.algorithms.r3 import R3
from lmerge.core.algorithms.r4 import R4
from lmerge.core.batch import Batch, no_rows
from lmerge.core.digests import MOST_INTERVALS, Digests
from lmerge.core.merge import Merge
from lmerge.core.nodes import (
    FREE,
    LIVE,
    NOBODY,
    OUT,
    REF,
    STREAMS,
    VS,
    WAKE,
    NodeTable,
    add,
    find,
    remove,
    sleep,
    wake_before,
    wake_earlier,
)
from lmerge.core.payloads import PayloadStore
from lmerge.errors import InvariantError
from lmerge.times import BEGINNING, INFINITY
from tests.drive import arrive, new_merge
from tests.oracle.runs import random_run

# -- nodes

Key = tuple[int, int, int]

EDGES = (
    BEGINNING + 1, -(2**62), -(2**62) + 1, -(2**32), -257, -256, -1, 0, 1, 255, 256, 65_535,
    65_536, 2**32, 2**62 - 1, 2**62, INFINITY - 1,
)  # fmt: skip


class NodesAndModel:
    """A table and a dict from key to (node, wake time); both do the same."""

    def __init__(self, rng: Random, near: bool) -> None:
        self.rng = rng
        self.near = near
        self.table = NodeTable(streams=1, capacity=4)
        self.model: dict[Key, tuple[int, int]] = {}
        self.last = BEGINNING
        self.next_ref = 0

    def time(self, low: int) -> int:
        """A time from `low` on: near it, at an edge, or anywhere."""
        rng = self.rng
        draw = rng.random()
        floor = max(low, BEGINNING + 1)
        if draw < 0.6 and self.near:
            return min(INFINITY - 1, (floor if floor > -(2**61) else 0) + rng.randint(0, 600))
        later = [edge for edge in EDGES if edge >= floor]
        if draw < 0.9 and later:
            return rng.choice(later)
        return rng.randint(floor, INFINITY - 1)

    def key(self) -> Key:
        """Few fingerprints, so that keys differ in one part only, and places collide."""
        return self.time(self.last), self.rng.randrange(3), self.rng.choice((5, 2**60))

    def add(self) -> None:
        key = self.key()
        self.table.make_room(1)
        if key in self.model or key[0] == INFINITY:
            return
        node = int(add(self.table.nodes, *key, self.next_ref, BEGINNING))
        self.next_ref += 1
        self.model[key] = (node, key[0])

    def find(self) -> None:
        known = list(self.model)
        key = self.rng.choice(known) if known and self.rng.random() < 0.5 else self.key()
        expected = self.model[key][0] if key in self.model else NOBODY
        assert int(find(self.table.nodes, *key)) == expected

    def hurry(self) -> None:
        if not self.model:
            return
        key = self.rng.choice(list(self.model))
        node, wake = self.model[key]
        wanted = self.time(BEGINNING)
        wake_earlier(self.table.nodes, node, wanted)
        if self.last <= wanted < wake:
            self.model[key] = (node, wanted)

    def stable(self) -> None:
        t = self.time(self.last) if self.rng.random() < 0.9 else self.last
        chain, count = wake_before(self.table.nodes, t)
        woken = set()
        while chain != NOBODY:
            woken.add(int(chain))
            chain = self.table.nodes.after[chain] if len(woken) <= count else NOBODY
        expected = {node: key for key, (node, wake) in self.model.items() if wake < t}
        if t <= self.last:
            expected = {}
        assert woken == set(expected)
        assert int(count) == len(woken)
        self.last = max(self.last, t)
        for node, key in expected.items():
            if self.rng.random() < 0.5:
                remove(self.table.nodes, node)
                del self.model[key]
            else:
                wake = INFINITY if self.rng.random() < 0.2 else self.time(self.last)
                sleep(self.table.nodes, node, wake)
                self.model[key] = (node, wake)

    def rebuild(self) -> None:
        """As a snapshot does: node numbers change, nothing else does."""
        rows = self.table.nodes.rows[self.table.live_rows()].copy()
        self.table = NodeTable.of(rows, self.last)
        for key, (_, wake) in self.model.items():
            self.model[key] = (int(find(self.table.nodes, *key)), wake)

    def agree(self) -> None:
        self.table.check()
        assert self.table.live == len(self.model)
        rows = self.table.nodes.rows
        for key, (node, wake) in self.model.items():
            assert tuple(rows[node, VS:REF].tolist()) == key
            assert int(rows[node, WAKE]) == wake


@pytest.mark.parametrize("seed", range(8))
def test_nodes_behave_like_a_dict_and_wake_in_time(seed: int) -> None:
    pair = NodesAndModel(Random(seed), near=seed % 2 == 0)
    actions: dict[Callable[[], None], int] = {
        pair.add: 10, pair.find: 6, pair.hurry: 4, pair.stable: 2, pair.rebuild: 1,
    }  # fmt: skip
    for number in range(350):
        (action,) = pair.rng.choices(list(actions), list(actions.values()))
        try:
            action()
            pair.agree()
        except (AssertionError, InvariantError) as error:
            name = action.__name__
            raise AssertionError(f"seed {seed}, action {number} ({name}): {error}") from error


def test_many_nodes_with_one_start_are_found_and_removed_in_any_order() -> None:
    rng = Random(1)
    table = NodeTable(streams=1, capacity=1)
    nodes = {}
    for i in range(3000):
        table.make_room(1)
        nodes[i] = int(add(table.nodes, 7, i, i * i, i, BEGINNING))
    table.check()
    chain, count = wake_before(table.nodes, 8)
    assert count == 3000
    assert chain != NOBODY
    order = list(nodes)
    rng.shuffle(order)
    for number, i in enumerate(order):
        assert int(find(table.nodes, 7, i, i * i)) == nodes[i]
        remove(table.nodes, nodes[i])
        assert int(find(table.nodes, 7, i, i * i)) == NOBODY
        if number % 500 == 0:
            left = order[number + 1 :]
            assert all(int(find(table.nodes, 7, j, j * j)) == nodes[j] for j in left)
    table.check()
    assert table.live == 0


def _some_table() -> NodeTable:
    table = NodeTable(streams=1, capacity=16)
    for i in range(10):
        add(table.nodes, i * 100, i, i, i, BEGINNING)
    remove_first, _ = wake_before(table.nodes, 50)
    remove(table.nodes, remove_first)
    table.check()
    return table


def _set(array: Any, place: Any, value: int) -> None:
    array[place] = value


TABLE_DAMAGE: dict[str, Callable[[NodeTable], None]] = {
    "a key is changed": lambda t: _set(t.nodes.rows, (5, VS), 501),
    "a fingerprint is changed": lambda t: _set(t.nodes.rows, (5, 1), 77),
    "a wake time is changed": lambda t: _set(t.nodes.rows, (5, WAKE), 100_000),
    "a wake time has passed": lambda t: _set(t.nodes.rows, (5, WAKE), 3),
    "a place of the table is lost": lambda t: _set(
        t.nodes.table, t.nodes.table & 0xFFFFFFFF == 5, NOBODY
    ),
    "a node is in the table twice": lambda t: _set(
        t.nodes.table,
        int(np.flatnonzero(t.nodes.table == NOBODY)[0]),
        int(t.nodes.table[t.nodes.table & 0xFFFFFFFF == 5][0]),
    ),
    "a list of the wheel is lost": lambda t: _set(
        t.nodes.heads, int(np.flatnonzero(t.nodes.heads != NOBODY)[0]), NOBODY
    ),
    "a link back is wrong": lambda t: _set(t.nodes.before, 5, 3),
    "the count is wrong": lambda t: _set(t.nodes.state, LIVE, 3),
    "the free list is lost": lambda t: _set(t.nodes.state, FREE, NOBODY),
    "a live node looks free": lambda t: _set(t.nodes.rows, (5, REF), -1),
}


@pytest.mark.parametrize("damage", TABLE_DAMAGE)
def test_the_check_of_nodes_sees_damage(damage: str) -> None:
    table = _some_table()
    TABLE_DAMAGE[damage](table)
    with pytest.raises(InvariantError, match="nodes"):
        table.check()


# -- payloads

PAYLOADS = pa.schema(
    [
        ("n", pa.int64()),
        ("i", pa.int16()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("S", pa.large_string()),
        ("x", pa.binary(3)),
        ("dec", pa.decimal128(20, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.dictionary(pa.int8(), pa.string())),
        ("l", pa.list_(pa.struct([("q", pa.int8()), ("r", pa.string())]))),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("nothing", pa.null()),
    ]
)


def _row(rng: Random, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "n": number,
        "i": number % 1000,
        "f": number / 2,
        "b": bool(number % 3),
        "s": "s" * (number % 40),
        "S": f"{number}" * (number % 5),
        "x": (number % 2**24).to_bytes(3, "big"),
        "dec": number,
        "t": number,
        "d": "abcdefg"[number % 7],
        "l": [{"q": number % 100, "r": None if number % 2 else "r"}] * (number % 3),
        "m": [(str(i), i) for i in range(number % 3)],
        "nothing": None,
    }
    for name in row:
        if rng.random() < 0.1:
            row[name] = None
    return row


class StoreAndModel:
    """A store and a dict from number to row."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.store = PayloadStore(PAYLOADS)
        self.model: dict[int, dict[str, Any]] = {}

    def _batch(self, count: int) -> pa.RecordBatch:
        """Sometimes with rows before and after, which are sliced off."""
        rng = self.rng
        before, after = (rng.choice((0, 0, 3, 9)) for _ in range(2))
        rows = [_row(rng, rng.randrange(10**6)) for _ in range(before + count + after)]
        return pa.RecordBatch.from_pylist(rows, schema=PAYLOADS).slice(before, count)

    def append(self) -> None:
        count = self.rng.choice((0, 1, 1, 1, 1, 2, 5, 60, 300))
        batch = self._batch(count)
        for number, row in enumerate(batch.to_pylist(), self.store.next_number):
            self.model[number] = row
        self.store.append(batch)

    def gather(self) -> None:
        if not self.model:
            return
        count = self.rng.choice((0, 1, 3, 50))
        numbers = [self.rng.choice(list(self.model)) for _ in range(count)]
        found = self.store.gather(np.array(numbers, dtype=np.int64))
        found.validate(full=True)
        assert found.schema.names == PAYLOADS.names
        assert found.to_pylist() == [self.model[number] for number in numbers]

    def release(self) -> None:
        share = self.rng.choice((0.01, 0.3, 0.95))
        dead = [number for number in self.model if self.rng.random() < share]
        for number in dead:
            del self.model[number]
        self.rng.shuffle(dead)
        self.store.release(np.array(dead, dtype=np.int64))

    def restore(self) -> None:
        numbers = np.array(sorted(self.model), dtype=np.int64)
        rows = self.store.gather(numbers)
        next_number = self.store.next_number
        self.store = PayloadStore(PAYLOADS)
        self.store.restore(rows, numbers, next_number)

    def agree(self) -> None:
        self.store.check()
        assert self.store.live == len(self.model)


@pytest.mark.parametrize("seed", range(4))
def test_payloads_behave_like_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # With less slack a run of this size is compacted often, with less room a catalog grows.
    monkeypatch.setattr("lmerge.core.gathering._ROOM", 2)
    monkeypatch.setattr("lmerge.core.payloads._SLACK", 32 if seed % 2 else 4096)
    pair = StoreAndModel(Random(seed))
    actions: dict[Callable[[], None], int] = {
        pair.append: 10, pair.gather: 6, pair.release: 2, pair.restore: 1,
    }  # fmt: skip
    for number in range(160):
        (action,) = pair.rng.choices(list(actions), list(actions.values()))
        try:
            action()
            pair.agree()
        except (AssertionError, InvariantError) as error:
            name = action.__name__
            raise AssertionError(f"seed {seed}, action {number} ({name}): {error}") from error
    everything = sorted(pair.model)
    found = pair.store.gather(np.array(everything, dtype=np.int64)).to_pylist()
    assert found == [pair.model[number] for number in everything], f"seed {seed}"


def test_a_row_at_a_time_does_not_become_a_buffer_a_row() -> None:
    schema = pa.schema([("n", pa.int64())])
    store = PayloadStore(schema)
    for i in range(5000):
        store.append(pa.RecordBatch.from_pydict({"n": [i]}))
    store.check()
    assert len(store._segments) < 100
    numbers = np.arange(4999, -1, -1, dtype=np.int64)
    assert store.gather(numbers).column("n").to_pylist() == numbers.tolist()


def test_released_payloads_are_freed() -> None:
    store = PayloadStore(pa.schema([("s", pa.string())]))
    batch = pa.RecordBatch.from_pydict({"s": ["x" * 1000] * 1000})
    for _ in range(50):
        first = store.next_number
        store.append(batch)
        store.release(np.arange(first, first + 999, dtype=np.int64))
    assert store.live == 50
    assert store.nbytes < 8 * batch.nbytes


def test_no_rows_of_any_schema_can_be_gathered() -> None:
    store = PayloadStore(PAYLOADS)
    assert store.gather(np.zeros(0, dtype=np.int64)).equals(no_rows(PAYLOADS))


def _some_store() -> PayloadStore:
    store = PayloadStore(pa.schema([("n", pa.int64())]))
    for start in (0, 10_000):
        store.append(pa.RecordBatch.from_pydict({"n": list(range(start, start + 10_000))}))
    store.check()
    assert len(store._segments) == 2
    return store


def test_the_check_of_payloads_sees_damage() -> None:
    damages: list[Callable[[PayloadStore], None]] = [
        lambda store: setattr(store, "_stored", 3),
        lambda store: setattr(store, "next_number", 15_000),
        lambda store: setattr(store._segments[1], "first", 5000),
        lambda store: setattr(store._segments[0], "numbers", np.zeros(10_000, dtype=np.int64)),
        lambda store: setattr(store._segments[0], "rows", store._segments[0].rows.slice(1)),
    ]
    for damage in damages:
        store = _some_store()
        damage(store)
        with pytest.raises(InvariantError, match="payloads"):
            store.check()


# -- digests


class DigestsAndModel:
    """Digests, and for each column the multiset of events by their ends."""

    def __init__(self, rng: Random, span: int) -> None:
        self.rng = rng
        self.span = span
        self.digests = Digests(streams=2)
        self.model: list[dict[tuple[int, int, int], int]] = [{}, {}, {}]
        self.closed = BEGINNING

    def _batch(self, elements: list[tuple[int, int, int, int, int]]) -> Batch:
        op, payload, vs, vold, ve = (
            np.array(c, dtype=np.int64) for c in zip(*elements, strict=True)
        )
        none = no_rows(pa.schema([]))
        return Batch(op.astype(np.int8), vs, ve, vold, none, payload, payload * 31)

    def add(self) -> None:
        rng = self.rng
        column = rng.randrange(3)
        events = self.model[column]
        elements = []
        for _ in range(rng.choice((1, 20, 300))):
            low = max(self.closed, 0)
            movable = [e for e in (*events,) if e[2] >= low] if rng.random() < 0.02 else []
            vs = low + rng.randrange(self.span)
            ve = INFINITY if rng.random() < 0.02 else vs + 1 + rng.randrange(self.span)
            if movable:
                payload, vs, vold = rng.choice(movable)
                removal = rng.random() < 0.3
                ve = vs if removal else max(vs, low) + 1 + rng.randrange(self.span)
                elements.append((1, payload, vs, vold, ve))
                self._count(column, (payload, vs, vold), -1)
            else:
                payload = rng.randrange(4)
                elements.append((0, payload, vs, 0, ve))
            if ve != vs:
                self._count(column, (payload, vs, ve), 1)
        self.digests.add(column, self._batch(elements), BEGINNING, self.closed)

    def _count(self, column: int, event: tuple[int, int, int], n: int) -> None:
        events = self.model[column]
        events[event] = events.get(event, 0) + n
        if not events[event]:
            del events[event]

    def copy_output(self) -> None:
        """A stream comes to say the same as the output of what ends in one stretch."""
        start = max(self.closed, 0) + self.rng.randrange(2 * self.span)
        for slot in (0, 1):
            elements = []
            for event in {**self.model[0], **self.model[slot + 1]}:
                payload, vs, ve = event
                if not start <= ve < start + self.span // 2:
                    continue
                lacking = self.model[0].get(event, 0) - self.model[slot + 1].get(event, 0)
                kind = (0, payload, vs, 0, ve) if lacking > 0 else (1, payload, vs, ve, vs)
                elements += [kind] * abs(lacking)
                if lacking:
                    self._count(slot + 1, event, lacking)
            if elements:
                self.digests.add(slot + 1, self._batch(elements), BEGINNING, self.closed)

    def close(self) -> None:
        """Everybody has passed a later time."""
        self.closed = max(self.closed, 0) + self.rng.randrange(self.span // 4)

    def agree(self) -> None:
        width = self.digests.width
        low = self.digests.align_up(max(self.closed, self.digests.closed, 0))
        high = low + 3 * self.span // width * width
        for slot in (0, 1):
            ours, theirs = self._by_interval(0, width), self._by_interval(slot + 1, width)
            known = {n for n in ours.keys() | theirs.keys() if low <= n * width < high}
            expected = [n for n in sorted(known) if ours.get(n) != theirs.get(n)]
            agreeing, differing = self.digests.compare(slot, low, high)
            assert [start // width for start, _ in differing] == expected
            assert agreeing >= len(known) - len(expected)
            assert all(end - start == width for start, end in differing)

    def _by_interval(self, column: int, width: int) -> dict[int, dict[tuple[int, ...], int]]:
        result: dict[int, dict[tuple[int, ...], int]] = {}
        for event, n in self.model[column].items():
            if self.digests.closed <= event[2] != INFINITY:
                result.setdefault(event[2] // width, {})[event] = n
        return result


@pytest.mark.parametrize("span", [40, 5000, 2**40])
def test_digests_tell_which_intervals_differ_however_wide_they_become(span: int) -> None:
    widths = []
    for seed in range(3):
        pair = DigestsAndModel(Random(f"{seed}/{span}"), span)
        for number in range(60):
            action = pair.rng.choice((pair.add, pair.add, pair.copy_output, pair.close))
            try:
                action()
                pair.agree()
            except AssertionError as error:
                name = action.__name__
                where = f"span {span}, seed {seed}, action {number} ({name})"
                raise AssertionError(f"{where}: {error}") from error
        widths.append(pair.digests.width)
    assert (max(widths) > 1) == (span > MOST_INTERVALS)


def test_a_new_column_of_digests_is_empty_and_leaves_the_others() -> None:
    digests = Digests(streams=1)
    times = np.array([5], dtype=np.int64)
    event = Batch(
        np.zeros(1, np.int8), times - 1, times, times * 0, no_rows(pa.schema([])), times, times
    )
    for column in (0, 1):
        digests.add(column, event, BEGINNING, BEGINNING)
    assert digests.compare(0, 0, 10) == (1, [])
    digests.attach(4)
    assert digests.compare(0, 0, 10) == (1, [])
    assert digests.compare(4, 0, 10) == (0, [(5, 6)])
    digests.attach(0)
    assert digests.compare(0, 0, 10) == (0, [(5, 6)])


# -- in²t and in³t


def _busy(restriction: str) -> Merge:
    run = random_run(4, restriction=restriction, streams=3, size=30, horizon=30)
    merge = new_merge(restriction)
    for arrival in run.arrivals[: len(run.arrivals) // 3]:
        arrive(merge, [arrival])
        merge.check()
    assert merge.statistics().live > 5
    return merge


def _r3(merge: Merge) -> tuple[R3, Any, int, int]:
    """The algorithm, its rows, a half-frozen node, and the decided point."""
    algorithm = merge._algorithm
    assert isinstance(algorithm, R3)
    rows = algorithm.index.table.nodes.rows
    half = [f for f in algorithm.index.table.live_rows() if rows[f, VS] < merge.decided]
    assert half
    return algorithm, rows, int(half[0]), merge.decided


def test_the_check_of_in2t_sees_damage() -> None:
    def unsay(merge: Merge) -> None:
        _, rows, f, _ = _r3(merge)
        rows[f, OUT] = BEGINNING

    def freeze(merge: Merge) -> None:
        _, rows, f, decided = _r3(merge)
        rows[f, OUT] = decided - 1

    def oversleep(merge: Merge) -> None:
        algorithm, rows, f, decided = _r3(merge)
        wake_earlier(algorithm.index.table.nodes, f, decided)
        rows[f, STREAMS] = rows[f, WAKE]
        nodes = algorithm.index.table.nodes
        chain, _ = wake_before(nodes, decided + 1)
        while chain != NOBODY:
            following = int(nodes.after[chain])
            sleep(nodes, chain, INFINITY)
            chain = following

    def lose_a_payload(merge: Merge) -> None:
        _r3(merge)[0].index.payloads._dead += 1

    for damage in (unsay, freeze, oversleep, lose_a_payload):
        merge = _busy("R3")
        damage(merge)
        with pytest.raises(InvariantError):
            merge.check()


def test_the_check_of_in3t_sees_damage() -> None:
    def cells_of(merge: Merge) -> tuple[Any, Any, int]:
        """The cells, the rows, and a cell in use."""
        algorithm = merge._algorithm
        assert isinstance(algorithm, R4)
        rows = algorithm.index.table.nodes.rows
        live = algorithm.index.table.live_rows()
        heads = [int(h) for f in live for h in rows[f, OUT:] if h != -1]
        return algorithm.cells, rows, heads[0]

    def negative_count(merge: Merge) -> None:
        cells, _, cell = cells_of(merge)
        cells.copies[cell] = 0

    def leak(merge: Merge) -> None:
        cells, _, _ = cells_of(merge)
        cells.state[0] += 1

    def disorder(merge: Merge) -> None:
        cells, _, cell = cells_of(merge)
        other = int(cells.state[1]) - 1
        cells.after[cell], cells.ve[other], cells.copies[other] = other, cells.ve[cell] - 1, 1
        cells.after[other] = -1

    def forget(merge: Merge) -> None:
        _, rows, _ = cells_of(merge)
        rows[:, OUT] = -1

    for damage in (negative_count, leak, disorder, forget):
        merge = _busy("R4")
        damage(merge)
        with pytest.raises(InvariantError):
            merge.check()


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_in3t_are_freed_with_their_nodes_and_streams(seed: int) -> None:
    run = random_run(seed, restriction="R4", streams=4, size=12)
    merge = new_merge("R4")
    for arrival in run.arrivals:
        arrive(merge, [arrival])
        merge.check()
    for stream in list(merge.streams()):
        arrive(merge, [("detach", stream)])
        merge.check()
    algorithm = merge._algorithm
    assert isinstance(algorithm, R4)
    outputs = sum(len(algorithm.ends(int(f), OUT)) for f in algorithm.index.table.live_rows())
    assert int(algorithm.cells.state[0]) == outputs, run.seed
