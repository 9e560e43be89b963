"""A process that stores in a topic of IcebergStorage and reads it with two subscriptions, and reports what it does.

Run as `iceberg_writer.py DIRECTORY`. It carries to real tables, without Spark. It ends when it is killed.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from struct import Struct

import structlog

from ister import IcebergStorage
from ister.aio.watermark import Watermark
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.lake.catalog import LakeCatalog
from parts.local_pipeline import LakeTables, LocalPipeline

TOPIC = "kill"
BATCH, AHEAD = 20, 200
REPORT = Struct("<cBQ")
"""What happened, to which subscription, and an offset."""
STORED, BEGUN, ACKED, FIRST = b"S", b"B", b"A", b"F"
SUBSCRIPTIONS = ("slow", "quick")
ACK_EVERY = (1, 50)


def open_storage(directory: Path):
    lake = LakeCatalog.open(*catalog_properties(load(None, directory).config))
    pipeline = LocalPipeline(LakeTables(lake))
    return IcebergStorage(data_dir=directory, pipeline=pipeline), pipeline, lake


def message_of(offset: int) -> StreamMessage:
    return StreamMessage(b"message %d " % offset + b"." * (offset % 50), request_id=offset, producer_name="writer")


def report(what: bytes, subscription: int, offset: int) -> None:
    os.write(sys.stdout.fileno(), REPORT.pack(what, subscription, offset))


async def store_without_end(storage, slow: Watermark) -> None:
    """Store, a little ahead of the slow one, who acknowledges each message."""
    while True:
        start = await storage.get_write_position(TOPIC)
        await slow.wait(start - AHEAD)
        offsets = await storage.store(TOPIC, [message_of(n) for n in range(start, start + BATCH)])
        assert offsets.start == start
        report(STORED, 0, offsets.stop)


async def read_without_end(storage, number: int, progress: Watermark) -> None:
    stream = await storage.create_subscription_stream("default", TOPIC, SUBSCRIPTIONS[number])
    report(FIRST, number, stream.cursor)
    expected = stream.cursor
    async for message in stream:
        assert message[:1] + message[2:3] == message_of(expected)[:1] + message_of(expected)[2:3]
        assert message.offset == expected
        if expected % ACK_EVERY[number] == 0:
            report(BEGUN, number, expected + 1)
            await stream.ack(expected)
            report(ACKED, number, expected + 1)
        expected += 1
        progress.reach(expected)


async def main(directory: Path) -> None:
    storage, pipeline, _ = open_storage(directory)
    await storage.initialize_topic(TOPIC)
    async with asyncio.TaskGroup() as tasks:
        progress = [Watermark(0) for _ in SUBSCRIPTIONS]
        tasks.create_task(store_without_end(storage, progress[0]))
        for number, reached in enumerate(progress):
            tasks.create_task(read_without_end(storage, number, reached))
        while True:
            await pipeline.carry(TopicName("default", TOPIC))
            await asyncio.sleep(0)  # it has not waited when there was nothing


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with suppress(BrokenPipeError):
        asyncio.run(main(Path(sys.argv[1])))
