"""The tiers of a topic: what each holds, the upload lag, and offsets that no tier holds.

Reads the log's files and the metadata, and the catalog if tables are read; it makes no request to the object store, so it
works while that is down. `ister objects verify` reads it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ister.cloud.uploader import UploadCheckpoint
from ister.core.errors import CorruptError, CorruptMetadataError, MissingOffsetsError
from ister.core.names import TopicName
from ister.core.tiers.selection import NOTHING, OffsetRange
from ister.offline.topic import open_sources, view_topic
from ister.ports.files.files import OsFiles

if TYPE_CHECKING:
    from ister.config import Config
    from ister.core.frames.segment import Descriptor
    from ister.offline.topic import Sources, TopicView
    from ister.wal.read_only import LogView


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log, and the offsets [start, stop) in it."""

    name: str
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class LogTier:
    """What the log holds; `state` is ok, damaged, missing, or behind its objects."""

    state: str
    span: OffsetRange = NOTHING
    files: tuple[LogFile, ...] = ()
    synced: int = 0
    torn_bytes: int = 0
    append_time_us: int = 0

    @property
    def size(self) -> int:
        """The size of the files."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class ObjectsTier:
    """What objects hold, by their descriptors: contiguous ranges, oldest first."""

    spans: list[OffsetRange] = field(default_factory=list)
    count: int = 0
    size: int = 0
    append_time_us: int = 0

    @property
    def stop(self) -> int:
        """The end of the last described object."""
        return self.spans[-1].stop if self.spans else 0

    def add(self, descriptor: Descriptor, key: str, problems: list[CorruptError]) -> None:
        """Add the next object; one that is not contiguous with the one before is a problem."""
        if self.spans and descriptor.start == self.stop:
            self.spans[-1] = OffsetRange(self.spans[-1].start, descriptor.stop)
        else:
            if self.spans and descriptor.start > self.stop:
                problems.append(MissingOffsetsError(self.stop, descriptor.start, "no object describes them"))
            elif self.spans:
                problems.append(CorruptMetadataError(key, f"the object before it ends at offset {self.stop}"))
            self.spans.append(OffsetRange(descriptor.start, descriptor.stop))
        self.count += 1
        self.size += descriptor.size
        self.append_time_us = descriptor.append_time_us


@dataclass(frozen=True, slots=True)
class TableReport:
    """What the table holds; `problem` is why it cannot be read."""

    name: str
    span: OffsetRange = NOTHING
    files: int = 0
    size: int = 0
    snapshot_id: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """The upload lag; bytes and time are None where they are unknown."""

    messages: int
    size: int | None
    time_us: int | None


@dataclass(frozen=True, slots=True)
class TiersReport:
    """One topic's tiers, and all problems found."""

    topic: TopicName
    generation: int
    start: int
    stop: int
    log: LogTier
    objects: ObjectsTier
    lag: Lag
    problems: list[CorruptError]
    table: TableReport | None = None


def report_tiers(config: Config, topic: str) -> TiersReport:
    """Return the report of one topic."""
    return asyncio.run(_report(config, TopicName.parse(topic)))


async def _report(config: Config, topic: TopicName) -> TiersReport:
    async with open_sources(config) as sources:
        view = await view_topic(sources, topic)
        problems: list[CorruptError] = []
        objects = await _objects(view, problems)
        if view.problem is not None:
            problems.append(view.problem)
        elif view.log is not None and objects.spans and max(objects.stop, view.upto) < view.log.start_offset:
            problems.append(MissingOffsetsError(objects.stop, view.log.start_offset))
        log = _log(view)
        lag = await _lag(sources, view, objects)
        return TiersReport(
            topic, view.generation, view.start, view.stop, log, objects, lag, problems, _table(sources, view)
        )


def _table(sources: Sources, view: TopicView) -> TableReport | None:
    if sources.tables is None:
        return None
    if view.table is None or view.weight is None:
        return TableReport(str(view.topic), problem=str(view.no_table))
    return TableReport(
        view.weight.name, view.table.span, view.weight.files, view.weight.size, view.table.end.snapshot_id
    )


async def _objects(view: TopicView, problems: list[CorruptError]) -> ObjectsTier:
    """Add up the descriptors up to the end of the view; later ones belong to a later view."""
    tier = ObjectsTier()
    try:
        async with aclosing(view.catalog.all()) as descriptors:
            async for descriptor in descriptors:
                if descriptor.stop > view.objects.stop:
                    break
                if descriptor.stop <= view.catalog.begin:
                    continue  # these are in the table
                tier.add(descriptor, view.catalog.object_key(descriptor), problems)
    except CorruptMetadataError as error:
        problems.append(error)
    return tier


def _log(view: TopicView) -> LogTier:
    if view.problem is not None:
        return LogTier("damaged")
    if view.log is not None:
        return _log_tier("ok", view.log)
    return LogTier("missing") if view.behind is None else _log_tier("behind", view.behind)


def _log_tier(state: str, log: LogView) -> LogTier:
    ends = [segment.first for segment in log.segments[1:]] + [log.next_offset]
    files = [
        LogFile(segment.path.name, segment.first, stop, segment.size)
        for segment, stop in zip(log.segments, ends, strict=False)
    ]
    tail = log.tail
    return LogTier(
        state,
        OffsetRange(log.start_offset, log.next_offset),
        tuple(files),
        tail.synced_offset,
        tail.torn_bytes,
        tail.append_time_us,
    )


async def _lag(sources: Sources, view: TopicView, objects: ObjectsTier) -> Lag:
    log = view.log
    if log is None or log.next_offset <= objects.stop:
        return Lag(0, 0, 0)
    messages = log.next_offset - max(objects.stop, log.start_offset)
    time_us = max(0, log.tail.append_time_us - objects.append_time_us) if objects.append_time_us else None
    if not objects.stop:
        return Lag(messages, log.size, time_us)
    checkpoint = UploadCheckpoint(OsFiles(), sources.log_root.directory(view.topic, view.generation))
    saved = await checkpoint.load()
    if saved is None or saved.offset != objects.stop:
        return Lag(messages, None, time_us)
    size = sum(segment.size for segment in log.segments if segment.seq >= saved.place.seq)
    return Lag(messages, max(0, size - saved.place.byte), time_us)
