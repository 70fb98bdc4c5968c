"""What a coordinator asks of the merge servers: short calls of OperatorService, all bounded."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

import grpc

from lmerge.client.connection import Security, open_sync_channel
from lmerge.errors import ExistsError, LMergeError, NotFoundError, UnavailableError
from lmerge.server.config import address
from lmerge.v1 import operator_pb2
from lmerge.v1.common_pb2 import MergeOptions
from lmerge.v1.operator_pb2_grpc import OperatorServiceStub
from lmerge.wire.statuses import error_of

ANSWER_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 0.25
NOT_BEGUN: Final = "begins when its first replica attaches"
"""What a server says of a merge that it was told of, and that has no streams yet."""


class Calls:
    """Calls as one caller."""

    def __init__(self, security: Security | None = None, seconds: float = ANSWER_SECONDS) -> None:
        self.security = security or Security()
        self._seconds = seconds

    def call(self, server: str, method: str, request: Any) -> Any:
        """One call; the server's refusals as errors of ours."""
        with open_sync_channel(server, self.security) as channel:
            generated: Any = OperatorServiceStub  # protoc's code has no types
            try:
                return getattr(generated(channel), method)(
                    request, timeout=self._seconds, metadata=self.security.metadata()
                )
            except grpc.RpcError as failure:
                error: LMergeError = error_of(failure)
                if isinstance(error, UnavailableError):
                    reason = str(error).removeprefix("UNAVAILABLE: ")
                    raise UnavailableError(f"the server at {server}: {reason}") from None
                raise error from None

    def describe(self, server: str, merge: str) -> operator_pb2.DescribeMergeResponse | None:
        """Everything about a merge; None when it is not there yet."""
        try:
            found: operator_pb2.DescribeMergeResponse = self.call(
                server, "DescribeMerge", operator_pb2.DescribeMergeRequest(merge=merge)
            )
            return found
        except (NotFoundError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and NOT_BEGUN not in str(error):
                raise
            return None

    def create(self, server: str, merge: str, options: Mapping[str, Any]) -> None:
        """The merge is there."""
        request = operator_pb2.CreateMergeRequest(name=merge, options=MergeOptions(**options))
        try:
            self.call(server, "CreateMerge", request)
        except ExistsError:
            return

    def detach(self, server: str, merge: str, stream: str, reason: str) -> None:
        """The stream is not in the merge any more."""
        request = operator_pb2.DetachStreamRequest(merge=merge, stream=stream, reason=reason)
        try:
            self.call(server, "DetachStream", request)
        except (NotFoundError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and NOT_BEGUN not in str(error):
                raise


def listens(server: str) -> bool:
    """Whether somebody answers there."""
    host, port = address(server)
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            return True
    except OSError:
        return False
