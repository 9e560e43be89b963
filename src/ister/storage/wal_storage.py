"""Decide how a write-ahead log serves as a topic's storage: its messages, and its subscriptions' progress beside them.

The cursors stand in the log's own directory, under the log's own lock. They are read at the first append or the first
use of a cursor, whichever comes first, never in between: an append could hide that a cursor was beyond the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ister.core.errors import (
    CorruptLogError,
    InvalidConfigError,
    IsterError,
    LogClosedError,
    MissingFileError,
    MissingObjectError,
    OffsetOutOfRangeError,
)
from ister.core.layout import TableEnd
from ister.core.recover import Recovery, Verdict
from ister.core.retain import SealedSegment
from ister.storage.cursors import NOTHING_FINISHED, CursorFile, MemoryCursors, clip_ranges
from ister.storage.shared_cursors import SharedCursors
from ister.storage.tiers import ObjectTier, TieredReader, prove_held
from ister.storage.times import offset_at
from ister.wal.config import AckLevel
from ister.wal.directory import Segment, judge_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.files import Files
    from ister.storage.cursors import Ranges, SavedCursors
    from ister.storage.table_tier import TableTier
    from ister.wal import Wal, WalReader


class WalStorage:
    """PersistentStorage over a Wal; `WalStorage.from_wal(wal)` makes one.

    Make one for each Wal, and close the storage instead of the Wal: it lets a write of cursors end before the
    directory's lock goes.
    """

    def __init__(
        self,
        wal: Wal,
        cursors: SavedCursors | MemoryCursors,
        objects: ObjectTier | None = None,
        table: TableTier | None = None,
    ) -> None:
        """Use `from_wal`, which knows where this log's cursors are."""
        self._wal = wal
        self._objects = objects
        self._table = table
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
        cursors: SavedCursors | MemoryCursors | None = None,
    ) -> WalStorage:
        """Make a log, and the objects and the table behind it, the storage of its topic.

        A log in memory keeps its cursors in memory, and has no later tier. `cursors` are kept elsewhere than beside the log.
        """
        directory = wal.config.dir
        _refuse_level(wal.config.ack_level, objects)
        if directory is None:
            return cls(wal, cursors or MemoryCursors())
        beside = cursors or CursorFile(wal.files, Path(directory), wal.config.name, wal.recovered_offset)
        return cls(wal, beside, objects, table)

    @property
    def wal(self) -> Wal:
        """The log."""
        return self._wal

    @property
    def objects(self) -> ObjectTier | None:
        """The objects behind the log."""
        return self._objects

    @property
    def table(self) -> TableTier | None:
        """The table behind both."""
        return self._table

    @property
    def table_offset(self) -> int | None:
        """The offset below which the table holds everything, None where there is none to read."""
        return None if self._table is None else self._table.end.upto

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read, from whichever tier; a table that holds anything holds offset 0."""
        return 0 if self._table is not None and self._table.end.upto > 0 else self.frames_start

    @property
    def frames_start(self) -> int:
        """The oldest offset whose frame is in the log or in an object; older messages are rows of the table only."""
        begins = self._wal.start_offset
        if self._objects is None or self._objects.span.start >= self._objects.span.stop:
            return begins
        return min(self._objects.span.start, begins)

    @property
    def log_start(self) -> int:
        """The oldest offset that the log itself holds."""
        return self._wal.start_offset

    @property
    def active_bytes(self) -> int:
        """How many bytes the file has that is being written."""
        return self._wal.active_bytes

    @property
    def later_tier_offset(self) -> int | None:
        """The offset below which an enabled later tier holds everything, None when there is no such tier.

        Objects are that tier; the table is, where nothing is uploaded.
        """
        uploads = self._objects is not None and self._objects.uploader is not None
        if not uploads and self._table is None:
            return None
        objects = 0 if self._objects is None else self._objects.span.stop
        return objects if uploads or self._table is None else max(objects, self._table.span.stop)

    @property
    def upload_problem(self) -> IsterError | None:
        """What keeps uploads from going on until a person acts, None when they go on or are off."""
        uploader = None if self._objects is None else self._objects.uploader
        return None if uploader is None else uploader.lasting_problem

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._wal.next_offset

    # --- levels -------------------------------------------------------------------------------------------------------

    @property
    def level(self) -> AckLevel:
        """What an append waits for."""
        return self._wal.config.ack_level

    async def set_level(self, level: AckLevel | None) -> None:
        """Have appends wait for another level from now on; None is what the log's `sync_mode` implies, the least there is.

        Appends that wait already keep their promise. When the level was raised, this returns once everything that readers
        have seen survives a power loss.
        """
        config = replace(self._wal.config, level=level)
        _refuse_level(config.ack_level, self._objects)
        async with self._levelling:
            self._refuse_closed()
            if config.ack_level is self.level:
                return
            self._waits_for_cloud |= config.ack_level >= AckLevel.CLOUD
            try:
                await self._wal.set_level(level)
            finally:
                self._waits_for_cloud = self.level >= AckLevel.CLOUD

    def set_cloud_timeout(self, timeout_s: float) -> None:
        """Have appends at level CLOUD wait so long, from now on; means nothing where there are no objects."""
        if not timeout_s > 0:
            raise InvalidConfigError("cloud_timeout_s", f"{timeout_s!r} must be more than 0")
        if self._objects is not None:
            self._objects.timeout_s = timeout_s

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the level that counted when this was called."""
        waits_for_cloud = self._waits_for_cloud
        if not self._ready:
            await self._open()
        offset = await self._wal.append(message)
        if waits_for_cloud:
            await self._wait_uploaded(offset + 1)
        return offset

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages in one write, all or none; returns their offsets."""
        waits_for_cloud = self._waits_for_cloud
        if not self._ready:
            await self._open()
        offsets = await self._wal.append_batch(messages)
        if waits_for_cloud:
            await self._wait_uploaded(offsets.stop)
        return offsets

    async def create_reader(self, position: StartPosition) -> WalReader | TieredReader:
        """Read from a position on: table, objects, files, memory, then whatever comes."""
        if self._objects is None and self._table is None:
            return self._wal.create_reader(position)
        return TieredReader(self._wal, self._objects, position, self._table)

    async def offset_at(self, append_time_us: int) -> int:
        """Return the first offset whose message was stored at this time or later, the next offset when there is none."""
        self._refuse_closed()
        return await offset_at(self, append_time_us)

    async def flush(self) -> None:
        """Return once every message given so far survives power loss."""
        await self._wal.sync()

    async def close(self) -> None:
        """Save the cursors, sync everything, let go of the directory, and end every reader."""
        if self._wal.closed:
            return
        self._closing = True
        failure: IsterError | None = None
        try:
            await self._cursors.settle()
        except IsterError as error:
            failure = error
        await self._wal.close()
        if failure is not None:
            raise failure

    # --- progress -----------------------------------------------------------------------------------------------------

    async def ack_checkpoint(self, subscription: str, cursor: int) -> int:
        """Keep a subscription's progress; returns its cursor once that is on disk.

        A cursor is saved only once the messages below it are synced. Otherwise a power loss could take those, and the
        subscription would skip the ones that take their offsets.
        """
        await self._open()
        if not self._cursors.has_reached(subscription, cursor):
            await self._sync_below(cursor)
        self._refuse_closed()
        return await self._cursors.advance(subscription, cursor)

    async def save_cursors(
        self, wanted: Mapping[str, int], finished: Mapping[str, Ranges] = NOTHING_FINISHED
    ) -> dict[str, int]:
        """Keep the progress of many subscriptions in one write, each up to the synced offset; returns what is kept.

        Forces no sync: a cursor that is cut back here goes on with a later call. A subscription that is not known is not
        made known: it was forgotten meanwhile. Costs nothing when nothing changed.
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
        """Return what is finished beyond a subscription's cursor, as of when it was last stopped; load the cursors first."""
        return self._cursors.finished(subscription)

    async def reset_cursor(self, subscription: str, cursor: int) -> int:
        """Move a subscription to an offset that is held, or to the end, back too; returns once that is on disk."""
        await self._open()
        await self._sync_below(cursor)
        self._refuse_closed()
        return await self._cursors.put(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Forget a subscription, so that it holds nothing back any more; returns once that is on disk."""
        await self._open()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor, the lowest that a crash at this moment could leave."""
        await self._open()
        return self._cursors.kept()

    async def refresh_cursor(self, subscription: str) -> int | None:
        """Begin to keep a subscription's progress: return its cursor, read anew where other brokers move it, too."""
        await self._open()
        if isinstance(self._cursors, SharedCursors):
            return await self._cursors.adopt(subscription)
        return self._cursors.kept().get(subscription)

    def release_cursor(self, subscription: str) -> None:
        """Save nothing of a subscription any more: another broker may serve it now."""
        if isinstance(self._cursors, SharedCursors):
            self._cursors.release(subscription)

    # --- segments -----------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return the sealed files, oldest first; an append time is 0 when it is not known."""
        return [
            SealedSegment(segment.first, after.first, segment.append_time_us, segment.size)
            for segment, after in pairwise(self._wal.segments())
        ]

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the sealed files with their append times; reads a file when the log's checkpoint was lost."""
        loop = asyncio.get_running_loop()
        for segment, after in pairwise(self._wal.segments()):
            if not segment.append_time_us and segment.first < after.first:
                try:
                    found = await loop.run_in_executor(None, _judge_sealed, self._wal.files, segment, after.first)
                except MissingFileError:
                    if segment in self._wal.segments():
                        raise
                    continue  # someone else has pruned it meanwhile
                # Kept in the log's own record, whose next checkpoint then has it.
                segment.append_time_us = found.append_time_us
        return self.sealed_segments()

    async def seal(self, reached_bytes: int, newest_before_us: int | None = None) -> None:
        """Start the next file if the one that is being written has reached this size, or its newest message is this old."""
        if self._wal.config.dir is None:
            return
        async with self._sealing:
            is_old = newest_before_us is not None and self._wal.append_time_us < newest_before_us
            if is_old or self._wal.active_bytes >= reached_bytes:
                await self._wal.rotate()
                if self._objects is not None and self._objects.uploader is not None:
                    self._objects.uploader.hurry()

    def table_reached(self, upto: int) -> None:
        """Note that the table holds everything below `upto`; never goes back, and means nothing without a table."""
        if self._table is not None:
            self._table.reached(TableEnd(upto))

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; returns the log's new start offset.

        A description is a promise, and so is a table's end: before the log's copy goes, store or table are asked whether
        they keep it. Where uploads are on, everything goes to objects first, and the table counts for what they lack.
        Where there is no later tier, what is pruned is deleted: objects begin behind it from then on.
        """
        later = self.later_tier_offset
        uploads = self._objects is not None and self._objects.uploader is not None
        wanted = before if uploads or later is None else min(before, later)
        ends = [segment.stop for segment in self.sealed_segments()]
        below = max((end for end in ends if end <= wanted), default=self.log_start)
        if later is not None:
            await self._prove_held(below)
        elif self._objects is not None and below > max(self.log_start, self._objects.span.stop):
            cursor = self._lowest_cursor()
            # Before the log's copy goes: a gap that nothing explains is taken for lost messages, by readers and by uploads.
            await self._objects.reader.catalog.begin_at(below, in_table=False)
            if self._lowest_cursor() < min(cursor, below):
                return self.log_start  # a subscription began meanwhile, and needs what was to go
            self._objects.forget_below(below)
        return await self._wal.prune(below)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._refuse_closed()
        await self._cursors.load()
        self._refuse_closed()
        self._ready = True

    async def _prove_held(self, below: int) -> None:
        """Return if later tiers hold what the log has below an offset; an object that is missing is put again first."""
        try:
            await prove_held(self._objects, self._table, self.log_start, below)
        except MissingObjectError:
            uploader = None if self._objects is None else self._objects.uploader
            if uploader is None or not await uploader.restore(self.log_start, below):
                raise
            await prove_held(self._objects, self._table, self.log_start, below)

    def _lowest_cursor(self) -> float:
        return min(self._cursors.kept().values(), default=inf) if self._ready else inf

    async def _wait_uploaded(self, offset: int) -> None:
        objects = self._objects
        assert objects is not None, "from_wal refuses level CLOUD without objects"
        assert objects.uploader is not None, "from_wal refuses level CLOUD without an uploader"
        await objects.uploader.wait_uploaded(offset, objects.timeout_s)

    async def _sync_below(self, cursor: int) -> None:
        """Return once the messages below a cursor survive a power loss; OffsetOutOfRangeError when it cannot be.

        From its last look at the offsets to its return there is no await: who saves the cursor then is before retention.
        """
        while True:
            if not self.start_offset <= cursor <= self.next_offset:
                raise OffsetOutOfRangeError(cursor, self.start_offset, self.next_offset)
            if cursor <= self._safe_offset():
                return
            await self._wal.sync()

    def _refuse_closed(self) -> None:
        """Whoever owns the directory next must not find us writing in it."""
        if self._closing or self._wal.closed:
            raise LogClosedError(self._wal.config.name)

    def _safe_offset(self) -> int:
        return self._wal.next_offset if self._wal.config.dir is None else self._wal.synced_offset


def _refuse_level(level: AckLevel, objects: ObjectTier | None) -> None:
    if level >= AckLevel.CLOUD and (objects is None or objects.uploader is None):
        raise InvalidConfigError("level", "CLOUD needs the uploader; enable it, or choose level FSYNC")


def _judge_sealed(files: Files, segment: Segment, stop: int) -> Recovery:
    found = judge_file(files, segment, stop)
    if found.verdict is Verdict.CORRUPT:
        raise CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)
    return found
