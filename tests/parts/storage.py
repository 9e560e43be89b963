"""Every implementation of PersistentStorage."""

import asyncio

import pytest

from ister.storage import InMemoryStorage, WalStorage
from ister.wal import AckLevel, Wal, WalConfig

TOPIC = "/default/t"


async def in_memory(tmp_path):
    return InMemoryStorage(topic=TOPIC)


async def wal_in_memory(tmp_path):
    return WalStorage.from_wal(await Wal.with_config(WalConfig(topic=TOPIC)))


async def wal_on_disk(tmp_path):
    config = WalConfig(dir=tmp_path / "log", cache_capacity=8, max_bytes=4096, topic=TOPIC)
    return WalStorage.from_wal(await Wal.with_config(config))


async def wal_synced(tmp_path):
    config = WalConfig(dir=tmp_path / "log", cache_capacity=8, max_bytes=4096, topic=TOPIC, level=AckLevel.FSYNC)
    return WalStorage.from_wal(await Wal.with_config(config))


every_storage = pytest.mark.parametrize("make", [in_memory, wal_in_memory, wal_on_disk, wal_synced])


def run(story):
    """Run one story to its end, with a deadline."""

    async def bounded():
        async with asyncio.timeout(30):
            return await story

    return asyncio.run(bounded())
