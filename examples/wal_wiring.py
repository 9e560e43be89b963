"""Wire a durable log to a reliable topic: store, tail, replay, acknowledge, and reopen.

Run it with `python examples/wal_wiring.py`. It works in a temporary directory and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.storage import (
    InMemoryStorage,
    ReliableDispatch,
    ReliableOptions,
    RetentionPolicy,
    TopicCache,
    WalStorage,
)
from ister.wal import Wal, WalConfig

TOPIC = "/default/my-topic"


async def open_topic(directory: Path) -> ReliableDispatch:
    """Open or create the log in a directory, and a reliable topic over it."""
    wal = await Wal.with_config(
        WalConfig(
            dir=directory,
            file_name="wal.log",
            cache_capacity=1024,
            fsync_interval_ms=5,
            max_batch_bytes=8 * 1024,
            topic=TOPIC,
        )
    )
    wal_storage = WalStorage.from_wal(wal)

    storage = InMemoryStorage()
    topic_cache = TopicCache(storage, 100, 10)
    reliable_options = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_ACK, 60)

    return ReliableDispatch.new_with_persistent(TOPIC, reliable_options, topic_cache, wal_storage)


async def produce(dispatch: ReliableDispatch, texts: list[str]) -> list[int]:
    """Store one message for each text; return their offsets."""
    return [
        await dispatch.store_message(
            StreamMessage(payload=text.encode(), msg_id=MsgID(producer_id=1), producer_name="example")
        )
        for text in texts
    ]


async def main() -> None:
    """Run the specification's example, and print each step."""
    with tempfile.TemporaryDirectory(prefix="ister-example-") as directory:
        dispatch = await open_topic(Path(directory))
        await dispatch.subscribe("billing", StartPosition.offset(0))
        print(f"stored before anyone reads: offsets {await produce(dispatch, ['one', 'two', 'three'])}")

        latest = await dispatch.create_stream_latest()
        tail = asyncio.ensure_future(latest.read())
        print(f"stored while a reader waits at the end: offsets {await produce(dispatch, ['four'])}")
        print(f"the waiting reader got: {[message.payload.decode() for message in await tail]}")

        replay = await dispatch.topic_store.create_reader(StartPosition.offset(1))
        replayed = [await anext(replay) for _ in range(3)]
        print(f"replayed from offset 1: {[(message.offset, message.payload.decode()) for message in replayed]}")

        print(f"billing acknowledged offset 2 and goes on at {await dispatch.ack('billing', 2)}")
        await dispatch.close()

        dispatch = await open_topic(Path(directory))
        billing = await dispatch.subscribe("billing", StartPosition.latest())
        stream = await dispatch.create_stream(StartPosition.offset(billing))
        print(f"opened again: billing goes on at {billing}, with {(await anext(stream)).payload.decode()!r}")
        await dispatch.close()


if __name__ == "__main__":
    asyncio.run(main())
