"""Streams that have been without a session for too long are detached.

For servers without a membership service beside them: a replica that died for good would else stay
a member for ever. The clock is injected; the detach is an arrival like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lmerge.errors import LMergeError
from lmerge.server.hub import Hub


async def detach_the_silent(
    hub: Hub,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Looks some times in that period, for ever."""
    silent_since: dict[tuple[str, str], float] = {}
    while True:
        await sleep(seconds / 4)
        silent = {
            (name, stream)
            for name, served in hub.merges.items()
            for stream in served.host.state.merge.streams()
            if served.sessions.holder(stream) is None
        }
        silent_since = {key: silent_since.get(key, clock()) for key in silent}
        for (name, stream), since in silent_since.items():
            if clock() - since < seconds or name not in hub.merges:
                continue
            reason = f"no session for {seconds:g} s"
            with suppress(LMergeError):
                await hub.merges[name].detach(stream, reason)
