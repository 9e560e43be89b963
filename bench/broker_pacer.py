"""A producer with a constant rate, in a process of its own. Imports nothing of ister.

Run by bench/broker_e2e.py: prints "ready", reads the start time (CLOCK_MONOTONIC, shared by all processes of a machine), and
sends message i at i / rate seconds after it, without waiting for earlier answers: to a topic of the broker, with a bare or a
grpc.aio client, or to the relay.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
import time
from typing import TYPE_CHECKING

from danube.proto import DanubeApi_pb2 as api

from broker_client import Client
from wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

SEND = "/danube.ProducerService/SendMessage"


async def pace(rate: int, count: int, payload_bytes: int, send: Callable[[int, bytes], None]) -> None:
    print("ready", flush=True)
    began = float(sys.stdin.readline())
    gc.collect()
    gc.freeze()  # keep this process's GC out of the measurement
    for number in range(count):
        wait = began + number / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        send(number, b"%-*d" % (payload_bytes, number))


async def bare(target: str, topic: str, *numbers: int) -> None:
    client = Client(target)
    attached = await client.producer(topic)
    await client.close()
    wire = await Wire.connect(target)
    answers: list[asyncio.Future[bytes]] = []

    def send(number: int, payload: bytes) -> None:
        message = api.StreamMessage(
            request_id=number,
            msg_id=attached.id,
            payload=payload,
            publish_time=1_700_000_000_000,
            producer_name=attached.name,
        )
        answers.append(wire.call(SEND, message.SerializeToString()))

    await pace(*numbers, send)
    for number, answer in enumerate(await asyncio.gather(*answers)):
        assert api.MessageResponse.FromString(answer).request_id == number, "the answer is for another request"
    wire.close()


async def grpc(target: str, topic: str, *numbers: int) -> None:
    client = Client(target)
    producer = await client.producer(topic)
    sends: list[asyncio.Task[None]] = []
    await pace(*numbers, lambda number, payload: sends.append(asyncio.create_task(producer.send(number, payload))))
    await asyncio.gather(*sends)  # each of which checks its answer
    await client.close()


async def relay(target: str, _topic: str, *numbers: int) -> None:
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await pace(*numbers, lambda _, payload: writer.write(payload))
    await reader.read(1)
    writer.close()


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with precise timers; the default one rounds to milliseconds and is half of one late on average."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    kind_, target_, topic_, *rest = sys.argv[1:]
    send_by = {"bare": bare, "grpc": grpc, "relay": relay}[kind_]
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(send_by(target_, topic_, *map(int, rest)))
