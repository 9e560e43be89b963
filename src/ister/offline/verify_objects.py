"""Verification of a topic's objects: each is read and compared with its descriptor. Writes nothing.

An object may be put and not yet described meanwhile; the store is listed first and the descriptors are read afterwards, so
that only what stays undescribed counts as an orphan.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ister.cloud.descriptors import PAGE, catalog_prefix
from ister.core.errors import (
    CorruptError,
    CorruptMetadataError,
    CorruptObjectError,
    MissingObjectError,
    MissingOffsetsError,
    UnknownTopicError,
)
from ister.core.frames import kernels
from ister.core.frames.columns import scan_run
from ister.core.frames.segment import Descriptor, ObjectName, describe, object_key, parse_key, topic_prefix
from ister.core.names import TopicName
from ister.offline.topic import find_generation, open_sources
from ister.ports.metadata.store import entries
from ister.ports.objects.checked import read_checked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from ister.config import Config
    from ister.offline.topic import Sources
    from ister.ports.objects import CloudStore


@dataclass(slots=True)
class ObjectsReport:
    """The sound objects, the problems, and the objects that are not needed.

    Orphans are objects of this generation without a descriptor; strangers are all else below the topic's prefix.
    """

    topic: TopicName
    generation: int
    store: str
    start: int = 0
    stop: int = 0
    objects: int = 0
    sound: int = 0
    size: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    orphans_ahead: int = 0
    strangers: int = 0
    problems: list[CorruptError] = field(default_factory=list)


def verify_objects(config: Config, topic: str, show: Callable[[int, int], None]) -> ObjectsReport:
    """Check a topic's objects; `show` is called with the bytes read and their total."""
    return asyncio.run(_verify(config, TopicName.parse(topic), show))


async def _verify(config: Config, topic: TopicName, show: Callable[[int, int], None]) -> ObjectsReport:
    async with open_sources(config) as sources:
        generation = await find_generation(sources, topic)
        report = ObjectsReport(topic, generation, sources.store.name)
        listed = {info.key: info.size async for info in sources.store.list(topic_prefix(topic))}
        described = await _check_contiguous(sources, report)
        if described:
            sources.check_store()
        _count_others(report, listed, described)
        done = 0
        async with aclosing(_descriptors(sources, topic, generation)) as found:
            async for descriptor in found:
                if not isinstance(descriptor, Descriptor):
                    continue  # reported already
                if descriptor.start >= report.stop:
                    break  # described since the start
                problem = await _check(sources.store, topic, descriptor)
                if problem is None:
                    report.sound += 1
                else:
                    report.problems.append(problem)
                done += descriptor.size
                show(done, report.size)
        if report.problems and await find_generation(sources, topic) != generation:
            raise UnknownTopicError(f"{topic} of generation {generation} any more", sources.metadata.name)
        return report


async def _check_contiguous(sources: Sources, report: ObjectsReport) -> set[str]:
    """Check that the descriptors are contiguous; return the keys of the described objects."""
    keys: set[str] = set()
    async with aclosing(_descriptors(sources, report.topic, report.generation)) as found:
        async for descriptor in found:
            if not isinstance(descriptor, Descriptor):
                report.problems.append(descriptor)
                continue
            key = object_key(report.topic, report.generation, descriptor.start, descriptor.stop)
            if not keys:
                report.start = descriptor.start
            elif descriptor.start > report.stop:
                hole = MissingOffsetsError(report.stop, descriptor.start, "no object describes them")
                report.problems.append(hole)
            elif descriptor.start < report.stop:
                reason = f"it starts at offset {descriptor.start}, and the object before it ends at {report.stop}"
                report.problems.append(CorruptMetadataError(key, reason))
            keys.add(key)
            report.stop = descriptor.stop
            report.objects += 1
            report.size += descriptor.size
    return keys


async def _descriptors(
    sources: Sources, topic: TopicName, generation: int
) -> AsyncGenerator[Descriptor | CorruptMetadataError]:
    """Yield every valid descriptor in order, and the error in place of one that cannot be read."""
    catalog = sources.catalog(topic, generation)
    await catalog.load_border()
    prefix = catalog_prefix(sources.topics.root_prefix, topic, generation)
    async for entry in entries(sources.metadata, prefix, PAGE):
        try:
            descriptor = Descriptor.load(entry.key, entry.value)
        except CorruptMetadataError as error:
            yield error
            continue
        if descriptor.stop <= catalog.begin:
            continue  # the table holds these, and they are not read from objects any more
        if entry.key == f"{prefix}{descriptor.start:020}" and descriptor.generation == generation:
            yield descriptor
        else:
            yield CorruptMetadataError(entry.key, "it describes another object than its name says")


def _count_others(report: ObjectsReport, listed: dict[str, int], described: set[str]) -> None:
    for key, size in listed.items():
        if key in described:
            continue
        name = parse_key(key)
        if name is None or name.generation != report.generation:
            report.strangers += 1
            continue
        report.orphans += 1
        report.orphan_bytes += size
        report.orphans_ahead += name.start >= report.stop


async def _check(store: CloudStore, topic: TopicName, descriptor: Descriptor) -> CorruptError | None:
    """Read one object and return its first problem."""
    name = ObjectName(descriptor.generation, descriptor.start, descriptor.stop)
    key = object_key(topic, *name)
    info = await store.stat(key)
    if info is None:
        return MissingObjectError(key, store.name)

    def described(data: bytes) -> tuple[bytes, Descriptor]:
        return data, describe(data, key, name, epoch=descriptor.epoch, etag=descriptor.etag)

    try:
        size = min(info.size, descriptor.size)
        data, found = await read_checked(store, key, 0, size, etag=info.etag, check=described)
    except (CorruptObjectError, MissingObjectError) as error:
        if info.size < descriptor.size and isinstance(error, CorruptObjectError):
            reason = f"it has {info.size} bytes, {descriptor.size} were put"
            return CorruptObjectError(key, error.byte, error.expected_offset, reason)
        return error
    if info.size != descriptor.size:
        return CorruptObjectError(key, descriptor.size, -1, f"it has {info.size} bytes, {descriptor.size} were put")
    if descriptor.etag and info.etag and info.etag != descriptor.etag:
        return CorruptObjectError(key, -1, -1, f"its etag is {info.etag}, {descriptor.etag} was put")
    if found.checksum != descriptor.checksum:
        reason = f"its frames are whole, but its crc32 is {found.checksum:08x}, {descriptor.checksum:08x} was put"
        return CorruptObjectError(key, -1, -1, reason)
    if found.append_time_us != descriptor.append_time_us:
        return CorruptMetadataError(key, f"its newest message is of {found.append_time_us} µs, the description errs")
    if found.index != descriptor.index:
        return await asyncio.to_thread(_check_index, data, key, descriptor)
    return None


def _check_index(data: bytes, key: str, descriptor: Descriptor) -> CorruptError | None:
    """Check an index with other entries than ours, as another release may write it: a frame must start at each."""
    places = [*descriptor.index, (descriptor.stop, len(data))]
    for (offset, at), (next_offset, stop) in pairwise(places):
        scan = scan_run(memoryview(data)[at:stop], first_offset=offset)
        if scan.code != kernels.OK or scan.next_offset != next_offset:
            return CorruptMetadataError(key, f"its index says that offset {offset} begins at byte {at}, which is wrong")
    return None
