"""Duration of a micro-batch with 20 and with 200 active topics, and the driver's memory with 200.

`driver_mb_200` is the sum of the peaks of Java and of the driver's Python, an upper bound of their common peak. That Python
includes the producers; the broker and the workers of Spark's tasks are not counted. `driver_now_mb_200` is the memory of both
after the last micro-batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from broker_client import Client
from figures import show
from ister.config import load
from ister.pipeline import session
from pipeline_setup import CORES, lake_in, memory_mb, seeded_broker, tree, verify, writer_on

TICKS = 5
EACH = 5
SIZE = 200


async def produce(target: str, topics: list[str]) -> None:
    client = Client(target)
    gate = asyncio.Semaphore(32)

    async def send(topic: str) -> None:
        async with gate:
            producer = await client.producer(topic)
            for number in range(EACH):
                await producer.send(number, bytes(SIZE))

    await asyncio.gather(*(send(topic) for topic in topics))
    await client.close()


def ticks(spark, broker, home: Path, topics: list[str]) -> tuple[float, float, float]:
    """Return the median duration in ms of micro-batches with a few messages in every topic; the driver's memory: peak, now."""
    with writer_on(spark, broker, lake_in(home), only=tuple(topics)) as (writer, _):
        times = []
        for number in range(TICKS + 1):
            asyncio.run(produce(broker.target, topics))
            began = time.perf_counter()
            tick = writer.tick()
            times.append((time.perf_counter() - began) * 1000)
            assert (tick.rows, tick.commits, tick.failed) == (EACH * len(topics), len(topics), {})
            show(f"  {len(topics)} topics, tick {number}: {times[-1]:,.0f} ms")
        peak, now = driver_mb("VmHWM"), driver_mb("VmRSS")
    for topic in topics[:3]:
        verify(home, topic.strip("/").replace("/", ".").replace("-", "_"), EACH * (TICKS + 1))
    return statistics.median(times[1:]), peak, now  # the first one creates the tables


def driver_mb(field: str) -> float:
    java = [pid for pid, command in tree(os.getpid()).items() if "org.apache.spark" in command]
    return sum(memory_mb(pid, field) for pid in (os.getpid(), *java))


def main(scratch: Path) -> dict[str, float]:
    scratch.mkdir(parents=True)
    few = [f"/default/few-{number}" for number in range(20)]
    many = [f"/default/many-{number}" for number in range(200)]
    with seeded_broker(scratch / "broker", dict.fromkeys([*few, *many], 0), SIZE) as broker:
        lake_in(scratch / "few").close()
        spark = session.open_session(load(None, scratch / "few").config, master=f"local[{CORES}]")
        few_ms, _, _ = ticks(spark, broker, scratch / "few", few)
        many_ms, peak, now = ticks(spark, broker, scratch / "many", many)
        spark.stop()
    found = {"tick_ms_20": few_ms, "tick_ms_200": many_ms, "driver_mb_200": peak, "driver_now_mb_200": now}
    return {name: round(value, 1) for name, value in found.items()}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
