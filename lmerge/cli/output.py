"""Where a command writes to, with errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from lmerge.errors import ConfigurationError
from lmerge.files import Writer, open_writer


@contextmanager
def writing(
    output: str | None, schema: pa.Schema, *, streams: bool = False, trace: bool = False
) -> Iterator[Writer]:
    """A writer to ``output``, or to stdout, that is closed in any case.

    A failure to write is a ``ConfigurationError`` (reading has errors of its own), except that a
    reader who went away stays ``BrokenPipeError``.
    """
    try:
        with open_writer(output or "-", schema, streams=streams, trace=trace) as writer:
            yield writer
    except BrokenPipeError:
        raise
    except OSError as error:
        text = error.strerror or str(error)
        raise ConfigurationError(f"cannot write {output or 'stdout'}: {text}") from error
