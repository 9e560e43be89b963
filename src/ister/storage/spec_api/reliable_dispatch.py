"""ReliableDispatch, TopicStore and TopicCache of the specification: a reliable topic with cache and retention."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import InvalidConfigError, OffsetOutOfRangeError
from ister.core.frames.frame import FIXED_BYTES, HEADER_BYTES
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.retention import ReliableOptions, enforce

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.core.reader import Reader
    from ister.storage.persistent import PersistentStorage

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""The limit of all cached payloads; a larger message is not cached."""


class _Entry(NamedTuple):
    message: StreamMessage
    used_at: float


class TopicCache:
    """LRU cache of a storage's messages: at most `capacity`, each for `idle_s` seconds after its last use.

    It is for reads of single messages, as in redelivery. It caches messages as read from the storage, not as produced: a
    log adds the append time and drops fields that it does not store.
    """

    def __init__(self, storage: PersistentStorage, capacity: int, idle_s: float) -> None:
        if not isinstance(capacity, int) or capacity < 1:
            raise InvalidConfigError("capacity", f"{capacity!r} must be a whole number of at least 1")
        if not idle_s > 0:
            raise InvalidConfigError("idle_s", f"{idle_s!r} must be more than 0")
        self._storage = storage
        self._capacity = capacity
        self._idle_s = idle_s
        self._held: OrderedDict[int, _Entry] = OrderedDict()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def offsets(self) -> list[int]:
        """The cached offsets, in order."""
        return sorted(self._held)

    def put(self, message: StreamMessage) -> None:
        """Cache a message as read from the storage; evicts the least recently used ones beyond the limits."""
        self._forget(message.offset)
        if len(message.payload) > CACHE_BYTES_MAX:
            return
        loop = asyncio.get_running_loop()
        self._held[message.offset] = _Entry(message, loop.time())
        self._bytes += len(message.payload)
        while len(self._held) > self._capacity or self._bytes > CACHE_BYTES_MAX:
            self._forget(next(iter(self._held)))
        self._arm(loop)

    async def get(self, offset: int) -> StreamMessage:
        """Return one message, from the storage if it is not cached; OffsetOutOfRangeError if it does not exist."""
        entry = self._held.get(offset)
        if entry is None:
            return await self._fetch(offset)
        self._held[offset] = _Entry(entry.message, asyncio.get_running_loop().time())
        self._held.move_to_end(offset)
        return entry.message

    def forget_below(self, offset: int) -> None:
        """Evict deleted messages."""
        for held in [held for held in self._held if held < offset]:
            self._forget(held)

    def attach(self, storage: PersistentStorage) -> None:
        """Serve another storage from now on; evicts everything of the former one."""
        if storage is not self._storage:
            self._storage = storage
            self.clear()

    def clear(self) -> None:
        """Evict everything, and stop the timer."""
        self._held.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _fetch(self, offset: int) -> StreamMessage:
        """Read one message, and cache those of the same batch, which are often read next."""
        storage = self._storage
        if not storage.start_offset <= offset < storage.next_offset:
            raise OffsetOutOfRangeError(offset, storage.start_offset, storage.next_offset)
        reader = await storage.create_reader(StartPosition.offset(offset))
        try:
            messages = await reader.read()
        finally:
            await reader.close()
        assert messages[0].offset == offset, "a reader begins at its position"
        if storage is self._storage and offset >= storage.start_offset:
            for message in reversed(messages[: self._capacity]):
                self.put(message)
        return messages[0]

    def _forget(self, offset: int) -> None:
        entry = self._held.pop(offset, None)
        if entry is not None:
            self._bytes -= len(entry.message.payload)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._held:
            oldest = next(iter(self._held.values()))
            self._timer = loop.call_at(oldest.used_at + self._idle_s, self._drop_idle, loop)

    def _drop_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._held and (oldest := next(iter(self._held.items())))[1].used_at + self._idle_s <= now:
            self._forget(oldest[0])
        self._arm(loop)


class TopicStore:
    """A topic's storage, and the cache that serves it from now on."""

    def __init__(self, topic: TopicName, storage: PersistentStorage, cache: TopicCache) -> None:
        self.topic = topic
        self.storage = storage
        self.cache = cache
        cache.attach(storage)

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
