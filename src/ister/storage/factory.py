"""Make each topic's storage: its directory, its log, its uploader and deleter; find all of them again after a restart.

The next offset of a topic is the largest over its tiers; `ister.storage.resume` finds it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import structlog

from ister.cloud import CloudReader, Deleter, ObjectCatalog, Retention, Uploader, UploadOptions
from ister.cloud.checkpoint import UploadCheckpoint
from ister.cloud.deleter import GrowthWatch
from ister.core.errors import (
    BusyError,
    ClientError,
    InvalidConfigError,
    IsterError,
    LockedError,
    LogClosedError,
    UnknownTopicError,
)
from ister.core.names import TopicName
from ister.core.retry import backoff_s, is_transient
from ister.core.segment import generation_prefix, topic_prefix
from ister.ports.clock import SystemClock
from ister.ports.files import NO_SPACE, OsFiles
from ister.ports.slots import slots_of_process
from ister.storage.object_retention import ObjectKeeper
from ister.storage.progress import progress_root
from ister.storage.progress_move import EarlierProgress, drop_cursors, open_cursors
from ister.storage.registry import TopicRegistry
from ister.storage.resume import ASK_TIMEOUT_S, Opening, RemoteWait, Waits
from ister.storage.retention import Keeper
from ister.storage.root import LogRoot
from ister.storage.table_tier import TableTier
from ister.storage.tiers import CLOUD_TIMEOUT_S, ObjectTier
from ister.storage.wal_storage import WalStorage
from ister.wal import Wal
from ister.wal.config import AckLevel, WalConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ister.core.histogram import Histogram
    from ister.ports.clock import Clock
    from ister.ports.files import Files, Lock
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore
    from ister.storage.registry import TopicRecord
    from ister.storage.retention import ReliableOptions
    from ister.storage.table_tier import TopicTable
    from ister.wal.directory import Resume

    T = TypeVar("T")

log = structlog.get_logger()

OPEN_AT_ONCE = 16
PROBE_PREFIX = "_probe_/"
"""What the object store is asked for to see whether it answers; nothing needs to be there."""
REMOVE_RETRY_MAX_S = 60.0
"""The longest pause between two attempts to remove what is left of deleted topics."""
CANCEL_AGAIN_S = 1.0
CANCELS_MAX = 10
DISK_THREADS = 16
"""How many threads wait for the disk, for all topics together."""


class UnknownHistoryError(ClientError):
    """Objects of a topic exist that neither metadata nor the disk knows of."""

    def __init__(self, topic: str, store: str) -> None:
        self.topic = topic
        super().__init__(
            f"{store} has objects of topic {topic}, but neither metadata nor the log's directory knows that topic; "
            "run `ister objects rebuild` to get it back, or delete those objects"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """The settings that all topics of a factory share; `wal.dir` is the directory under which each has its own.

    `object_retention_s` is how long objects are kept that the table holds, too; None is for ever.
    """

    wal: WalConfig
    upload: UploadOptions = field(default_factory=UploadOptions)
    retention: Retention = field(default_factory=Retention)
    root_prefix: str = "/danube-data"
    cloud_timeout_s: float = CLOUD_TIMEOUT_S
    drain_timeout_s: float = 10.0
    object_retention_s: float | None = None

    def __post_init__(self) -> None:
        if self.object_retention_s is not None and not self.object_retention_s >= 0:
            raise InvalidConfigError("object_retention_s", f"{self.object_retention_s!r} must not be negative")
        if self.wal.dir is None:
            raise InvalidConfigError("wal.dir", "topics with objects need a directory for their logs")


@dataclass(slots=True)
class _Open:
    """A topic that is open, and the tasks that work for it."""

    record: TopicRecord
    storage: WalStorage
    uploader: Uploader | None
    deleter: Deleter | None
    keeper: Keeper
    object_keeper: ObjectKeeper | None
    tasks: list[asyncio.Task[None]]
    keeps: bool = False


class _Found(NamedTuple):
    """What is known of a topic before it is opened: its record, and its generations on disk."""

    record: TopicRecord | None
    on_disk: list[int]


class WalStorageFactory:
    """Makes, finds and deletes topics; `start` it first, `shutdown` at the end.

    With `tables`, the table of a topic and generation is its last tier. `known_upto` is how far such a table was once
    reported to be, for when it cannot be asked.
    """

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
        self.known_upto = known_upto
        self._files = files or OsFiles(threads=DISK_THREADS, slots=slots_of_process())
        self._clock = clock or SystemClock()
        self._registry = TopicRegistry(metadata, config.root_prefix)
        self._progress_root = progress_root(config.root_prefix)
        self._earlier = EarlierProgress(metadata)
        self._open: dict[TopicName, _Open] = {}
        self._removals: dict[TopicName, TopicRecord] = {}
        """Deleted topics of which something may be left; removed in the background."""
        self._unsettled: set[tuple[TopicName, int]] = set()
        """Deleted generations of which an object may still be put; the next start removes them once more."""
        self._remover: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        """Openings and deletions under way, which `shutdown` waits for."""
        self._closing = False
        self._started = asyncio.Event()
        self._started.set()
        self._locks: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        assert config.wal.dir is not None, "TopicsConfig refuses that"
        assert not isinstance(config.wal.dir, str), "WalConfig makes it a path"
        self._root = LogRoot(self._files, config.wal.dir)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def start(self) -> list[TopicName]:
        """Open every topic found on disk or in metadata; returns them.

        A topic that cannot be opened does not keep the others from it: `problems` says what is wrong with it. What is
        left of deleted topics is removed in the background. InvalidConfigError if there can be no logs in `wal.dir`.
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
                    log.error("topic_not_opened", topic=str(topic), cause=str(error))  # noqa: TRY400  # told whole

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
            pass  # every topic says so
        except OSError as error:
            if is_transient(error) or error.errno in NO_SPACE:
                raise
            reason = f"{self._root.path} cannot be used as a directory ({error.strerror}); choose another one"
            raise InvalidConfigError("wal.dir", reason) from error

    async def topics(self) -> list[TopicName]:
        """Return every topic that there is."""
        damaged: dict[TopicName, IsterError] = {}
        known = await self._registry.all(damaged)
        return sorted([*damaged, *(topic for topic, record in known.items() if not record.deleted)])

    async def for_topic(self, topic: str | TopicName, *, level: AckLevel | None = None) -> WalStorage:
        """Return a topic's storage, opened or made if it is not open yet; with a level, it has that level from now on."""
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
        """Have an open topic's log keep what a policy says from now on, or, with None, what the broker's retention says.

        It is enforced every `check_interval_minutes`. What objects hold may leave the log earlier, whatever the policy.
        """
        name = topic if isinstance(topic, TopicName) else TopicName.parse(topic)
        opened = self._open.get(name)
        if opened is None:
            raise UnknownTopicError(str(name), str(self._root.path))
        opened.keeper.options = options
        if options is not None and not opened.keeps:
            opened.keeps = True
            opened.tasks.append(asyncio.create_task(opened.keeper.run(self.config.retention.check_interval_s)))

    def keeper(self, topic: TopicName) -> Keeper:
        """Return who enforces an open topic's policy, if it has one."""
        return self._open[topic].keeper

    async def delete_topic(self, topic: str | TopicName, *, in_background: bool = False) -> None:
        """Delete a topic: its log, objects and descriptions; its name can be used again at once.

        It is deleted even if the caller does not wait. If removing fails, that is raised, and tried again in the
        background; another call tries again at once. With `in_background` nobody waits for the object store.
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
        """Carry away what waits, as far as time allows, and close every topic; raises the first failure at the end."""
        self._closing = True
        timeout_s = self.config.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        ends = asyncio.get_running_loop().time() + timeout_s
        if self._remover is not None:
            await _cancel(str(self._root.path), {self._remover})
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            await _cancel(str(self._root.path), late)  # what they leave undone, the next start does
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
        """Raise what is wrong with the object store: it does not answer, refuses us, or its bucket is gone.

        A listing tells it; a look at an object does not tell a missing bucket from a missing object.
        """
        async with aclosing(self._store.list(PROBE_PREFIX)) as listing:
            await anext(listing, None)

    @property
    def sync_seconds(self) -> Histogram:
        """How long syncs of all logs took."""
        return self._files.pace.sync_seconds

    def uploader(self, topic: TopicName) -> Uploader | None:
        """Return an open topic's uploader."""
        return self._open[topic].uploader

    def deleter(self, topic: TopicName) -> Deleter | None:
        """Return an open topic's deleter."""
        return self._open[topic].deleter

    def object_keeper(self, topic: TopicName) -> ObjectKeeper | None:
        """Return who deletes an open topic's objects behind its table."""
        return self._open[topic].object_keeper

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
            # What a failure left of it, which nobody would find any more.
            async with waits.store.limit(ASK_TIMEOUT_S if waits.together else None):
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
        if config.ack_level >= AckLevel.CLOUD and not self.config.upload.enabled:
            raise InvalidConfigError("level", "CLOUD needs the uploader; enable it, or choose level FSYNC")
        catalog = ObjectCatalog(self._metadata, self.config.root_prefix, topic, record.generation)
        wal = await Wal.with_config(config, files=self._files, clock=self._clock, within=owned)
        uploader = self._uploader_of(wal, catalog, record)
        reopen = partial(self._reopen, config, owned)
        table = None if self._tables is None else self._tables(topic, record.generation)
        try:
            opening = Opening(wal, self._store, catalog, uploader, reopen, waits)
            joined = await opening.join(table, 0 if table is None else self.known_upto(topic, record.generation))
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

    def _uploader_of(self, wal: Wal, catalog: ObjectCatalog, record: TopicRecord) -> Uploader | None:
        if not self.config.upload.enabled:
            return None
        checkpoint = UploadCheckpoint(self._files, self._root.directory(catalog.topic, catalog.generation))
        return Uploader(
            wal, self._store, catalog, checkpoint, self.config.upload,
            epoch=record.epoch, is_last_tier=self._tables is None,
        )  # fmt: skip

    async def _reopen(self, config: WalConfig, owned: Lock, resume: Resume) -> Wal:
        return await Wal.with_config(config, files=self._files, clock=self._clock, resume=resume, within=owned)

    def _start_tasks(
        self,
        topic: TopicName,
        record: TopicRecord,
        storage: WalStorage,
        objects: ObjectTier,
        table: TableTier | None,
    ) -> _Open:
        config, uploader, catalog = self.config, objects.uploader, objects.reader.catalog
        opened = _Open(record, storage, uploader, None, Keeper(str(topic), storage, self._clock), None, [])
        works: list[Coroutine[None, None, None]] = []
        if uploader is not None:
            opened.deleter = Deleter(storage, self._store, catalog, uploader, config.retention, self._clock)
            works += [self._run_uploader(uploader), opened.deleter.run()]
        elif table is not None:
            opened.deleter = Deleter(
                storage, self._store, catalog, None, config.retention, self._clock,
                held=lambda: storage.later_tier_offset or 0,
            )  # fmt: skip
            works.append(opened.deleter.run())
        else:
            works.append(self._watch_growth(topic, storage))
        if table is not None and config.object_retention_s is not None:
            opened.object_keeper = ObjectKeeper(objects, table, config.object_retention_s, self._clock)
            works.append(opened.object_keeper.run(config.retention.check_interval_s))
        opened.tasks += [asyncio.create_task(work) for work in works]
        return opened

    async def _run_uploader(self, uploader: Uploader) -> None:
        """Upload once all topics are open: after a crash each has something, and opening goes first."""
        await self._started.wait()
        await uploader.run()

    async def _watch_growth(self, topic: TopicName, storage: WalStorage) -> None:
        watch = GrowthWatch(str(topic), self.config.retention)
        while True:
            watch.look(
                storage.active_bytes + sum(segment.size for segment in storage.sealed_segments()),
                "uploads are off, so nothing is pruned: enable uploader, or choose a retention policy",
            )
            await asyncio.sleep(self.config.retention.check_interval_s)

    # --- closing and deleting -----------------------------------------------------------------------------------------

    async def _release(self, opened: _Open, settle_s: float) -> bool:
        """Close a topic that is deleted; returns False if an object may still be put.

        A failure to close it does not matter.
        """
        try:
            return opened.uploader is None or await opened.uploader.settle(settle_s)
        finally:
            await self._end_tasks(opened)
            if opened.uploader is not None:
                opened.uploader.end()
            try:
                await opened.storage.close()
            except IsterError as error:  # a poisoned log, for example
                log.warning("topic_not_closed", cause=str(error))
            finally:
                await self._close_table(opened)

    async def _end_tasks(self, opened: _Open) -> None:
        await _cancel(opened.storage.wal.config.name, set(opened.tasks))

    async def _close(self, opened: _Open, timeout_s: float) -> None:
        await self._end_tasks(opened)
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

    async def _remove(self, topic: TopicName, record: TopicRecord) -> None:
        """Remove what is left of a deleted generation; can be done again and again."""
        catalog = ObjectCatalog(self._metadata, self.config.root_prefix, topic, record.generation)
        # The log first, because that asks for its lock: nothing is taken from a topic that another process has open.
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

    def _remove_later(self, topic: TopicName, record: TopicRecord) -> None:
        """Have what is left of a deleted topic removed in the background."""
        self._removals[topic] = record
        if not self._closing and (self._remover is None or self._remover.done()):
            self._remover = asyncio.create_task(self._run_removals())

    async def _run_removals(self) -> None:
        """Remove what is left of deleted topics, again and again until nothing is."""
        await self._started.wait()
        attempts = 0
        while self._removals and not self._closing:
            for topic, record in list(self._removals.items()):
                if self._closing or await self._removal_failed(topic, record):
                    break  # the store is away: it is asked once, not once for each topic
            if self._removals:
                attempts += 1
                await asyncio.sleep(backoff_s(attempts, REMOVE_RETRY_MAX_S))

    async def _removal_failed(self, topic: TopicName, record: TopicRecord) -> bool:
        """Try to remove what is left of a deleted topic; returns True after an error that the next one would meet, too."""
        async with self._lock(topic):
            if self._removals.get(topic) is not record:
                return False  # it was removed, or made again and deleted again, while we waited for our turn
            try:
                await self._remove(topic, record)
            except (IsterError, OSError) as error:
                log.warning("topic_not_removed", topic=str(topic), generation=record.generation, cause=str(error))
                return is_transient(error)
            except Exception:  # the root of a task
                log.exception("topic_not_removed", topic=str(topic), generation=record.generation)
        return False

    async def _tracked(self, topic: TopicName, work: Coroutine[None, None, T], *, shielded: bool = False) -> T:
        """Run a task that `shutdown` waits for, and cancels in the end (LogClosedError); shielded, its caller cannot."""
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
    """Cancel tasks and wait for their end; what swallows a cancellation is cancelled again, and then left."""
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
    """Log why a deletion failed whose caller has gone."""
    if not deletion.cancelled() and (error := deletion.exception()) is not None:
        log.warning("topic_not_removed", topic=str(topic), cause=str(error))
