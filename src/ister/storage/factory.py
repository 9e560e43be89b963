"""Creation, opening and deletion of topics: each with its log directory, uploader, deleter and retention tasks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import structlog

from ister.cloud import CloudReader, Deleter, ObjectCatalog, Retention, Uploader, UploadOptions
from ister.cloud.deleter import GrowthWatch
from ister.cloud.uploader import UploadCheckpoint
from ister.core import defaults
from ister.core.errors import (
    BusyError,
    InvalidConfigError,
    IsterError,
    LockedError,
    LogClosedError,
    UnknownHistoryError,
    UnknownTopicError,
)
from ister.core.frames.segment import generation_prefix, topic_prefix
from ister.core.names import TopicName
from ister.core.retry import backoff_s, is_transient
from ister.ports.clock import SystemClock
from ister.ports.files.files import NO_SPACE, OsFiles
from ister.ports.files.open_files import open_files_of_process
from ister.storage.cursors.metadata import progress_root
from ister.storage.cursors.move import EarlierProgress, drop_cursors, open_cursors
from ister.storage.generations import TopicRegistry
from ister.storage.log_root import LogRoot
from ister.storage.resume import REMOTE_TIMEOUT_S, Opening, RemoteWait, Waits
from ister.storage.retention import LogRetention, ObjectRetention
from ister.storage.tiered_reader import ObjectTier, TableTier
from ister.storage.wal_storage import WalStorage, require_uploader
from ister.wal import Wal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ister.core.histogram import Histogram
    from ister.ports.clock import Clock
    from ister.ports.files.files import Files
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore
    from ister.storage.generations import TopicGeneration
    from ister.storage.retention import ReliableOptions
    from ister.storage.tiered_reader import TopicTable
    from ister.wal.config import AckLevel, WalConfig

    T = TypeVar("T")

log = structlog.get_logger()

OPEN_AT_ONCE = 16
PROBE_PREFIX = "_probe_/"
"""Listed to check that the object store answers; usually empty."""
REMOVE_RETRY_MAX_S = 60.0
"""The longest pause between two attempts to remove the data of deleted topics."""
CANCEL_AGAIN_S = 1.0
CANCELS_MAX = 10
DISK_THREADS = 16
"""Threads for disk operations of all topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """The settings that all topics of a factory share; `wal.dir` is the root of their directories.

    `object_retention_s` is how long objects are retained that the table holds, too; None is for ever.
    """

    wal: WalConfig
    upload: UploadOptions = field(default_factory=UploadOptions)
    retention: Retention = field(default_factory=Retention)
    root_prefix: str = defaults.ROOT_PREFIX
    cloud_timeout_s: float = defaults.ACK_TIMEOUT_MS / 1000
    drain_timeout_s: float = defaults.DRAIN_TIMEOUT_MS / 1000
    object_retention_s: float | None = None

    def __post_init__(self) -> None:
        if self.object_retention_s is not None and not self.object_retention_s >= 0:
            raise InvalidConfigError("object_retention_s", f"{self.object_retention_s!r} must not be negative")
        if self.wal.dir is None:
            raise InvalidConfigError("wal.dir", "topics with objects need a directory for their logs")


@dataclass(slots=True)
class _Open:
    """An open topic and its tasks."""

    record: TopicGeneration
    storage: WalStorage
    uploader: Uploader | None
    deleter: Deleter | None
    log_retention: LogRetention
    object_retention: ObjectRetention | None
    tasks: list[asyncio.Task[None]]
    is_retaining: bool = False


class _Found(NamedTuple):
    """A topic before it is opened: its record, and its generations on disk."""

    record: TopicGeneration | None
    on_disk: list[int]


