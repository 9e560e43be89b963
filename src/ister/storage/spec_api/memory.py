"""PersistentStorage in memory, for tests and examples.

Messages are encoded and decoded as in a log, so that the same ones are refused and the same content is read back.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING

from ister.core.errors import LogClosedError, OffsetOutOfRangeError
from ister.core.frames.frame import HEADER_BYTES, decode_body, encode_unsealed
from ister.core.reader import Reader
from ister.core.tiers.retention import SealedSegment
from ister.ports.clock import SystemClock
from ister.storage.cursors.saved import MemoryCursors

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
        self._changed = asyncio.Event()
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
        """Append one message; returns its offset."""
        return (await self.append_messages([message])).start

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Append many messages, all or none; returns their offsets."""
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
        """Read from a position on, including what is appended later."""
        self._refuse_closed()
        offset = self.next_offset if position.at is None else position.at
        self._refuse_outside(offset)
        return InMemoryReader(self, offset)

    async def read_from(self, offset: int) -> list[StreamMessage]:
        """Return 1 to READ_MESSAGES_MAX messages from an offset on; waits at the end."""
        while self.next_offset <= offset and not self._closed:
            await self._changed.wait()
        self._refuse_closed()
        self._refuse_outside(offset)
        at = offset - self._start
        return self._messages[at : at + READ_MESSAGES_MAX]

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset that was appended at this time or later, the next offset if there is none."""
        self._refuse_closed()
        return self._start + bisect_left(self._messages, append_time_us, key=lambda message: message.append_time_us)

    async def flush(self) -> None:
        """Do nothing but check that it is open."""
        self._refuse_closed()

    async def close(self) -> None:
        """End every reader and free the messages."""
        self._closed = True
        self._start = self.next_offset
        self._messages = []
        self._announce()

    # --- cursors ------------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Save a subscription's cursor; returns it."""
        self._refuse_closed()
        if not self._cursors.has_reached(subscription, cursor):
            self._refuse_outside(cursor)
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Save the cursors of known subscriptions; returns them."""
        self._refuse_closed()
        return await self._cursors.advance_known({name: min(at, self.next_offset) for name, at in wanted.items()})

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back to an offset that is held, or to the end."""
        self._refuse_closed()
        self._refuse_outside(cursor)
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Delete a subscription's cursor, so that it does not block retention."""
        self._refuse_closed()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor."""
        self._refuse_closed()
        return self._cursors.durable()

    # --- segments -----------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return each message as a segment of its own."""
        return [SealedSegment(message.offset, message.offset + 1, message.append_time_us) for message in self._messages]

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the same: every append time is known."""
        return self.sealed_segments()

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Do nothing: there are no files."""

    async def prune(self, before: int) -> int:
        """Delete the messages below an offset; returns the new start offset."""
        self._refuse_closed()
        count = max(0, min(before, self.next_offset) - self._start)
        del self._messages[:count]
        self._start += count
        return self._start

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LogClosedError(self._topic or "in memory")

    def _refuse_outside(self, offset: int) -> None:
        if not self._start <= offset <= self.next_offset:
            raise OffsetOutOfRangeError(offset, self._start, self.next_offset)

    def _announce(self) -> None:
        """Wake the readers that wait at the end."""
        self._changed.set()
        self._changed = asyncio.Event()


class InMemoryReader(Reader):
    """A reader of messages in memory."""

    def __init__(self, storage: InMemoryStorage, offset: int) -> None:
        super().__init__()
        self._storage = storage
        self._next = offset

    async def _read(self) -> list[StreamMessage]:
        messages = await self._storage.read_from(self._next)
        self._next += len(messages)
        return messages


def _as_stored(message: StreamMessage, offset: int, append_time_us: int, topic: str) -> StreamMessage:
    """Return the message as a log would; InvalidMessageError if a log would refuse it."""
    head, payload = encode_unsealed(message, offset, append_time_us)
    return decode_body(head[HEADER_BYTES:] + payload, offset, topic)
