"""A topic as offline tools read it: its generation, its log's files, its described objects, its table. Writes nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ister.cloud import ObjectCatalog
from ister.core.errors import (
    BusyError,
    CorruptError,
    IsterError,
    StoreUnavailableError,
    UnknownTopicError,
)
from ister.core.tiers.selection import NOTHING, OffsetRange
from ister.ports.files.files import OsFiles
from ister.ports.objects import RetryOptions
from ister.runtime.compose import missing_store, open_stores, topics_config
from ister.storage.generations import TopicGeneration, TopicRegistry
from ister.storage.log_root import LogRoot
from ister.storage.tiered_reader import TableTier
from ister.wal.directory import FileNames
from ister.wal.read_only import LogView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    from ister.config import Config
    from ister.core.names import TopicName
    from ister.lake.topic_table import TableReads, Weight
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore
    from ister.storage.factory import TopicsConfig

RETRY_OPTIONS = RetryOptions(attempt_s=10.0, retries=2)
"""Short, for interactive use: a store that does not answer is reported within a minute."""


class StoreDownError(BusyError):
    """The object store does not answer an offline tool."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"{store} could not {action}: {cause}; run it again once the object store can be reached")


@dataclass(frozen=True, slots=True)
class Sources:
    """What offline tools read: the object store, the metadata, the logs, and the tables if they are read."""

    config: Config
    topics: TopicsConfig
    store: CloudStore
    metadata: Metadata
    tables: TableReads | None = None

    @property
    def registry(self) -> TopicRegistry:
        """The topics of the metadata."""
        return TopicRegistry(self.metadata, self.topics.root_prefix)

    @property
    def log_root(self) -> LogRoot:
        """The directory of all logs."""
        return LogRoot(OsFiles(), self.config.wal_cloud.wal.dir)

    def catalog(self, topic: TopicName, generation: int) -> ObjectCatalog:
        """Return the descriptors of a topic's objects."""
        return ObjectCatalog(self.metadata, self.topics.root_prefix, topic, generation)

    def check_store(self) -> None:
        """Raise StoreUnavailableError if the store cannot be read, before its objects are reported as missing."""
        if cause := missing_store(self.config):
            raise StoreUnavailableError(self.store.name, "be read", cause)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A consistent view of one topic's tiers.

    `log` is None when it is behind its objects or does not exist: the next owner starts a new one where they end, so
    nothing of it counts. `problem` is why it cannot be read. `table` is None if tables are not read, or this one cannot be,
    for the reason `no_table`.
    """

    topic: TopicName
    generation: int
    catalog: ObjectCatalog
    objects: OffsetRange
    log: LogView | None
    behind: LogView | None = None
    problem: CorruptError | None = None
    table: TableTier | None = None
    weight: Weight | None = None
    no_table: IsterError | None = None

    @property
    def upto(self) -> int:
        """The offset below which the table holds everything."""
        return 0 if self.table is None else self.table.end.upto

    @property
    def start(self) -> int:
        """The oldest offset of all tiers."""
        if self.upto:
            return 0
        starts = [self.objects.start] if self.objects.start < self.objects.stop else []
        if self.log is not None:
            starts.append(self.log.start_offset)
        return min(starts, default=0)

    @property
    def stop(self) -> int:
        """The offset behind the newest message."""
        return max(self.upto, self.objects.stop) if self.log is None else self.log.next_offset


@asynccontextmanager
async def open_sources(config: Config) -> AsyncIterator[Sources]:
    """Open stores and metadata read-only."""
    async with open_stores(config, read_only=True, retry=RETRY_OPTIONS) as stores:
        with reporting_store():
            yield Sources(config, topics_config(config), *stores)


@contextmanager
def reporting_store() -> Iterator[None]:
    """Raise StoreDownError for a store that is down: its text has the next step of a user, not of an uploader that retries."""
    try:
        yield
    except StoreUnavailableError as error:
        raise StoreDownError(error.store, error.action, error.cause) from error


async def find_generation(sources: Sources, topic: TopicName) -> int:
    """Return a topic's generation; raise UnknownTopicError if there is none."""
    found = _newest(await sources.registry.get(topic), await sources.log_root.generations(topic))
    if not found:
        raise UnknownTopicError(str(topic), sources.metadata.name)
    return found


