"""A process that appends to a topic without end, rotates and uploads often, and reports every answer on stdout.

Run as `topic_writer.py DIRECTORY`. It ends when it is killed, or when nobody reads its reports any more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct

import structlog

from ister.cloud import Retention, UploadOptions
from ister.core.errors import LockedError
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.ports.files.files import OsFiles
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import SyncMode, WalConfig

TOPIC = TopicName("default", "live")
BATCH, SINGLES = 256, 64
ACKNOWLEDGED = Struct("<QQ")
"""What is reported for each answer: offsets [start, stop)."""
REFUSED = 4


def log_directory(directory: Path) -> Path:
    return directory.joinpath("wal", *TOPIC.path_parts(), "1")


def object_files(directory: Path) -> list[Path]:
    return sorted(directory.joinpath("objects", *TOPIC.path_parts(), "1").glob("data-*.dnb"))


@asynccontextmanager
async def open_topic(directory: Path):
    OsFiles().make_directory(directory)
    metadata = await SqliteMetadata.open(directory / "metadata.db")
    try:
        config = TopicsConfig(
            wal=WalConfig(
                dir=directory / "wal", sync_mode=SyncMode.PERIODIC, fsync_interval_ms=100, max_bytes=16 * 1024 * 1024
            ),
            upload=UploadOptions(interval_s=0.2, max_object_mb=4),
            retention=Retention(time_minutes=None, size_mb=0),
        )
        factory = WalStorageFactory(config, store=FsStore(directory / "objects"), metadata=metadata)
        try:
            yield await factory.for_topic(TOPIC)
        finally:
            await factory.shutdown()
    finally:
        await metadata.close()


def message_of(number: int) -> StreamMessage:
    return StreamMessage(b"message %d " % number + b"." * 120, request_id=number, producer_name="writer")


def report(offsets) -> None:
    os.write(sys.stdout.fileno(), ACKNOWLEDGED.pack(offsets[0], offsets[-1] + 1))


async def write_without_end(directory: Path) -> None:
    async with open_topic(directory) as storage:
        while True:
            start = storage.next_offset
            report(await storage.append_messages([message_of(n) for n in range(start, start + BATCH)]))
            start = storage.next_offset
            report(
                await asyncio.gather(*(storage.append_message(message_of(n)) for n in range(start, start + SINGLES)))
            )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        asyncio.run(write_without_end(Path(sys.argv[1])))
    except BrokenPipeError:
        sys.exit(0)
    except LockedError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
