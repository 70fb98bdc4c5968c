"""The server's log on stderr: lines for people, or one JSON object a line.

Callers may rely on this: an event is one line, whatever is in it (control characters are escaped,
so that a stream's name cannot pass for a line of ours; only a traceback for people has lines of
its own, indented), and a stderr that is closed or full is no reason to fail. Fields are given as
``extra``::

    log.info("stream attached", extra={"merge": "m", "stream": "a"})

logging itself keeps some names (``name``, ``module``, ``args``, ``message``); use others.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from lmerge.errors import ConfigurationError

FORMATS: Final = ("text", "json")
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(log_format: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Sends lmerge's events to stderr, and the warnings of every library. May be called again."""
    if log_format not in FORMATS:
        raise ConfigurationError(f"log_format: {log_format!r}; possible: {', '.join(FORMATS)}")
    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    ours, root = logging.getLogger("lmerge"), logging.getLogger()
    for logger in (ours, root):
        for old in [each for each in logger.handlers if isinstance(each, _Handler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    ours.setLevel(level)
    ours.propagate = False  # root has the same handler: once is enough


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as ``extra``."""
    return {key: value for key, value in record.__dict__.items() if key not in _OWN}


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Nobody listens: the merge matters more."""


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _when(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        # What the line says of itself is not to be overwritten by a field.
        line |= {key: value for key, value in fields_of(record).items() if key not in line}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        # Characters beyond ASCII are escaped: some of them end a line for some readers.
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_when(record), f"{record.levelname:<7}", _plain(record.getMessage())]
        parts += [f"{key}={_shown(value)}" for key, value in fields_of(record).items()]
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join([" ".join(parts), *("    " + _plain(line) for line in trace)])


def _when(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(text: str) -> str:
    """The text, where what could move a terminal's cursor or end the line is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    bare = bool(text) and text.isprintable() and not set(text) & set(' "=')
    return text if bare else json.dumps(text, ensure_ascii=not text.isprintable())
