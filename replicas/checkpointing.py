"""Copies of a replica's checkpoint, taken while it runs.

A saved checkpoint is a directory with what Spark and lmerge keep, as it was behind one batch, and a
manifest. Callers may rely on this:

- It is there whole or not at all: it is made beside its place, verified, and renamed.
- It is consistent: the last batch N that was committed when the copy began, with the offsets and
  commits up to it, the versions of the state up to N + 1, and the memory up to N. What the replica
  writes meanwhile belongs to later batches, and is left out. What Spark's maintenance removes
  meanwhile was not needed for N, or a newer N is taken (at most ``ATTEMPTS`` times).
- A restored checkpoint is another query and begins another stream (:mod:`replicas.beginning`): the
  lineage is not copied, and the query's id is made anew.

Nothing here needs Spark. The directories are local, or mounted; what lies on HDFS or in an object
store must be copied here first, while its replica is paused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lmerge.errors import ConfigurationError, NotFoundError, UnavailableError
from lmerge.times import BEGINNING, INFINITY

MANIFEST: Final = "lmerge-checkpoint.json"
FORMAT: Final = 1
ATTEMPTS: Final = 8
PLAN: Final = "lmerge/plan"  # the fingerprint
_LINEAGE: Final = "lmerge/lineage"
_VERSIONED: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(delta|snapshot|changelog|zip)")
_WHOLE: Final = ("snapshot", "zip")  # of the state; the others are changes to the version before


@dataclass(frozen=True)
class Saved:
    """What a saved checkpoint's manifest says."""

    name: str
    merge: str
    stream: str  # of the replica that it is of
    batch: int
    mode: str
    fingerprint: str
    since: int | None  # what ends from here on a restored stream vouches for; None: of nothing
    spark: str
    files: int
    size: int  # bytes
    saved_at: str
    directory: str = ""
    plan: str = field(default="", compare=False)  # the result's operator, for people

    def encoded(self) -> str:
        """As it is kept."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def decoded(cls, found: Any) -> Saved:
        """The inverse, of JSON's values; ConfigurationError when they are none."""
        try:
            if found["format"] != FORMAT:
                raise ConfigurationError(f"a manifest of format {found['format']}, not {FORMAT}")
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"this is no manifest of a checkpoint: {error}") from None


class _ChangedError(Exception):
    """The replica went on, and what was to be copied is gone: try again."""


def save(
    source: Path, target: Path, *, merge: str, stream: str, name: str | None = None,
    copied: Callable[[str], None] = lambda _: None,
) -> Saved:  # fmt: skip
    """Copy a replica's checkpoint; ``copied`` is told each file. UnavailableError: it had no luck.

    ``name`` is by default made of the merge, the stream and the batch.
    """
    _check_source(source)
    _check_target(target)
    reason = ""
    for _ in range(ATTEMPTS):
        draft = _draft(target)
        try:
            saved = _copy(source, draft, merge, stream, name, copied)
            saved = Saved(**{**asdict(saved), "directory": str(target.absolute())})
            (draft / MANIFEST).write_text(saved.encoded())
            _put(draft, target)
            return saved
        except _ChangedError as error:
            reason = str(error)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    raise UnavailableError(f"{source} changes faster than it can be copied: {reason}")


def read(directory: Path) -> Saved:
    """The manifest of a saved checkpoint."""
    try:
        found = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        raise NotFoundError(f"{directory} is no saved checkpoint: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{directory / MANIFEST} cannot be read: {error}") from None
    saved = Saved.decoded(found)
    return Saved(**{**asdict(saved), "directory": str(directory.absolute())})  # it may have moved


def found_in(directory: Path) -> list[Saved]:
    """The saved checkpoints there: the directory itself, or those in it."""
    if (directory / MANIFEST).is_file():
        return [read(directory)]
    if not directory.is_dir():
        raise NotFoundError(f"there is no directory {directory}")
    inside = sorted(each for each in directory.iterdir() if (each / MANIFEST).is_file())
    return [read(each) for each in inside if not each.name.startswith(".")]


