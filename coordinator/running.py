"""A deployment as it runs on this machine: one coordinator leads, and keeps it as its spec says."""

from __future__ import annotations

from typing import Protocol

from coordinator.deployment import Term


class Duty(Protocol):
    """Something else that whoever leads does: a cutover.

    Called about once a second while the coordinator leads, by the thread that also looks after the
    processes: it does one step and returns. UnavailableError and ConflictError are logged, and it
    is called again; what it changes, it changes under the term.
    """

    def tick(self, term: Term) -> None:
        """Does what is to be done now."""
