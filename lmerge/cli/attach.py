"""``lmerge attach``: sends a file's elements to a server, as one stream of a merge.

Callers may rely on this: where epochs end depends on the file and ``--epoch-rows`` alone, and the
lineage on its content, so that the same command on the same file goes on where it was broken
off, and sends nothing twice. Input from a pipe without ``--lineage`` cannot be repeated: there an
epoch also ends when the input pauses.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lmerge.cli import connection
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.terminal import Terminal
from lmerge.core.properties import StreamProperties
from lmerge.elements import Op
from lmerge.errors import ConfigurationError, InputError, InvariantError, UnavailableError
from lmerge.files import Control, Data, Part, Round, read_rounds, read_schema
from lmerge.jsonlines import Attach, Detach
from lmerge.times import show

if TYPE_CHECKING:
    from lmerge.client import SyncWriter

EPOCH_ROWS: Final = 10_000
EPOCH_BYTES: Final = 16 << 20
"""An epoch without a stable ends at ten times its rows, or when a round takes it beyond this."""

CONNECT_SECONDS: Final = 30.0
PROPERTIES: Final = tuple(field.name for field in fields(StreamProperties))

DESCRIPTION: Final = """\
Sends the elements of a file (JSON lines, .parquet, .arrow; - is stdin) to a server. Lines that
name a stream with "in" are sent if they name STREAM, or the only stream of the file. The stream
stays a member of the merge when the command ends, unless --detach is given.
"""
EPILOG: Final = """\
example:
  lmerge gen --elements 1000 --streams 1 -o a.jsonl
  lmerge attach --merge m --stream a --properties keyed a.jsonl

"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "attach",
        help="send a file to a server, as a stream of a merge",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("file", metavar="FILE", help="JSON lines, .parquet or .arrow; - is stdin")
    add("--merge", required=True, metavar="MERGE", help="the merge's name")
    add("--stream", required=True, metavar="STREAM", help="the stream's name in it")
    add("--in", dest="only", metavar="NAME", help='send the lines with this "in" alone')
    add("--lineage", metavar="NAME",
        help="what this stream resumes (default: the file's content; stdin: nothing)")  # fmt: skip
    add("--from", dest="from_time", type=int, metavar="T",
        help="the stream is right only for what ends at T or later")  # fmt: skip
    add("--properties", type=_properties, default=StreamProperties(), metavar="LIST",
        help=f"what the stream promises, of {','.join(PROPERTIES)}")  # fmt: skip
    add("--epoch-rows", type=int, default=EPOCH_ROWS, metavar="N",
        help=f"an epoch ends at the first stable after N rows (default: {EPOCH_ROWS})")  # fmt: skip
    add("--feedback", action="store_true", help="say on stderr what is not needed any more")
    add("--detach", action="store_true", help="leave the merge at the end")
    add_connection(command, "the server")
    command.set_defaults(run=run)


def add_connection(command: argparse.ArgumentParser, what: str) -> None:
    """Adds the options that say where the server is, and who calls."""
    group = command.add_argument_group("connection")
    add = group.add_argument
    default = connection.SERVER
    add("--server", metavar="HOST:PORT", default=default, help=f"{what} (default: {default})")
    add("--connect-timeout", metavar="SECONDS", type=float, default=CONNECT_SECONDS,
        help=f"give up after so long without a server (default: {CONNECT_SECONDS:g})")  # fmt: skip
    add("--token-file", metavar="FILE",
        help=f"holds the token to call with (default: ${connection.TOKEN_VARIABLE})")  # fmt: skip
    add("--tls", action="store_true", help="use TLS, and trust the system's authorities")
    add("--tls-ca", metavar="FILE", help="use TLS, and trust these authorities (PEM)")
    add("--tls-cert", metavar="FILE", help="the caller's own certificate (PEM)")
    add("--tls-key", metavar="FILE", help="its key (PEM)")


@contextmanager
def reaching(arguments: argparse.Namespace) -> Iterator[None]:
    """A server that is away, or fails, is one clear line."""
    try:
        yield
    except UnavailableError as error:
        raise UnavailableError(
            f"the server at {arguments.server} cannot be reached"
            f" ({arguments.connect_timeout:g} s): {error}"
        ) from error
    except InvariantError as error:
        if error.__cause__ is not None:
            raise  # ours
        raise UnavailableError(f"the server at {arguments.server} failed: {error}") from error


def retry_of(arguments: argparse.Namespace) -> Any:
    """How long the server is tried."""
    from lmerge.client import Retry

    if not arguments.connect_timeout > 0:
        raise ConfigurationError("--connect-timeout must be above 0")
    return Retry(patience_s=arguments.connect_timeout)


