"""A snapshot at any instant gives a merge that goes on as if nothing had happened."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lmerge.core.merge import Merge
from lmerge.core.output import Output
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import StreamProperties
from lmerge.errors import SnapshotError
from tests.drive import SCHEMA, from_output, new_merge, to_batch, to_int
from tests.oracle.runs import random_run

RESTRICTIONS = ["R0", "R1", "R2", "R3", "R4"]
POLICIES: dict[str, Policy] = {
    "first": Policy(),
    "leader": Policy(InsertPolicy.leader()),
    "eager_quorum": Policy(InsertPolicy.quorum(0.5), AdjustPolicy.EAGER),
    "final": Policy(InsertPolicy.final(), stable_lag=1),
    "half_frozen": Policy(InsertPolicy.half_frozen(), divergence=DivergencePolicy.OFF),
    "majority": Policy(divergence=DivergencePolicy.MAJORITY),
}
FEATURES: list[dict[str, bool]] = [
    {},
    {"joins": True},
    {"missing": True},
    {"joins": True, "missing": True, "late_begin": True},
]


def _arrive(merge: Merge, arrival: tuple[Any, ...]) -> tuple[Any, ...]:
    """One arrival; all that it causes, in order."""
    kind, stream, *rest = arrival
    if kind == "attach":
        out = merge.attach(stream, None if rest[0] is None else to_int(rest[0]))
    elif kind == "detach":
        out = merge.detach(stream)
    else:
        out = merge.apply(stream, to_batch([rest[0]]))
    return _everything(out)


def _everything(out: Output) -> tuple[Any, ...]:
    return from_output(out), out.feedback, out.notices


def _statistics(merge: Merge) -> dict[str, Any]:
    """Without the sizes of buffers, which have spare room in a merge that has run for long."""
    statistics = asdict(merge.statistics())
    del statistics["index_bytes"], statistics["payload_bytes"]
    return statistics


def _goes_on_identically(restriction: str, policy: Policy, seed: int, chains: int) -> None:
    """Of `chains` restored merges each goes on until its turn to be restored comes again.

    With 1 the merge is restored at every arrival; with n each lives through n arrivals between.
    """
    run = random_run(seed, restriction=restriction, **FEATURES[seed % len(FEATURES)])
    merge = new_merge(restriction, policy, feedback=True)
    restored = [Merge.restore(merge.snapshot()) for _ in range(chains)]
    for number, arrival in enumerate(run.arrivals):
        where = f"{run.seed}: arrival {number}, {arrival}"
        expected = _arrive(merge, arrival)
        statistics = _statistics(merge)
        for each in restored:
            assert _arrive(each, arrival) == expected, where
            assert _statistics(each) == statistics, where
        turn = number % chains
        restored[turn] = Merge.restore(restored[turn].snapshot())
        restored[turn].check()
    assert all(each.streams() == merge.streams() for each in restored), run.seed


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_a_merge_restored_at_any_instant_goes_on_identically(restriction: str) -> None:
    for seed in range(4):
        _goes_on_identically(restriction, POLICIES["first"], seed, chains=5)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("restriction", ["R3", "R4"])
def test_every_policy_survives_a_restore_at_every_arrival(restriction: str, policy: str) -> None:
    for seed in range(4):
        _goes_on_identically(restriction, POLICIES[policy], seed, chains=1)


@pytest.mark.parametrize("restriction", ["R0", "R1", "R2"])
def test_ordered_streams_survive_a_restore_at_every_arrival(restriction: str) -> None:
    for seed in range(8):
        policy = POLICIES["majority" if seed % 2 else "first"]
        _goes_on_identically(restriction, policy, seed, chains=1)


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_equal_states_give_equal_bytes_whatever_their_history(restriction: str) -> None:
    for seed in (5, 9):
        run = random_run(seed, restriction=restriction, joins=True)
        merge, restored = new_merge(restriction), new_merge(restriction)
        for number, arrival in enumerate(run.arrivals):
            _arrive(merge, arrival)
            _arrive(restored, arrival)
            snapshot = merge.snapshot()
            assert restored.snapshot() == snapshot, f"{run.seed}: arrival {number}, {arrival}"
            restored = Merge.restore(snapshot)


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_large_state_survives_a_restore(restriction: str) -> None:
    rng = Random(7)
    size = 1500
    merge = new_merge(restriction)
    rows = [("insert", f"p{i}", i, i + rng.randint(1, 5000)) for i in range(size)]
    more = [("insert", f"p{i}", i, i + rng.randint(1, 5000)) for i in range(size, size + 50)]
    merge.attach("a")
    merge.attach("b", size + 10)
    merge.apply("a", to_batch(rows))
    merge.apply("b", to_batch([*rows[-20:], *more]))
    merge.stable("a", size // 2)
    restored = Merge.restore(merge.snapshot())
    restored.check()
    assert restored.snapshot() == merge.snapshot()
    for each in (more, [("stable", size + 20)]):
        batch = to_batch(each)
        assert _everything(restored.apply("a", batch)) == _everything(merge.apply("a", batch))
    assert _everything(restored.stable("b", 10**6)) == _everything(merge.stable("b", 10**6))
    assert _statistics(restored) == _statistics(merge)


def test_settings_properties_and_quarantines_are_restored() -> None:
    policy = Policy(InsertPolicy.quorum(0.25), AdjustPolicy.EAGER, 5, DivergencePolicy.QUARANTINE)
    merge = new_merge("R4", policy, feedback=True)
    merge.attach("a", -5, StreamProperties(insert_only=True))
    merge.attach("b", 17)
    merge.quarantine("b", "because")
    restored = Merge.restore(merge.snapshot())
    assert restored.policy == policy
    assert restored.feedback
    assert restored.schema == merge.schema
    assert restored.restriction is merge.restriction
    assert restored.statistics().streams[1].reason == "because"
    restored.apply("a", to_batch([("insert", "x", 1, 5), ("adjust", "x", 1, 5, 6)]))
    assert "insert-only" in restored.statistics().streams[0].reason


def test_the_same_calls_give_the_same_bytes() -> None:
    for restriction in RESTRICTIONS:
        run = random_run(3, restriction=restriction, joins=True)
        first, second = new_merge(restriction), new_merge(restriction)
        for arrival in run.arrivals:
            _arrive(first, arrival)
            _arrive(second, arrival)
            assert first.snapshot() == second.snapshot(), run.seed


def test_payloads_of_every_kind_survive() -> None:
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("d", pa.dictionary(pa.int32(), pa.string())),
            ("l", pa.list_(pa.struct([("x", pa.float64())]))),
            ("t", pa.timestamp("us", "Europe/Zurich")),
        ]
    )
    merge = Merge(schema, key=bytes(32))
    merge.attach("a")
    rows = [
        {"op": 0, "vs": i, "ve": i + 10, "vold": 0, "n": None if i % 3 else i,
         "d": "xyz"[i % 3], "l": [{"x": i / 2}] * (i % 4), "t": i}
        for i in range(40)
    ]  # fmt: skip
    times = [("op", pa.int8()), *((name, pa.int64()) for name in ("vs", "ve", "vold"))]
    elements = pa.schema([*(pa.field(*each) for each in times), *schema])
    merge.apply("a", pa.RecordBatch.from_pylist(rows, schema=elements))
    restored = Merge.restore(merge.snapshot())
    changed = [{**row, "op": 1, "vold": row["ve"], "ve": 60} for row in rows]
    batch = pa.RecordBatch.from_pylist(changed, schema=elements)
    for each in (merge, restored):
        assert not each.apply("a", batch).notices
    ours, theirs = merge.stable("a", 55), restored.stable("a", 55)
    assert [b.to_pylist() for b in ours.batches()] == [b.to_pylist() for b in theirs.batches()]
    assert ours.rows == len(rows)


# -- what is no snapshot


def _some_snapshot(restriction: str = "R4") -> bytes:
    run = random_run(5, restriction=restriction, streams=4, size=10, joins=True)
    merge = new_merge(restriction)
    for arrival in run.arrivals[: len(run.arrivals) * 2 // 3]:
        _arrive(merge, arrival)
    return merge.snapshot()


def _refused(data: bytes, what: str) -> bool:
    """Whether it is refused; anything but SnapshotError is a failure."""
    try:
        Merge.restore(data)
    except SnapshotError:
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return False


def test_a_truncated_snapshot_is_refused_wherever_it_is_cut() -> None:
    snapshot = _some_snapshot()
    for length in [*range(0, len(snapshot), 37), len(snapshot) - 1]:
        assert _refused(snapshot[:length], f"the first {length} bytes")


@pytest.mark.parametrize("restriction", ["R2", "R4"])
def test_a_flipped_bit_is_refused_or_harmless(restriction: str) -> None:
    snapshot = _some_snapshot(restriction)
    rng = Random(11)
    original = Merge.restore(snapshot).snapshot()
    directory = snapshot.index(b"PK\x01\x02")
    flips = [(place, rng.randrange(8)) for place in rng.sample(range(directory), 150)]
    flips += [(place, rng.randrange(8)) for place in range(directory, len(snapshot))]
    flips += [(directory + 8, 0), (directory + 10, 3)]  # now it is encrypted, or compressed
    for place, bit in flips:
        damaged = bytearray(snapshot)
        damaged[place] ^= 1 << bit
        what = f"byte {place} is {damaged[place]} instead of {snapshot[place]}"
        if not _refused(bytes(damaged), what):  # dates and the like are not protected
            assert Merge.restore(bytes(damaged)).snapshot() == original, what


def test_random_bytes_are_refused() -> None:
    rng = Random(13)
    snapshot = _some_snapshot()
    for size in (0, 1, 22, 100, 4096):
        assert _refused(rng.randbytes(size), f"{size} random bytes")
    for number in range(50):
        damaged = bytearray(snapshot)
        start = rng.randrange(len(damaged))
        damaged[start : start + rng.randint(1, 200)] = rng.randbytes(rng.randint(0, 200))
        _refused(bytes(damaged), f"damage number {number} at {start}")


def _rewritten(change: Callable[[dict[str, bytes]], None]) -> bytes:
    """A snapshot whose checksums are right, and whose contents are not."""
    with zipfile.ZipFile(io.BytesIO(_some_snapshot())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _with_json(change: Callable[[dict[str, Any]], None]) -> bytes:
    def rewrite(members: dict[str, bytes]) -> None:
        head = json.loads(members["merge.json"])
        change(head)
        members["merge.json"] = json.dumps(head).encode()

    return _rewritten(rewrite)


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(SnapshotError, match="format 1; this version reads 3"):
        Merge.restore(_with_json(lambda head: head.update(format=1)))


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "no format": lambda head: head.pop("format"),
    "no values": lambda head: head.pop("values"),
    "no parts": lambda head: head.pop("parts"),
    "an unknown restriction": lambda head: head["values"].update(restriction="R9"),
    "an unknown policy": lambda head: head["values"]["policy"].update(insert="sometimes"),
    "a policy that the restriction excludes": lambda head: (
        head["values"].update(restriction="R0"),
        head["values"]["policy"].update(insert="final"),
    )[0],
    "a negative lag": lambda head: head["values"]["policy"].update(stable_lag=-1),
    "a short key": lambda head: head["values"].update(key="00"),
    "a key that is none": lambda head: head["values"].update(key="zz"),
    "a stream without a name": lambda head: head["values"]["streams"][0].pop("name"),
    "streams that are a number": lambda head: head["values"].update(streams=3),
    "an unknown property": lambda head: head["values"]["streams"][0].update(properties={"x": 1}),
    "no decided point": lambda head: head["values"].pop("decided"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_foreign_description_is_refused(change: str) -> None:
    assert _refused(_with_json(CHANGES[change]), change)


@pytest.mark.parametrize(
    "json_text", [b"", b"[]", b"3", b"null", b'"x"', b"{", b"\xff\xfe", b"[" * 100_000]
)
def test_a_description_that_is_no_object_is_refused(json_text: bytes) -> None:
    def rewrite(members: dict[str, bytes]) -> None:
        members["merge.json"] = json_text

    assert _refused(_rewritten(rewrite), repr(json_text[:10]))


def test_a_snapshot_without_one_of_its_members_is_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(_some_snapshot())) as archive:
        names = archive.namelist()
    for name in names:

        def without(members: dict[str, bytes], name: str = name) -> None:
            del members[name]

        assert _refused(_rewritten(without), f"without {name}")


def test_members_with_foreign_contents_are_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(_some_snapshot())) as archive:
        names = [name for name in archive.namelist() if name != "merge.json"]
    for name in names:
        for contents in (b"", b"hello", b"\x93NUMPY\x01\x00\xff\xff", bytes(300)):

            def replaced(
                members: dict[str, bytes], name: str = name, contents: bytes = contents
            ) -> None:
                members[name] = contents

            assert _refused(_rewritten(replaced), f"{name} is {contents[:10]!r}")


def test_an_archive_of_something_else_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("hello.txt", "world")
    assert _refused(buffer.getvalue(), "an archive of a greeting")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA):
        pass
    assert _refused(sink.getvalue().to_pybytes(), "an Arrow stream")
