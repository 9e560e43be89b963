"""Readers that follow a topic's table, each message once; imports no Iceberg library, to stay cheap for storage."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ister.core.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from ister.core.message import StreamMessage
    from ister.lake.topic_table import LakeStream, LakeTopicTable


class TableStream(Protocol):
    """An offset range of a table that is being read."""

    @property
    def next_offset(self) -> int:
        """The offset that will be read next."""

    @property
    def skipped_upto(self) -> int:
        """The offset after the last missing one that was skipped, 0 when none was."""

    async def read(self) -> list[StreamMessage]:
        """Return the next messages; none at the end."""

    async def close(self) -> None:
        """Stop reading ahead."""


S = TypeVar("S", bound=TableStream)
Found = TypeVar("Found")


class TableFollower(Reader, Generic[S]):
    """An endless stream of a topic's messages from its table; `async for message in reader`.

    Errors end a call, not the reader: the next call resumes at the same offset.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.next_offset = offset
        """The offset that will be read from the table next."""
        self._stream: S | None = None
        self.skipped_upto = 0
        """The offset after the last missing one that was skipped, 0 when none was."""

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    @abstractmethod
    async def _opened(self) -> S:
        """Return the open stream, or the next one, once the table has more."""

    async def _read(self) -> list[StreamMessage]:
        return await self._take(lambda stream: stream.read())

    async def _take(self, read: Callable[[S], Awaitable[Found | None]]) -> Found:
        """Return the next result that is not empty, from one stream after the other."""
        while True:
            stream = await self._opened()
            try:
                found = await read(stream)
            except BaseException:
                await self.close()
                raise
            self.next_offset = stream.next_offset
            self.skipped_upto = max(self.skipped_upto, stream.skipped_upto)
            if found:
                return found
            await self.close()


class TopicReader(TableFollower["LakeStream"]):
    """A reader that polls for a new snapshot every `poll_interval_ms`, only while it waits."""

    def __init__(self, table: LakeTopicTable, offset: int = 0) -> None:
        super().__init__(offset)
        self._table = table

    @property
    def lag(self) -> int:
        """The unread messages in the table, as of the last refresh."""
        return max(0, self._table.end.upto - self.next_offset)

    async def read_batch(self) -> pa.RecordBatch:
        """Return the next messages as Arrow, at least one; do not mix it with the other ways to read."""
        return await self._take(lambda stream: stream.read_batch())

    async def _opened(self) -> LakeStream:
        while self._stream is None:
            end = await self._table.look()
            if end.upto > self.next_offset:
                self._stream = self._table.open(self.next_offset, end.upto)
            else:
                await asyncio.sleep(self._table.reads.options.poll_interval_s)
        return self._stream
