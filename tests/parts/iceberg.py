"""What the tests of IcebergStorage share: what outlives a process, and one storage after the other on it."""

import asyncio
import functools

from ister.storage.factory import WalStorageFactory
from ister.storage.iceberg.storage import IcebergStorage, Parts
from parts.cloud import crash_wal, messages, run
from parts.factory import World
from parts.local_pipeline import LocalPipeline
from sim.table_machine import SimTable


def story(main):
    """Make a coroutine function a test that leaves no task behind."""

    @functools.wraps(main)
    def test(*args, **kwargs):
        return run(main(*args, **kwargs))

    return test


class SimWorld(World):
    """What outlives a process: disk, objects, metadata, and simulated tables; and one storage after the other."""

    def __init__(self, directory):
        super().__init__(directory)
        self.tables = {}

    def table(self, topic, generation):
        return self.tables.setdefault((topic, generation), SimTable())

    async def commit(self, topic, generation, start, found):
        await self.table(topic, generation).commit(start, found)

    async def upto(self, topic, generation):
        return len(self.table(topic, generation).rows)

    def storage(self, *, drain_timeout_s=10.0, limits=None, policies=None, **settings):
        """Make a storage; its parts are there once it was used."""
        world = self

        async def compose(stack):
            config = world.factory(**settings).config
            topics = WalStorageFactory(
                config, store=world.store, metadata=world.metadata, clock=world.clock, tables=world.table,
                known_upto=lambda topic, generation: len(world.table(topic, generation).rows),
            )  # fmt: skip
            world.topics = topics
            world.pipeline = LocalPipeline(world, **(policies or {}))
            stack.callback(lambda: world.closed.append(topics))
            return Parts(topics, world.pipeline, world.table_bytes)

        self.closed = []
        return IcebergStorage(compose, drain_timeout_s=drain_timeout_s, limits=limits)

    async def table_bytes(self, topic, generation):
        return 100 * len(self.table(topic, generation).rows)

    async def crash(self):
        """Forget a storage as kill -9 does: what is on disk stays, nothing is flushed or saved."""
        for served in self.pipeline._served.values():
            crash_wal(served.storage.wal)
        for opened in list(self.topics._open.values()):
            for task in opened.tasks:
                task.cancel()
            await asyncio.gather(*opened.tasks, return_exceptions=True)
        self.pipeline._task.cancel()
        await asyncio.wait({self.pipeline._task})
        await self.topics._root.disown()


def offsets(found):
    return [message.offset for message in found]


async def take(stream, count):
    """Read so many messages."""
    async with asyncio.timeout(20):
        return [await anext(stream) for _ in range(count)]


__all__ = ["SimWorld", "messages", "offsets", "story", "take"]
