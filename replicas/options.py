"""The options of the formats named "lmerge", read and checked.

Names are taken in any case, with or without underscores, as Spark's users write them. What is not
known is refused: a misspelt option must not quietly mean its default. A token is given by a file
and not by itself, since Spark shows options in plans and logs; files are read where they are used,
so every executor needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmerge.client import Retry, Security
from lmerge.errors import ConfigurationError

NAME: Final = "lmerge"
PATIENCE_S: Final = 300.0
"""How long a server may be away before the query fails."""

_CONNECTION: Final = (
    "server", "merge", "tls", "root_file", "certificate_file", "key_file", "token_file", "patience",
)  # fmt: skip
# What Spark itself puts among the options of a stream.
_SPARKS: Final = ("checkpointlocation", "path", "queryname", "outputmode")


class Options:
    """Some options, by the names that ``known`` spells, and those that every connection needs."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        spelt = {_plain(name): name for name in (*_CONNECTION, *known)}
        self._values: dict[str, str] = {}
        self.checkpoint: str | None = None
        for name, value in given.items():
            plain = _plain(name)
            if plain == "checkpointlocation":
                self.checkpoint = value
            elif plain in spelt:
                self._values[spelt[plain]] = value
            elif plain not in _SPARKS:
                raise ConfigurationError(
                    f"{NAME} has no option {name!r} here: it has {', '.join(spelt.values())}"
                )
        self.server = self.needed("server")
        self.merge = self.needed("merge")
        self.retry_patience_s = self._seconds("patience", PATIENCE_S)

    def get(self, name: str) -> str | None:
        """An option; None when it is absent or empty."""
        return self._values.get(name) or None

    def needed(self, name: str) -> str:
        """An option that there is no default for."""
        value = self.get(name)
        if value is None:
            raise ConfigurationError(f"{NAME} needs the option {name!r}")
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """An option that is one of a few words; the first is the default."""
        value = (self.get(name) or choices[0]).lower()
        if value not in choices:
            raise ConfigurationError(f"{name} is {', '.join(choices)}, not {value!r}")
        return value

    def names(self, name: str) -> list[str] | None:
        """An option that lists columns, separated by commas."""
        value = self.get(name)
        return None if value is None else [each.strip() for each in value.split(",")]

    def whole(self, name: str) -> int | None:
        """An option that is a whole number of at least 1."""
        value = self.get(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise ConfigurationError(f"{name} must be a whole number of at least 1, not {value!r}")
        return int(value)

    def _seconds(self, name: str, default: float) -> float:
        value = self.get(name)
        try:
            found = default if value is None else float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < float("inf"):
            raise ConfigurationError(f"{name} is a number of seconds, not {value!r}")
        return found

    def security(self) -> Security:
        """How the server is known, and how the caller is; reads the token's file."""
        token_file = self.get("token_file")
        security = Security(
            root_file=self.get("root_file"),
            certificate_file=self.get("certificate_file"),
            key_file=self.get("key_file"),
            token=None if token_file is None else _token(token_file),
            tls=self.one_of("tls", ("false", "true")) == "true",
        )
        security.check(self.server)
        return security

    def retry(self) -> Retry:
        """How long a lost server is tried again."""
        return Retry(patience_s=self.retry_patience_s)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _token(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
