"""Which query a checkpoint belongs to: its plan in words that are the same in every process.

Spark takes the checkpoint of a query for a changed one without a word in many cases (a filter more,
``sum`` for ``count``, another modulus, another function) and computes nonsense from then on. So a
replica keeps the fingerprint of its plan beside its checkpoint, and compares.

Callers may rely on this:
- Two runs of the same code over the same kind of input have equal fingerprints: left out are ids
  of expressions, seeds that Spark picks, addresses, paths of inputs and how much is read at a time.
- Another operator, expression, constant, column, type, output mode, lifetime, payload or key is
  another fingerprint; so is another body of a Python function (:mod:`replicas.bodies`).
- Not seen: the rows of tables that are joined, functions in Scala or Java, Python functions of more
  than a MiB pickled (their names are), and what a function reads from elsewhere.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from lmerge.errors import ConfigurationError
from replicas import catalyst
from replicas.bodies import body
from replicas.checkpointing import PLAN
from replicas.horizon import CONF
from replicas.lifetimes import Lifetimes

FORMAT: Final = 1
FILE: Final = PLAN
SHOWN_MAX: Final = 3
CHARS_MAX: Final = 240
_FIELDS_MAX: Final = 2**31 - 1
_RUNS: Final = frozenset({  # options of sources that say where and how fast, and not what
    "path", "paths", "horizon", "server", "tokenfile", "rootfile", "certificatefile", "keyfile",
    "patience", "start", "seed", "rowsperbatch", "maxrowsperbatch", "maxrowspertrigger",
    "maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger",
    "kafka.bootstrap.servers", "startingoffsets", "host", "port", "rowspersecond",
})  # fmt: skip
_NAMES_ONLY: Final = ("SubqueryAlias", "View")
_UUID: Final = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_OBJECT: Final = re.compile(r"@[0-9a-f]{4,}\b|\$\$Lambda[^\s,)\]]*")
_SEED: Final = re.compile(
    r"\b(rand|randn|random|uuid|shuffle)\(([^()]*, ?)?(Some\()?-?\d{10,}\)?\)"
)
_ID: Final = re.compile(r"#(\d+)|\b(CTERelation(?:Def|Ref)) (\d+)")
_COLUMN: Final = re.compile(r"#\d+L?|-T\d+ms")
_NUMBERED: Final = re.compile(r"-\d+$")  # a feed that is registered once more


@dataclass(frozen=True)
class Fingerprint:
    """A plan in words: what is compared, and what an explanation is made of."""

    mode: str
    result: Mapping[str, str]  # how rows become events
    plan: tuple[str, ...]  # a line for each operator and function, the result's first
    spark: str = ""  # its version, for the explanation: plans are said in Spark's words

    @property
    def digest(self) -> str:
        """Equal for equal plans only."""
        said = json.dumps([FORMAT, self.mode, dict(self.result), self.plan], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def encoded(self) -> bytes:
        """As it is kept."""
        return json.dumps({"format": FORMAT, "digest": self.digest, **asdict(self)}).encode()

    @classmethod
    def decoded(cls, content: bytes) -> Fingerprint:
        """The inverse."""
        try:
            found = json.loads(content)
            if found["format"] != FORMAT:
                raise ConfigurationError(
                    f"the checkpoint's fingerprint is of format {found['format']}, and this is"
                    f" {FORMAT}: another version of lmerge made it"
                )
            return cls(found["mode"], found["result"], tuple(found["plan"]), found["spark"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{FILE} of the checkpoint is damaged: {error}") from None

    def differences(self, query: Fingerprint) -> list[str]:
        """How another plan differs from this one, the checkpoint's; empty when it does not."""
        if self.digest == query.digest:
            return []
        told = []
        if self.mode != query.mode:
            told.append(f"the mode is {query.mode}, and the checkpoint's {self.mode}")
        for name in sorted({*self.result, *query.result}):
            ours, theirs = query.result.get(name, "none"), self.result.get(name, "none")
            if ours != theirs:
                told.append(f"{name} is {_cut(ours)}, and the checkpoint's {_cut(theirs)}")
        told += _changes(self.plan, query.plan)
        if self.spark != query.spark:
            told.append(f"the checkpoint is Spark {self.spark}'s, and this is {query.spark}")
        return told


def fingerprint(df: DataFrame, mode: str, times: Lifetimes, keys: Iterable[str]) -> Fingerprint:
    """The fingerprint of a query, with its lifetimes and keys as they were found."""
    spark = df.sparkSession
    address = spark.conf.get(CONF, None)
    plan = tuple(_lines(df._jdf.queryExecution().analyzed(), (address,) if address else ()))
    result = {
        "vs": times.vs, "ve": times.ve, "payload": times.schema.simpleString(),
        "key": ", ".join(keys) or "none",
    }  # fmt: skip
    return Fingerprint(mode, result, plan, spark.version)


