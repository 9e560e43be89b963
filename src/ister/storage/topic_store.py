"""Decide how one topic's messages are stored and read, one by one or as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.offsets import StartPosition
    from ister.storage.persistent import PersistentStorage, Reader
    from ister.storage.topic_cache import TopicCache


class TopicStore:
    """A topic's storage and the cache before it, which serves this storage from now on."""

    def __init__(self, topic: TopicName, storage: PersistentStorage, cache: TopicCache) -> None:
        self.topic = topic
        self.storage = storage
        self.cache = cache
        cache.stand_before(storage)

    async def store_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset."""
        return await self.storage.append_message(message)

    async def create_reader(self, position: StartPosition) -> Reader:
        """Read from a position on, history first, then whatever comes."""
        return await self.storage.create_reader(position)

    async def read_message(self, offset: int) -> StreamMessage:
        """Return one stored message, as a redelivery needs it."""
        return await self.cache.get(offset)

    async def prune(self, before: int) -> int:
        """Delete whole segments that lie below an offset, from the cache too; returns the new start offset."""
        start = await self.storage.prune(before)
        self.cache.forget_below(start)
        return start

    async def close(self) -> None:
        """Empty the cache and close the storage."""
        self.cache.clear()
        await self.storage.close()