def _newest(record: TopicGeneration | None, on_disk: Iterable[int]) -> int:
    """Return a topic's generation, 0 if there is none; a newer one on disk means that metadata was lost or is old."""
    newest = max(on_disk, default=0)
    if record is None:
        return newest
    return 0 if record.deleted and newest <= record.generation else max(record.generation, newest)


async def view_topic(sources: Sources, topic: TopicName) -> TopicView:
    """Return a consistent view of a topic's tiers, although a broker may be moving messages meanwhile.

    The log must reach the objects that were described before it was read; the objects that are described afterwards must
    reach the log's start. So a hole between them is real.
    """
    generation = await find_generation(sources, topic)
    view = await _view_files(sources, topic, generation)
    if sources.tables is None:
        return view
    table = sources.tables.table(topic, generation)
    try:
        end = await table.look()
        return replace(view, table=TableTier(table, end), weight=table.weight())
    except IsterError as error:
        return replace(view, no_table=error)


async def _view_files(sources: Sources, topic: TopicName, generation: int) -> TopicView:
    catalog = sources.catalog(topic, generation)
    if sources.tables is not None:
        await catalog.load_border()
    before = await described(catalog)
    directory, name = sources.log_root.directory(topic, generation), sources.topics.wal.file_name
    view: LogView | None = None
    try:
        with suppress(FileNotFoundError):
            view = await asyncio.to_thread(LogView.open, OsFiles(), directory, name, topic=str(topic))
    except CorruptError as problem:
        return TopicView(topic, generation, catalog, before, None, problem=problem)
    if view is None or not view.segments or view.next_offset < before.stop:
        return TopicView(topic, generation, catalog, before, None, view)
    after = await described(catalog)
    return TopicView(topic, generation, catalog, OffsetRange(after.start, min(after.stop, view.next_offset)), view)


async def described(catalog: ObjectCatalog) -> OffsetRange:
    """Return the offsets from the first valid descriptor to the last; a hole in between is not detected."""
    first, last = await catalog.first(), await catalog.last()
    if last is None or last.start == last.stop:
        return OffsetRange(catalog.begin, catalog.begin) if catalog.begin else NOTHING
    return OffsetRange(max(catalog.begin, first.start if first is not None else last.start), last.stop)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic of metadata or disk: its oldest offset, the end of its objects, and its log's files."""

    topic: TopicName
    generation: int
    in_metadata: bool
    start: int
    uploaded: int
    log_files: int
    log_bytes: int


def list_topics(config: Config) -> list[TopicSummary]:
    """Return every topic of metadata or disk, by name; reads names and descriptors only, so that it is quick."""
    return asyncio.run(_list_topics(config))


async def _list_topics(config: Config) -> list[TopicSummary]:
    async with open_sources(config) as sources:
        known, on_disk = await sources.registry.all(), await sources.log_root.topics()
        return [
            await _summary(sources, topic, generation, in_metadata=topic in known)
            for topic in sorted({*known, *on_disk})
            if (generation := _newest(known.get(topic), on_disk.get(topic, ())))
        ]


async def _summary(sources: Sources, topic: TopicName, generation: int, *, in_metadata: bool) -> TopicSummary:
    objects = await described(sources.catalog(topic, generation))
    directory, name = sources.log_root.directory(topic, generation), sources.topics.wal.file_name
    first, files, size = await asyncio.to_thread(_log_size, directory, FileNames.of(name))
    start = objects.start if objects.start < objects.stop else first
    return TopicSummary(topic, generation, in_metadata, start, objects.stop, files, size)


def _log_size(directory: Path, names: FileNames) -> tuple[int, int, int]:
    """Return a log's first offset, and its number of files and bytes, without files that are pruned meanwhile."""
    try:
        segments = names.parse(directory, OsFiles().names(directory))
    except FileNotFoundError:
        return 0, 0, 0
    sizes = []
    for segment in segments:
        with suppress(FileNotFoundError):
            sizes.append(segment.path.stat().st_size)
    return segments[0].first if segments else 0, len(sizes), sum(sizes)
