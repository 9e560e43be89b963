"""Decide what the demo stores: every message follows from its number, so that anyone can check any of them."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

from ister.cli.demo_topic import TOPIC
from ister.cli.exits import CheckFailedError
from ister.core.message import MsgID, StreamMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ister.storage.wal_storage import WalStorage

BATCH = 256
"""How many messages are appended in one call."""
SINGLES = 64
"""How many messages are appended at the same time, one call each."""
ACKNOWLEDGED = Struct("<QQ")
"""What the writer reports for each answer that it got: offsets [start, stop)."""

_FILLING = [blake2b(bytes([number])).hexdigest().encode() for number in range(251)]
_PRODUCER = "demo-producer"
_BROKER = "localhost:6650"


def demo_message(number: int) -> StreamMessage:
    """Return the message that belongs at this offset; one in sixteen has every optional field."""
    payload = b"message %d %s" % (number, _FILLING[number % len(_FILLING)])
    if number % 16:
        return StreamMessage(payload, MsgID(1, str(TOPIC), _BROKER, number), number, number, _PRODUCER)
    return StreamMessage(
        payload,
        MsgID(1, str(TOPIC), _BROKER, number),
        number,
        number,
        _PRODUCER,
        attributes={"number": str(number), "river": "Δούναβις"},
        schema_id=number,
        schema_version=1,
        routing_key=f"key-{number % 7}",
    )


def check_messages(messages: Sequence[StreamMessage], start: int) -> None:
    """Insist that these are exactly the messages from `start` on, every stored field of them."""
    for number, message in enumerate(messages, start):
        if message.offset != number:
            raise CheckFailedError(f"offset {number} was expected, and offset {message.offset} was read")
        if message._replace(append_time_us=0) != demo_message(number):
            raise CheckFailedError(f"the message at offset {number} is not the one that was stored there")


async def append_batch(storage: WalStorage, count: int) -> range:
    """Append the next messages in one call; returns their offsets."""
    start = storage.next_offset
    messages = [demo_message(number) for number in range(start, start + count)]
    return _checked(await storage.append_messages(messages), start)


async def append_singles(storage: WalStorage, count: int) -> range:
    """Append the next messages at the same time, one call each; returns their offsets."""
    start = storage.next_offset
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(storage.append_message(demo_message(n))) for n in range(start, start + count)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # they wrote together, so they failed for the same reason
    return _checked([task.result() for task in tasks], start)


async def append_all(storage: WalStorage, count: int, advance: Callable[[int], None]) -> None:
    """Append so many messages, in both ways by turns."""
    left = count
    while left:
        offsets = await append_batch(storage, min(left, BATCH))
        left -= len(offsets)
        advance(len(offsets))
        if left:
            offsets = await append_singles(storage, min(left, SINGLES))
            left -= len(offsets)
            advance(len(offsets))
        await asyncio.sleep(0)  # a batch is written without waiting for anything; the readers want a turn


def _checked(offsets: Sequence[int], start: int) -> range:
    expected = range(start, start + len(offsets))
    if [*offsets] != [*expected]:
        raise CheckFailedError(f"the messages from offset {start} on were acknowledged with other offsets")
    return expected
