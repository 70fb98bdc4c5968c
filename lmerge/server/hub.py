"""All merges of a server, by name: made by configuration, by operators or by first replicas.

Callers may rely on this: a merge that cannot be opened does not keep the others from being served;
it is listed with its fault. A merge's directory is made whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from lmerge.core.properties import StreamProperties
from lmerge.errors import (
    ConfigurationError,
    DetachedError,
    ExistsError,
    FencedError,
    LimitError,
    LMergeError,
    MergeFaultError,
    NotFoundError,
    UnavailableError,
)
from lmerge.server.config import MergeConfig, ServerConfig, check_name
from lmerge.server.host import MergeHost
from lmerge.server.journal import locked
from lmerge.server.sessions import Sessions
from lmerge.server.state import begin, complete_options
from lmerge.v1 import common_pb2, log_pb2

log = logging.getLogger("lmerge.server")

REASON_MAX: Final = 1_000
_UNFINISHED: Final = "~new"  # no name of a merge has a ~: what ends so is nobody's
_DOOMED: Final = "~gone"


class Served:
    """A merge, and who is connected to it."""

    def __init__(self, host: MergeHost, sessions: Sessions) -> None:
        self.host = host
        self.sessions = sessions
        host.on_feedback = sessions.feed_back

    async def detach(self, stream: str, reason: str) -> None:
        """A stream leaves the merge; what it has staged is dropped."""
        detached = log_pb2.StreamDetached(stream=stream, reason=reason[:REASON_MAX])
        await self.host.submit(log_pb2.Arrival(detached=detached))
        self.sessions.drop_staged(stream)
        log.info("merge %s: stream %s has left: %s", self.host.name, stream, reason)

    async def leave(self, stream: str, reason: str) -> None:
        """A stream leaves the merge, and its session, if it has one, ends."""
        await self.detach(stream, reason)
        session = self.sessions.holder(stream)
        if session is not None:
            session.end(DetachedError(f"stream {stream!r} has left the merge: {reason}"))


class Hub:
    """The merges."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.merges: dict[str, Served] = {}
        self.faults: dict[str, str] = {}  # merges that could not be opened, and why
        self.observe_commit: Callable[[str, float], None] = lambda merge, seconds: None
        self.forgotten: Callable[[str], None] = lambda merge: None
        self._declared: dict[str, MergeConfig] = {merge.name: merge for merge in config.merges}
        self._durable = config.durability != "none"
        self._making = asyncio.Lock()
        self._lock = -1
        self.staged_bytes = 0  # of all streams
        self.newest: dict[tuple[str, str], int] = {}  # incarnations that a membership knows of

    @property
    def _root(self) -> Path:
        return self.config.data_dir / "merges"

    @property
    def _promised(self) -> Path:
        """Merges that operators made, and that begin with their first replica."""
        return self.config.data_dir / "declared"

    async def open(self) -> None:
        """Opens what is on disk, and makes what the configuration declares with a schema."""
        if self._durable:
            self._make_root()
            self._lock = locked(self.config.data_dir)
            for left in [*self._root.glob(f"*{_UNFINISHED}"), *self._root.glob(f"*{_DOOMED}")]:
                shutil.rmtree(left)
            for directory in sorted(self._root.iterdir()):
                await self._open_one(directory)
            for file in sorted(self._promised.glob("*.options")):
                options = common_pb2.MergeOptions.FromString(file.read_bytes())
                self._declared.setdefault(file.stem, _declared(file.stem, options))
        for declared in self._declared.values():
            known = declared.name in self.merges or declared.name in self.faults
            if known:
                self._compare(declared)
            elif declared.schema is not None:
                await self.create(declared.name, declared.options(), declared.schema, None)

    def _make_root(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep data in {self.config.data_dir}: {error.strerror}; choose another"
                " directory with --data-dir"
            ) from error

    def _compare(self, declared: MergeConfig) -> None:
        """A merge keeps the options that it began with, whatever is declared now: say so."""
        served = self.merges.get(declared.name)
        if served is None:
            return
        wanted, found = declared.options(), served.host.state.options
        for name in ("restriction", "insert_policy", "adjust_policy", "stable_lag", "divergence"):
            mine, theirs = getattr(wanted, name), getattr(found, name)
            if mine not in ("", theirs):
                log.warning(
                    "merge %s was begun with %s %s and keeps it; the configuration says %s",
                    declared.name, name, theirs, mine,
                )  # fmt: skip

    async def _open_one(self, directory: Path) -> None:
        name = directory.name
        try:
            check_name("merge", name)
            host = await asyncio.to_thread(
                MergeHost.open, name, directory, self.config.durability, self.config.limits
            )
        except LMergeError as error:
            self.faults[name] = str(error)
            log.error("merge %s is not served: %s", name, error)
            return
        except Exception as error:
            # Ours is the fault, and the other merges need not suffer from it.
            self.faults[name] = f"a defect of lmerge: {type(error).__name__}: {error}"
            log.exception("merge %s is not served", name)
            return
        self._serve(host)

    def _serve(self, host: MergeHost) -> Served:
        served = Served(host, Sessions(host))
        served.sessions.account = self.stage
        host.on_commit = lambda seconds: self.observe_commit(host.name, seconds)
        host.start()
        self.merges[host.name] = served
        return served

    def get(self, name: str) -> Served:
        """The merge of that name; NotFoundError, or MergeFaultError when it has a fault."""
        served = self.merges.get(name)
        if served is not None:
            return served
        if name in self.faults:
            raise MergeFaultError(f"merge {name!r} is not served: {self.faults[name]}")
        if name in self._declared:
            raise UnavailableError(f"merge {name!r} begins when its first replica attaches")
        raise NotFoundError(f"there is no merge {name!r}{self._known()}")

    def _known(self) -> str:
        """For whoever mistyped a name; nothing where not everybody may see everything."""
        if self.config.secured:
            return ""
        return "; there are: " + (", ".join(sorted(self.merges)[:20]) or "none")

    async def get_or_create(
        self,
        name: str,
        schema: pa.Schema,
        properties: StreamProperties | None,
        options: common_pb2.MergeOptions,
    ) -> Served:
        """The merge for a replica that says hello: made for it, if that is allowed."""
        async with self._making:
            if name in self.merges or name in self.faults:
                return self.get(name)
            declared = self._declared.get(name)
            if declared is None and not self.config.create_on_attach:
                raise NotFoundError(
                    f"there is no merge {name!r}, and replicas may not make one here"
                    " (create_on_attach is off)" + self._known()
                )
            chosen = options if declared is None else declared.options()
            return await self._create(name, chosen, schema, properties)

    async def create(
        self,
        name: str,
        options: common_pb2.MergeOptions,
        schema: pa.Schema | None,
        properties: StreamProperties | None,
    ) -> None:
        """A new merge; without a schema it begins with its first replica."""
        async with self._making:
            taken = name in self.merges or name in self.faults
            if taken or (schema is None and name in self._declared):
                raise ExistsError(f"there is a merge {name!r} already")
            if schema is None:
                check_name("merge", name)
                self._declared[name] = _declared(name, options)
                if self._durable:
                    self._promised.mkdir(exist_ok=True)
                    file = self._promised / f"{name}.options"
                    file.write_bytes(options.SerializeToString())
                return
            await self._create(name, options, schema, properties)

    async def _create(
        self,
        name: str,
        options: common_pb2.MergeOptions,
        schema: pa.Schema,
        properties: StreamProperties | None,
    ) -> Served:
        check_name("merge", name)
        if len(self.merges) >= self.config.limits.merges:
            raise LimitError(f"the server has {self.config.limits.merges} merges: its limit")
        first = begin(complete_options(options, properties), schema)
        host = await asyncio.to_thread(self._made, name, first)
        log.info("merge %s begins (%s)", name, first.options.restriction)
        return self._serve(host)

    def _made(self, name: str, first: log_pb2.Begin) -> MergeHost:
        config = self.config
        if not self._durable:
            return MergeHost.begin(name, first, None, config.durability, config.limits)
        unfinished = self._root / f"{name}{_UNFINISHED}"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            MergeHost.begin(name, first, unfinished, config.durability, config.limits).abandon()
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        unfinished.rename(self._root / name)
        return MergeHost.open(name, self._root / name, config.durability, config.limits)

    async def delete(self, name: str) -> None:
        """Forgets a merge and everything of it."""
        async with self._making:
            declared = self._declared.pop(name, None)
            if declared is not None and self._durable:
                (self._promised / f"{name}.options").unlink(missing_ok=True)
            served = self.merges.pop(name, None)
            if served is None and self.faults.pop(name, None) is None and declared is None:
                raise NotFoundError(f"there is no merge {name!r}{self._known()}")
            if served is not None:
                served.sessions.end_all(NotFoundError(f"merge {name!r} has been deleted"))
                await served.host.close(snapshot=False)
            if self._durable and (self._root / name).exists():
                doomed = self._root / f"{name}{_DOOMED}"
                (self._root / name).rename(doomed)
                await asyncio.to_thread(shutil.rmtree, doomed)
            self.forgotten(name)
            log.info("merge %s is deleted", name)

    def check_incarnation(self, merge: str, stream: str, incarnation: int) -> None:
        """FencedError when the membership knows of a newer one; 0 asks the server for one."""
        newest = self.newest.get((merge, stream), 0)
        if 0 < incarnation < newest:
            raise FencedError(
                f"stream {stream!r} has a newer incarnation, {newest}: {incarnation} is fenced off"
            )

    def stage(self, size: int) -> None:
        """Accounts for bytes that are staged (or, below zero, no longer)."""
        limit = self.config.limits.staged_bytes
        if size > 0 and self.staged_bytes + size > limit:
            raise LimitError(f"the server has {limit} bytes staged: its limit (staged_bytes)")
        self.staged_bytes += size

    def end_sessions(self, error: LMergeError) -> None:
        """Ends every call with a reason."""
        for served in self.merges.values():
            served.sessions.end_all(error)

    async def close(self) -> None:
        """Closes every merge; each takes a snapshot first."""
        for served in list(self.merges.values()):
            try:
                await served.host.close()
            except (LMergeError, ConfigurationError) as error:
                log.error("merge %s: %s", served.host.name, error)
        self.merges.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _declared(name: str, options: common_pb2.MergeOptions) -> MergeConfig:
    whole = complete_options(options, None)
    return MergeConfig(
        name,
        options.restriction,
        whole.insert_policy,
        whole.adjust_policy,
        whole.stable_lag,
        whole.divergence,
    )
