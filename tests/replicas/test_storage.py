"""Files beside a checkpoint, by Python where the directory is local and by Hadoop where it is not;
and the daemon that gives workers a path without archives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge.errors import ConfigurationError
from replicas.storage import Storage, _Hadoop, _Local
from replicas.worker_daemon import without_archives


def by_hadoop(spark: SparkSession, directory: Path) -> Storage:
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    place = path(str(directory))
    files = place.getFileSystem(context._jsc.hadoopConfiguration())
    storage = Storage(spark, str(directory))
    storage._files = _Hadoop(files, path, place, context._jvm.org.apache.commons.io.IOUtils)
    return storage


def by_python(spark: SparkSession, directory: Path) -> Storage:
    storage = Storage(spark, str(directory))
    assert isinstance(storage._files, _Local)
    return storage


@pytest.mark.parametrize("made", [by_python, by_hadoop])
def test_a_file_is_written_replaced_listed_read_and_removed(
    spark: SparkSession, tmp_path: Path, made: Any
) -> None:
    storage = made(spark, tmp_path / "new" / "with space")
    assert storage.read("a/1") is None
    assert storage.names("a") == []
    storage.write("a/1", b"one")
    storage.write("a/2", b"")
    storage.write("a/1", b"more than one")
    assert sorted(storage.names("a")) == ["1", "2"]
    assert storage.read("a/1") == b"more than one"
    assert storage.read("a/2") == b""
    storage.remove("a/1")
    storage.remove("a/1")
    assert storage.names("a") == ["2"]


def test_what_python_has_replaced_hadoop_can_still_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_hadoop(spark, tmp_path).write("a/1", b"by Hadoop, with a checksum")
    assert (tmp_path / "a" / ".1.crc").exists()
    by_python(spark, tmp_path).write("a/1", b"by Python")
    assert by_hadoop(spark, tmp_path).read("a/1") == b"by Python"


def test_a_directory_may_be_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    Storage(spark, f"file://{tmp_path}/with space").write("x", b"1")
    assert (tmp_path / "with space" / "x").read_bytes() == b"1"
    with pytest.raises(ConfigurationError, match="no file system for it"):
        Storage(spark, "nonsense://host/x")


def test_archives_go_only_where_the_packages_are_elsewhere(tmp_path: Path) -> None:
    archives = ["/x/pyspark.zip", "/x/py4j-0.10-src.zip", "/x/spark-core_2.13-4.3.0.jar"]
    assert without_archives([*archives, "/mine.zip", *sys.path]) == ["/mine.zip", *sys.path]
    alone = [*archives, str(tmp_path)]
    assert without_archives(alone) == alone
