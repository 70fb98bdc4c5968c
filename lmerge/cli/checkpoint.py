"""``lmerge checkpoint save|list|restore``: what new replicas begin from.

The work is :mod:`replicas.checkpointing`'s and :mod:`replicas.seeding`'s; records in ZooKeeper are
:mod:`coordinator.checkpoints`'s. Spark is started only to compare with a query (``--build``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmerge.cli import connection, deployment
from lmerge.cli.exits import EXIT_HELP, Exit
from lmerge.cli.status import clean, console
from lmerge.errors import ConfigurationError
from lmerge.times import show

if TYPE_CHECKING:
    from coordinator.deployment import Deployment
    from replicas.checkpointing import Saved

DESCRIPTION: Final = """\
Keeps what a new replica can begin from.

Of a replica that runs: a consistent copy of its checkpoint, for replicas of the same plan. They go
on behind the batch that it was taken at, as streams of their own.
Of a merge that queries read (--input): what is live in it, as a Parquet file of elements, for
replicas of any plan. A long window need not pass before they are right.
"""

EPILOG: Final = """\
examples:
  lmerge checkpoint save --merge counts --name r1 --to saved/monday
  lmerge checkpoint list saved
  lmerge checkpoint restore saved/monday --to checkpoints/counts/r4 --build my_query.py:build
  lmerge replica run my_query.py:build --merge counts --name r4 --jumpstart saved/monday
  lmerge checkpoint save --input readings --to readings.parquet

