"""Write orders to a topic from Spark, read them as a DataFrame, and aggregate them.

Start a broker with `ister serve`, then run `python examples/spark_batch.py` in the same directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from ister.config import load
from ister.pipeline.session import open_session
from ister.pipeline.source import DanubeDataSource

TOPIC = "/default/example-orders"
ORDER = "customer string, euros double"
CUSTOMERS = ("anna", "ben", "clara")


def write_orders(spark: SparkSession, broker: str) -> None:
    """Produce 300 orders; a customer's name is the routing key."""
    customers = F.array(*map(F.lit, CUSTOMERS))
    orders = spark.range(300).select(
        customers[(F.col("id") % len(CUSTOMERS)).cast("int")].alias("customer"), (F.col("id") % 10).alias("euros")
    )
    messages = orders.select(
        F.to_json(F.struct("customer", "euros")).alias("payload"), F.col("customer").alias("routing_key")
    )
    messages.write.format("danube").options(broker=broker, topic=TOPIC).mode("append").save()


def main() -> None:
    """Write, read and aggregate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="http://127.0.0.1:6650", help="where the broker is")
    parser.add_argument("--data-dir", default="danube-data", help="where it keeps its data")
    given = parser.parse_args()

    spark = open_session(load(None, Path(given.data_dir)).config)
    spark.dataSource.register(DanubeDataSource)
    write_orders(spark, given.broker)

    topic = spark.read.format("danube").options(broker=given.broker, dataDir=given.data_dir, topic=TOPIC).load()
    orders = topic.select("topic_offset", F.from_json(topic.payload.cast("string"), ORDER).alias("order"))
    sums = orders.groupBy("order.customer").agg(F.count("*").alias("orders"), F.sum("order.euros").alias("euros"))
    for row in sums.orderBy("customer").collect():
        print(f"{row.customer}: {row.orders} orders, {row.euros:.0f} euros")
    spark.stop()


if __name__ == "__main__":
    main()
