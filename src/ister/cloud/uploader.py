"""Upload of a topic's log to objects: whole, checked, synced frames, in order, each byte once.

Object, then descriptor, then checkpoint; a message counts as uploaded once its object is described. After a crash between
two steps, the next start adopts the object, because it holds the same messages (docs/adr/0007).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from ister.aio.background import in_background
from ister.aio.watermark import Watermark
from ister.cloud.adopt import adopt, same_messages
from ister.core import defaults
from ister.core.errors import (
    Behind,
    BusyError,
    CorruptError,
    CorruptObjectError,
    FencedError,
    ForeignObjectError,
    InvalidConfigError,
    IsterError,
    MissingObjectError,
    MissingOffsetsError,
    NotYetInTierError,
    ObjectExistsError,
    UnknownOutcomeError,
)
from ister.core.frames.checksummed_json import seal, unseal
from ister.core.frames.scanner import FrameScanner
from ister.core.frames.segment import (
    OBJECT_BYTES,
    LogPosition,
    ObjectName,
    describe,
    descriptor_of,
    generation_prefix,
    object_key,
    survey,
)
from ister.core.retry import backoff_s
from ister.ports.files.files import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from ister.cloud.descriptors import ObjectCatalog
    from ister.core.frames.segment import Descriptor, RawRun, Survey
    from ister.ports.files.files import Files
    from ister.ports.objects import CloudStore
    from ister.wal import Wal

log = structlog.get_logger()

UPLOAD_NAME = "upload.json"
CHECKPOINT_VERSION = 1
HURRY_S = 0.1
"""The least time between the starts of two cycles while appends wait for level cloud: they share an object."""
RETRY_S = 1.0
RETRY_MAX_S = 60.0
EQUAL_ANSWERS = 5
"""Consecutive equal errors of the store about a damaged or foreign object, with back-off, before uploads stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadOptions:
    """Interval and size of objects, with the specified defaults."""

    enabled: bool = True
    interval_s: float = defaults.UPLOAD_INTERVAL_S
    max_object_mb: int | None = None

    def __post_init__(self) -> None:
        if not self.interval_s > 0:
            raise InvalidConfigError("interval_seconds", f"{self.interval_s!r} must be more than 0")
        if self.max_object_mb is not None and self.max_object_mb < 1:
            raise InvalidConfigError("max_object_mb", f"{self.max_object_mb!r} must be at least 1")

    @property
    def object_bytes(self) -> int:
        """The largest size of an object, unless one message is larger."""
        cap = OBJECT_BYTES if self.max_object_mb is None else self.max_object_mb * 1024 * 1024
        return min(OBJECT_BYTES, cap)


class Piece(NamedTuple):
    """The bytes of an object, its descriptor, and where the next ones begin in the log."""

    data: memoryview
    name: ObjectName
    descriptor: Descriptor
    next_place: LogPosition


