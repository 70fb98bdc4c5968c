"""The clients without asyncio: the same ones, on an event loop in a thread of their own.

Callers may rely on this: closing ends the thread; an interrupt (Ctrl-C) in a wait ends the wait,
not the client, and loses nothing. A client may be used from any thread, by one at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import pyarrow as pa

from lmerge.client.epochs import Acknowledgement
from lmerge.client.items import Elements, Gap, Item, Position, Snapshot
from lmerge.client.mirrored import MirroredWriter
from lmerge.client.reader import Reader, elements_in
from lmerge.client.writer import Welcome, Writer
from lmerge.elements import Element
from lmerge.errors import ConfigurationError

CLOSE_S_MAX: Final = 10.0
"""A thread that has not ended by then is left behind; it is a daemon."""

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` there, and wait for it; whatever ends the wait ends the work."""
        if self._loop.is_closed():
            work.close()
            raise ConfigurationError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it has been stopped."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """End the loop and the thread. Does nothing the second time."""
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S_MAX)


class SyncWriter:
    """A blocking :class:`~lmerge.client.writer.Writer`; takes the same arguments."""

    def __init__(
        self,
        target: str | Sequence[str],
        merge: str,
        stream: str,
        schema: pa.Schema,
        **options: Any,
    ) -> None:
        self.writer = self._make(target, merge, stream, schema, options)
        self._thread = LoopThread(f"lmerge-writer-{stream}")

    @staticmethod
    def _make(
        target: str | Sequence[str],
        merge: str,
        stream: str,
        schema: pa.Schema,
        options: dict[str, Any],
    ) -> Writer:
        return Writer(target, merge, stream, schema, **options)

    def __enter__(self) -> Self:
        try:
            self.attach()
        except BaseException:
            self.close(drain=False)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    def attach(self) -> Welcome:
        """Connect, and wait until the server has taken the stream."""
        return self._thread.do(self.writer.attach())

    def write(self, batch: pa.RecordBatch, *, epoch: int | None = None) -> None:
        """Add elements to the open epoch; waits while the server's window is full."""
        self._thread.do(self.writer.write(batch, epoch=epoch))

    def commit(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
    ) -> Acknowledgement:
        """Close the open epoch; returns when it is durable and merged."""
        return self._thread.do(
            self.writer.commit(
                epoch, stable, skipped_before, counters, parts=parts, part_rows=part_rows
            )
        )

    def commit_soon(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
    ) -> concurrent.futures.Future[Acknowledgement]:
        """Close the open epoch; the future ends when it is durable and merged."""

        async def commit() -> concurrent.futures.Future[Acknowledgement]:
            future = await self.writer.commit(
                epoch, stable, skipped_before, counters,
                parts=parts, part_rows=part_rows, wait=False,
            )  # fmt: skip
            result: concurrent.futures.Future[Acknowledgement] = concurrent.futures.Future()
            future.add_done_callback(lambda done: _copy(done, result))
            return result

        return self._thread.do(commit())

    def abort(self) -> None:
        """Drop what was written to the open epoch."""
        self._thread.do(self.writer.abort())

    def drain(self) -> None:
        """Wait until every commit is acknowledged."""
        self._thread.do(self.writer.drain())

    def detach(self, reason: str = "") -> None:
        """Leave the merge. Closes."""
        try:
            self._thread.do(self.writer.detach(reason))
        finally:
            self._thread.stop()

    def close(self, *, drain: bool = True) -> None:
        """Pause the stream."""
        try:
            if not self._thread.is_over:
                self._thread.do(self.writer.close(drain=drain))
        finally:
            self._thread.stop()

    @property
    def horizon(self) -> int | None:
        """What ends before it is not needed any more."""
        return self.writer.horizon

    @property
    def state(self) -> str:
        """joining, joined, quarantined or detached."""
        return self.writer.state

    @property
    def next_epoch(self) -> int:
        """The epoch that is being written."""
        return self.writer.next_epoch

    @property
    def incarnation(self) -> int:
        """What Stage calls need."""
        return self.writer.incarnation


class SyncMirroredWriter(SyncWriter):
    """A blocking :class:`~lmerge.client.mirrored.MirroredWriter`."""

    @staticmethod
    def _make(
        target: str | Sequence[str],
        merge: str,
        stream: str,
        schema: pa.Schema,
        options: dict[str, Any],
    ) -> Writer:
        targets = [target] if isinstance(target, str) else target
        # It has what this class calls.
        return cast(Writer, MirroredWriter(targets, merge, stream, schema, **options))


class SyncReader:
    """A blocking reader of one server, or of several; an iterator of items."""

    def __init__(self, target: str | Sequence[str], merge: str, **options: Any) -> None:
        self._thread: LoopThread | None = None
        self.reader = self._make(target, merge, options)
        self._thread = LoopThread(f"lmerge-reader-{merge}")

    @staticmethod
    def _make(target: str | Sequence[str], merge: str, options: dict[str, Any]) -> Any:
        return Reader(target, merge, **options)

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise ConfigurationError("the reader is closed")
        return self._thread.do(work)

    def open(self) -> None:
        """Connect, so that ``schema`` is known."""
        self._do(self.reader.open())

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._thread is None:
            raise StopIteration
        item: Item | None = self._do(_next_or_none(self.reader))
        if item is None:
            raise StopIteration
        return item

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The elements alone; stables and gaps are left out."""
        for item in self:
            if isinstance(item, Elements | Snapshot) and item.batch.num_rows:
                yield item.batch

    def elements(self) -> Iterator[Element | Gap]:
        """Element by element, payloads as dicts."""
        for item in self:
            yield from elements_in(item)

    def acknowledge(self, position: Position | None = None, *, wait: bool = True) -> None:
        """Nothing before ``position`` will be asked for again; returns when that is durable."""
        self._do(self.reader.acknowledge(position, wait=wait))

    @property
    def position(self) -> Position | None:
        """Behind the last item that was handed over."""
        return getattr(self.reader, "position", None)

    @property
    def schema(self) -> pa.Schema | None:
        """Of the elements; known once opened."""
        return self.reader.schema

    def close(self) -> None:
        """End reading."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.do(self.reader.close())
            finally:
                thread.stop()


class SyncMergedReader(SyncReader):
    """A blocking :class:`~lmerge.client.merged.MergedReader`."""

    @staticmethod
    def _make(target: str | Sequence[str], merge: str, options: dict[str, Any]) -> Any:
        # Imported here: it brings the merge's compiler along.
        from lmerge.client.merged import MergedReader

        return MergedReader(target, merge, **options)


async def _next_or_none(reader: Any) -> Item | None:
    item: Item | None = await anext(reader, None)
    return item


def _copy(
    done: asyncio.Future[Acknowledgement], result: concurrent.futures.Future[Acknowledgement]
) -> None:
    if done.cancelled():
        result.cancel()
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
