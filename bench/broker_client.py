"""The client of bench/broker.py: the same calls to the broker and to its floor. Imports nothing of ister.

Every answer is checked: the id of the request, and the offset and payload of each delivery.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as api_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

ACKS_IN_FLIGHT = 64
CALL_S = 60.0


class Client:
    """One connection to a server."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._producing = api_grpc.ProducerServiceStub(self.channel)
        self._consuming = api_grpc.ConsumerServiceStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()

    async def producer(self, topic: str, name: str = "producer") -> Producer:
        answer = await self._producing.CreateProducer(
            api.ProducerRequest(topic_name=topic, producer_name=name, dispatch_strategy=api.Reliable), timeout=CALL_S
        )
        return Producer(self._producing.SendMessage, topic, name, answer.producer_id)

    async def consumer(self, topic: str, subscription: str) -> Consumer:
        answer = await self._consuming.Subscribe(
            api.ConsumerRequest(topic_name=topic, consumer_name="consumer", subscription=subscription), timeout=CALL_S
        )
        return Consumer(self._consuming, subscription, answer.consumer_id)


class Producer:
    """Sends, and checks its request id in each answer."""

    def __init__(self, call, topic: str, name: str, number: int) -> None:
        self._call = call
        self.name = name
        self.id = api.MsgID(producer_id=number, topic_name=topic, broker_addr="http://127.0.0.1:6650")

    async def send(self, number: int, payload: bytes) -> None:
        answer = await self._call(
            api.StreamMessage(
                request_id=number,
                msg_id=self.id,
                payload=payload,
                publish_time=1_700_000_000_000,
                producer_name=self.name,
            )
        )
        assert answer.request_id == number, "the answer is for another request"

    async def send_all(self, start: int, payloads: list[bytes], in_flight: int) -> float:
        """Send one message for each payload, with a limit of messages in flight; return seconds."""
        numbered = enumerate(payloads, start)

        async def lane() -> None:
            for number, payload in numbered:
                await self.send(number, payload)

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(in_flight)))
        return time.perf_counter() - began

    async def latencies_us(self, start: int, payloads: list[bytes]) -> list[float]:
        """Send one after the other; return the sorted latencies."""
        times = []
        for number, payload in enumerate(payloads, start):
            began = time.perf_counter()
            await self.send(number, payload)
            times.append((time.perf_counter() - began) * 1e6)
        return sorted(times)


class Consumer:
    """Receives in order and acknowledges, with concurrent acknowledgements."""

    def __init__(self, stub, subscription: str, number: int) -> None:
        self._stub = stub
        self._subscription = subscription
        self.number = number

    async def drain(self, start: int, count: int, check: Callable[[int, bytes], None]) -> float:
        """Receive and acknowledge `count` messages from this offset on; return seconds."""
        stream = self._stub.ReceiveMessages(api.ReceiveRequest(consumer_id=self.number))
        waiting: asyncio.Queue[api.StreamMessage | None] = asyncio.Queue()

        async def acknowledge() -> None:
            while (message := await waiting.get()) is not None:
                await self._ack(message)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as acking:  # a failed acknowledgement cancels the reader
            for _ in range(ACKS_IN_FLIGHT):
                acking.create_task(acknowledge())
            for offset in range(start, start + count):
                message = await stream.read()
                assert message is not grpc.aio.EOF, "the stream has ended"
                came = message.msg_id.topic_offset
                assert came == offset, f"offset {came} came, {offset} was due"
                check(offset, message.payload)
                waiting.put_nowait(message)
            for _ in range(ACKS_IN_FLIGHT):
                waiting.put_nowait(None)
        spent = time.perf_counter() - began
        stream.cancel()
        return spent

    async def follow(self, take: Callable[[api.StreamMessage], None], started: asyncio.Event) -> None:
        """Receive and acknowledge until cancelled; `take` gets each message on arrival.

        Raises if one of its acknowledgements was refused, or answered with another request id.
        """
        stream = self._stub.ReceiveMessages(api.ReceiveRequest(consumer_id=self.number))
        acks: list[asyncio.Task[None]] = []
        try:
            started.set()
            while (message := await stream.read()) is not grpc.aio.EOF:
                take(message)
                acks.append(asyncio.create_task(self._ack(message)))
        finally:
            stream.cancel()
            await asyncio.wait_for(asyncio.gather(*acks), CALL_S)

    async def _ack(self, message: api.StreamMessage) -> None:
        answer = await self._stub.Ack(
            api.AckRequest(request_id=message.request_id, msg_id=message.msg_id, subscription_name=self._subscription)
        )
        assert answer.request_id == message.request_id, "the answer is for another request"
