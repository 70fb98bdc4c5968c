"""``lmerge tdb``: prints the events that a stream describes, if all of it is valid."""

from __future__ import annotations

import argparse
from typing import Any, Final

from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.reconstitution import Presented, reconstitute, source_of
from lmerge.cli.terminal import Terminal
from lmerge.errors import InputError
from lmerge.files import JsonWriter, stdout_writer
from lmerge.jsonlines import canonical
from lmerge.times import INFINITY

EXAMPLE_INPUT: Final = """\
{"op":"insert","vs":6,"ve":20,"payload":"A"}
{"op":"insert","vs":8,"ve":null,"payload":"B"}
{"op":"adjust","vs":6,"vold":20,"ve":10,"payload":"A"}
{"op":"stable","vc":11}
"""
EXAMPLE_OUTPUT: Final = """\
{"vs":6,"ve":10,"payload":"A","freeze":"FF"}
{"vs":8,"ve":null,"payload":"B","freeze":"HF"}
"""
DESCRIPTION: Final = """\
Prints what a stream reconstitutes to: its events, one a line, in the order of start and payload.
"freeze" says how much the stream's stable point has fixed: FF everything, HF the start, UF
nothing. If the file has several streams each line begins with "in". A stream that breaks its
contract is named on stderr, with the line, and nothing is printed.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "tdb",
        help="print the events that a stream describes",
        description=DESCRIPTION,
        epilog=f"example: s.jsonl\n{EXAMPLE_INPUT}`lmerge tdb s.jsonl` prints\n{EXAMPLE_OUTPUT}\n"
        + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", metavar="FILE", help="JSON lines, .parquet or .arrow; - is stdin")
    command.add_argument(
        "--in", dest="stream", metavar="NAME", help="only this stream of a file that has several"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the events; ``ContractError`` or ``InputError`` when there are none to trust."""
    with Terminal() as terminal:
        progress = terminal.reading(arguments.file, None)
        streams = reconstitute(arguments.file, only=arguments.stream, progress=progress)
    if arguments.stream is not None:
        if arguments.stream not in streams:
            names = ", ".join(repr(name) for name in streams if name is not None) or "none"
            reason = f"no stream {arguments.stream!r}; named streams there: {names}"
            raise InputError(source_of(arguments.file), None, reason)
        streams = {None: streams[arguments.stream]}
    several = len(streams) > 1
    with stdout_writer() as writer:
        for name, stream in streams.items():
            _print(writer, name if several else None, stream)
    return Exit.OK


def _print(writer: JsonWriter, name: str | None, stream: Presented) -> None:
    head = "" if name is None else f'"in":{canonical(name)},'
    for event in stream.tdb.events():
        end = "null" if event.ve == INFINITY else event.ve
        freeze = stream.tdb.freeze(event).value
        writer.write_text(
            f'{{{head}"vs":{event.vs},"ve":{end},"payload":{event.payload},"freeze":"{freeze}"}}'
        )
