"""The peer: a Kafka broker with two partitions, read by Spark's Kafka source, written by Spark's own Iceberg sink."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PEERS = Path(__file__).resolve().parent.parent / ".peers"
READY_S = 60.0
PARTITIONS = 2
HEAP = "1G"
MAIN = "kafka.Kafka"
ZSTD_LEVEL = 1
"""The default of pyarrow; Iceberg's own would be 3."""
CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def jars() -> list[Path]:
    """Return the jars of Spark's Kafka source; none if `make bench-peers` was not run."""
    return sorted((PEERS / "spark").glob("*.jar"))


def version() -> str:
    """Return the version of Kafka."""
    return next((PEERS / "lib").glob("kafka-server-[0-9]*.jar")).stem.rpartition("-")[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """Run a broker; yield its address."""
    directory.mkdir()
    port = free_port()
    properties = directory / "server.properties"
    properties.write_text(
        CONFIG.format(controller=free_port(), port=port, directory=directory / "data", partitions=PARTITIONS)
    )
    classes = f"{PEERS}/lib/*"
    format_log = ["java", "-cp", classes, "kafka.tools.StorageTool", "format", "--standalone"]
    subprocess.run(
        [*format_log, "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(properties)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["java", f"-Xmx{HEAP}", "-cp", classes, MAIN, str(properties)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def fill(spark: SparkSession, address: str, topic: str, parquet: str) -> None:
    """Store the payloads of a Parquet file in a new topic."""
    java = spark.sparkContext._jvm  # noqa: SLF001  # the peer's client is in Java
    admin = java.org.apache.kafka.clients.admin.AdminClient.create({"bootstrap.servers": address})
    optional = java.java.util.Optional
    made = java.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(PARTITIONS), optional.empty())
    # Not created by the first message: once, on a busy machine, such a topic never accepted its last batch, and the producer
    # timed out after two minutes. The cause is not known.
    admin.createTopics([made]).all().get()
    admin.close()
    rows = spark.read.parquet(parquet).selectExpr("payload AS value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).save()


def carry(spark: SparkSession, address: str, topic: str, table: str) -> None:
    """Write a whole topic to a table, in one commit: planning, reading, writing, committing."""
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    source.selectExpr(
        "offset AS topic_offset", "partition", "timestamp AS append_time", "key AS routing_key", "value AS payload"
    ).writeTo(table).append()


def create(spark: SparkSession, table: str) -> None:
    """Create the table: our columns, as far as Kafka has them, our codec and its level."""
    spark.sql(
        f"CREATE TABLE {table} (topic_offset bigint, partition int, append_time timestamp, routing_key binary, payload binary) "
        "USING iceberg PARTITIONED BY (days(append_time)) "
        f"TBLPROPERTIES ('write.parquet.compression-codec'='zstd', 'write.parquet.compression-level'='{ZSTD_LEVEL}', "
        "'write.distribution-mode'='none')"
    )
