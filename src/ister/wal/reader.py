"""Read a log as one ordered stream: files, then memory, then the live end.

A reader is an offset and a small buffer, with at most one read ahead. It never holds a file open and never copies the log: what it needs next it
reads again, from memory when it is there, else a MiB at a time from the file that holds it. So nothing that the log
does meanwhile, rotating, pruning or appending, can make it skip or repeat.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.core import kernels
from ister.core.batches import Batches
from ister.core.columns import Chunk, Scan, corrupt, messages_of, scan_run
from ister.core.errors import CorruptLogError, LogClosedError, OffsetOutOfRangeError
from ister.core.frame import HEADER, HEADER_BYTES
from ister.core.segment import Place, RawRun
from ister.ports.ahead import ahead
from ister.wal.directory import READ_BYTES, Segment, unreadable

if TYPE_CHECKING:
    from ister.core.message import StreamMessage
    from ister.ports.files import File, Files
    from ister.wal.log import Wal


class WalReader(Batches):
    """An ordered stream of messages; `async for message in reader`, or `await reader.read()` for a batch."""

    def __init__(self, wal: Wal, offset: int) -> None:
        super().__init__()
        self._wal = wal
        self._next = offset
        self._place: tuple[int, int, int] = (-1, 0, 0)
        self._ahead: asyncio.Future[tuple[Chunk, Scan, int]] | None = None

    @property
    def next_offset(self) -> int:
        """The offset that will be read from the log next; what was read already may still be in the buffer."""
        return self._next

    async def read_frames(self) -> tuple[bytes, Scan]:
        """Return the next frames as they are stored, checked, with what was found in them."""
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
            self._ahead = None
        began = at
        limit = min(upto, stop)
        reading, self._ahead = self._ahead or self._start(segment, offset, at, limit, self._next), None
        try:
            chunk, scan, at = await reading
        except (CorruptLogError, OSError) as error:
            if self._next < wal.start_offset:
                raise OffsetOutOfRangeError(self._next, wal.start_offset, wal.next_offset) from error
            if isinstance(error, OSError):
                raise unreadable(segment, stop, error) from error
            if began == 0:
                raise
            # A place to seek by is a cache: before it is believed that the file is damaged, read it from its start.
            segment.index = []
            self._place = (segment.seq, segment.first, 0)
            return chunk_of_nothing(self._next)
        self._place = (segment.seq, scan.next_offset, at)
        if scan.next_offset < min(limit, wal.cache.start):
            self._ahead = self._start(segment, scan.next_offset, at, limit, scan.next_offset)
        return chunk, scan

    def _start(
        self, segment: Segment, offset: int, at: int, limit: int, wanted: int
    ) -> asyncio.Future[tuple[Chunk, Scan, int]]:
        """Have a thread read the next MiB; while its messages are built and used, it reads the one after that."""
        loop = asyncio.get_running_loop()
        return ahead(loop.run_in_executor(None, read_segment, self._wal.files, segment, offset, at, limit, wanted))


def read_segment(
    files: Files, segment: Segment, offset: int, at: int, limit: int, wanted: int
) -> tuple[Chunk, Scan, int]:
    """Read on from a place in a file until there is a message that is wanted; returns it with those behind it."""
    file = files.open_read(segment.path)
    try:
        count = READ_BYTES
        while True:
            data = file.read(at, count)
            scan = scan_run(data, first_offset=offset, limit=limit, wanted=wanted)
            if scan.code not in {kernels.OK, kernels.NEED_MORE}:
                raise corrupt(str(segment.path), at + scan.end, scan.next_offset, scan.code)
            if scan.rows:
                return Chunk(data, offset, scan.next_offset), scan, at + scan.end
            if not scan.end:
                if len(data) < count:
                    raise corrupt(str(segment.path), at, offset, kernels.NEED_MORE)
                _, length, _ = HEADER.unpack_from(data)
                count = HEADER_BYTES + length
                continue
            segment.note(offset, at)
            at += scan.end
            offset = scan.next_offset
            count = READ_BYTES
    finally:
        file.close()


def read_raw(files: Files, segment: Segment, stop: int, offset: int, hint: Place | None, bytes_max: int) -> RawRun:
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
                at = _find_frame(file, segment, offset, segment.first, 0)  # a place to seek by is a cache
        return RawRun(str(segment.path), Place(segment.seq, at), file.read(at, bytes_max), stop)
    except OSError as error:
        raise unreadable(segment, stop, error) from error
    finally:
        file.close()


def _find_frame(file: File, segment: Segment, offset: int, known: int, at: int) -> int:
    """Return the byte at which the frame of `offset` begins, behind a place that is known."""
    count = READ_BYTES
    while True:
        data = file.read(at, count)
        scan = scan_run(data, first_offset=known, wanted=offset)
        if scan.rows:
            return at + scan.first_row
        if not scan.end:
            if len(data) < count or scan.code != kernels.NEED_MORE:
                raise corrupt(str(segment.path), at, known, scan.code or kernels.NEED_MORE)
            _, length, _ = HEADER.unpack_from(data)
            count = HEADER_BYTES + length
            continue
        at += scan.end
        known = scan.next_offset
        count = READ_BYTES


def chunk_of_nothing(offset: int) -> tuple[Chunk, Scan]:
    """Return an empty run: nothing was read, try again."""
    return Chunk(b"", offset, offset), scan_run(b"", first_offset=offset)
