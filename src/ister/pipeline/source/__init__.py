"""The Spark data source `danube`: topics as DataFrames, in batches and streams, to read and to write.

    spark.dataSource.register(DanubeDataSource)
    spark.read.format("danube").option("topic", "/default/orders").load()

What it does and promises is in docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ister.core.errors import ClientError
from ister.pipeline.source.options import Use, read_options, write_options
from ister.pipeline.source.reader import SCHEMA, TopicBatchReader
from ister.pipeline.source.stream import TopicStreamReader
from ister.pipeline.source.writer import (
    TopicBatchWriter,
    TopicStreamWriter,
    check_columns,
    find_targets,
    find_targets_now,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ister.pipeline.source.options import WriteOptions


class UnsupportedUseError(ClientError):
    """A use of a data source that a topic does not support."""


class DanubeDataSource(DataSource):
    """A topic, or all partitions of one."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "danube"

    def schema(self) -> StructType:
        """Return the columns of every topic: those of its table."""
        return SCHEMA

    def reader(self, schema: StructType) -> TopicBatchReader:
        """Serve `spark.read`."""
        _check_schema(schema)
        return TopicBatchReader(read_options(self.options, Use.READ))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802  # Spark's name
        """Serve `spark.readStream`."""
        _check_schema(schema)
        return TopicStreamReader(read_options(self.options, Use.READ_STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:  # noqa: FBT001  # Spark's signature
        """Serve `df.write`."""
        options = self._write_options(schema, Use.WRITE, overwrite=overwrite)
        return TopicBatchWriter(options, find_targets(options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: FBT001, N802  # the same
        """Serve `df.writeStream`."""
        options = self._write_options(schema, Use.WRITE_STREAM, overwrite=overwrite)
        return TopicStreamWriter(options, find_targets_now(options))

    def _write_options(self, schema: StructType, use: Use, *, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise UnsupportedUseError("a topic can only be appended to; use mode append")
        options = write_options(self.options, use)
        check_columns(schema)
        return options


def _check_schema(schema: StructType) -> None:
    if [(one.name, one.dataType) for one in schema] != [(one.name, one.dataType) for one in SCHEMA]:
        raise UnsupportedUseError("a topic has its own columns; leave out .schema(…), and select what you need")
