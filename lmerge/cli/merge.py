"""``lmerge merge``: a file of arrivals in, one stream out. The options and the frame of a run."""

from __future__ import annotations

import argparse
import os
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.output import writing
from lmerge.cli.terminal import Terminal
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError
from lmerge.files import MAX_ROWS, kind, read_rounds, read_schema

if TYPE_CHECKING:
    from lmerge.cli.job import Job

EXAMPLE_INPUT: Final = """\
{"in":"a","op":"insert","vs":6,"ve":10,"payload":"A"}
{"in":"b","op":"insert","vs":6,"ve":12,"payload":"A"}
{"in":"b","op":"insert","vs":7,"ve":14,"payload":"B"}
{"in":"a","op":"adjust","vs":6,"vold":10,"ve":15,"payload":"A"}
{"in":"b","op":"adjust","vs":6,"vold":12,"ve":15,"payload":"A"}
{"in":"b","op":"stable","vc":16}
"""
EXAMPLE_OUTPUT: Final = """\
{"at":1,"op":"insert","vs":6,"ve":10,"payload":"A"}
{"at":3,"op":"insert","vs":7,"ve":14,"payload":"B"}
{"at":6,"op":"adjust","vs":6,"vold":10,"ve":15,"payload":"A"}
{"at":6,"op":"stable","vc":16}
"""
DESCRIPTION: Final = """\
Merges the streams of a file into one. Every line names its stream with "in"; a stream begins
with its first element or with {"in":"c","op":"attach","from":40}, where "from" says that it is
right only for what ends at 40 or later, and ends with {"in":"c","op":"detach"}. A stream that
breaks its promises is quarantined with a line on stderr, and the others go on.
"""


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    command = commands.add_parser(
        "merge",
        help="merge the streams of a file into one",
        description=DESCRIPTION,
        epilog=f"example: in.jsonl\n{EXAMPLE_INPUT}`lmerge merge --trace in.jsonl` prints\n"
        f"{EXAMPLE_OUTPUT}\n" + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("file", metavar="FILE", help="JSON lines, .parquet or .arrow; - is stdin")
    add("-o", dest="output", metavar="FILE", help="where to, by extension (default: stdout)")
    add("--restriction", choices=[r.value for r in Restriction], default="R3",
        help="how much the streams may differ: R0 (same inserts in strict order) to R4 "
        "(anything, duplicates too) (default: R3)")  # fmt: skip
    add("--insert-policy", metavar="POLICY", default="first",
        help="when an event is output: first (a stream has it), leader (the leading stream has "
        "it), quorum(F) (a share F of the streams has it), half_frozen (its start is fixed), "
        "final (its end is fixed) (default: first)")  # fmt: skip
    add("--adjust-policy", choices=[p.value for p in AdjustPolicy], default="lazy",
        help="when a changed end is output: lazy (a stable demands it) or eager "
        "(default: lazy)")  # fmt: skip
    add("--stable-lag", type=int, default=0, metavar="N",
        help="how far the output's stable point stays behind the largest (default: 0)")  # fmt: skip
    add("--divergence", choices=[p.value for p in DivergencePolicy], default="report",
        help="what to do with a stream that computed something else (default: report)")  # fmt: skip
    add("--feedback", action="store_true",
        help='also write {"to":"b","op":"feedback","before":t}: nothing of b that ends before t '
        "is needed any more")  # fmt: skip
    add("--trace", action="store_true",
        help='take each arrival alone, and add "at": the number of the line '
        "that caused it")  # fmt: skip
    add("--strict", action="store_true", help="stop with status 3 when a promise is broken")
    add("--allow-gaps", action="store_true",
        help="when the streams left cover only later times, skip to there and write "
        '{"op":"gap","from":..,"to":..}')  # fmt: skip
    add("--stats", action="store_true", help="at the end, statistics on stderr")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Merges; the status is that of the input."""
    path, output = arguments.file, arguments.output
    policy = Policy(
        InsertPolicy.parse(arguments.insert_policy),
        AdjustPolicy(arguments.adjust_policy),
        arguments.stable_lag,
        DivergencePolicy(arguments.divergence),
    )
    _refuse_impossible(arguments)
    schema = read_schema(path)
    # Imported here: it brings the compiler along, for which nothing else need wait.
    from lmerge.cli.job import Job, StrictError
    from lmerge.core.merge import Merge

    merge = Merge(schema, Restriction(arguments.restriction), policy, feedback=arguments.feedback)
    with Terminal() as terminal:
        max_rows = 1 if arguments.trace else MAX_ROWS
        progress = terminal.reading(path, output)
        rounds = read_rounds(path, max_rows=max_rows, progress=progress)
        first = next(rounds, None)  # input that cannot be read at all leaves the output alone
        started = time.monotonic()
        with writing(output, merge.schema, trace=arguments.trace) as writer:
            job = Job(arguments, merge, writer, terminal)
            try:
                if first is not None:
                    job.take_all(chain([first], rounds))
            except StrictError:
                return Exit.BROKEN_PROMISE
            finally:
                if arguments.stats:
                    _print_statistics(job, time.monotonic() - started, terminal)
    return Exit.OK


def _refuse_impossible(arguments: argparse.Namespace) -> None:
    output = arguments.output
    if output is None:
        return
    if kind(output) != "json":
        for flag, wanted in (
            ("--feedback", arguments.feedback),
            ("--allow-gaps", arguments.allow_gaps),
        ):
            if wanted:
                raise ConfigurationError(
                    f"{flag} writes lines that a table has no rows for: "
                    f"write {output} as JSON lines, or to stdout"
                )
    try:
        same = os.path.samefile(arguments.file, output) and os.path.isfile(output)
    except OSError:
        same = False
    if same:
        raise ConfigurationError(f"{output} is the input: writing it would destroy what is read")


def _print_statistics(job: Job, seconds: float, terminal: Terminal) -> None:
    from lmerge.cli.statistics import lines

    for line in lines(job.merge.statistics(), job.arrivals, seconds):
        terminal.say(line)
