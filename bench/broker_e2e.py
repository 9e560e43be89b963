"""End-to-end latency at a thousand messages a second: three processes, each message checked.

`e2e_1000` is with bare clients (bench/wire.py), `e2e_1000_grpc` with clients of grpc.aio.
The floor, in alternating rounds, is a relay that only forwards bytes. The CPU steal time of the virtual machine is reported,
because a process that is stopped for 10 ms delays a dozen messages, and fifty of five thousand are the 99th percentile.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from danube.proto import DanubeApi_pb2 as api

from broker_client import Client
from broker_process import relay_server
from wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from figures import Figures

RATE = 1000
SECONDS = 5.0
PAYLOAD_BYTES = 200
COUNT = int(RATE * SECONDS)
ANSWERS_S = 60.0
ACK = "/danube.ConsumerService/Ack"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
SUBSCRIPTION = "sub"


class Deliveries:
    """Arrival times of messages at one subscription; checks that every offset is delivered once, in order.

    Messages are identified by their payload: concurrent sends may be stored in any order.
    """

    def __init__(self, count: int) -> None:
        self.at: dict[int, float] = {}
        self._count = count
        self._next = 0
        self._complete = asyncio.get_running_loop().create_future()

    def take(self, message: api.StreamMessage) -> None:
        self.came(message.msg_id.topic_offset, message.payload)

    def came(self, offset: int, payload: bytes) -> None:
        now = time.perf_counter()
        assert offset == self._next, f"{offset} came, {self._next} was due"
        self._next += 1
        self.at[int(payload)] = now
        if self._next == self._count:
            assert self.at.keys() == set(range(self._count)), "a message came twice"
            self._complete.set_result(None)

    def failed(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and not self._complete.done():
            self._complete.set_exception(task.exception() or RuntimeError("the stream has ended"))

    async def complete(self, timeout_s: float) -> None:
        await asyncio.wait_for(self._complete, timeout_s)


async def e2e_round(target: str, topic: str, figures: Figures) -> None:
    """Measure the relay and the broker, one after the other."""
    with relay_server() as relay:
        note(figures, "relay_1000", await relay_times(relay))
    before = steal_s()
    note(figures, "e2e_1000", await e2e_times(target, topic))
    figures.note("e2e_steal_percent", (steal_s() - before) / SECONDS / (os.cpu_count() or 1) * 100)


async def grpc_round(target: str, topic: str, figures: Figures) -> None:
    """Measure the broker with a producer and a consumer of grpc.aio."""
    deliveries = Deliveries(COUNT)
    client = Client(target)
    async with following(client, topic, [deliveries]):
        times = await paced(deliveries, "grpc", target, topic)
    await client.close()
    note(figures, "e2e_1000_grpc", times)


@asynccontextmanager
async def following(client: Client, topic: str, deliveries: list[Deliveries]) -> AsyncIterator[None]:
    """Run a consumer in each of several subscriptions; raise if an acknowledgement failed."""
    tasks = []
    for number, each in enumerate(deliveries):
        consumer = await client.consumer(topic, f"{SUBSCRIPTION}-{number}")
        started = asyncio.Event()
        tasks.append(asyncio.create_task(consumer.follow(each.take, started)))
        tasks[-1].add_done_callback(each.failed)
        await started.wait()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise error or RuntimeError("the stream has ended")


def note(figures: Figures, name: str, times: list[float]) -> None:
    figures.note(f"{name}_p50_us", times[len(times) // 2])
    figures.note(f"{name}_p99_us", times[len(times) * 99 // 100])


async def e2e_times(target: str, topic: str) -> list[float]:
    """Send through the broker, and acknowledge each message."""
    deliveries = Deliveries(COUNT)
    client = Client(target)
    number = (await client.consumer(topic, f"{SUBSCRIPTION}-0")).number
    await client.close()
    wire = await Wire.connect(target)
    wire.ended.add_done_callback(deliveries.failed)
    acks: dict[int, asyncio.Future[bytes]] = {}

    def take(data: bytes) -> None:
        message = api.StreamMessage.FromString(data)
        deliveries.take(message)
        ack = api.AckRequest(
            request_id=message.request_id, msg_id=message.msg_id, subscription_name=message.subscription_name
        )
        acks[message.request_id] = wire.call(ACK, ack.SerializeToString())

    wire.receive(RECEIVE, api.ReceiveRequest(consumer_id=number).SerializeToString(), take)
    times = await paced(deliveries, "bare", target, topic)
    answers = await asyncio.wait_for(asyncio.gather(*acks.values()), ANSWERS_S)
    for number, answer in zip(acks, answers, strict=True):
        assert api.AckResponse.FromString(answer).request_id == number, "the answer is for another request"
    assert len(acks) == COUNT
    wire.close()
    return times


async def relay_times(target: str) -> list[float]:
    """Send through the relay."""
    deliveries = Deliveries(COUNT)
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"C")
    assert await reader.readexactly(1) == b"C"

    async def follow() -> None:
        for offset in range(COUNT):
            deliveries.came(offset, await reader.readexactly(PAYLOAD_BYTES))
            writer.write(b"k")

    following = asyncio.ensure_future(follow())
    times = await paced(deliveries, "relay", target, "")
    await following
    writer.close()
    return times


async def paced(deliveries: Deliveries, kind: str, target: str, topic: str) -> list[float]:
    """Run a process that sends each message at its due time; latency is measured from the due time to the consumer."""
    pacer = [Path(__file__).with_name("broker_pacer.py"), kind, target, topic, RATE, COUNT, PAYLOAD_BYTES]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, pacer), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert await process.stdout.readline() == b"ready\n", "the producer does not start"
    gc.collect()
    gc.freeze()  # keep this process's GC out of the measurement
    began = time.perf_counter() + 0.1
    await process.communicate(b"%r\n" % began)
    assert process.returncode == 0, "the producer has failed, and has said why"
    await deliveries.complete(ANSWERS_S)
    return sorted((at - began - index / RATE) * 1e6 for index, at in deliveries.at.items())


def steal_s() -> float:
    """Return the CPU steal time since boot in seconds; 0 where it is not reported."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")
