"""Read messages a batch at a time, or one by one: whichever the reader's user likes, and both in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ister.core.message import StreamMessage


class Batches(ABC):
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch."""

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
        """Return the next messages, at least one, about a MiB at most; waits for some, and gives none where a stream ends."""
        return list(self._ready) or await self._read()

    @abstractmethod
    async def _read(self) -> list[StreamMessage]:
        """Read the next messages; none only where the stream ends."""
