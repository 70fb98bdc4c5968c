"""One stream written to several servers that each merge it: none of them is needed.

Callers may rely on this:
- An epoch is acknowledged when one server has it, durable and merged; the others are given
  ``BEHIND_S`` to have it too, so that a replica that crashes next finds all of them at one epoch.
- A server that is away or slow holds nobody up. Its epochs are kept for it up to its window; when
  that is full and it has been behind for ``GIVE_UP_S``, it is left out.
- A server that was left out, came too late, or has lost epochs is joined anew at the begin of an
  epoch, as another physical stream: with a lineage of its own, from the time that ``vouch`` names.
- The horizon is the smallest of those of the servers that are written to. One server's word is not
  enough: another, which is behind, may still need what the first does not.
- An error is raised when it concerns the stream everywhere (fenced, another schema, no
  permission), and when no server is left.

It belongs to one event loop, and its calls to one task at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import pyarrow as pa

from lmerge.client.connection import Security, open_channel, targets_of
from lmerge.client.epochs import Acknowledgement
from lmerge.client.writer import Welcome, Writer
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    EpochOrderError,
    LMergeError,
    RetiredError,
    UnavailableError,
)
from lmerge.times import BEGINNING

log = logging.getLogger("lmerge.client")

GRACE_S: Final = 5.0
"""How long the other servers may take to answer once the first has, when the stream attaches."""

BEHIND_S: Final = 1.0
GIVE_UP_S: Final = 5.0
MOMENT_S: Final = 0.5  # in which a server that is behind can take something nevertheless
LOOK_S: Final = 1.0
"""How often it is looked whether a server that is left out can be reached again."""

_OWN = (UnavailableError, DetachedError, EpochOrderError, RetiredError)
"""What concerns one server, and not the stream."""


@dataclass(slots=True, eq=False)
class _Server:
    """One server; it is written to while it has a writer."""

    target: str
    writer: Writer | None = None
    behind_since: float | None = None
    why: str = ""  # it is left out
    reachable: bool = False
    looking: asyncio.Task[None] | None = None
    pending: set[asyncio.Future[Acknowledgement]] = field(default_factory=set)


class MirroredWriter:
    """Writes one stream to several servers; see :class:`~lmerge.client.writer.Writer`."""

    def __init__(
        self,
        targets: Sequence[str],
        merge: str,
        stream: str,
        schema: pa.Schema,
        *,
        vouch: Callable[[], int | None] | None = None,
        lineage: str | None = None,
        from_time: int | None = None,
        security: Security | None = None,
        on_feedback: Callable[[int], None] | None = None,
        **options: Any,
    ) -> None:
        """``vouch`` gives the time from which everything is right that is said from now on, or
        None while there is none; without it a server that is left out stays out."""
        self._security = security or Security()
        if len(set(targets)) != len(targets):
            raise ConfigurationError("a server is named twice")
        self._servers = [_Server(target) for target in targets_of(targets, self._security)]
        self.merge = merge
        self.stream = stream
        self.lineage = lineage or str(uuid.uuid4())
        self.on_feedback = on_feedback
        self.horizon: int | None = None
        self._schema = schema
        self._vouch = vouch
        self._from_time = from_time
        self._options = options
        self._epoch: int | None = None  # the one that is being written
        self._closed = False
        self._welcome: Welcome | None = None

    # -- what callers do --------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The stream's at the first server that is written to."""
        return next((writer.state for writer in self._writers()), "")

    @property
    def incarnation(self) -> int:
        """The stream's at the first server that is written to."""
        return next((writer.incarnation for writer in self._writers()), 0)

    @property
    def next_epoch(self) -> int:
        """The epoch that is being written."""
        return max((writer.next_epoch for writer in self._writers()), default=0)

    @property
    def left_out(self) -> dict[str, str]:
        """The servers that are not written to, and why."""
        return {each.target: each.why for each in self._servers if each.writer is None}

    async def attach(self) -> Welcome:
        """Connect, and wait until one server has taken the stream; others have some time more."""
        if self._welcome is not None:
            return self._welcome
        tasks = {}
        for server in self._servers:
            server.writer = self._writer(server, self.lineage, self._from_time)
            tasks[asyncio.create_task(server.writer.attach())] = server
        waiting = set(tasks)
        try:
            seconds: float | None = None
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    error = task.exception()
                    if error is None:
                        self._welcome = self._welcome or task.result()
                        seconds = GRACE_S
                    elif isinstance(error, _OWN):
                        await self._leave_out(tasks[task], str(error))
                    else:
                        raise error
        except BaseException:
            await self.close(drain=False)
            raise
        finally:
            for task in waiting:
                task.cancel()
        for task in waiting:
            await self._leave_out(tasks[task], "it does not answer")
        if self._welcome is None:
            raise self._none_left()
        return self._welcome

    async def write(self, batch: pa.RecordBatch, *, epoch: int | None = None) -> None:
        """Add elements to the open epoch."""
        await self._begin(epoch)
        await self._each(lambda writer: writer.write(batch, epoch=epoch))

    async def commit(
        self,
        epoch: int | None = None,
        stable: int | None = None,
        skipped_before: int | None = None,
        counters: Mapping[str, float] | None = None,
        *,
        parts: Sequence[tuple[int, int]] = (),
        part_rows: int | None = None,
        wait: bool = True,
    ) -> Acknowledgement | asyncio.Future[Acknowledgement]:
        """Close the open epoch; returns when it is durable and merged at one server, or with
        ``wait=False`` at once, with a future of that."""
        if parts:
            raise ConfigurationError("what Stage calls wrote is at one server: name only that one")
        await self._begin(epoch)

        async def close(writer: Writer) -> asyncio.Future[Acknowledgement]:
            return await writer.commit(epoch, stable, skipped_before, counters, wait=False)

        commits = await self._each(close)
        self._epoch = None
        acknowledged = asyncio.ensure_future(self._acknowledged(commits))
        return await acknowledged if wait else acknowledged

    async def abort(self) -> None:
        """Drop what was written to the open epoch."""
        await self._each(lambda writer: writer.abort())

    async def drain(self) -> None:
        """Wait until every commit is acknowledged where the stream is written to."""
        await self._each(lambda writer: writer.drain(), give_up=False)

    async def detach(self, reason: str = "") -> None:
        """Leave the merge at every server that is written to. Closes."""
        await self._each(lambda writer: writer.detach(reason))
        await self.close(drain=False)

    async def close(self, *, drain: bool = True) -> None:
        """Pause the stream: it stays a member, and resumes at its next epoch."""
        try:
            if drain and not self._closed and any(each.pending for each in self._servers):
                await self._each(lambda writer: writer.drain())
        finally:
            self._closed = True
            looks = [each.looking for each in self._servers if each.looking is not None]
            for look in looks:
                look.cancel()
            closing = [writer.close(drain=False) for writer in self._writers()]
            await asyncio.gather(*looks, *closing, return_exceptions=True)

    # -- how --------------------------------------------------------------------------------------

    def _writers(self) -> list[Writer]:
        return [each.writer for each in self._servers if each.writer is not None]

    def _writer(self, server: _Server, lineage: str, from_time: int | None) -> Writer:
        return Writer(
            server.target, self.merge, self.stream, self._schema, lineage=lineage,
            from_time=from_time, security=self._security, on_feedback=self._feed_back,
            **self._options,
        )  # fmt: skip

    def _feed_back(self, _: int) -> None:
        told = [BEGINNING if w.horizon is None else w.horizon for w in self._writers()]
        before = min(told, default=BEGINNING)
        if before > BEGINNING and (self.horizon is None or before > self.horizon):
            self.horizon = before
            if self.on_feedback is not None:
                self.on_feedback(before)

    async def _begin(self, epoch: int | None) -> None:
        """Between epochs, and only there, servers that are left out can join."""
        await self.attach()
        number = self.next_epoch if epoch is None else epoch
        if number == self._epoch:
            return
        self._epoch = number
        for server in self._servers:
            if server.writer is None and server.reachable and self._vouch is not None:
                await self._join(server, self._vouch())

    async def _join(self, server: _Server, from_time: int | None) -> None:
        server.reachable = False
        if from_time is None:
            return
        writer = self._writer(server, f"{self.lineage}/{uuid.uuid4().hex[:12]}", from_time)
        try:
            # Before it counts as written to: its horizon must not hold the others' back, yet.
            await asyncio.wait_for(writer.attach(), LOOK_S)
        except (TimeoutError, *_OWN) as error:
            server.why = str(error) or "it does not answer"
            await writer.close(drain=False)
            return
        if server.looking is not None:
            server.looking.cancel()
        server.writer, server.looking, server.behind_since = writer, None, None
        server.pending.clear()
        log.info("stream %s: written to %s again, from %d", self.stream, server.target, from_time)

    async def _leave_out(self, server: _Server, why: str) -> None:
        writer, server.writer, server.why = server.writer, None, why
        server.pending.clear()
        log.warning("stream %s: %s is left out: %s", self.stream, server.target, why)
        if writer is not None:
            await writer.close(drain=False)
        if not self._closed and self._vouch is not None:
            server.looking = asyncio.create_task(self._look(server))
        self._feed_back(0)

    async def _look(self, server: _Server) -> None:
        """Finds out whether a server can be reached, without holding anybody up."""
        while True:
            await asyncio.sleep(LOOK_S)
            if server.reachable:
                continue
            with suppress(TimeoutError, grpc.RpcError):
                async with open_channel(server.target, self._security) as channel:
                    await asyncio.wait_for(channel.channel_ready(), LOOK_S)
                    server.reachable = True

    async def _each(
        self, act: Callable[[Writer], Any], *, give_up: bool = True
    ) -> dict[_Server, Any]:
        """Does it at every server at once; once it is done at one, the others' time is limited."""
        tasks: dict[asyncio.Task[Any], _Server] = {}
        for server in self._servers:
            if server.writer is not None:
                tasks[asyncio.ensure_future(act(server.writer))] = server
        results: dict[_Server, Any] = {}
        waiting, deadlines = set(tasks), dict.fromkeys(tasks, math.inf)
        loop = asyncio.get_running_loop()
        try:
            while waiting:
                first = min(deadlines[task] for task in waiting)
                done, waiting = await asyncio.wait(
                    waiting,
                    timeout=None if first == math.inf else max(0.0, first - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    await self._take(tasks[task], task, results)
                now = loop.time()
                if give_up and results and first == math.inf:
                    for task in waiting:
                        since = tasks[task].behind_since or now
                        deadlines[task] = max(since + GIVE_UP_S, now + MOMENT_S)
                for task in [each for each in waiting if deadlines[each] <= now]:
                    waiting.discard(task)
                    task.cancel()
                    await self._leave_out(tasks[task], f"it has been behind for {GIVE_UP_S:g} s")
        finally:
            for task in tasks:
                task.cancel()
                task.add_done_callback(_retrieved)  # of several errors one is raised
        if not results:
            raise self._none_left()
        return results

    async def _take(
        self, server: _Server, done: asyncio.Future[Any], results: dict[_Server, Any]
    ) -> None:
        error = done.exception()
        if error is None:
            results[server] = done.result()
        elif isinstance(error, _OWN):
            await self._leave_out(server, str(error))
        else:
            raise error

    async def _acknowledged(
        self, commits: Mapping[_Server, asyncio.Future[Acknowledgement]]
    ) -> Acknowledgement:
        loop = asyncio.get_running_loop()
        found = {future: server for server, future in commits.items()}
        for future, server in found.items():
            if not server.pending:  # it has caught up
                server.behind_since = None
            server.pending.add(future)
            future.add_done_callback(server.pending.discard)
        said: dict[_Server, Acknowledgement] = {}
        waiting, deadline = set(found), math.inf
        while waiting:
            seconds = None if deadline == math.inf else max(0.0, deadline - loop.time())
            done, waiting = await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for future in done:
                await self._take(found[future], future, said)
            if said:
                # Who was behind before is not waited for: it catches up, or is given up.
                waiting = {each for each in waiting if found[each].behind_since is None}
                deadline = min(deadline, loop.time() + BEHIND_S)
        for future in waiting:
            found[future].behind_since = loop.time()
        if not said:
            raise self._none_left()
        bad = [each for each in said.values() if each.state == "quarantined"]
        return (bad or list(said.values()))[0]

    def _none_left(self) -> LMergeError:
        return UnavailableError(
            "no server is left: " + "; ".join(f"{name}: {why}" for name, why in
                                              self.left_out.items())
        )  # fmt: skip


def _retrieved(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