def run(arguments: argparse.Namespace) -> int:
    """Sends; the status tells whether the stream was taken."""
    if arguments.epoch_rows < 1:
        raise ConfigurationError("--epoch-rows must be at least 1")
    path = arguments.file
    schema = read_schema(path)
    with Terminal() as terminal:
        rounds = read_rounds(path, progress=terminal.reading(path, None))
        source = Source(path, arguments.stream, arguments.only)
        own = source.own(rounds)
        first = next(own, None)
        repeatable = arguments.lineage is not None or os.path.isfile(path)
        from lmerge.client import SyncWriter

        def feedback(before: int) -> None:
            terminal.say(f"feedback: nothing that ends before {show(before)} is needed any more")

        writer = SyncWriter(
            arguments.server,
            arguments.merge,
            arguments.stream,
            schema,
            lineage=arguments.lineage or _lineage(path, arguments),
            from_time=source.from_time if arguments.from_time is None else arguments.from_time,
            properties=arguments.properties,
            security=connection.security(arguments),
            retry=retry_of(arguments),
            on_feedback=feedback if arguments.feedback else None,
        )
        with reaching(arguments), writer:
            sender = Sender(writer, arguments.epoch_rows, at_pauses=not repeatable)
            sender.send_all(chain([] if first is None else [first], own))
            writer.drain()
            state, reason = writer.state, writer.writer.reason
            if arguments.detach or source.detached:
                writer.detach("the end of the input")
        terminal.say(
            f"{sender.sent:,} epochs sent, {sender.skipped:,} skipped as already committed;"
            f" {sender.rows:,} rows; the stream is {state}"
        )
        if state == "quarantined":
            terminal.say(f"stream {arguments.stream!r} is quarantined: {reason}")
            return Exit.BROKEN_PROMISE
    return Exit.OK


@dataclass(slots=True)
class Source:
    """Which lines of a file are the stream's."""

    path: str
    stream: str
    only: str | None  # the name that was asked for
    found: str | None = None  # or else the one that the lines have
    from_time: int | None = None  # what its attach says
    detached: bool = False  # whether it ends with a detach

    def own(self, rounds: Iterator[Round]) -> Iterator[pa.RecordBatch]:
        """The stream's batches, in order; an empty one after each round: the input may pause."""
        for item in rounds:
            if isinstance(item, Data):
                for part in item.parts:
                    if self._is_own(part, item.parts):
                        self.detached = False
                        yield part.batch
                yield item.parts[0].batch.slice(0, 0)
            else:
                self._control(item)

    def _is_own(self, part: Part, beside: list[Part]) -> bool:
        name = part.stream
        if self.only is not None:
            return name == self.only
        if name is None:
            return True
        if self.found is None:
            named = {other.stream for other in beside}
            self.found = self.stream if self.stream in named else name
        if name != self.found and self.found != self.stream:
            raise InputError(
                self.path,
                int(part.lines[0]),
                f"lines of several streams ({self.found!r}, {name!r}): say with --in which to send",
            )
        return name == self.found

    def _control(self, item: Control) -> None:
        change = item.change
        if change.stream not in (None, self.only or self.found or self.stream):
            return
        if isinstance(change, Attach):
            self.from_time = change.from_time if self.from_time is None else self.from_time
        elif isinstance(change, Detach):
            self.detached = True


class Sender:
    """Cuts a stream into epochs, and sends those that are not committed yet."""

    def __init__(self, writer: SyncWriter, epoch_rows: int, *, at_pauses: bool) -> None:
        self._writer = writer
        self._epoch_rows = epoch_rows
        self._at_pauses = at_pauses
        self._epoch = 0
        self._in_epoch = 0  # rows, stables too
        self._bytes = 0
        self._stable: int | None = None
        self.sent = 0
        self.skipped = 0
        self.rows = 0

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Everything; the last epoch ends with the input, or with what is wrong with it."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._send(batch)
                elif self._at_pauses or self._bytes >= EPOCH_BYTES:
                    self._close()
        except InputError:
            if self._at_pauses:
                self._close()
            raise
        self._close()

    def _send(self, batch: pa.RecordBatch) -> None:
        ops = batch.column("op").to_numpy(zero_copy_only=False)
        start = 0
        # Between two stables nothing is looked at row by row.
        for at in [*np.flatnonzero(ops == Op.STABLE).tolist(), len(ops)]:
            start = self._data(batch, start, at)
            if at < len(ops):
                self._stable = batch.column("vs")[at].as_py()
                self._in_epoch += 1
                start = at + 1
                if self._in_epoch >= self._epoch_rows:
                    self._close()

    def _data(self, batch: pa.RecordBatch, start: int, end: int) -> int:
        """The rows from ``start`` to ``end``, none of them a stable."""
        most = 10 * self._epoch_rows
        while start < end:
            rows = min(end - start, most - self._in_epoch)
            piece = batch.slice(start, rows)
            self._writer.write(piece, epoch=self._epoch)
            if self._epoch >= self._writer.next_epoch:
                self.rows += rows
            self._bytes += piece.nbytes
            self._in_epoch += rows
            start += rows
            if self._in_epoch >= most:
                self._close()
        return start

    def _close(self) -> None:
        if not self._in_epoch:
            return
        if self._epoch < self._writer.next_epoch:
            self.skipped += 1
        else:
            self._writer.commit_soon(self._epoch, self._stable)
            self.sent += 1
        self._epoch += 1
        self._in_epoch, self._bytes, self._stable = 0, 0, None


def _lineage(path: str, arguments: argparse.Namespace) -> str | None:
    """The content and how it is cut: a file that has changed is another stream."""
    if not os.path.isfile(path):
        return None
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error)) from error
    cut = f"{arguments.epoch_rows}:{arguments.only or arguments.stream}"
    return f"file:{digest.hexdigest()}:{cut}"


def _properties(text: str) -> StreamProperties:
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(PROPERTIES))
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no property {unknown[0]!r}; there are {', '.join(PROPERTIES)}"
        )
    return StreamProperties(**dict.fromkeys(names, True))
