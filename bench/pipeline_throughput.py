"""2,000,000 messages of 200 bytes, from a log to a table, and from Kafka to a table: best of three, in turns, on local[2]."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline_kafka as peer
from figures import show
from ister.config import load
from ister.pipeline import session
from pipeline_seed import BATCH, payloads
from pipeline_setup import CORES, cpu_s, lake_in, seeded_broker, tree, verify, worker_peak_mb, writer_on

MESSAGES = int(os.environ.get("ISTER_BENCH_MESSAGES", "2000000"))
SIZE = 200
ROUNDS = 3
TOPIC = "/default/bench"


def ours(spark, broker, directory: Path, rows: int, topic: str) -> tuple[float, float, float]:
    """Carry everything to a new table; returns seconds, seconds of processor, and bytes of the files."""
    with writer_on(spark, broker, lake_in(directory), only=(topic,)) as (writer, _):
        pids = list(tree(os.getpid()))
        before, began = cpu_s(pids), time.perf_counter()
        done = size = commits = 0
        while done < rows:
            tick = writer.tick()
            assert not tick.failed, tick.failed
            done, size, commits = done + tick.rows, size + tick.bytes, commits + tick.commits
        spent = time.perf_counter() - began
        used = cpu_s([pid for pid in tree(os.getpid()) if pid in pids]) - before
    verify(directory, topic.strip("/").replace("/", "."), rows)
    show(f"  ours: {rows / spent:,.0f} rows a second, {commits} commit(s)")
    return spent, used, size


def kafkas(spark, address: str, rows: int, number: int) -> float:
    """Carry everything to a new table; returns seconds."""
    table = f"ister.peer.bench_{number}"
    peer.create(spark, table)
    began = time.perf_counter()
    peer.carry(spark, address, "bench", table)
    spent = time.perf_counter() - began
    (found,) = spark.sql(f"SELECT count(*), count(DISTINCT partition, topic_offset) FROM {table}").collect()
    assert tuple(found) == (rows, rows), f"Kafka's table has {tuple(found)}"
    show(f"  kafka: {rows / spent:,.0f} rows a second")
    return spent


def main(scratch: Path) -> dict[str, float]:
    scratch.mkdir(parents=True)
    # Kafka's side runs in Java, and needs room there.
    session.DRIVER_MEMORY = "2g"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {':'.join(map(str, peer.jars()))} pyspark-shell"
    show(
        f"  {MESSAGES:,} messages of {SIZE} bytes, local[{CORES}], 64 MiB of log a file, zstd; Kafka: {peer.PARTITIONS} partitions"
    )
    with seeded_broker(scratch / "broker", {TOPIC: MESSAGES, "/default/warm": 1000}, SIZE) as broker:
        lake_in(scratch / "spark").close()
        spark = session.open_session(load(None, scratch / "spark").config, master=f"local[{CORES}]")
        ours(spark, broker, scratch / "warm", 1000, "/default/warm")
        if not peer.jars():
            show("  Kafka is not here: run make bench-peers; only our side is measured")
            rounds = [ours(spark, broker, scratch / f"ours-{n}", MESSAGES, TOPIC) for n in range(ROUNDS)]
            return figures(rounds, [])
        spark.sql("CREATE NAMESPACE IF NOT EXISTS ister.peer")
        source = scratch / "payloads.parquet"
        with pq.ParquetWriter(source, pa.schema([("payload", pa.binary())])) as out:
            for at in range(0, MESSAGES, BATCH):
                out.write_table(pa.table({"payload": payloads(at, min(BATCH, MESSAGES - at), SIZE)}))
        with peer.kafka(scratch / "kafka") as address:
            peer.fill(spark, address, "bench", str(source))
            rounds, theirs = [], []
            for number in range(ROUNDS):
                rounds.append(ours(spark, broker, scratch / f"ours-{number}", MESSAGES, TOPIC))
                theirs.append(kafkas(spark, address, MESSAGES, number))
        found = figures(rounds, theirs)
        spark.stop()
        return found


def figures(rounds: list[tuple[float, float, float]], theirs: list[float]) -> dict[str, float]:
    spent, used, _ = min(rounds)
    found = {
        "rows_s": MESSAGES / spent,
        "mb_s": MESSAGES * SIZE / spent / 1e6,
        "cpu_s": used,
        "worker_peak_mb": worker_peak_mb(),
    }
    if theirs:
        found |= {"kafka_rows_s": MESSAGES / min(theirs), "ratio": min(theirs) / spent}
    return {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
