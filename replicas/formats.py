"""The formats named "lmerge": :mod:`replicas.source` to read a merge, :mod:`replicas.writing` to
write a stream of one.

>>> from replicas.formats import register
>>> register(spark)  # doctest: +SKIP
>>> spark.readStream.format("lmerge").options(server="host:7070", merge="m")  # doctest: +SKIP
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from replicas.options import NAME
from replicas.source import MergeReader, Settings
from replicas.writing import MergeWriter


class LmergeSource(DataSource):
    """The data source as Spark instantiates it."""

    @classmethod
    def name(cls) -> str:
        """The word after ``format``."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the merge, as the server tells them."""
        settings = Settings(self.options)
        return settings.columns(settings.inspect().elements)

    def streamReader(self, schema: StructType) -> MergeReader:  # noqa: N802 (Spark's name)
        """Plans in one long-lived process beside the driver, and reads in the executors."""
        return MergeReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MergeWriter:  # noqa: N802
        """Writes in the executors, and commits beside the driver; Spark's names, exactly."""
        return MergeWriter(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make ``format("lmerge")`` known to a session, for readStream and writeStream."""
    spark.dataSource.register(LmergeSource)
