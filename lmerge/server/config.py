"""The server's configuration: values that were checked, from a TOML file and the command line.

Callers may rely on this: what :func:`load` returns can be served as it is (names, sizes, policies
and addresses are possible, and belong together), and every mistake is a ConfigurationError of one
line with the file, the key, what is wrong and what is possible. A key that nobody reads is a
mistake too: a misspelt limit must not pass for a limit.

While nobody has to say who they are (no tokens, no client_ca) the server binds to loopback only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, get_args

import pyarrow as pa

from lmerge.core.batch import ELEMENT_COLUMNS
from lmerge.core.policy import AdjustPolicy, DivergencePolicy, InsertPolicy, Policy
from lmerge.core.properties import Restriction, supports
from lmerge.errors import ConfigurationError
from lmerge.v1.common_pb2 import MergeOptions

Durability = Literal["fsync", "flush", "none"]
LogFormat = Literal["text", "json"]
Role = Literal["replica", "consumer", "operator"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
EVERY_MERGE: Final = "*"
NAME_CHARACTERS_MAX: Final = 128
TOKEN_CHARACTERS_MIN: Final = 16
"""Digests of tokens are not salted: what is shorter could be found by trying."""

_MESSAGE_BYTES_MAX: Final = 2**31 - 1  # gRPC counts a message's bytes in an int
_COUNT_MAX: Final = 1_000_000
_STREAMS_MAX: Final = 1024  # a merge of the core takes no more
_BYTES_MAX: Final = 2**62
_SECONDS_MAX: Final = 10 * 366 * 86_400
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_UNITS: Final = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": KIB, "mi": MIB, "gi": GIB, "ti": 1 << 40,
}  # fmt: skip
_COMMAND_LINE: Final = "command line"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """A bound for everything that could grow. Those of bytes may be written as ``"64MiB"``."""

    message_bytes: int = 16 * MIB  # one message of a peer
    epoch_bytes: int = 256 * MIB  # everything written to one epoch
    window_bytes: int = 256 * MIB  # written by a stream beyond its last acknowledged commit
    staged_bytes: int = GIB  # staged and not committed, of all streams of the server
    merges: int = 64
    streams: int = 64  # of a merge
    subscriptions: int = 256  # of a merge
    sessions: int = 1024  # calls that stay open: attached streams and consumers
    retention_bytes: int = 4 * GIB  # output kept for each merge; 0: no limit
    retention_seconds: float = 0  # age of kept output; 0: no limit
    memory_bytes: int = 64 * MIB  # newest output of a merge that is kept in memory as well
    segment_bytes: int = 64 * MIB  # a file of a log
    snapshot_bytes: int = 64 * MIB  # growth of the log of arrivals that causes a snapshot


@dataclass(frozen=True, slots=True)
class MergeConfig:
    """A merge that is there from the start. An empty restriction: the first stream decides."""

    name: str
    restriction: str = ""
    insert_policy: str = "first"
    adjust_policy: str = "lazy"
    stable_lag: int = 0
    divergence: str = "report"
    schema: pa.Schema | None = None  # the payload's columns; None: those of the first stream

    def options(self) -> MergeOptions:
        """As the wire says it."""
        return MergeOptions(
            restriction=self.restriction,
            insert_policy=self.insert_policy,
            adjust_policy=self.adjust_policy,
            stable_lag=self.stable_lag,
            divergence=self.divergence,
        )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The server's certificate; with ``client_ca``, callers must have one of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """What the bearer of a token may do. Only the token's SHA-256 (in hex) is kept."""

    name: str
    sha256: str = field(repr=False)
    roles: tuple[Role, ...]
    merges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What the owner of a certificate may do. ``name`` is its subject alternative name (or its
    common name, when it has none), exactly."""

    name: str
    roles: tuple[Role, ...]
    merges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything ``lmerge server`` may be told."""

    listen: str = "127.0.0.1:7070"  # port 0: a free one
    data_dir: Path = Path("lmerge-data")
    durability: Durability = "fsync"
    metrics_listen: str | None = None
    metrics_public: bool = False  # whether metrics, which nobody guards, may leave the machine
    log_format: LogFormat = "text"
    create_on_attach: bool = True  # the default is False once security is on
    detach_after_seconds: float = 0  # a stream without a session for so long leaves; 0: never
    drain_seconds: float = 10
    limits: Limits = field(default_factory=Limits)
    merges: tuple[MergeConfig, ...] = ()
    tls: TlsConfig | None = None
    tokens: tuple[TokenConfig, ...] = ()
    clients: tuple[ClientConfig, ...] = ()

    @property
    def secured(self) -> bool:
        """Whether callers must say who they are."""
        return bool(self.tokens) or (self.tls is not None and self.tls.client_ca is not None)

    def cautions(self) -> list[str]:
        """What is possible, and better known to whoever runs the server."""
        result = []
        if self.tokens and self.tls is None and not is_loopback(self.listen):
            result.append(
                f"tokens travel unencrypted to {self.listen}: add [tls], or let something"
                " in front of the server encrypt"
            )
        if self.durability == "none":
            result.append("durability is 'none': a crash loses what was acknowledged")
        return result


