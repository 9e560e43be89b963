"""Decide what a topic is to a tool: its generation, its log's files, its described objects, its table. Writes nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ister.cli.compose import missing_store, open_metadata, open_store, open_tables, topics_config
from ister.cloud import ObjectCatalog
from ister.core.errors import (
    BusyError,
    CorruptError,
    InvalidNameError,
    IsterError,
    StoreUnavailableError,
    UnknownTopicError,
)
from ister.core.handoff import NOTHING, Span
from ister.core.names import TopicName
from ister.ports.files import OsFiles
from ister.ports.objects import Patience
from ister.storage.registry import TopicRegistry
from ister.storage.table_tier import TableTier
from ister.wal.view import LogView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from ister.config import Config
    from ister.lake.topic_table import TableReads, Weight
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore
    from ister.storage.factory import TopicsConfig

PATIENCE = Patience(attempt_s=10.0, retries=2)
"""Someone sits before the screen: a store that does not answer is told within a minute."""


class StoreDownError(BusyError):
    """The object store does not answer a tool."""

    def __init__(self, store: str, action: str, cause: str) -> None:
        self.store = store
        self.action = action
        self.cause = cause
        super().__init__(f"{store} could not {action}: {cause}; run it again once the object store can be reached")


@dataclass(frozen=True, slots=True)
class Sources:
    """What tools look at: the object store, the metadata, and where the logs are."""

    config: Config
    topics: TopicsConfig
    store: CloudStore
    metadata: Metadata
    tables: TableReads | None = None

    @property
    def registry(self) -> TopicRegistry:
        """The topics that metadata knows."""
        return TopicRegistry(self.metadata, self.topics.root_prefix)

    @property
    def wal_root(self) -> Path:
        """The directory of all logs."""
        return self.config.wal_cloud.wal.dir

    def catalog(self, topic: TopicName, generation: int) -> ObjectCatalog:
        """Return what metadata says of a topic's objects."""
        return ObjectCatalog(self.metadata, self.topics.root_prefix, topic, generation)

    def directory(self, topic: TopicName, generation: int) -> Path:
        """Return where a topic's log is."""
        return self.wal_root.joinpath(*topic.path_parts(), str(generation))

    def check_store(self) -> None:
        """Refuse a store that cannot be asked, before every object of it is called missing."""
        if cause := missing_store(self.config):
            raise StoreUnavailableError(self.store.name, "be read", cause)


@dataclass(frozen=True, slots=True)
class Seen:
    """One topic as it was at one moment.

    `log` is None when it is behind its objects or not there: the next owner starts it anew where they end, so nothing
    of it counts. `problem` is why it cannot be read. `table` is None where it is not read back, or cannot be asked, which
    `no_table` says.
    """

    topic: TopicName
    generation: int
    catalog: ObjectCatalog
    objects: Span
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
async def looking(config: Config) -> AsyncIterator[Sources]:
    """Open what there is, to read only."""
    store = open_store(config, patience=PATIENCE)
    try:
        metadata = await open_metadata(config, read_only=True)
        try:
            tables = open_tables(config)
            try:
                with store_told():
                    yield Sources(config, topics_config(config), store, metadata, tables)
            finally:
                if tables is not None:
                    tables.close()
        finally:
            await metadata.close()
    finally:
        await store.close()


@contextmanager
def store_told() -> Iterator[None]:
    """Say what a person can do about a store that is down; the uploader's words are about trying again by itself."""
    try:
        yield
    except StoreUnavailableError as error:
        raise StoreDownError(error.store, error.action, error.cause) from error


async def find_generation(sources: Sources, topic: TopicName) -> int:
    """Return a topic's generation; UnknownTopicError when there is no such topic.

    A generation on disk that metadata does not know means that metadata was lost or is old.
    """
    record = await sources.registry.get(topic)
    newest = max(await asyncio.to_thread(generations_on_disk, sources.wal_root, topic), default=0)
    if record is None or (record.deleted and newest > record.generation):
        found = newest
    else:
        found = 0 if record.deleted else max(record.generation, newest)
    if not found:
        raise UnknownTopicError(str(topic), sources.metadata.name)
    return found


async def look(sources: Sources, topic: TopicName) -> Seen:
    """Look at both tiers of a topic so that they fit together, although a broker may be moving messages meanwhile.

    What is described before the log is looked at, the log must reach; what is described afterwards must reach the log's
    start. So a hole that is found is one.
    """
    generation = await find_generation(sources, topic)
    seen = await _look_at_files(sources, topic, generation)
    if sources.tables is None:
        return seen
    table = sources.tables.table(topic, generation)
    try:
        end = await table.look()
        return replace(seen, table=TableTier(table, end), weight=table.weight())
    except IsterError as error:
        return replace(seen, no_table=error)


async def _look_at_files(sources: Sources, topic: TopicName, generation: int) -> Seen:
    catalog = sources.catalog(topic, generation)
    if sources.tables is not None:
        await catalog.load_border()
    before = await described(catalog)
    directory, name = sources.directory(topic, generation), sources.topics.wal.file_name
    view: LogView | None = None
    try:
        with suppress(FileNotFoundError):
            view = await asyncio.to_thread(LogView.open, OsFiles(), directory, name, topic=str(topic))
    except CorruptError as problem:
        return Seen(topic, generation, catalog, before, None, problem=problem)
    if view is None or not view.segments or view.next_offset < before.stop:
        return Seen(topic, generation, catalog, before, None, view)
    after = await described(catalog)
    return Seen(topic, generation, catalog, Span(after.start, min(after.stop, view.next_offset)), view)


async def described(catalog: ObjectCatalog) -> Span:
    """Return the offsets from the first description that counts to the last; a hole in between is not looked for."""
    first, last = await catalog.first(), await catalog.last()
    if last is None or last.start == last.stop:
        return Span(catalog.begin, catalog.begin) if catalog.begin else NOTHING
    return Span(max(catalog.begin, first.start if first is not None else last.start), last.stop)


def topics_on_disk(root: Path) -> dict[TopicName, int]:
    """Return the topics that have a directory, with the newest generation of each."""
    found: dict[TopicName, int] = {}
    for namespace in _names(root):
        for name in _names(root / namespace):
            with suppress(InvalidNameError):
                topic = TopicName(namespace, name)
                if generations := generations_on_disk(root, topic):
                    found[topic] = max(generations)
    return found


def generations_on_disk(root: Path, topic: TopicName) -> list[int]:
    """Return the generations of a topic that have a directory."""
    names = _names(root.joinpath(*topic.path_parts()))
    return [int(name) for name in names if name.isascii() and name.isdecimal()]


def _names(directory: Path) -> list[str]:
    try:
        return OsFiles().names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
