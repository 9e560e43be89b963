"""LRU cache of stored messages, for reads of single messages as in redelivery.

It caches messages as read from the storage, not as produced: a log adds the append time and drops fields that it does not
store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import InvalidConfigError, OffsetOutOfRangeError
from ister.core.offsets import StartPosition

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.storage.persistent import PersistentStorage

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""The limit of all cached payloads; a larger message is not cached."""


class _Entry(NamedTuple):
    message: StreamMessage
    used_at: float


class TopicCache:
    """The last used messages of a storage: at most `capacity`, each for `idle_s` seconds after its last use."""

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

    def stand_before(self, storage: PersistentStorage) -> None:
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
