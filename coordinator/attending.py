"""A merge server's part in a deployment: it is a member, and watches the replicas for the merge.

A :class:`lmerge.server.membership.Roll`: what ZooKeeper says of the replicas goes through
:class:`coordinator.states.Attendance`, and the server is told who is gone and who is fenced. While
ZooKeeper is away the server is told nothing, and goes on with the members it knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from coordinator.deployment import Credentials, Member
from coordinator.membership import SESSION_SECONDS, Coordination, Registration, View
from coordinator.states import Attendance
from lmerge.errors import ConfigurationError
from lmerge.server.membership import Standing, Stream

LINGER_SECONDS_MAX: Final = 86_400.0


class Attending:
    """What :func:`lmerge.server.serving.run` takes as its roll."""

    def __init__(
        self,
        hosts: str,
        deployment: str,
        name: str,
        *,
        credentials: Credentials | None = None,
        linger_seconds: float = 0.0,
        session_seconds: float = SESSION_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A member that is missing is gone after ``linger_seconds``: so long a replica that was
        killed may take to come back and go on with its own stream, instead of joining anew."""
        if not 0 <= linger_seconds <= LINGER_SECONDS_MAX:
            raise ConfigurationError(
                f"to linger for {linger_seconds:g} s is not possible: 0 to {LINGER_SECONDS_MAX:g}"
            )
        self._coordination = Coordination(
            hosts, deployment, credentials=credentials, session_seconds=session_seconds
        )
        self._member = Member("server", name, 0)
        self._member.key  # noqa: B018  # refuses a name that cannot be, now
        self._clock = clock
        self._guard = threading.Condition()
        # As long as others may need to notice that their sessions are over, and to begin anew.
        self._attendance = Attendance(settle=2 * session_seconds, linger=linger_seconds)
        self._closed = False
        self._post: Callable[[Standing], None] = lambda standing: None
        self._timer = threading.Thread(target=self._wake, name="lmerge attendance", daemon=True)

    def start(self, address: str, post: Callable[[Standing], None]) -> None:
        """Registers the server, and begins to watch."""
        self._post = post
        self._coordination.start()
        self._member = Member("server", self._member.name, 0, address=address)
        Registration(self._coordination, self._member)
        View(self._coordination, "replica", self._on_view)
        self._timer.start()

    def close(self) -> None:
        """Takes the registration back."""
        with self._guard:
            self._closed = True
            self._guard.notify()
        if self._timer.is_alive():
            self._timer.join()
        self._coordination.close()

    def _on_view(
        self, current: bool, members: Mapping[str, Member], newest: Mapping[str, int]
    ) -> None:
        with self._guard:
            if current:
                present = {key: member.incarnation for key, member in members.items()}
                self._attendance.look(present, newest, self._clock())
            else:
                self._attendance.away()
            self._tell()
            self._guard.notify()

    def _wake(self) -> None:
        """Some are gone only when time has passed."""
        with self._guard:
            while not self._closed:
                now = self._clock()
                at = self._attendance.next_at(now)
                self._guard.wait(None if at is None else max(0.0, at - now))
                if at is not None and self._clock() >= at and not self._closed:
                    self._tell()

    def _tell(self) -> None:
        gone = self._attendance.gone(self._clock())
        newest = self._attendance.fenced()
        self._post(Standing(_by_stream(gone), _by_stream(newest)))


def _by_stream(numbers: Mapping[str, int]) -> dict[Stream, int]:
    found = {}
    for key, number in numbers.items():
        merge, colon, stream = key.partition(":")
        if colon:
            found[merge, stream] = number
    return found
