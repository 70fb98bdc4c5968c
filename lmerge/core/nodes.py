"""The top tier of in²t and in³t: nodes by ``(vs, payload)``, and the time each must be looked at.

A node is a row of one int64 matrix: its ``vs``, the payload's fingerprint, a reference to the
payload, its wake time, and a column for the output and for each stream that the second tier
defines. Nodes are found through an open-addressing table, and woken through a *wheel*.

The wheel makes a stable's cost follow what changes, not what lives. A node's wake time is the
next time at which a stable could change anything about it: its ``vs`` until a stable passes that,
then the smallest end that the output or any stream gives it. The wheel keeps nodes in lists by
the highest byte in which their wake time differs from the last stable, and by that byte's value;
a stable at t takes whole lists below t and deals out again only the one list that t falls into,
so a node moves at most eight times in its life, however far ahead its end is.

Invariants, as :meth:`NodeTable.check` asserts them:
1. every live node is found through the table under its own key, and no other is;
2. every live node is in exactly the wheel list that its wake time belongs to;
3. no wake time is before the wheel's last stable;
4. live + free nodes make up the matrix.

Cost: find, add and remove O(1); a stable O(nodes woken) + O(256) for each byte that it changes.
With many live nodes the cost is in cache misses, so the table holds a part of each key's hash
(only the node that is wanted is touched), and whoever goes through many nodes asks the memory for
a stretch of them before it looks at the first.
Memory: 8 · (6 + streams) + 8 + 12 to 24 bytes a node, growing by a quarter.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from lmerge.core.compiled import Int, Int32s, Int64s, compiled, leading_zeros, prefetch
from lmerge.errors import InvariantError
from lmerge.times import BEGINNING

# The matrix's columns.
VS: Final = 0
H1: Final = 1
H2: Final = 2
REF: Final = 3  # global row number of the payload; FREE_REF in a free slot
WAKE: Final = 4
OUT: Final = 5
STREAMS: Final = 6  # the first stream's column

FREE_REF: Final = -1
NOBODY: Final = -1  # no node, no list

# The places of ``Nodes.state``.
LIVE: Final = 0
HIGH: Final = 1  # rows of the matrix ever used
FREE: Final = 2  # head of the list of free rows below HIGH
LAST: Final = 3  # the wheel's last stable
STATE_SIZE: Final = 4

SLOTS: Final = 256
LEVELS: Final = 8
_SIGN: Final = np.uint64(1 << 63)
_FAR: Final = 16  # elements ahead at which a place of the table is fetched
_NEAR: Final = 8  # ... and the node that is there
STRETCH: Final = 32  # nodes of a list that are fetched together
_LINE: Final = 64  # bytes that the memory gives at once; a row is mostly longer
_TAG_BITS: Final = 32
_NODE: Final = (1 << _TAG_BITS) - 1


class Nodes(NamedTuple):
    """The arrays, as compiled code takes them."""

    rows: Int64s  # [capacity, STREAMS + streams]
    after: Int32s  # next in the wheel's list, or in the free list
    before: Int32s  # previous in the wheel's list; -2 - list number for a head
    table: Int64s  # open addressing, a power of two: tag and node; NOBODY where empty
    heads: Int32s  # [LEVELS * SLOTS] the wheel's lists
    state: Int64s
    stretch: Int32s  # [STRETCH] scratch of a loop through a list


@compiled
def _tag(vs: Int, h1: Int) -> Int:
    """The part of a key's hash that the table holds. ``h1`` is keyed: nobody can aim at one."""
    word = np.uint64(h1) ^ (np.uint64(vs) * np.uint64(0x9E3779B97F4A7C15))
    word = (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(word >> np.uint64(_TAG_BITS))


@compiled
def _entry(tag: Int, f: Int) -> Int:
    return (np.int64(tag) << np.int64(_TAG_BITS)) | np.int64(f)


@compiled
def _tag_at(table: Int64s, place: Int) -> Int:
    return np.int64(np.uint64(table[place]) >> np.uint64(_TAG_BITS))


@compiled
def find(nodes: Nodes, vs: Int, h1: Int, h2: Int) -> Int:
    """The node with this key, or NOBODY."""
    table = nodes.table
    mask = np.int64(table.size - 1)
    tag = _tag(vs, h1)
    place = tag & mask
    while True:
        if table[place] == NOBODY:
            return np.int64(NOBODY)
        if _tag_at(table, place) == tag:
            f = table[place] & _NODE
            if nodes.rows[f, VS] == vs and nodes.rows[f, H1] == h1 and nodes.rows[f, H2] == h2:
                return f
        place = (place + 1) & mask


@compiled
def fetch(nodes: Nodes, f: Int) -> None:
    """Asks for a node's row."""
    prefetch(nodes.rows, f, 0)
    prefetch(nodes.rows, f, _LINE)


@compiled
def approach(nodes: Nodes, vs: Int64s, h1: Int64s, i: Int) -> None:
    """Fetches what finding the keys some places after ``i`` will touch.

    With many live nodes nearly every look-up misses the caches; this lets the misses of
    neighbours overlap instead of following each other.
    """
    table = nodes.table
    mask = np.int64(table.size - 1)
    if i + _FAR < vs.size:
        prefetch(table, _tag(vs[i + _FAR], h1[i + _FAR]) & mask, 0)
    if i + _NEAR < vs.size:
        tag = _tag(vs[i + _NEAR], h1[i + _NEAR])
        place = tag & mask
        while table[place] != NOBODY:
            if _tag_at(table, place) == tag:
                fetch(nodes, table[place] & _NODE)
                break
            place = (place + 1) & mask


@compiled
def fetch_stretch(nodes: Nodes, f: Int) -> Any:
    """Asks for the next nodes of a list through ``after``, and writes which they are.

    Returns how many, and the one behind them.
    """
    count = 0
    while f != NOBODY and count < STRETCH:
        nodes.stretch[count] = f
        count += 1
        fetch(nodes, f)
        f = np.int64(nodes.after[f])
    return count, f


@compiled
def fetch_places(nodes: Nodes, count: Int) -> None:
    """Asks for the table's places of a stretch of nodes, for :func:`remove`."""
    mask = np.int64(nodes.table.size - 1)
    for i in range(count):
        f = np.int64(nodes.stretch[i])
        prefetch(nodes.table, _tag(nodes.rows[f, VS], nodes.rows[f, H1]) & mask, 0)


@compiled
def add(nodes: Nodes, vs: Int, h1: Int, h2: Int, ref: Int, empty: Int) -> Int:
    """A new node that wakes at its ``vs``; the caller has made room and knows that it is new."""
    state = nodes.state
    f = state[FREE]
    if f != NOBODY:
        state[FREE] = nodes.after[f]
    else:
        f = state[HIGH]
        state[HIGH] += 1
    state[LIVE] += 1
    row = nodes.rows[f]
    row[VS] = vs
    row[H1] = h1
    row[H2] = h2
    row[REF] = ref
    for column in range(OUT, row.size):
        row[column] = empty
    _enter(nodes.table, _tag(vs, h1), f)
    sleep(nodes, f, vs)
    return f


@compiled
def _enter(table: Int64s, tag: Int, f: Int) -> None:
    mask = np.int64(table.size - 1)
    place = tag & mask
    while table[place] != NOBODY:
        place = (place + 1) & mask
    table[place] = _entry(tag, f)


@compiled
def remove(nodes: Nodes, f: Int) -> None:
    """Frees a node that is in no list of the wheel."""
    rows, table = nodes.rows, nodes.table
    mask = np.int64(table.size - 1)
    tag = _tag(rows[f, VS], rows[f, H1])
    own = _entry(tag, f)
    hole = tag & mask
    while table[hole] != own:
        hole = (hole + 1) & mask
    # Close the gap: whatever would not be found across it moves back into it.
    place = hole
    while True:
        place = (place + 1) & mask
        if table[place] == NOBODY:
            break
        wanted = _tag_at(table, place) & mask
        if ((place - wanted) & mask) >= ((place - hole) & mask):
            table[hole] = table[place]
            hole = place
    table[hole] = NOBODY
    rows[f, REF] = FREE_REF
    nodes.after[f] = nodes.state[FREE]
    nodes.state[FREE] = f
    nodes.state[LIVE] -= 1


@compiled
def _list_of(wake: Int, last: Int) -> Int:
    """The wheel's list for ``wake`` as seen from ``last``."""
    a = np.uint64(wake) ^ _SIGN
    differing = a ^ (np.uint64(last) ^ _SIGN)
    level = np.int64(0)
    if differing != np.uint64(0):
        level = (np.int64(63) - leading_zeros(differing)) >> np.int64(3)
    digit = (a >> np.uint64(8 * level)) & np.uint64(SLOTS - 1)
    return level * SLOTS + np.int64(digit)


@compiled
def sleep(nodes: Nodes, f: Int, wake: Int) -> None:
    """Puts a node that is in no list into the one for ``wake`` (not before the last stable)."""
    nodes.rows[f, WAKE] = wake
    place = _list_of(wake, nodes.state[LAST])
    head = nodes.heads[place]
    nodes.after[f] = head
    nodes.before[f] = -2 - place
    if head != NOBODY:
        nodes.before[head] = f
    nodes.heads[place] = f


@compiled
def _unlink(nodes: Nodes, f: Int) -> None:
    after, before = nodes.after[f], nodes.before[f]
    if before >= 0:
        nodes.after[before] = after
    else:
        nodes.heads[-2 - before] = after
    if after != NOBODY:
        nodes.before[after] = before


@compiled
def wake_earlier(nodes: Nodes, f: Int, wake: Int) -> None:
    """Lowers a node's wake time if ``wake`` is before it and not before the last stable."""
    if wake < nodes.rows[f, WAKE] and wake >= nodes.state[LAST]:
        _unlink(nodes, f)
        sleep(nodes, f, wake)


@compiled
def wake_all(nodes: Nodes, t: Int) -> None:
    """Lets the next stable look at every node with a start before ``t``."""
    for f in range(nodes.state[HIGH]):
        if nodes.rows[f, REF] != FREE_REF and nodes.rows[f, VS] < t:
            wake_earlier(nodes, np.int64(f), nodes.state[LAST])


@compiled
def _take(nodes: Nodes, place: Int, chain: Int, count: Int) -> Any:
    """Moves a whole list to the front of ``chain``."""
    f = np.int64(nodes.heads[place])
    while f != NOBODY:
        following = np.int64(nodes.after[f])
        nodes.after[f] = chain
        chain = f
        count += 1
        f = following
    nodes.heads[place] = NOBODY
    return chain, count


@compiled
def wake_before(nodes: Nodes, t: Int) -> Any:
    """Takes every node with a wake time before ``t`` out of the wheel.

    Returns the first of a chain through ``after`` and how many there are. The caller puts each
    back with :func:`sleep`, or removes it, before anything else touches the wheel.
    """
    last = nodes.state[LAST]
    chain = np.int64(NOBODY)
    count = np.int64(0)
    if t <= last:
        return chain, count
    bits = (np.uint64(t) ^ _SIGN) ^ (np.uint64(last) ^ _SIGN)
    level = (np.int64(63) - leading_zeros(bits)) >> np.int64(3)
    # Below the highest byte that t changes, everything is before t.
    for place in range(level * SLOTS):
        if nodes.heads[place] != NOBODY:
            chain, count = _take(nodes, np.int64(place), chain, count)
    # In that byte everything with a smaller value is; the list of t's own value is dealt anew.
    digit = np.int64(((np.uint64(t) ^ _SIGN) >> np.uint64(8 * level)) & np.uint64(SLOTS - 1))
    for place in range(level * SLOTS, level * SLOTS + digit):
        if nodes.heads[place] != NOBODY:
            chain, count = _take(nodes, np.int64(place), chain, count)
    nodes.state[LAST] = t
    own = level * SLOTS + digit
    f = np.int64(nodes.heads[own])
    nodes.heads[own] = NOBODY
    while f != NOBODY:
        fetched, f = fetch_stretch(nodes, f)
        for i in range(fetched):
            g = np.int64(nodes.stretch[i])
            if nodes.rows[g, WAKE] < t:
                nodes.after[g] = chain
                chain = g
                count += 1
            else:
                sleep(nodes, g, nodes.rows[g, WAKE])
    return chain, count


@compiled
def _fill(nodes: Nodes) -> None:
    """Enters all live nodes into an empty table."""
    for f in range(nodes.state[HIGH]):
        if nodes.rows[f, REF] != FREE_REF:
            _enter(nodes.table, _tag(nodes.rows[f, VS], nodes.rows[f, H1]), f)


@compiled
def _settle(nodes: Nodes) -> None:
    """Enters all live nodes into an empty wheel."""
    for f in range(nodes.state[HIGH]):
        if nodes.rows[f, REF] != FREE_REF:
            sleep(nodes, np.int64(f), nodes.rows[f, WAKE])


class NodeTable:
    """Owns the arrays of :class:`Nodes`, and grows them between batches."""

    def __init__(self, streams: int = 2, capacity: int = 64) -> None:
        self.nodes = Nodes(
            rows=np.empty((capacity, STREAMS + streams), dtype=np.int64),
            after=np.empty(capacity, dtype=np.int32),
            before=np.empty(capacity, dtype=np.int32),
            table=_empty_table(capacity),
            heads=np.full(LEVELS * SLOTS, NOBODY, dtype=np.int32),
            state=np.array([0, 0, NOBODY, BEGINNING], dtype=np.int64),
            stretch=np.empty(STRETCH, dtype=np.int32),
        )

    @property
    def live(self) -> int:
        """How many nodes there are."""
        return int(self.nodes.state[LIVE])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, used or spare."""
        return sum(int(array.nbytes) for array in self.nodes)

    @property
    def streams(self) -> int:
        """How many streams have a column."""
        return int(self.nodes.rows.shape[1]) - STREAMS

    def live_rows(self) -> Int64s:
        """The live nodes' numbers. O(capacity)."""
        used = self.nodes.rows[: self.nodes.state[HIGH], REF]
        return np.flatnonzero(used != FREE_REF)

    def make_room(self, more: int) -> None:
        """Guarantees that ``more`` nodes can be added. Amortised O(1) a node."""
        needed = self.live + more
        nodes = self.nodes
        capacity = nodes.rows.shape[0]
        if needed > capacity:
            capacity = max(needed, capacity + capacity // 4)
            nodes = nodes._replace(
                rows=_grown(nodes.rows, (capacity, nodes.rows.shape[1])),
                after=_grown(nodes.after, (capacity,)),
                before=_grown(nodes.before, (capacity,)),
            )
        if 3 * needed > 2 * nodes.table.size:
            nodes = nodes._replace(table=_empty_table(needed))
            _fill(nodes)
        self.nodes = nodes

    def make_column(self, stream: int, empty: int) -> None:
        """Guarantees that ``stream`` has a column, and that it is empty. O(capacity)."""
        rows = self.nodes.rows
        if stream >= self.streams:
            wider = np.empty((rows.shape[0], STREAMS + stream + 1), dtype=np.int64)
            wider[:, : rows.shape[1]] = rows
            wider[:, rows.shape[1] :] = empty
            self.nodes = self.nodes._replace(rows=wider)
        self.nodes.rows[:, STREAMS + stream] = empty

    @classmethod
    def of(cls, rows: Int64s, last: int) -> NodeTable:
        """A table of exactly the nodes ``rows`` (complete, with their wake times)."""
        count, width = rows.shape
        table = cls(width - STREAMS, max(64, count))
        table.nodes.rows[:count] = rows
        table.nodes.state[:] = (count, count, NOBODY, last)
        table.nodes = table.nodes._replace(table=_empty_table(max(64, count)))
        _fill(table.nodes)
        _settle(table.nodes)
        return table

    def check(self) -> None:
        """Raises InvariantError unless the invariants above hold. O(capacity)."""
        nodes = self.nodes
        high, last = int(nodes.state[HIGH]), int(nodes.state[LAST])
        live = [int(f) for f in self.live_rows()]
        _demand(len(live) == self.live, "4: live nodes are counted right")
        for f in live:
            vs, h1, h2 = (int(x) for x in nodes.rows[f, :REF])
            _demand(int(find(nodes, vs, h1, h2)) == f, f"1: node {f} is found by its key")
        _demand(int((nodes.table != NOBODY).sum()) == len(live), "1: nothing else is in the table")
        seen: set[int] = set()
        for place in np.flatnonzero(nodes.heads != NOBODY).tolist():
            f, before = int(nodes.heads[place]), -2 - place
            while f != NOBODY:
                wake = int(nodes.rows[f, WAKE])
                _demand(f not in seen, f"2: node {f} is in one list")
                _demand(int(nodes.before[f]) == before, f"2: node {f} is linked both ways")
                _demand(wake >= last, f"3: node {f} wakes at {wake}, not before {last}")
                _demand(int(_list_of(wake, last)) == place, f"2: node {f} is in its list")
                seen.add(f)
                f, before = int(nodes.after[f]), f
        _demand(seen == set(live), "2: the wheel holds the live nodes")
        free, f = 0, int(nodes.state[FREE])
        while f != NOBODY and free <= high:
            free, f = free + 1, int(nodes.after[f])
        _demand(free + len(live) == high, "4: live and free nodes make up the matrix")


def _empty_table(nodes: int) -> Int64s:
    """At most two thirds full with so many nodes."""
    size = 128
    while 3 * nodes > 2 * size:
        size *= 2
    return np.full(size, NOBODY, dtype=np.int64)


def _grown(array: Any, shape: tuple[int, ...]) -> Any:
    bigger = np.empty(shape, dtype=array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


def _demand(holds: bool, invariant: str) -> None:
    if not holds:
        raise InvariantError(f"nodes: {invariant}")
