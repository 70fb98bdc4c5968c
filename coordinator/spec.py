"""What a deployment is to be: its merge, its servers, and the plans of its replicas.

Callers may rely on this: a spec that exists can be run (names, counts, addresses and options are
possible, and belong together); every mistake is a ConfigurationError of one line with the place,
the key, what is wrong and what is possible. Values are immutable: a change gives another spec.

In ZooKeeper it is the value ``spec``; whoever changes it has read its present version. Paths in a
file are relative to the file, and absolute from then on: replicas run in directories of their own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn, Self, get_args

from coordinator.deployment import ConflictError, Deployment, Term
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy
from lmerge.core.properties import Restriction
from lmerge.errors import ConfigurationError, NotFoundError
from lmerge.server.config import Durability, address, check_name

NAME: Final = "spec"
"""The value's, in ZooKeeper."""

REPLICAS_MAX: Final = 64  # of a plan: a merge takes no more streams, unless its server is told to
PLANS_MAX: Final = 64
SERVERS_MAX: Final = 8
LINGER_SECONDS: Final = 60.0
"""Longer than Spark takes to start: who returns in time goes on with its own stream."""
LINGER_SECONDS_MAX: Final = 86_400.0
CONFLICTS_MAX: Final = 20
LISTEN: Final = "127.0.0.1:0"  # port 0: a free one is chosen, once, when the deployment is made
SERVER: Final = "server"
MERGE: Final = "main"
MODES: Final = ("append", "update", "complete")
PATHS: Final = ("auto", "driver", "tasks")
RESTRICTIONS: Final = tuple(each.value for each in Restriction)
OPTIONS: Final = ("mode", "vs", "ve", "key", "stable", "restriction", "path")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": MODES, "restriction": RESTRICTIONS, "path": PATHS,
}  # fmt: skip
MERGE_OPTIONS: Final = (
    "restriction", "insert_policy", "adjust_policy", "stable_lag", "divergence",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """One query, run by some replicas. Its streams are ``<name>-1`` to ``<name>-<replicas>``."""

    name: str
    build: str  # FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION
    replicas: int = 1
    master: str | None = None  # Spark's
    conf: Mapping[str, str] = field(default_factory=dict)  # Spark's
    options: Mapping[str, Any] = field(default_factory=dict)  # of OPTIONS: attach's
    checkpoint: str | None = None  # holds a directory for each stream; None: in the state directory
    jumpstart: Mapping[str, Any] | None = None  # what a replica begins from, when it is new

    def __post_init__(self) -> None:
        check_name("plan", self.name)
        check_name("stream", f"{self.name}-{REPLICAS_MAX}")
        at = f"plan {self.name!r}"
        if not isinstance(self.build, str) or not self.build.strip(":"):
            _refuse(at, "build", f"{self.build!r} is not FILE.py:FUNCTION")
        _whole(at, "replicas", self.replicas, 0, REPLICAS_MAX)
        for key, value in self.conf.items():
            if not isinstance(value, str):
                _refuse(at, f"conf.{key}", f"{value!r} is no text: write it in quotes")
        for key, value in self.options.items():
            _option(at, key, value)

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its replicas' streams."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.replicas + 1))


@dataclass(frozen=True)
class ServerSpec:
    """One server. Several have the same merge each; replicas write to all of them."""

    name: str = SERVER
    listen: str = LISTEN
    data_dir: str = ""  # empty: in the state directory
    durability: str = "fsync"
    config: str | None = None  # a TOML file of the server's own, for everything else

    def __post_init__(self) -> None:
        check_name("server", self.name)
        at = f"server {self.name!r}"
        try:
            address(self.listen)
        except ConfigurationError as error:
            _refuse(at, "listen", str(error))
        _choice(at, "durability", self.durability, get_args(Durability))


@dataclass(frozen=True)
class Spec:
    """A deployment."""

    merge: str = MERGE
    servers: tuple[ServerSpec, ...] = field(default_factory=lambda: (ServerSpec(),))
    plans: tuple[Plan, ...] = ()
    linger_seconds: float = LINGER_SECONDS  # a replica away for longer has to join anew
    merge_options: Mapping[str, Any] = field(default_factory=dict)  # of MERGE_OPTIONS

    def __post_init__(self) -> None:
        check_name("merge", self.merge)
        seconds = self.linger_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= LINGER_SECONDS_MAX:
            _refuse("deployment", "linger_seconds",
                    f"{seconds!r} is not possible: 0 to {LINGER_SECONDS_MAX:g}")  # fmt: skip
        for kind, named, most in (
            ("servers", [each.name for each in self.servers], SERVERS_MAX),
            ("plans", [each.name for each in self.plans], PLANS_MAX),
        ):
            for name in named:
                if named.count(name) > 1:
                    _refuse("deployment", kind, f"there are two of the name {name!r}")
            if len(named) > most:
                _refuse("deployment", kind, f"there are {len(named)}; at most {most}")
        if not self.servers:
            _refuse("deployment", "servers", "there is none: name at least one, or leave it out")
        _merge_options(self.merge_options)

    # -- what is in it ----------------------------------------------------------------------------

    def streams(self) -> dict[str, Plan]:
        """Every replica's stream, with its plan, in order."""
        return {stream: plan for plan in self.plans for stream in plan.streams}

    def plan(self, name: str) -> Plan:
        """The plan of a name; NotFoundError, with those that there are."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        known = ", ".join(plan.name for plan in self.plans) or "none"
        raise NotFoundError(f"there is no plan {name!r}; there are: {known}")

    def server(self, name: str) -> ServerSpec | None:
        """The server of a name."""
        return next((each for each in self.servers if each.name == name), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the servers are."""
        return tuple(each.listen for each in self.servers)

    # -- another one ------------------------------------------------------------------------------

    def with_plan(self, plan: Plan) -> Spec:
        """With the plan, in the place of one of its name."""
        if any(each.name == plan.name for each in self.plans):
            plans = tuple(plan if each.name == plan.name else each for each in self.plans)
            return replace(self, plans=plans)
        return replace(self, plans=(*self.plans, plan))

    def without_plan(self, name: str) -> Spec:
        """Without the plan; NotFoundError when it is not there."""
        gone = self.plan(name)
        return replace(self, plans=tuple(each for each in self.plans if each is not gone))

    def scaled(self, name: str, replicas: int) -> Spec:
        """With another number of replicas of a plan."""
        return self.with_plan(replace(self.plan(name), replicas=replicas))

    # -- kept and read ----------------------------------------------------------------------------

    def encoded(self) -> dict[str, Any]:
        """As it is kept: JSON's own types."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @classmethod
    def decoded(cls, value: Any, at: str = "the spec in ZooKeeper") -> Self:
        """The inverse."""
        table = _Table(at, "", value)
        given = {
            "merge": table.take("merge", str, MERGE),
            "linger_seconds": table.take("linger_seconds", (int, float), LINGER_SECONDS),
            "merge_options": table.take("merge_options", dict, {}),
            "servers": tuple(map(_server, table.tables("servers"))) or (ServerSpec(),),
            "plans": tuple(map(_plan, table.tables("plans"))),
        }
        table.finish()
        try:
            return cls(**given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{at}: {error}") from None

    @classmethod
    def load_toml(cls, path: Path) -> Self:
        """Of a file. A plan's options stand beside its other keys."""
        try:
            with path.open("rb") as file:
                found: dict[str, Any] = tomllib.load(file)
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: this is no TOML: {error}") from None
        return cls.decoded(_absolute(found, path.absolute().parent), str(path))


def build_path(said: str, folder: Path) -> str:
    """A build whose file is absolute; a package's stays as it is."""
    place, colon, function = said.rpartition(":")
    if not colon:
        place, function = said, ""
    if not (place.endswith(".py") or "/" in place):
        return said
    return f"{(folder / Path(place).expanduser()).absolute()}{colon}{function}"


def read(deployment: Deployment) -> tuple[Spec, int]:
    """What is deployed, and which version of it; NotFoundError when nothing is."""
    found = deployment.read(NAME)
    if found is None:
        raise NotFoundError(
            f"nothing is deployed as {deployment.name!r}: start it with lmerge up, or name another"
            " with --deployment"
        )
    return Spec.decoded(found.value), found.version


def change(deployment: Deployment, how: Callable[[Spec], Spec], term: Term | None = None) -> Spec:
    """Changes what is deployed; ``how`` is called again when somebody else was faster."""
    for _ in range(CONFLICTS_MAX):
        before, version = read(deployment)
        after = how(before)
        if after == before:
            return after
        try:
            deployment.write(NAME, after.encoded(), version, term)
            return after
        except ConflictError:
            if term is not None and deployment.term() != term:
                raise  # it is over
    raise ConflictError(f"the spec of deployment {deployment.name!r} changes all the time")


def succeeding(before: Spec, given: Spec, *, running: bool) -> Spec:
    """What is deployed when ``given`` is asked for after ``before``.

    A query cannot go on from another's checkpoint, so a plan stays what it is; and what would have
    to be done to servers that run, their replicas and consumers would notice.
    """
    servers = []
    for server in given.servers:
        known = before.server(server.name)
        if known is not None and server.listen == LISTEN:
            server = replace(server, listen=known.listen)
        servers.append(server)
    after = replace(given, servers=tuple(servers))
    for plan in after.plans:
        known_plan = next((each for each in before.plans if each.name == plan.name), plan)
        if replace(plan, replicas=known_plan.replicas) == known_plan:
            continue
        if running or (plan.build, plan.options) != (known_plan.build, known_plan.options):
            raise ConfigurationError(
                f"plan {plan.name!r} is deployed already, and otherwise: give the new one another"
                " name, or change over to it with lmerge cutover"
            )
    same = ("merge", "servers", "merge_options", "linger_seconds")
    if running and any(getattr(before, name) != getattr(after, name) for name in same):
        raise ConfigurationError(
            "the deployment runs, with another merge or other servers: end it first (lmerge down),"
            " or say another --deployment"
        )
    return after


# -- reading ---------------------------------------------------------------------------------------


class _Table:
    """One table, read key by key; ``finish`` refuses the keys that nobody read."""

    def __init__(self, at: str, prefix: str, values: Any) -> None:
        if not isinstance(values, dict):
            raise ConfigurationError(f"{at}: {prefix.strip(': ') or 'this'} is no table")
        self.at = at
        self.prefix = prefix
        self.values = values
        self._known: list[str] = []

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise ConfigurationError(f"{self.at}: {self.prefix}{key}: {problem}")

    def take(self, key: str, kind: Any, default: Any = ...) -> Any:
        """A value of a kind; without a default it must be there."""
        self._known.append(key)
        value = self.values.get(key)
        if value is None:
            return self.refuse(key, "is missing") if default is ... else default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            named = {str: "text", int: "whole number", dict: "table"}.get(kind, "number")
            self.refuse(key, f"{value!r} is no {named}")
        return value

    def tables(self, key: str) -> list[_Table]:
        self._known.append(key)
        given = self.values.get(key, [])
        if not isinstance(given, list):
            self.refuse(key, f"this is no list of tables: write [[{key}]] above each")
        return [_Table(self.at, f"{key} #{n}: ", each) for n, each in enumerate(given, 1)]

    def finish(self) -> None:
        for key in self.values:
            if key not in self._known:
                self.refuse(key, f"there is no such key{_meant(key, self._known)}")


def _plan(table: _Table) -> Plan:
    options = dict(table.take("options", dict, {}))
    for key in OPTIONS:  # beside the others, as a file has them
        if (value := table.take(key, object, None)) is not None:
            options[key] = value
    given = {
        "name": table.take("name", str),
        "build": table.take("build", str),
        "replicas": table.take("replicas", int, 1),
        "master": table.take("master", str, None),
        "conf": table.take("conf", dict, {}),
        "checkpoint": table.take("checkpoint", str, None),
        "jumpstart": table.take("jumpstart", dict, None),
    }
    table.finish()
    try:
        return Plan(options=options, **given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{table.at}: {error}") from None


def _server(table: _Table) -> ServerSpec:
    given = {
        "name": table.take("name", str, SERVER),
        "listen": table.take("listen", str, LISTEN),
        "data_dir": table.take("data_dir", str, ""),
        "durability": table.take("durability", str, "fsync"),
        "config": table.take("config", str, None),
    }
    table.finish()
    try:
        return ServerSpec(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{table.at}: {error}") from None


def _absolute(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The file's own paths; what is not as it should be is left for the reading to refuse."""
    for kind, keys in (("servers", ("data_dir", "config")), ("plans", ("checkpoint", "build"))):
        tables = found.get(kind)
        for table in tables if isinstance(tables, list) else ():
            if not isinstance(table, dict):
                continue
            for key in keys:
                said = table.get(key)
                if isinstance(said, str) and said and "://" not in said:
                    absolute = str((folder / Path(said).expanduser()).absolute())
                    table[key] = build_path(said, folder) if key == "build" else absolute
    return found


def _option(at: str, key: str, value: Any) -> None:
    if key not in OPTIONS:
        _refuse(at, key, f"there is no such option{_meant(key, OPTIONS)}")
    if key in _CHOICES:
        _choice(at, key, value, _CHOICES[key])
    elif key == "key":
        texts = isinstance(value, Sequence) and not isinstance(value, str)
        if not texts or not value or not all(isinstance(each, str) for each in value):
            _refuse(at, key, f"{value!r} is no list of columns")
    elif not isinstance(value, str) or not value:
        _refuse(at, key, f"{value!r} is no column or SQL expression")


def _merge_options(options: Mapping[str, Any]) -> None:
    at = "merge_options"
    for key, value in options.items():
        if key not in MERGE_OPTIONS:
            _refuse(at, key, f"there is no such option{_meant(key, MERGE_OPTIONS)}")
        if key == "stable_lag":
            _whole(at, key, value, 0, 2**62 - 1)
        elif key == "insert_policy":
            if not isinstance(value, str):
                _refuse(at, key, f"{value!r} is no text")
            InsertPolicy.parse(value)
        elif key == "restriction":
            _choice(at, key, value, RESTRICTIONS)
        else:
            kinds: Any = AdjustPolicy if key == "adjust_policy" else DivergencePolicy
            _choice(at, key, value, tuple(each.value for each in kinds))


def _choice(at: str, key: str, value: Any, possible: Sequence[str]) -> None:
    if value not in possible:
        _refuse(at, key, f"{value!r} is not possible{_meant(str(value), possible)}")


def _whole(at: str, key: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        _refuse(at, key, f"{value!r} is not possible: a whole number from {least} to {most}")


def _refuse(at: str, key: str, problem: str) -> NoReturn:
    raise ConfigurationError(f"{at}: {key}: {problem}")


def _meant(said: str, possible: Sequence[str]) -> str:
    near = get_close_matches(said, possible, n=1)
    listed = ", ".join(possible)
    return f"; did you mean {near[0]!r}? Possible: {listed}" if near else f"; possible: {listed}"
