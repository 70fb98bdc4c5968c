"""The output of one merge, kept for whoever reads it: the newest in memory, the rest on disk.

Callers may rely on this: entries have consecutive numbers from 0 on; each can be read until it is
retired; a reader waits for nobody and nobody waits for a reader. Nothing is queued for a reader:
it asks for what comes next when it can take it, so a slow one costs nothing.

Memory: ``memory_bytes`` and what is on its way to the disk. Without a journal (durability
``none``) what leaves memory is retired.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from lmerge.errors import JournalError, JournalRetiredError, RetiredError
from lmerge.server.journal import Journal

_CHUNK: Final = 1 << 20  # worth a write of its own
READ_BYTES: Final = 4 << 20


class OutputLog:
    """The entries of a merge's output."""

    def __init__(self, journal: Journal | None, memory_bytes: int, *, next_entry: int = 0) -> None:
        self._journal = journal
        self._memory_bytes = memory_bytes
        self._tail: deque[bytes] = deque()
        self._tail_first = next_entry
        self._tail_bytes = 0
        # Of whoever wants to know of new entries; in order: a simulated run can be repeated.
        self.watchers: dict[asyncio.Event, None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._retired_before = next_entry if journal is None else journal.first
        self.next = next_entry

    @property
    def first(self) -> int:
        """The oldest entry that is still there."""
        return self._retired_before

    @property
    def nbytes(self) -> int:
        """Bytes kept, on disk and (where there is no disk) in memory."""
        return self._tail_bytes if self._journal is None else self._journal.bytes

    def append(self, entries: list[bytes]) -> None:
        """New entries, which readers may see from now on."""
        for entry in entries:
            self._tail.append(entry)
            self._tail_bytes += len(entry)
            if self._journal is not None:
                self._journal.append(entry)
        self.next += len(entries)
        self._trim()
        if self._journal is not None and self._journal.pending_bytes >= _CHUNK:
            self.write_soon()
        for watcher in self.watchers:
            watcher.set()

    def _trim(self) -> None:
        written = self.next if self._journal is None else self._journal.written
        while self._tail_bytes > self._memory_bytes and self._tail_first < written:
            self._tail_bytes -= len(self._tail.popleft())
            self._tail_first += 1
        if self._journal is None:
            self._retired_before = self._tail_first

    # -- reading ------------------------------------------------------------------------------

    async def read(self, number: int, most_bytes: int = READ_BYTES) -> list[bytes]:
        """The entries from ``number`` on, if there are any; RetiredError when they are gone."""
        self.require(number)
        if number >= self._tail_first:
            return self._from_memory(number, most_bytes)
        assert self._journal is not None  # noqa: S101  what is not in memory is on disk
        try:
            found = await asyncio.to_thread(self._journal.read, number, most_bytes)
        except JournalRetiredError as error:
            raise RetiredError(str(error)) from error
        return [bytes(record) for _, record in found]

    def require(self, number: int) -> None:
        """Raise RetiredError unless entry ``number`` is there, or can still come."""
        if number < self.first:
            raise RetiredError(
                f"entry {number} of the output has been retired: the oldest kept is {self.first};"
                " begin again from now, or keep more (retention)"
            )
        if number > self.next:
            raise RetiredError(
                f"entry {number} of the output does not exist: the next one is {self.next}"
            )

    def _from_memory(self, number: int, most_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        for place in range(number - self._tail_first, len(self._tail)):
            entry = self._tail[place]
            if found and size + len(entry) > most_bytes:
                break
            found.append(entry)
            size += len(entry)
        return found

    # -- the disk -----------------------------------------------------------------------------

    def write_soon(self) -> None:
        """Begins to write what is buffered, unless that is under way."""
        if self._journal is not None and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        journal = self._journal
        assert journal is not None  # noqa: S101  write_soon has looked
        while journal.pending_bytes >= _CHUNK:
            try:
                await asyncio.to_thread(journal.write, journal.take_pending(), sync=False)
            except JournalError:
                # The disk is full, say. What it did not take is in memory still; it is offered
                # again with the next entries: few, since arrivals are refused for the same cause.
                self._offer_again()
                return
            self._trim()

    def _offer_again(self) -> None:
        journal = self._journal
        assert journal is not None  # noqa: S101  there was something to write to
        journal.forget()
        for place in range(journal.next - self._tail_first, len(self._tail)):
            journal.append(self._tail[place])

    async def sync(self) -> None:
        """Returns when everything appended so far is safe on disk."""
        if self._journal is None:
            return
        if self._writing is not None:
            await self._writing
        try:
            await asyncio.to_thread(self._journal.write, self._journal.take_pending(), sync=True)
        except JournalError:
            self._offer_again()
            raise
        self._trim()

    def retire(self, before: int) -> None:
        """Entries below ``before`` need not be kept any more."""
        if self._journal is not None and before > self._retired_before:
            self._retired_before = min(before, self._tail_first)
            self._journal.retire(self._retired_before)

    def abandon(self) -> None:
        """Lets go of the files, when nothing was appended."""
        if self._journal is not None:
            self._journal.close()

    async def close(self) -> None:
        """Writes what is buffered, and lets go of the files."""
        if self._journal is not None:
            try:
                await self.sync()
            finally:
                self._journal.close()
