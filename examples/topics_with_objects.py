"""Topics with log and objects: store, upload, prune, lose the disk, and read everything again.

Run it with `python examples/topics_with_objects.py`. It works in a temporary directory and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ister.cloud import Retention, UploadOptions
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import AckLevel, WalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ister.storage import WalStorage

TOPIC = TopicName.parse("/default/orders")


@asynccontextmanager
async def open_topics(data: Path) -> AsyncIterator[WalStorageFactory]:
    """Open every topic in a data directory; at the end, upload the rest and close them."""
    config = TopicsConfig(
        wal=WalConfig(dir=data / "wal"),
        upload=UploadOptions(interval_s=300),
        retention=Retention(time_minutes=None, size_mb=0),  # retain nothing in the log that objects have
    )
    metadata = await SqliteMetadata.open(data / "metadata.db")
    try:
        # Any other store: open_store(StoreSettings("s3", "s3://bucket/prefix", {"region": "us-east-1"})).
        factory = WalStorageFactory(config, store=FsStore(data / "objects"), metadata=metadata)
        await factory.start()
        try:
            yield factory
        finally:
            await factory.shutdown()
    finally:
        await metadata.close()


async def read(storage: WalStorage, start: int, count: int) -> list[str]:
    """Read `count` messages from an offset on, from any tier."""
    reader = await storage.create_reader(StartPosition.offset(start))
    return [(await anext(reader)).payload.decode() for _ in range(count)]


async def main() -> None:
    """Upload a topic's messages to objects, and print each step."""
    # Each object and each pruned file is a log event, which would clutter our output.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="ister-example-") as directory:
        data = Path(directory)
        async with open_topics(data) as topics:
            orders = await topics.for_topic(TOPIC, level=AckLevel.CLOUD)
            offsets = [await orders.append_message(StreamMessage(text.encode())) for text in ("one", "two", "three")]
            print(f"stored, and in an object: offsets {offsets}")

            await orders.seal(0)  # a file is deleted only once the next one has begun
            deleter = topics.deleter(TOPIC)
            assert deleter is not None, "it comes with the uploader"
            print(f"pruned: the log starts at {await deleter.tick()}, the topic at {orders.start_offset}")

            print(f"stored, and in an object: offsets [{await orders.append_message(StreamMessage(b'four'))}]")
            print(f"one reader over both tiers: {await read(orders, 0, 4)}")

        shutil.rmtree(data / "wal")
        async with open_topics(data) as topics:
            orders = await topics.for_topic(TOPIC)
            print(f"the log is lost: the topic goes on at {orders.next_offset}, and has {await read(orders, 0, 4)}")


if __name__ == "__main__":
    asyncio.run(main())
