"""Serve one topic from its table alone: for a broker that reads what another one owns and writes.

Nothing is claimed, counted or locked for a topic that is opened so. Only progress is written, of the subscriptions that
this broker serves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ister.core.errors import LogClosedError, OffsetOutOfRangeError, PreconditionError
from ister.core.layout import NO_TABLE, OFFSET_MAX
from ister.lake.following import Following
from ister.storage.cursors import NOTHING_FINISHED
from ister.storage.progress import MetadataCursors
from ister.storage.progress_move import Marker
from ister.storage.shared_cursors import SharedCursors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.layout import TableEnd
    from ister.core.message import StreamMessage
    from ister.core.names import TopicName
    from ister.core.offsets import StartPosition
    from ister.core.retain import SealedSegment
    from ister.ports.metadata import Metadata
    from ister.storage.cursors import Ranges
    from ister.storage.table_tier import TableStream, TopicTable


class LakeStorage:
    """A PersistentStorage that is a table; it takes no messages, and its end is that of the newest snapshot seen."""

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
        # Without a limit: a subscription may have consumed from the owner's log what the table does not have yet.
        self._cursors = SharedCursors(metadata, topic, generation, OFFSET_MAX, root=root, place=table.place)
        self._ready = False
        self._poll: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read: a table holds a topic from its beginning."""
        return 0

    @property
    def next_offset(self) -> int:
        """The offset behind the last that the newest snapshot holds, as far as it was looked at."""
        return self._end.upto

    @property
    def later_tier_offset(self) -> int | None:
        """None: there is no later tier."""
        return None

    async def look(self) -> TableEnd:
        """Ask the catalog how far the table goes now."""
        self.check_open()
        self._end = max(self._end, await self._table.look(), key=lambda end: end.upto)
        return self._end

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Refuse it."""
        del message
        self._refuse()

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Refuse them."""
        del messages
        self._refuse()

    async def create_reader(self, position: StartPosition) -> LakeReader:
        """Read from a position on; one that the table has not reached yet is waited for."""
        self.check_open()
        return LakeReader(self, (await self.look()).upto if position.at is None else position.at)

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset whose message was stored at this time or later, the next offset when there is none."""
        low, high = 0, (await self.look()).upto
        while low < high:
            middle = (low + high) // 2
            if await self._time_of(middle) < append_time_us:
                low = middle + 1
            else:
                high = middle
        return low

    async def flush(self) -> None:
        """Do nothing: what is in the table is safe."""

    async def close(self) -> None:
        """End every reader, save what is to be saved, and let go of the table."""
        self._closed.set()
        if self._poll is not None:
            await asyncio.wait({self._poll})
        try:
            await self._cursors.settle()
        finally:
            await self._table.close()

    # --- progress -----------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Keep a subscription's progress; returns its cursor once that is in metadata."""
        await self._open()
        if not self._cursors.has_reached(subscription, cursor):
            await self._check_held(cursor)
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Keep the progress of those subscriptions that are served here; returns what is kept."""
        await self._open()
        return await self._cursors.advance_known(wanted, finished)

    def finished(self, subscription: str) -> Ranges:
        """Return what is finished beyond a subscription's cursor, as of when it was last stopped; load the cursors first."""
        return self._cursors.finished(subscription)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription to an offset that is held, or to the end, back too; returns once that is in metadata."""
        await self._open()
        await self._check_held(cursor)
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Forget a subscription; returns once that is in metadata."""
        await self._open()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor as it is in metadata now, whoever serves it."""
        await self._open()
        now = MetadataCursors(
            self._metadata, self.topic, self.generation, OFFSET_MAX, root=self._root, place=self._table.place
        )
        await now.load()
        return now.kept()

    async def refresh_cursor(self, subscription: str) -> int | None:
        """Begin to keep a subscription's progress: return what metadata says of it now, and look at the table anew."""
        await self.look()
        await self._open()
        return await self._cursors.adopt(subscription)

    def release_cursor(self, subscription: str) -> None:
        """Save nothing of a subscription any more: another broker may serve it now."""
        self._cursors.release(subscription)

    # --- segments: there are none -------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return nothing."""
        return []

    async def dated_segments(self) -> list[SealedSegment]:
        """Return nothing."""
        return []

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Do nothing."""

    async def prune(self, before: int) -> int:
        """Do nothing: a table keeps everything."""
        del before
        return 0

    # --- what its readers ask -----------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise LogClosedError when it was closed."""
        if self._closed.is_set():
            raise LogClosedError(str(self.topic))

    def open_rows(self, start: int, stop: int) -> TableStream:
        """Read the messages [start, stop) from the table."""
        return self._table.open(start, stop)

    async def wait_beyond(self, offset: int) -> int:
        """Return how far the table goes once that is beyond an offset; all who wait share one question to the catalog."""
        while self._end.upto <= offset:
            self.check_open()
            if self._poll is None or self._poll.done():
                self._poll = asyncio.create_task(self._look_soon())
                self._poll.add_done_callback(_seen)
            await asyncio.shield(self._poll)
        return self._end.upto

    async def _look_soon(self) -> None:
        """Look at once and wait, rather than the other way round: who begins to read waits for nothing."""
        upto = self._end.upto
        if (await self.look()).upto == upto:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._closed.wait()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Load the cursors, once the owner has put metadata in charge of them: before, it would overwrite ours."""
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
        if not 0 <= cursor <= self._end.upto and not 0 <= cursor <= (await self.look()).upto:
            raise OffsetOutOfRangeError(cursor, 0, self._end.upto)

    async def _time_of(self, offset: int) -> int:
        stream = self._table.open(offset, offset + 1)
        try:
            found = await stream.read()
        finally:
            await stream.close()
        return found[0].append_time_us if found else 0  # a row that is missing, and to be skipped, is passed by

    def _refuse(self) -> NoReturn:
        raise PreconditionError(
            f"this broker only reads; produce to the broker that owns topic {self.topic}, the one without --read-only"
        )


def _seen(task: asyncio.Task[None]) -> None:
    """Take note of how a task ended: everyone who waited for it may have given up, which is no reason for a warning."""
    if not task.cancelled():
        task.exception()


class LakeReader(Following["TableStream"]):
    """A reader that shares its questions to the catalog with the others of its storage."""

    def __init__(self, storage: LakeStorage, offset: int) -> None:
        super().__init__(offset)
        self._storage = storage

    async def _opened(self) -> TableStream:
        self._storage.check_open()
        if self._stream is None:
            upto = await self._storage.wait_beyond(self._next)
            self._stream = self._storage.open_rows(self._next, upto)
        return self._stream