def restore(directory: Path, target: Path) -> Saved:
    """Make a checkpoint for a new replica of a saved one."""
    saved = read(directory)
    _check_target(target)
    if saved.since is None:
        raise ConfigurationError(
            f"checkpoint {saved.name} has said results that never end, which a replica begun from"
            " it would not say again: it could vouch for nothing. Run the plan in update mode,"
            " whose results are remembered, or start without a checkpoint"
        )
    _verify(directory, saved.batch)
    draft = _draft(target)
    try:
        shutil.copytree(directory, draft, ignore=lambda _, names: {MANIFEST} & set(names))
        # Two queries of one id may not run in one session.
        (draft / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        _put(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return saved


def local(directory: str) -> Path:
    """A directory as Spark takes it; ConfigurationError when it is not of this machine."""
    scheme, colon, rest = directory.partition(":")
    if not colon or "/" in scheme:
        return Path(directory)
    if scheme != "file":
        raise ConfigurationError(
            f"{directory} is not a directory of this machine: a checkpoint there cannot be made by"
            " --jumpstart; restore it here, and copy it there"
        )
    return Path("/" + rest.lstrip("/"))


def jumpstart(directory: Path, checkpoint: Path) -> Saved | None:
    """Restore, unless the replica has begun already, and only goes on; then None."""
    if any((checkpoint / name).exists() for name in ("metadata", "offsets", "lmerge")):
        return None
    return restore(directory, checkpoint)


# -- what is there -----------------------------------------------------------------------------


def _check_source(source: Path) -> None:
    if not source.is_dir():
        raise NotFoundError(f"there is no directory {source}: where is the replica's checkpoint?")
    if (source / MANIFEST).exists():
        raise ConfigurationError(f"{source} is a saved checkpoint itself: copy it as it is")
    if not (source / PLAN).is_file():
        raise ConfigurationError(
            f"{source} has no fingerprint of a plan ({PLAN}): no replica runs there"
        )


def _check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is there already, and is not overwritten")


def _draft(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.draft"


def _put(draft: Path, target: Path) -> None:
    if target.exists():
        target.rmdir()  # fails, as it should, when somebody has put something there
    draft.rename(target)


def _numbers(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    return {int(name) for name in os.listdir(folder) if name.isdecimal()}


def _batch(checkpoint: Path) -> int:
    """The last batch that was committed."""
    done = _numbers(checkpoint / "commits") & _numbers(checkpoint / "offsets")
    if not done:
        raise UnavailableError(f"the query of {checkpoint} has committed no batch yet")
    return max(done)


# -- copying -----------------------------------------------------------------------------------


def _copy(
    source: Path, draft: Path, merge: str, stream: str, name: str | None,
    copied: Callable[[str], None],
) -> Saved:  # fmt: skip
    batch = _batch(source)
    files = size = 0
    # Everything that batch N needs was complete before its commit was there: list it after that.
    for relative in list(_needed(source, batch)):
        to = draft / relative
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / relative, to)
        except FileNotFoundError:
            raise _ChangedError(f"{relative} is gone") from None
        copied(relative)
        files, size = files + 1, size + to.stat().st_size
    try:
        _verify(draft, batch)
    except ConfigurationError as error:
        raise _ChangedError(str(error)) from None
    plan = json.loads((draft / PLAN).read_text())
    return Saved(
        name or f"{merge}-{stream}-{batch}", merge, stream, batch, plan["mode"], plan["digest"],
        _since(draft, batch, plan["mode"]), plan["spark"], files, size,
        datetime.now(UTC).isoformat(timespec="seconds"), plan=plan["plan"][0],
    )  # fmt: skip


def _needed(source: Path, batch: int) -> Iterator[str]:
    """The files of a checkpoint that belong to its first batches, up to this one."""
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            relative = os.path.relpath(os.path.join(folder, name), source)
            # Hidden are files that are being written, and checksums that Hadoop can do without.
            if name.startswith(".") or name.endswith(".tmp") or relative == _LINEAGE:
                continue
            if _belongs(relative.removesuffix(".crc"), batch):
                yield relative


def _belongs(relative: str, batch: int) -> bool:
    folder, _, name = relative.rpartition("/")
    if folder in ("offsets", "commits", "lmerge/epochs"):
        return name.isdecimal() and int(name) <= batch
    version = _VERSIONED.fullmatch(name)
    if folder.startswith("state/") and version is not None:
        return int(version[1]) <= batch + 1
    return True


def _verify(checkpoint: Path, batch: int) -> None:
    """Whether everything is there that the next batch begins with; ConfigurationError if not."""

    def missing(what: str) -> ConfigurationError:
        return ConfigurationError(f"the checkpoint {checkpoint} is not complete: {what} is missing")

    for name in (f"offsets/{batch}", f"commits/{batch}", "metadata", PLAN):
        if not (checkpoint / name).is_file() or not (checkpoint / name).stat().st_size:
            raise missing(name)
    ends = checkpoint / "lmerge/ends"
    if not ends.is_dir() or not any(ends.iterdir()):
        raise missing("lmerge/ends")
    if json.loads((checkpoint / PLAN).read_text())["mode"] != "append":
        known = _numbers(checkpoint / "lmerge/epochs")
        whole = [n for n in known if _head(checkpoint, n)["whole"]]
        if batch not in known or not set(range(max(whole, default=-1), batch)) <= known:
            raise missing(f"lmerge/epochs up to {batch}")
    for folder, _, names in os.walk(checkpoint / "state"):
        versions = [match for name in names if (match := _VERSIONED.fullmatch(name))]
        if not versions:
            continue
        whole = [int(each[1]) for each in versions if each[2] in _WHOLE]
        changes = {int(each[1]) for each in versions if each[2] not in _WHOLE}
        # From any whole version, or from nothing, by changes.
        reachable = any(set(range(start + 1, batch + 2)) <= changes for start in (0, *whole))
        if not reachable:
            raise missing(f"version {batch + 1} of {os.path.relpath(folder, checkpoint)}")


def _head(checkpoint: Path, epoch: int) -> dict[str, Any]:
    with (checkpoint / f"lmerge/epochs/{epoch}").open("rb") as file:
        found: dict[str, Any] = json.loads(file.readline())
    return found


def _since(checkpoint: Path, batch: int, mode: str) -> int | None:
    """As :mod:`replicas.beginning` will find it, but for the watermark, which is not kept here."""
    known = [n for n in _numbers(checkpoint / "lmerge/epochs") if n <= batch]
    head = _head(checkpoint, max(known)) if known else {}
    least = max(head.get("stable", BEGINNING), head.get("skipped_before", BEGINNING))
    if mode != "append":
        return int(least)
    end = max(int(name) for name in os.listdir(checkpoint / "lmerge/ends"))
    return None if end == INFINITY else max(end + 1, int(least))
