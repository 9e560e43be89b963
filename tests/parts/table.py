"""What the tests of the table tier share: a topic in files of 5 with objects and a simulated table behind its log."""

from ister.core.offsets import StartPosition
from ister.storage import WalStorage
from ister.storage.factory import WalStorageFactory
from ister.storage.retention import ObjectRetention
from ister.storage.tiered_reader import TableTier
from parts.cloud import open_parts
from parts.factory import World
from sim.table_machine import SimTable


async def commit(storage, table, upto):
    """Be the pipeline: carry [what the table has, upto) to it."""
    reader = await storage.create_reader(StartPosition.offset(len(table.rows)))
    found = []
    while len(table.rows) + len(found) < upto:
        found += await reader.read()
    await reader.close()
    await table.commit(len(table.rows), found[: upto - len(table.rows)])
    storage.table_reached(upto)


async def tabled(tmp_path, **settings):
    """The table has [0, 15), objects [0, 20) in 4 objects, the log [10, 25) in files of 5, memory the newest 2."""
    parts = await open_parts(tmp_path, cache_capacity=2, **settings)
    parts.table = SimTable()
    parts.storage = WalStorage.from_wal(parts.wal, parts.storage.objects, TableTier(parts.table))
    for _ in range(4):
        await parts.add_file(5, 50)
    await parts.uploader.drain()
    await commit(parts.storage, parts.table, 15)
    await parts.storage.prune(10)
    await parts.add(5, 50)
    return parts


def object_retention(parts, retention_s=0):
    return ObjectRetention(parts.storage.objects, parts.storage.table, retention_s, parts.clock)


class TableWorld(World):
    """A world with a table, whose pipeline reports how far it is."""

    def __init__(self, directory, metadata=None):
        super().__init__(directory, metadata)
        self.table = SimTable()
        self.reported = 0

    def factory(self, *, object_retention_s=None, **settings):
        made = super().factory(**settings)
        config = made.config
        object.__setattr__(config, "object_retention_s", object_retention_s)
        return WalStorageFactory(
            config,
            store=self.store,
            metadata=self.metadata,
            clock=self.clock,
            tables=lambda _topic, _generation: self.table,
            known_upto=lambda _topic, _generation: self.reported,
        )

    async def commit(self, storage, upto):
        await commit(storage, self.table, upto)
        self.reported = upto