class Uploader:
    """One topic's uploader; `recover`, then `run` as a task, then `drain`.

    If objects are not the last tier, a table has what they lack, and uploads do not wait for missing objects.
    """

    def __init__(
        self,
        wal: Wal,
        store: CloudStore,
        catalog: ObjectCatalog,
        checkpoint: UploadCheckpoint,
        options: UploadOptions,
        *,
        epoch: int = 0,
        is_last_tier: bool = True,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.uploaded = Watermark(0)
        self.problem: IsterError | None = None
        self.missing: MissingObjectError | None = None
        """Set while the last described object is missing and the store has no other of this topic (a disk not mounted?)."""
        self.stopped = False
        self.objects_put = self.bytes_put = self.failed_cycles = 0
        self.put_seconds = 0.0
        self._settling = False
        self._log = wal
        self._store = store
        self._catalog = catalog
        self._checkpoint = checkpoint
        self._options = options
        self._epoch = epoch
        self._is_last_tier = is_last_tier
        self._jitter = jitter
        self._place: LogPosition | None = None
        self._recovered = False
        self._wake = asyncio.Event()
        self._cycle_lock = asyncio.Lock()
        self._failures = 0
        self._equal_errors = 0
        self._last_error = ""
        self._waiting = 0
        self._taken_bytes = 0

    @property
    def topic(self) -> str:
        """The topic of the log."""
        return str(self._catalog.topic)

    @property
    def lasting_problem(self) -> IsterError | None:
        """The error that blocks uploads until an operator acts."""
        return self.problem if self.stopped else self.missing

    # --- recovery -----------------------------------------------------------------------------------------------------

    async def recover(self, *, log_is_open: bool) -> Descriptor | None:
        """Find the next offset to upload, adopting objects without a descriptor; return the last descriptor.

        Before the log is open to producers, objects may be ahead of it; afterwards only what equals the log is adopted.
        """
        return await self.recover_behind(await self._catalog.last(), log_is_open=log_is_open)

    async def recover_behind(self, last: Descriptor | None, *, log_is_open: bool) -> Descriptor | None:
        """Do the same behind the known last descriptor."""
        stop = last.stop if last else 0
        if last is not None and not await self._is_there(last) and self._is_last_tier:
            if not log_is_open:  # the topic opens, and the first cycle checks again
                self.uploaded.reach(stop)
                return last
            await self._put_last_again(last)
        self.missing = None
        adopted = await adopt(
            self._store, self._catalog, self._log, stop, epoch=self._epoch, ahead_allowed=not log_is_open
        )
        last = adopted[-1] if adopted else last
        stop = last.stop if last else await self._first_offset()
        self._place = None
        self.uploaded.reach(stop)
        self._recovered = True
        return last

    async def _is_there(self, last: Descriptor) -> bool:
        """Return True if the last described object is in the store; a missing one is an alarm."""
        key = self._catalog.object_key(last)
        if last.stop <= self._catalog.begin or await self._store.stat(key) is not None:
            return True  # it exists, or does not count
        if self.missing is None:
            log.error("object_missing", topic=self.topic, key=key, start=last.start, stop=last.stop)
        self.missing = MissingObjectError(key, self._store.name)
        return False

    async def _put_last_again(self, last: Descriptor) -> None:
        """Restore the last described objects that are missing, as far as the log has them."""
        await self._refuse_empty_store(last)
        missing: list[Descriptor] = []
        found: Descriptor | None = last
        while found is not None and found.start >= self._log.start_offset and not await self._has(found):
            missing.append(found)
            found = await self._catalog.find(found.start - 1) if found.start else None
        for descriptor in reversed(missing):
            await self._put_again(descriptor)

    async def restore(self, start: int, stop: int) -> bool:
        """Restore missing described objects of [start, stop) that the log has; return True if there was one."""
        async with self._cycle_lock:
            async with aclosing(self._catalog.span(start, stop)) as described:
                in_log = [each async for each in described if each.start >= self._log.start_offset]
            missing = [descriptor for descriptor in in_log if not await self._has(descriptor)]
            for descriptor in missing:
                await self._refuse_empty_store(descriptor)
                await self._put_again(descriptor)
        return bool(missing)

    async def _has(self, descriptor: Descriptor) -> bool:
        return await self._store.stat(self._catalog.object_key(descriptor)) is not None

    async def _refuse_empty_store(self, missing: Descriptor) -> None:
        """Raise MissingObjectError if the store has no object of this topic: perhaps its disk is not mounted."""
        async with aclosing(self._store.list(generation_prefix(self._catalog.topic, self._catalog.generation))) as keys:
            if await anext(keys, None) is None:
                raise MissingObjectError(self._catalog.object_key(missing), self._store.name)

    async def _put_again(self, missing: Descriptor) -> None:
        """Restore a missing described object from the log."""
        name = ObjectName(self._catalog.generation, missing.start, missing.stop)
        key = object_key(self._catalog.topic, *name)
        data: memoryview | bytes = b""
        at = name.start
        while at < name.stop:
            piece = await self._prepare(at, None, name.stop)
            data = b"".join((data, piece.data)) if data else piece.data
            at = piece.name.stop
        # The log may have other markers by now. Descriptor first: a crash in between leaves the object missing, as before.
        described = await in_background(partial(describe, data, key, name, epoch=self._epoch, etag=""))
        await self._catalog.replace(missing, described)
        try:
            await self._store.put_if_absent(key, data)
        except ObjectExistsError:
            there = await same_messages(self._store, key, name, data, self._epoch)
            if there is None:
                raise ForeignObjectError(key, "its messages are others than those in the log") from None
            await self._catalog.replace(described, there)
        log.warning("object_restored", topic=self.topic, key=key, start=name.start, stop=name.stop)

    async def _first_offset(self) -> int:
        """Return the start of the first object: 0, or the log's start if there never was an object."""
        start = self._log.start_offset
        async with aclosing(self._store.list(generation_prefix(self._catalog.topic, self._catalog.generation))) as keys:
            if start == 0 or await anext(keys, None) is not None:
                return 0
        # A retention policy has pruned the log while uploads were off.
        log.warning("objects_begin_late", topic=self.topic, start=start)
        return start

    def continue_with(self, wal: Wal) -> None:
        """Continue with the log that was reopened where objects end."""
        self._log = wal

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run upload cycles until cancelled, or until an error that needs an operator."""
        loop = asyncio.get_running_loop()
        while not self.stopped:
            began = loop.time()
            await self._attempt()
            await self._pause(began)

    async def drain(self) -> None:
        """Upload everything that is synced now; raise the error that prevents it."""
        await self._cycle()

    async def wait_uploaded(self, offset: int, timeout_s: float) -> None:
        """Return once every message below `offset` is in a described object; NotYetInTierError on a timeout."""
        if self.uploaded.value >= offset:
            return
        if self.lasting_problem is not None:
            raise self._not_uploaded(offset, str(self.lasting_problem))
        self.hurry()
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self.uploaded.wait(offset)
        except TimeoutError:
            cause = str(self.problem) if self.problem else f"it took longer than {timeout_s:g} s"
            raise self._not_uploaded(offset, cause) from None
        finally:
            self._waiting -= 1
        if self.uploaded.value < offset:
            raise self._not_uploaded(offset, str(self.problem or "uploading has ended"))

    def _not_uploaded(self, offset: int, cause: str) -> NotYetInTierError:
        return NotYetInTierError("cloud", [Behind(self.topic, self.uploaded.value, offset)], cause)

    def hurry(self) -> None:
        """Start the next cycle soon."""
        self._wake.set()

    async def settle(self, timeout_s: float) -> bool:
        """Start no more puts, and wait for the running one, which cancellation would not stop.

        Return False on a timeout.
        """
        self._settling = True
        try:
            async with asyncio.timeout(timeout_s), self._cycle_lock:
                return True
        except TimeoutError:
            log.warning("put_left_behind", topic=self.topic, offset=self.uploaded.value)
        return False

    def end(self) -> None:
        """Fail the waiters: nothing more is uploaded."""
        self.uploaded.end()

    async def _attempt(self) -> None:
        self._wake.clear()
        try:
            await self._cycle()
        except (CorruptError, FencedError) as error:
            if isinstance(error, MissingObjectError) or self._may_pass(error):
                self._failed(error)
                return
            self.problem, self.stopped = error, True
            self.failed_cycles += 1
            self.uploaded.end()
            log.error("upload_stopped", topic=self.topic, offset=self.uploaded.value, cause=str(error))  # noqa: TRY400  # for operators: the sentence is enough
        except IsterError as error:
            self._failed(error)
        except Exception as error:
            # A defect of ours: without this, the task would end unnoticed.
            self._failed(BusyError(f"unexpected {type(error).__name__}: {error}"))
            log.exception("task_failed", topic=self.topic, task="uploader")
        else:
            self._failures = self._equal_errors = 0
            self._last_error = ""
            self.problem = None

    def _failed(self, error: IsterError) -> None:
        """Record a failed cycle that is retried."""
        self._failures += 1
        self.failed_cycles += 1
        self.problem = error
        log.warning("upload_failed", topic=self.topic, tries=self._failures, cause=str(error))

    def _may_pass(self, error: IsterError) -> bool:
        """Return True for an object error that the store has not repeated often enough: one response proves nothing."""
        if not isinstance(error, CorruptObjectError | ForeignObjectError):
            return False
        self._equal_errors = self._equal_errors + 1 if str(error) == self._last_error else 1
        self._last_error = str(error)
        return self._equal_errors < EQUAL_ANSWERS

    async def _pause(self, began: float) -> None:
        """Wait until the next cycle is due: by time, by bytes, by a waiting append, or as a retry.

        Without new messages there is no timer: an idle topic costs nothing.
        """
        if self.stopped:
            return
        loop = asyncio.get_running_loop()
        if self._failures:
            retry_s = backoff_s(self._failures, RETRY_MAX_S, RETRY_S) * (0.5 + self._jitter() / 2)
            until = loop.time() + min(retry_s, self._options.interval_s)
            # Answers that follow each other at once would not be independent.
            await self._back_off(until, until if self._equal_errors else began + RETRY_S)
            return
        if self._waiting and self.uploaded.value < self._log.next_offset:
            self._wake.set()
        if self.uploaded.value >= self._log.next_offset:
            await self._wait_for(self._log.wait_beyond(self.uploaded.value))
        enough = self._taken_bytes + self._options.object_bytes
        await self._wait_for(self._log.append_watermark.wait(enough), self._options.interval_s)
        if self._wake.is_set():
            await asyncio.sleep(max(0.0, began + HURRY_S - loop.time()))

    async def _wait_for(self, news: Coroutine[None, None, None], timeout_s: float | None = None) -> None:
        """Return at news, when someone waits for an upload, or after a while."""
        waits = {asyncio.ensure_future(news), asyncio.ensure_future(self._wake.wait())}
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _back_off(self, until: float, until_wanted: float) -> None:
        """Wait until the retry is due, which is earlier while an append waits for it."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(until - loop.time()):
                    await self._wake.wait()
        if self._waiting or self._wake.is_set():
            until = min(until, until_wanted)
        await asyncio.sleep(max(0.0, until - loop.time()))

    # --- one cycle ----------------------------------------------------------------------------------------------------

    async def _cycle(self) -> None:
        async with self._cycle_lock:
            if not self._recovered:
                await self.recover(log_is_open=True)
            if self._log.start_offset > self.uploaded.value:
                raise MissingOffsetsError(self.uploaded.value, self._log.start_offset)
            synced = self._log.synced_offset
            self._taken_bytes = self._log.append_watermark.value
            if self._log.next_offset > synced:
                with suppress(BusyError, UnknownOutcomeError):  # earlier syncs still count
                    await self._log.sync()
                synced = self._log.synced_offset
            try:
                await self._upload_to(synced)
            except BaseException:
                self._recovered = False  # an object or a descriptor with a lost response may exist: recover first
                raise

    async def _upload_to(self, synced: int) -> None:
        """Upload object by object; while one is put, the next is read and checked."""
        ahead: asyncio.Task[Piece] | None = None
        if self._place is None and self.uploaded.value < synced:
            saved = await self._checkpoint.load()
            self._place = saved.place if saved is not None and saved.offset == self.uploaded.value else None
        try:
            while self.uploaded.value < synced and not self._settling:
                piece = await (ahead or self._prepare(self.uploaded.value, self._place, synced))
                ahead = None
                if piece.name.stop < synced:
                    ahead = asyncio.create_task(self._prepare(piece.name.stop, piece.next_place, synced))
                await self._upload(piece)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)  # the next cycle meets its error again

    async def _upload(self, piece: Piece) -> None:
        name, descriptor = piece.name, piece.descriptor
        key = object_key(self._catalog.topic, *name)
        began = asyncio.get_running_loop().time()
        try:
            info = await self._store.put_if_absent(key, piece.data)
            descriptor = replace(descriptor, etag=info.etag)
        except ObjectExistsError:
            # An attempt of ours with a lost response, or another owner's object: compare the bytes.
            there = await same_messages(self._store, key, name, piece.data, self._epoch)
            if there is None:
                raise ForeignObjectError(key, "its messages are others than those in the log") from None
            descriptor = there
        await self._catalog.add(descriptor)
        self.objects_put += 1
        self.bytes_put += descriptor.size
        self.put_seconds += asyncio.get_running_loop().time() - began
        self._place = piece.next_place
        self.uploaded.reach(name.stop)
        log.info("object_completed", topic=self.topic, start=name.start, stop=name.stop, bytes=descriptor.size)
        await self._checkpoint.save(name.stop, self._place)

    async def _prepare(self, start: int, hint: LogPosition | None, synced: int) -> Piece:
        """Read, check and describe the next object's worth of frames."""
        run, found = await self._next_run(start, hint, synced)
        data = memoryview(run.data)[: found.end]
        name = ObjectName(self._catalog.generation, start, found.next_offset)
        descriptor = await in_background(partial(descriptor_of, data, found, name, epoch=self._epoch, etag=""))
        return Piece(data, name, descriptor, LogPosition(run.place.seq, run.place.byte + found.end))

    async def _next_run(self, start: int, hint: LogPosition | None, synced: int) -> tuple[RawRun, Survey]:
        """Read and check the next object's worth of frames; drop a wrong hint, raise CorruptLogError on damage."""
        size = self._options.object_bytes
        while True:
            run = await self._log.read_raw(start, hint, size)
            found = await in_background(partial(survey, run.data, start, limit=min(synced, run.limit)))
            if found.next_offset > start:
                return run, found
            if hint is not None:
                hint = None  # a checkpoint is only a cache
            else:
                scanner = FrameScanner(run.file, start, run.place.byte, size)
                scanner.advance(run.data, found)
                size = scanner.need


