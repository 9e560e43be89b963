"""Interfaces of a topic's storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.core.reader import Reader
    from ister.core.tiers.retention import SealedSegment


class ReadableTopic(Protocol):
    """One topic's messages and its subscriptions' cursors, as far as they can be read and saved without the log.

    Offsets are dense. A cursor is the next offset that its subscription will consume: everything below is
    acknowledged. Cursors move back only by `reset_cursor`, and are saved only up to what survives a power loss.
    """

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""

    async def create_reader(self, position: StartPosition) -> Reader:
        """Read from a position on; OffsetOutOfRangeError if it is not held."""

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Save a subscription's cursor; returns it once it is durable.

        A cursor below the saved one changes nothing. The first one creates the subscription: from then on retention
        deletes nothing that it has not acknowledged. OffsetOutOfRangeError if the offset is not held.
        """

    async def save_cursors(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Save the cursors of many subscriptions, each as far as it survives a power loss now; returns the saved ones.

        Waits for no message to become durable: a later call saves the rest. An unknown subscription is not created.
        Costs nothing if nothing changed.
        """

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back to an offset that is held, or to the end; returns once that is durable."""

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset that was appended at this time or later, the next offset if there is none."""

    async def forget_cursor(self, subscription: str) -> None:
        """Delete a subscription's cursor, so that it does not block retention; returns once that is durable."""

    async def cursors(self) -> Mapping[str, int]:
        """Return every subscription's cursor, as far as no crash can undo it."""

    async def flush(self) -> None:
        """Return once every message appended so far is as safe as this storage can make it."""

    async def close(self) -> None:
        """Flush, end every reader, and release all resources."""


class WritableTopic(Protocol):
    """A topic's log: appends, and retention by whole segments."""

    @property
    def later_tier_offset(self) -> int | None:
        """The offset below which an enabled later tier holds everything, None if there is no such tier."""

    async def append_message(self, message: StreamMessage) -> int:
        """Append one message; returns its offset."""

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Append many messages, all or none; returns their offsets."""

    def sealed_segments(self) -> list[SealedSegment]:
        """Return the segments that could be deleted, oldest first; an append time of 0 is unknown."""

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the sealed segments with their append times, read from disk where unknown."""

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Seal the active segment if it has reached this size, or its newest message is this old.

        Does nothing where there are no segments.
        """

    async def prune(self, before: int) -> int:
        """Delete whole segments below an offset; returns the new start offset."""


class PersistentStorage(ReadableTopic, WritableTopic, Protocol):
    """One topic's messages and its subscriptions' cursors, with a log of its own."""
