"""Produce, consume and acknowledge orders with the official client, also while the broker is killed and restarted.

Start a broker with `ister serve`, then run `python examples/produce_consume.py`. It needs only
`pip install danube-client`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os

import grpc
from danube import (
    Consumer,
    ConsumerOptions,
    DanubeClientBuilder,
    DispatchStrategy,
    Producer,
    ProducerOptions,
    SubType,
)

TOPIC = "/default/example-shop"
RETRIES = {"max_retries": 600, "base_backoff_ms": 50, "max_backoff_ms": 500}
"""Minutes, so that a send survives a restart; by default the client gives up after some seconds."""

# The client warns of every failed attempt to connect, thousands of times.
logging.getLogger("danube").setLevel(logging.ERROR)


async def produce(producer: Producer, orders: list[bytes], pause_s: float) -> None:
    """Send one order after the other; each is stored when `send` returns."""
    for order in orders:
        await producer.send(order)
        await asyncio.sleep(pause_s)


async def consume(consumer: Consumer, messages: asyncio.Queue, orders: list[bytes]) -> None:
    """Acknowledge messages until every order was received.

    Delivery is at least once: an order comes again if its acknowledgement was lost, or if it was sent again because the
    answer to the first time was lost. A program that must not do its work twice looks whether it did it already.
    """
    left = set(orders)
    while left:
        message = await messages.get()
        try:
            await consumer.ack(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            print(f"{message.payload.decode()} will come again: the broker is away", flush=True)
            continue
        if message.payload in left:
            left.remove(message.payload)
            print(f"{message.payload.decode()} is at offset {message.msg_id.topic_offset}, acknowledged", flush=True)


async def main() -> None:
    """Produce and consume concurrently, in one process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="http://127.0.0.1:6650", help="where the broker is")
    parser.add_argument("--orders", type=int, default=100, help="how many to produce")
    parser.add_argument("--pause-ms", type=int, default=100, help="how long to wait between two of them")
    given = parser.parse_args()

    client = await DanubeClientBuilder().service_url(given.broker).build()
    producer = (
        client.new_producer()
        .with_topic(TOPIC)
        .with_name("shop")
        .with_dispatch_strategy(DispatchStrategy.RELIABLE)
        .with_options(ProducerOptions(**RETRIES))
        .build()
    )
    await producer.create()
    consumer = (
        client.new_consumer()
        .with_topic(TOPIC)
        .with_consumer_name("billing-1")
        .with_subscription("billing")
        .with_subscription_type(SubType.SHARED)
        .with_options(ConsumerOptions(**RETRIES))
        .build()
    )
    await consumer.subscribe()
    messages = await consumer.receive()

    orders = [f"order {os.getpid()}-{number}".encode() for number in range(given.orders)]
    async with asyncio.TaskGroup() as group:
        group.create_task(produce(producer, orders, given.pause_ms / 1000))
        group.create_task(consume(consumer, messages, orders))
    await consumer.close()
    await producer.close()
    print(f"all {given.orders} orders were consumed and acknowledged")


if __name__ == "__main__":
    asyncio.run(main())
