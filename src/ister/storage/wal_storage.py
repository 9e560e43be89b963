"""Decide how a write-ahead log serves as a topic's storage: its messages, and its subscriptions' progress beside them.

The cursors stand in the log's own directory, under the log's own lock. They are read at the first append or the first
use of a cursor, whichever comes first, never in between: an append could hide that a cursor was beyond the end.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ister.core.errors import CorruptLogError, IsterError, LogClosedError, OffsetOutOfRangeError
from ister.core.recover import Recovery, Verdict
from ister.core.retain import SealedSegment
from ister.storage.cursors import CursorFile, MemoryCursors
from ister.wal.directory import Segment, judge_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.files import Files
    from ister.wal import Wal, WalReader


class WalStorage:
    """PersistentStorage over a Wal; `WalStorage.from_wal(wal)` makes one.

    Make one for each Wal, and close the storage instead of the Wal: it lets a write of cursors end before the
    directory's lock goes.
    """

    def __init__(self, wal: Wal, cursors: CursorFile | MemoryCursors) -> None:
        """Use `from_wal`, which knows where this log's cursors are."""
        self._wal = wal
        self._cursors = cursors
        self._ready = False
        self._closing = False
        self._sealing = asyncio.Lock()

    @classmethod
    def from_wal(cls, wal: Wal) -> WalStorage:
        """Make a log the storage of its topic; a log in memory keeps its cursors in memory."""
        directory = wal.config.dir
        if directory is None:
            return cls(wal, MemoryCursors())
        return cls(wal, CursorFile(wal.files, Path(directory), wal.config.name, wal.recovered_offset))

    @property
    def wal(self) -> Wal:
        """The log."""
        return self._wal

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._wal.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._wal.next_offset

    # --- messages -----------------------------------------------------------------------------------------------------

    async def append_message(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the log's level."""
        if not self._ready:
            await self._open()
        return await self._wal.append(message)

    async def append_messages(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages in one write, all or none; returns their offsets."""
        if not self._ready:
            await self._open()
        return await self._wal.append_batch(messages)

    async def create_reader(self, position: StartPosition) -> WalReader:
        """Read from a position on: files, then memory, then whatever comes."""
        return self._wal.create_reader(position)

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
        while not self._cursors.has_reached(subscription, cursor):
            if not self.start_offset <= cursor <= self.next_offset:
                raise OffsetOutOfRangeError(cursor, self.start_offset, self.next_offset)
            if cursor <= self._safe_offset():
                break
            await self._wal.sync()
        self._refuse_closed()
        return await self._cursors.advance(subscription, cursor)

    async def forget_cursor(self, subscription: str) -> None:
        """Forget a subscription, so that it holds nothing back any more; returns once that is on disk."""
        await self._open()
        await self._cursors.forget(subscription)

    async def cursors(self) -> dict[str, int]:
        """Return every subscription's cursor, the lowest that a crash at this moment could leave."""
        await self._open()
        return self._cursors.kept()

    # --- segments -----------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SealedSegment]:
        """Return the sealed files, oldest first; an append time is 0 when it is not known."""
        return [
            SealedSegment(segment.first, after.first, segment.append_time_us)
            for segment, after in pairwise(self._wal.segments())
        ]

    async def dated_segments(self) -> list[SealedSegment]:
        """Return the sealed files with their append times; reads a file when the log's checkpoint was lost."""
        loop = asyncio.get_running_loop()
        for segment, after in pairwise(self._wal.segments()):
            if not segment.append_time_us and segment.first < after.first:
                found = await loop.run_in_executor(None, _judge_sealed, self._wal.files, segment, after.first)
                # Kept in the log's own record, whose next checkpoint then has it.
                segment.append_time_us = found.append_time_us
        return self.sealed_segments()

    async def seal(self, reached_bytes: int) -> None:
        """Start the next file if the one that is being written has reached this size."""
        if self._wal.config.dir is None:
            return
        async with self._sealing:
            if self._wal.active_bytes >= reached_bytes:
                await self._wal.rotate()

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`; returns the new start offset."""
        return await self._wal.prune(before)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._refuse_closed()
        await self._cursors.load()
        self._refuse_closed()
        self._ready = True

    def _refuse_closed(self) -> None:
        """Whoever owns the directory next must not find us writing in it."""
        if self._closing or self._wal.closed:
            raise LogClosedError(self._wal.config.name)

    def _safe_offset(self) -> int:
        return self._wal.next_offset if self._wal.config.dir is None else self._wal.synced_offset


def _judge_sealed(files: Files, segment: Segment, stop: int) -> Recovery:
    found = judge_file(files, segment, stop)
    if found.verdict is Verdict.CORRUPT:
        raise CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)
    return found
