"""What a stream may declare about itself, and which algorithm that allows (§IV.G of the paper)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lmerge.core.policy import InsertPolicy, Policy
from lmerge.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class StreamProperties:
    """Promises about every prefix of a stream. The default promises nothing."""

    insert_only: bool = False  # no adjusts
    ordered: bool = False  # starts do not decrease
    strictly_increasing: bool = False  # starts increase
    deterministic_ties: bool = False  # equal starts come in the same order in every stream
    keyed: bool = False  # (vs, payload) is a key

    def __post_init__(self) -> None:
        if self.strictly_increasing:  # then there are no ties
            for implied in ("ordered", "deterministic_ties", "keyed"):
                object.__setattr__(self, implied, True)

    def covers(self, other: StreamProperties) -> bool:
        """Whether everything that ``other`` promises is promised here."""
        return all(getattr(self, name) or not getattr(other, name) for name in self.__slots__)

    def missing(self, other: StreamProperties) -> list[str]:
        """What ``other`` promises and this does not, in words."""
        names = [n for n in self.__slots__ if getattr(other, n) and not getattr(self, n)]
        return [name.replace("_", " ") for name in names]


class Restriction(Enum):
    """How much two physical streams may differ: each has its algorithm."""

    R0 = "R0"
    R1 = "R1"
    R2 = "R2"
    R3 = "R3"
    R4 = "R4"

    @property
    def requires(self) -> StreamProperties:
        """What a stream must promise to be merged under this restriction."""
        return _REQUIRES[self]


_REQUIRES = {
    Restriction.R0: StreamProperties(insert_only=True, strictly_increasing=True),
    Restriction.R1: StreamProperties(insert_only=True, ordered=True, deterministic_ties=True),
    Restriction.R2: StreamProperties(insert_only=True, ordered=True, keyed=True),
    Restriction.R3: StreamProperties(keyed=True),
    Restriction.R4: StreamProperties(),
}


def choose(streams: Iterable[StreamProperties], policy: Policy | None = None) -> Restriction:
    """The cheapest algorithm that merges all of ``streams`` under ``policy``.

    R0 to R2 have no index to wait in, so every policy but ``first`` needs R3 or R4.

    >>> choose([StreamProperties(insert_only=True, strictly_increasing=True)]).value
    'R0'
    """
    declared = list(streams)
    for restriction in Restriction:
        if policy is not None and not supports(restriction, policy):
            continue
        if all(each.covers(restriction.requires) for each in declared):
            return restriction
    raise ConfigurationError("no restriction fits")  # R4 fits everything


def supports(restriction: Restriction, policy: Policy) -> bool:
    """Whether the algorithm can follow the policy."""
    indexed = restriction in (Restriction.R3, Restriction.R4)
    return indexed or policy.insert == InsertPolicy.first()
