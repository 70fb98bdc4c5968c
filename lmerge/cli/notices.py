"""Where in the file a notice of the merge comes from.

A batch holds many lines, and the merge names the offending element, not its line. So the element
is looked up in the batch: usually one line has it; otherwise the lines between the first and the
last that could be meant are named. With ``--trace`` a batch is one line.
"""

from __future__ import annotations

from typing import NamedTuple

from lmerge.core.output import Notice, NoticeKind
from lmerge.elements import Element, Stable
from lmerge.files import Part, elements


class Place(NamedTuple):
    """Lines of a file, both ends included."""

    source: str
    first: int
    last: int

    def __str__(self) -> str:
        lines = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.source}:{lines}"


def located(notice: Notice, place: Place, cause: Part | None, *, trace: bool) -> str:
    """The notice as a message, with the place if it is known or the stream is at fault."""
    if notice.kind is not NoticeKind.QUARANTINED or cause is None:
        return f"{place}: {notice}" if trace else str(notice)
    text = str(notice)
    found = []
    friendly = text
    for line, (as_core, as_json) in zip(cause.lines.tolist(), _texts(cause), strict=True):
        if text.endswith(f": {as_core}"):
            found.append(line)
            friendly = text.removesuffix(as_core) + as_json
    if found:
        place = Place(place.source, found[0], found[-1])
    return f"{place}: {friendly}"


def _texts(cause: Part) -> list[tuple[str, str]]:
    """Each element as the core shows it, and with its payload as JSON."""
    names = [n for n in cause.batch.schema.names if n not in ("op", "vs", "ve", "vold")]
    payloads = cause.batch.select(sorted(names)).to_pylist()
    plain = list(elements(cause.batch))
    return [
        (str(_with(element, payload)), str(element))
        for element, payload in zip(plain, payloads, strict=True)
    ]


def _with(element: Element, payload: object) -> Element:
    if isinstance(element, Stable):
        return element
    return element._replace(payload=payload)
