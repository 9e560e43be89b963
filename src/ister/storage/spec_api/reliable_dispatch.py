"""ReliableDispatch and TopicStore of the specification: a reliable topic with storage, cache and retention."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.core.frames.frame import FIXED_BYTES, HEADER_BYTES
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.retention import ReliableOptions, enforce

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.core.reader import Reader
    from ister.storage.persistent import PersistentStorage
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


class ReliableDispatch:
    """A reliable topic; create one by `new_with_persistent`."""

    def __init__(self, topic_store: TopicStore, options: ReliableOptions) -> None:
        """Use `new_with_persistent`."""
        self._topic_store = topic_store
        self._options = options
        self._unsealed_bytes = 0
        self._retaining = asyncio.Lock()

    @classmethod
    def new_with_persistent(
        cls, topic: str, options: ReliableOptions, topic_cache: TopicCache, storage: PersistentStorage
    ) -> ReliableDispatch:
        """Return a reliable topic over `storage`, which the cache serves from now on."""
        return cls(TopicStore(TopicName.parse(topic), storage, topic_cache), options)

    @property
    def topic_store(self) -> TopicStore:
        """The topic's messages."""
        return self._topic_store

    @property
    def options(self) -> ReliableOptions:
        """Its options."""
        return self._options

    # --- messages -----------------------------------------------------------------------------------------------------

    async def store_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the storage's level."""
        if self._unsealed_bytes >= self._options.segment_bytes:
            # Before the append, so that nothing was stored if it fails.
            self._unsealed_bytes = 0
            await self._topic_store.storage.seal(self._options.segment_bytes)
        offset = await self._topic_store.store_message(message)
        self._unsealed_bytes += HEADER_BYTES + FIXED_BYTES + len(message.payload)
        return offset

    async def create_stream_latest(self) -> Reader:
        """Read only what is appended from now on."""
        return await self.create_stream(StartPosition.latest())

    async def create_stream(self, position: StartPosition) -> Reader:
        """Read from a position on, including what is appended later."""
        return await self._topic_store.create_reader(position)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, subscription: str, position: StartPosition) -> int:
        """Create a subscription, so that retention waits for it; returns its cursor.

        An existing one keeps its cursor. Without this call, the first `ack` creates the subscription.
        """
        storage = self._topic_store.storage
        known = (await storage.cursors()).get(subscription)
        if known is not None:
            return known
        cursor = storage.next_offset if position.at is None else position.at
        return await storage.ack_checkpoint(subscription, cursor)

    async def ack(self, subscription: str, offset: int) -> int:
        """Acknowledge the message at `offset` and all before it; returns the cursor once it is durable."""
        return await self._topic_store.storage.ack_checkpoint(subscription, offset + 1)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back to another offset; returns once that is durable."""
        return await self._topic_store.storage.reset_cursor(subscription, cursor)

    async def unsubscribe(self, subscription: str) -> None:
        """Delete a subscription's cursor, so that it does not block retention."""
        await self._topic_store.storage.forget_cursor(subscription)

    # --- retention ----------------------------------------------------------------------------------------------------

    async def enforce_retention(self, now_us: int, later_tier_offset: int | None = None) -> int:
        """Delete what the policy does not retain; returns the oldest remaining offset.

        `later_tier_offset` is the end of a later tier that the storage does not know.
        """
        store = self._topic_store
        async with self._retaining:
            return await enforce(
                store.storage, self._options, now_us, later_tier_offset=later_tier_offset, prune=store.prune
            )

    async def close(self) -> None:
        """Empty the cache and close the storage."""
        await self._topic_store.close()
