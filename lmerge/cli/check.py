"""``lmerge check``: are streams equivalent, can they still become so, or do they contradict?

Callers may rely on this: "contradictory" means that no continuation of the streams makes them
equal; "not yet equal" that there is one. A stream that attached ``from`` a time is compared by
the events that end then or later, which is all that it promises.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.reconstitution import Presented, reconstitute, source_of
from lmerge.cli.terminal import Terminal
from lmerge.elements import Insert
from lmerge.errors import ConfigurationError
from lmerge.files import stdout_writer
from lmerge.tdb import Difference, Tdb, compatible, equivalent
from lmerge.times import BEGINNING, show

PAYLOAD_SHOWN_MAX: Final = 120

EXAMPLE_INPUT: Final = """\
{"in":"a","op":"insert","vs":6,"ve":20,"payload":"A"}
{"in":"b","op":"insert","vs":6,"ve":30,"payload":"A"}
{"in":"a","op":"stable","vc":25}
{"in":"b","op":"stable","vc":11}
"""
EXAMPLE_OUTPUT: Final = """\
not equal yet, but they can still become so: payload "A" from 6: a has [6, 20), b has [6, 30); \
their events differ
"""
DESCRIPTION: Final = """\
Compares all streams in all files (a file whose lines have "in" contains several), and says in
one sentence whether they are equivalent, or can still become so, or contradict each other, with
the first difference. A single stream is only checked for keeping its contract.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "check",
        help="say whether streams are equivalent, and show the first difference",
        description=DESCRIPTION,
        epilog=f"example: s.jsonl\n{EXAMPLE_INPUT}`lmerge check s.jsonl` ends with status 4 and "
        f"prints\n{EXAMPLE_OUTPUT}\n" + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "files", metavar="FILE", nargs="+", help="JSON lines, .parquet or .arrow; - is stdin"
    )
    command.add_argument(
        "--keyed",
        action="store_true",
        help="a second event with the same start and payload breaks the contract (as in R2, R3)",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the verdict, and returns it as a status."""
    if arguments.files.count("-") > 1:
        raise ConfigurationError("stdin (-) can be read once only")
    status, sentence = _verdict(_read(arguments.files, arguments.keyed))
    with stdout_writer() as writer:  # not print: stdout may have no character for a payload
        writer.write_text(sentence)
    return status


def _verdict(streams: list[Presented]) -> tuple[Exit, str]:
    tdb = streams[0].tdb
    if len(streams) == 1:
        return Exit.OK, (
            f"one stream only, {streams[0].name}, which keeps its contract: {len(tdb)} event(s), "
            f"stable to {show(tdb.stable_point)}"
        )
    for one, other in _pairs(streams):
        difference = compatible(*_comparable(one, other)) if _is_due(one, other) else None
        if difference is not None:
            return Exit.CONTRADICTION, f"contradictory: {_shortened(difference)}"
    for one, other in _pairs(streams):
        difference = equivalent(*_comparable(one, other))
        if difference is not None:
            return Exit.NOT_YET_EQUAL, (
                f"not equal yet, but they can still become so: {_shortened(difference)}"
            )
    return Exit.OK, f"equivalent: {len(streams)} streams, {len(tdb)} event(s)"


def _read(paths: list[str], keyed: bool) -> list[Presented]:
    """All streams, with names that tell them apart."""
    result = []
    for path in paths:
        with Terminal() as terminal:
            found = reconstitute(path, keyed=keyed, progress=terminal.reading(path, None))
        if not found:  # nothing yet: the shortest prefix of any stream
            found = {None: Presented(source_of(path), Tdb(keyed, source_of(path)))}
        for name, stream in found.items():
            if name is not None and len(paths) > 1:
                stream.name = stream.tdb.name = f"{source_of(path)}:{name}"
            result.append(stream)
    return result


def _pairs(streams: list[Presented]) -> Iterator[tuple[Presented, Presented]]:
    """Pairs enough to compare all with all."""
    if any(stream.since > BEGINNING for stream in streams):
        return combinations(streams, 2)
    # Two streams that agree, as far as each is stable, with one that is stable further agree with
    # each other. Equality needs no order at all.
    furthest = max(streams, key=lambda stream: stream.tdb.stable_point)
    place = streams.index(furthest)
    return (
        (stream, furthest) if i < place else (furthest, stream)
        for i, stream in enumerate(streams)
        if i != place
    )


def _comparable(one: Presented, other: Presented) -> tuple[Tdb, Tdb]:
    """What both streams promise."""
    since = max(one.since, other.since)
    if since == BEGINNING:
        return one.tdb, other.tdb
    return _since(one.tdb, since), _since(other.tdb, since)


def _is_due(one: Presented, other: Presented) -> bool:
    """Whether both are stable to where their common promise begins: before, ends may leave it."""
    return min(one.tdb.stable_point, other.tdb.stable_point) >= max(one.since, other.since)


def _since(tdb: Tdb, since: int) -> Tdb:
    """The events of ``tdb`` that end at ``since`` or later, at the same stable point."""
    result = Tdb(name=tdb.name)
    result.apply_all(Insert(*event) for event in tdb.events() if event.ve >= since)
    result.stable_point = tdb.stable_point
    return result


def _shortened(difference: Difference) -> Difference:
    text = str(difference.payload)
    if len(text) > PAYLOAD_SHOWN_MAX:
        text = text[:PAYLOAD_SHOWN_MAX] + "…"
    return difference._replace(payload=text)
