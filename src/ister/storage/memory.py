"""Decide how a topic is stored in memory alone: the embedded backend for tests and examples.

It keeps everything that is appended until it is pruned, and nothing beyond the process. A message goes through the
log's format on its way in, so what is refused and what is read back is the same as with a log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING

from ister.core.errors import LogClosedError, OffsetOutOfRangeError
from ister.core.frame import HEADER_BYTES, decode_body, encode_unsealed
from ister.core.retain import SealedSegment
from ister.ports.clock import SystemClock
from ister.storage.cursors import MemoryCursors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.clock import Clock

READ_MESSAGES_MAX = 1024


class InMemoryStorage:
    """PersistentStorage without a disk; grows until it is pruned."""

    def __init__(self, *, topic: str = "", clock: Clock | None = None) -> None:
        self._topic = topic
        self._clock = clock or SystemClock()
        self._start = 0
        self._messages: list[StreamMessage] = []
        self._cursors = MemoryCursors()
        self._append_time_us = 0
        self._news: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._start

    @property
    def later_tier_offset(self) -> int | None:
        """None: memory is the only tier."""
        return None

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._start + len(self._messages)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset."""
        return (await self.append_messages([message])).start

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages, all or none; returns their offsets."""
        self._refuse_closed()
        start = self.next_offset
        append_time_us = max(self._append_time_us, self._clock.wall_us())
        self._messages += [
            _as_stored(message, offset, append_time_us, self._topic) for offset, message in enumerate(messages, start)
        ]
        self._append_time_us = append_time_us
        self._announce()
        return range(start, self.next_offset)

    async def create_reader(self, position: StartPosition) -> InMemoryReader:
        """Read from a position on, then whatever comes."""
        self._refuse_closed()
        offset = self.next_offset if position.at is None else position.at
        self._refuse_outside(offset)
        return InMemoryReader(self, offset)

    async def read_from(self, offset: int) -> list[StreamMessage]:
        """Return the messages from an offset on, at least one, a thousand at most; waits at the end."""
        while self.next_offset <= offset and not self._closed:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._news.add(news)
            try:
                await news
            finally:
                self._news.discard(news)
        self._refuse_closed()
        self._refuse_outside(offset)
        at = offset - self._start
        return self._messages[at : at + READ_MESSAGES_MAX]

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset whose message was stored at this time or later, the next offset when there is none."""
        self._refuse_closed()
        return self._start + bisect_left(self._messages, append_time_us, key=lambda message: message.append_time_us)

    async def flush(self) -> None:
        """Do nothing more: memory is as safe as it gets."""
        self._refuse_closed()

    async def close(self) -> None:
        """End every reader and let go of the messages."""
        self._closed = True
        self._start = self.next_offset
        self._messages = []
        self._announce()

    # --- progress -----------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Keep a subscription's progress; returns its cursor."""
        self._refuse_closed()
        if not self._cursors.has_reached(subscription, cursor):
            self._refuse_outside(cursor)
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Keep the progress of the subscriptions that are known; returns their cursors."""
        self._refuse_closed()
        return await self._cursors.advance_known({name: min(at, self.next_offset) for name, at in wanted.items()})

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription to an offset that is held, or to the end, back too."""
        self._refuse_closed()
        self._refuse_outside(cursor)
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Forget a subscription, so that it holds nothing back any more."""
        self._refuse_closed()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor."""
        self._refuse_closed()
        return self._cursors.kept()

    # --- segments -----------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return each message as a segment of its own: memory can be freed one by one."""
        return [SealedSegment(message.offset, message.offset + 1, message.append_time_us) for message in self._messages]

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the same: every append time is known."""
        return self.sealed_segments()

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Do nothing: there are no files."""

    async def prune(self, before: int) -> int:
        """Delete the messages below an offset; returns the new start offset."""
        self._refuse_closed()
        gone = max(0, min(before, self.next_offset) - self._start)
        del self._messages[:gone]
        self._start += gone
        return self._start

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LogClosedError(self._topic or "in memory")

    def _refuse_outside(self, offset: int) -> None:
        if not self._start <= offset <= self.next_offset:
            raise OffsetOutOfRangeError(offset, self._start, self.next_offset)

    def _announce(self) -> None:
        for news in self._news:
            if not news.done():
                news.set_result(None)
        self._news.clear()


class InMemoryReader:
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch."""

    def __init__(self, storage: InMemoryStorage, offset: int) -> None:
        self._storage = storage
        self._next = offset
        self._ready: list[StreamMessage] = []

    def __aiter__(self) -> InMemoryReader:
        return self

    async def __anext__(self) -> StreamMessage:
        if not self._ready:
            self._ready = (await self._read())[::-1]
        return self._ready.pop()

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits at the end."""
        ready, self._ready = self._ready[::-1], []
        return ready or await self._read()

    async def _read(self) -> list[StreamMessage]:
        messages = await self._storage.read_from(self._next)
        self._next += len(messages)
        return messages


def _as_stored(message: StreamMessage, offset: int, append_time_us: int, topic: str) -> StreamMessage:
    """Return the message as a log would give it back; InvalidMessageError when a log would not take it."""
    head, payload = encode_unsealed(message, offset, append_time_us)
    return decode_body(head[HEADER_BYTES:] + payload, offset, topic)