class WalStorageFactory:
    """Creates, opens and deletes topics; `start` it first, `shutdown` at the end.

    With `tables`, the table of a topic and generation is its last tier. `known_upto` returns the reported end of such a
    table, for when it does not answer.
    """

    read_only: Literal[False] = False

    def __init__(
        self,
        config: TopicsConfig,
        *,
        store: CloudStore,
        metadata: Metadata,
        files: Files | None = None,
        clock: Clock | None = None,
        tables: Callable[[TopicName, int], TopicTable] | None = None,
        known_upto: Callable[[TopicName, int], int] = lambda _topic, _generation: 0,
    ) -> None:
        self.config = config
        self.problems: dict[TopicName, IsterError] = {}
        self._store = store
        self._metadata = metadata
        self._tables = tables
        self._known_upto = known_upto
        self._files = files or OsFiles(threads=DISK_THREADS, open_files=open_files_of_process())
        self._clock = clock or SystemClock()
        self._registry = TopicRegistry(metadata, config.root_prefix)
        self._progress_root = progress_root(config.root_prefix)
        self._earlier = EarlierProgress(metadata)
        self._open: dict[TopicName, _Open] = {}
        self._removals: dict[TopicName, TopicGeneration] = {}
        """Deleted topics whose data may be left; removed in the background."""
        self._unsettled: set[tuple[TopicName, int]] = set()
        """Deleted generations with an upload in flight; the next start removes them once more."""
        self._remover: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        """Openings and deletions in progress, which `shutdown` waits for."""
        self._closing = False
        self._started = asyncio.Event()
        self._started.set()
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        assert config.wal.dir is not None, "TopicsConfig refuses that"
        assert not isinstance(config.wal.dir, str), "WalConfig makes it a path"
        self._root = LogRoot(self._files, config.wal.dir)

    def set_known_upto(self, known_upto: Callable[[TopicName, int], int]) -> None:
        """Use another source of reported table ends; before `start`."""
        self._known_upto = known_upto

    # --- topics -------------------------------------------------------------------------------------------------------

    async def start(self) -> list[TopicName]:
        """Open every topic found on disk or in metadata; returns them.

        The error of a topic that cannot be opened is in `problems`; the others are opened all the same. Data of deleted
        topics is removed in the background. InvalidConfigError if `wal.dir` cannot be used.
        """
        await self._own_root()
        damaged: dict[TopicName, IsterError] = {}
        known = await self._registry.all(damaged)
        on_disk = await self._root.topics()
        gate = asyncio.Semaphore(OPEN_AT_ONCE)
        waits = Waits(RemoteWait(), RemoteWait(), together=True)

        async def open_one(topic: TopicName) -> None:
            found = _Found(known.get(topic), on_disk.get(topic, []))
            if found.record is not None and found.record.is_deleted(found.on_disk):
                if found.record.needs_removal(found.on_disk):
                    self._remove_later(topic, found.record)
                return
            async with gate:
                try:
                    if topic in damaged:
                        raise damaged[topic]
                    await self._root.own()
                    await self._tracked(topic, self._opened(topic, None, found, waits))
                except (IsterError, OSError) as error:
                    self.problems[topic] = error if isinstance(error, IsterError) else BusyError(str(error))
                    log.error("topic_not_opened", topic=str(topic), cause=str(error))  # noqa: TRY400  # the cause is logged

        self._started.clear()
        try:
            await asyncio.gather(*(open_one(topic) for topic in sorted({*known, *on_disk, *damaged})))
        finally:
            self._started.set()
        return sorted(self._open)

    async def _own_root(self) -> None:
        try:
            await self._root.own()
        except LockedError:
            pass  # reported for every topic
        except OSError as error:
            if is_transient(error) or error.errno in NO_SPACE:
                raise
            reason = f"{self._root.path} cannot be used as a directory ({error.strerror}); choose another one"
            raise InvalidConfigError("wal.dir", reason) from error

    async def topics(self) -> list[TopicName]:
        """Return every topic."""
        damaged: dict[TopicName, IsterError] = {}
        known = await self._registry.all(damaged)
        return sorted([*damaged, *(topic for topic, record in known.items() if not record.deleted)])

    async def for_topic(self, topic: str | TopicName, *, level: AckLevel | None = None) -> WalStorage:
        """Return a topic's storage, opened or created if necessary; `level`, if given, is its level from now on."""
        name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
        return (await self._tracked(name, self._opened(name, level))).storage

    async def _opened(
        self, name: TopicName, level: AckLevel | None, found: _Found | None = None, waits: Waits | None = None
    ) -> _Open:
        async with self._lock(name):
            if self._closing:
                raise LogClosedError(str(name))
            opened = self._open.get(name)
            if opened is None:
                opened = self._open[name] = await self._open_topic(name, level, found, waits)
                self.problems.pop(name, None)
            elif level is not None:
                await opened.storage.set_level(level)
            return opened

    def set_retention(self, topic: str | TopicName, options: ReliableOptions | None) -> None:
        """Set an open topic's retention policy; None leaves its log to the broker's retention.

        It is enforced every `check_interval_minutes`. Uploaded messages may be deleted from the log earlier.
        """
        name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
        opened = self._open.get(name)
        if opened is None:
            raise UnknownTopicError(str(name), str(self._root.path))
        opened.log_retention.set_options(options)
        if options is not None and not opened.is_retaining:
            opened.is_retaining = True
            opened.tasks.append(asyncio.create_task(opened.log_retention.run(self.config.retention.check_interval_s)))

    def log_retention(self, topic: TopicName) -> LogRetention:
        """Return the task that enforces an open topic's policy, if it has one."""
        return self._open[topic].log_retention

    async def delete_topic(self, topic: str | TopicName, *, in_background: bool = False) -> None:
        """Delete a topic: its log, objects and descriptors; its name can be used again at once.

        It is deleted even if the caller is cancelled. A failure to remove its data is raised, and retried in the
        background; another call retries at once. With `in_background` this does not wait for the object store.
        """
        name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
        await self._tracked(name, self._delete(name, in_background=in_background), shielded=True)

    async def _delete(self, name: TopicName, *, in_background: bool) -> None:
        async with self._lock(name):
            if self._closing:
                raise LogClosedError(str(name))
            if name not in self._open:
                await self._root.refuse_opened(name)
            on_disk = await self._root.generations(name)
            record = await self._registry.get(name)
            if record is not None and not record.is_deleted(on_disk):
                record = await self._registry.mark_deleted(name, on_disk)
            elif record is not None and not record.needs_removal(on_disk):
                record = None
            if record is None:
                raise UnknownTopicError(str(name), str(self._root.path))
            self._removals[name] = record
            self.problems.pop(name, None)
            try:
                opened = self._open.pop(name, None)
                if opened is not None:
                    self._unsettled.add((name, record.generation))
                    if await self._release(opened, 0.0 if in_background else self.config.drain_timeout_s):
                        self._unsettled.discard((name, record.generation))
                if not in_background:
                    await self._remove(name, record)
            finally:
                if name in self._removals:
                    self._remove_later(name, record)

    async def shutdown(self, drain_timeout_s: float | None = None) -> None:
        """Upload what is synced, as far as time allows, and close every topic; raises the first failure at the end."""
        self._closing = True
        timeout_s = self.config.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        ends = asyncio.get_running_loop().time() + timeout_s
        if self._remover is not None:
            await _cancel(str(self._root.path), {self._remover})
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            await _cancel(str(self._root.path), late)  # the next start completes them
        left_s = max(0.0, ends - asyncio.get_running_loop().time())
        closing = [self._close(opened, left_s) for opened in self._open.values()]
        self._open.clear()
        failures = [result for result in await asyncio.gather(*closing, return_exceptions=True) if result is not None]
        await self._root.disown()
        for failure in failures:
            log.error("topic_not_closed", cause=str(failure))
        if failures:
            raise failures[0]

    async def check_store(self) -> None:
        """Raise an error if the object store does not answer, refuses us, or lacks its bucket.

        By a listing, because a read of an object does not distinguish a missing bucket from a missing object.
        """
        async with aclosing(self._store.list(PROBE_PREFIX)) as listing:
            await anext(listing, None)

    @property
    def sync_seconds(self) -> Histogram:
        """How long syncs of all logs took."""
        return self._files.sync_latency.sync_seconds

    def uploader(self, topic: TopicName) -> Uploader | None:
        """Return an open topic's uploader."""
        return self._open[topic].uploader

    def deleter(self, topic: TopicName) -> Deleter | None:
        """Return an open topic's deleter."""
        return self._open[topic].deleter

    def object_retention(self, topic: TopicName) -> ObjectRetention | None:
        """Return the task that deletes an open topic's objects that its table holds."""
        return self._open[topic].object_retention

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open_topic(
        self, topic: TopicName, level: AckLevel | None, found: _Found | None, waits: Waits | None
    ) -> _Open:
        owned = await self._root.own()
        if found is None:
            found = _Found(await self._registry.get(topic), await self._root.generations(topic))
        known = found.record
        waits = waits or Waits(RemoteWait(), RemoteWait())
        if known is not None and known.needs_removal(found.on_disk):
            # Data that a failure left, which no later start would find.
            async with waits.store.limit(REMOTE_TIMEOUT_S if waits.together else None):
                await self._remove(topic, known)
            known = await self._registry.get(topic)
        if not found.on_disk and known is None:
            async with aclosing(self._store.list(topic_prefix(topic))) as listing:
                if await anext(listing, None) is not None:
                    raise UnknownHistoryError(str(topic), self._store.name)
        record = await self._registry.claim(topic, known, found.on_disk)
        had_before = known is not None and not known.deleted and known.generation == record.generation
        directory = self._root.directory(topic, record.generation)
        shared = self.config.wal
        config = replace(shared, dir=directory, topic=str(topic), level=shared.level if level is None else level)
        require_uploader(config.ack_level, enabled=self.config.upload.enabled)
        catalog = ObjectCatalog(self._metadata, self.config.root_prefix, topic, record.generation)
        open_log = partial(Wal.with_config, config, files=self._files, clock=self._clock, within=owned)
        wal = await open_log()
        uploader = self._uploader_of(wal, catalog, record)
        table = None if self._tables is None else self._tables(topic, record.generation)
        try:
            opening = Opening(wal, self._store, catalog, uploader, open_log, waits)
            joined = await opening.join(table, 0 if table is None else self._known_upto(topic, record.generation))
            wal = joined.wal
            cursors = await open_cursors(
                self._files, directory, wal.config.name, wal.recovered_offset,
                metadata=self._metadata, root=self._progress_root, topic=topic, generation=record.generation, clock=self._clock,
                in_metadata=table is not None, place=(lambda _: None) if table is None else table.place,
                earlier=self._earlier if had_before else None,
            )  # fmt: skip
        except BaseException:
            await wal.close()
            if table is not None:
                await table.close()
            raise
        objects = ObjectTier(CloudReader(self._store, catalog), uploader, joined.objects, self.config.cloud_timeout_s)
        tier = None if table is None else TableTier(table, joined.end)
        storage = WalStorage.from_wal(wal, objects, tier, cursors=cursors)
        return self._start_tasks(topic, record, storage, objects, tier)

    def _uploader_of(self, wal: Wal, catalog: ObjectCatalog, record: TopicGeneration) -> Uploader | None:
        if not self.config.upload.enabled:
            return None
        checkpoint = UploadCheckpoint(self._files, self._root.directory(catalog.topic, catalog.generation))
        return Uploader(
            wal, self._store, catalog, checkpoint, self.config.upload,
            epoch=record.epoch, is_last_tier=self._tables is None,
        )  # fmt: skip

    def _start_tasks(
        self,
        topic: TopicName,
        record: TopicGeneration,
        storage: WalStorage,
        objects: ObjectTier,
        table: TableTier | None,
    ) -> _Open:
        config, uploader, catalog = self.config, objects.uploader, objects.reader.catalog
        opened = _Open(record, storage, uploader, None, LogRetention(str(topic), storage, self._clock), None, [])
        works: list[Coroutine[None, None, None]] = []
        if uploader is not None:
            works.append(self._run_uploader(uploader))
        if uploader is not None or table is not None:
            held = None if uploader is not None else lambda: storage.later_tier_offset or 0
            opened.deleter = Deleter(storage, self._store, catalog, uploader, config.retention, self._clock, held=held)
            works.append(opened.deleter.run(config.retention.check_interval_s))
        else:
            works.append(self._watch_growth(topic, storage))
        if table is not None and config.object_retention_s is not None:
            opened.object_retention = ObjectRetention(objects, table, config.object_retention_s, self._clock)
            works.append(opened.object_retention.run(config.retention.check_interval_s))
        opened.tasks += [asyncio.create_task(work) for work in works]
        return opened

    async def _run_uploader(self, uploader: Uploader) -> None:
        """Start uploading once all topics are open: after a crash every topic uploads, and opening has priority."""
        await self._started.wait()
        await uploader.run()

    async def _watch_growth(self, topic: TopicName, storage: WalStorage) -> None:
        watch = GrowthWatch(str(topic), self.config.retention)
        while True:
            watch.check(
                storage.active_bytes + sum(segment.size for segment in storage.sealed_segments()),
                "uploads are off, so nothing is pruned: enable uploader, or choose a retention policy",
            )
            await asyncio.sleep(self.config.retention.check_interval_s)

    # --- closing and deleting -----------------------------------------------------------------------------------------

    async def _release(self, opened: _Open, settle_s: float) -> bool:
        """Close a deleted topic, ignoring failures; returns False if an upload may still be in flight."""
        try:
            return opened.uploader is None or await opened.uploader.settle(settle_s)
        finally:
            await _cancel(opened.storage.wal.config.name, set(opened.tasks))
            if opened.uploader is not None:
                opened.uploader.end()
            try:
                await opened.storage.close()
            except IsterError as error:  # a poisoned log, for example
                log.warning("topic_not_closed", cause=str(error))
            finally:
                await self._close_table(opened)

    async def _close(self, opened: _Open, timeout_s: float) -> None:
        await _cancel(opened.storage.wal.config.name, set(opened.tasks))
        if opened.uploader is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await opened.uploader.drain()
            except (IsterError, TimeoutError) as error:
                cause = str(error) or f"it took longer than {timeout_s:.3g} s"
                log.warning("not_all_uploaded", topic=opened.uploader.topic, offset=opened.uploader.uploaded.value,
                            cause=cause)  # fmt: skip
            opened.uploader.end()
        try:
            await opened.storage.close()
        finally:
            await self._close_table(opened)

    async def _close_table(self, opened: _Open) -> None:
        if opened.storage.table is not None:
            await opened.storage.table.table.close()

    async def _remove(self, topic: TopicName, record: TopicGeneration) -> None:
        """Remove the data of a deleted generation. Idempotent."""
        catalog = ObjectCatalog(self._metadata, self.config.root_prefix, topic, record.generation)
        # The log first, because that checks its lock: nothing is removed of a topic that another process has open.
        await self._root.remove(topic, record.generation)
        keys = [info.key async for info in self._store.list(generation_prefix(topic, record.generation))]
        for key in keys:
            await self._store.delete(key)
        described = await catalog.clear()
        await drop_cursors(self._metadata, self._progress_root, topic, record.generation)
        if (topic, record.generation) not in self._unsettled:
            await self._registry.mark_removed(topic, record.generation)
        self._removals.pop(topic, None)
        log.info(
            "topic_deleted", topic=str(topic), generation=record.generation, objects=len(keys), described=described
        )

    def _remove_later(self, topic: TopicName, record: TopicGeneration) -> None:
        """Remove the data of a deleted topic in the background."""
        self._removals[topic] = record
        if not self._closing and (self._remover is None or self._remover.done()):
            self._remover = asyncio.create_task(self._run_removals())

    async def _run_removals(self) -> None:
        """Remove the data of deleted topics; retries until nothing is left."""
        await self._started.wait()
        attempts = 0
        while self._removals and not self._closing:
            for topic, record in list(self._removals.items()):
                if self._closing or await self._removal_failed(topic, record):
                    break  # the store is unavailable: one attempt a round, not one a topic
            if self._removals:
                attempts += 1
                await asyncio.sleep(backoff_s(attempts, REMOVE_RETRY_MAX_S))

    async def _removal_failed(self, topic: TopicName, record: TopicGeneration) -> bool:
        """Try to remove the data of a deleted topic; returns True after an error that would affect the next one, too."""
        async with self._lock(topic):
            if self._removals.get(topic) is not record:
                return False  # removed, or re-created and deleted again, while this waited for the lock
            try:
                await self._remove(topic, record)
            except (IsterError, OSError) as error:
                log.warning("topic_not_removed", topic=str(topic), generation=record.generation, cause=str(error))
                return is_transient(error)
            except Exception:  # the root of a task
                log.exception("topic_not_removed", topic=str(topic), generation=record.generation)
        return False

    async def _tracked(self, topic: TopicName, work: Coroutine[None, None, T], *, shielded: bool = False) -> T:
        """Run a task that `shutdown` waits for and then cancels (LogClosedError); `shielded` from its caller's cancellation."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await (asyncio.shield(task) if shielded else task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise LogClosedError(str(topic)) from None
            task.add_done_callback(partial(_log_failure, topic))
            raise

    def _lock(self, topic: TopicName) -> asyncio.Lock:
        return self._locks.setdefault(topic, asyncio.Lock())


async def _cancel(topic: str, tasks: set[asyncio.Task[T]]) -> None:
    """Cancel tasks and wait for their end; one that swallows the cancellation is cancelled again, then abandoned."""
    for attempt in range(CANCELS_MAX):
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
        if not tasks:
            return
        log.error("task_not_cancelled", topic=topic, attempt=attempt + 1,
                  tasks=sorted(task.get_name() for task in tasks))  # fmt: skip


def _log_failure(topic: TopicName, deletion: asyncio.Task[T]) -> None:
    """Log why a deletion failed whose caller was cancelled."""
    if not deletion.cancelled() and (error := deletion.exception()) is not None:
        log.warning("topic_not_removed", topic=str(topic), cause=str(error))
