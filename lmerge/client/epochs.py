"""What a writer holds until the server has it: the epochs that are not acknowledged yet.

Invariants: numbers ascend without holes; only the last epoch may be open; ``held_bytes`` is the
sum of what the epochs hold. Freed when an epoch is acknowledged. Nothing here waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmerge.errors import EpochOrderError, LMergeError, RetiredError
from lmerge.v1 import replica_pb2


class Acknowledgement(NamedTuple):
    """An epoch is durable and merged."""

    epoch: int
    state: str  # of the stream: joining, joined or quarantined
    reason: str = ""  # why it is quarantined
    repeated: bool = False  # it had been committed before: nothing was sent


@dataclass(slots=True, eq=False)
class Epoch:
    """One epoch's messages in the order of sending; the last is the commit, once closed."""

    number: int
    messages: list[Any] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    done: asyncio.Future[Acknowledgement] | None = None  # there once it is closed


class Unacknowledged:
    """The epochs that may have to be sent again."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.acknowledged: int | None = None  # the last epoch that the server is known to have
        self._epochs: dict[int, Epoch] = {}
        self._next: int | None = None  # the number of the next epoch; None until it is known

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def committed(self) -> int:
        """How many are closed, and wait for their acknowledgement."""
        # Only the last may be open.
        return len(self._epochs) - (self.next_number in self._epochs)

    @property
    def next_number(self) -> int:
        """The epoch that is being written, or would be."""
        return 0 if self._next is None else self._next

    @property
    def is_numbered(self) -> bool:
        """Whether the next number is fixed; the first epoch of a lineage may have any."""
        return self._next is not None

    def get(self, number: int) -> Epoch | None:
        """The epoch, if it is held."""
        return self._epochs.get(number)

    @property
    def first(self) -> int:
        """Where sending begins: the oldest epoch held, or the next."""
        return next(iter(self._epochs), self.next_number)

    def open(self, number: int) -> Epoch:
        """The open epoch, which has this number; EpochOrderError when it cannot."""
        if self._next is None:
            self._next = number
        if number != self._next:
            raise EpochOrderError(f"epoch {number} cannot be written: the next is {self._next}")
        return self._epochs.setdefault(number, Epoch(number))

    def add(self, epoch: Epoch, message: Any, size: int, rows: int) -> None:
        """A message of the open epoch."""
        epoch.messages.append(message)
        epoch.rows += rows
        epoch.size += size
        self.held_bytes += size

    def close(self, epoch: Epoch, commit: Any) -> asyncio.Future[Acknowledgement]:
        """The epoch is complete."""
        self.add(epoch, commit, commit.ByteSize(), 0)
        self._next = epoch.number + 1
        epoch.done = asyncio.get_running_loop().create_future()
        epoch.done.add_done_callback(_retrieved)
        return epoch.done

    def drop_open(self) -> None:
        """Forget what was written to the open epoch; the server is told to as well."""
        epoch = self._epochs.get(self.next_number)
        if epoch is not None:
            self.held_bytes -= epoch.size
            epoch.messages, epoch.rows, epoch.size = [], 0, 0
            abort = replica_pb2.Abort(epoch=epoch.number)
            self.add(epoch, replica_pb2.AttachRequest(abort=abort), abort.ByteSize(), 0)

    def settle(self, upto: int, state: str, reason: str) -> None:
        """Every epoch up to this one is durable and merged."""
        if self.acknowledged is None or upto > self.acknowledged:
            self.acknowledged = upto
        while self._epochs:
            number, epoch = next(iter(self._epochs.items()))
            if number > upto or epoch.done is None:
                return
            del self._epochs[number]
            self.held_bytes -= epoch.size
            if epoch.done is not None and not epoch.done.done():
                epoch.done.set_result(Acknowledgement(number, state, reason))

    def resume(self, next_epoch: int | None, generation: str, state: str, *, first: bool) -> None:
        """The server says where it is: what it has is acknowledged, the rest is sent again."""
        if first:
            if next_epoch is not None:
                self._next, self.acknowledged = next_epoch, next_epoch - 1
            return
        known = self.acknowledged
        if known is not None and (next_epoch is None or next_epoch <= known):
            has = "none" if next_epoch is None else f"only those before {next_epoch}"
            raise RetiredError(
                f"the server has lost epochs of this stream: {known} was acknowledged, and"
                f" generation {generation} of the merge has {has}; attach with another lineage,"
                " or from a checkpoint that goes back far enough"
            )
        if next_epoch is None:
            return
        self.settle(next_epoch - 1, state, "")
        if next_epoch > self.next_number or (self._epochs and next_epoch < self.first):
            raise EpochOrderError(
                f"the server goes on with epoch {next_epoch}, and this writer with {self.first}:"
                " somebody else writes to the same lineage"
            )

    def fail(self, error: LMergeError) -> None:
        """Nothing more will be acknowledged."""
        for epoch in self._epochs.values():
            if epoch.done is not None and not epoch.done.done():
                epoch.done.set_exception(error)


def _retrieved(future: asyncio.Future[Acknowledgement]) -> None:
    """Whoever does not wait for a commit hears of the failure at the next call."""
    if not future.cancelled():
        future.exception()
