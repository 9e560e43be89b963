"""Decide what the demo's topic is: a data directory with log, objects and metadata, where everything happens soon."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.cloud import Retention, UploadOptions
from ister.core.names import TopicName
from ister.ports.files import OsFiles
from ister.ports.metadata import SqliteMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import SyncMode, WalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ister.cloud import Deleter, Uploader
    from ister.storage.wal_storage import WalStorage

TOPIC = TopicName("default", "demo")


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """The topic, and what works for it in the background."""

    storage: WalStorage
    uploader: Uploader
    deleter: Deleter


def demo_config(directory: Path) -> TopicsConfig:
    """Sync, rotate and upload often, so that a short run meets all of it; keep nothing that objects have."""
    return TopicsConfig(
        wal=WalConfig(
            dir=directory / "wal",
            sync_mode=SyncMode.PERIODIC,
            fsync_interval_ms=100,
            max_bytes=16 * 1024 * 1024,
        ),
        upload=UploadOptions(interval_s=0.2, max_object_mb=4),
        retention=Retention(time_minutes=None, size_mb=0),
    )


def log_directory(directory: Path) -> Path:
    """Return where the log's files are."""
    return directory.joinpath("wal", *TOPIC.path_parts(), "1")


def object_files(directory: Path) -> list[Path]:
    """Return the files that hold the objects, oldest first."""
    return sorted(directory.joinpath("objects", *TOPIC.path_parts(), "1").glob("data-*.dnb"))


@asynccontextmanager
async def open_topic(directory: Path) -> AsyncIterator[DemoTopic]:
    """Open the topic with everything behind it, or make it; at the end what waits is uploaded and all is closed."""
    OsFiles().make_directory(directory)
    metadata = await SqliteMetadata.open(directory / "metadata.db")
    try:
        factory = WalStorageFactory(demo_config(directory), store=FsStore(directory / "objects"), metadata=metadata)
        try:
            storage = await factory.for_topic(TOPIC)
            uploader, deleter = factory.uploader(TOPIC), factory.deleter(TOPIC)
            assert uploader is not None, "it is enabled"
            assert deleter is not None, "it comes with the uploader"
            yield DemoTopic(storage, uploader, deleter)
        finally:
            await factory.shutdown()
    finally:
        await metadata.close()
