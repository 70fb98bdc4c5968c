"""``lmerge subscribe``: a merge's output from one server, or from several at once, to a file.

Callers may rely on this: every item is flushed before it is acknowledged; a table, which cannot
be read before it is complete, is acknowledged as a whole at the end. Where reading ended is the
last line on stderr, whatever ended it.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lmerge.cli import connection
from lmerge.cli.attach import add_connection, reaching, retry_of
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.output import writing
from lmerge.cli.terminal import Terminal
from lmerge.errors import ConfigurationError
from lmerge.files import JSON_PAYLOAD, TIME_FIELDS, Writer, kind
from lmerge.jsonlines import Gap as GapLine
from lmerge.jsonlines import canonical, canonical_text
from lmerge.times import BEGINNING, INFINITY

if TYPE_CHECKING:
    from lmerge.client import Item, SyncReader

DESCRIPTION: Final = """\
Writes a merge's output as it comes, as JSON lines, or to a .parquet or .arrow file. With several
servers (HOST:PORT,HOST:PORT) their outputs are merged into one: losing one of them is not noticed.
Ends when the output is complete (stable to infinity) or has reached --until-stable.

The payload of a stream that was sent as JSON lines is one string column "payload", which is
written as the JSON that it holds.
"""
EPILOG: Final = """\
example:
  lmerge subscribe --merge m --from now
  lmerge subscribe --merge m --name report --ack -o report.jsonl

"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "subscribe",
        help="write a merge's output as it comes",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--merge", required=True, metavar="MERGE", help="the merge's name")
    add("--from", dest="start", default="beginning", metavar="WHERE",
        help="beginning (default), now (what is live, then changes), or a position")  # fmt: skip
    add("--delivery", choices=("eager", "consistent", "final"), default="eager",
        help="every change at once (default), whole epochs only, or only what is never "
        "revised")  # fmt: skip
    add("--name", metavar="SUB", help="a subscription whose place the server keeps")
    add("--ack", action="store_true", help="acknowledge what was written (needs --name)")
    add("--until-stable", type=int, metavar="T", help="end when the output is stable to T")
    add("-o", dest="output", metavar="FILE", help="where to, by extension (default: stdout)")
    add_connection(command, "the server, or several: HOST:PORT,HOST:PORT")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Reads until the end; the position is told in any case."""
    if arguments.ack and not arguments.name:
        raise ConfigurationError("--ack needs --name: only a named subscription has a kept place")
    with Terminal() as terminal, ExitStack() as stack:
        reader = _reader(arguments, terminal)
        stack.callback(_tell_position, reader, terminal)
        stack.callback(reader.close)
        with reaching(arguments):
            reader.open()
            schema = _marked(reader.schema)
            at_once = arguments.output is None or kind(arguments.output) == "json"
            with writing(arguments.output, schema) as writer:
                copy = Copy(reader, writer, schema, arguments.until_stable)
                copy.all(acknowledge=arguments.ack and at_once)
            if arguments.ack and reader.position is not None:
                reader.acknowledge()
    return Exit.OK


def _reader(arguments: argparse.Namespace, terminal: Terminal) -> SyncReader:
    from lmerge.client import Position, SyncMergedReader, SyncReader

    start: Any = arguments.start
    if start not in ("beginning", "now"):
        start = Position.parse(start)
    options = {
        "start": start,
        "delivery": arguments.delivery,
        "security": connection.security(arguments),
        "retry": retry_of(arguments),
    }
    servers = [server.strip() for server in arguments.server.split(",")]
    if len(servers) == 1:
        return SyncReader(servers[0], arguments.merge, subscription=arguments.name, **options)
    if arguments.name is not None:
        raise ConfigurationError("--name is a place at one server; there are several")
    return SyncMergedReader(servers, arguments.merge, on_notice=terminal.say, **options)


class Copy:
    """From items to a file."""

    def __init__(
        self, reader: SyncReader, writer: Writer, schema: pa.Schema, until: int | None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._schema = schema
        self._until = INFINITY if until is None else until

    def all(self, *, acknowledge: bool) -> None:
        """Every item, until the output is stable as far as is wanted."""
        for item in self._reader:
            stable = self._item(item)
            self._writer.flush()
            if acknowledge and item.position is not None:
                self._reader.acknowledge(item.position, wait=False)
            if stable is not None and stable >= self._until:
                return

    def _item(self, item: Item) -> int | None:
        """Writes an item; the stable that it says, if it does."""
        from lmerge.client import Gap, StablePoint

        if isinstance(item, Gap):
            start = None if item.start == BEGINNING else item.start
            self._writer.write_line(GapLine(None, start, item.end))
            return None
        if isinstance(item, StablePoint):
            self._writer.write_stable(item.vc)
            return item.vc
        if item.batch.num_rows:
            self._writer.write(_marked_rows(item.batch, self._schema))
        stable: int | None = getattr(item, "stable", None)
        if stable is not None:
            self._writer.write_stable(stable)
        return stable


def _tell_position(reader: SyncReader, terminal: Terminal) -> None:
    if reader.position is not None:
        terminal.say(f"position {reader.position}")


def _is_json(schema: pa.Schema) -> bool:
    """Whether the payload looks as `lmerge attach` sends that of JSON lines."""
    fields = [field for field in schema if field.name not in {f.name for f in TIME_FIELDS}]
    return [(f.name, f.type) for f in fields] == [(JSON_PAYLOAD.name, JSON_PAYLOAD.type)]


def _marked(schema: pa.Schema | None) -> pa.Schema:
    """The schema; a payload of JSON text is marked as such, which the wire does not do."""
    if schema is None or not _is_json(schema):
        return schema
    return pa.schema([*TIME_FIELDS, JSON_PAYLOAD])


def _marked_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not _is_json(schema):
        return batch
    texts = pa.array([_text(value) for value in batch.column("payload").to_pylist()], pa.string())
    columns = [texts if f.name == "payload" else batch.column(f.name) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(value: str | None) -> str:
    """JSON text; what is none was a string of its own."""
    if value is None:
        return "null"
    try:
        return canonical_text(value)
    except (ValueError, RecursionError):
        return canonical(value)
