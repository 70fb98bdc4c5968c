"""A journal: records (opaque bytes) with consecutive numbers, in checksummed segment files.

What callers may rely on:

- After ``write(sync=True)`` returns, its records survive the loss of power; after
  ``write(sync=False)``, the death of the process.
- A write that fails leaves nothing behind, and the journal usable (see :meth:`Journal.write`).
- ``open`` reads every byte from ``check_from`` on, and ``read`` what comes before that. It cuts
  the torn tail of an unfinished write, and refuses any other damage by file and byte: what it
  accepts is never silently shorter.
- ``append``, one ``write``, ``retire`` and any number of ``read`` may run in different threads.
  ``cut``, ``sync`` and ``forget`` may not run during a ``write``, and say so; ``close`` waits.

What they may not infer: a journal that lost whole files at either end, or was cut between two
records of its last file, looks like one that was retired, or never written, so far.

**What is torn.** A segment is complete and fsync'ed before the next is created, so only the last
can be. Where its records stop being valid, it is torn if no valid record header follows: the
process died within a write, or the power failed and the tail is missing, zeros or rubbish. If one
follows, it is damaged. So when power fails within a group of records and the disk kept a later
one but not an earlier, ``open`` refuses too, although nobody was promised either: from the bytes
alone this cannot be told from a promised record gone bad. The error says how to decide for the cut.

On disk, little-endian. Segment ``<first number, 20 digits>.log``: magic, format, salt, first
number, crc of these. Record: salt, length, number, crc of the body, crc of these, body. The salt
is random for each segment, so no body can pass for a record when headers are searched for.

Invariants: 1. segments follow each other without a gap; there is always one, and the last is the
one written. 2. first ≤ written ≤ next. 3. what lies beyond a segment's ``size`` belongs to the
write under way. Memory: what is buffered, and 16 bytes of index for each 16 KiB on disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from lmerge.errors import (
    ConfigurationError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalRetiredError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT: Final = 1
RECORD_BYTES_MAX: Final = 1 << 30  # one pread must be able to return it
_MAGIC: Final = b"LMJOURNL"
_SEGMENT: Final = struct.Struct("<8sI4sQI")
_RECORD: Final = struct.Struct("<4sIQII")
_CRC_BYTES: Final = 4
_WRITING: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_NAME: Final = re.compile(r"\d{20}\.log")
_STRIDE: Final = 16 << 10  # an index entry at least this often: it bounds the search of a read
_IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)
_REPLAY_BYTES: Final = 1 << 20
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Pending(NamedTuple):
    """Records taken from the buffer, to be written by :meth:`Journal.write`, in order."""

    first: int
    era: int
    records: list[list[memoryview]]

    @property
    def end(self) -> int:
        """The number after the last of them."""
        return self.first + len(self.records)


class _Head(NamedTuple):
    length: int
    number: int
    crc: int


@dataclass(slots=True)
class _Segment:
    path: Path
    first: int
    salt: bytes
    size: int = _SEGMENT.size
    end: int = field(init=False)
    # The sparse index: each of these numbers starts at the offset in the same place.
    numbers: array[int] = field(init=False)
    offsets: array[int] = field(init=False)
    indexed: bool = True  # whether its records have been looked at

    def __post_init__(self) -> None:
        self.end = self.first
        self.numbers, self.offsets = array("Q", [self.first]), array("Q", [_SEGMENT.size])

    def grow(self, length: int) -> None:
        """One record more, with a body of this length."""
        if self.size - self.offsets[-1] >= _STRIDE:
            self.numbers.append(self.end)
            self.offsets.append(self.size)
        self.size += _RECORD.size + length
        self.end += 1

    def before(self, number: int) -> tuple[int, int]:
        """The index entry to search from: its number and offset."""
        at = bisect_right(self.numbers, number) - 1
        return self.numbers[at], self.offsets[at]

    def shrink(self, end: int, size: int) -> None:
        """Records from ``end`` on, which starts at ``size``, are gone."""
        keep = max(1, bisect_left(self.numbers, end))
        del self.numbers[keep:], self.offsets[keep:]
        self.end, self.size = end, size

    def header(self) -> bytes:
        head = _SEGMENT.pack(_MAGIC, FORMAT, self.salt, self.first, 0)[:-_CRC_BYTES]
        return head + crc32(head).to_bytes(_CRC_BYTES, "little")


@dataclass(slots=True)
class _Extent:
    """What one write adds to one segment: apart from it until the write has succeeded."""

    segment: _Segment
    size: int
    lengths: list[int] = field(default_factory=list)
    buffers: list[memoryview] = field(default_factory=list)
    descriptor: int = -1


class Journal:
    """See the module. ``first``: the oldest record kept; ``next``: the number of the next one
    appended; ``written``: those below it can be read."""

    def __init__(self, directory: Path, segment_bytes: int, lock: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._lock_descriptor = lock
        self._state = threading.Lock()  # held for moments, never during I/O
        self._writer = threading.Lock()  # held by whoever changes the last segment
        self._segments: list[_Segment] = []
        self._tail = -1
        self._buffer: list[list[memoryview]] = []
        self._era = 0  # so that what was taken before a failure is not written after it
        self._unusable: str | None = None
        self.next = 0
        self.written = 0
        self.pending_bytes = 0

    @staticmethod
    def open(
        directory: Path, *, first: int = 0, segment_bytes: int = 64 << 20, check_from: int = 0
    ) -> Journal:
        """Check and open what the directory holds; if nothing, start at number ``first``.

        Reads all of it, as long as the disk takes, in the memory of one segment; but segments
        wholly before ``check_from`` are checked only when they are read.
        """
        with _explained(directory):
            _make(directory)
            journal = Journal(directory, segment_bytes, locked(directory))
            try:
                journal._load(first, check_from)
            except BaseException:
                journal.close()
                raise
        return journal

    @property
    def first(self) -> int:
        """The number of the oldest record kept; ``next`` if there is none."""
        return self._segments[0].first

    @property
    def bytes(self) -> int:
        """Bytes on disk, those of a write under way not counted."""
        with self._state:
            return sum(segment.size for segment in self._segments)

    def append(self, *parts: Buffer) -> int:
        """Buffer one record, the parts one after another, and return its number.

        Nothing is copied: the parts must not change until they are written.
        """
        views = [memoryview(part).cast("B") for part in parts]
        length = sum(map(len, views))
        if length > RECORD_BYTES_MAX:
            raise ValueError(f"a record of {length} bytes is over the {RECORD_BYTES_MAX} allowed")
        with self._state:
            number = self.next
            self._buffer.append(views)
            self.pending_bytes += _RECORD.size + length
            self.next += 1
        return number

    def take_pending(self) -> Pending:
        """Take what is buffered, in order to write it. Pending is written in the order taken."""
        with self._state:
            taken = Pending(self.next - len(self._buffer), self._era, self._buffer)
            self._buffer, self.pending_bytes = [], 0
            return taken

    def forget(self) -> None:
        """Drop every record that is not written: ``next`` returns to ``written``."""
        with self._changing(), self._state:
            self._forget()

    def write(self, pending: Pending, *, sync: bool) -> None:
        """Write to the last segment, rolling to new ones; with ``sync``, fsync.

        If it fails, nothing of ``pending`` remains on disk, and *every* record not yet written is
        dropped: this pending, one taken after it (its write will be refused), and what is
        buffered. ``next`` is back at ``written``: those numbers will be given again. The caller
        fails all who wait for such records. A thread that appends while another writes calls
        ``forget`` first, on hearing of the failure: it drops what it appended since.

        JournalFullError when there is no room, JournalError for other failures. Only if the
        file cannot even be cut back are later writes refused, until the journal is opened anew.
        """
        with self._changing():
            if pending.era != self._era:
                raise JournalError(
                    f"{self._directory}: records from {pending.first} on were dropped when a "
                    "write before them failed"
                )
            if pending.first != self.written:
                raise JournalError(
                    f"{self._directory}: record {self.written} is to be written next, "
                    f"not {pending.first}"
                )
            extents: list[_Extent] = []
            try:
                extents += self._laid_out(pending)
                self._transfer(extents, sync)
            except BaseException as error:
                self._undo(extents)
                if isinstance(error, OSError):
                    raise self._failure(error) from error
                raise
            self._publish(extents, pending.end)

    def read(self, start: int, most_bytes: int) -> list[tuple[int, memoryview]]:
        """Records from ``start``, at least one, up to about ``most_bytes``, of one segment.

        Nothing if ``start`` is not written yet; JournalRetiredError if it was retired. Costs a
        search of at most 16 KiB beside what is returned.
        """
        with self._state:
            if start >= self.written:
                return []
            if start < self.first:
                raise self._retired(start)
            segment = self._segments[self._holding(start)]
        try:
            self._index(segment)
            with self._state:
                entry, size = segment.before(start), segment.size
            # By path, each time: whoever retires or writes meanwhile shares no descriptor with us.
            with _explained(segment.path), _reading(segment.path) as descriptor:
                offset = _find(descriptor, segment, *entry, start)
                return _collect(descriptor, segment, start, offset, size, most_bytes)
        except JournalError:
            if start < self.first:
                raise self._retired(start) from None
            raise

    def records(self, start: int) -> Iterator[tuple[int, memoryview]]:
        """All records written, from ``start`` on, in the memory of one record or 1 MiB."""
        while found := self.read(start, _REPLAY_BYTES):
            yield from found
            start = found[-1][0] + 1

    def cut(self, end: int) -> None:
        """Forget the records from ``end`` on, and every record not yet written.

        Before the oldest, it empties the journal, which goes on at ``end``. Not during a read.
        """
        if end >= self.next:
            return
        with self._changing(), _explained(self._directory):
            with self._state:
                self._forget()
            if end < self.written:
                self._cut(end)

    def retire(self, before: int) -> None:
        """Delete the segments all of whose records are below ``before``, but not the last."""
        with _explained(self._directory):
            while True:
                with self._state:
                    if len(self._segments) < 2 or self._segments[1].first > before:
                        return
                    oldest = self._segments.pop(0)
                self._remove(oldest.path)

    def sync(self) -> None:
        """Wait until all that is written survives the loss of power."""
        with self._changing(), _explained(self._directory):
            os.fsync(self._tail)  # the segments before it were synced when they were left

    def close(self) -> None:
        """Close the files and release the lock. What is not written is lost. Idempotent."""
        with self._writer:
            for descriptor in (self._tail, self._lock_descriptor):
                if descriptor >= 0:
                    os.close(descriptor)
            self._tail = self._lock_descriptor = -1
            self._unusable = "the journal is closed"

    # Opening

    def _load(self, first: int, check_from: int) -> None:
        paths = sorted(p for p in self._directory.iterdir() if _NAME.fullmatch(p.name))
        for place, path in enumerate(paths):
            last = path is paths[-1]
            follower = check_from + 1 if last else int(paths[place + 1].stem)
            if self._segments and path != self._path(self._segments[-1].end):
                reason = (
                    f"it should start with record {self._segments[-1].end}, which follows the "
                    "segment before it: records or a file are missing"
                )
                raise JournalDamagedError(str(path), 0, reason)
            if last and _unborn(path):
                self._remove(path)
            elif follower <= check_from and not (place == len(paths) - 2 and _unborn(paths[-1])):
                self._segments.append(_glanced(path, follower))
            else:
                self._segments.append(_scanned(path, last=last))
        if self._segments:
            self._tail = self._adopted()
        else:
            self._segments.append(self._new_segment(first))
            self._tail = self._create(self._segments[0])
        self.written = self.next = self._segments[-1].end

    def _adopted(self) -> int:
        """The last segment's file, rid of whatever lies beyond its valid records."""
        segment = self._segments[-1]
        descriptor = os.open(segment.path, _WRITING)
        try:
            if os.fstat(descriptor).st_size != segment.size:
                os.ftruncate(descriptor, segment.size)
                os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # Writing

    @contextmanager
    def _changing(self) -> Iterator[None]:
        if not self._writer.acquire(blocking=False):
            raise JournalError(f"{self._directory}: another write is under way")
        try:
            if self._unusable is not None:
                raise JournalError(f"{self._directory}: {self._unusable}")
            yield
        finally:
            self._writer.release()

    def _laid_out(self, pending: Pending) -> list[_Extent]:
        """Each record with its header, in the segment it goes to; the first is the last one now.

        The checksums are taken here and not in ``append``, which has a thread that must not wait.
        """
        tail = self._segments[-1]
        extents = [_Extent(tail, tail.size)]
        for number, parts in enumerate(pending.records, pending.first):
            length = sum(map(len, parts))
            extent = extents[-1]
            used = extent.size > _SEGMENT.size
            if used and extent.size + _RECORD.size + length > self._segment_bytes:
                extent = _Extent(self._new_segment(number), _SEGMENT.size)
                extents.append(extent)
            crc = 0
            for part in parts:
                crc = crc32(part, crc)
            head = _RECORD.pack(extent.segment.salt, length, number, crc, 0)[:-_CRC_BYTES]
            head += crc32(head).to_bytes(_CRC_BYTES, "little")
            extent.buffers += (memoryview(head), *parts)
            extent.lengths.append(length)
            extent.size += _RECORD.size + length
        return extents

    def _transfer(self, extents: list[_Extent], sync: bool) -> None:
        extents[0].descriptor = self._tail
        for before, extent in zip([None, *extents], extents, strict=False):
            if before is not None:
                os.fsync(before.descriptor)  # or a torn segment could have another after it
                extent.descriptor = self._create(extent.segment)
            _write_all(extent.descriptor, extent.buffers)
        if sync:
            os.fsync(extents[-1].descriptor)

    def _publish(self, extents: list[_Extent], end: int) -> None:
        for extent in extents[:-1]:
            os.close(extent.descriptor)
        self._tail = extents[-1].descriptor
        with self._state:
            for extent in extents:
                for length in extent.lengths:
                    extent.segment.grow(length)
            self._segments += [extent.segment for extent in extents[1:]]
            self.written = end

    def _undo(self, extents: list[_Extent]) -> None:
        """Back to where the write began, on disk (durably, or the dropped could return) and here.

        A failed fsync is treated so as well: the kernel may have dropped the pages and will not
        report it twice, so trying the same fsync again would prove nothing.
        """
        with self._state:
            self._forget()
        created = [extent for extent in reversed(extents[1:]) if extent.descriptor >= 0]
        for extent in created:
            os.close(extent.descriptor)
        if self._unusable is not None:
            return  # a segment is left: cutting what is before it would make a gap
        try:
            for extent in created:
                self._remove(extent.segment.path)
            os.ftruncate(self._tail, self._segments[-1].size)
            os.fsync(self._tail)
        except OSError as error:
            self._unusable = f"a failed write could not be undone: {error}"

    def _failure(self, error: OSError) -> JournalError:
        kind = JournalFullError if error.errno in _NO_ROOM else JournalError
        return kind(f"{self._directory}: nothing was written: {error.strerror or error}")

    def _forget(self) -> None:
        self._buffer, self.pending_bytes = [], 0
        self.next = self.written
        self._era += 1

    def _cut(self, end: int) -> None:
        keep = self._holding(end) + 1
        offset = self._offset(end) if keep else _SEGMENT.size
        with self._state:
            dropped = self._segments[keep:]
            self._segments[keep:] = [] if keep else [self._new_segment(end)]
            self._segments[-1].shrink(end, offset)
            self.written = self.next = end
        try:
            # From the newest back: a crash leaves a longer journal, not one with a gap.
            for segment in reversed(dropped):
                self._remove(segment.path)
            os.close(self._tail)
            self._tail = -1
            self._tail = self._adopted() if keep else self._create(self._segments[0])
        except OSError as error:
            self._unusable = f"records from {end} on could not be cut: {error}"
            raise

    # Files

    def _new_segment(self, first: int) -> _Segment:
        return _Segment(self._path(first), first, _salt())

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:020}.log"

    def _create(self, segment: _Segment) -> int:
        """A segment's file, its header on disk for good: records may rely on it being there."""
        descriptor = os.open(segment.path, _WRITING | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(descriptor, [memoryview(segment.header())])
            os.fsync(descriptor)
            _sync_directory(self._directory)
        except BaseException:
            os.close(descriptor)
            try:
                self._remove(segment.path)
            except OSError as error:
                self._unusable = f"a segment that failed could not be removed: {error}"
            raise
        return descriptor

    def _remove(self, path: Path) -> None:
        path.unlink()
        _sync_directory(self._directory)  # each by itself, or a loss of power could leave a gap

    def _holding(self, number: int) -> int:
        """Where the segment is that a number falls in; -1 if before all."""
        return bisect_right(self._segments, number, key=lambda segment: segment.first) - 1

    def _index(self, segment: _Segment) -> None:
        """Look at the records of a segment that was not looked at when it was opened."""
        if segment.indexed:
            return
        with _explained(segment.path):
            found = _scanned(segment.path, last=False)
        if found.end != segment.end:
            reason = f"its records end before {found.end}, not {segment.end}: some are missing"
            raise JournalDamagedError(str(segment.path), found.size, reason)
        with self._state:
            segment.numbers, segment.offsets = found.numbers, found.offsets
            segment.size, segment.indexed = found.size, True

    def _offset(self, number: int) -> int:
        segment = self._segments[self._holding(number)]
        self._index(segment)
        with _reading(segment.path) as descriptor:
            return _find(descriptor, segment, *segment.before(number), number)

    def _retired(self, number: int) -> JournalRetiredError:
        return JournalRetiredError(
            f"{self._directory}: record {number} was given up; the oldest kept is {self.first}"
        )


def _scanned(path: Path, *, last: bool) -> _Segment:
    """A segment's valid records: all of them, or, in the last, all but a torn tail."""
    data = memoryview(path.read_bytes())
    segment = _segment_of(path, data)
    while segment.size < len(data):
        head = _head(data, segment.size, segment.salt)
        if head is not None and head.number != segment.end:
            reason = f"record {head.number} is where record {segment.end} should be"
            raise JournalDamagedError(str(path), segment.size, reason)
        if head is not None and _body(data, segment.size, head) is not None:
            segment.grow(head.length)
            continue
        beyond = segment.size + (1 if head is None else _RECORD.size + head.length)
        if last and not _any_header(data, beyond, segment.salt):
            break
        raise _damaged(segment, segment.size, segment.end, last)
    return segment


def _glanced(path: Path, end: int) -> _Segment:
    """A segment that ends before record ``end``, of which only the header is read now."""
    with path.open("rb") as file:
        segment = _segment_of(path, memoryview(file.read(_SEGMENT.size)))
        segment.size = os.fstat(file.fileno()).st_size
    segment.end, segment.indexed = end, False
    return segment


def _segment_of(path: Path, data: memoryview) -> _Segment:
    if len(data) < _SEGMENT.size:
        raise JournalDamagedError(str(path), len(data), "the file ends within its header")
    magic, version, salt, first, crc = _SEGMENT.unpack_from(data)
    if magic != _MAGIC or crc != crc32(data[: _SEGMENT.size - _CRC_BYTES]):
        raise JournalDamagedError(str(path), 0, "the header is not that of a journal's segment")
    if version != FORMAT:
        raise JournalDamagedError(
            str(path), len(_MAGIC), f"it has format {version}; this version reads {FORMAT}"
        )
    if path.name != f"{first:020}.log":
        raise JournalDamagedError(str(path), 0, f"its header says it starts with record {first}")
    return _Segment(path, first, salt)


def _unborn(path: Path) -> bool:
    """Whether a crash came before the header was on disk, so that no record was ever in it."""
    with path.open("rb") as file:
        data = file.read(_SEGMENT.size + 1)
    return len(data) < _SEGMENT.size or data == bytes(_SEGMENT.size)


def _damaged(
    segment: _Segment, offset: int, number: int, last: bool = False
) -> JournalDamagedError:
    reason = f"record {number} is not as it was written"
    if last:
        reason += (
            ", and valid records follow. If the machine lost power while it was being written, "
            f"and only then, cut it and what follows with: truncate -s {offset} {segment.path}"
        )
    return JournalDamagedError(str(segment.path), offset, reason)


def _head(data: memoryview, offset: int, salt: bytes) -> _Head | None:
    """The record header at an offset, if there is a valid one."""
    if len(data) - offset < _RECORD.size:
        return None
    found, length, number, crc, check = _RECORD.unpack_from(data, offset)
    if found != salt or check != crc32(data[offset : offset + _RECORD.size - _CRC_BYTES]):
        return None
    return _Head(length, number, crc)


def _body(data: memoryview, offset: int, head: _Head) -> memoryview | None:
    """The body of the record at an offset, if it is all there and as it was written."""
    start = offset + _RECORD.size
    body = data[start : start + head.length]
    return body if len(body) == head.length and crc32(body) == head.crc else None


def _any_header(data: memoryview, start: int, salt: bytes) -> bool:
    whole = data.obj
    assert isinstance(whole, bytes)  # noqa: S101 (as read: only bytes can be searched in place)
    at = whole.find(salt, start)
    while at >= 0:
        if _head(data, at, salt) is not None:
            return True
        at = whole.find(salt, at + 1)
    return False


def _find(descriptor: int, segment: _Segment, number: int, offset: int, wanted: int) -> int:
    """Where a record starts, walking from an index entry not after it."""
    # A header further than this from an index entry would have an entry itself.
    window = memoryview(os.pread(descriptor, _STRIDE + _RECORD.size, offset))
    at = 0
    while number < wanted:
        head = _head(window, at, segment.salt)
        if head is None or head.number != number:
            raise _damaged(segment, offset + at, number)
        at += _RECORD.size + head.length
        number += 1
    return offset + at


def _collect(
    descriptor: int, segment: _Segment, number: int, offset: int, size: int, most_bytes: int
) -> list[tuple[int, memoryview]]:
    """The records from an offset on that fit, the first even if it does not."""
    least = memoryview(os.pread(descriptor, _RECORD.size, offset))
    first = _head(least, 0, segment.salt)
    if first is None:
        raise _damaged(segment, offset, number)
    most = max(_RECORD.size + first.length, min(most_bytes, RECORD_BYTES_MAX))
    data = memoryview(os.pread(descriptor, min(most, size - offset), offset))
    found: list[tuple[int, memoryview]] = []
    at = 0
    while at < len(data):
        head = _head(data, at, segment.salt)
        fits = head is None or len(data) - at - _RECORD.size >= head.length
        if found and (not fits or len(data) - at < _RECORD.size):
            break
        body = None if head is None else _body(data, at, head)
        if head is None or body is None or head.number != number:
            raise _damaged(segment, offset + at, number)
        found.append((number, body))
        at += _RECORD.size + head.length
        number += 1
    return found


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    for start in range(0, len(buffers), _IOV_MAX):
        left = [buffer for buffer in buffers[start : start + _IOV_MAX] if len(buffer)]
        while left:
            done = os.writev(descriptor, left)
            if done == 0:
                raise OSError(errno.EIO, "the disk takes no bytes, and does not say why")
            left = _after(left, done)


def _after(buffers: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the buffers once so many bytes are written."""
    for at, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[at + 1 :]]
        done -= len(buffer)
    return []


def _salt() -> bytes:
    return b"\xa5" + os.urandom(3)  # never zeros, which a lost page is made of


def locked(directory: Path) -> int:
    """A descriptor that keeps other processes from locking the directory, until it is closed."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(
            f"{directory}: the journal is open already, here or in another process"
        ) from None
    return descriptor


def _make(directory: Path) -> None:
    """A directory that is there after a loss of power too: so is what is synced in it."""
    if not directory.exists():
        _make(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    with _reading(directory) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What the operating system refuses becomes an error of ours."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror or error}") from error
