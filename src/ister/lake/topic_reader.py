"""Follow a topic through its table: what is there, then what each new snapshot brings, each message once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.lake.following import Following
from ister.lake.topic_table import LakeStream

if TYPE_CHECKING:
    import pyarrow as pa

    from ister.lake.topic_table import LakeTopicTable


class TopicReader(Following[LakeStream]):
    """A reader that looks for a new snapshot every `poll_interval_ms` while it waits, and at no other time."""

    def __init__(self, table: LakeTopicTable, offset: int = 0) -> None:
        super().__init__(offset)
        self._table = table

    @property
    def lag(self) -> int:
        """How many messages the table holds that were not read yet, as far as it was looked at."""
        return max(0, self._table.end.upto - self._next)

    async def read_batch(self) -> pa.RecordBatch:
        """Return the next messages as Arrow, at least one; do not mix it with the other ways to read."""
        return await self._take(LakeStream.read_batch)

    async def _opened(self) -> LakeStream:
        while self._stream is None:
            end = await self._table.look()
            if end.upto > self._next:
                self._stream = self._table.open(self._next, end.upto)
            else:
                await asyncio.sleep(self._table.reads.options.poll_interval_s)
        return self._stream
