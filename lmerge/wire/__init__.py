"""The wire: rows as Arrow messages, errors as statuses, and the version both sides speak."""

from typing import Final

PROTOCOL_VERSION: Final = 1