class UploadedTo(NamedTuple):
    """Everything below `offset` is in objects; its frame begins at `place`, or behind markers there."""

    offset: int
    place: LogPosition


class UploadCheckpoint:
    """The file `upload.json` of one log; deleting it costs time alone."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / UPLOAD_NAME

    async def load(self) -> UploadedTo | None:
        """Return the last saved place; None if it cannot be read."""
        return await asyncio.get_running_loop().run_in_executor(None, self._load)

    async def save(self, offset: int, place: LogPosition) -> None:
        """Save a place; a failed write is logged and costs time at the next start."""
        data = seal({"version": CHECKPOINT_VERSION, "offset": offset, "file_seq": place.seq, "byte_pos": place.byte})
        try:
            await asyncio.get_running_loop().run_in_executor(None, replace_file, self._files, self._path, data)
        except OSError as error:
            log.warning("upload_checkpoint_not_written", file=str(self._path), cause=error.strerror)

    def _load(self) -> UploadedTo | None:
        try:
            content = unseal(read_file(self._files, self._path))
            numbers = (content["offset"], content["file_seq"], content["byte_pos"])
            if content["version"] != CHECKPOINT_VERSION or not all(
                type(n) is int and 0 <= n < 1 << 63 for n in numbers
            ):
                return None
            return UploadedTo(numbers[0], LogPosition(*numbers[1:]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("upload_checkpoint_not_read", file=str(self._path), cause=str(error))
            return None
