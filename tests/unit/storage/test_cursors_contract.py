"""Progress in memory, in a file and in metadata keeps one contract."""

import asyncio
import random
from pathlib import Path

import pytest

from ister.core.names import TopicName
from ister.ports.files.files import OsFiles
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.storage.cursors.metadata import MetadataCursors
from ister.storage.cursors.saved import CursorFile, MemoryCursors
from services.cursors_contract import CursorsContract, SavedCursorsContract
from sim.cloud_machine import SimMetadata
from sim.machine import SimFiles
from sim.machine import run as sim_run

TOPIC = TopicName("default", "orders")
DIRECTORY = Path("/sim/default/orders/1")


def in_metadata(metadata, limit):
    return MetadataCursors(
        metadata, TOPIC, 1, limit, root="/danube-data/persistent_storage/iceberg", place=lambda offset: None
    )


class TestMemory(CursorsContract):
    @pytest.fixture
    def run(self):
        return sim_run

    @pytest.fixture
    def new(self):
        async def make(limit):
            return MemoryCursors()

        return make


class TestSimulatedFile(SavedCursorsContract):
    @pytest.fixture
    def run(self):
        return sim_run

    @pytest.fixture
    def new(self):
        files = SimFiles()
        files.make_directory(DIRECTORY)

        async def make(limit):
            return CursorFile(files, DIRECTORY, "orders", limit)

        return make


class TestFile(SavedCursorsContract):
    @pytest.fixture
    def run(self):
        return asyncio.run

    @pytest.fixture
    def new(self, tmp_path):
        async def make(limit):
            return CursorFile(OsFiles(), tmp_path, "orders", limit)

        return make


def test_i5_what_a_killed_owner_renamed_and_never_synced_is_synced_before_it_is_counted_on():
    async def story():
        files = SimFiles()
        files.make_directory(DIRECTORY)
        cursors = CursorFile(files, DIRECTORY, "orders", 100)
        await cursors.advance("s", 3)
        images = []
        files.on_step = lambda op, path: images.append(files.killed()) if op == "sync_directory" else None
        await cursors.advance("s", 9)
        [image] = images
        again = CursorFile(image, DIRECTORY, "orders", 100)
        await again.load()
        assert again.durable() == {"s": 9}
        for seed in range(20):
            last = CursorFile(image.unpowered(random.Random(seed)), DIRECTORY, "orders", 100)
            await last.load()
            assert last.durable() == {"s": 9}

    sim_run(story())


@pytest.mark.parametrize("store", [MemoryMetadata, SimMetadata])
class TestMetadata(SavedCursorsContract):
    @pytest.fixture
    def run(self):
        return sim_run

    @pytest.fixture
    def new(self, store):
        metadata = store()

        async def make(limit):
            return in_metadata(metadata, limit)

        return make


class TestSqliteMetadata(SavedCursorsContract):
    @pytest.fixture
    def run(self, stores):
        def run(story):
            async def whole():
                try:
                    return await story
                finally:
                    while stores:
                        await stores.pop().close()

            return asyncio.run(whole())

        return run

    @pytest.fixture
    def stores(self):
        return []

    @pytest.fixture
    def new(self, tmp_path, stores):
        async def make(limit):
            if not stores:
                stores.append(await SqliteMetadata.open(tmp_path / "metadata.db"))
            return in_metadata(stores[0], limit)

        return make
