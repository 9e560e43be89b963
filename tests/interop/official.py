"""The official Python client as a program uses it, and everything that it opened closed at the end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Self

import grpc
import pytest
from danube import DispatchStrategy, ProducerOptions, SubType

from interop.waiting import within

RECEIVE_S = 30.0
PATIENT = ProducerOptions(max_retries=300, base_backoff_ms=20, max_backoff_ms=200)
"""Retries that outlast a restart."""


class Official:
    """One client of one broker. `async with Official(broker) as client: …`."""

    def __init__(self, broker) -> None:
        self._broker = broker
        self._open: list = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.client = await self._stack.enter_async_context(self._broker.client())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(each.close() for each in self._open))
        await self._stack.aclose()

    @property
    def schemas(self):
        return self.client.schema()

    async def producer(
        self, topic: str, name: str = "producer", *, reliable: bool = True, partitions: int = 0, prepare=lambda b: b
    ):
        """Make a producer; `prepare` does whatever else a builder can."""
        strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
        builder = self.client.new_producer().with_topic(topic).with_name(name).with_dispatch_strategy(strategy)
        if partitions:
            builder = builder.with_partitions(partitions)
        producer = prepare(builder).build()
        await producer.create()
        self._open.append(producer)
        return producer

    async def consumer(
        self, topic: str, subscription: str, name: str = "consumer", kind: SubType = SubType.EXCLUSIVE, filters=()
    ) -> Receiver:
        """Subscribe and begin to receive."""
        builder = (
            self.client.new_consumer()
            .with_topic(topic)
            .with_consumer_name(name)
            .with_subscription(subscription)
            .with_subscription_type(kind)
            .with_key_filters([*filters])
        )
        consumer = builder.build()
        await consumer.subscribe()
        receiver = Receiver(name, consumer, await consumer.receive())
        self._open.append(receiver)
        return receiver


class Receiver:
    """A consumer and its queue."""

    def __init__(self, name: str, consumer, queue: asyncio.Queue) -> None:
        self.name = name
        self.consumer = consumer
        self.queue = queue
        self._closed = False

    async def next(self, seconds: float = RECEIVE_S):
        """Return the next message, not acknowledged."""
        async with within(seconds, f"a delivery to {self.name}"):
            return await self.queue.get()

    async def take(self, count: int, seconds: float = RECEIVE_S) -> list:
        """Return the next messages, each acknowledged as it came."""
        found = []
        for _ in range(count):
            message = await self.next(seconds)
            await self.consumer.ack(message)
            found.append(message)
        return found

    async def take_through(self, count: int, seconds: float = 60.0) -> list:
        """Return the next different messages while the broker may be away: one that could not be acked comes again."""
        found: dict[int, object] = {}
        while len(found) < count:
            message = await self.next(seconds)
            found.setdefault(message.msg_id.topic_offset, message)
            await self.ack_if_possible(message)
        return [*found.values()]

    async def ack_if_possible(self, message) -> None:
        """Acknowledge; a broker that is away does not hear it, and nobody minds."""
        try:
            await self.consumer.ack(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise

    async def nothing(self, seconds: float = 0.15) -> None:
        """Insist that nothing comes for so long."""
        try:
            async with asyncio.timeout(seconds):
                message = await self.queue.get()
        except TimeoutError:
            return
        pytest.fail(f"{message!r} came, and nothing should have")

    async def ack(self, message) -> None:
        await self.consumer.ack(message)

    async def nack(self, message, **fields) -> None:
        await self.consumer.nack(message, **fields)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.consumer.close()


class Crowd:
    """Several consumers that acknowledge whatever comes, in the background; what each got is kept, in its order.

    One that fails ends the block at once, and is raised.
    """

    def __init__(self, receivers: list[Receiver]) -> None:
        self.got: dict[str, list] = {receiver.name: [] for receiver in receivers}
        self._receivers = receivers
        self._tasks: list[asyncio.Task] = []
        self._group = asyncio.TaskGroup()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._consume(receiver)) for receiver in self._receivers]
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        for task in self._tasks:
            task.cancel()
        return await self._group.__aexit__(*raised)

    async def _consume(self, receiver: Receiver) -> None:
        while True:
            message = await receiver.queue.get()
            await receiver.ack_if_possible(message)
            async with self._changed:
                self.got[receiver.name].append(message)
                self._changed.notify_all()

    async def until(self, condition, what: str, seconds: float = 60.0) -> None:
        """Wait until a condition on `got` holds."""
        async with within(seconds, what), self._changed:
            await self._changed.wait_for(lambda: condition(self.got))

    async def until_total(self, count: int, seconds: float = 60.0) -> None:
        await self.until(lambda got: sum(map(len, got.values())) >= count, f"{count} deliveries in all", seconds)

    async def probe(self, producer) -> None:
        """Send until every consumer has got something: from then on all of them are connected. Then forget it."""
        sent = 0
        while not all(self.got.values()):
            await producer.send(b"probe")
            sent += 1
            assert sent < 1000, f"some consumer never gets anything: { {n: len(g) for n, g in self.got.items()} }"
            await asyncio.sleep(0.005)
        await self.settle()
        for got in self.got.values():
            got.clear()

    async def settle(self, quiet_s: float = 0.15) -> None:
        """Wait until nothing has come for a moment."""
        while True:
            before = sum(map(len, self.got.values()))
            await asyncio.sleep(quiet_s)
            if sum(map(len, self.got.values())) == before:
                return


def payloads(messages) -> list[bytes]:
    """Return what the messages carry."""
    return [message.payload for message in messages]


def offsets(messages) -> list[int]:
    """Return where the messages are."""
    return [message.msg_id.topic_offset for message in messages]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return payloads that can be told apart."""
    return [b"message %d" % number for number in range(start, start + count)]
