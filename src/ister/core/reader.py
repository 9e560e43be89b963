"""Readers of a topic's messages: by batch, or one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.message import StreamMessage


class MessageReader(Protocol):
    """Messages in offset order, each once; `read` returns none only where the stream ends."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""

    @property
    def skipped_upto(self) -> int:
        """The offset after the last missing one that was skipped (`on_missing: skip`), 0 if none was."""

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, a bounded number."""

    async def close(self) -> None:
        """Stop reading ahead."""


class Reader(ABC):
    """Messages in offset order, each once; `async for message in reader`, or `await reader.read()` for a batch.

    A topic's reader waits at the end for messages that are appended later. LogClosedError ends it when the storage is
    closed, OffsetOutOfRangeError when the next message was deleted.
    """

    skipped_upto: int = 0
    """The offset after the last missing one that was skipped (`on_missing: skip`), 0 if none was."""

    def __init__(self) -> None:
        self._ready: Iterator[StreamMessage] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamMessage:
        for message in self._ready:
            return message
        self._ready = iter(await self._read())
        for message in self._ready:
            return message
        raise StopAsyncIteration

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one, about a MiB at most; wait for some, return none where a stream ends."""
        return list(self._ready) or await self._read()

    async def close(self) -> None:  # noqa: B027  # most readers do not read ahead
        """Stop reading ahead."""

    @abstractmethod
    async def _read(self) -> list[StreamMessage]:
        """Read the next messages; none only where the stream ends."""
