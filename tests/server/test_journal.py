"""The journal against a plain list, torn and flipped at every byte, on a full disk, and in threads.

Damage is made on the bytes of closed journals, with no help from the module under test.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmerge.errors import (
    ConfigurationError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalRetiredError,
)
from lmerge.server.journal import Journal

SEGMENT_HEADER = 28
RECORD_HEADER = 24
SMALL = 150  # bytes of a segment: a handful of the records below

Opener = Callable[..., Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens the journal of the test, closing the one opened before."""
    journals: list[Journal] = []

    def again(**options: Any) -> Journal:
        for journal in journals:
            journal.close()
        journals.append(Journal.open(tmp_path / "j", **options))
        return journals[-1]

    yield again
    for journal in journals:
        journal.close()


def body(number: int) -> bytes:
    return f"record {number}".encode() * (1 + number % 3)


def fill(journal: Journal, count: int, *, sync: bool = False) -> None:
    for _ in range(count):
        journal.append(body(journal.next))
    journal.write(journal.take_pending(), sync=sync)


def held(journal: Journal, start: int | None = None) -> list[tuple[int, bytes]]:
    start = journal.first if start is None else start
    return [(number, bytes(view)) for number, view in journal.records(start)]


def read(journal: Journal, start: int, most_bytes: int) -> list[tuple[int, bytes]]:
    return [(number, bytes(view)) for number, view in journal.read(start, most_bytes)]


