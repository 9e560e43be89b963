"""A producer at a steady rate, in a process of its own as producers are. Imports nothing of ours.

Run by bench/broker.py: says "ready", reads the moment to begin at (CLOCK_MONOTONIC, which all processes of a machine share),
and sends message number i so many seconds later as the rate says, whether or not those before it are answered.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

from broker_client import Client


async def main(target: str, topic: str, rate: int, count: int, payload_bytes: int) -> None:
    client = Client(target)
    producer = await client.producer(topic)
    print("ready", flush=True)
    began = float(sys.stdin.readline())
    gc.collect()
    gc.freeze()  # the broker is measured, not this process's collector
    sends: list[asyncio.Task[None]] = []
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(producer.send(number, b"%-*d" % (payload_bytes, number)))
        sends.append(task)
    await asyncio.gather(*sends)
    await client.close()


if __name__ == "__main__":
    target_, topic_, *numbers = sys.argv[1:]
    asyncio.run(main(target_, topic_, *map(int, numbers)))
