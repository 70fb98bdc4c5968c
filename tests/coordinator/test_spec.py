"""What a deployment is to be: read from a file, kept in ZooKeeper, changed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from coordinator import spec as specs
from coordinator.commands import alike
from coordinator.membership import Coordination
from coordinator.spec import Plan, ServerSpec, Spec, succeeding
from coordinator.zookeeper import Ensemble
from lmerge.errors import ConfigurationError, NotFoundError
from tests.cli.running import ROOT
from tests.coordinator.waiting import WAIT_SECONDS

_DEPLOYMENTS = itertools.count(1)

WHOLE = """
merge = "counts"
linger_seconds = 90

[merge_options]
insert_policy = "quorum(0.5)"
divergence = "quarantine"

[[servers]]
name = "one"
listen = "127.0.0.1:7070"
data_dir = "data/one"
durability = "flush"

[[servers]]
name = "two"
config = "two.toml"

[[plans]]
name = "by-word"
build = "queries/words.py:build"
replicas = 3
master = "local[2]"
mode = "update"
key = ["word"]
conf = { "spark.sql.shuffle.partitions" = "2" }
checkpoint = "hdfs://names/checkpoints"

[[plans]]
name = "other"
build = "package.module:build"
checkpoint = "kept"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "deployment.toml"
    file.write_text(text)
    return file


def test_a_file_says_everything_and_its_paths_are_its_own(tmp_path: Path) -> None:
    found = Spec.load_toml(written(tmp_path, WHOLE))
    assert found.servers[0] == ServerSpec(
        "one", "127.0.0.1:7070", str(tmp_path / "data/one"), "flush"
    )
    assert found.servers[1].config == str(tmp_path / "two.toml")
    words, other = found.plans
    assert words.build == f"{tmp_path}/queries/words.py:build"
    assert words.options == {"mode": "update", "key": ["word"]}
    assert words.checkpoint == "hdfs://names/checkpoints"
    assert (other.build, other.replicas) == ("package.module:build", 1)
    assert other.checkpoint == str(tmp_path / "kept")
    assert list(found.streams()) == ["by-word-1", "by-word-2", "by-word-3", "other-1"]
    assert found.streams()["by-word-2"] is words


def test_the_example_of_the_documentation_can_be_run(tmp_path: Path) -> None:
    page = (ROOT / "docs/coordination.md").read_text("utf-8")
    [text] = re.findall(r"<!-- deployment: [^\n]*-->\n```toml\n(.*?)```", page, re.S)
    found = Spec.load_toml(written(tmp_path, text))
    assert list(found.streams()) == ["by_word-1", "by_word-2"]
    [program] = re.findall(r"<!-- run_replica.py: [^\n]*-->\n +```python\n(.*?)```", page, re.S)
    compile(dedent(program), "run_replica.py", "exec")


def test_a_process_that_runs_is_the_one_that_is_wanted() -> None:
    one = ["/usr/bin/python", "-m", "lmerge", "server", "--zk", "a:1,b:2", "--linger", "60"]
    assert alike(one, ["/bin/python3", *one[1:5], "b:2,a:1", *one[6:]])
    assert not alike(one, [*one[:-1], "61"])


