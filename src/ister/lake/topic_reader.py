"""Follow a topic through its table: what is there, then what each new snapshot brings, each message once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ister.core.message import StreamMessage
    from ister.lake.topic_table import LakeStream, LakeTopicTable


class TopicReader:
    """An endless stream of a topic's messages from its table; `async for message in reader`.

    It looks for a new snapshot every `poll_interval_ms` while it waits, and at no other time. Errors end a call, not the
    reader: the next call goes on at the same offset.
    """

    def __init__(self, table: LakeTopicTable, offset: int = 0) -> None:
        self._table = table
        self._next = offset
        self._stream: LakeStream | None = None
        self._ready: Iterator[StreamMessage] = iter(())

    @property
    def next_offset(self) -> int:
        """The offset that will be read from the table next."""
        return self._next

    @property
    def lag(self) -> int:
        """How many messages the table holds that were not read yet, as far as it was looked at."""
        return max(0, self._table.end.upto - self._next)

    def __aiter__(self) -> TopicReader:
        return self

    async def __anext__(self) -> StreamMessage:
        for message in self._ready:
            return message
        self._ready = iter(await self._read())
        return next(self._ready)

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, at least one; waits for a snapshot that has some."""
        return list(self._ready) or await self._read()

    async def read_batch(self) -> pa.RecordBatch:
        """Return the next messages as Arrow, at least one; do not mix it with the other ways to read."""
        while True:
            stream = await self._opened()
            try:
                batch = await stream.read_batch()
            except BaseException:
                await self.close()
                raise
            self._next = stream.next_offset
            if batch is not None:
                return batch
            await self.close()

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.close()

    async def _read(self) -> list[StreamMessage]:
        while True:
            stream = await self._opened()
            try:
                messages = await stream.read()
            except BaseException:
                await self.close()
                raise
            self._next = stream.next_offset
            if messages:
                return messages
            await self.close()

    async def _opened(self) -> LakeStream:
        while self._stream is None:
            end = await self._table.look()
            if end.upto > self._next:
                self._stream = self._table.open(self._next, end.upto)
            else:
                await asyncio.sleep(self._table.reads.options.poll_interval_s)
        return self._stream
