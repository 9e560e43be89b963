"""Read-only storage of one topic: its table, for a read-only broker beside the owner.

Opening claims and locks nothing. Only cursors are written, of the subscriptions that this broker serves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ister.aio.background import mark_retrieved
from ister.core.errors import LogClosedError, OffsetOutOfRangeError, PreconditionError
from ister.core.table.data_files import NO_TABLE, OFFSET_MAX
from ister.lake.topic_reader import TableFollower
from ister.storage.cursors.metadata import MetadataCursors
from ister.storage.cursors.move import Marker
from ister.storage.cursors.saved import NOTHING_FINISHED
from ister.storage.time_index import append_time_of, bisect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.offsets import StartPosition
    from ister.core.reader import MessageReader
    from ister.core.table.data_files import TableEnd
    from ister.ports.metadata import Metadata
    from ister.storage.cursors.saved import Ranges
    from ister.storage.tiered_reader import TopicTable


class LakeStorage:
    """A ReadableTopic that is a table; its end is that of the newest snapshot seen."""

    read_only: Literal[True] = True

    def __init__(
        self,
        metadata: Metadata,
        root: str,
        topic: TopicName,
        generation: int,
        table: TopicTable,
        *,
        poll_interval_s: float,
    ) -> None:
        self.topic = topic
        self.generation = generation
        self._metadata = metadata
        self._root = root
        self._table = table
        self._poll_interval_s = poll_interval_s
        self._end: TableEnd = NO_TABLE
        self._marker = Marker(metadata, root, topic, generation)
        # No limit: a subscription may have consumed messages from the owner's log that are not yet in the table.
        self._cursors = MetadataCursors(metadata, topic, generation, OFFSET_MAX, root=root, place=table.place)
        self._ready = False
        self._poll: asyncio.Future[None] | None = None
        self._closed = asyncio.Event()

    # --- offsets ------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read: a table holds a topic from offset 0 on."""
        return 0

    @property
    def next_offset(self) -> int:
        """The end of the newest known snapshot."""
        return self._end.upto

    async def refresh(self) -> TableEnd:
        """Ask the catalog for the newest snapshot; returns the table's end."""
        self.check_open()
        self._end = max(self._end, await self._table.look(), key=lambda end: end.upto)
        return self._end

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Refuse it: only the owner appends."""
        del message
        raise PreconditionError(
            f"this broker only reads; produce to the broker that owns topic {self.topic}, the one without --read-only"
        )

    async def create_reader(self, position: StartPosition) -> LakeReader:
        """Read from a position on; waits until the table reaches it."""
        self.check_open()
        return LakeReader(self, (await self.refresh()).upto if position.at is None else position.at)

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset that was appended at this time or later, the next offset if there is none."""

        async def is_before(offset: int) -> bool:
            # A missing row that is skipped counts as older.
            return (await append_time_of(self._table, offset) or 0) < append_time_us

        return await bisect(0, (await self.refresh()).upto, is_before)

    async def flush(self) -> None:
        """Do nothing: committed messages are safe."""

    async def close(self) -> None:
        """End every reader, save the cursors, and close the table."""
        self._closed.set()
        if self._poll is not None:
            await asyncio.wait({self._poll})
        try:
            await self._cursors.settle()
        finally:
            await self._table.close()

    # --- cursors ------------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Save a subscription's cursor; returns it once it is in metadata."""
        await self._open()
        if not self._cursors.has_reached(subscription, cursor):
            await self._check_held(cursor)
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Save the cursors of the subscriptions that are served here; returns the saved ones."""
        await self._open()
        return await self._cursors.advance_known(wanted, finished)

    def finished(self, subscription: str) -> Ranges:
        """Return the finished ranges beyond a subscription's cursor, as of when it was last stopped; load the cursors first."""
        return self._cursors.finished(subscription)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back; returns once that is in metadata."""
        await self._open()
        await self._check_held(cursor)
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Delete a subscription's cursor; returns once that is in metadata."""
        await self._open()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor from metadata, whichever broker serves it."""
        await self._open()
        now = MetadataCursors(
            self._metadata, self.topic, self.generation, OFFSET_MAX, root=self._root, place=self._table.place
        )
        await now.load()
        return now.durable()

    async def refresh_cursor(self, subscription: str) -> int | None:
        """Begin to write a subscription's cursor: read it again from metadata, and refresh the table."""
        await self.refresh()
        await self._open()
        return await self._cursors.adopt(subscription)

    def release_cursor(self, subscription: str) -> None:
        """Stop writing a subscription's cursor: another broker may serve it now."""
        self._cursors.release(subscription)

    # --- used by readers ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise LogClosedError if it was closed."""
        if self._closed.is_set():
            raise LogClosedError(str(self.topic))

    def open_rows(self, start: int, stop: int) -> MessageReader:
        """Read the messages [start, stop) from the table."""
        return self._table.open(start, stop)

    async def wait_beyond(self, offset: int) -> int:
        """Wait until the table holds an offset; returns its end. All waiters share one request to the catalog."""
        while self._end.upto <= offset:
            self.check_open()
            if self._poll is None or self._poll.done():
                self._poll = mark_retrieved(asyncio.create_task(self._poll_once()))
            await asyncio.shield(self._poll)
        return self._end.upto

    async def _poll_once(self) -> None:
        """Refresh, then wait if nothing is new; in this order, so that a new reader does not wait first."""
        upto = self._end.upto
        if (await self.refresh()).upto == upto:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._closed.wait()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Load the cursors once the owner has moved them to metadata: the move overwrites cursors there."""
        self.check_open()
        if not self._ready:
            if await self._marker.read() != "metadata":
                raise PreconditionError(
                    f"topic {self.topic}: its owner keeps the progress of subscriptions in files of its own; set "
                    "storage.type to iceberg there too, and restart it"
                )
            await self._cursors.load()
            self._ready = True

    async def _check_held(self, cursor: int) -> None:
        if not 0 <= cursor <= self._end.upto and not 0 <= cursor <= (await self.refresh()).upto:
            raise OffsetOutOfRangeError(cursor, 0, self._end.upto)


class LakeReader(TableFollower["MessageReader"]):
    """A reader that shares its requests to the catalog with the others of its storage."""

    def __init__(self, storage: LakeStorage, offset: int) -> None:
        super().__init__(offset)
        self._storage = storage

    async def _opened(self) -> MessageReader:
        self._storage.check_open()
        if self._stream is None:
            upto = await self._storage.wait_beyond(self.next_offset)
            self._stream = self._storage.open_rows(self.next_offset, upto)
        return self._stream
