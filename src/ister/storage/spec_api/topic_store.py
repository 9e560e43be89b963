"""TopicStore of the specification: a topic's storage with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.offsets import StartPosition
    from ister.storage.persistent import PersistentStorage, Reader
    from ister.storage.spec_api.topic_cache import TopicCache


class TopicStore:
    """A topic's storage, and the cache that serves it from now on."""

    def __init__(self, topic: TopicName, storage: PersistentStorage, cache: TopicCache) -> None:
        self.topic = topic
        self.storage = storage
        self.cache = cache
        cache.stand_before(storage)

    async def store_message(self, message: StreamMessage) -> int:
        """Append one message; returns its offset."""
        return await self.storage.append_message(message)

    async def create_reader(self, position: StartPosition) -> Reader:
        """Read from a position on, including what is appended later."""
        return await self.storage.create_reader(position)

    async def read_message(self, offset: int) -> StreamMessage:
        """Return one stored message."""
        return await self.cache.get(offset)

    async def prune(self, before: int) -> int:
        """Delete whole segments below an offset, also from the cache; returns the new start offset."""
        start = await self.storage.prune(before)
        self.cache.forget_below(start)
        return start

    async def close(self) -> None:
        """Empty the cache and close the storage."""
        self.cache.clear()
        await self.storage.close()
