"""Decide how a reliable topic works as a whole: stored before it is delivered, deleted only when nobody needs it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.core.frame import FIXED_BYTES, HEADER_BYTES
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.retention import ReliableOptions, enforce
from ister.storage.topic_store import TopicStore

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.storage.persistent import PersistentStorage, Reader
    from ister.storage.topic_cache import TopicCache


class ReliableDispatch:
    """A reliable topic: `new_with_persistent` makes one over a storage."""

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
        """Make a topic reliable over `storage`; the cache serves that storage from now on, whatever it served before."""
        return cls(TopicStore(TopicName.parse(topic), storage, topic_cache), options)

    @property
    def topic_store(self) -> TopicStore:
        """The topic's messages."""
        return self._topic_store

    @property
    def options(self) -> ReliableOptions:
        """How it was set up."""
        return self._options

    # --- messages -----------------------------------------------------------------------------------------------------

    async def store_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the storage's level."""
        if self._unsealed_bytes >= self._options.segment_bytes:
            # Before storing, not after: when it fails, nothing was stored, and saying so is true.
            self._unsealed_bytes = 0
            await self._topic_store.storage.seal(self._options.segment_bytes)
        offset = await self._topic_store.store_message(message)
        self._unsealed_bytes += HEADER_BYTES + FIXED_BYTES + len(message.payload)
        return offset

    async def create_stream_latest(self) -> Reader:
        """Read only what is stored from now on."""
        return await self.create_stream(StartPosition.latest())

    async def create_stream(self, position: StartPosition) -> Reader:
        """Read from a position on, history first, then whatever comes."""
        return await self._topic_store.create_reader(position)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def subscribe(self, subscription: str, position: StartPosition) -> int:
        """Make a subscription known, so that retention waits for it; returns the offset that it consumes next.

        One that is known already keeps its place. Without this, a subscription is known from its first `ack` on.
        """
        storage = self._topic_store.storage
        known = (await storage.cursors()).get(subscription)
        if known is not None:
            return known
        cursor = storage.next_offset if position.at is None else position.at
        return await storage.ack_checkpoint(subscription, cursor)

    async def ack(self, subscription: str, offset: int) -> int:
        """Acknowledge the message at `offset` and all before it; returns the offset that it consumes next.

        Returns once that is durable. Which messages may be acknowledged together is the caller's to know.
        """
        return await self._topic_store.storage.ack_checkpoint(subscription, offset + 1)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Have a subscription consume from another offset on, before or behind; returns once that is durable."""
        return await self._topic_store.storage.reset_cursor(subscription, cursor)

    async def unsubscribe(self, subscription: str) -> None:
        """Forget a subscription, so that it holds nothing back any more."""
        await self._topic_store.storage.forget_cursor(subscription)

    # --- retention ----------------------------------------------------------------------------------------------------

    async def enforce_retention(self, now_us: int, later_tier_offset: int | None = None) -> int:
        """Delete what the policy no longer keeps; returns the oldest offset that is left.

        `later_tier_offset` is the offset below which a later tier holds the data that the storage does not know of.
        """
        store = self._topic_store
        async with self._retaining:
            return await enforce(
                store.storage, self._options, now_us, later_tier_offset=later_tier_offset, prune=store.prune
            )

    async def close(self) -> None:
        """Empty the cache and close the storage."""
        await self._topic_store.close()
