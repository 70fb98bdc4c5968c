"""The exit statuses: which there are, and what each tells a script.

Every command uses the same ones, so that a script need not know which command gave it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """What a command ends with."""

    OK = 0
    CONTRADICTION = 1
    BAD_INPUT = 2
    BROKEN_PROMISE = 3
    NOT_YET_EQUAL = 4
    DIED = 5
    FENCED = 6
    DETACHED = 7
    ROLLED_BACK = 8
    DEFECT = 70  # sysexits' EX_SOFTWARE: 1, Python's own, would read as a contradiction
    INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
    BROKEN_PIPE = 141  # 128 + SIGPIPE, as of any program whose reader went away


EXIT_HELP: Final = """\
exit status:
  0  success (check: the streams are equivalent)
  1  check: the streams contradict each other
  2  bad input (the file, the line and the reason are on stderr), or a wrong command line
  3  a stream broke its promises (merge: only with --strict)
  4  check: not equal yet, but the streams can still become so
  5  replica: the query died (the reason is on stderr)
  6  replica: it is fenced, as a newer incarnation of it is there
  7  replica: its stream was detached; it can only begin anew, with another checkpoint
  8  cutover: it was rolled back (the reason is on stderr)
"""
