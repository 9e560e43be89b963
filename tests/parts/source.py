"""What the tests of the data source share: reading and writing topics in Spark, with and without the broker's token."""

import pyarrow as pa

from ister.lake.columns import ARROW
from ister.pipeline.source import DanubeDataSource
from parts.pipeline import TOKEN

VARIABLE = "ISTER_PIPELINE_TOKEN"


def register(spark, monkeypatch, *, token):
    """Register the source. Spark's Python workers get the token as they would from the shell that Spark was started in."""
    environment = spark.sparkContext.environment
    monkeypatch.setitem(environment, VARIABLE, TOKEN) if token else monkeypatch.delitem(environment, VARIABLE, False)
    spark.dataSource.register(DanubeDataSource)


def given(reader, broker, topic, **options):
    """Tell a reader or writer where its topic is."""
    return reader.format("danube").options(broker=broker.url, topic=topic, **options)


def read(spark, broker, topic, **options):
    return given(spark.read, broker, topic, dataDir=str(broker.data), **options).load()


def arrow(frame):
    """Return rows as Arrow, in the order of a topic's table."""
    return frame.toArrow().sort_by([("partition", "ascending"), ("topic_offset", "ascending")])


def assert_same(found: pa.Table, table: pa.Table):
    """Insist on equal rows in the columns that both have: all of a topic's."""
    schema = pa.schema(ARROW.names and [field.remove_metadata() for field in ARROW])
    assert found.select(ARROW.names).cast(schema).equals(table.select(ARROW.names).cast(schema))
