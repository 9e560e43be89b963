"""The write-ahead log: append, group commit, rotation, and what happens when the disk says no.

One writer, dense offsets. All state changes happen on the event loop; the disk is asked for anything slow (sync,
rotation, pruning) by one job at a time, off the loop. Appends of one loop iteration become one write. docs/adr/0004
has the acknowledgement levels, docs/adr/0005 the ownership.
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import structlog

from ister.core import kernels
from ister.core.columns import Chunk, encode_columns
from ister.core.errors import (
    DiskFullError,
    InvalidMessageError,
    IsterError,
    LogClosedError,
    OffsetOutOfRangeError,
    PoisonedError,
    SyncFailedError,
)
from ister.core.frame import FRAME_BYTES_MAX, Marker, encode_batch, encode_marker, encode_unsealed
from ister.ports.clock import SystemClock
from ister.ports.files import OsFiles
from ister.wal.cache import FrameCache
from ister.wal.checkpoint import CHECKPOINT_NAME, SealedFile, dump_checkpoint
from ister.wal.config import AckLevel, SyncMode, WalConfig
from ister.wal.directory import FileNames, OpenedLog, Segment, open_directory, replace_file
from ister.wal.reader import WalReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from ister.core.columns import Frames
    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.clock import Clock
    from ister.ports.files import File, Files

log = structlog.get_logger()

CHUNK_BYTES = 1024 * 1024
BATCH_BYTES_MAX = FRAME_BYTES_MAX
"""A batch is stored whole or not at all, so it is as bounded as a single message."""
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class _Tick:
    """The messages of one loop iteration: encoded, waiting for their one write."""

    __slots__ = ("append_time_us", "pieces", "size", "start", "waiters")

    def __init__(self, start: int, append_time_us: int) -> None:
        self.start = start
        self.append_time_us = append_time_us
        self.pieces: list[bytes] = []
        self.size = 0
        self.waiters: list[asyncio.Future[int]] = []


class _Disk:
    """The active file and how far it is written, synced and attested."""

    __slots__ = ("attested", "directory", "file", "files", "names", "nonce", "opened", "pos", "segments")

    def __init__(self, files: Files, directory: Path, names: FileNames, opened: OpenedLog) -> None:
        self.files = files
        self.directory = directory
        self.names = names
        self.opened = opened
        self.segments = opened.segments
        self.file: File = opened.active
        self.pos = opened.active_bytes
        self.nonce = opened.nonce
        self.attested = opened.next_offset

    @property
    def active(self) -> Segment:
        return self.segments[-1]


class Wal:
    """An append-only log of messages with dense offsets; `await Wal.with_config(WalConfig(...))` opens one."""

    def __init__(self, config: WalConfig, clock: Clock, disk: _Disk | None) -> None:
        """Use `with_config`, which recovers what is on disk first."""
        self.config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._next = disk.opened.next_offset if disk else 0
        self._synced = self._next
        self._append_time_us = disk.opened.append_time_us if disk else 0
        self._cache = FrameCache(config.cache_capacity, self._next)
        self._tick: _Tick | None = None
        self._flush_bytes = min(config.max_batch_bytes, CHUNK_BYTES)
        self._sync_waiters: list[tuple[int, asyncio.Future[int]]] = []
        self._news: set[asyncio.Future[None]] = set()
        self._jobs_done: asyncio.Future[None] | None = None
        self._job: str = ""
        self._rotate_wanted = False
        self._rotate_waiters: list[asyncio.Future[int]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing = False
        self._closed = False
        self._poison: str = ""

    @classmethod
    async def with_config(cls, config: WalConfig, *, files: Files | None = None, clock: Clock | None = None) -> Wal:
        """Open a log: own its directory, recover what is there, and bring an unsynced tail to safety."""
        clock = clock or SystemClock()
        if config.dir is None:
            return cls(config, clock, None)
        files = files or OsFiles()
        directory = config.dir
        assert not isinstance(directory, str), "WalConfig makes it a path"
        names = FileNames.of(config.file_name)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, open_directory, files, directory, names, clock.wall_us(), config.name)
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on; whatever it opens must be let go again, or nobody can ever open this log.
            opening.add_done_callback(_abandon)
            raise
        wal = cls(config, clock, _Disk(files, directory, names, opened))
        wal._begin_file()
        return wal

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._disk.segments[0].first if self._disk else self._cache.start

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._next

    @property
    def synced_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._synced if self._disk else 0

    @property
    def visible_offset(self) -> int:
        """Readers see what is below: what has reached the log's level."""
        return self._synced if self._disk and self.config.ack_level >= AckLevel.FSYNC else self._next

    @property
    def append_time_us(self) -> int:
        """The append time of the newest message, 0 when there is none."""
        return self._append_time_us

    def segments(self) -> list[Segment]:
        """Return the log's files, oldest first; the last one is being written."""
        return list(self._disk.segments) if self._disk else []

    # --- append -------------------------------------------------------------------------------------------------------

    async def append(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the log's level.

        Cancelling does not take it back: it is stored, and the caller does not know.
        """
        while self._closing or self._poison or (self._tick is not None and self._tick.size >= self._flush_bytes):
            await self._admit()
        tick = self._tick
        if tick is None:
            tick = self._tick = _Tick(self._next, self._stamp())
            self._loop.call_soon(self._flush)
        waiters = tick.waiters
        head, payload = encode_unsealed(message, tick.start + len(waiters), tick.append_time_us)
        tick.pieces += (head, payload)
        tick.size += len(head) + len(payload)
        waiter: asyncio.Future[int] = self._loop.create_future()
        waiters.append(waiter)
        if tick.size >= self._flush_bytes:
            self._flush()
        return await waiter

    async def append_batch(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages in one write, all or none; returns their offsets."""

        def encode(start: int, append_time_us: int) -> list[Chunk]:
            chunks: list[Chunk] = []
            at = 0
            while at < len(messages):
                step = max(1, min(4096, CHUNK_BYTES // (len(messages[at].payload) + 128)))
                part = messages[at : at + step]
                chunks.append(
                    _sealed(encode_batch(part, start + at, append_time_us), start + at, start + at + len(part))
                )
                at += len(part)
            return chunks

        return await self._append_chunks(encode)

    async def append_arrow(self, batch: pa.RecordBatch) -> range:
        """Store a record batch in one write, all or none; returns the rows' offsets.

        Columns are those of `ister.core.columns.SCHEMA`; only `payload` is required.
        """
        return await self._append_chunks(
            lambda start, time: list(encode_columns(batch, start, time, bytes_max=CHUNK_BYTES))
        )

    async def flush(self) -> None:
        """Return once every message given so far is written to the kernel."""
        self._flush()
        while self._tick is not None:
            await self._admit()
            self._flush()

    async def sync(self) -> int:
        """Return once every message given so far survives power loss; returns the synced offset."""
        await self.flush()
        self._refuse_poisoned()
        await self._wait_synced(self._next)
        return self._synced

    async def rotate(self) -> None:
        """Seal the active file and start the next; does nothing when it has no messages yet."""
        await self.flush()
        self._refuse()
        if self._disk is None or self._disk.active.first == self._next:
            return
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._rotate_waiters.append(waiter)
        self._rotate_wanted = True
        self._next_job()
        await waiter

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`, oldest first; returns the new start offset."""
        disk = self._disk
        if disk is None:
            return self.start_offset
        self._refuse()
        gone = 0
        while gone + 1 < len(disk.segments) and disk.segments[gone + 1].first <= before:
            gone += 1
        doomed, disk.segments[:] = disk.segments[:gone], disk.segments[gone:]
        if doomed:
            await asyncio.shield(
                self._loop.run_in_executor(None, _remove_files, disk.files, disk.directory, [s.path for s in doomed])
            )
            log.info("log_pruned", log=self.config.name, files=gone, start=self.start_offset)
        return self.start_offset

    async def close(self) -> None:
        """Sync everything, let go of the directory, and end every reader; a poisoned log is only let go of."""
        if self._closed:
            return
        failure: IsterError | None = None
        try:
            if not self._poison:
                self._flush()
                self._closing = True
                await self._wait_synced(self._next)
        except IsterError as error:
            failure = error
        self._closing = True
        while self._job:
            await self._wait_jobs()
        for timer in self._timers.values():
            timer.cancel()
        self._closed = True
        self._announce()
        if self._disk is not None:
            await asyncio.shield(self._loop.run_in_executor(None, self._close_files, self._disk))
        if failure is not None:
            raise failure

    def create_reader(self, position: StartPosition) -> WalReader:
        """Read from a position on: files, then memory, then whatever comes, in order, each message once."""
        if self._closed:
            raise LogClosedError(self.config.name)
        offset = self._next if position.at is None else position.at
        if not self.start_offset <= offset <= self._next:
            raise OffsetOutOfRangeError(offset, self.start_offset, self._next)
        return WalReader(self, offset)

    # --- what readers need --------------------------------------------------------------------------------------------

    @property
    def cache(self) -> FrameCache:
        """The newest frames."""
        return self._cache

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def files(self) -> Files:
        """The file system that the log's files are on."""
        assert self._disk is not None, "a log in memory has no files"
        return self._disk.files

    async def wait_beyond(self, offset: int) -> None:
        """Return once the visible offset is above `offset`, or the log was closed."""
        while self.visible_offset <= offset and not self._closed:
            news: asyncio.Future[None] = self._loop.create_future()
            self._news.add(news)
            try:
                await news
            finally:
                self._news.discard(news)

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end (a bound for the last)."""
        segments = self._disk.segments if self._disk else []
        for index in range(len(segments) - 1, -1, -1):
            if segments[index].first <= offset:
                return segments[index], segments[index + 1].first if index + 1 < len(segments) else self._next
        return None

    # --- inside: writing ----------------------------------------------------------------------------------------------

    def _stamp(self) -> int:
        """Return the time for messages stored now; never before that of the message before."""
        return max(self._append_time_us, self._clock.wall_us())

    def _refuse_poisoned(self) -> None:
        if self._poison:
            raise PoisonedError(self.config.name, self._poison)

    def _refuse(self) -> None:
        self._refuse_poisoned()
        if self._closing:
            raise LogClosedError(self.config.name)

    async def _admit(self) -> None:
        """Refuse when closed or poisoned; else wait for the job that keeps the pending messages from being written."""
        self._refuse()
        if self._job:
            await self._wait_jobs()

    async def _append_chunks(self, encode: Callable[[int, int], list[Chunk]]) -> range:
        await self.flush()
        self._refuse()
        while self._rotating():
            await self._admit()
            await self.flush()
            self._refuse()
        start, append_time_us = self._next, self._stamp()
        chunks = encode(start, append_time_us)
        if sum(len(chunk.frames) for chunk in chunks) > BATCH_BYTES_MAX:
            raise InvalidMessageError("batch", f"is larger than {BATCH_BYTES_MAX} bytes encoded; split it")
        if chunks:
            self._write(chunks, append_time_us)
            if self.config.ack_level >= AckLevel.FSYNC:
                await self._wait_synced(chunks[-1].stop)
        return range(start, chunks[-1].stop if chunks else start)

    def _flush(self) -> None:
        """Write what is pending as one write, unless the file is just being changed for the next one."""
        tick = self._tick
        if tick is None or self._rotating():
            return
        self._tick = None
        waiters = tick.waiters
        if not waiters:
            return
        stop = tick.start + len(waiters)
        try:
            self._refuse_poisoned()
            self._write([_sealed(tick.pieces, tick.start, stop)], tick.append_time_us)
        except IsterError as error:
            _fail(waiters, error)
            return
        if self._disk is not None and self.config.ack_level >= AckLevel.FSYNC:
            self._sync_waiters += zip(range(tick.start + 1, stop + 1), waiters, strict=True)
            self._next_job()
        else:
            for offset, waiter in enumerate(waiters, tick.start):
                if not waiter.done():
                    waiter.set_result(offset)

    def _write(self, chunks: list[Chunk], append_time_us: int) -> None:
        """Write chunks whole, or leave the file as it was and raise."""
        disk = self._disk
        if disk is not None:
            before = disk.pos
            self._write_parts(disk, [chunk.frames for chunk in chunks])
            for chunk in chunks:
                disk.active.note(chunk.start, before)
                before += len(chunk.frames)
            disk.active.append_time_us = append_time_us
        for chunk in chunks:
            self._cache.add(chunk)
        self._next = chunks[-1].stop
        self._append_time_us = append_time_us
        if disk is None or self.config.ack_level < AckLevel.FSYNC:
            self._announce()
        if disk is not None:
            self._after_write(disk)

    def _after_write(self, disk: _Disk) -> None:
        if self.config.sync_mode is SyncMode.PERIODIC:
            self._arm("sync", self.config.fsync_interval_ms / 1000, self._sync_now)
        if disk.pos >= self.config.max_bytes:
            self._rotate_now()
        elif self.config.max_hours is not None:
            self._arm("rotate", self.config.max_hours * 3600, self._rotate_now)

    def _write_parts(self, disk: _Disk, parts: Sequence[Frames]) -> None:
        """Append parts to the active file; after a short write or an error, cut back to where they began."""
        size = sum(len(part) for part in parts)
        try:
            taken = self._append_in_turns(disk.file, parts)
        except OSError as error:
            self._cut_back(disk)
            if error.errno in _NO_SPACE:
                raise DiskFullError(self.config.name) from error
            self._poisoned(f"writing {disk.active.path.name} failed: {error.strerror}")
            raise PoisonedError(self.config.name, self._poison) from error
        if taken < size:
            # A short write means that the next one would fail; the frame it cut must not stay.
            self._cut_back(disk)
            raise DiskFullError(self.config.name)
        disk.pos += size

    def _append_in_turns(self, file: File, parts: Sequence[Frames]) -> int:
        """Write at most max_batch_bytes a call; stops at a short write."""
        taken = 0
        at = 0
        while at < len(parts):
            turn = [parts[at]]
            size = len(parts[at])
            at += 1
            while at < len(parts) and size + len(parts[at]) <= self.config.max_batch_bytes:
                turn.append(parts[at])
                size += len(parts[at])
                at += 1
            wrote = file.append(turn)
            taken += wrote
            if wrote < size:
                break
        return taken

    def _cut_back(self, disk: _Disk) -> None:
        try:
            disk.file.truncate(disk.pos)
        except OSError as error:
            self._poisoned(f"cutting {disk.active.path.name} back to its last whole frame failed: {error.strerror}")
            raise PoisonedError(self.config.name, self._poison) from error

    def _begin_file(self) -> None:
        """Give a new file its opening marker, which carries the nonce of all its markers."""
        disk = self._disk
        if disk is not None and disk.pos == 0:
            self._mark(disk, self._next, 0)

    def _mark(self, disk: _Disk, synced_offset: int, synced_pos: int) -> None:
        """Write a marker; when there is no room, the next sync writes another."""
        marker = Marker(disk.nonce, disk.pos, synced_offset, synced_pos)
        try:
            self._write_parts(disk, [encode_marker(marker, self._next)])
        except DiskFullError:
            log.warning("marker_not_written", log=self.config.name, offset=synced_offset)
        except PoisonedError:
            return  # every waiter has been told
        else:
            disk.attested = synced_offset

    # --- inside: one job at a time for the disk -----------------------------------------------------------------------

    def _rotating(self) -> bool:
        return self._job == "rotate"

    def _sync_now(self) -> None:
        if self._next > self._synced and not self._poison:
            self._start_sync()

    def _rotate_now(self) -> None:
        self._rotate_wanted = True
        self._next_job()

    def _arm(self, name: str, delay_s: float, then: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self._loop.call_later(delay_s, self._timer, name, then)

    def _timer(self, name: str, then: Callable[[], None]) -> None:
        del self._timers[name]
        then()

    async def _wait_synced(self, offset: int) -> None:
        if self._disk is None or self._synced >= offset:
            return
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._sync_waiters.append((offset, waiter))
        self._next_job()
        await waiter

    async def _wait_jobs(self) -> None:
        if self._jobs_done is None:
            self._jobs_done = self._loop.create_future()
        await asyncio.shield(self._jobs_done)

    def _next_job(self) -> None:
        """Start what the disk should do next, if it is doing nothing."""
        if self._job or self._poison or self._disk is None or self._closed:
            return
        if self._rotate_wanted:
            self._start_rotation(self._disk)
        elif any(offset > self._synced for offset, _ in self._sync_waiters):
            self._start_sync()

    def _start_sync(self) -> None:
        disk = self._disk
        if self._job or disk is None or self._closed:
            return
        self._job = "sync"
        target = (self._next, disk.pos)
        job = self._loop.run_in_executor(None, disk.file.sync)
        job.add_done_callback(partial(self._sync_done, disk, target))

    def _sync_done(self, disk: _Disk, target: tuple[int, int], job: asyncio.Future[None]) -> None:
        error = job.exception()
        if error is not None:
            # Not retried: after a failed sync Linux marks the pages clean, so a second call succeeds for data that
            # never reached the disk (docs/faults.md, F8).
            self._sync_failed(f"syncing {disk.active.path.name} failed: {_said(error)}")
        else:
            offset, pos = target
            self._synced_up_to(offset)
            if offset > disk.attested:
                self._mark(disk, offset, pos)
        self._job_ended()

    def _synced_up_to(self, offset: int) -> None:
        self._synced = offset
        waiting = self._sync_waiters
        self._sync_waiters = []
        for wanted, waiter in waiting:
            if wanted > offset:
                self._sync_waiters.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(wanted - 1)
        if self.config.ack_level >= AckLevel.FSYNC:
            self._announce()

    def _start_rotation(self, disk: _Disk) -> None:
        self._rotate_wanted = False
        timer = self._timers.pop("rotate", None)
        if timer is not None:
            timer.cancel()
        self._job = "rotate"
        segment = Segment(
            disk.active.seq + 1, self._next, disk.directory / disk.names.name(disk.active.seq + 1, self._next)
        )
        checkpoint = dump_checkpoint(_sealed_files(disk.segments, self._next))
        job = self._loop.run_in_executor(None, _rotate_files, disk, segment.path, checkpoint)
        job.add_done_callback(partial(self._rotation_done, disk, segment, self._next))

    def _rotation_done(self, disk: _Disk, segment: Segment, offset: int, job: asyncio.Future[File]) -> None:
        error = job.exception()
        if isinstance(error, _NoRoomToRotateError):
            # The old file is synced and goes on; the next append tries again.
            self._synced_up_to(offset)
            full = DiskFullError(self.config.name)
            _fail(self._rotate_waiters, full)
            if self._tick is not None:
                _fail(self._tick.waiters, full)
                self._tick = None
        elif error is not None:
            self._sync_failed(f"rotating {disk.active.path.name} failed: {_said(error)}")
        else:
            disk.file.close()
            disk.file, disk.pos, disk.nonce = job.result(), 0, self._clock.wall_us()
            log.info(
                "file_sealed", log=self.config.name, file=disk.active.path.name, start=disk.active.first, stop=offset
            )
            disk.segments.append(segment)
            self._synced_up_to(offset)
            self._begin_file()
            for waiter in self._rotate_waiters:
                if not waiter.done():
                    waiter.set_result(offset)
        self._rotate_waiters = []
        self._job_ended()

    def _job_ended(self) -> None:
        self._job = ""
        self._flush()
        self._next_job()
        if self._jobs_done is not None:
            self._jobs_done.set_result(None)
            self._jobs_done = None

    # --- inside: failure and notice -----------------------------------------------------------------------------------

    def _sync_failed(self, cause: str) -> None:
        waiting = [waiter for _, waiter in self._sync_waiters] + self._rotate_waiters
        self._sync_waiters = []
        _fail(waiting, SyncFailedError(self.config.name, cause))
        self._poisoned(cause)

    def _poisoned(self, cause: str) -> None:
        """Take nothing more, and tell everyone who waits."""
        if self._poison:
            return
        self._poison = cause
        log.error("log_poisoned", log=self.config.name, cause=cause)
        _fail([waiter for _, waiter in self._sync_waiters], SyncFailedError(self.config.name, cause))
        self._sync_waiters = []
        _fail(self._rotate_waiters, PoisonedError(self.config.name, cause))
        if self._tick is not None:
            _fail(self._tick.waiters, PoisonedError(self.config.name, cause))
            self._tick = None

    def _announce(self) -> None:
        """Wake every reader that waits at the end."""
        for news in self._news:
            if not news.done():
                news.set_result(None)
        self._news.clear()

    def _close_files(self, disk: _Disk) -> None:
        try:
            if not self._poison:
                self._seal_close(disk)
        finally:
            disk.file.close()
            disk.opened.lock.release()

    def _seal_close(self, disk: _Disk) -> None:
        """Make the closing marker durable too, so that rot in this file is told from a torn tail from now on."""
        if disk.attested == self._synced == self._next:
            disk.file.sync()
        _write_checkpoint(
            disk.files, disk.directory, dump_checkpoint(_sealed_files(disk.segments[:-1], disk.active.first))
        )


class _NoRoomToRotateError(Exception):
    """The old file is synced, but there is no room for a new one."""


def _sealed(pieces: list[bytes], start: int, stop: int) -> Chunk:
    frames = bytearray().join(pieces)
    kernels.seal(np.frombuffer(frames, np.uint8), len(frames))
    return Chunk(frames, start, stop)


def _sealed_files(segments: Sequence[Segment], stop: int) -> list[SealedFile]:
    stops = [segment.first for segment in segments[1:]] + [stop]
    return [
        SealedFile(segment.seq, segment.first, end, segment.append_time_us, tuple(segment.index))
        for segment, end in zip(segments, stops, strict=True)
    ]


def _rotate_files(disk: _Disk, path: Path, checkpoint: bytes) -> File:
    """Sync the old file, make the new one and its name durable; the order is the point (F11)."""
    disk.file.sync()
    try:
        file = disk.files.create(path)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _NoRoomToRotateError from error
        raise
    disk.files.sync_directory(disk.directory)
    _write_checkpoint(disk.files, disk.directory, checkpoint)
    return file


def _write_checkpoint(files: Files, directory: Path, checkpoint: bytes) -> None:
    try:
        replace_file(files, directory / CHECKPOINT_NAME, checkpoint)
    except OSError as error:
        log.warning("checkpoint_not_written", directory=str(directory), cause=error.strerror)  # it is only a cache


def _remove_files(files: Files, directory: Path, paths: list[Path]) -> None:
    for path in paths:
        files.remove(path)
        files.sync_directory(directory)


def _abandon(opening: asyncio.Future[OpenedLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        opened.active.close()
        opened.lock.release()


def _fail(waiters: Sequence[asyncio.Future[int]], error: IsterError) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
            waiter.exception()  # a waiter that was cancelled meanwhile is no reason for a warning


def _said(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
