"""A producer to many topics with a constant total rate, in a process of its own. Imports nothing of ister.

Run by bench/pipeline_freshness.py: prints "ready", sends for the given seconds, and prints the number of answers.
"""

from __future__ import annotations

import asyncio
import sys
import time

from broker_client import Client


async def main(target: str, seconds: float, rate: int, size: int, topics: list[str]) -> None:
    client = Client(target)
    producers = [await client.producer(topic) for topic in topics]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    sends: set[asyncio.Task[None]] = set()
    number = 0
    while (due := number / rate) < seconds:
        wait = began + due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        while len(sends) >= 64:  # the broker is slower than the rate: do not queue here
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(producers[number % len(producers)].send(number, bytes(size)))
        sends.add(task)
        task.add_done_callback(sends.discard)
        number += 1
    await asyncio.gather(*sends)
    print(number, time.perf_counter() - began, flush=True)
    await client.close()


if __name__ == "__main__":
    target_, seconds_, rate_, size_, *topics_ = sys.argv[1:]
    asyncio.run(main(target_, float(seconds_), int(rate_), int(size_), topics_))
