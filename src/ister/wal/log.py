"""The write-ahead log: append, group commit, rotation, and what happens when the disk says no.

One writer, dense offsets. All state changes happen on the event loop; the disk is asked for anything slow (sync,
rotation, pruning) from a thread, by one job at a time. Appends of one loop iteration become one write. docs/adr/0004
has the acknowledgement levels, docs/adr/0005 the ownership.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import (
    DiskFullError,
    IsterError,
    LogClosedError,
    OffsetOutOfRangeError,
    PoisonedError,
    SyncFailedError,
    WriteFailedError,
)
from ister.core.warm import warm
from ister.ports.background import in_background
from ister.ports.clock import SystemClock
from ister.ports.files import OsFiles, said
from ister.ports.progress import Progress
from ister.wal.active import ActiveFiles, BrokenFileError, NoRoomToRotateError, sealed_files
from ister.wal.cache import FrameCache
from ister.wal.config import AckLevel, SyncMode, WalConfig
from ister.wal.directory import FileNames, OpenedLog, Resume, Segment, open_directory
from ister.wal.pending import CHUNK_BYTES, MARK_S, SyncTarget, Tick, arrow_chunks, fail, message_chunks
from ister.wal.reader import WalReader, read_raw
from ister.wal.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ister.core.columns import Chunk
    from ister.core.message import StreamMessage
    from ister.core.offsets import StartPosition
    from ister.core.segment import Place, RawRun
    from ister.ports.clock import Clock
    from ister.ports.files import File, Files
    from ister.wal.pending import Refusals, Waiter

log = structlog.get_logger()


class Wal:
    """An append-only log of messages with dense offsets; `await Wal.with_config(WalConfig(...))` opens one."""

    def __init__(self, config: WalConfig, clock: Clock, opened: OpenedLog | None, disk: ActiveFiles | None) -> None:
        """Use `with_config`, which recovers what is on disk first."""
        self.config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._next = self._synced = self.recovered_offset = opened.next_offset if opened else 0
        self._append_time_us = opened.append_time_us if opened else 0
        self._waits_for_sync = disk is not None and config.ack_level >= AckLevel.FSYNC
        self._flush_bytes = min(config.max_batch_bytes, CHUNK_BYTES)
        self._cache = FrameCache(config.cache_capacity, self._next)
        self._tick: Tick | None = None
        self._sync_waiters: list[tuple[int, Waiter]] = []
        self._rotate_waiters: list[Waiter] = []
        self._refused: Refusals = []
        self._visible = Progress(self._next)
        self._written_bytes = 0
        self._synced_bytes = Progress(0)
        self._job = ""
        self._job_waiters: list[asyncio.Future[None]] = []
        self._rotate_wanted = self._sync_wanted = False
        self._unmarked: SyncTarget | None = None
        self._timers = Timers()
        self._closing = self._closed = False
        self._close_job: asyncio.Task[None] | None = None
        self._prune_job: asyncio.Task[None] | None = None
        self._poison = ""

    @classmethod
    async def with_config(
        cls, config: WalConfig, *, files: Files | None = None, clock: Clock | None = None, resume: Resume | None = None
    ) -> Wal:
        """Open a log: own its directory, recover what is there, and bring an unsynced tail to safety.

        `resume` is where a later tier ends that provably holds everything before: a log that is behind starts there.
        """
        clock = clock or SystemClock()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, warm)
        directory = config.dir
        if directory is None:
            return cls(config, clock, None, None)
        assert not isinstance(directory, str), "WalConfig makes it a path"
        files = files or OsFiles()
        names = FileNames.of(config.file_name)
        opening = loop.run_in_executor(
            None, open_directory, files, directory, names, clock.wall_us(), config.name, resume
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on; whatever it opens must be let go again, or nobody can ever open this log.
            opening.add_done_callback(_abandon)
            raise
        disk = ActiveFiles(files, directory, names, opened, write_bytes_max=config.max_batch_bytes)
        wal = cls(config, clock, opened, disk)
        wal._attest(disk.begin, wal._next)
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
        return self._synced if self._waits_for_sync else self._next

    @property
    def append_time_us(self) -> int:
        """The append time of the newest message, 0 when there is none."""
        return self._append_time_us

    @property
    def active_bytes(self) -> int:
        """How many bytes the active file has, 0 in memory."""
        return self._disk.pos if self._disk else 0

    @property
    def synced_bytes(self) -> Progress:
        """How many bytes of messages were appended and synced since the log was opened."""
        return self._synced_bytes

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

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
        return await waiter

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

    async def rotate(self) -> None:
        """Seal the active file and start the next; does nothing when it has no messages yet."""
        await self.flush()
        self._refuse()
        if self._disk is None or self._disk.active.first == self._next:
            return
        waiter: Waiter = self._loop.create_future()
        self._rotate_waiters.append(waiter)
        self._rotate_now()
        await waiter

    async def prune(self, before: int) -> int:
        """Delete sealed files that hold only offsets below `before`, oldest first; returns the new start offset.

        A file that the disk refuses to delete stays part of the log; the next call tries again.
        """
        disk = self._disk
        if disk is None:
            return self.start_offset
        while self._prune_job is not None and not self._prune_job.done():
            # One after the other: a file must never go before an older one, or the log has a hole.
            await asyncio.shield(self._prune_job)
        self._refuse()
        count = 0
        while count + 1 < len(disk.segments) and disk.segments[count + 1].first <= before:
            count += 1
        doomed, disk.segments[:] = disk.segments[:count], disk.segments[count:]
        if doomed:
            self._prune_job = asyncio.create_task(self._remove(disk, doomed))
            await asyncio.shield(self._prune_job)
        return self.start_offset

    async def _remove(self, disk: ActiveFiles, doomed: list[Segment]) -> None:
        gone = await self._loop.run_in_executor(None, disk.remove, doomed)
        disk.segments[:0] = doomed[gone:]
        size = sum(segment.size for segment in doomed[:gone])
        log.info("log_pruned", log=self.config.name, files=gone, bytes=size, start=self.start_offset)

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
        if self._prune_job is not None:
            await self._prune_job
        self._timers.disarm()
        self._mark()
        self._closed = True
        self._visible.end()
        self._synced_bytes.end()
        if self._disk is not None:
            let_go = self._disk.abandon if self._poison else self._disk.close
            try:
                await asyncio.shield(self._loop.run_in_executor(None, let_go))
            except OSError as error:
                failure = failure or SyncFailedError(self.config.name, f"closing it failed: {said(error)}")
            self._disk.worker.close()
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
            await self._wait_job()

    async def _append_chunks(self, encode: Callable[[int, int], list[Chunk]]) -> range:
        await self.flush()
        self._refuse()
        while self._job == "rotate":
            await self._admit()
            await self.flush()
            self._refuse()
        start, append_time_us = self._next, self._stamp()
        chunks = encode(start, append_time_us)
        if not chunks:
            return range(start, start)
        stop = chunks[-1].stop
        try:
            self._write(chunks, append_time_us)
        except DiskFullError as error:
            waiter: Waiter = self._loop.create_future()
            self._refuse_durably([waiter], error)
            await waiter
        if self._waits_for_sync:
            await self._wait_synced(stop)
        return range(start, stop)

    def _flush(self) -> None:
        """Write what is pending as one write, unless the file is just being exchanged for the next one."""
        tick = self._tick
        if tick is None or self._job == "rotate":
            return
        self._tick = None
        waiters = tick.waiters
        if not waiters:
            return
        try:
            self._refuse_poisoned()
            self._write([tick.chunk()], tick.append_time_us)
        except DiskFullError as error:
            self._refuse_durably(waiters, error)
        except IsterError as error:
            fail(waiters, error)
        else:
            if self._waits_for_sync:
                self._sync_waiters += zip(range(tick.start + 1, tick.stop + 1), waiters, strict=True)
                self._next_job()
            else:
                for offset, waiter in enumerate(waiters, tick.start):
                    if not waiter.done():
                        waiter.set_result(offset)

    def _write(self, chunks: list[Chunk], append_time_us: int) -> None:
        """Write chunks whole, or leave the file as it was and raise."""
        disk = self._disk
        if disk is not None:
            try:
                disk.write(chunks, append_time_us, self.config.name)
            except BrokenFileError as error:
                self._poisoned(str(error))
                raise WriteFailedError(self.config.name, self._poison) from error
        for chunk in chunks:
            self._cache.add(chunk)
            self._written_bytes += len(chunk.frames)
        self._next = chunks[-1].stop
        self._append_time_us = append_time_us
        if not self._waits_for_sync:
            self._visible.reach(self._next)
        if disk is None:
            return
        if self.config.sync_mode is SyncMode.PERIODIC:
            self._timers.arm("sync", self.config.fsync_interval_ms / 1000, self._sync_now)
        if disk.pos >= self.config.max_bytes:
            self._rotate_now()
        elif self.config.max_hours is not None:
            self._timers.arm("rotate", self.config.max_hours * 3600, self._rotate_now)

    def _mark(self) -> None:
        """Attest what was synced last; not while the file is exchanged, which attests it all."""
        disk, target = self._disk, self._unmarked
        if disk is None or target is None or self._poison or self._job == "rotate":
            return
        if target.offset > disk.attested:
            self._attest(disk.mark, self._next, target.offset, target.pos)

    def _attest(self, write: Callable[..., None], *arguments: int) -> None:
        """Write a marker, which nobody waits for."""
        try:
            write(*arguments, log_name=self.config.name)
        except BrokenFileError as error:
            self._poisoned(str(error))

    def _refuse_durably(self, waiters: Sequence[Waiter], error: DiskFullError) -> None:
        """Say no only once the cut is on disk: else a power loss could bring back what was refused."""
        self._refused.append((waiters, error))
        self._next_job()

    # --- inside: one job at a time for the disk -----------------------------------------------------------------------

    def _sync_now(self) -> None:
        self._sync_wanted = self._next > self._synced
        self._next_job()

    def _rotate_now(self) -> None:
        self._rotate_wanted = True
        self._next_job()

    async def _wait_synced(self, offset: int) -> None:
        if self._disk is None or self._synced >= offset:
            return
        waiter: Waiter = self._loop.create_future()
        self._sync_waiters.append((offset, waiter))
        self._next_job()
        await waiter

    async def _wait_job(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._job_waiters.append(waiter)
        await waiter

    def _next_job(self) -> None:
        """Start what the disk should do next, if it is doing nothing."""
        if self._rotate_wanted:
            self._start_rotation()
        if self._refused or self._sync_wanted or any(offset > self._synced for offset, _ in self._sync_waiters):
            self._start_sync()

    def _start_sync(self) -> None:
        disk = self._disk
        if self._job or self._poison or self._closed or disk is None:
            return
        self._job = "sync"
        self._sync_wanted = False
        target = SyncTarget(self._next, disk.pos, self._written_bytes, self._refused)
        self._refused = []
        done = partial(self._sync_done, disk, target)
        if len(self._sync_waiters) == 1 and disk.files.pace.may_wait_here(self, self._loop.time()):
            done(*disk.sync_here())
        else:
            disk.worker.run(disk.sync, done)

    def _sync_done(self, disk: ActiveFiles, target: SyncTarget, seconds: float, error: BaseException | None) -> None:
        if error is not None:
            # Not retried: after a failed sync Linux marks the pages clean, so a second call succeeds for data that
            # never reached the disk (docs/faults.md, F8).
            self._refused += target.refused
            self._poisoned(f"syncing {disk.active.path.name} failed: {said(error)}")
        else:
            disk.files.pace.took(self, self._loop.time(), seconds)
            for waiters, refusal in target.refused:
                fail(waiters, refusal)
            self._synced_up_to(target.offset, target.written)
            self._unmarked = target
            self._timers.arm("mark", MARK_S, self._mark)
        self._job_ended()

    def _synced_up_to(self, offset: int, count: int) -> None:
        self._synced = offset
        self._synced_bytes.reach(count)
        waiting, self._sync_waiters = self._sync_waiters, []
        for wanted, waiter in waiting:
            if wanted > offset:
                self._sync_waiters.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(wanted - 1)
        if self._waits_for_sync:
            self._visible.reach(offset)

    def _start_rotation(self) -> None:
        disk = self._disk
        if self._job or self._poison or self._closed or disk is None:
            return
        self._rotate_wanted = False
        self._timers.disarm("rotate")
        if disk.active.first == self._next:
            self._rotated(self._next)
            return
        self._job = "rotate"
        segment = disk.following(self._next)
        make_next = partial(disk.make_next, segment.path, sealed_files(disk.segments, self._next))
        disk.worker.run(make_next, partial(self._rotation_done, disk, segment))

    def _rotation_done(self, disk: ActiveFiles, segment: Segment, file: File, error: BaseException | None) -> None:
        if isinstance(error, NoRoomToRotateError):
            # The old file is synced and goes on; the next append tries again.
            self._synced_up_to(segment.first, self._written_bytes)
            full = DiskFullError(self.config.name)
            fail(self._rotate_waiters, full)
            self._rotate_waiters = []
            if self._tick is not None:
                fail(self._tick.waiters, full)
                self._tick = None
        elif error is not None:
            self._poisoned(f"rotating {disk.active.path.name} failed: {said(error)}")
        else:
            sealed, self._unmarked = disk.active, None
            disk.switch(segment, file, self._clock.wall_us())
            log.info("file_sealed", log=self.config.name, file=sealed.path.name, start=sealed.first, stop=segment.first)
            self._synced_up_to(segment.first, self._written_bytes)
            self._attest(disk.begin, self._next)
            self._rotated(segment.first)
        self._job_ended()

    def _rotated(self, offset: int) -> None:
        for waiter in self._rotate_waiters:
            if not waiter.done():
                waiter.set_result(offset)
        self._rotate_waiters = []

    def _job_ended(self) -> None:
        self._job = ""
        self._flush()
        self._next_job()
        waiting, self._job_waiters = self._job_waiters, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _poisoned(self, cause: str) -> None:
        """Take nothing more, and tell everyone who waits."""
        self._poison = cause
        log.error("log_poisoned", log=self.config.name, cause=cause)
        unknown = SyncFailedError(self.config.name, cause)
        fail([waiter for _, waiter in self._sync_waiters], unknown)
        fail(self._rotate_waiters, unknown)
        for waiters, _ in self._refused:
            fail(waiters, unknown)
        self._sync_waiters, self._rotate_waiters, self._refused = [], [], []
        if self._tick is not None:
            fail(self._tick.waiters, PoisonedError(self.config.name, cause))
            self._tick = None


def _abandon(opening: asyncio.Future[OpenedLog]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
