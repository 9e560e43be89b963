"""Log reader: one ordered stream from files, then memory, then new messages.

A reader is an offset and a small buffer, with at most one prefetched read. It keeps no file open and copies no part of the
log: it reads from memory if the offset is there, else a MiB at a time from the file that holds it. So no rotation, pruning
or append can make it skip or repeat a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.aio.background import mark_retrieved
from ister.core.errors import CorruptLogError, LogClosedError, OffsetOutOfRangeError
from ister.core.frames import kernels
from ister.core.frames.columns import Chunk, Scan, corrupt, messages_of, scan_run
from ister.core.frames.scanner import FrameScanner
from ister.core.frames.segment import LogPosition, RawRun
from ister.core.reader import Reader
from ister.wal.directory import READ_BYTES, Segment, unreadable

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.ports.files.files import File, Files
    from ister.wal.wal import Wal


class WalReader(Reader):
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch."""

    def __init__(self, wal: Wal, offset: int) -> None:
        super().__init__()
        self._wal = wal
        self._next = offset
        self._place: tuple[int, int, int] = (-1, 0, 0)
        self._prefetched: asyncio.Future[tuple[Chunk, Scan, int]] | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next read of the log; earlier messages may still be in the buffer."""
        return self._next

    async def read_frames(self) -> tuple[bytes, Scan]:
        """Return the next frames as they are stored, checked, with their scan."""
        chunk, scan = await self._read_run()
        return bytes(chunk.frames), scan

    async def _read(self) -> list[StreamMessage]:
        chunk, scan = await self._read_run()
        return messages_of(chunk.frames, scan, self._wal.config.topic, self._wal.config.name)

    async def _read_run(self) -> tuple[Chunk, Scan]:
        wal = self._wal
        while True:
            await wal.wait_beyond(self._next)
            if wal.closed:
                raise LogClosedError(wal.config.name)
            upto = wal.visible_offset
            if self._next >= wal.cache.start:
                chunk = wal.cache.read(self._next)
                scan = scan_run(chunk.frames, first_offset=chunk.start, limit=min(upto, chunk.stop), wanted=self._next)
                assert scan.code == kernels.OK, "memory holds what we encoded"
            else:
                chunk, scan = await self._read_file(upto)
            if scan.rows:
                self._next = scan.next_offset
                return chunk, scan

    async def _read_file(self, upto: int) -> tuple[Chunk, Scan]:
        wal = self._wal
        found = wal.locate(self._next) if self._next >= wal.start_offset else None
        if found is None:
            raise OffsetOutOfRangeError(self._next, wal.start_offset, wal.next_offset)
        segment, stop = found
        seq, offset, at = self._place
        if seq != segment.seq or offset > self._next:
            offset, at = segment.place(self._next)
            self._prefetched = None
        began = at
        limit = min(upto, stop)
        reading, self._prefetched = self._prefetched or self._start(segment, offset, at, limit, self._next), None
        try:
            chunk, scan, at = await reading
        except (CorruptLogError, OSError) as error:
            if self._next < wal.start_offset:
                raise OffsetOutOfRangeError(self._next, wal.start_offset, wal.next_offset) from error
            if isinstance(error, OSError):
                raise unreadable(segment, stop, error) from error
            if began == 0:
                raise
            # An index entry is only a cache: before the file counts as damaged, read it from its start.
            segment.index = []
            self._place = (segment.seq, segment.first, 0)
            return empty_chunk(self._next)
        self._place = (segment.seq, scan.next_offset, at)
        if scan.next_offset < min(limit, wal.cache.start):
            self._prefetched = self._start(segment, scan.next_offset, at, limit, scan.next_offset)
        return chunk, scan

    def _start(
        self, segment: Segment, offset: int, at: int, limit: int, wanted: int
    ) -> asyncio.Future[tuple[Chunk, Scan, int]]:
        """Read the next MiB in a thread, while the messages of the one before are used."""
        loop = asyncio.get_running_loop()
        return mark_retrieved(
            loop.run_in_executor(None, read_segment, self._wal.files, segment, offset, at, limit, wanted)
        )


def read_segment(
    files: Files, segment: Segment, offset: int, at: int, limit: int, wanted: int
) -> tuple[Chunk, Scan, int]:
    """Read a file from a place on until there is a wanted message; return it with those behind it."""
    file = files.open_read(segment.path)
    try:
        scanner = FrameScanner(str(segment.path), offset, at, READ_BYTES, limit=limit, wanted=wanted)
        while True:
            data = file.read(scanner.byte, scanner.need)
            offset, at = scanner.offset, scanner.byte
            scan = scanner.feed(data)
            if scan.code not in {kernels.OK, kernels.NEED_MORE}:
                raise corrupt(str(segment.path), at + scan.end, scan.next_offset, scan.code)
            if scan.rows:
                return Chunk(data, offset, scan.next_offset), scan, scanner.byte
            if scanner.byte > at:
                segment.note(offset, at)
    finally:
        file.close()


def read_raw(
    files: Files, segment: Segment, stop: int, offset: int, hint: LogPosition | None, bytes_max: int
) -> RawRun:
    """Read raw bytes from the frame of `offset` on; the caller checks them."""
    try:
        file = files.open_read(segment.path)
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    try:
        if hint is not None and hint.seq == segment.seq:
            at = hint.byte
        elif offset == segment.first:
            at = 0
        else:
            try:
                at = _find_frame(file, segment, offset, *segment.place(offset))
            except CorruptLogError:
                at = _find_frame(file, segment, offset, segment.first, 0)  # an index entry is only a cache
        return RawRun(str(segment.path), LogPosition(segment.seq, at), file.read(at, bytes_max), stop)
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    finally:
        file.close()


def _find_frame(file: File, segment: Segment, offset: int, known: int, at: int) -> int:
    """Return the byte at which the frame of `offset` begins, searching from a known place on."""
    scanner = FrameScanner(str(segment.path), known, at, READ_BYTES, wanted=offset)
    while True:
        at = scanner.byte
        scan = scanner.feed(file.read(at, scanner.need))
        if scan.rows:
            return at + scan.first_row


def empty_chunk(offset: int) -> tuple[Chunk, Scan]:
    """Return an empty chunk: nothing was read, try again."""
    return Chunk(b"", offset, offset), scan_run(b"", first_offset=offset)