def test_what_is_encoded_is_decoded_to_the_same(tmp_path: Path) -> None:
    found = Spec.load_toml(written(tmp_path, WHOLE))
    assert Spec.decoded(found.encoded()) == found
    jumped = found.with_plan(replace(found.plans[0], jumpstart={"from": "by-word-1"}))
    assert Spec.decoded(jumped.encoded()) == jumped
    assert Spec.decoded({}) == Spec()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("merg = 'a'", "merg: there is no such key; did you mean 'merge'?"),
        ("[[plans]]\nname = 'a'", "plans #1: build: is missing"),
        ("[[plans]]\nname = 'a/b'\nbuild = 'q.py'", "'a/b' is no name of a plan"),
        ("[[plans]]\nname = 'a'\nbuild = 'q.py'\nreplicas = 65", "a whole number from 0 to 64"),
        ("[[plans]]\nname = 'a'\nbuild = 'q.py'\nreplicas = true", "True is no whole number"),
        ("[[plans]]\nname = 'a'\nbuild = 'q.py'\nmode = 'updat'", "did you mean 'update'?"),
        ("[[plans]]\nname = 'a'\nbuild = 'q.py'\nkey = 'k'", "'k' is no list of columns"),
        ("[[plans]]\nname = 'a'\nbuild = 'q.py'\nconf = { a = 1 }", "1 is no text"),
        ("plans = 3", "write [[plans]] above each"),
        ("[[servers]]\nlisten = 'here'", "'here' is no address"),
        ("[[servers]]\n[[servers]]", "there are two of the name 'server'"),
        ("[[servers]]\ndurability = 'some'", "durability: 'some' is not possible"),
        ("linger_seconds = -1", "linger_seconds: -1 is not possible"),
        ("[merge_options]\ninsert_policy = 'last'", "unknown insert policy 'last'"),
        ("[merge_options]\nlag = 1", "merge_options: lag: there is no such option"),
        ("merge = ", "this is no TOML"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        Spec.load_toml(file)
    assert str(file) in str(caught.value)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plans_are_added_replaced_scaled_and_removed() -> None:
    spec = Spec(plans=(Plan("a", "q.py"), Plan("b", "q.py")))
    assert list(spec.scaled("a", 2).streams()) == ["a-1", "a-2", "b-1"]
    assert list(spec.scaled("a", 0).streams()) == ["b-1"]
    assert [plan.name for plan in spec.with_plan(Plan("c", "r.py")).plans] == ["a", "b", "c"]
    assert spec.with_plan(Plan("a", "r.py")).plans[0].build == "r.py"
    assert spec.without_plan("a").plans == (Plan("b", "q.py"),)
    with pytest.raises(NotFoundError, match="no plan 'x'; there are: a, b"):
        spec.scaled("x", 1)


def test_a_deployment_that_runs_keeps_its_queries_its_merge_and_its_ports() -> None:
    served = (ServerSpec(listen="127.0.0.1:20000"),)
    before = Spec("m", served, (Plan("a", "q.py"),))
    given = Spec("m", plans=(Plan("a", "q.py", 3), Plan("b", "r.py")))
    assert succeeding(before, given, running=True) == replace(given, servers=served)
    with pytest.raises(ConfigurationError, match="plan 'a' is deployed already, and otherwise"):
        succeeding(before, Spec("m", plans=(Plan("a", "r.py"),)), running=False)
    faster = Spec("m", plans=(Plan("a", "q.py", conf={"x": "1"}),))
    assert succeeding(before, faster, running=False).plans == faster.plans
    with pytest.raises(ConfigurationError, match="plan 'a' is deployed already, and otherwise"):
        succeeding(before, faster, running=True)
    with pytest.raises(ConfigurationError, match="with another merge or other servers"):
        succeeding(before, Spec("n"), running=True)
    assert succeeding(before, Spec("n"), running=False).merge == "n"


def test_a_change_is_made_to_what_is_there_by_then(zookeeper: Ensemble) -> None:
    name = f"specs-{next(_DEPLOYMENTS)}"
    with Coordination(zookeeper.hosts, name) as coordination:
        deployment = coordination.connect(WAIT_SECONDS)
        with pytest.raises(NotFoundError, match="start it with lmerge up"):
            specs.read(deployment)
        deployment.write(specs.NAME, Spec(plans=(Plan("a", "q.py"),)).encoded(), None)
        calls: list[Spec] = []

        def how(spec: Spec) -> Spec:
            if not calls:  # somebody is faster, once
                found, version = specs.read(deployment)
                deployment.write(specs.NAME, found.scaled("a", 5).encoded(), version)
            calls.append(spec)
            return spec.with_plan(Plan("b", "r.py"))

        after = specs.change(deployment, how)
        assert list(after.streams()) == ["a-1", "a-2", "a-3", "a-4", "a-5", "b-1"]
        assert specs.read(deployment)[0] == after
        assert len(calls) == 2
