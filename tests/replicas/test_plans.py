"""The example plans: alone and together they come to what a batch job says.

The replicas of a merge differ in plan, partitions, sizes of batches and the disorder of their
input; they run at the same time. Each plan also runs alone: in a merge the others could cover up
for one that is wrong.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError
from replicas.attaching import Replica, attach
from replicas.plans import inputs, join, machines, processes, selection, topk
from tests.replicas.merging import Tdb, read_until
from tests.replicas.merging import truth as tdb_of
from tests.server.serving import ServerProcess, server_process

ROWS = 239
"""One fewer than a multiple of every size of batches: the two closing rows come in two batches."""


@dataclass(frozen=True)
class Example:
    module: ModuleType
    plans: tuple[str, ...]
    alone: int = ROWS + 1  # rows per batch where a plan runs alone


EXAMPLES = [
    Example(machines, ("conservative", "aggressive")),
    Example(join, ("orders_first", "parcels_first"), alone=80),
    Example(selection, ("udf0", "udf1")),
    Example(topk, ("by_sorting", "by_stages", "by_revising")),
    Example(processes, ("running", "finished")),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("server")) as running:
        yield running


def replica_session(
    spark: SparkSession, directory: Path, *, partitions: int, rows_per_batch: int
) -> SparkSession:
    """A session of a replica's own, as its process would have: settings, horizon and all."""
    own = spark.newSession()
    own.conf.set(inputs.INPUT_CONF, str(directory))
    own.conf.set(inputs.ROWS_CONF, str(rows_per_batch))
    own.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return own


def begun(replica: Replica) -> None:
    """Spark gives each source's process ten seconds to start: not all start at once."""
    give_up = time.monotonic() + 60
    while replica.query.isActive and replica.query.status["message"].startswith("Initializing"):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def finish(replicas: Iterable[Replica]) -> None:
    """Let them take everything that is there."""
    replicas = list(replicas)
    try:
        for replica in replicas:
            replica.query.processAllAvailable()
    finally:
        for replica in replicas:
            replica.stop()


def starting_before(events: Tdb, complete: int) -> Tdb:
    """Without what the closing rows make."""
    return Counter({event: count for event, count in events.items() if event[1] < complete})


def expected(spark: SparkSession, example: Example, directory: Path) -> Tdb:
    rows = example.module.truth(spark, str(directory))
    payload = [name for name in rows.columns if name not in ("vs", "ve")]
    return tdb_of(rows, "vs", "ve", payload=payload)


VARIANTS = (  # partitions, rows per batch, disorder in seconds
    (1, 80, 0.0),
    (3, 40, 15.0),
    (1, 80, 5.0),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.module.__name__))
def test_every_plan_alone_and_all_together_give_the_truth(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, example: Example
) -> None:
    name = example.module.__name__.rpartition(".")[2]
    started: list[Replica] = []
    merges: dict[str, list[int]] = {}
    truths = []
    try:
        for number, plan in enumerate(example.plans):
            partitions, rows_per_batch, disorder_s = VARIANTS[number]
            directory = tmp_path / plan
            complete = example.module.generate(str(directory), ROWS, 7, disorder_s)
            truths.append(starting_before(expected(spark, example, directory), complete))
            together = (name, partitions, rows_per_batch)
            for merge, parts, size in (together, (f"{name}-{plan}", 1, example.alone)):
                own = replica_session(spark, directory, partitions=parts, rows_per_batch=size)
                df, options = getattr(example.module, plan)(own)
                started.append(
                    attach(
                        df, merge=merge, server=server.target, stream=plan,
                        checkpoint=str(tmp_path / f"checkpoint-{merge}-{plan}"), **options,
                    )
                )  # fmt: skip
                begun(started[-1])
                merges.setdefault(merge, []).append(complete)
    finally:
        finish(started)
    assert truths[0]
    assert all(truth == truths[0] for truth in truths)
    assert not [replica.sink.counters.late for replica in started if replica.sink.counters.late]
    for merge, completes in merges.items():
        assert len(set(completes)) == 1
        found = starting_before(read_until(server.target, merge, completes[0]), completes[0])
        assert found == truths[0], merge


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.module.__name__))
def test_an_input_depends_on_its_arguments_only_and_disorder_moves_no_row_out(
    tmp_path: Path, example: Example
) -> None:
    def rows_of(name: str) -> list[Any]:
        files = sorted((tmp_path / name).rglob("*.parquet"))
        return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]

    generate = example.module.generate
    ends = [generate(tmp_path / "one", 100, 3, 8), generate(tmp_path / "again", 100, 3, 8)]
    ends += [generate(tmp_path / "sorted", 100, 3, 0), generate(tmp_path / "other", 100, 4, 8)]
    assert len(set(ends[:3])) == 1
    assert rows_of("one") == rows_of("again")
    assert rows_of("one") != rows_of("sorted")
    assert sorted(map(repr, rows_of("one"))) == sorted(map(repr, rows_of("sorted")))
    assert rows_of("one") != rows_of("other")


def test_mistakes_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must name the directory"):
        machines.conservative(spark.newSession())
    with pytest.raises(ConfigurationError, match="disorder_s must be between 0 and 20"):
        machines.generate(tmp_path / "in", 10, 1, 21)
    with pytest.raises(ConfigurationError, match="at least one row"):
        machines.generate(tmp_path / "in", 0, 1, 0)
    selection.generate(tmp_path / "in", 10, 1, 0)
    own = replica_session(spark, tmp_path / "in", partitions=1, rows_per_batch=5)
    own.conf.set(selection.DEAR_CONF, "long")
    with pytest.raises(ConfigurationError, match="must be a whole number, not 'long'"):
        selection.udf0(own)
