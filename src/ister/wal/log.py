"""The write-ahead log: append, levels, reading, pruning, and what happens when the disk says no.

One writer, dense offsets. All state changes happen on the event loop; the disk is asked for anything slow from a thread, by
one job at a time (`jobs`). Appends of one loop iteration become one write. docs/adr/0004 has the acknowledgement levels,
docs/adr/0005 the ownership.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ister.core.errors import (
    IsterError,
    LogClosedError,
    OffsetOutOfRangeError,
    SyncFailedError,
    WriteFailedError,
)
from ister.ports.background import in_background
from ister.ports.clock import SystemClock
from ister.ports.files import OsFiles, as_busy, said
from ister.wal.active import NOT_STORED, ActiveFiles, BrokenFileError
from ister.wal.cache import FrameCache
from ister.wal.config import AckLevel, SyncMode, WalConfig
from ister.wal.directory import FileNames
from ister.wal.jobs import TAKES_FILE, DiskJobs
from ister.wal.opening import get_ready, open_log
from ister.wal.pending import CHUNK_BYTES, Tick, arrow_chunks, message_chunks
from ister.wal.pruning import Pruner
from ister.wal.reader import WalReader, read_raw
from ister.wal.waiters import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ister.core.columns import Chunk
    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.core.segment import Place, RawRun
    from ister.ports.clock import Clock
    from ister.ports.files import Files, Lock
    from ister.ports.progress import Progress
    from ister.wal.directory import OpenedLog, Resume, Segment
    from ister.wal.waiters import Waiter


class Wal(DiskJobs):
    """An append-only log of messages with dense offsets; `await Wal.with_config(WalConfig(...))` opens one."""

    def __init__(self, config: WalConfig, clock: Clock, opened: OpenedLog | None, disk: ActiveFiles | None) -> None:
        """Use `with_config`, which recovers what is on disk first."""
        super().__init__(config, clock, disk, opened.next_offset if opened else 0)
        self.recovered_offset = self._next
        self._append_time_us = opened.append_time_us if opened else 0
        self._flush_bytes = min(config.max_batch_bytes, CHUNK_BYTES)
        self._cache = FrameCache(config.cache_capacity, self._next)
        self._tick: Tick | None = None
        self._pruner = Pruner(disk, config.name) if disk else None
        self._close_job: asyncio.Task[None] | None = None

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
        """Open a log: own its directory, recover what is there, and bring an unsynced tail to safety.

        `resume` is where a later tier ends that provably holds everything before: a log that is behind starts there.
        `within` is a lock that the caller holds on a directory above.
        """
        clock = clock or SystemClock()
        await get_ready()
        directory = config.dir
        if directory is None:
            return cls(config, clock, None, None)
        assert not isinstance(directory, str), "WalConfig makes it a path"
        files = files or OsFiles()
        async with nullcontext() if files.slots is None else files.slots.opening():
            opened = await open_log(files, directory, config, clock.wall_us(), resume, within)
            names = FileNames.of(config.file_name)
            disk: ActiveFiles | None = None
            try:
                disk = ActiveFiles(files, directory, names, opened, write_bytes_max=config.max_batch_bytes)
                wal = cls(config, clock, opened, disk)
                wal._attest(disk.begin, wal._next)
                if wal._slots is not None and not disk.resting:
                    wal._slots.hold(wal)
            except BaseException as error:
                opened.abandon()
                if disk is not None:
                    disk.worker.close()
                busy = as_busy(error, config.name, f"open {directory}") if isinstance(error, OSError) else None
                if busy is None:
                    raise
                raise busy from error
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
    def append_time_us(self) -> int:
        """The append time of the newest message, 0 when there is none."""
        return self._append_time_us

    @property
    def active_bytes(self) -> int:
        """How many bytes the active file has, 0 in memory."""
        return self._disk.pos if self._disk else 0

    @property
    def log_bytes(self) -> int:
        """How many bytes all its files have, 0 in memory."""
        disk = self._disk
        return disk.pos + sum(segment.size for segment in disk.segments[:-1]) if disk else 0

    @property
    def appended(self) -> int:
        """How many messages were appended since it was opened."""
        return self._next - self.recovered_offset

    @property
    def appended_bytes(self) -> int:
        """How many bytes their frames have."""
        return self._written_bytes.value

    @property
    def pruned_files(self) -> int:
        """How many files were pruned since it was opened."""
        return self._pruner.files_gone if self._pruner else 0

    @property
    def append_progress(self) -> Progress:
        """How many bytes of messages were appended since the log was opened, for whoever waits for more."""
        return self._written_bytes

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def poison(self) -> str:
        """Why it takes nothing more until it is opened again; empty while it does."""
        return self._poison

    @property
    def cache(self) -> FrameCache:
        """The newest frames."""
        return self._cache

    @property
    def files(self) -> Files:
        """The file system that the log's files are on."""
        assert self._disk is not None, "a log in memory has no files"
        return self._disk.files

    def not_before(self, append_time_us: int) -> None:
        """Stamp no message earlier than this, which a later tier has seen."""
        self._append_time_us = max(self._append_time_us, append_time_us)

    def segments(self) -> list[Segment]:
        """Return the log's files, oldest first; the last one is being written."""
        return list(self._disk.segments) if self._disk else []

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the file that holds an offset, and the offset at which its messages end (a bound for the last)."""
        segments = self._disk.segments if self._disk else []
        for index in range(len(segments) - 1, -1, -1):
            if segments[index].first <= offset:
                return segments[index], segments[index + 1].first if index + 1 < len(segments) else self._next
        return None

    # --- append -------------------------------------------------------------------------------------------------------

    async def append(self, message: StreamMessage) -> int:
        """Store one message; returns its offset once it has reached the log's level.

        Cancelling does not take it back: it is stored, and the caller does not know.
        """
        waits_for_sync = self._waits_for_sync
        while self._closing or self._poison or (self._tick is not None and self._tick.size >= self._flush_bytes):
            await self._admit()
        tick = self._tick
        if tick is None:
            tick = self._tick = Tick(self._next, self._stamp())
            self._loop.call_soon(self._flush)
        waiter: Waiter = self._loop.create_future()
        tick.add(message, waiter)
        if tick.size >= self._flush_bytes:
            self._flush()
        if waits_for_sync and not self._waits_for_sync:
            return await self._synced_too(waiter)  # the level was lowered before its turn came; the promise stands
        return await waiter

    async def _synced_too(self, waiter: Waiter) -> int:
        offset = await waiter
        await self._wait_synced(offset + 1)
        return offset

    async def append_batch(self, messages: Sequence[StreamMessage]) -> range:
        """Store many messages in one write, all or none; returns their offsets."""
        return await self._append_chunks(partial(message_chunks, messages))

    async def append_arrow(self, batch: pa.RecordBatch) -> range:
        """Store a record batch in one write, all or none; returns the rows' offsets.

        Columns are those of `ister.core.columns.SCHEMA`; only `payload` is required.
        """
        return await self._append_chunks(partial(arrow_chunks, batch))

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

    async def set_level(self, level: AckLevel | None) -> None:
        """Have appends wait for another level from now on; None is what `sync_mode` implies.

        What was given before keeps its promise. A higher level counts at once; this returns when all that readers have
        seen has reached it, too: they are not made to unsee it.
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
            self._visible.reach(self._next)

    async def rotate(self) -> None:
        """Seal the active file and start the next; does nothing when it has no messages yet."""
        await self.flush()
        self._refuse()
        if self._disk is None or self._disk.active.first == self._next:
            return
        waiter: Waiter = self._loop.create_future()
        self._waiters.rotated.append(waiter)
        self._rotate_now()
        await waiter

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`, oldest first; returns the new start offset.

        A file that the disk refuses to delete stays part of the log; the next call tries again.
        """
        if self._pruner is None:
            return self.start_offset
        await self._pruner.ended()
        self._refuse()
        await self._pruner.prune(before)
        return self.start_offset

    async def close(self) -> None:
        """Sync everything, let go of the directory, and end every reader; a poisoned log is only let go of.

        It goes on when its caller is cancelled; whoever calls again waits for the same end.
        """
        if self._close_job is None:
            self._close_job = asyncio.create_task(self._close())
        await asyncio.shield(self._close_job)

    async def _close(self) -> None:
        self._closing = True
        failure: IsterError | None = None
        try:
            while not self._poison and (
                self._tick is not None or (self._disk is not None and self._synced < self._next)
            ):
                self._flush()
                await (self._wait_synced(self._next) if self._tick is None else self._wait_job())
        except IsterError as error:
            failure = error
        while self._job:
            await self._wait_job()
        if self._pruner is not None:
            await self._pruner.ended()
        self._timers.disarm()
        self._mark()
        self._closed = True
        self._visible.end()
        self._written_bytes.end()
        if self._disk is not None:
            let_go = self._disk.abandon if self._poison else self._disk.close
            try:
                await asyncio.shield(self._loop.run_in_executor(None, let_go))
            except OSError as error:
                failure = failure or SyncFailedError(self.config.name, f"closing it failed: {said(error)}")
            finally:
                self._disk.worker.close()
                self._give_slot_back()
        if failure is not None:
            raise failure

    # --- read ---------------------------------------------------------------------------------------------------------

    def create_reader(self, position: StartPosition) -> WalReader:
        """Read from a position on: files, then memory, then whatever comes, in order, each message once."""
        if self._closed:
            raise LogClosedError(self.config.name)
        offset = self._next if position.at is None else position.at
        if not self.start_offset <= offset <= self._next:
            raise OffsetOutOfRangeError(offset, self.start_offset, self._next)
        return WalReader(self, offset)

    async def wait_beyond(self, offset: int) -> None:
        """Return once the visible offset is above `offset`, or the log was closed."""
        await self._visible.wait(offset + 1)

    async def read_raw(self, offset: int, hint: Place | None, bytes_max: int) -> RawRun:
        """Return bytes of the file that holds `offset`, from its frame on, unchecked; `hint` is where that may be."""
        found = self.locate(offset) if offset >= self.start_offset else None
        if found is None:
            raise OffsetOutOfRangeError(offset, self.start_offset, self._next)
        reading = partial(read_raw, self.files, *found, offset, hint, bytes_max)
        return await in_background(reading)

    # --- inside: writing ----------------------------------------------------------------------------------------------

    def _stamp(self) -> int:
        """Return the time for messages stored now; never before that of the message before."""
        return max(self._append_time_us, self._clock.wall_us())

    def _refuse(self) -> None:
        self._refuse_poisoned()
        if self._closing:
            raise LogClosedError(self.config.name)

    async def _admit(self) -> None:
        """Refuse when closed or poisoned; else wait for the job that keeps the pending messages from being written."""
        self._refuse()
        if self._job:
            await self._wait_job()

    async def _append_chunks(self, encode: Callable[[int, int], list[Chunk]]) -> range:
        waits_for_sync = self._waits_for_sync
        await self.flush()
        self._refuse()
        while self._job in TAKES_FILE or (self._disk is not None and self._disk.resting):
            await self._wait_file()
            await self.flush()
            self._refuse()
        start, append_time_us = self._next, self._stamp()
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
            self._next_job()  # the file may be wanted elsewhere, and have been held for this alone
        stop = chunks[-1].stop
        if waits_for_sync or self._waits_for_sync:
            await self._wait_synced(stop)
        return range(start, stop)

    def _flush(self) -> None:
        """Write what is pending as one write, unless the file is not there just now."""
        tick = self._tick
        if tick is None or self._job in TAKES_FILE:
            return
        if self._disk is not None and self._disk.resting:
            self._start_open()
            return
        self._tick = None
        waiters = tick.waiters
        if not waiters:
            return
        try:
            self._refuse_poisoned()
            self._write([tick.chunk()], tick.append_time_us)
        except NOT_STORED as error:
            self._refuse_durably(waiters, error)
        except IsterError as error:
            fail(waiters, error)
        except Exception as bug:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            self._poisoned_by(bug)
            fail(waiters, WriteFailedError(self.config.name, self._poison))
        else:
            if self._waits_for_sync:
                self._waiters.synced += zip(range(tick.start + 1, tick.stop + 1), waiters, strict=True)
                self._next_job()
            else:
                for offset, waiter in enumerate(waiters, tick.start):
                    if not waiter.done():
                        waiter.set_result(offset)

    def _write(self, chunks: list[Chunk], append_time_us: int) -> None:
        """Write chunks whole, or leave the file as it was and raise."""
        disk = self._disk
        try:
            if disk is not None:
                disk.write(chunks, append_time_us, self.config.name)
            for chunk in chunks:
                self._cache.add(chunk)
        except NOT_STORED:
            raise
        except BrokenFileError as error:
            self._poisoned(str(error))
            raise WriteFailedError(self.config.name, self._poison) from error
        except Exception as bug:
            # The frames may be in the file: another append must not write their offsets a second time.
            self._poisoned_by(bug)
            raise WriteFailedError(self.config.name, self._poison) from bug
        self._next = chunks[-1].stop
        self._written_bytes.reach(self._written_bytes.value + sum(len(chunk.frames) for chunk in chunks))
        self._append_time_us = append_time_us
        if not self._waits_for_sync:
            self._visible.reach(self._next)
        if disk is None:
            return
        if self._slots is not None:
            self._slots.used(self, self._loop.time())
        if self.config.sync_mode is SyncMode.PERIODIC:
            self._timers.arm("sync", self.config.fsync_interval_ms / 1000, self._sync_now)
        if disk.pos >= self.config.max_bytes:
            if not self._timers.armed("rotate again"):
                self._rotate_now()
        elif self.config.max_hours is not None:
            self._timers.arm("rotate", self.config.max_hours * 3600, self._rotate_now)

    def _refuse_durably(self, waiters: Sequence[Waiter], error: IsterError) -> None:
        """Say no only once the cut is on disk: else a power loss could bring back what was refused."""
        self._waiters.refused.append((waiters, error))
        self._next_job()

    def _fail_pending(self, error: IsterError) -> None:
        """Refuse what was given and not written yet."""
        tick, self._tick = self._tick, None
        if tick is not None:
            fail(tick.waiters, error)