def check(known: bytes | None, query: Fingerprint, checkpoint: str) -> None:
    """Refuse a checkpoint that is another plan's: ConfigurationError, with what differs.

    ``known`` is the content of its FILE; without one nobody can tell what made it.
    """
    if known is None:
        raise ConfigurationError(
            f"checkpoint {checkpoint} has no fingerprint of a plan: a replica did not make it;"
            " start with a new checkpoint, or trust it (--trust-checkpoint)"
        )
    told = Fingerprint.decoded(known).differences(query)
    if told:
        raise ConfigurationError(
            f"checkpoint {checkpoint} belongs to another plan: {'; '.join(told)}. Spark might take"
            " it and compute nonsense: start with a new checkpoint, or trust it"
            " (--trust-checkpoint)"
        )


# -- from a plan to lines ----------------------------------------------------------------------


def _lines(plan: catalyst.Node, masks: tuple[str, ...]) -> Iterator[str]:
    numbers: dict[str, int] = {}

    def renumbered(match: re.Match[str]) -> str:
        # By first appearance: counters go on from query to query, columns keep their order.
        word = f"{match[2]} " if match[2] else "#"
        number = numbers.setdefault(f"{word}{match[3] or match[1]}", len(numbers))
        return f"{word}{number}"

    for depth, text in _said(plan, 0, masks):
        for mask in masks:
            text = text.replace(mask, "<run>")
        text = _OBJECT.sub("", _UUID.sub("<id>", text))
        text = _SEED.sub(r"\1(\2<seed>)", text)
        yield "  " * depth + _ID.sub(renumbered, text)


def _said(node: catalyst.Node, depth: int, masks: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    kind = catalyst.kind(node)
    inputs = catalyst.children(node)
    if kind in _NAMES_ONLY:
        for each in inputs:
            yield from _said(each, depth, masks)
        return
    yield depth, _source(node, kind) if not inputs else _plain(node)
    for expression in catalyst.sequence(node.expressions()):
        for each in catalyst.tree(expression):
            if catalyst.kind(each).startswith("Python"):
                yield depth + 1, f"function {each.name()}: {_body(each, masks)}"
    for each in [*catalyst.sequence(node.subqueries()), *inputs]:
        yield from _said(each, depth + 1, masks)


def _plain(node: catalyst.Node) -> str:
    # Spark marks with a quote what is not resolved, and with a tilde what is streaming.
    return str(node.simpleString(_FIELDS_MAX)).lstrip("~!'")


def _source(node: catalyst.Node, kind: str) -> str:
    """A leaf: what is read, and not from where."""
    columns = ", ".join(
        f"{each.name()}#{each.exprId().id()} {catalyst.type_name(each)}"
        for each in catalyst.sequence(node.output())
    )
    if kind == "StreamingRelationV2":
        name, options = node.sourceName(), dict(node.extraOptions())
    elif kind == "StreamingRelation":
        source = node.dataSource()
        pairs = catalyst.sequence(source.options().toSeq())
        name, options = source.className(), {each._1(): each._2() for each in pairs}
    elif "Relation" in kind and kind != "CTERelationRef":
        return f"{kind} [{columns}]"
    else:
        return f"{_plain(node)} [{columns}]"
    said = ", ".join(
        f"{key}={value}"
        for key, value in sorted(options.items())
        if value and key.lower().replace("_", "") not in _RUNS
    )
    return f"Source {_NUMBERED.sub('', str(name))} ({said}) [{columns}]"


def _body(function: catalyst.Expression, masks: tuple[str, ...]) -> str:
    try:
        command = function.func().command()
        return body(cloudpickle.loads(bytes(command.unsafeArray())), masks)
    except Exception as error:  # a broadcast one, or a function that only a worker can import
        return f"unknown, {function.dataType().simpleString()} ({type(error).__name__})"


# -- from two plans to their difference --------------------------------------------------------


def _changes(theirs: tuple[str, ...], ours: tuple[str, ...]) -> list[str]:
    """The first lines that are not the same."""
    # Without the columns' numbers, as one more column would change all that come after it.
    before, after = ([_COLUMN.sub("", line).strip() for line in plan] for plan in (theirs, ours))
    if before == after:
        before, after = ([line.strip() for line in plan] for plan in (theirs, ours))
    told = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        old, new = before[i1:i2], after[j1:j2]
        if not new:
            told.append(f"{_listed(old)} is missing")
        elif not old:
            told.append(f"{_listed(new)} is new")
        elif len(old) == len(new):
            pairs = zip(new, old, strict=True)
            told += [f"{_listed([mine])} was {_listed([was], mine)}" for mine, was in pairs]
        else:
            told.append(f"{_listed(new)} was {_listed(old, new[0])}")
    more = len(told) - SHOWN_MAX
    return [*told[:SHOWN_MAX], *([f"and {more} more differences"] if more > 0 else [])]


def _listed(lines: list[str], beside: str = "") -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"«{_cut(lines[0], beside)}»{more}"


def _cut(text: str, beside: str = "") -> str:
    """A line for a person; of a long one the part where it begins to differ."""
    if len(text) <= CHARS_MAX:
        return text
    same = next((n for n, (a, b) in enumerate(zip(text, beside, strict=False)) if a != b), 0)
    start = max(0, min(same - CHARS_MAX // 2, len(text) - CHARS_MAX))
    return ("…" if start else "") + text[start : start + CHARS_MAX] + "…"
