"""2,000,000 messages of 200 bytes, from a log to a table, and from Kafka to a table: best of three alternating rounds, on local[2].

Both sides are warmed up with 1,000 messages, write zstd of the same level, and make one commit, which is read from their
tables after each round. Without `make bench-peers` the figures of Kafka are null.

`cpu_s` is the CPU time of our best round: the driver, Java, its Python workers, and our broker, including processes
started during the round, without Kafka's idle broker.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline_kafka as peer
from figures import show
from ister.config import load
from ister.config.catalog import ICEBERG
from ister.pipeline import session
from pipeline_seed import BATCH, payloads
from pipeline_setup import (
    CORES,
    TARGET_FILE_BYTES,
    cpu_s,
    lake_in,
    seeded_broker,
    tree,
    verify,
    worker_peak_mb,
    writer_on,
)

MESSAGES = int(os.environ.get("ISTER_BENCH_MESSAGES", "2000000"))
SIZE = 200
ROUNDS = 3
TOPIC = "/default/bench"
WARM, WARM_MESSAGES = "/default/warm", 1000
HEAP = "2g"
"""Of the one session that runs both sides: Kafka's source runs in Java and needs heap."""


def ours(spark, broker, directory: Path, rows: int, topic: str) -> tuple[float, float]:
    """Write everything to a new table; return seconds, and CPU seconds."""
    table = topic.strip("/").replace("/", ".")
    lake = lake_in(directory)
    with writer_on(spark, broker, lake, only=(topic,)) as (writer, _):
        before, began = used_s(), time.perf_counter()
        done = 0
        while done < rows:
            tick = writer.tick()
            assert not tick.failed, tick.failed
            done += tick.rows
        spent = time.perf_counter() - began
        used = used_s() - before
    verify(directory, table, rows)
    records = [
        int(one.summary.additional_properties.get("added-records", 0))
        for one in lake.catalog.load_table(table).snapshots()
    ]
    assert [count for count in records if count] == [rows], f"our table was not filled by one commit: {records}"
    lake.close()
    show(f"  ours: {rows / spent:,.0f} rows a second, {used:.1f} s of processors")
    return spent, used


def used_s() -> float:
    """Return the CPU seconds of this process and its descendants without the peer, including those started in between."""
    return cpu_s(pid for pid, command in tree(os.getpid()).items() if peer.MAIN not in command.split())


def kafkas(spark, address: str, rows: int, topic: str, name: str) -> float:
    """Write everything to a new table; return seconds."""
    table = f"ister.peer.{name}"
    peer.create(spark, table)
    began = time.perf_counter()
    peer.carry(spark, address, topic, table)
    spent = time.perf_counter() - began
    (found,) = spark.sql(f"SELECT count(*), count(DISTINCT partition, topic_offset) FROM {table}").collect()
    assert tuple(found) == (rows, rows), f"Kafka's table has {tuple(found)}"
    commits = spark.sql(f"SELECT operation, summary['added-records'] AS rows FROM {table}.snapshots").collect()
    assert [tuple(one) for one in commits] == [("append", str(rows))], (
        f"Kafka's table was not filled by one commit: {commits}"
    )
    show(f"  kafka: {rows / spent:,.0f} rows a second")
    return spent


def show_settings(spark) -> None:
    java = subprocess.run(
        [f"{os.environ['JAVA_HOME']}/bin/java", "-version"], stderr=subprocess.PIPE, text=True, check=True
    ).stderr.partition("\n")[0]
    level = pa.Codec("zstd").compression_level
    assert level == peer.ZSTD_LEVEL, f"pyarrow's own level is {level} now, and ours is written with it"
    show(f"  {MESSAGES:,} messages of {SIZE} bytes; best of {ROUNDS}, in turns; one commit a round, checked")
    show(
        f"  Spark {spark.version} on local[{CORES}] with a heap of {HEAP}, Iceberg {ICEBERG}, {java}; zstd, level {level}"
    )
    show(
        f"  ours: Python {platform.python_version()}, pyarrow {pa.__version__}; `ister serve --no-pipeline`; about "
        f"{TARGET_FILE_BYTES >> 20} MiB of log a file, every column of the table"
    )
    if peer.jars():
        show(
            f"  Kafka's: Kafka {peer.version()} with {peer.PARTITIONS} partitions and a heap of {peer.HEAP}; the same session, "
            "codec and level, the columns that Kafka has"
        )
    else:
        show(
            "  KAFKA IS LEFT OUT: it is not here, `make bench-peers` fetches it (with Maven); kafka_rows_s and ratio are null"
        )


def payloads_file(path: Path, count: int) -> str:
    with pq.ParquetWriter(path, pa.schema([("payload", pa.binary())])) as out:
        for at in range(0, count, BATCH):
            out.write_table(pa.table({"payload": payloads(at, min(BATCH, count - at), SIZE)}))
    return str(path)


def in_turns(spark, broker, scratch: Path) -> tuple[list[tuple[float, float]], list[float]]:
    """Return the rounds of both sides, each after a warm-up."""
    ours(spark, broker, scratch / "warm", WARM_MESSAGES, WARM)
    if not peer.jars():
        return [ours(spark, broker, scratch / f"ours-{n}", MESSAGES, TOPIC) for n in range(ROUNDS)], []
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ister.peer")
    rounds, theirs = [], []
    with peer.kafka(scratch / "kafka") as address:
        peer.fill(spark, address, "warm", payloads_file(scratch / "warm.parquet", WARM_MESSAGES))
        peer.fill(spark, address, "bench", payloads_file(scratch / "bench.parquet", MESSAGES))
        kafkas(spark, address, WARM_MESSAGES, "warm", "warm")
        for number in range(ROUNDS):
            rounds.append(ours(spark, broker, scratch / f"ours-{number}", MESSAGES, TOPIC))
            theirs.append(kafkas(spark, address, MESSAGES, "bench", f"bench_{number}"))
    return rounds, theirs


def main(scratch: Path) -> dict[str, float | None]:
    scratch.mkdir(parents=True)
    session.DRIVER_MEMORY = HEAP
    if peer.jars():
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {':'.join(map(str, peer.jars()))} pyspark-shell"
    with seeded_broker(scratch / "broker", {TOPIC: MESSAGES, WARM: WARM_MESSAGES}, SIZE) as broker:
        lake_in(scratch / "spark").close()
        spark = session.open_session(load(None, scratch / "spark").config, master=f"local[{CORES}]")
        show_settings(spark)
        rounds, theirs = in_turns(spark, broker, scratch)
        peak = worker_peak_mb()
        spark.stop()
    spent, used = min(rounds)
    found = {
        "rows_s": MESSAGES / spent,
        "mb_s": MESSAGES * SIZE / spent / 1e6,
        "cpu_s": used,
        "worker_peak_mb": peak,
        "kafka_rows_s": MESSAGES / min(theirs) if theirs else None,
        "ratio": min(theirs) / spent if theirs else None,
    }
    return {name: value if value is None else round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