def check_name(kind: str, name: str) -> None:
    """Refuses what is no name of a ``kind`` (merge, stream, subscription).

    Names are directories of the server's disk, so nothing in them may lead elsewhere.
    """
    if not (_NAME.fullmatch(name) and len(name) <= NAME_CHARACTERS_MAX):
        shown = name if len(name) <= NAME_CHARACTERS_MAX else name[:40] + "…"
        raise ConfigurationError(
            f"{shown!r} is no name of a {kind}: possible are 1 to {NAME_CHARACTERS_MAX} letters"
            " (a-z, A-Z), digits, '.', '_' and '-', not beginning with '.'"
        )


def address(listen: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host is written in brackets."""
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    # isdecimal alone would take digits of other scripts.
    valid = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535
    if not (colon and host and valid) or (":" in host) != bracketed:
        raise ConfigurationError(
            f"{listen!r} is no address: possible is HOST:PORT, such as 127.0.0.1:7070"
            " or [::1]:7070, with a port of 0 (any free one) to 65535"
        )
    return host, int(port)


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address."""
    host, _ = address(listen)
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"  # what other names mean is not known before the bind


def require_loopback(listen: str) -> None:
    """Refuses an address that others could reach; for a server whose security is off."""
    if not is_loopback(listen):
        raise ConfigurationError(
            f"listening on {listen} would let everybody who reaches this machine read and write"
            " every merge: configure [[tokens]], or [tls] with client_ca, or listen on 127.0.0.1"
        )


def byte_size(value: object) -> int:
    """Bytes, of ``67108864`` or ``"64MiB"``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigurationError(
            f"{value!r} is no size: possible are bytes as a number, or a text such as '64MiB'"
        )
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a name such as ``int64`` or ``timestamp[us, tz=UTC]``."""
    text = name.strip()
    zoned = re.fullmatch(r"timestamp\[(s|ms|us|ns), *tz=([A-Za-z0-9_+:/-]+)\]", text)
    if zoned:
        return pa.timestamp(zoned[1], tz=zoned[2])
    decimal = re.fullmatch(r"decimal128\((\d{1,2}), *(-?\d{1,2})\)", text)
    try:
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return pa.type_for_alias(text)
    except (ValueError, pa.ArrowException):
        raise ConfigurationError(
            f"{name!r} is no type of a column: possible are Arrow's names, such as bool, int64,"
            " double, string, binary, date32, timestamp[us], timestamp[us, tz=UTC] and"
            " decimal128(10, 2)"
        ) from None


def arrow_schema(columns: Mapping[str, object]) -> pa.Schema:
    """The payload's schema, of column names and type names."""
    made = []
    for column, kind in columns.items():
        if column in ELEMENT_COLUMNS or not column:
            raise ConfigurationError(
                f"{column!r} cannot be a column of the payload: possible is every name but"
                f" {', '.join(ELEMENT_COLUMNS)}, which the elements' own columns have"
            )
        if not isinstance(kind, str):
            raise ConfigurationError(f"column {column!r}: {kind!r} is no name of an Arrow type")
        made.append(pa.field(column, arrow_type(kind)))
    return pa.schema(made)


def load(path: Path | None, overrides: Mapping[str, object] | None = None) -> ServerConfig:
    """The configuration of a file (None: the defaults), under what ``overrides`` says.

    ``overrides`` names keys as the file does, those of tables with a dot (``limits.merges``);
    what is None there says nothing. Paths are relative to the file, overriding ones to the
    process.
    """
    said = {key: value for key, value in (overrides or {}).items() if value is not None}
    table = _Table("defaults" if path is None else str(path), "", _read(path), said, path)
    limits = _limits(table.table("limits"))
    tls = _tls(table)
    tokens = tuple(map(_token, table.tables("tokens")))
    clients = tuple(map(_client, table.tables("clients")))
    secured = bool(tokens) or (tls is not None and tls.client_ca is not None)
    merges = tuple(map(_merge, table.tables("merges")))
    usual = ServerConfig()
    config = ServerConfig(
        listen=table.address("listen", usual.listen),
        data_dir=table.path("data_dir") or usual.data_dir,
        durability=table.choice("durability", get_args(Durability), "fsync"),
        metrics_listen=table.address("metrics_listen", None),
        metrics_public=table.flag("metrics_public", False),
        log_format=table.choice("log_format", get_args(LogFormat), "text"),
        create_on_attach=table.flag("create_on_attach", not secured),
        detach_after_seconds=table.seconds("detach_after_seconds", usual.detach_after_seconds),
        drain_seconds=table.seconds("drain_seconds", usual.drain_seconds),
        limits=limits,
        merges=merges,
        tls=tls,
        tokens=tokens,
        clients=clients,
    )
    table.finish()
    _check_whole(table, config)
    return config


def _read(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: this is no TOML: {error}") from None


def _check_whole(table: _Table, config: ServerConfig) -> None:
    """What only shows when everything is known."""
    if not config.secured:
        table.guarded("listen", lambda: require_loopback(config.listen))
    metrics = config.metrics_listen
    if metrics is not None and not config.metrics_public and not is_loopback(metrics):
        table.refuse(
            "metrics_listen",
            f"{metrics} can be reached from elsewhere, and metrics are shown to everybody:"
            " listen on 127.0.0.1, or set metrics_public = true",
        )
    client_ca = config.tls.client_ca if config.tls else None
    if config.clients and client_ca is None:
        table.refuse(
            "clients", "these name certificates, which nothing asks for: set client_ca in [tls]"
        )
    if client_ca is not None and not config.clients and not config.tokens:
        table.refuse(
            "tls.client_ca",
            "certificates are asked for, and nobody may do anything: add [[clients]] or [[tokens]]",
        )
    for key, names in (
        ("merges", [merge.name for merge in config.merges]),
        ("tokens", [token.name for token in config.tokens]),
        ("clients", [client.name for client in config.clients]),
    ):
        for name in names:
            if names.count(name) > 1:
                table.refuse(key, f"there are two of the name {name!r}: give each its own")
    digests = [token.sha256 for token in config.tokens]
    for token in config.tokens:
        if digests.count(token.sha256) > 1:
            table.refuse(
                "tokens", f"{token.name!r} is the token of another as well: make a new one"
            )
    if len(config.merges) > config.limits.merges:
        table.refuse(
            "merges",
            f"these are {len(config.merges)}, and limits.merges is {config.limits.merges}",
        )


def _limits(table: _Table) -> Limits:
    values: dict[str, Any] = {}
    default = Limits()
    for each in fields(Limits):
        name, usual = each.name, getattr(default, each.name)
        if name.endswith("_bytes"):
            most = _MESSAGE_BYTES_MAX if name == "message_bytes" else _BYTES_MAX
            least = 0 if name in ("retention_bytes", "memory_bytes") else 1
            values[name] = table.size(name, usual, least, most)
        elif name.endswith("_seconds"):
            values[name] = table.seconds(name, usual)
        else:
            most = _STREAMS_MAX if name == "streams" else _COUNT_MAX
            values[name] = table.count(name, usual, 1, most)
    table.finish()
    result = Limits(**values)
    # Only what was said is judged: a small epoch_bytes alone must not be a mistake.
    for small, large in (("message_bytes", "epoch_bytes"), ("epoch_bytes", "staged_bytes")):
        if getattr(result, small) > getattr(result, large) and table.says(small):
            table.refuse(
                small,
                f"{getattr(result, small)} bytes can never be used: {large} is"
                f" {getattr(result, large)}; possible is at most that",
            )
    return result


def _tls(parent: _Table) -> TlsConfig | None:
    if not parent.has_table("tls"):
        return None
    table = parent.table("tls")
    cert, key, client_ca = table.path("cert"), table.path("key"), table.path("client_ca")
    table.finish()
    if cert is None or key is None:
        table.refuse("cert" if cert is None else "key", "is missing: TLS needs both cert and key")
    return TlsConfig(cert, key, client_ca)


def _token(table: _Table) -> TokenConfig:
    name = table.text("name")
    digest = table.text("sha256", "").lower()
    file = table.path("token_file")
    if bool(digest) == (file is not None):
        table.refuse("sha256", "needed is either this (of the token, in hex) or token_file")
    if file is not None:
        digest = table.guarded("token_file", lambda: _digest_of(file))
    elif not re.fullmatch(r"[0-9a-f]{64}", digest):
        table.refuse(
            "sha256", "is no SHA-256: possible are 64 hex digits (printf %s TOKEN | sha256sum)"
        )
    token = TokenConfig(name, digest, *_rights(table))
    table.finish()
    return token


def _client(table: _Table) -> ClientConfig:
    client = ClientConfig(table.text("name"), *_rights(table))
    table.finish()
    return client


def _rights(table: _Table) -> tuple[tuple[Role, ...], tuple[str, ...]]:
    possible: tuple[Role, ...] = get_args(Role)
    roles = table.texts("roles", "role")
    for role in roles:
        if role not in possible:
            table.refuse("roles", f"{role!r} is no role{_meant(role, possible)}")
    merges = table.texts("merges")
    for merge in merges:
        if merge != EVERY_MERGE:
            table.guarded("merges", partial(check_name, "merge", merge))
    return tuple(role for role in possible if role in roles), merges


def _digest_of(file: Path) -> str:
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigurationError(f"{file} cannot be read: {reason}") from None
    printable = token.isascii() and token.isprintable() and " " not in token
    if len(token) < TOKEN_CHARACTERS_MIN or not printable:
        raise ConfigurationError(
            f"{file} holds no token: possible is one line of at least {TOKEN_CHARACTERS_MIN}"
            " ASCII characters without spaces (openssl rand -hex 32)"
        )
    return hashlib.sha256(token.encode()).hexdigest()


def _merge(table: _Table) -> MergeConfig:
    name = table.text("name")
    table.guarded("name", lambda: check_name("merge", name))
    usual = MergeConfig("")
    columns = table.mapping("schema")
    merge = MergeConfig(
        name,
        table.choice("restriction", ("", *(each.value for each in Restriction)), ""),
        table.text("insert_policy", usual.insert_policy),
        table.choice("adjust_policy", tuple(each.value for each in AdjustPolicy), "lazy"),
        table.count("stable_lag", 0, 0, 2**62 - 1),
        table.choice("divergence", tuple(each.value for each in DivergencePolicy), "report"),
        None if columns is None else table.guarded("schema", lambda: arrow_schema(columns)),
    )
    table.finish()
    insert = table.guarded("insert_policy", lambda: InsertPolicy.parse(merge.insert_policy))
    policy = Policy(insert, AdjustPolicy(merge.adjust_policy), merge.stable_lag)
    if merge.restriction and not supports(Restriction(merge.restriction), policy):
        table.refuse(
            "insert_policy",
            f"{merge.insert_policy} needs restriction R3 or R4, not {merge.restriction}",
        )
    return merge


class _Table:
    """One table of the file, read key by key; ``finish`` refuses the keys that nobody read."""

    def __init__(
        self,
        place: str,
        prefix: str,
        values: Mapping[str, object],
        overrides: Mapping[str, object],
        file: Path | None,
    ) -> None:
        self._place = place
        self._prefix = prefix
        self._values = values
        self._overrides = overrides
        self._file = file
        self._known: set[str] = set()

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Says where the mistake is."""
        place = _COMMAND_LINE if self._prefix + key in self._overrides else self._place
        raise ConfigurationError(f"{place}: {self._prefix}{key}: {problem}")

    def guarded(self, key: str, make: Callable[[], _T]) -> _T:
        """What ``make`` returns; its complaint gets the place."""
        try:
            return make()
        except ConfigurationError as error:
            self.refuse(key, str(error))

    def says(self, key: str) -> bool:
        """Whether the key has a value."""
        return key in self._values or self._prefix + key in self._overrides

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without a default it must be there."""
        value = self._get(key)
        if value is None:
            return default if default is not None else self.refuse(key, "is missing")
        if not isinstance(value, str) or not (value or default == ""):
            self.refuse(key, f"{value!r} is no text")
        return value

    def texts(self, key: str, single: str | None = None) -> tuple[str, ...]:
        """Texts, at least one; ``single`` is another name of the key, for one of them."""
        value = self._get(key)
        other = None if single is None else self._get(single)
        if value is None:
            value = other
        elif other is not None:
            self.refuse(key, f"there is {single!r} as well: say it once")
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, list) or not given or not all(isinstance(x, str) for x in given):
            self.refuse(key, "is missing" if value is None else f"{value!r} is no list of texts")
        return tuple(given)

    def choice(self, key: str, possible: tuple[str, ...], default: str) -> Any:
        """One of the possible texts."""
        value = self._get(key)
        if value is None:
            return default
        if value not in possible:
            self.refuse(key, f"{value!r} is not possible{_meant(str(value), possible)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Yes or no."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, f"{value!r} is neither true nor false")
        return value

    def count(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(key, f"{value!r} is not possible: a whole number from {least} to {most}")
        return value

    def size(self, key: str, default: int, least: int, most: int) -> int:
        """Bytes within bounds."""
        value = self._get(key)
        if value is None:
            return default
        size = self.guarded(key, lambda: byte_size(value))
        if not least <= size <= most:
            self.refuse(key, f"{value!r} is not possible: from {least} to {most} bytes")
        return size

    def seconds(self, key: str, default: float) -> float:
        """A duration."""
        value = self._get(key)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= _SECONDS_MAX:  # type: ignore[operator]  # a number
            self.refuse(key, f"{value!r} is not possible: seconds from 0 to {_SECONDS_MAX}")
        return value  # type: ignore[return-value]  # a number

    def path(self, key: str) -> Path | None:
        """A path; in a file, relative to the file."""
        value = self._get(key)
        if value is None:
            return None
        overriding = self._prefix + key in self._overrides
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            self.refuse(key, f"{value!r} is no path")
        path = Path(value).expanduser()
        return path if overriding or self._file is None else self._file.parent / path

    def address(self, key: str, default: Any) -> Any:
        """host:port."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(key, f"{value!r} is no address: possible is a text, 'HOST:PORT'")
        self.guarded(key, lambda: address(value))
        return value

    def mapping(self, key: str) -> dict[str, object] | None:
        """A table whose keys are the user's own."""
        value = self._get(key)
        if value is not None and (not isinstance(value, dict) or not value):
            self.refuse(key, f"{value!r} is no table with columns")
        return value

    def has_table(self, key: str) -> bool:
        """Whether anything was said of the table."""
        self._known.add(key)
        inside = f"{self._prefix}{key}."
        return key in self._values or any(name.startswith(inside) for name in self._overrides)

    def table(self, key: str) -> _Table:
        """A table inside this one; empty when it is not there."""
        self._known.add(key)
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            self.refuse(key, f"{values!r} is no table: write [{key}]")
        return _Table(self._place, f"{self._prefix}{key}.", values, self._overrides, self._file)

    def tables(self, key: str) -> list[_Table]:
        """The tables of a list."""
        self._known.add(key)
        given = self._values.get(key, [])
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            self.refuse(key, f"this is no list of tables: write [[{key}]] above each")
        return [
            _Table(self._place, f"{key} #{number}: ", values, {}, self._file)
            for number, values in enumerate(given, 1)
        ]

    def finish(self) -> None:
        """Refuses what nobody has asked for."""
        known = sorted(self._known)
        here = [name for name in self._overrides if name.startswith(self._prefix)]
        direct = [name.removeprefix(self._prefix) for name in here]
        for key in (*self._values, *direct):
            # Keys of tables further in are theirs to judge, when there is such a table.
            if key.partition(".")[0] not in self._known or (key not in known and "." not in key):
                self.refuse(key, f"there is no such key{_meant(key, tuple(known))}")

    def _get(self, key: str) -> object:
        self._known.add(key)
        full = self._prefix + key
        return self._overrides[full] if full in self._overrides else self._values.get(key)


def _meant(said: str, possible: tuple[str, ...]) -> str:
    """What is possible, the nearest first."""
    near = get_close_matches(said, possible, n=1)
    listed = ", ".join(each or "'' (chosen)" for each in possible)
    return f"; did you mean {near[0]!r}? Possible: {listed}" if near else f"; possible: {listed}"
