"""A topic factory on real files and a store of its own, for tests."""

import asyncio

from ister.cloud import Retention, UploadOptions
from ister.core.errors import (
    StoreUnavailableError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from parts.cloud import StepClock, TroubledMetadata, TroubledStore, check, crash_wal, messages

T = TopicName("default", "t")


DOWN = StoreUnavailableError("fs", "list", "no route")


class World:
    """What outlives a process: a directory, a store and metadata; and one factory after the other."""

    def __init__(self, directory, metadata=None):
        self.directory = directory
        self.store = TroubledStore(FsStore(directory / "objects"))
        self.metadata = TroubledMetadata(metadata or MemoryMetadata())
        self.clock = StepClock()

    def factory(self, *, upload=None, level=None, files=None, drain_timeout_s=10, **retention):
        config = TopicsConfig(
            wal=WalConfig(dir=self.directory / "wal", cache_capacity=2, level=level),
            upload=UploadOptions(**({"interval_s": 300} | (upload or {}))),
            retention=Retention(**retention),
            drain_timeout_s=drain_timeout_s,
        )
        return WalStorageFactory(config, store=self.store, metadata=self.metadata, clock=self.clock, files=files)

    def log_directory(self, topic=T, generation=1):
        return self.directory / "wal" / topic.namespace / topic.topic / str(generation)

    def object_files(self, topic=T, generation=1):
        return sorted((self.directory / "objects" / topic.namespace / topic.topic / str(generation)).glob("*"))

    async def fill(self, count=10, *, topic=T, pruned=5):
        """Have a factory make a topic: files of 5, all in objects, the log pruned."""
        factory = self.factory()
        storage = await factory.for_topic(topic)
        for start in range(storage.next_offset, storage.next_offset + count, 5):
            await storage.append_messages(messages(start, start + 5))
            await storage.seal(0)
        await factory.uploader(topic).drain()
        await storage.prune(pruned)
        await factory.shutdown()


async def read(storage, start, stop):
    reader = await storage.create_reader(StartPosition.offset(start))
    found = []
    while len(found) < stop - start:
        found += await reader.read()
    await reader.close()
    check(found, start, stop)


async def crash(factory):
    """Leave everything as kill -9 does."""
    for opened in factory._open.values():
        for task in opened.tasks:
            task.cancel()
        await asyncio.wait(opened.tasks)
        crash_wal(opened.storage.wal)
    await factory._root.disown()
