"""What a deployment keeps in ZooKeeper, and the only ways to change it.

    /lmerge/<deployment>/
        servers/<name>  replicas/<merge>:<stream>  coordinators/<name>    members (ephemeral, JSON)
        incarnations/<kind>s/<key>                   the newest incarnation taken (persistent)
        term, leader                                 of the coordinators
        spec, cutover, checkpoints/…                 values with versions (JSON)

Callers may rely on this: an incarnation is given to one taker only, and is greater than those
before it, also when ZooKeeper's data was lost in between (the clock is its lower bound); a value is
replaced only by who has read its present version, and with a term only by that term's leader.
With credentials nobody without them reads or changes anything of the deployment. Every call is
bounded by ``ANSWER_SECONDS``, and raises UnavailableError when ZooKeeper does not answer by then;
whether a change was made is not known then. Calls block: not for callbacks, nor for event loops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_digest_acl

from lmerge.errors import (
    ConfigurationError,
    LMergeError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from lmerge.server.config import check_name

ROOT: Final = "/lmerge"
ANSWER_SECONDS: Final = 10.0
VALUE_BYTES_MAX: Final = 512 << 10  # ZooKeeper takes a MiB for a whole request
CONFLICTS_MAX: Final = 100  # of takers of one incarnation

Kind = Literal["server", "replica", "coordinator"]
KINDS: Final[tuple[Kind, ...]] = ("server", "replica", "coordinator")
Watch = Callable[[Any], None]


class ConflictError(LMergeError):
    """Somebody else has changed it: read again, and decide again."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who may read and change a deployment: a name and a password for ZooKeeper's digests."""

    name: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name or not self.password:
            raise ConfigurationError("credentials are a name without ':' and a password")


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part. For a replica, ``name`` is its stream's in ``merge``."""

    kind: Kind
    name: str
    incarnation: int
    instance: str = ""  # a name that no other process has
    merge: str = ""
    plan: str = ""
    address: str = ""
    lineage: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What its node is called."""
        return key_of(self.kind, self.name, self.merge)

    def encoded(self) -> bytes:
        """As it is kept."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Member | None:
        """The inverse; None when it is not what a member wrote. Fields of the future are let be."""
        try:
            found = json.loads(data)
            known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
            member = cls(**known)
        except (ValueError, TypeError, KeyError):
            return None
        return member if isinstance(member.incarnation, int) and member.kind in KINDS else None


@dataclass(frozen=True, slots=True)
class Value:
    """What is kept at a path, and which version of it."""

    value: Any
    version: int


@dataclass(frozen=True, slots=True)
class Term:
    """A leader's time in office; ``version`` is what its writes are checked against."""

    number: int
    leader: str
    version: int


def key_of(kind: Kind, name: str, merge: str = "") -> str:
    """The name of a member's node; ConfigurationError when the names cannot be."""
    check_name("stream" if kind == "replica" else kind, name)
    if kind != "replica":
        return name
    check_name("merge", merge)
    return f"{merge}:{name}"


@contextmanager
def asking(what: str) -> Iterator[None]:
    """ZooKeeper's errors become ours."""
    try:
        yield
    except NoAuthError:
        raise PermissionDeniedError(
            f"ZooKeeper refuses {what}: the deployment belongs to other credentials"
        ) from None
    except (
        ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError,
        KazooTimeoutError,
    ) as error:  # fmt: skip
        raise UnavailableError(
            f"ZooKeeper does not answer ({what}): {type(error).__name__}"
        ) from None


