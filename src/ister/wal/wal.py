"""Write-ahead log: append, acknowledgement levels, rotation, pruning, reading, and what a failing disk does to it.

One writer, dense offsets. All state changes happen on the event loop. Messages appended in one iteration of the loop
become one write batch. The slow disk operations (sync, rotate, close and reopen the active file) run in a worker thread,
one at a time; while one exchanges, closes or opens the active file, nothing is written and appends wait for its end.
docs/adr/0004 has the acknowledgement levels, docs/adr/0005 the ownership.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import structlog

from ister.aio.background import in_background
from ister.aio.watermark import Watermark
from ister.core.errors import (
    CorruptLogError,
    DiskFullError,
    IsterError,
    LogClosedError,
    MissingFileError,
    OffsetOutOfRangeError,
    PoisonedError,
    SyncFailedError,
    WriteFailedError,
)
from ister.core.frames.recover import Verdict
from ister.core.frames.warm import warm
from ister.ports.clock import SystemClock
from ister.ports.files.files import OsFiles, as_busy, error_text
from ister.wal.active_files import (
    NOT_STORED,
    ActiveFiles,
    BrokenFileError,
    NotOpenedError,
    NotRotatedError,
    sealed_files,
)
from ister.wal.cache import FrameCache
from ister.wal.config import AckLevel, SyncMode, WalConfig
from ister.wal.directory import FileNames, locate, open_directory, scan_file
from ister.wal.reader import WalReader, read_raw
from ister.wal.waiters import Waiters, fail
from ister.wal.write_batch import CHUNK_BYTES, SyncTarget, WriteBatch, arrow_chunks, message_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from ister.core.frames.columns import Chunk
    from ister.core.frames.segment import LogPosition, RawRun
    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.ports.clock import Clock
    from ister.ports.files.files import File, Files, Lock
    from ister.wal.directory import OpenedLog, Resume, Segment
    from ister.wal.waiters import Waiter

log = structlog.get_logger()

MARK_S = 0.01
"""The marker of a sync is written at most this much later: one for all syncs of that time."""
ROTATE_RETRY_S = 1.0
"""Delay of the next rotation after one that failed for want of a descriptor or memory."""
WITHOUT_FILE = frozenset({"rotate", "close", "open"})
"""Disk operations during which nothing can be written: they exchange, close or open the active file."""


class Wal:
    """An append-only log of messages with dense offsets; `await Wal.with_config(WalConfig(...))` opens one."""

    def __init__(self, config: WalConfig, clock: Clock, opened: OpenedLog | None, disk: ActiveFiles | None) -> None:
        """Use `with_config`, which recovers the files first."""
        next_offset = opened.next_offset if opened else 0
        self.config = config
        self.recovered_offset = next_offset
        self.next_offset = next_offset
        """The offset of the next message."""
        self.append_time_us = opened.append_time_us if opened else 0
        """The append time of the newest message, 0 without messages."""
        self.append_watermark = Watermark(0)
        """The bytes of messages appended since the log was opened."""
        self.cache = FrameCache(config.cache_capacity, next_offset)
        """The newest frames."""
        self.closed = False
        self.poison = ""
        """Why it accepts no messages until it is reopened; empty while it does."""
        self.syncs = self.rotations = self.pruned_files = 0
        self.sync_seconds = 0.0
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._open_files = disk.files.open_files if disk else None
        self._synced = self._shown = next_offset
        self._waits_for_sync = disk is not None and config.ack_level >= AckLevel.FSYNC
        self._visible = Watermark(next_offset)
        self._flush_bytes = min(config.max_batch_bytes, CHUNK_BYTES)
        self._batch: WriteBatch | None = None
        self._waiters = Waiters()
        self._operation = ""
        self._rotate_wanted = self._sync_wanted = self._close_wanted = False
        self._file_users = 0
        self._not_opened: NotOpenedError | None = None
        self._unmarked: SyncTarget | None = None
        self._timers = Timers()
        self._closing = False
        self._close_task: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None

    @classmethod
    async def with_config(
        cls,
        config: WalConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        resume: Resume | None = None,
        within: Lock | None = None,
    ) -> Wal:
        """Open a log: lock its directory, recover its files, and make an unsynced tail durable.

        `resume` is the end of a later tier that provably holds everything before: a log that ends earlier starts there.
        `within` is a lock that the caller holds on a parent directory.
        """
        clock = clock or SystemClock()
        if not warm.cache_info().currsize:
            await asyncio.get_running_loop().run_in_executor(None, warm)
        directory = config.dir
        if directory is None:
            return cls(config, clock, None, None)
        assert not isinstance(directory, str), "WalConfig makes it a path"
        files = files or OsFiles()
        async with nullcontext() if files.open_files is None else files.open_files.opening():
            opened = await _open_log(files, directory, config, clock.wall_us(), resume, within)
            names = FileNames.of(config.file_name)
            disk: ActiveFiles | None = None
            try:
                disk = ActiveFiles(files, directory, names, opened, write_bytes_max=config.max_batch_bytes)
                wal = cls(config, clock, opened, disk)
                wal._attest(disk.begin, wal.next_offset)
                if wal._open_files is not None and not disk.active_closed:
                    wal._open_files.hold(wal)
            except BaseException as error:
                opened.abandon()
                if disk is not None:
                    disk.worker.close()
                busy = as_busy(error, config.name, f"open {directory}") if isinstance(error, OSError) else None
                if busy is None:
                    raise
                raise busy from error
        return wal

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._disk.segments[0].first if self._disk else self.cache.start

    @property
    def synced_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._synced if self._disk else 0

    @property
    def visible_offset(self) -> int:
        """Readers see what is below: what has reached the log's level."""
        return max(self._shown, self._synced) if self._waits_for_sync else self.next_offset

    @property
    def active_bytes(self) -> int:
        """The size of the active file, 0 in memory."""
        return self._disk.pos if self._disk else 0

    @property
    def log_bytes(self) -> int:
        """The size of all files, 0 in memory."""
        disk = self._disk
        return disk.pos + sum(segment.size for segment in disk.segments[:-1]) if disk else 0

    @property
    def appended(self) -> int:
        """The number of messages appended since the log was opened."""
        return self.next_offset - self.recovered_offset

    @property
    def appended_bytes(self) -> int:
        """The size of their frames."""
        return self.append_watermark.value

    @property
    def files(self) -> Files:
        """The file system that the log's files are on."""
        assert self._disk is not None, "a log in memory has no files"
        return self._disk.files

    def not_before(self, append_time_us: int) -> None:
        """Stamp no message earlier than this time of a later tier's message."""
        self.append_time_us = max(self.append_time_us, append_time_us)

    def segments(self) -> list[Segment]:
        """Return the log's files, oldest first; the last one is being written."""
        return list(self._disk.segments) if self._disk else []

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end (a bound for the last)."""
        return locate(self._disk.segments, offset, self.next_offset) if self._disk else None

    async def load_append_times(self) -> None:
        """Read the sealed files whose append time is unknown, because the checkpoint was lost; the next one has it."""
        for segment, after in pairwise(self.segments()):
            if segment.append_time_us or segment.first == after.first:
                continue
            try:
                found = await self._loop.run_in_executor(None, scan_file, self.files, segment, after.first)
            except MissingFileError:
                if segment in self.segments():
                    raise
                continue  # pruned meanwhile
            if found.verdict is Verdict.CORRUPT:
                raise CorruptLogError(str(segment.path), found.end, found.next_offset, found.reason)
            segment.append_time_us = found.append_time_us

    # --- append -------------------------------------------------------------------------------------------------------

    async def append(self, message: StreamMessage) -> int:
        """Store one message; return its offset once it has reached the log's level.

        Cancellation does not revoke it: the message is stored, and the caller does not learn its offset.
        """
        waits_for_sync = self._waits_for_sync
        while self._closing or self.poison or (self._batch is not None and self._batch.size >= self._flush_bytes):
            await self._admit()
        batch = self._batch
        if batch is None:
            batch = self._batch = WriteBatch(self.next_offset, self._stamp())
            self._loop.call_soon(self._flush)
        waiter: Waiter = self._loop.create_future()
        batch.add(message, waiter)
        if batch.size >= self._flush_bytes:
            self._flush()
        if waits_for_sync and not self._waits_for_sync:
            return await self._synced_too(waiter)  # the level was lowered meanwhile; the promise stands
        return await waiter

    async def _synced_too(self, waiter: Waiter) -> int:
        offset = await waiter
        await self._wait_synced(offset + 1)
        return offset

    async def append_batch(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages in one write, all or none; return their offsets."""
        return await self._append_chunks(partial(message_chunks, messages))

    async def append_arrow(self, batch: pa.RecordBatch) -> range:
        """Store a record batch in one write, all or none; return the rows' offsets.

        Columns are those of `ister.core.frames.columns.SCHEMA`; only `payload` is required.
        """
        return await self._append_chunks(partial(arrow_chunks, batch))

    async def flush(self) -> None:
        """Return once every message appended so far is written to the kernel."""
        self._flush()
        while self._batch is not None:
            await self._admit()
            self._flush()

    async def sync(self) -> int:
        """Return the synced offset once every message appended so far survives power loss."""
        await self.flush()
        self._refuse_poisoned()
        await self._wait_synced(self.next_offset)
        return self._synced

    async def set_level(self, level: AckLevel | None) -> None:
        """Make later appends wait for another level; None is what `sync_mode` implies.

        Earlier appends keep their level. A higher level counts at once; this returns when all that readers have seen
        has reached it, so that nothing visible becomes invisible.
        """
        config = replace(self.config, level=level)
        await self.flush()
        self._refuse()
        self._shown = self.visible_offset
        self.config = config
        self._waits_for_sync = self._disk is not None and config.ack_level >= AckLevel.FSYNC
        if self._waits_for_sync:
            await self._wait_synced(self._shown)
        else:
            self._visible.reach(self.next_offset)

    async def rotate(self) -> None:
        """Seal the active file and start the next; do nothing if it has no messages yet."""
        await self.flush()
        self._refuse()
        if self._disk is None or self._disk.active.first == self.next_offset:
            return
        waiter: Waiter = self._loop.create_future()
        self._waiters.rotated.append(waiter)
        self._rotate_now()
        await waiter

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`, oldest first; return the new start offset.

        The log starts behind them at once. A file that cannot be deleted becomes part of the log again; the next call
        tries again.
        """
        if self._disk is None:
            return self.start_offset
        await self._pruning_ended()
        self._refuse()
        segments = self._disk.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].first <= before:
            count += 1
        doomed, segments[:] = segments[:count], segments[count:]
        if doomed:
            self._pruning = asyncio.create_task(self._remove(self._disk, doomed))
            await asyncio.shield(self._pruning)
        return self.start_offset

    async def _pruning_ended(self) -> None:
        """Wait for a running deletion: a file must never be deleted before an older one, or the log has a hole."""
        while self._pruning is not None and not self._pruning.done():
            await asyncio.wait({self._pruning})  # its caller gets its exception

    async def _remove(self, disk: ActiveFiles, doomed: list[Segment]) -> None:
        removed = 0
        try:
            removed = await self._loop.run_in_executor(None, disk.remove, doomed)
        finally:
            disk.segments[:0] = doomed[removed:]
        self.pruned_files += removed
        size = sum(segment.size for segment in doomed[:removed])
        log.info("log_pruned", log=self.config.name, files=removed, bytes=size, start=disk.segments[0].first)

    async def close(self) -> None:
        """Sync everything, release the directory, and end every reader; a poisoned log is only released.

        Cancelling the caller does not stop it; a second call waits for the same end.
        """
        if self._close_task is None:
            self._close_task = asyncio.create_task(self._close())
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        self._closing = True
        failure: IsterError | None = None
        try:
            while not self.poison and (
                self._batch is not None or (self._disk is not None and self._synced < self.next_offset)
            ):
                self._flush()
                await (self._wait_synced(self.next_offset) if self._batch is None else self._wait_idle())
        except IsterError as error:
            failure = error
        while self._operation:
            await self._wait_idle()
        await self._pruning_ended()
        self._timers.disarm()
        self._mark()
        self.closed = True
        self._visible.end()
        self.append_watermark.end()
        if self._disk is not None:
            release = self._disk.abandon if self.poison else self._disk.close
            try:
                await asyncio.shield(self._loop.run_in_executor(None, release))
            except OSError as error:
                failure = failure or SyncFailedError(self.config.name, f"closing it failed: {error_text(error)}")
            finally:
                self._disk.worker.close()
                self._release_file()
        if failure is not None:
            raise failure

    # --- read ---------------------------------------------------------------------------------------------------------

    def create_reader(self, position: StartPosition) -> WalReader:
        """Return a reader from a position on: files, then memory, then new messages, in order, each once."""
        if self.closed:
            raise LogClosedError(self.config.name)
        offset = self.next_offset if position.at is None else position.at
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.next_offset)
        return WalReader(self, offset)

    async def wait_beyond(self, offset: int) -> None:
        """Return once the visible offset is above `offset`, or the log was closed."""
        await self._visible.wait(offset + 1)

    async def read_raw(self, offset: int, hint: LogPosition | None, bytes_max: int) -> RawRun:
        """Return bytes of the file that holds `offset`, from its frame on, unchecked; `hint` is where that may be."""
        found = self.locate(offset) if offset >= self.start_offset else None
        if found is None:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.next_offset)
        return await in_background(partial(read_raw, self.files, *found, offset, hint, bytes_max))

    # --- writing ------------------------------------------------------------------------------------------------------

    def _stamp(self) -> int:
        """Return the append time for messages stored now, never before that of the newest message."""
        return max(self.append_time_us, self._clock.wall_us())

    def _refuse(self) -> None:
        self._refuse_poisoned()
        if self._closing:
            raise LogClosedError(self.config.name)

    async def _admit(self) -> None:
        """Raise if closed or poisoned; else wait for the disk operation that keeps the write batch from being written."""
        self._refuse()
        if self._operation:
            await self._wait_idle()

    async def _append_chunks(self, encode: Callable[[int, int], list[Chunk]]) -> range:
        waits_for_sync = self._waits_for_sync
        await self.flush()
        self._refuse()
        while self._operation in WITHOUT_FILE or (self._disk is not None and self._disk.active_closed):
            await self._wait_file()
            await self.flush()
            self._refuse()
        start, append_time_us = self.next_offset, self._stamp()
        try:
            chunks = encode(start, append_time_us)
            if not chunks:
                return range(start, start)
            self._write(chunks, append_time_us)
        except NOT_STORED as error:
            waiter: Waiter = self._loop.create_future()
            self._refuse_durably([waiter], error)
            await waiter
        finally:
            self._start_next()  # a close of the file may have waited for this append
        stop = chunks[-1].stop
        if waits_for_sync or self._waits_for_sync:
            await self._wait_synced(stop)
        return range(start, stop)

    def _flush(self) -> None:
        """Write the write batch, unless the active file is not open."""
        batch = self._batch
        if batch is None or self._operation in WITHOUT_FILE:
            return
        if self._disk is not None and self._disk.active_closed:
            self._start_open()
            return
        self._batch = None
        waiters = batch.waiters
        if not waiters:
            return
        try:
            self._refuse_poisoned()
            self._write([batch.chunk()], batch.append_time_us)
        except NOT_STORED as error:
            self._refuse_durably(waiters, error)
        except IsterError as error:
            fail(waiters, error)
        except Exception as bug:  # noqa: BLE001  # a waiter must never wait for ever
            self._poisoned_by(bug)
            fail(waiters, WriteFailedError(self.config.name, self.poison))
        else:
            if self._waits_for_sync:
                self._waiters.synced += zip(range(batch.start + 1, batch.stop + 1), waiters, strict=True)
                self._start_next()
            else:
                for offset, waiter in enumerate(waiters, batch.start):
                    if not waiter.done():
                        waiter.set_result(offset)

    def _write(self, chunks: list[Chunk], append_time_us: int) -> None:
        """Write chunks whole, or leave the file as it was and raise."""
        disk = self._disk
        try:
            if disk is not None:
                disk.write(chunks, append_time_us, self.config.name)
            for chunk in chunks:
                self.cache.add(chunk)
        except NOT_STORED:
            raise
        except BrokenFileError as error:
            self._poisoned(str(error))
            raise WriteFailedError(self.config.name, self.poison) from error
        except Exception as bug:
            # The frames may be in the file: another append must not write their offsets a second time.
            self._poisoned_by(bug)
            raise WriteFailedError(self.config.name, self.poison) from bug
        self.next_offset = chunks[-1].stop
        self.append_watermark.reach(self.append_watermark.value + sum(len(chunk.frames) for chunk in chunks))
        self.append_time_us = append_time_us
        if not self._waits_for_sync:
            self._visible.reach(self.next_offset)
        if disk is None:
            return
        if self._open_files is not None:
            self._open_files.touch(self, self._loop.time())
        if self.config.sync_mode is SyncMode.PERIODIC:
            self._timers.arm("sync", self.config.fsync_interval_ms / 1000, self._sync_now)
        if disk.pos >= self.config.max_bytes:
            if not self._timers.armed("rotate_retry"):
                self._rotate_now()
        elif self.config.max_hours is not None:
            self._timers.arm("rotate", self.config.max_hours * 3600, self._rotate_now)

    def _refuse_durably(self, waiters: Sequence[Waiter], error: IsterError) -> None:
        """Fail waiters once the truncation is synced: else a power loss could bring back what was refused."""
        self._waiters.refused.append((waiters, error))
        self._start_next()

    def _fail_pending(self, error: IsterError) -> None:
        """Fail the messages that are not written yet."""
        batch, self._batch = self._batch, None
        if batch is not None:
            fail(batch.waiters, error)

    # --- disk operations ----------------------------------------------------------------------------------------------

    def close_active(self) -> None:
        """Close the active file as soon as all of it is durable; the next append reopens it."""
        self._close_wanted = True
        self._start_next()

    def _refuse_poisoned(self) -> None:
        if self.poison:
            raise PoisonedError(self.config.name, self.poison)

    def _sync_now(self) -> None:
        self._sync_wanted = self.next_offset > self._synced
        self._start_next()

    def _rotate_now(self) -> None:
        self._rotate_wanted = True
        self._start_next()

    async def _wait_synced(self, offset: int) -> None:
        if self._disk is None or self._synced >= offset:
            return
        if self.poison:
            raise SyncFailedError(self.config.name, self.poison)  # it is written, and will not be synced
        waiter: Waiter = self._loop.create_future()
        self._waiters.synced.append((offset, waiter))
        self._start_next()
        await waiter

    async def _wait_idle(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.idle.append(waiter)
        await waiter

    async def _wait_file(self) -> None:
        """Return when the active file may be open; it is not closed before the caller has run."""
        self._start_open()
        self._file_users += 1
        try:
            await self._wait_idle()
        except asyncio.CancelledError:
            self._loop.call_soon(self._start_next)
            raise
        finally:
            self._file_users -= 1
        if self._not_opened is not None:
            raise self._not_opened

    def _start_next(self) -> None:
        """Start the next disk operation, if none is running."""
        if self._rotate_wanted:
            self._start_rotation()
        if self._close_wanted and not self._waiters.refused and not self._file_users:
            self._start_close()
        if self._sync_wanted or self._waiters.want_sync(self._synced):
            self._start_sync()

    def _idle_disk(self) -> ActiveFiles | None:
        """Return the disk if an operation may start on it."""
        return None if self._operation or self.poison or self.closed else self._disk

    def _run(self, disk: ActiveFiles, work: Callable[[], Any], done: Callable[..., None]) -> None:
        try:
            disk.worker.run(work, partial(self._complete, done))
        except OSError as error:
            self._complete(done, None, error)

    def _complete(self, done: Callable[..., None], result: Any, error: BaseException | None) -> None:
        """Handle the result of a disk operation; a bug there poisons the log, so that no waiter waits for ever."""
        try:
            done(result, error)
        except Exception as bug:  # noqa: BLE001  # a waiter must never wait for ever
            self._poisoned_by(bug)
            self._operation = ""
            self._waiters.resolve_idle()

    def _poisoned_by(self, bug: Exception) -> None:
        log.error("callback_failed", caller=self.config.name, exc_info=bug)
        self._poisoned(f"an unexpected error in the broker: {bug!r}")

    def _start_sync(self) -> None:
        disk = self._idle_disk()
        if disk is None:
            return
        self._operation = "sync"
        self._sync_wanted = False
        target = SyncTarget(self.next_offset, disk.pos, self._waiters.refused)
        self._waiters.refused = []
        done = partial(self._sync_done, disk, target)
        if len(self._waiters.synced) == 1 and disk.files.sync_latency.may_block_loop(self, self._loop.time()):
            self._complete(done, *disk.sync_blocking())
        else:
            self._run(disk, disk.sync, done)

    def _sync_done(self, disk: ActiveFiles, target: SyncTarget, seconds: float, error: BaseException | None) -> None:
        if error is not None:
            # Not retried: after a failed sync Linux marks the pages clean, so a second call succeeds for data that
            # never reached the disk (docs/faults.md, F8).
            self._waiters.refused += target.refused
            self._poisoned(f"syncing {disk.active.path.name} failed: {error_text(error)}")
        else:
            disk.files.sync_latency.observe(self, self._loop.time(), seconds)
            self.syncs += 1
            self.sync_seconds += seconds
            for waiters, refusal in target.refused:
                fail(waiters, refusal)
            self._synced_up_to(target.offset)
            self._unmarked = target
            self._timers.arm("mark", MARK_S, self._mark)
        self._operation_ended()

    def _synced_up_to(self, offset: int) -> None:
        self._synced = offset
        self._waiters.resolve_synced(offset)
        if self._waits_for_sync:
            self._visible.reach(self.visible_offset)

    def _start_rotation(self) -> None:
        disk = self._idle_disk()
        if disk is None:
            return
        if disk.active_closed and disk.active.first < self.next_offset:
            self._start_open()
            return
        self._rotate_wanted = False
        self._timers.disarm("rotate", "rotate_retry")
        if disk.active.first == self.next_offset:
            self._waiters.resolve_rotated(self.next_offset)
            return
        segment = disk.following(self.next_offset)
        make_next = partial(
            disk.make_next, segment.path, sealed_files(disk.segments, self.next_offset), self.config.name
        )
        self._operation = "rotate"
        self._run(disk, make_next, partial(self._rotation_done, disk, segment))

    def _rotation_done(self, disk: ActiveFiles, segment: Segment, file: File, error: BaseException | None) -> None:
        if isinstance(error, NotRotatedError):
            # The old file stays active; on a full disk the next append tries again.
            self._synced_up_to(segment.first)
            self._waiters.fail_rotated(error.refusal)
            if isinstance(error.refusal, DiskFullError):
                self._fail_pending(error.refusal)
            else:
                log.warning("rotation_postponed", log=self.config.name, cause=error.refusal.cause)
                self._timers.arm("rotate_retry", ROTATE_RETRY_S, self._rotate_now)
        elif error is not None:
            self._poisoned(f"rotating {disk.active.path.name} failed: {error_text(error)}")
        else:
            sealed, self._unmarked = disk.active, None
            disk.switch(segment, file, self._clock.wall_us())
            self.rotations += 1
            log.info("file_sealed", log=self.config.name, file=sealed.path.name, start=sealed.first, stop=segment.first)
            self._synced_up_to(segment.first)
            self._attest(disk.begin, self.next_offset)
            self._waiters.resolve_rotated(segment.first)
        self._operation_ended()

    def _start_close(self) -> None:
        disk = self._idle_disk()
        if disk is None or self._closing:
            return
        self._close_wanted = False
        if disk.active_closed:
            return
        self._operation = "close"
        self._run(disk, partial(disk.close_active, self.next_offset, self.config.name), partial(self._close_done, disk))

    def _close_done(self, disk: ActiveFiles, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._poisoned(f"closing {disk.active.path.name} failed: {error_text(error)}")
        else:
            self._unmarked, self._sync_wanted = None, False
            self._synced_up_to(self.next_offset)
            self._release_file()
        self._operation_ended()

    def _start_open(self) -> None:
        """Reopen the active file, once the bound on open files allows it."""
        disk = self._idle_disk()
        if disk is None:
            return
        assert self._open_files is not None, "a file is closed only for the bound on open files"
        self._operation, self._not_opened = "open", None
        self._open_files.acquire(self, partial(self._run, disk, disk.reopen_active, partial(self._open_done, disk)))

    def _open_done(self, disk: ActiveFiles, _: None, error: BaseException | None) -> None:
        if isinstance(error, BrokenFileError):
            self._poisoned(str(error))
        elif error is not None:
            self._release_file()
            self._not_opened = NotOpenedError(self.config.name, disk.active.path.name, error_text(error))
            self._rotate_wanted = False
            self._waiters.fail_rotated(self._not_opened)
            self._fail_pending(self._not_opened)
        self._operation_ended()

    def _release_file(self) -> None:
        if self._open_files is not None:
            self._open_files.release(self)

    def _operation_ended(self) -> None:
        self._operation = ""
        self._flush()
        self._start_next()
        self._waiters.resolve_idle()

    def _mark(self) -> None:
        """Attest the last sync; not while the file is exchanged or closed, which attests all of it."""
        disk, target = self._disk, self._unmarked
        if disk is None or target is None or self.poison or self._operation in WITHOUT_FILE:
            return
        if target.offset > disk.attested:
            self._attest(disk.mark, self.next_offset, target.offset, target.pos)

    def _attest(self, write: Callable[..., None], *arguments: int) -> None:
        """Write a marker; a failure has no caller, so it poisons the log."""
        try:
            write(*arguments, log_name=self.config.name)
        except BrokenFileError as error:
            self._poisoned(str(error))

    def _poisoned(self, cause: str) -> None:
        """Accept no more messages, and fail every waiter."""
        self.poison = cause
        self._release_file()
        log.error("log_poisoned", log=self.config.name, cause=cause)
        self._waiters.fail_all(SyncFailedError(self.config.name, cause))
        self._fail_pending(PoisonedError(self.config.name, cause))


class Timers:
    """Named timers on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._armed: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay_s`, unless this timer is armed already."""
        if name not in self._armed:
            self._armed[name] = self._loop.call_later(delay_s, self._fire, name, then)

    def armed(self, name: str) -> bool:
        """Return True if this timer is armed."""
        return name in self._armed

    def disarm(self, *names: str) -> None:
        """Stop these timers, all of them without names."""
        for name in names or list(self._armed):
            timer = self._armed.pop(name, None)
            if timer is not None:
                timer.cancel()

    def _fire(self, name: str, then: Callable[[], None]) -> None:
        del self._armed[name]
        then()


async def _open_log(
    files: Files, directory: Path, config: WalConfig, nonce: int, resume: Resume | None, within: Lock | None
) -> OpenedLog:
    """Open the directory in a thread."""
    names = FileNames.of(config.file_name)
    opening = asyncio.get_running_loop().run_in_executor(
        None, open_directory, files, directory, names, nonce, config.name, resume, within
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread outlives the cancellation; close what it opens, or the directory lock leaks.
        opening.add_done_callback(_abandon)
        raise


def _abandon(opening: asyncio.Future[OpenedLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
