"""The command line's way to a server: the options, and calls that fail with one clear line.

grpc is imported when a call is made: the commands that work on files need not wait for it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from lmerge.errors import ConfigurationError, InvariantError, LMergeError, UnavailableError

if TYPE_CHECKING:
    import grpc

    from lmerge.client.connection import Security

SERVER: Final = "127.0.0.1:7070"
TIMEOUT_SECONDS: Final = 10.0
TIMEOUT_SECONDS_MAX: Final = 3600.0
TOKEN_VARIABLE: Final = "LMERGE_TOKEN"  # noqa: S105  # where a token is, not one
TOKEN_FILE_BYTES_MAX: Final = 4_096

Call = Callable[[str, Any], Any]
"""The name of a method of OperatorService and its request, to the response."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where the server is, and who calls."""
    group = parser.add_argument_group("connection")
    add = group.add_argument
    add("--server", metavar="HOST:PORT", default=SERVER, help=f"the server (default: {SERVER})")
    add("--timeout", metavar="SECONDS", type=_seconds, default=TIMEOUT_SECONDS,
        help=f"for each answer (default: {TIMEOUT_SECONDS:g})")  # fmt: skip
    add_caller_to(group)


def add_caller_to(parser: argparse._ActionsContainer) -> None:
    """Adds the options that say who calls."""
    add = parser.add_argument
    add("--token-file", metavar="FILE",
        help=f"holds the token to call with (default: ${TOKEN_VARIABLE})")  # fmt: skip
    add("--tls", action="store_true", help="use TLS, and trust the system's authorities")
    add("--tls-ca", metavar="FILE", help="use TLS, and trust these authorities (PEM)")
    add("--tls-cert", metavar="FILE", help="the caller's own certificate (PEM)")
    add("--tls-key", metavar="FILE", help="its key (PEM)")


def security(arguments: argparse.Namespace) -> Security:
    """Who calls, as the options and the environment say."""
    from lmerge.client.connection import Security

    return Security(
        root_file=arguments.tls_ca,
        certificate_file=arguments.tls_cert,
        key_file=arguments.tls_key,
        token=_token(arguments.token_file),
        tls=arguments.tls,
    )


def channel(arguments: argparse.Namespace) -> grpc.Channel:
    """A blocking channel; the caller closes it. The token goes with the calls, not with it."""
    from lmerge.client.connection import open_sync_channel

    return open_sync_channel(arguments.server, security(arguments))


@contextmanager
def operator(arguments: argparse.Namespace) -> Iterator[Call]:
    """Calls of OperatorService, whose failures are LMergeErrors."""
    import grpc

    from lmerge.client.connection import open_sync_channel
    from lmerge.v1.operator_pb2_grpc import OperatorServiceStub

    caller = security(arguments)
    with open_sync_channel(arguments.server, caller) as opened:
        generated: Any = OperatorServiceStub  # protoc's code has no types
        stub = generated(opened)

        def call(method: str, request: Any) -> Any:
            try:
                return getattr(stub, method)(
                    request, timeout=arguments.timeout, metadata=caller.metadata()
                )
            except grpc.RpcError as failure:
                raise _error(arguments, failure) from None

        yield call


def _error(arguments: argparse.Namespace, failure: grpc.RpcError) -> LMergeError:
    """The server's own words, or, when there was no server, that."""
    import grpc

    from lmerge.wire.statuses import error_of

    error = error_of(failure)
    if isinstance(error, InvariantError):
        # A defect, and the server's: a traceback of this process would show nothing of it.
        return UnavailableError(f"the server at {arguments.server} failed: {error}")
    if not isinstance(error, UnavailableError):
        return error
    if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = f"there was no answer within {arguments.timeout:g} s"
    else:
        reason = str(error).removeprefix("UNAVAILABLE: ")
    return UnavailableError(f"the server at {arguments.server} cannot be reached: {reason}")


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        with open(file, encoding="utf-8") as opened:
            token = opened.read(TOKEN_FILE_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigurationError(f"--token-file: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"--token-file: {file} holds no text") from None
    if not token or len(token) > TOKEN_FILE_BYTES_MAX:
        raise ConfigurationError(
            f"--token-file: {file} holds no token: one line of up to {TOKEN_FILE_BYTES_MAX} bytes"
        )
    return token


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        raise ValueError(text)
    return seconds
