"""A replica's part in a deployment: it is a member, with the incarnation that it attaches with.

A :class:`replicas.runner.Membership`. While ZooKeeper is away the replica goes on as it is. One
that starts without it attaches all the same, with an incarnation that the server gives, and becomes
a member with that one when ZooKeeper is back.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from typing import Final

from coordinator.deployment import Credentials, Member
from coordinator.membership import SESSION_SECONDS, Coordination, Registration
from coordinator.states import Registered
from lmerge.errors import UnavailableError

WAIT_SECONDS: Final = 10.0
"""For ZooKeeper, before a replica attaches without it. Its session begins when Spark does, so that
as a rule nothing is waited for at all."""


class Enrolment:
    """One replica's."""

    def __init__(
        self,
        hosts: str,
        deployment: str,
        merge: str,
        stream: str,
        *,
        plan: str = "",
        checkpoint: str = "",
        credentials: Credentials | None = None,
        wait_seconds: float = WAIT_SECONDS,
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        self._coordination = Coordination(
            hosts, deployment, credentials=credentials, session_seconds=session_seconds
        )
        self._member = Member(
            "replica", stream, 0, merge=merge, plan=plan,
            address=socket.gethostname(), details={"pid": os.getpid(), "checkpoint": checkpoint},
        )  # fmt: skip
        self._member.key  # noqa: B018  # refuses a name that cannot be, now
        self._wait_seconds = wait_seconds
        self._registration: Registration | None = None
        self._fenced = threading.Event()

    @property
    def fenced(self) -> bool:
        """Whether a newer incarnation is there."""
        return self._fenced.is_set()

    def start(self) -> None:
        """Begins to look for ZooKeeper."""
        self._coordination.start()

    def join(self, lineage: str) -> int:
        """Registers; the incarnation, or 0 when ZooKeeper does not answer in time."""
        self._member = replace(self._member, lineage=lineage)
        try:
            self._coordination.connect(self._wait_seconds)
            self._registration = self._register()
            self._member = self._registration.wait(self._wait_seconds)
        except UnavailableError:
            if self._registration is not None:
                # It must not take an incarnation later, which would fence off the server's.
                self._registration.close()
                self._registration = None
            return 0
        return self._member.incarnation

    def attached(self, incarnation: int) -> None:
        """The server has taken the stream: the others may know."""
        details = {**self._member.details, "attached": True}
        if self._registration is not None:
            self._registration.update(details=details)
            return
        self._member = replace(self._member, incarnation=incarnation, details=details)
        self._registration = self._register()

    def close(self) -> None:
        """It is no member any more."""
        self._coordination.close()

    def _register(self) -> Registration:
        return Registration(self._coordination, self._member, self._on_state)

    def _on_state(self, state: Registered) -> None:
        if state is Registered.FENCED:
            self._fenced.set()
