"""``lmerge``: parses the command line, runs one command, and turns errors into exit statuses.

Callers may rely on this: :func:`main` returns a status and never raises for what a user, a file
or a reader of the output does; a traceback is a defect of lmerge. It uses ``sys.stdin``,
``sys.stdout`` and ``sys.stderr`` as they are when it is called.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata

from lmerge.cli import (
    attach,
    bench,
    check,
    checkpoint,
    cutover,
    demo,
    down,
    explain_plan,
    gen,
    merge,
    operate,
    ps,
    replica,
    scale,
    server,
    status,
    subscribe,
    tdb,
    top,
    up,
    zk,
)
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.reconstitution import ContractError
from lmerge.cli.terminal import Terminal
from lmerge.errors import InvariantError, LMergeError

DESCRIPTION = """\
Merges physically different, logically equivalent streams into one correct stream.

A stream is a file of elements, one a line:
  {"in":"a","op":"insert","vs":6,"ve":20,"payload":{"k":1}}              an event [6, 20)
  {"in":"a","op":"adjust","vs":6,"vold":20,"ve":30,"payload":{"k":1}}    its end moves
  {"in":"a","op":"stable","vc":11}                  what is before 11 stays as it is
"""

EPILOG = """\
example:
  lmerge gen --elements 1000 -o in.jsonl       three streams of the same events
  lmerge check in.jsonl                        they are equivalent
  lmerge merge in.jsonl -o out.jsonl           one stream of the three
  lmerge tdb out.jsonl                         the events it describes
  lmerge COMMAND --help                        more of each

"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    result = argparse.ArgumentParser(
        prog="lmerge",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"lmerge {_version()}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        merge, tdb, check, gen, demo, server, attach, subscribe, replica, explain_plan, status, top,
        operate, zk, up, ps, scale, down, cutover, checkpoint, bench,
    ):  # fmt: skip
        command.add_to(commands)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that ``argv`` (by default the process's) asks for; returns its status."""
    try:
        try:
            arguments = parser().parse_args(argv)
            status = int(arguments.run(arguments))
        except SystemExit as stop:  # argparse has said what it had to
            status = stop.code if isinstance(stop.code, int) else Exit.BAD_INPUT
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        _forget_stdout()
        return Exit.BROKEN_PIPE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except ContractError as error:
        return _failed(str(error), Exit.BROKEN_PROMISE)
    except InvariantError:
        return _defect()
    except LMergeError as error:
        return _failed(str(error), Exit.BAD_INPUT)
    except MemoryError:
        return _failed("there is not enough memory for this", Exit.BAD_INPUT)
    except OSError as error:
        return _failed(error.strerror or str(error), Exit.BAD_INPUT)
    except Exception:
        return _defect()


def _failed(message: str, status: Exit) -> Exit:
    Terminal().say(message)
    return status


def _defect() -> Exit:
    traceback.print_exc()
    return _failed("this is a defect of lmerge; please report it with the lines above", Exit.DEFECT)


def _forget_stdout() -> None:
    """Keeps the interpreter from complaining, when it ends, of what it cannot flush."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass  # a stand-in, or closed: nothing to keep quiet


def _version() -> str:
    try:
        return metadata.version("lmerge")
    except metadata.PackageNotFoundError:
        return "(not installed)"
