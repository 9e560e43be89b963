"""Decide which messages are kept at hand to be fetched one by one, as redelivery does.

It holds what the storage gave back, never what a producer handed in: a log adds the append time and drops what it does
not store, so only a stored message is whole, and a hit equals a miss.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import InvalidConfigError, OffsetOutOfRangeError
from ister.core.offsets import StartPosition
from ister.storage.persistent import ReadsAhead

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.storage.persistent import PersistentStorage

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""A bound on the payloads held, because a message may be large; a larger message is not held at all."""


class _Entry(NamedTuple):
    message: StreamMessage
    used_at: float


class TopicCache:
    """The last used messages of a storage, at most `capacity` of them, each for `idle_s` seconds after its last use."""

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
        """The offsets that are held, in order."""
        return sorted(self._held)

    def put(self, message: StreamMessage) -> None:
        """Hold a message as the storage gave it; lets the least recently used go until the bounds hold."""
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
        """Return one message, from the storage when it is not held; OffsetOutOfRangeError when it is nowhere."""
        entry = self._held.get(offset)
        if entry is None:
            return await self._fetch(offset)
        self._held[offset] = _Entry(entry.message, asyncio.get_running_loop().time())
        self._held.move_to_end(offset)
        return entry.message

    def forget_below(self, offset: int) -> None:
        """Let go of what was deleted."""
        for held in [held for held in self._held if held < offset]:
            self._forget(held)

    def stand_before(self, storage: PersistentStorage) -> None:
        """Serve another storage from now on; what is held is the other one's, and goes."""
        if storage is not self._storage:
            self._storage = storage
            self.clear()

    def clear(self) -> None:
        """Hold nothing, and stop the timer."""
        self._held.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _fetch(self, offset: int) -> StreamMessage:
        """Read one message, and hold those behind it too: they are there, and are often wanted next."""
        storage = self._storage
        if not storage.start_offset <= offset < storage.next_offset:
            raise OffsetOutOfRangeError(offset, storage.start_offset, storage.next_offset)
        reader = await storage.create_reader(StartPosition.offset(offset))
        try:
            messages = await reader.read()
        finally:
            if isinstance(reader, ReadsAhead):
                await reader.close()
        assert messages[0].offset == offset, "a reader begins where it was told to"
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
