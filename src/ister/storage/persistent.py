"""Decide what a topic's storage promises, whatever it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.core.retain import SealedSegment


class Reader(Protocol):
    """An ordered stream of messages, each once, that goes on with what is appended later.

    It waits at the end. LogClosedError ends it when the storage is closed; OffsetOutOfRangeError when what it would
    read next was deleted.
    """

    def __aiter__(self) -> Reader:
        """Iterate message by message."""
        ...

    async def __anext__(self) -> StreamMessage:
        """Return the next message."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A reader that reads ahead in a task of its own, until it is closed."""

    async def close(self) -> None:
        """Stop reading ahead."""
        ...


@runtime_checkable
class SkipsMissing(Protocol):
    """A reader that may be told to skip messages that its table should have and has not (`on_missing: skip`)."""

    @property
    def skipped_upto(self) -> int:
        """The offset behind the last one that was skipped, 0 when none was: a gap in front of it is on purpose."""
        ...


class PersistentStorage(Protocol):
    """One topic's messages and the progress of its subscriptions.

    Offsets are dense. A cursor is the next offset that its subscription will consume: everything below is
    acknowledged. Cursors go back only by `reset_cursor`, and are kept only up to what survives a power loss.
    """

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        ...

    @property
    def later_tier_offset(self) -> int | None:
        """The offset below which an enabled later tier holds everything, None when there is no such tier."""
        ...

    async def append_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset."""
        ...

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages, all or none; returns their offsets."""
        ...

    async def create_reader(self, position: StartPosition) -> Reader:
        """Read from a position on; OffsetOutOfRangeError when it is not held."""
        ...

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Keep a subscription's progress; returns its cursor once that is durable.

        A cursor behind the one that is kept changes nothing. The first one makes the subscription known: from then on
        retention deletes nothing that it has not acknowledged. OffsetOutOfRangeError when the offset is not held.
        """
        ...

    async def save_cursors(self, wanted: Mapping[str, int]) -> Mapping[str, int]:
        """Keep the progress of many subscriptions, each as far as that survives a power loss now; returns what is kept.

        Waits for no message to become durable: what is left is kept by a later call. A subscription that is not known is
        not made known. Costs nothing when nothing changed.
        """
        ...

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription to an offset that is held, or to the end, back too; returns once that is durable."""
        ...

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset whose message was stored at this time or later, the next offset when there is none."""
        ...

    async def forget_cursor(self, subscription: str) -> None:
        """Forget a subscription, so that it holds nothing back any more; returns once that is durable."""
        ...

    async def cursors(self) -> Mapping[str, int]:
        """Return every subscription's cursor, as far as no crash can take it back."""
        ...

    def sealed_segments(self) -> list[SealedSegment]:
        """Return what could be deleted, oldest first; an append time may be 0, not known."""
        ...

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the sealed segments with their append times, found out where they were not known."""
        ...

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Seal the segment that is being written if it has reached this size, or its newest message is this old.

        Does nothing where there are no segments.
        """
        ...

    async def prune(self, before: int) -> int:
        """Delete whole segments that lie below an offset; returns the new start offset."""
        ...

    async def flush(self) -> None:
        """Return once every message given so far is as safe as this storage can make it."""
        ...

    async def close(self) -> None:
        """Flush, end every reader, and let go."""
        ...