"""
_PARTS: Final = ("mode", "vs", "ve", "key")


def add_to(commands: Any) -> None:
    """Adds the command to the command line."""
    parser = commands.add_parser(
        "checkpoint",
        help="save, list and restore what new replicas begin from",
        description=DESCRIPTION,
        epilog=EPILOG + EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_save(actions)
    _add_list(actions)
    _add_restore(actions)


def _add_save(actions: Any) -> None:
    save = actions.add_parser(
        "save", help="of a replica that runs, or of a merge that queries read",
        description="Saves a replica's checkpoint (--name), or a merge's live events (--input).",
    )  # fmt: skip
    add = save.add_argument
    add("--name", metavar="REPLICA", help="whose checkpoint; its stream's name")
    add("--merge", help="the merge that it writes to")
    add("--from", dest="source", type=Path, metavar="DIR",
        help="its checkpoint (default: where the deployment's replica says,"
        " else checkpoints/MERGE/NAME beside you)")  # fmt: skip
    add("--input", metavar="MERGE", help="the merge whose live events are saved")
    add("--to", type=Path, required=True, metavar="PATH",
        help="a new directory; with --input a Parquet file")  # fmt: skip
    add("--as", dest="saved_as", metavar="NAME",
        help="what it is called (default: MERGE-REPLICA-BATCH)")  # fmt: skip
    add("--json", action="store_true", help="one JSON object, for programs")
    deployment.add_to(save)
    connection.add_to(save)
    save.set_defaults(run=_save)


def _add_list(actions: Any) -> None:
    found = actions.add_parser(
        "list", help="the checkpoints in directories, or of a deployment",
        description="Shows saved checkpoints.",
    )  # fmt: skip
    found.add_argument(
        "directories", nargs="*", type=Path, metavar="DIR",
        help="a saved checkpoint, or a directory of them (default: the deployment's)",
    )  # fmt: skip
    found.add_argument("--json", action="store_true", help="one JSON object, for programs")
    deployment.add_to(found)
    found.set_defaults(run=_list)


def _add_restore(actions: Any) -> None:
    restore = actions.add_parser(
        "restore", help="make a new replica's checkpoint of a saved one",
        description="Makes a checkpoint for a new replica of a saved one.",
    )  # fmt: skip
    add = restore.add_argument
    add("saved", metavar="SAVED", help="its directory, or its name in the deployment")
    add("--to", type=Path, required=True, metavar="DIR", help="the new replica's --checkpoint")
    add("--build", metavar="FILE.py:FUNCTION", help="refuse unless it belongs to this query")
    add("--mode", choices=("append", "update", "complete"), help="of the query, if not said there")
    add("--vs", metavar="SQL", help="as the replica is run with")
    add("--ve", metavar="SQL", help="as the replica is run with")
    add("--key", action="append", metavar="COLUMN", help="as the replica is run with")
    add("--conf", action="append", default=[], metavar="KEY=VALUE",
        help="Spark's; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="one JSON object, for programs")
    deployment.add_to(restore)
    restore.set_defaults(run=_restore)


# -- save --------------------------------------------------------------------------------------


def _save(arguments: argparse.Namespace) -> int:
    if arguments.input is not None:
        if arguments.name or arguments.source:
            raise ConfigurationError("--input saves a merge's events: --name and --from are not")
        return _save_input(arguments)
    if not arguments.name or not arguments.merge:
        raise ConfigurationError("say whose checkpoint it is with --name and --merge, or --input")
    from lmerge.server.config import check_name
    from replicas import checkpointing

    check_name("merge", arguments.merge)
    check_name("stream", arguments.name)
    if arguments.saved_as is not None:
        check_name("checkpoint", arguments.saved_as)
    with _opened(arguments) as opened:
        saved = checkpointing.save(
            _source(arguments, opened), arguments.to,
            merge=arguments.merge, stream=arguments.name, name=arguments.saved_as,
        )  # fmt: skip
        if opened is not None:
            from coordinator import checkpoints

            checkpoints.record(opened, saved.name, asdict(saved))
    if arguments.json:
        print(json.dumps(asdict(saved)))
    else:
        print(
            f"saved {saved.name} in {saved.directory}: batch {saved.batch}, {saved.files} files,"
            f" {saved.size:,} bytes; {_vouches(saved.since)}"
        )
    return Exit.OK


def _save_input(arguments: argparse.Namespace) -> int:
    from replicas import seeding

    seed = seeding.save(
        arguments.server, arguments.input, arguments.to,
        security=connection.security(arguments), seconds=arguments.timeout,
    )  # fmt: skip
    if arguments.json:
        print(json.dumps(asdict(seed)))
    else:
        print(
            f"saved {seed.events:,} live events of {seed.merge} in {arguments.to}, as they were at"
            f" {seed.position}, stable to {show(seed.stable)}"
        )
    return Exit.OK


def _source(arguments: argparse.Namespace, opened: Deployment | None) -> Path:
    source: Path | None = arguments.source
    if source is not None:
        return source
    if opened is None:
        return Path("checkpoints", arguments.merge, arguments.name)
    from coordinator import checkpoints

    return Path(checkpoints.member_checkpoint(opened, arguments.merge, arguments.name))


# -- list --------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    from replicas import checkpointing

    rows: list[dict[str, Any]] = []
    for directory in arguments.directories:
        rows += [asdict(saved) for saved in checkpointing.found_in(directory)]
    if not arguments.directories:
        with _opened(arguments) as opened:
            if opened is None:
                raise ConfigurationError("say which directory, or with --zk which deployment")
            from coordinator import checkpoints

            for name, value in checkpoints.recorded(opened).items():
                gone = checkpoints.missing(value)
                rows.append({**value, "name": name, "missing": gone})
    if arguments.json:
        print(json.dumps({"checkpoints": rows}))
    else:
        _show(rows)
    return Exit.OK


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not rows:
        print("no checkpoints")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    right = ("batch", "MB")
    for name in ("name", "merge", "replica", "mode", *right, "fingerprint", "vouches from",
                 "saved", "directory"):  # fmt: skip
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for each in rows:
        table.add_row(*(clean(text) for text in _cells(each)))
    console().print(table)


def _cells(row: Mapping[str, Any]) -> list[str]:
    since, directory = row.get("since"), str(row.get("directory", ""))
    if row.get("missing"):
        directory += " (is gone)"
    elif row.get("host"):
        directory = f"{row['host']}:{directory}"
    return [
        str(row.get("name", "")), str(row.get("merge", "")), str(row.get("stream", "")),
        str(row.get("mode", "")), str(row.get("batch", "")),
        f"{int(row.get('size', 0)) / 1e6:.1f}", str(row.get("fingerprint", ""))[:12],
        "never" if since is None else show(since), str(row.get("saved_at", "")), directory,
    ]  # fmt: skip


def _vouches(since: int | None) -> str:
    if since is None:
        return "it has results that never end, and no replica can begin from it"
    return f"a replica that begins from it is right from {show(since)} on"


# -- restore -----------------------------------------------------------------------------------


def _restore(arguments: argparse.Namespace) -> int:
    from replicas import checkpointing

    directory = Path(saved_directory(arguments, arguments.saved))
    saved = checkpointing.read(directory)
    if arguments.build is not None:
        _compare(arguments, directory)
    checkpointing.restore(directory, arguments.to)
    _told(arguments, saved)
    return Exit.OK


def _told(arguments: argparse.Namespace, saved: Saved) -> None:
    if arguments.json:
        print(json.dumps({**asdict(saved), "restored": str(arguments.to)}))
        return
    print(
        f"restored {saved.name} to {arguments.to}: the replica goes on behind batch {saved.batch};"
        f" {_vouches(saved.since)}"
    )


def _compare(arguments: argparse.Namespace, directory: Path) -> None:
    conf = {}
    for each in arguments.conf:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--conf takes KEY=VALUE, not {each!r}")
        conf[key] = value
    try:
        from replicas.attaching import plan_of
        from replicas.checkpointing import PLAN
        from replicas.fingerprint import check
        from replicas.loading import load_build, query_of
        from replicas.session import session
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise ConfigurationError("--build needs PySpark: pip install 'lmerge[spark]'") from error
    build = load_build(arguments.build)
    spark = session("lmerge checkpoint", more=conf)
    try:
        df, options = query_of(build, arguments.build, spark)
        said = {name: getattr(arguments, name) for name in _PARTS}
        given = {name: value for name, value in said.items() if value is not None}
        query = plan_of(df, **{**options, **given})
    finally:
        spark.stop()
    check((directory / PLAN).read_bytes(), query, str(directory))


# -- where -------------------------------------------------------------------------------------


def saved_directory(arguments: argparse.Namespace, said: str) -> str:
    """The directory of a saved checkpoint that is named by it, or by its name in a deployment."""
    if Path(said).is_dir():
        return said
    with _opened(arguments) as opened:
        if opened is None or "/" in said:
            raise ConfigurationError(f"there is no directory {said}, and no deployment to ask")
        from coordinator import checkpoints

        return checkpoints.directory_of(opened, said)


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Deployment | None]:
    """The deployment that is named, or whose state directory is here; None: there is none."""
    if arguments.zk is None:
        try:
            deployment.hosts(arguments)
        except ConfigurationError:
            yield None
            return
    with deployment.session(arguments) as session:
        yield session.deployment
