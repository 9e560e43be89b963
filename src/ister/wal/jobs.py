"""What a log asks of its disk, one thing at a time: sync, the next file, rest; and who waits for it.

All state changes happen on the event loop. A job runs in a thread and is answered there. While the active file is exchanged,
closed or opened, nothing is written; what is given meanwhile waits for the end of that job.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from ister.core.errors import DiskFullError, IsterError, PoisonedError, SyncFailedError
from ister.ports.files import said
from ister.ports.progress import Progress
from ister.wal.active import ActiveFiles, BrokenFileError, NotOpenedError, NotRotatedError, sealed_files
from ister.wal.config import AckLevel, WalConfig
from ister.wal.pending import MARK_S, SyncTarget
from ister.wal.timers import Timers
from ister.wal.waiters import Waiters, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.ports.clock import Clock
    from ister.ports.files import File
    from ister.wal.directory import Segment
    from ister.wal.waiters import Waiter

log = structlog.get_logger()

ROTATE_AGAIN_S = 1.0
"""How long after a rotation for which there was no descriptor or memory the next one is tried."""
TAKES_FILE = frozenset({"rotate", "rest", "open"})
"""Jobs while which nothing can be written: the active file is exchanged for the next one, closed, or opened."""


class DiskJobs:
    """How far a log is written, synced and seen, and what its disk is doing; Wal is the log itself."""

    def __init__(self, config: WalConfig, clock: Clock, disk: ActiveFiles | None, next_offset: int) -> None:
        self.config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._slots = disk.files.slots if disk else None
        self._next = self._synced = self._shown = next_offset
        self._waits_for_sync = disk is not None and config.ack_level >= AckLevel.FSYNC
        self._visible = Progress(next_offset)
        self._written_bytes = Progress(0)
        self.syncs = self.rotations = 0
        self.sync_seconds = 0.0
        self._waiters = Waiters()
        self._job = ""
        self._rotate_wanted = self._sync_wanted = self._rest_wanted = False
        self._file_wanted = 0
        self._not_opened: NotOpenedError | None = None
        self._unmarked: SyncTarget | None = None
        self._timers = Timers()
        self._closing = self._closed = False
        self._poison = ""

    @property
    def synced_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._synced if self._disk else 0

    @property
    def visible_offset(self) -> int:
        """Readers see what is below: what has reached the log's level."""
        return max(self._shown, self._synced) if self._waits_for_sync else self._next

    def rest(self) -> None:
        """Let go of the active file until something is appended, as soon as all of it is durable."""
        self._rest_wanted = True
        self._next_job()

    # --- for the log --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what is pending, unless the file is not there just now."""
        raise NotImplementedError

    def _fail_pending(self, error: IsterError) -> None:
        """Refuse what was given and not written yet."""
        raise NotImplementedError

    def _refuse_poisoned(self) -> None:
        if self._poison:
            raise PoisonedError(self.config.name, self._poison)

    def _sync_now(self) -> None:
        self._sync_wanted = self._next > self._synced
        self._next_job()

    def _rotate_now(self) -> None:
        self._rotate_wanted = True
        self._next_job()

    async def _wait_synced(self, offset: int) -> None:
        if self._disk is None or self._synced >= offset:
            return
        if self._poison:
            raise SyncFailedError(self.config.name, self._poison)  # it is written, and nobody will sync it
        waiter: Waiter = self._loop.create_future()
        self._waiters.synced.append((offset, waiter))
        self._next_job()
        await waiter

    async def _wait_job(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.job.append(waiter)
        await waiter

    async def _wait_file(self) -> None:
        """Return when the active file may be there; it does not go before its caller had its turn."""
        self._start_open()
        self._file_wanted += 1
        try:
            await self._wait_job()
        except asyncio.CancelledError:
            self._loop.call_soon(self._next_job)
            raise
        finally:
            self._file_wanted -= 1
        if self._not_opened is not None:
            raise self._not_opened

    def _next_job(self) -> None:
        """Start what the disk should do next, if it is doing nothing."""
        if self._rotate_wanted:
            self._start_rotation()
        if self._rest_wanted and not self._waiters.refused and not self._file_wanted:
            self._start_rest()
        if self._sync_wanted or self._waiters.want_sync(self._synced):
            self._start_sync()

    def _run(self, disk: ActiveFiles, work: Callable[[], Any], done: Callable[..., None]) -> None:
        try:
            disk.worker.run(work, partial(self._answer, done))
        except OSError as error:
            self._answer(done, None, error)

    def _answer(self, done: Callable[..., None], result: Any, error: BaseException | None) -> None:
        """Act on what a disk operation has returned; a bug there poisons the log, so that nobody waits for ever."""
        try:
            done(result, error)
        except Exception as bug:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            self._poisoned_by(bug)
            self._job = ""
            self._waiters.tell_job_ended()

    def _poisoned_by(self, bug: Exception) -> None:
        log.error("callback_failed", caller=self.config.name, exc_info=bug)
        self._poisoned(f"an unexpected error in the broker: {bug!r}")

    def _start_sync(self) -> None:
        disk = self._disk
        if self._job or self._poison or self._closed or disk is None:
            return
        self._job = "sync"
        self._sync_wanted = False
        target = SyncTarget(self._next, disk.pos, self._waiters.refused)
        self._waiters.refused = []
        done = partial(self._sync_done, disk, target)
        if len(self._waiters.synced) == 1 and disk.files.pace.may_wait_here(self, self._loop.time()):
            self._answer(done, *disk.sync_here())
        else:
            self._run(disk, disk.sync, done)

    def _sync_done(self, disk: ActiveFiles, target: SyncTarget, seconds: float, error: BaseException | None) -> None:
        if error is not None:
            # Not retried: after a failed sync Linux marks the pages clean, so a second call succeeds for data that
            # never reached the disk (docs/faults.md, F8).
            self._waiters.refused += target.refused
            self._poisoned(f"syncing {disk.active.path.name} failed: {said(error)}")
        else:
            disk.files.pace.took(self, self._loop.time(), seconds)
            self.syncs += 1
            self.sync_seconds += seconds
            for waiters, refusal in target.refused:
                fail(waiters, refusal)
            self._synced_up_to(target.offset)
            self._unmarked = target
            self._timers.arm("mark", MARK_S, self._mark)
        self._job_ended()

    def _synced_up_to(self, offset: int) -> None:
        self._synced = offset
        self._waiters.tell_synced(offset)
        if self._waits_for_sync:
            self._visible.reach(self.visible_offset)

    def _start_rotation(self) -> None:
        disk = self._disk
        if self._job or self._poison or self._closed or disk is None:
            return
        if disk.resting and disk.active.first < self._next:
            self._start_open()
            return
        self._rotate_wanted = False
        self._timers.disarm("rotate", "rotate again")
        if disk.active.first == self._next:
            self._waiters.tell_rotated(self._next)
            return
        segment = disk.following(self._next)
        make_next = partial(disk.make_next, segment.path, sealed_files(disk.segments, self._next), self.config.name)
        self._job = "rotate"
        self._run(disk, make_next, partial(self._rotation_done, disk, segment))

    def _rotation_done(self, disk: ActiveFiles, segment: Segment, file: File, error: BaseException | None) -> None:
        if isinstance(error, NotRotatedError):
            # The old file goes on; on a full disk the next append tries again.
            self._synced_up_to(segment.first)
            self._waiters.fail_rotated(error.refusal)
            if isinstance(error.refusal, DiskFullError):
                self._fail_pending(error.refusal)
            else:
                log.warning("rotation_postponed", log=self.config.name, cause=error.refusal.cause)
                self._timers.arm("rotate again", ROTATE_AGAIN_S, self._rotate_now)
        elif error is not None:
            self._poisoned(f"rotating {disk.active.path.name} failed: {said(error)}")
        else:
            sealed, self._unmarked = disk.active, None
            disk.switch(segment, file, self._clock.wall_us())
            self.rotations += 1
            log.info("file_sealed", log=self.config.name, file=sealed.path.name, start=sealed.first, stop=segment.first)
            self._synced_up_to(segment.first)
            self._attest(disk.begin, self._next)
            self._waiters.tell_rotated(segment.first)
        self._job_ended()

    def _start_rest(self) -> None:
        disk = self._disk
        if self._job or self._poison or self._closing or self._closed or disk is None:
            return
        self._rest_wanted = False
        if disk.resting:
            return
        self._job = "rest"
        self._run(disk, partial(disk.rest, self._next, self.config.name), partial(self._rest_done, disk))

    def _rest_done(self, disk: ActiveFiles, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._poisoned(f"closing {disk.active.path.name} failed: {said(error)}")
        else:
            self._unmarked, self._sync_wanted = None, False
            self._synced_up_to(self._next)
            self._give_slot_back()
        self._job_ended()

    def _start_open(self) -> None:
        """Open the active file again, once there is a slot for it."""
        disk = self._disk
        if self._job or self._poison or self._closed or disk is None:
            return
        assert self._slots is not None, "only for its slot's sake a file was closed"
        self._job, self._not_opened = "open", None
        self._slots.take(self, partial(self._run, disk, disk.wake, partial(self._open_done, disk)))

    def _open_done(self, disk: ActiveFiles, _: None, error: BaseException | None) -> None:
        if isinstance(error, BrokenFileError):
            self._poisoned(str(error))
        elif error is not None:
            self._give_slot_back()
            self._not_opened = NotOpenedError(self.config.name, disk.active.path.name, said(error))
            self._rotate_wanted = False
            self._waiters.fail_rotated(self._not_opened)
            self._fail_pending(self._not_opened)
        self._job_ended()

    def _give_slot_back(self) -> None:
        if self._slots is not None:
            self._slots.give_back(self)

    def _job_ended(self) -> None:
        self._job = ""
        self._flush()
        self._next_job()
        self._waiters.tell_job_ended()

    def _mark(self) -> None:
        """Attest what was synced last; not while the file is exchanged or closed, which attests it all."""
        disk, target = self._disk, self._unmarked
        if disk is None or target is None or self._poison or self._job in TAKES_FILE:
            return
        if target.offset > disk.attested:
            self._attest(disk.mark, self._next, target.offset, target.pos)

    def _attest(self, write: Callable[..., None], *arguments: int) -> None:
        """Write a marker, which nobody waits for."""
        try:
            write(*arguments, log_name=self.config.name)
        except BrokenFileError as error:
            self._poisoned(str(error))

    def _poisoned(self, cause: str) -> None:
        """Take nothing more, and tell everyone who waits."""
        self._poison = cause
        self._give_slot_back()
        log.error("log_poisoned", log=self.config.name, cause=cause)
        self._waiters.fail_all(SyncFailedError(self.config.name, cause))
        self._fail_pending(PoisonedError(self.config.name, cause))
