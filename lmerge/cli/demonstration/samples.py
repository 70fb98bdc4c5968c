"""The demo's input: samples of processes on some hosts, written while the queries run.

A file holds what was sampled since the last one; its samples lie up to ``LATE_S`` behind, which is
less than the plans wait. The names of files sort in the order in which they are written, and a file
is complete when its name appears.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

SECOND: Final = 1_000_000
EVERY_S: Final = 0.25
PER_FILE: Final = 60
LATE_S: Final = 0.5
HOSTS: Final = ("amber", "birch", "cedar")
PROCESSES: Final = 12
CLOSING_S: Final = 3600.0


class Samples:
    """A thread that writes; a context manager."""

    def __init__(self, directory: Path, schema: pa.Schema, seed: int) -> None:
        self.directory = directory
        self.written = 0
        self._schema = schema
        self._pick = random.Random(seed)  # noqa: S311  # data, and no secret
        self._files = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        directory.mkdir(parents=True)

    def __enter__(self) -> Samples:
        self._write_now()  # the queries need one file to start
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def finish(self) -> int:
        """Ends the input; results that start before the time returned are complete then.

        Two samples that come much later move every plan's watermark: the second one's file is
        another batch.
        """
        self._stop()
        end = int(time.time() * SECOND)
        for number in (1, 2):
            self._write([self._sample(end + int(number * CLOSING_S) * SECOND)])
        return end + SECOND * 60

    def _stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self._write_now()

    def _write_now(self) -> None:
        now = time.time()
        late = [self._pick.uniform(0, LATE_S) for _ in range(PER_FILE)]
        self._write([self._sample(int((now - each) * SECOND)) for each in late])

    def _sample(self, at: int) -> dict[str, Any]:
        pick = self._pick
        host = pick.choice(HOSTS)
        process = pick.randrange(PROCESSES)
        return {"at": at, "host": host, "process": process, "cpu": pick.randrange(100)}

    def _write(self, rows: list[dict[str, Any]]) -> None:
        draft = self.directory / "_draft"
        pq.write_table(pa.Table.from_pylist(rows, self._schema), draft)
        draft.rename(self.directory / f"part-{self._files:06d}.parquet")
        self._files += 1
        self.written += len(rows)
