"""Aggregate a topic by minute into an Iceberg table, and write outliers to another topic.

Start a broker with `ister serve`, then run `python examples/spark_stream.py` in the same directory. Run it again: both
queries resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the usual name

from ister.config import load
from ister.pipeline.session import open_session
from ister.pipeline.source import DanubeDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READINGS = "/default/example-readings"
ALARMS = "/default/example-alarms"
READING = "sensor string, celsius double"
NOON_MS = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 12 * 3_600_000


def write_readings(spark: SparkSession, broker: str) -> None:
    """Produce five minutes of readings, one a second, from two alternating sensors."""
    readings = spark.range(300).select(
        F.to_json(
            F.struct(
                F.format_string("sensor-%d", F.col("id") % 2).alias("sensor"),
                F.when(F.col("id") == 250, 99.0).otherwise(20.0 + F.col("id") % 2).alias("celsius"),
            )
        ).alias("payload"),
        (F.lit(NOON_MS) + F.col("id") * 1000).alias("publish_time_ms"),
    )
    readings.write.format("danube").options(broker=broker, topic=READINGS).mode("append").save()


def readings_of(spark: SparkSession, broker: str, data_dir: str) -> DataFrame:
    """Return the topic as a stream of readings with their publish time."""
    options = {"broker": broker, "dataDir": data_dir, "topic": READINGS, "startingOffsets": "earliest"}
    topic = spark.readStream.format("danube").options(**options).load()
    return topic.select("publish_time", F.from_json(topic.payload.cast("string"), READING).alias("r")).select(
        "publish_time", "r.*"
    )


def main() -> None:
    """Write readings, then run both queries over them. A minute is in the table once its window has closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="http://127.0.0.1:6650", help="where the broker is")
    parser.add_argument("--data-dir", default="danube-data", help="where it keeps its data")
    given = parser.parse_args()

    config = load(None, Path(given.data_dir)).config
    spark = open_session(config)
    spark.dataSource.register(DanubeDataSource)
    write_readings(spark, given.broker)
    readings = readings_of(spark, given.broker, given.data_dir)
    checkpoints = Path(given.data_dir).absolute() / "example-checkpoints"

    table = f"{config.storage.iceberg_config.catalog.name}.examples.readings_by_minute"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {table.rpartition('.')[0]}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (minute timestamp, sensor string, readings bigint, celsius double)")
    minutes = (
        readings.withWatermark("publish_time", "10 seconds")
        .groupBy(F.window("publish_time", "1 minute").alias("w"), "sensor")
        .agg(F.count("*").alias("readings"), F.avg("celsius").alias("celsius"))
        .select(F.col("w.start").alias("minute"), "sensor", "readings", "celsius")
    )
    into_table = minutes.writeStream.outputMode("append").option("checkpointLocation", f"{checkpoints}/minutes")
    query = into_table.trigger(processingTime="1 second").toTable(table)
    query.processAllAvailable()  # a service would call query.awaitTermination()
    query.stop()

    alarms = readings.where("celsius > 50").select(F.to_json(F.struct("sensor", "celsius")).alias("payload"))
    into_topic = alarms.writeStream.format("danube").options(broker=given.broker, topic=ALARMS)
    into_topic = into_topic.option("checkpointLocation", f"{checkpoints}/alarms")
    into_topic.trigger(availableNow=True).start().awaitTermination()

    for row in spark.table(table).orderBy("minute", "sensor").collect():
        print(f"{row.minute:%H:%M} {row.sensor}: {row.readings} readings, {row.celsius:.1f} °C")
    options = {"broker": given.broker, "dataDir": given.data_dir, "topic": ALARMS}
    for row in spark.read.format("danube").options(**options).load().collect():
        print(f"alarm {row.topic_offset}: {bytes(row.payload).decode()}")
    spark.stop()


if __name__ == "__main__":
    main()
