"""Traffic for the tests of faults: producers and consumers that keep a history of what they were told.

A send that was answered is acknowledged. One whose answer is missing is unknown, never failed: it may be stored, once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc

from interop.raw import CALL_S, Raw, api

GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
"""What a client sees of a broker that dies, stops, or is not there yet."""


class Writer:
    """One producer: one message after the other, each with a number of its own, until it is stopped."""

    def __init__(self, raw: Raw, topic: str, name: str) -> None:
        self.raw = raw
        self.topic = topic
        self.name = name
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        self._number = 0

    async def run(self) -> None:
        """Send until the broker is gone; whatever else goes wrong is raised."""
        producer = await self.raw.create_producer(self.topic, self.name)
        while True:
            payload = b"%s %d" % (self.name.encode(), self._number)
            self._number += 1
            request = api.StreamMessage(
                request_id=self._number,
                msg_id=api.MsgID(producer_id=producer, topic_name=self.topic),
                payload=payload,
                producer_name=self.name,
            )
            try:
                await self.raw.producing.SendMessage(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    raise
                self.unknown.append(payload)
                return
            except asyncio.CancelledError:
                self.unknown.append(payload)
                raise
            self.acknowledged.append(payload)


class Reader:
    """One consumer that acknowledges what it gets until the broker is gone."""

    def __init__(self, raw: Raw, topic: str, subscription: str, name: str, kind: int) -> None:
        self.raw = raw
        self.topic = topic
        self.subscription = subscription
        self.name = name
        self.kind = kind
        self.got: list[tuple[int, bytes]] = []
        self.acknowledged: set[int] = set()

    async def run(self) -> None:
        try:
            stream = await self.raw.consume(self.topic, self.subscription, self.name, self.kind)
            while (message := await stream._call.read()) is not grpc.aio.EOF:
                self.got.append((message.msg_id.topic_offset, message.payload))
                await self.raw.ack(message, self.subscription)
                self.acknowledged.add(message.msg_id.topic_offset)
        except grpc.aio.AioRpcError as error:
            if error.code() not in GONE:
                raise


async def read_back(raw: Raw, topic: str, subscription: str, last: bytes) -> dict[int, bytes]:
    """Read a subscription until the message `last` comes; returns everything by its offset."""
    found: dict[int, bytes] = {}
    stream = await raw.consume(topic, subscription, "auditor", 0)
    while True:
        message = await stream.next()
        offset = message.msg_id.topic_offset
        assert found.setdefault(offset, message.payload) == message.payload, f"offset {offset} has two contents"
        await raw.ack(message, subscription)
        if message.payload == last:
            stream.cancel()
            return found


def check_history(stored: list[bytes], acknowledged: dict[str, list[bytes]], unknown: dict[str, list[bytes]]) -> None:
    """Compare a topic, in the order of its offsets, with what its producers were told."""
    by_writer: dict[str, list[bytes]] = defaultdict(list)
    for payload in stored:
        by_writer[payload.partition(b" ")[0].decode()].append(payload)
    for name, promised in acknowledged.items():
        kept = by_writer[name]
        assert len(kept) == len(set(kept)), f"{name}: a message is there twice"
        lost = set(promised) - set(kept)
        assert not lost, f"{name}: {len(lost)} acknowledged messages are lost, {sorted(lost)[:3]} among them"
        invented = set(kept) - set(promised) - set(unknown[name])
        assert not invented, f"{name}: {sorted(invented)[:3]} were never sent"
        numbers = [int(payload.rpartition(b" ")[2]) for payload in kept]
        assert numbers == sorted(numbers), f"{name}: order is lost"