class Deployment:
    """One deployment's nodes, through a client that somebody else connects and closes."""

    def __init__(
        self, client: KazooClient, name: str, credentials: Credentials | None = None
    ) -> None:
        check_name("deployment", name)
        self.client = client
        self.name = name
        self.path = f"{ROOT}/{name}"
        self.acl: list[ACL] = list(OPEN_ACL_UNSAFE)
        self._credentials = credentials
        if credentials is not None:
            self.acl = [make_digest_acl(credentials.name, credentials.password, all=True)]

    # -- the basis --------------------------------------------------------------------------------

    def ensure(self) -> None:
        """Makes the folders; refuses a deployment that others may read in spite of credentials."""
        with asking(f"deployment {self.name!r}"):
            # The root is everybody's: each deployment guards what is its own.
            self._make(ROOT, list(OPEN_ACL_UNSAFE))
            self._make(self.path, self.acl)
            if self._credentials is not None:
                found, _ = self.client.get_acls_async(self.path).get(timeout=ANSWER_SECONDS)
                if list(found) != self.acl:
                    raise PermissionDeniedError(
                        f"deployment {self.name!r} exists with other rights than these credentials"
                        " give: choose another name, or remove it first"
                    )
            for folder in ("incarnations", "checkpoints"):
                self._make(f"{self.path}/{folder}", self.acl)
            for kind in KINDS:
                self._make(self.members_path(kind), self.acl)
                self._make(f"{self.path}/incarnations/{kind}s", self.acl)

    def _make(self, path: str, acl: list[ACL]) -> None:
        try:
            self.client.create_async(path, b"", acl=acl).get(timeout=ANSWER_SECONDS)
        except NodeExistsError:
            return

    def members_path(self, kind: Kind) -> str:
        """Where the members of a kind are."""
        return f"{self.path}/{kind}s"

    def member_path(self, kind: Kind, key: str) -> str:
        """A member's node."""
        return f"{self.path}/{kind}s/{key}"

    def incarnation_path(self, kind: Kind, key: str) -> str:
        """Where the newest incarnation of a member is counted."""
        return f"{self.path}/incarnations/{kind}s/{key}"

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Any]:
        """A node's data and ZooKeeper's facts about it; NoNodeError when it is not there."""
        data, stat = self.client.get_async(path, watch=watch).get(timeout=ANSWER_SECONDS)
        return bytes(data), stat

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children, sorted."""
        names = self.client.get_children_async(path, watch=watch).get(timeout=ANSWER_SECONDS)
        return sorted(names)

    def commit(self, *steps: tuple[str, tuple[Any, ...]]) -> list[Any]:
        """All steps or none; raises what kept the first of them from being done."""
        transaction = self.client.transaction()
        for step, arguments in steps:
            getattr(transaction, step)(*arguments)
        results = transaction.commit_async().get(timeout=ANSWER_SECONDS)
        for result in results:
            passing = isinstance(result, RolledBackError | RuntimeInconsistency)
            if isinstance(result, KazooException) and not passing:
                raise result
        return list(results)

    # -- incarnations -----------------------------------------------------------------------------

    def take_incarnation(self, kind: Kind, key: str) -> int:
        """A number that nobody has, and greater than every one before it: older ones are fenced."""
        path = self.incarnation_path(kind, key)
        with asking(f"an incarnation of {kind} {key!r}"):
            for _ in range(CONFLICTS_MAX):
                least = int(time.time())
                try:
                    data, stat = self.get(path)
                    taken = max(int(data) + 1, least)
                    self.client.set_async(path, str(taken).encode(), stat.version).get(
                        timeout=ANSWER_SECONDS
                    )
                    return taken
                except NoNodeError:
                    try:
                        self.client.create_async(path, str(least).encode(), acl=self.acl).get(
                            timeout=ANSWER_SECONDS
                        )
                        return least
                    except NodeExistsError:
                        continue
                except BadVersionError:
                    continue
        raise UnavailableError(f"too many want to be {kind} {key!r} at once")

    def incarnations(self, kind: Kind, watch: Watch | None = None) -> dict[str, int]:
        """The newest incarnation taken of each key."""
        found = {}
        with asking(f"the incarnations of {kind}s"):
            for key in self.children(f"{self.path}/incarnations/{kind}s", watch):
                try:
                    data, _ = self.get(self.incarnation_path(kind, key), watch)
                    found[key] = int(data)
                except (NoNodeError, ValueError):
                    continue
        return found

    def forget(self, kind: Kind, key: str) -> None:
        """Lets a name go that is not used any more."""
        with asking(f"to forget {kind} {key!r}"):
            try:
                self.client.delete_async(self.incarnation_path(kind, key)).get(
                    timeout=ANSWER_SECONDS
                )
            except NoNodeError:
                return

    # -- members ----------------------------------------------------------------------------------

    def members(self, kind: Kind, watch: Watch | None = None) -> dict[str, Member]:
        """Everybody of a kind, by key."""
        found = {}
        with asking(f"the members ({kind}s)"):
            for key in self.children(self.members_path(kind), watch):
                try:
                    member = Member.decoded(self.get(self.member_path(kind, key), watch)[0])
                except NoNodeError:
                    continue
                if member is not None:
                    found[key] = member
        return found

    # -- values -----------------------------------------------------------------------------------

    def read(self, name: str, watch: Watch | None = None) -> Value | None:
        """A value (``spec``, ``cutover``, ``checkpoints/x``); None when there is none.

        ``watch`` is called once, by another thread, when it has changed or been made.
        """
        path = f"{self.path}/{name}"
        with asking(f"to read {name!r}"):
            try:
                data, stat = self.get(path, watch)
            except NoNodeError:
                if watch is not None:
                    self.client.exists_async(path, watch=watch).get(timeout=ANSWER_SECONDS)
                return None
        try:
            return Value(json.loads(data), stat.version)
        except ValueError:
            raise ConfigurationError(f"{path} in ZooKeeper holds no JSON") from None

    def names(self, folder: str) -> list[str]:
        """What a folder (``checkpoints``) holds."""
        with asking(f"to list {folder!r}"):
            try:
                return self.children(f"{self.path}/{folder}")
            except NoNodeError:
                return []

    def write(self, name: str, value: Any, version: int | None, term: Term | None = None) -> int:
        """Puts a value in the place of a version (None: of nothing); returns its version.

        ConflictError when that is not what is there, or when ``term`` is over.
        """
        path, data = f"{self.path}/{name}", json.dumps(value, sort_keys=True).encode()
        if len(data) > VALUE_BYTES_MAX:
            raise ConfigurationError(f"{name!r} has {len(data)} bytes; at most {VALUE_BYTES_MAX}")
        steps: list[tuple[str, tuple[Any, ...]]] = []
        if term is not None:
            steps.append(("check", (f"{self.path}/term", term.version)))
        if version is None:
            steps.append(("create", (path, data, self.acl)))
        else:
            steps.append(("set_data", (path, data, version)))
        with asking(f"to write {name!r}"):
            try:
                results = self.commit(*steps)
            except (BadVersionError, NodeExistsError, NoNodeError):
                raise ConflictError(f"{name!r} of deployment {self.name!r} has changed") from None
        return 0 if version is None else int(results[-1].version)

    def remove(self, name: str, version: int, term: Term | None = None) -> None:
        """Removes a version of a value."""
        steps: list[tuple[str, tuple[Any, ...]]] = []
        if term is not None:
            steps.append(("check", (f"{self.path}/term", term.version)))
        steps.append(("delete", (f"{self.path}/{name}", version)))
        with asking(f"to remove {name!r}"):
            try:
                self.commit(*steps)
            except (BadVersionError, NoNodeError):
                raise ConflictError(f"{name!r} of deployment {self.name!r} has changed") from None

    def term(self) -> Term:
        """The present, or last, term; NotFoundError when nobody has led yet."""
        found = self.read("term")
        if found is None:
            raise NotFoundError(f"nobody has led deployment {self.name!r} yet")
        return Term(found.value["number"], found.value["leader"], found.version)
