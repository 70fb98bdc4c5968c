"""Memory that the process has freed is kept for what comes next.

By default the C library gives every message's memory back to the kernel when it is freed, and takes
new pages for the next one. A page that is touched for the first time costs more than all the copies
of what is put into it (1.2 ms a MiB against 0.2), and a message is copied a few times on its way.
"""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

KEPT_BYTES: Final = 256 << 20
"""What is free at the end of the heap, and kept."""

# Of mallopt, in glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_MMAP_BYTES: Final = 32 << 20  # the most that glibc takes: larger blocks have pages of their own


def keep_memory() -> None:
    """Has the C library and Arrow keep what is freed; for a process of ours, as it begins.

    Where the C library has no such thing (musl, macOS), nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_ARENA_MAX, 1)  # so that what one thread frees serves the others, too
    pa.set_memory_pool(pa.system_memory_pool())
