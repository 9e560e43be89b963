"""PersistentStorage of a topic: a write-ahead log, the objects and the table behind it, and cursors.

The cursors are loaded before the first append and before the first use of a cursor: after an append a cursor beyond the
end of the log could not be detected any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ister.core.errors import (
    InvalidConfigError,
    IsterError,
    LogClosedError,
    MissingObjectError,
    OffsetOutOfRangeError,
)
from ister.core.table.data_files import TableEnd
from ister.core.tiers.retention import SealedSegment
from ister.storage.cursors.saved import NOTHING_FINISHED, CursorFile, MemoryCursors, clip_ranges
from ister.storage.tiered_reader import ObjectTier, TieredReader, prove_held
from ister.storage.time_index import offset_at
from ister.wal.config import AckLevel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.cloud import Uploader
    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.storage.cursors.saved import Ranges, SavedCursors
    from ister.storage.tiered_reader import TableTier
    from ister.wal import Wal, WalReader


class WalStorage:
    """PersistentStorage over a Wal; create one by `WalStorage.from_wal(wal)`, and close it instead of the Wal.

    It completes a write of cursors before the directory's lock is released.
    """

    read_only: Literal[False] = False

    def __init__(
        self,
        wal: Wal,
        cursors: SavedCursors,
        objects: ObjectTier | None = None,
        table: TableTier | None = None,
    ) -> None:
        """Use `from_wal`."""
        self.wal = wal
        self.objects = objects
        self.table = table
        self._waits_for_cloud = objects is not None and wal.config.ack_level >= AckLevel.CLOUD
        self._cursors = cursors
        self._ready = False
        self._closing = False
        self._sealing = asyncio.Lock()
        self._levelling = asyncio.Lock()

    @classmethod
    def from_wal(
        cls,
        wal: Wal,
        objects: ObjectTier | None = None,
        table: TableTier | None = None,
        *,
        cursors: SavedCursors | None = None,
    ) -> WalStorage:
        """Return the storage of a log, and of the objects and the table behind it.

        A log in memory has its cursors in memory, and no later tier. Without `cursors`, they are in the log's directory.
        """
        directory = wal.config.dir
        require_uploader(wal.config.ack_level, enabled=objects is not None and objects.uploader is not None)
        if directory is None:
            return cls(wal, cursors or MemoryCursors())
        beside = cursors or CursorFile(wal.files, Path(directory), wal.config.name, wal.recovered_offset)
        return cls(wal, beside, objects, table)

    @property
    def generation(self) -> int:
        """The generation, which differs from that of a deleted topic of the same name; 0 if there are no objects."""
        return 0 if self.objects is None else self.objects.reader.catalog.generation

    @property
    def table_offset(self) -> int | None:
        """The offset below which the table holds everything, None without a table."""
        return None if self.table is None else self.table.end.upto

    @property
    def start_offset(self) -> int:
        """The oldest offset of all tiers; a table that is not empty holds offset 0."""
        return 0 if self.table is not None and self.table.end.upto > 0 else self.frames_start

    @property
    def frames_start(self) -> int:
        """The oldest offset of log and objects; older messages are in the table only."""
        begins = self.wal.start_offset
        if self.objects is None or self.objects.span.start >= self.objects.span.stop:
            return begins
        return min(self.objects.span.start, begins)

    @property
    def log_start(self) -> int:
        """The oldest offset of the log itself."""
        return self.wal.start_offset

    @property
    def active_bytes(self) -> int:
        """The size of the active file."""
        return self.wal.active_bytes

    @property
    def later_tier_offset(self) -> int | None:
        """The offset below which an enabled later tier holds everything, None if there is no such tier.

        That tier is objects, or the table if uploads are off.
        """
        if self._uploader is None and self.table is None:
            return None
        objects = 0 if self.objects is None else self.objects.span.stop
        return objects if self._uploader is not None or self.table is None else max(objects, self.table.span.stop)

    @property
    def upload_problem(self) -> IsterError | None:
        """The error that blocks uploads until an operator acts, None if there is none or uploads are off."""
        return None if self._uploader is None else self._uploader.lasting_problem

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self.wal.next_offset

    # --- levels -------------------------------------------------------------------------------------------------------

    @property
    def level(self) -> AckLevel:
        """The level that an append waits for."""
        return self.wal.config.ack_level

    async def set_level(self, level: AckLevel | None) -> None:
        """Set the level that new appends wait for; None is the minimum, which the log's `sync_mode` implies.

        Appends in progress wait for their own level. After a raise this returns once everything that is visible to readers
        survives a power loss.
        """
        config = replace(self.wal.config, level=level)
        require_uploader(config.ack_level, enabled=self._uploader is not None)
        async with self._levelling:
            self._refuse_closed()
            if config.ack_level is self.level:
                return
            self._waits_for_cloud |= config.ack_level >= AckLevel.CLOUD
            try:
                await self.wal.set_level(level)
            finally:
                self._waits_for_cloud = self.level >= AckLevel.CLOUD

    def set_cloud_timeout(self, timeout_s: float) -> None:
        """Set how long appends at level CLOUD wait; has no effect without objects."""
        if not timeout_s > 0:
            raise InvalidConfigError("cloud_timeout_s", f"{timeout_s!r} must be more than 0")
        if self.objects is not None:
            self.objects.set_timeout(timeout_s)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Append one message; returns its offset once it has reached the level that was set when this was called."""
        waits_for_cloud = self._waits_for_cloud
        if not self._ready:
            await self._open()
        offset = await self.wal.append(message)
        if waits_for_cloud:
            await self._wait_uploaded(offset + 1)
        return offset

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Append many messages in one write, all or none; returns their offsets."""
        waits_for_cloud = self._waits_for_cloud
        if not self._ready:
            await self._open()
        offsets = await self.wal.append_batch(messages)
        if waits_for_cloud:
            await self._wait_uploaded(offsets.stop)
        return offsets

    async def create_reader(self, position: StartPosition) -> WalReader | TieredReader:
        """Read from a position on, from the tiers and then what is appended later."""
        if self.objects is None and self.table is None:
            return self.wal.create_reader(position)
        return TieredReader(self.wal, self.objects, position, self.table)

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset that was appended at this time or later, the next offset if there is none."""
        self._refuse_closed()
        return await offset_at(self, append_time_us)

    async def flush(self) -> None:
        """Return once every message appended so far survives a power loss."""
        await self.wal.sync()

    async def close(self) -> None:
        """Save the cursors, sync everything, release the directory, and end every reader."""
        if self.wal.closed:
            return
        self._closing = True
        failure: IsterError | None = None
        try:
            await self._cursors.settle()
        except IsterError as error:
            failure = error
        await self.wal.close()
        if failure is not None:
            raise failure

    # --- cursors ------------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Save a subscription's cursor; returns it once it is durable.

        A cursor is saved only once the messages below it are synced. Otherwise a power loss could lose those, and the
        subscription would skip the messages that get their offsets.
        """
        await self._open()
        if not self._cursors.has_reached(subscription, cursor):
            await self._sync_below(cursor)
        self._refuse_closed()
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Save the cursors of many subscriptions in one write, each up to the synced offset; returns the saved ones.

        Forces no sync: a later call saves the rest of a cursor that is cut back here. An unknown subscription is not
        created: it was deleted meanwhile. Costs nothing if nothing changed.
        """
        if not self._ready:
            await self._open()
        self._refuse_closed()
        safe = self._safe_offset()
        return await self._cursors.advance_known(
            {name: min(cursor, safe) for name, cursor in wanted.items()},
            {name: clip_ranges(ranges, 0, safe) for name, ranges in finished.items()},
        )

    def finished(self, subscription: str) -> Ranges:
        """Return the finished ranges beyond a subscription's cursor, as of when it was last stopped; load the cursors first."""
        return self._cursors.finished(subscription)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription forward or back to an offset that is held, or to the end; returns once that is durable."""
        await self._open()
        await self._sync_below(cursor)
        self._refuse_closed()
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Delete a subscription's cursor, so that it does not block retention; returns once that is durable."""
        await self._open()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor, the lowest that a crash at this moment could leave."""
        await self._open()
        return self._cursors.durable()

    async def refresh_cursor(self, subscription: str) -> int | None:
        """Begin to write a subscription's cursor; returns it, read again where other brokers write it, too."""
        await self._open()
        return await self._cursors.adopt(subscription)

    def release_cursor(self, subscription: str) -> None:
        """Stop writing a subscription's cursor: another broker may serve it now."""
        self._cursors.release(subscription)

    # --- segments -----------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return the sealed files, oldest first; an append time of 0 is unknown."""
        return [
            SealedSegment(segment.first, after.first, segment.append_time_us, segment.size)
            for segment, after in pairwise(self.wal.segments())
        ]

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the sealed files with their append times; reads a file if the log's checkpoint was lost."""
        await self.wal.load_append_times()
        return self.sealed_segments()

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Rotate if the active file has reached this size, or its newest message is this old."""
        if self.wal.config.dir is None:
            return
        async with self._sealing:
            is_old = newest_before_us is not None and self.wal.append_time_us < newest_before_us
            if is_old or self.wal.active_bytes >= reached_bytes:
                await self.wal.rotate()
                if self._uploader is not None:
                    self._uploader.hurry()

    def table_reached(self, upto: int) -> None:
        """Record that the table holds everything below `upto`; ignored without a table, or if it is less than known."""
        if self.table is not None:
            self.table.reached(TableEnd(upto))

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; returns the log's new start offset.

        Before the log's copy is deleted, the store or the table must prove that it has those offsets. With uploads on, that
        is the store, and the table for what objects lack. Without a later tier, pruned messages are lost: objects begin
        after them from then on.
        """
        later = self.later_tier_offset
        wanted = before if self._uploader is not None or later is None else min(before, later)
        ends = [segment.stop for segment in self.sealed_segments()]
        below = max((end for end in ends if end <= wanted), default=self.log_start)
        if later is not None:
            await self._prove_held(below)
        elif self.objects is not None and below > max(self.log_start, self.objects.span.stop):
            cursor = self._lowest_cursor()
            # Before the log's copy is deleted: readers and uploads take an unexplained gap for lost messages.
            await self.objects.reader.catalog.begin_at(below, in_table=False)
            if self._lowest_cursor() < min(cursor, below):
                return self.log_start  # a new subscription needs what was to be deleted
            self.objects.forget_below(below)
        return await self.wal.prune(below)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _uploader(self) -> Uploader | None:
        return None if self.objects is None else self.objects.uploader

    async def _open(self) -> None:
        self._refuse_closed()
        await self._cursors.load()
        self._refuse_closed()
        self._ready = True

    async def _prove_held(self, below: int) -> None:
        """Check that later tiers hold what the log has below an offset; a missing object is put again first."""
        try:
            await prove_held(self.objects, self.table, self.log_start, below)
        except MissingObjectError:
            if self._uploader is None or not await self._uploader.restore(self.log_start, below):
                raise
            await prove_held(self.objects, self.table, self.log_start, below)

    def _lowest_cursor(self) -> float:
        return min(self._cursors.durable().values(), default=inf) if self._ready else inf

    async def _wait_uploaded(self, offset: int) -> None:
        objects = self.objects
        assert objects is not None, "from_wal refuses level CLOUD without objects"
        assert objects.uploader is not None, "from_wal refuses level CLOUD without an uploader"
        await objects.uploader.wait_uploaded(offset, objects.timeout_s)

    async def _sync_below(self, cursor: int) -> None:
        """Return once the messages below a cursor survive a power loss; OffsetOutOfRangeError if it is not held.

        There is no await between the last check of the offsets and the return, so that retention cannot come between the
        check and the save of the cursor.
        """
        while True:
            if not self.start_offset <= cursor <= self.next_offset:
                raise OffsetOutOfRangeError(cursor, self.start_offset, self.next_offset)
            if cursor <= self._safe_offset():
                return
            await self.wal.sync()

    def _refuse_closed(self) -> None:
        """Raise LogClosedError after `close`: the directory may have another owner then."""
        if self._closing or self.wal.closed:
            raise LogClosedError(self.wal.config.name)

    def _safe_offset(self) -> int:
        return self.wal.next_offset if self.wal.config.dir is None else self.wal.synced_offset


def require_uploader(level: AckLevel, *, enabled: bool) -> None:
    """Raise InvalidConfigError for a level that waits for uploads if these are off."""
    if level >= AckLevel.CLOUD and not enabled:
        raise InvalidConfigError("level", "CLOUD needs the uploader; enable it, or choose level FSYNC")
