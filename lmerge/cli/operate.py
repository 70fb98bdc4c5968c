"""The commands that change something on a server: one call of OperatorService each.

Callers may rely on this: a command that ends with status 0 has printed what was done, and the
server has logged it; every other status means that the server refused, or could not be asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from lmerge.cli import connection
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import clean
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy
from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError

Request = Callable[[argparse.Namespace], Any]
Said = Callable[[argparse.Namespace, Any], str]
REASON: Final = "an operator's decision"
STABLE_LAG_MAX: Final = 2**62 - 1


def add_to(commands: Any) -> None:
    """Adds the commands to the command line."""
    _detach(commands)
    _quarantine(commands)
    _release(commands)
    _allow_gap(commands)
    _snapshot(commands)
    _create(commands)
    _delete(commands)
    _drop_subscription(commands)


def _command(
    commands: Any, name: str, text: str, method: str, request: Request, said: Said
) -> argparse.ArgumentParser:
    """A command that makes one call for one merge."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--merge", metavar="NAME", required=True, help="the merge")

    def run(arguments: argparse.Namespace) -> int:
        asked = request(arguments)  # before anything is opened: it may be impossible
        with connection.operator(arguments) as call:
            answer = call(method, asked)
        print(clean(said(arguments, answer)))
        return Exit.OK

    connection.add_to(command)
    command.set_defaults(run=run)
    return command


def _stream(command: argparse.ArgumentParser, *, reason: bool) -> None:
    command.add_argument("--stream", metavar="NAME", required=True, help="the stream")
    if reason:
        command.add_argument(
            "--reason", metavar="TEXT", default=REASON, help=f"why (default: {REASON})"
        )


