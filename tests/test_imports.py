"""Imports point down, and the core does nothing but compute: read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("lmerge", "replicas", "coordinator") if (ROOT / name).is_dir()]

# A module may import from the layers before its own, and from its own. Longest prefix counts.
LAYERS: list[set[str]] = [
    {"lmerge.errors", "lmerge.times"},
    {"lmerge.elements"},
    {"lmerge.core.compiled"},
    {"lmerge.core.batch", "lmerge.core.gathering", "lmerge.core.promises", "lmerge.core.nodes",
     "lmerge.core.identity", "lmerge.core.policy"},
    {"lmerge.core.payloads", "lmerge.core.digests", "lmerge.core.imprints",
     "lmerge.core.properties"},
    {"lmerge.core.streams", "lmerge.core.output", "lmerge.core.statistics",
     "lmerge.core.snapshots"},
    {"lmerge.core.divergence", "lmerge.core.algorithms"},
    {"lmerge.core.merge"},
    {"lmerge.core.warmup", "lmerge.tdb", "lmerge.jsonlines", "lmerge.workload"},
    {"lmerge", "lmerge.core"},  # what the packages' own names export
    {"lmerge.files", "lmerge.v1"},
    {"lmerge.wire"},
    {"lmerge.client"},
    {"lmerge.server.journal", "lmerge.server.config", "lmerge.server.live", "lmerge.server.logs",
     "lmerge.server.allocating"},
    {"lmerge.server.state", "lmerge.server.output", "lmerge.server.security",
     "lmerge.server.metrics"},
    {"lmerge.server.snapshots", "lmerge.server.grouping"},
    {"lmerge.server.host"},
    {"lmerge.server.sessions"},
    {"lmerge.server.hub"},
    {"lmerge.server.calls", "lmerge.server.membership", "lmerge.server.silence"},
    {"lmerge.server.replicas", "lmerge.server.consumers", "lmerge.server.operators"},
    {"lmerge.server.serving"},
    {"lmerge.server"},
    {"lmerge.cli", "lmerge.__main__"},
]  # fmt: skip
PACKAGE_NAMES = ("lmerge", "lmerge.core", "lmerge.server")  # whose modules have layers of their own
# Of the standard library and others, what the core may use: it reads nothing and waits for nothing.
CORE_MAY_IMPORT = {
    "__future__", "collections", "contextlib", "dataclasses", "enum", "functools", "hashlib", "io",
    "itertools", "json", "llvmlite", "lmerge", "math", "numba", "numpy", "pyarrow",
    "sortedcontainers", "typing", "zipfile", "zlib",
}  # fmt: skip
SECRETS_IN = "lmerge.core.merge"  # for the key of a new merge
CORE_MAY_NOT_CALL = {"open", "print", "input", "exec", "eval", "__import__"}
ONLY_UNDER = {"pyspark": "replicas", "kazoo": "coordinator"}


def _modules() -> dict[str, ast.Module]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text("utf-8"), str(path))
    return found


MODULES = _modules()


def _imports(name: str, *, anywhere: bool = True) -> Iterator[str]:
    """What a module imports, by full name; with `anywhere`, inside functions too."""
    tree = MODULES[name]
    nodes = ast.walk(tree) if anywhere else _at_import_time(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import, which hides where it points"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


def _at_import_time(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, which type checkers' own do not."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            waiting += statement.orelse
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting += getattr(statement, field, [])


def _layer(name: str) -> int:
    prefix = name
    while True:
        for number, layer in enumerate(LAYERS):
            if prefix in layer and (prefix == name or prefix not in PACKAGE_NAMES):
                return number
        if "." not in prefix:
            raise AssertionError(f"{name} is in no layer: say in this test where it belongs")
        prefix = prefix.rpartition(".")[0]


OURS = [name for name in MODULES if name.split(".")[0] == "lmerge"]
CORE = [name for name in OURS if name.startswith("lmerge.core.")]


@pytest.mark.parametrize("name", [n for n in OURS if not n.startswith("lmerge.v1.")])
def test_imports_point_down(name: str) -> None:
    for imported in _imports(name):
        if imported in OURS:
            assert _layer(imported) <= _layer(name), f"{name} imports {imported} above it"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise AssertionError(" imports ".join((*path[path.index(name) :], name)))
        if name in done:
            return
        for imported in _imports(name, anywhere=False):
            if imported in MODULES and imported != name:
                visit(imported, (*path, name))
        done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_no_clock_no_threads_and_no_randomness(name: str) -> None:
    allowed = CORE_MAY_IMPORT | ({"secrets"} if name == SECRETS_IN else set())
    foreign = {imported.split(".")[0] for imported in _imports(name)} - allowed
    assert not foreign, f"{name} imports {sorted(foreign)}"


@pytest.mark.parametrize("name", CORE)
def test_the_core_opens_nothing_and_prints_nothing(name: str) -> None:
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CORE_MAY_NOT_CALL, f"{name}:{node.lineno}"


def test_grpc_stays_at_the_edges() -> None:
    edges = ("lmerge.wire", "lmerge.client", "lmerge.server", "lmerge.v1", "lmerge.cli")
    for name in OURS:
        if any(i.split(".")[0] in ("grpc", "grpc_status") for i in _imports(name)):
            assert name.startswith(edges), f"{name} imports grpc"


def test_clients_need_nothing_of_the_server() -> None:
    for name in OURS:
        if name.startswith(("lmerge.client", "lmerge.wire")):
            assert not any(i.startswith("lmerge.server") for i in _imports(name)), name


def test_the_core_knows_nothing_of_what_is_around_it() -> None:
    for name in CORE:
        for imported in _imports(name):
            assert not imported.startswith(
                ("lmerge.cli", "lmerge.files", "lmerge.server", "lmerge.wire")
            ), name
            assert imported.split(".")[0] not in ("grpc", "pyspark", "kazoo"), name


@pytest.mark.parametrize("library", ONLY_UNDER)
def test_spark_and_zookeeper_stay_in_their_folders(library: str) -> None:
    users = [n for n in MODULES if any(i.split(".")[0] == library for i in _imports(n))]
    strays = [n for n in users if n.split(".")[0] != ONLY_UNDER[library]]
    assert not strays, f"{library} is used by {strays}"


def test_lmerge_imports_neither_replicas_nor_coordinator_but_on_the_command_line() -> None:
    for name in OURS:
        if not name.startswith("lmerge.cli"):
            heads = {imported.split(".")[0] for imported in _imports(name)}
            assert not heads & {"replicas", "coordinator"}, name