def expected(first: int, end: int) -> list[tuple[int, bytes]]:
    return [(number, body(number)) for number in range(first, end)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def restore(directory: Path, contents: dict[str, bytes]) -> None:
    directory.mkdir(exist_ok=True)
    for path in directory.glob("*.log"):
        path.unlink()
    for name, data in contents.items():
        (directory / name).write_bytes(data)


def reopened(directory: Path) -> list[tuple[int, bytes]]:
    """All that a journal made of these files holds, also after being written to once more."""
    journal = Journal.open(directory, segment_bytes=SMALL)
    try:
        found = held(journal)
        fill(journal, 1)
        assert held(journal) == [*found, (len(found), body(len(found)))]
        return found
    finally:
        journal.close()


# Appending, reading, opening


def test_a_record_can_be_read_once_written_and_not_before(opened: Opener) -> None:
    journal = opened()
    assert [journal.append(b"a"), journal.append(b"bc")] == [0, 1]
    assert (journal.first, journal.next, journal.written) == (0, 2, 0)
    assert journal.read(0, 100) == []
    pending = journal.take_pending()
    assert journal.pending_bytes == 0
    journal.write(pending, sync=True)
    assert journal.written == 2
    assert read(journal, 0, 100) == [(0, b"a"), (1, b"bc")]
    assert journal.read(2, 100) == []


def test_a_record_is_its_parts_one_after_another_whatever_they_are_made_of(opened: Opener) -> None:
    journal = opened()
    numbers = memoryview(bytearray(b"\1\0\2\0")).cast("H")
    journal.append(b"x", numbers, pa.py_buffer(b"arrow"), pa.py_buffer(b""), b"")
    journal.append()
    journal.append(b"", b"")
    journal.write(journal.take_pending(), sync=False)
    assert held(journal) == [(0, b"x\1\0\2\0arrow"), (1, b""), (2, b"")]
    assert held(opened()) == [(0, b"x\1\0\2\0arrow"), (1, b""), (2, b"")]


def test_more_parts_than_one_call_of_the_system_takes_are_all_written(opened: Opener) -> None:
    journal = opened()
    parts = [bytes([at % 256]) * (at % 7) for at in range(5000)]
    journal.append(*parts)
    journal.append(b"after")
    journal.write(journal.take_pending(), sync=False)
    assert held(journal) == [(0, b"".join(parts)), (1, b"after")]


def test_what_was_written_is_there_after_opening_again_and_goes_on(opened: Opener) -> None:
    journal = opened(first=7, segment_bytes=SMALL)
    fill(journal, 10)
    size = journal.bytes
    journal = opened(first=99, segment_bytes=SMALL)
    assert (journal.first, journal.written, journal.next, journal.bytes) == (7, 17, 17, size)
    fill(journal, 3, sync=True)
    assert held(opened(segment_bytes=SMALL)) == expected(7, 20)


def test_an_empty_journal_remembers_where_it_starts(opened: Opener) -> None:
    assert opened(first=5).next == 5
    assert opened(first=0).next == 5


def test_what_was_only_appended_is_gone_after_closing(opened: Opener) -> None:
    journal = opened()
    fill(journal, 2)
    journal.append(b"never written")
    assert held(opened()) == expected(0, 2)


def test_segments_roll_before_they_exceed_their_size_and_never_split_a_record(
    opened: Opener, tmp_path: Path
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 9)
    fill(journal, 9)
    journal.append(b"l" * 3 * SMALL)
    journal.append(b"small")
    journal.write(journal.take_pending(), sync=True)
    contents = files(tmp_path / "j")
    assert len(contents) > 5
    assert sum(len(data) > SMALL for data in contents.values()) == 1
    assert journal.bytes == sum(map(len, contents.values()))
    wanted = [*expected(0, 18), (18, b"l" * 3 * SMALL), (19, b"small")]
    assert held(journal) == wanted
    assert held(opened(segment_bytes=SMALL)) == wanted


def test_any_record_can_be_read_by_its_number_across_the_sparse_index(opened: Opener) -> None:
    journal = opened(segment_bytes=400 << 10)
    bodies = [bytes([n % 251]) * (n * 37 % 5000 if n % 50 else 100_000) for n in range(400)]
    for at, data in enumerate(bodies):
        journal.append(data)
        if at % 17 == 0:
            journal.write(journal.take_pending(), sync=False)
    journal.write(journal.take_pending(), sync=False)
    for same in (journal, opened(segment_bytes=400 << 10)):
        for number in range(400):
            assert read(same, number, 0) == [(number, bodies[number])]


def test_a_read_returns_at_least_one_record_and_about_as_many_bytes_as_asked(
    opened: Opener,
) -> None:
    journal = opened()
    for _ in range(10):
        journal.append(b"z" * 1000)
    journal.write(journal.take_pending(), sync=False)
    assert len(journal.read(2, 1)) == 1
    assert len(journal.read(2, 3 * 1024)) == 3
    assert len(journal.read(2, 3 * 1024 + 500)) == 3
    assert len(journal.read(2, 1 << 20)) == 8


def test_a_record_larger_than_allowed_is_refused_before_it_gets_a_number(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmerge.server.journal.RECORD_BYTES_MAX", 10)
    journal = opened()
    with pytest.raises(ValueError, match="11 bytes"):
        journal.append(b"12345", b"678901")
    assert journal.append(b"1234567890") == 0


def test_a_journal_open_already_is_refused(opened: Opener, tmp_path: Path) -> None:
    opened()
    with pytest.raises(ConfigurationError, match="open already"):
        Journal.open(tmp_path / "j")
    script = f"from lmerge.server.journal import *; Journal.open(Path({str(tmp_path / 'j')!r}))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ConfigurationError" in other.stderr


def test_a_closed_journal_closes_again_and_says_so_when_written_to(opened: Opener) -> None:
    journal = opened()
    journal.close()
    journal.close()
    journal.append(b"a")
    with pytest.raises(JournalError, match="closed"):
        journal.write(journal.take_pending(), sync=False)


def test_a_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Not a directory"):
        Journal.open(tmp_path / "file" / "j")


# Torn and damaged


@pytest.fixture
def written(opened: Opener, tmp_path: Path) -> dict[str, bytes]:
    """The files of a journal of eight records in three segments."""
    fill(opened(segment_bytes=SMALL), 8)
    opened(segment_bytes=SMALL).close()
    contents = files(tmp_path / "j")
    assert len(contents) == 3
    return contents


def last_of(contents: dict[str, bytes]) -> tuple[str, bytes, int]:
    """The last segment: its name, its bytes, and where its last record starts."""
    name, data = list(contents.items())[-1]
    assert int(name[:20]) < 7, "the tests want two records in it"
    return name, data, len(data) - RECORD_HEADER - len(body(7))


def test_a_last_record_torn_at_any_byte_is_cut_and_the_rest_is_intact(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    name, data, start = last_of(written)
    for end in range(start, len(data)):
        restore(tmp_path / "t", written | {name: data[:end]})
        assert reopened(tmp_path / "t") == expected(0, 7), f"torn at {end}"


@pytest.mark.parametrize("rest", [b"\0", b"\xff", b"\xa5"])
def test_a_tail_of_zeros_or_rubbish_is_cut(
    written: dict[str, bytes], tmp_path: Path, rest: bytes
) -> None:
    name, data, start = last_of(written)
    for kept in range(start, len(data), 5):
        for length in (1, len(data) - kept, 10_000):
            restore(tmp_path / "t", written | {name: data[:kept] + rest * length})
            assert reopened(tmp_path / "t") == expected(0, 7)
    restore(tmp_path / "t", written | {name: data + rest * 100})
    assert reopened(tmp_path / "t") == expected(0, 8)


def test_a_flipped_bit_is_refused_with_its_place_or_is_in_the_last_record_which_is_cut(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    last, _, start = last_of(written)
    for name, data in written.items():
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            restore(tmp_path / "t", written | {name: bytes(flipped)})
            if name == last and at >= start:
                assert reopened(tmp_path / "t") == expected(0, 7)
                continue
            with pytest.raises(JournalDamagedError) as refused:
                Journal.open(tmp_path / "t", segment_bytes=SMALL)
            assert refused.value.file == str(tmp_path / "t" / name)
            assert refused.value.offset <= at < refused.value.offset + 100
            assert f"{name}: damaged at byte {refused.value.offset}" in str(refused.value)
            assert files(tmp_path / "t") == written | {name: bytes(flipped)}, "refused, untouched"


def test_a_segment_cut_short_is_refused_when_another_follows(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    name, data = list(written.items())[1]
    for end in range(len(data)):
        restore(tmp_path / "t", written | {name: data[:end]})
        with pytest.raises(JournalDamagedError):
            Journal.open(tmp_path / "t", segment_bytes=SMALL)


def test_a_missing_or_misnamed_segment_is_refused(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    first, middle, last = written
    restore(tmp_path / "t", {first: written[first], last: written[last]})
    with pytest.raises(JournalDamagedError, match="missing"):
        Journal.open(tmp_path / "t")
    restore(tmp_path / "t", {middle: written[first]})
    with pytest.raises(JournalDamagedError, match="starts with record 0"):
        Journal.open(tmp_path / "t")


def test_a_record_out_of_place_is_refused_even_at_the_end(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    name, data, start = last_of(written)
    restore(tmp_path / "t", written | {name: data + data[start:]})
    with pytest.raises(JournalDamagedError, match="record 7 is where record 8 should be"):
        Journal.open(tmp_path / "t")


def test_a_segment_that_died_before_its_header_was_written_is_removed(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    name = f"{8:020}.log"
    header = next(iter(written.values()))[:SEGMENT_HEADER]
    for torn in [*(header[:end] for end in range(SEGMENT_HEADER)), bytes(SEGMENT_HEADER)]:
        restore(tmp_path / "t", written | {name: torn})
        assert reopened(tmp_path / "t") == expected(0, 8)


def test_a_segment_followed_by_one_that_died_at_birth_was_complete_so_damage_in_it_is_refused(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    last, data, start = last_of(written)
    newborn = {f"{8:020}.log": b""}
    for broken in (data[:start], data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        restore(tmp_path / "t", written | {last: broken} | newborn)
        with pytest.raises(JournalDamagedError):
            Journal.open(tmp_path / "t")


def test_a_body_that_looks_like_records_does_not_turn_a_torn_tail_into_damage(
    opened: Opener, tmp_path: Path
) -> None:
    fill(opened(), 3)
    opened().close()
    (segment,) = files(tmp_path / "j").values()
    journal = opened()
    journal.append(segment)  # its salt would be guessed right, were it not for the body's length
    journal.write(journal.take_pending(), sync=False)
    journal.close()
    (path,) = (tmp_path / "j").glob("*.log")
    path.write_bytes(path.read_bytes()[:-1])
    assert held(opened()) == expected(0, 3)


def test_damage_after_opening_is_found_by_the_read(opened: Opener, tmp_path: Path) -> None:
    journal = opened()
    fill(journal, 3)
    (path,) = (tmp_path / "j").glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert read(journal, 0, 10) == [(0, body(0))]
    with pytest.raises(JournalDamagedError, match="record 2 "):
        journal.read(0, 1 << 20)


# Failing writes


def failing_after(room: int, code: int) -> Callable[[int, Sequence[memoryview]], int]:
    """An os.writev for a disk with room for so many bytes."""

    def writev(descriptor: int, buffers: Sequence[memoryview]) -> int:
        nonlocal room
        data = b"".join(buffers)[:room]
        if not data:
            raise OSError(code, os.strerror(code))
        room -= len(data)
        return os.write(descriptor, data)

    return writev


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, JournalFullError),
        (errno.EDQUOT, JournalFullError),
        (errno.EFBIG, JournalFullError),
        (errno.EIO, JournalError),
    ],
)
def test_a_write_that_fails_at_any_byte_leaves_nothing_and_the_journal_usable(
    opened: Opener, tmp_path: Path, code: int, kind: type[JournalError]
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 2)
    before = files(tmp_path / "j")
    total = 8 * RECORD_HEADER + sum(len(body(n)) for n in range(2, 10)) + 2 * SEGMENT_HEADER
    for room in range(total):
        for _ in range(8):
            journal.append(body(journal.next))
        pending = journal.take_pending()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "writev", failing_after(room, code))
            with pytest.raises(JournalError) as failed:
                journal.write(pending, sync=True)
        assert type(failed.value) is kind
        assert files(tmp_path / "j") == before
        assert (journal.next, journal.written, journal.pending_bytes) == (2, 2, 0)
        assert held(journal) == expected(0, 2)
    fill(journal, 8)
    assert held(journal) == expected(0, 10)
    assert held(opened(segment_bytes=SMALL)) == expected(0, 10)


def test_a_failed_write_drops_what_was_appended_or_taken_meanwhile(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    fill(journal, 1)
    journal.append(b"one")
    pending = journal.take_pending()
    journal.append(b"two")
    taken_after = journal.take_pending()
    journal.append(b"three")
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", failing_after(3, errno.ENOSPC))
        with pytest.raises(JournalFullError, match="No space left"):
            journal.write(pending, sync=False)
    assert (journal.next, journal.pending_bytes) == (1, 0)
    with pytest.raises(JournalError, match="dropped"):
        journal.write(taken_after, sync=False)
    fill(journal, 1)
    with pytest.raises(JournalError, match="dropped"):  # its number would fit now; it must not
        journal.write(taken_after, sync=False)
    assert held(journal) == expected(0, 2)


def test_a_failed_fsync_is_a_failed_write(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    fill(journal, 1)
    before = files(tmp_path / "j")
    fsync, failures = os.fsync, iter([True])

    def failing_once(descriptor: int) -> None:
        if next(failures, False):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_once)
    with pytest.raises(JournalError, match="nothing was written"):
        fill(journal, 2, sync=True)
    assert files(tmp_path / "j") == before
    fill(journal, 2, sync=True)
    assert held(opened()) == expected(0, 3)


def test_a_segment_is_synced_before_the_next_is_made_and_the_next_before_it_is_written_to(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(segment_bytes=SMALL)
    fsync, writev, calls = os.fsync, os.writev, []

    def name(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def noted_fsync(descriptor: int) -> None:
        calls.append(f"sync {name(descriptor)}")
        fsync(descriptor)

    def noted_writev(descriptor: int, buffers: Sequence[memoryview]) -> int:
        calls.append(f"write {name(descriptor)}")
        return writev(descriptor, buffers)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "writev", noted_writev)
    fill(journal, 5, sync=False)
    old, new = files(tmp_path / "j")
    wanted = ["write OLD", "sync OLD", "write NEW", "sync NEW", "sync j", "write NEW"]
    assert calls == [call.replace("OLD", old).replace("NEW", new) for call in wanted]
    calls.clear()
    fill(journal, 1, sync=True)
    assert calls == [f"write {new}", f"sync {new}"]


def test_a_write_that_cannot_be_undone_ends_writing_but_not_reading(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    fill(journal, 2)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", failing_after(RECORD_HEADER + 1, errno.ENOSPC))
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(JournalFullError):
            fill(journal, 1)
    with pytest.raises(JournalError, match="could not be undone"):
        fill(journal, 1)
    assert held(journal) == expected(0, 2)
    journal = opened()
    fill(journal, 1)
    assert held(journal) == expected(0, 3)


def test_a_new_segment_that_cannot_be_removed_again_ends_writing_and_leaves_no_gap(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 2)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        to_the_new_header = RECORD_HEADER + len(body(2)) + SEGMENT_HEADER - 1
        patch.setattr(os, "writev", failing_after(to_the_new_header, errno.ENOSPC))
        patch.setattr(Path, "unlink", broken)
        with pytest.raises(JournalFullError):
            fill(journal, 4)
    with pytest.raises(JournalError, match="could not be removed"):
        fill(journal, 1)
    assert held(journal) == expected(0, 2)
    assert held(opened(segment_bytes=SMALL)) == expected(0, 3)  # as after a crash: some may be kept


LIMITED = """
import resource, signal, sys
from pathlib import Path
from lmerge.errors import JournalFullError
from lmerge.server.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal.open(Path(sys.argv[1]))
journal.append(b"kept")
journal.write(journal.take_pending(), sync=True)
size = journal.bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
journal.append(b"x" * (800 << 10))
journal.append(b"y" * (800 << 10))
try:
    journal.write(journal.take_pending(), sync=True)
except JournalFullError as full:
    print(full, journal.next, (Path(sys.argv[1]) / f"{0:020}.log").stat().st_size == size)
journal.append(b"also kept")
journal.write(journal.take_pending(), sync=True)
journal.close()
"""


def test_a_real_limit_on_the_size_of_files_leaves_nothing_of_the_write_it_stops(
    opened: Opener, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "j")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("File too large 1 True\n"), done.stdout
    assert held(opened()) == [(0, b"kept"), (1, b"also kept")]


def test_forgetting_drops_what_is_not_written(opened: Opener) -> None:
    journal = opened()
    fill(journal, 2)
    journal.append(b"a")
    taken = journal.take_pending()
    journal.append(b"b")
    journal.forget()
    assert (journal.next, journal.pending_bytes) == (2, 0)
    with pytest.raises(JournalError, match="dropped"):
        journal.write(taken, sync=False)
    fill(journal, 1)
    assert held(journal) == expected(0, 3)


def test_pending_is_written_only_in_the_order_it_was_taken(opened: Opener) -> None:
    journal = opened()
    journal.append(body(0))
    one = journal.take_pending()
    journal.append(body(1))
    two = journal.take_pending()
    with pytest.raises(JournalError, match="record 0 is to be written next, not 1"):
        journal.write(two, sync=False)
    journal.write(one, sync=False)
    journal.write(two, sync=False)
    with pytest.raises(JournalError, match="not 1"):
        journal.write(two, sync=False)
    assert held(journal) == expected(0, 2)


# Retiring and cutting


def test_retiring_deletes_only_whole_segments_below_and_never_the_last(
    opened: Opener, tmp_path: Path
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 20)
    starts = [int(name[:20]) for name in files(tmp_path / "j")]
    journal.retire(starts[2] - 1)
    assert journal.first == starts[1]
    journal.retire(starts[2])
    assert journal.first == starts[2]
    with pytest.raises(JournalRetiredError, match=f"record {starts[2] - 1} was given up"):
        journal.read(starts[2] - 1, 10)
    with pytest.raises(LookupError):
        next(journal.records(0))
    assert held(journal) == expected(starts[2], 20)
    journal.retire(1000)
    assert held(journal) == expected(starts[-1], 20)
    journal = opened(segment_bytes=SMALL)
    assert held(journal) == expected(starts[-1], 20)


def test_a_segment_retired_between_finding_and_opening_it_is_retired(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 20)
    real = os.open

    def late(path: Path, flags: int, mode: int = 0o777) -> int:
        monkeypatch.setattr(os, "open", real)
        journal.retire(20)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(JournalRetiredError):
        journal.read(0, 10)


def test_a_segment_gone_without_being_retired_is_not_called_retired(
    opened: Opener, tmp_path: Path
) -> None:
    journal = opened(segment_bytes=SMALL)
    fill(journal, 20)
    next((tmp_path / "j").glob("*0.log")).unlink()
    with pytest.raises(JournalError, match="No such file") as missing:
        journal.read(0, 10)
    assert not isinstance(missing.value, JournalRetiredError)


def test_cutting_at_any_number_forgets_the_records_from_there_on(tmp_path: Path) -> None:
    for end in range(3, 25):
        directory = tmp_path / str(end)
        journal = Journal.open(directory, first=5, segment_bytes=SMALL)
        fill(journal, 15)
        journal.append(b"not written")
        journal.cut(end)
        kept = min(end, 20)
        assert held(journal) == expected(5, kept)
        if end <= 20:  # beyond what was appended, there is nothing to cut
            assert journal.next == journal.written == end
            fill(journal, 4)
            assert held(journal) == expected(min(5, end), end + 4)
        wanted = held(journal)
        journal.close()
        journal = Journal.open(directory, segment_bytes=SMALL)
        assert held(journal) == wanted
        assert journal.bytes == sum(map(len, files(directory).values()))
        journal.close()


def test_after_a_cut_within_a_large_segment_any_record_can_be_read_by_its_number(
    opened: Opener,
) -> None:
    journal = opened()
    for _ in range(100):
        journal.append(b"o" * 3000)
    journal.write(journal.take_pending(), sync=False)
    journal.cut(10)
    for number in range(10, 200):
        journal.append(bytes([number]) * (number * 31 % 2000))
    journal.write(journal.take_pending(), sync=False)
    for number in range(10, 200):
        assert read(journal, number, 0) == [(number, bytes([number]) * (number * 31 % 2000))]


# Threads


def test_records_can_be_read_while_others_are_written_and_retired(opened: Opener) -> None:
    journal = opened(segment_bytes=4000)
    total, failures, seen = 2000, [], []
    done = threading.Event()

    def follow() -> None:
        at = 0
        try:
            while not (done.is_set() and at >= journal.written):
                try:
                    found = journal.read(at, 1000)
                except JournalRetiredError:
                    at = max(at + 1, journal.first)
                    continue
                for number, view in found:
                    assert (number, bytes(view)) == (at, body(at))
                    seen.append(at)
                    at += 1
        except BaseException as failure:
            failures.append(failure)

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    while journal.next < total:
        fill(journal, 20)
        journal.retire(journal.next - 300)
    done.set()
    for reader in readers:
        reader.join(60)
    assert not failures
    assert seen.count(total - 1) == 3
    assert journal.first > 1500


def test_one_thread_appends_while_another_writes_and_no_number_is_lost(opened: Opener) -> None:
    journal = opened(segment_bytes=4000)
    total, failures = 20_000, []

    def write() -> None:
        try:
            while journal.written < total:
                journal.write(journal.take_pending(), sync=False)
        except BaseException as failure:
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    numbers = [journal.append(body(number)) for number in range(total)]
    writer.join(60)
    assert not failures
    assert numbers == list(range(total))
    assert held(journal) == expected(0, total)


def test_a_second_write_at_the_same_time_is_refused(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    real, refused = os.writev, []

    def meanwhile(descriptor: int, buffers: Sequence[memoryview]) -> int:
        for change in (journal.sync, journal.forget, lambda: journal.cut(0)):
            with pytest.raises(JournalError, match="under way"):
                change()
            refused.append(change)
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", meanwhile)
    fill(journal, 1)
    assert len(refused) == 3
    assert held(journal) == expected(0, 1)


# Against a plain list


class Model(RuleBasedStateMachine):
    """A dict of what is written, and a list of what is appended, beside the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name) / "j"
        self.journal = Journal.open(self.directory, first=3, segment_bytes=SMALL)
        self.written: dict[int, bytes] = {}
        self.end = 3
        self.waiting: list[bytes] = []

    def teardown(self) -> None:
        self.journal.close()
        self.scratch.cleanup()

    @rule(parts=st.lists(st.binary(max_size=60), max_size=3))
    def append(self, parts: list[bytes]) -> None:
        assert self.journal.append(*parts) == self.end + len(self.waiting)
        self.waiting.append(b"".join(parts))

    @rule(sync=st.booleans())
    def write(self, sync: bool) -> None:
        self.journal.write(self.journal.take_pending(), sync=sync)
        self.written |= dict(enumerate(self.waiting, self.end))
        self.end += len(self.waiting)
        self.waiting = []

    @precondition(lambda self: self.waiting)
    @rule(room=st.integers(0, 100))
    def write_to_a_full_disk(self, room: int) -> None:
        needed = sum(RECORD_HEADER + len(data) for data in self.waiting)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "writev", failing_after(min(room, needed - 1), errno.ENOSPC))
            with pytest.raises(JournalFullError):
                self.journal.write(self.journal.take_pending(), sync=True)
        self.waiting = []

    @rule(torn=st.binary(max_size=40))
    def crash(self, torn: bytes) -> None:
        self.journal.close()
        with max(self.directory.glob("*.log")).open("ab") as last:
            last.write(torn)
        self.journal = Journal.open(self.directory, segment_bytes=SMALL)
        self.waiting = []

    @rule(back=st.integers(0, 8))
    def cut(self, back: int) -> None:
        end = max(0, self.end - back)
        if end < self.end + len(self.waiting):
            self.waiting = []
        self.journal.cut(end)
        self.written = {number: data for number, data in self.written.items() if number < end}
        self.end = end

    @rule(back=st.integers(-2, 8))
    def retire(self, back: int) -> None:
        before = self.end - back
        self.journal.retire(before)
        first = self.journal.first
        gone = [number for number in self.written if number < first]
        assert all(number < before for number in gone)
        for number in gone:
            del self.written[number]

    @invariant()
    def both_hold_the_same(self) -> None:
        journal = self.journal
        assert (journal.written, journal.next) == (self.end, self.end + len(self.waiting))
        assert journal.first == min(self.written, default=self.end)
        assert dict(held(journal)) == self.written
        assert journal.bytes == sum(map(len, files(self.directory).values()))


TestAgainstAPlainList = Model.TestCase


def test_what_lies_before_the_place_to_check_from_is_checked_when_it_is_read(
    tmp_path: Path,
) -> None:
    journal = Journal.open(tmp_path / "j", segment_bytes=200)
    for number in range(20):
        journal.append(b"%03d" % number * 20)
        journal.write(journal.take_pending(), sync=False)
    journal.close()
    first, second = sorted((tmp_path / "j").glob("*.log"))[:2]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    with pytest.raises(JournalDamagedError, match=first.name):
        Journal.open(tmp_path / "j", segment_bytes=200)
    journal = Journal.open(tmp_path / "j", segment_bytes=200, check_from=19)
    try:
        assert journal.written == 20
        with pytest.raises(JournalDamagedError, match=first.name):
            journal.read(0, 1)
        sound = int(second.stem)
        assert [bytes(body) for _, body in journal.records(sound)] == [
            b"%03d" % number * 20 for number in range(sound, 20)
        ]
    finally:
        journal.close()
