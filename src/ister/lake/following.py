"""Read a table stream after stream, each message once; knows no Iceberg, so that it costs nothing to import."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ister.core.batches import Batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.core.message import StreamMessage


class Stream(Protocol):
    """A part of a table that is being read."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""
        ...

    @property
    def skipped_upto(self) -> int:
        """The offset behind the last one that is missing and was skipped, 0 when none was."""
        ...

    async def read(self) -> list[StreamMessage]:
        """Return the next messages; none at the end."""
        ...

    async def close(self) -> None:
        """Stop reading ahead."""
        ...


S = TypeVar("S", bound=Stream)
Found = TypeVar("Found")


class Following(Batches, Generic[S]):
    """An endless stream of a topic's messages from its table; `async for message in reader`.

    Errors end a call, not the reader: the next call goes on at the same offset.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._next = offset
        self._stream: S | None = None
        self.skipped_upto = 0
        """The offset behind the last one that is missing and was skipped, 0 when none was."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read from the table next."""
        return self._next

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    @abstractmethod
    async def _opened(self) -> S:
        """Return the stream that is being read, or the next one, once the table has more."""

    async def _read(self) -> list[StreamMessage]:
        return await self._take(lambda stream: stream.read())

    async def _take(self, read: Callable[[S], Awaitable[Found | None]]) -> Found:
        """Return the next that a stream gives, from one stream after the other."""
        while True:
            stream = await self._opened()
            try:
                found = await read(stream)
            except BaseException:
                await self.close()
                raise
            self._next = stream.next_offset
            self.skipped_upto = max(self.skipped_upto, stream.skipped_upto)
            if found:
                return found
            await self.close()
