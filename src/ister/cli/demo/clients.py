"""Producers and consumers of the demo, written with the official Danube client as users do."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
from danube.client import DanubeClientBuilder
from danube.consumer import SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.producer import ProducerOptions

from ister.cli.demo.history import Received, Subscription, key_of, order
from ister.cli.exit_codes import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from danube.client import DanubeClient
    from danube.consumer import Consumer
    from danube.proto.DanubeApi_pb2 import StreamMessage

    from ister.cli.demo.history import History

TOPIC = "/default/demo"
SILENCE_S = 60
"""How long the demo waits without progress before it fails."""
_RETRIES = ProducerOptions(max_retries=100, base_backoff_ms=50, max_backoff_ms=500)
_KINDS = {
    "Exclusive": SubType.EXCLUSIVE,
    "Shared": SubType.SHARED,
    "Failover": SubType.FAILOVER,
    "KeyShared": SubType.KEY_SHARED,
}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[DanubeClient]:
    """Yield a client; close its connections at the end, which it has no method for."""
    logging.getLogger("danube").setLevel(logging.CRITICAL)  # it warns at every reconnect
    client = await DanubeClientBuilder().service_url(url).build()
    try:
        yield client
    finally:
        for connection in client.connection_manager._connections.values():  # noqa: SLF001  # there is no other way
            await connection.channel.close()


async def produce(
    client: DanubeClient, shop: str, count: int, history: History, advance: Callable[[int], None]
) -> None:
    """Send `count` orders, one after the other; the client retries without an answer."""
    producer = (
        client.new_producer()
        .with_topic(TOPIC)
        .with_name(shop)
        .with_dispatch_strategy(DispatchStrategy.RELIABLE)
        .with_options(_RETRIES)
        .build()
    )
    await producer.create()
    try:
        for number in range(count):
            async with asyncio.timeout(SILENCE_S):
                await producer.send_with_key(order(shop, number), {"shop": shop}, key_of(number))
            history.acknowledged[shop] += 1
            advance(1)
    except TimeoutError:
        raise CheckFailedError(f"{shop} has had no answer for {SILENCE_S} seconds") from None
    finally:
        await producer.close()


class Consumers:
    """The consumers of one subscription: each records a message, then acknowledges it."""

    def __init__(self, client: DanubeClient, subscription: Subscription, advance: Callable[[int], None]) -> None:
        self._client = client
        self._subscription = subscription
        self._advance = advance
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Subscribe and start to receive."""
        for number in range(self._subscription.consumers):
            consumer = (
                self._client.new_consumer()
                .with_topic(TOPIC)
                .with_subscription(self._subscription.name)
                .with_consumer_name(f"{self._subscription.name}-{number}")
                .with_subscription_type(_KINDS[self._subscription.kind])
                .build()
            )
            await consumer.subscribe()
            self._consumers.append(consumer)
            self._tasks.append(asyncio.create_task(self._consume(consumer, await consumer.receive())))

    async def _consume(self, consumer: Consumer, queue: asyncio.Queue[StreamMessage]) -> None:
        while True:
            message = await queue.get()
            self._subscription.received.append(
                Received(message.msg_id.topic_offset, message.payload, message.routing_key)
            )
            try:
                await consumer.ack(message)
            except grpc.aio.AioRpcError:
                continue  # the broker is down; the message is redelivered
            self._advance(1)

    async def stop(self) -> None:
        """Stop receiving and close the consumers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))


async def until(done: Callable[[], bool], progress: Callable[[], int], what: str) -> None:
    """Wait until `done` returns True; raise CheckFailedError when `progress` stalls."""
    loop = asyncio.get_running_loop()
    last, moved = progress(), loop.time()
    while not done():
        await asyncio.sleep(0.02)
        if progress() != last:
            last, moved = progress(), loop.time()
        elif loop.time() - moved > SILENCE_S:
            raise CheckFailedError(f"{what}: nothing has happened for {SILENCE_S} seconds")
