"""A topic that is deleted while an object of it is being put leaves nothing behind."""

import asyncio

import pytest

from ister.cloud import UploadOptions
from ister.core.errors import StoreUnavailableError
from ister.core.message import StreamMessage
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import WalConfig
from parts.cloud import until


class SlowStore(FsStore):
    """A store whose puts go on when nobody waits for them any more, as those of real ones do."""

    def __init__(self, root):
        super().__init__(root)
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.under_way = []
        self.down = False

    async def list(self, prefix, *, after=""):
        if self.down:
            raise StoreUnavailableError(self.name, "list", "no route")
        async for info in super().list(prefix, after=after):
            yield info

    async def put_if_absent(self, key, data):
        self.begun.set()
        putting = asyncio.create_task(self._put_later(key, bytes(data)))
        self.under_way.append(putting)
        return await asyncio.shield(putting)

    async def _put_later(self, key, data):
        await self.go.wait()
        return await super().put_if_absent(key, data)


def test_f20_a_put_that_is_under_way_ends_before_its_topic_is_deleted(tmp_path):
    async def main():
        store = SlowStore(tmp_path / "objects")
        config = TopicsConfig(wal=WalConfig(dir=tmp_path / "wal"), upload=UploadOptions(interval_s=0.05))
        factory = WalStorageFactory(config, store=store, metadata=MemoryMetadata())
        storage = await factory.for_topic("/default/t")
        await storage.append_message(StreamMessage(b"x"))
        async with asyncio.timeout(20):
            await store.begun.wait()
            deleting = asyncio.create_task(factory.delete_topic("/default/t"))
            asyncio.get_running_loop().call_later(0.05, store.go.set)
            await deleting
            await asyncio.gather(*store.under_way)
        assert [info.key async for info in store.list("")] == []
        await factory.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["at once", "after a failure", "in the background"])
def test_a_put_that_outlives_the_deletion_of_its_topic_is_removed_by_the_next_start(tmp_path, how):
    """I1: the removal of a topic counts as complete only if nothing can be put any more."""

    async def main():
        store, metadata = SlowStore(tmp_path / "objects"), MemoryMetadata()
        config = TopicsConfig(
            wal=WalConfig(dir=tmp_path / "wal"), upload=UploadOptions(interval_s=0.05), drain_timeout_s=0.05
        )
        factory = WalStorageFactory(config, store=store, metadata=metadata)
        storage = await factory.for_topic("/default/t")
        await storage.append_message(StreamMessage(b"x"))
        async with asyncio.timeout(20):
            await store.begun.wait()
            if how == "after a failure":
                store.down = True
                with pytest.raises(StoreUnavailableError):
                    await factory.delete_topic("/default/t")
                store.down = False
            await factory.delete_topic("/default/t", in_background=how == "in the background")
            await until(lambda: not factory._removals)
            store.go.set()
            await asyncio.gather(*store.under_way)
            assert len([info.key async for info in store.list("")]) == 1
            await factory.shutdown()
            assert storage.wal.closed
            factory = WalStorageFactory(config, store=store, metadata=metadata)
            assert await factory.start() == []
            await until(lambda: not factory._removals)
        assert [info.key async for info in store.list("")] == []
        await factory.shutdown()

    asyncio.run(main())