def _detach(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import DetachStreamRequest

        return DetachStreamRequest(
            merge=arguments.merge,
            stream=arguments.stream,
            reason=arguments.reason,
            incarnation=arguments.incarnation,
        )

    command = _command(
        commands, "detach", "take a stream out of a merge; its replica is told", "DetachStream",
        request, lambda a, _: f"stream {a.stream!r} is detached from merge {a.merge!r}",
    )  # fmt: skip
    _stream(command, reason=True)
    command.add_argument(
        "--incarnation", metavar="N", type=_number(1, 2**64 - 1), default=0,
        help="only when it is this one; a newer one stays (default: whichever)",
    )  # fmt: skip


def _quarantine(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import QuarantineStreamRequest

        return QuarantineStreamRequest(
            merge=arguments.merge, stream=arguments.stream, reason=arguments.reason
        )

    command = _command(
        commands, "quarantine", "ignore a stream until it is released", "QuarantineStream",
        request, lambda a, _: f"stream {a.stream!r} of merge {a.merge!r} is quarantined",
    )  # fmt: skip
    _stream(command, reason=True)


def _release(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import ReleaseStreamRequest

        return ReleaseStreamRequest(merge=arguments.merge, stream=arguments.stream)

    command = _command(
        commands, "release", "let a quarantined stream attach again, as a new one",
        "ReleaseStream", request,
        lambda a, _: f"stream {a.stream!r} of merge {a.merge!r} is released: it may attach again",
    )  # fmt: skip
    _stream(command, reason=False)


def _allow_gap(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import AllowGapRequest

        return AllowGapRequest(merge=arguments.merge)

    _command(
        commands, "allow-gap", "end a stall: the output goes on after a gap, and says so",
        "AllowGap", request, lambda a, _: f"merge {a.merge!r} goes on after a gap",
    )  # fmt: skip


def _snapshot(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import TakeSnapshotRequest

        return TakeSnapshotRequest(merge=arguments.merge)

    _command(
        commands, "snapshot", "write a snapshot now, which shortens the server's next start",
        "TakeSnapshot", request,
        lambda a, r: f"merge {a.merge!r}: a snapshot of {r.bytes:,} bytes covers {r.arrival:,}"
        " arrivals",
    )  # fmt: skip


def _create(commands: Any) -> None:
    command = _command(
        commands, "create", "make a merge", "CreateMerge", _create_request,
        lambda a, _: f"merge {a.merge!r} is there",
    )  # fmt: skip
    add = command.add_argument
    add("--restriction", choices=[each.value for each in Restriction], default="",
        help="R0 to R4 (default: what the first stream promises decides)")  # fmt: skip
    add("--insert-policy", metavar="POLICY", default="",
        help="first, leader, quorum(F), half_frozen or final (default: the server's)")  # fmt: skip
    add("--adjust-policy", choices=[each.value for each in AdjustPolicy], default="",
        help="(default: the server's)")  # fmt: skip
    add("--stable-lag", metavar="N", type=_number(0, STABLE_LAG_MAX), default=0,
        help="how far the output's stable point stays behind (default: 0)")  # fmt: skip
    add("--divergence", choices=[each.value for each in DivergencePolicy], default="",
        help="(default: the server's)")  # fmt: skip
    add("--column", metavar="NAME=TYPE", action="append", default=[],
        help="a column of the payload, such as at='timestamp[us, tz=UTC]'; once for each "
        "(default: those of the first stream)")  # fmt: skip


def _create_request(arguments: argparse.Namespace) -> Any:
    from lmerge.v1.common_pb2 import MergeOptions
    from lmerge.v1.operator_pb2 import CreateMergeRequest

    if arguments.insert_policy:
        InsertPolicy.parse(arguments.insert_policy)
    options = MergeOptions(
        restriction=arguments.restriction,
        insert_policy=arguments.insert_policy,
        adjust_policy=arguments.adjust_policy,
        stable_lag=arguments.stable_lag,
        divergence=arguments.divergence,
    )
    schema = _schema(arguments.column)
    return CreateMergeRequest(name=arguments.merge, options=options, schema=schema)


def _schema(columns: Sequence[str]) -> bytes:
    """The payload's columns as the wire wants them; nothing when none were named."""
    if not columns:
        return b""
    # Imported here: Arrow takes longer than the rest of the command.
    from lmerge.server.config import arrow_schema
    from lmerge.wire.rows import schema_bytes

    named: dict[str, object] = {}
    for column in columns:
        name, equals, kind = column.partition("=")
        if not equals:
            raise ConfigurationError(f"--column: {column!r} is not NAME=TYPE")
        if name in named:
            raise ConfigurationError(f"--column: there are two of the name {name!r}")
        named[name] = kind
    return schema_bytes(arrow_schema(named))


def _delete(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import DeleteMergeRequest

        if not arguments.yes:
            _confirm(arguments.merge)
        return DeleteMergeRequest(name=arguments.merge)

    command = _command(
        commands, "delete", "delete a merge, with everything that is kept of it", "DeleteMerge",
        request, lambda a, _: f"merge {a.merge!r} is deleted",
    )  # fmt: skip
    command.add_argument("--yes", action="store_true", help="do not ask")


def _confirm(merge: str) -> None:
    """Asks a person, and refuses without one: what is deleted cannot be had back."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"deleting merge {merge!r} cannot be undone, and nobody is here to ask: add --yes"
        )
    print(f"Delete merge {merge!r} and everything kept of it? Type its name: ", end="",
          file=sys.stderr, flush=True)  # fmt: skip
    if sys.stdin.readline().strip() != merge:
        raise ConfigurationError("that is not its name: nothing was deleted")


def _drop_subscription(commands: Any) -> None:
    def request(arguments: argparse.Namespace) -> Any:
        from lmerge.v1.operator_pb2 import DropSubscriptionRequest

        return DropSubscriptionRequest(merge=arguments.merge, subscription=arguments.subscription)

    command = _command(
        commands, "drop-subscription", "forget a durable subscription: it holds nothing back",
        "DropSubscription", request,
        lambda a, _: f"subscription {a.subscription!r} of merge {a.merge!r} is dropped",
    )  # fmt: skip
    command.add_argument("--subscription", metavar="NAME", required=True, help="the subscription")


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number
