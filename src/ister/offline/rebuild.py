"""Rebuild of lost metadata: topics and descriptors, from a listing of the object store and the objects themselves.

An object counts only after it was read completely. A topic whose objects have a hole is left unchanged, because its next
owner would give the missing offsets to new messages. Each topic is written only after all of it was read: its record, then
its descriptors in order, so that a crash in between leaves a state that the broker completes at its next start.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import (
    ClientError,
    CorruptError,
    CorruptObjectError,
    FencedError,
    InputError,
    InvalidNameError,
    LockedError,
    MissingObjectError,
    StoreUnavailableError,
    UnknownTopicError,
)
from ister.core.frames.segment import Descriptor, describe, object_key, parse_key, topic_prefix
from ister.core.names import TopicName
from ister.offline.topic import RETRY_OPTIONS, Sources, reporting_store
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects.checked import read_whole
from ister.runtime.compose import missing_store, open_metadata, open_store, topics_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ister.config import Config
    from ister.core.frames.segment import ObjectName
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore, ObjectInfo

NAMED_MAX = 3


class DescribedError(ClientError):
    """Metadata is not lost: it has descriptors."""

    def __init__(self, metadata: str, topics: Sequence[str]) -> None:
        self.metadata = metadata
        self.topics = topics
        which = ", ".join(topics[:NAMED_MAX]) + (" and others" if len(topics) > NAMED_MAX else "")
        super().__init__(
            f"{metadata} describes objects already, of {which}; a rebuild is for metadata that was lost, so move what is "
            "left of it away first, and keep a copy"
        )


class MetadataInUseError(FencedError):
    """A broker has this metadata open."""

    def __init__(self, path: str, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"metadata {path} is in use by {holder}, probably a running broker; stop it, then rebuild")


class OtherGenerationError(CorruptError):
    """Metadata and objects have different newest generations of a topic."""

    def __init__(self, topic: str, known: int, found: int) -> None:
        self.topic = topic
        self.known = known
        self.found = found
        super().__init__(
            f"topic {topic} is of generation {known} in metadata, and has objects of generation {found}; nothing of it was "
            "written: metadata is an old copy, so restore a newer one, or move it away and rebuild all of it"
        )


class HoleError(CorruptError):
    """The objects of a topic do not hold all offsets that their names cover."""

    def __init__(self, topic: TopicName, start: int, stop: int, reason: str) -> None:
        self.topic = topic
        self.start = start
        self.stop = stop
        self.reason = reason
        super().__init__(
            f"topic {topic}: offsets [{start}, {stop}) are missing: {reason}; nothing of this topic was written: restore "
            "those objects from a copy, or move the later ones away, and rebuild again from nothing"
        )


class Piece(NamedTuple):
    """An object's key, name and size."""

    key: str
    name: ObjectName
    size: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Contiguous objects from `start` to `stop`."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class TopicRebuild:
    """The objects of one topic and its problems; `older` counts objects of earlier generations."""

    topic: TopicName
    generation: int
    pieces: list[Piece]
    older: int = 0
    start: int = 0
    stop: int = 0
    objects: int = 0
    size: int = 0
    orphans: int = 0
    state: str = "found"
    note: str = ""
    problems: list[CorruptError] = field(default_factory=list)


@dataclass(slots=True)
class RebuildReport:
    """What was found and rebuilt of each topic."""

    store: str
    metadata: str
    dry_run: bool
    topics: list[TopicRebuild]

    @property
    def problems(self) -> list[CorruptError]:
        """All problems that prevented the rebuild of a topic."""
        return [problem for topic in self.topics for problem in topic.problems]


def rebuild(
    config: Config, topics: Sequence[str], show: Callable[[int, int, str], None], *, dry_run: bool
) -> RebuildReport:
    """Rebuild the topics, or all that have objects; `show` is called with bytes read, their total, and a description."""
    names = [TopicName.parse(topic) for topic in topics]
    return asyncio.run(_rebuild(config, names, show, dry_run=dry_run))


async def _rebuild(
    config: Config, names: Sequence[TopicName], show: Callable[[int, int, str], None], *, dry_run: bool
) -> RebuildReport:
    store = open_store(config, retry=RETRY_OPTIONS)
    try:
        with reporting_store():
            if cause := missing_store(config):
                raise StoreUnavailableError(store.name, "be listed", cause)
            found = await _list_topics(store, names)
            async with _opened_metadata(config, dry_run=dry_run) as metadata:
                sources = Sources(config, topics_config(config), store, metadata)
                if known := await _described(sources, names):
                    raise DescribedError(metadata.name, known)
                total, done = sum(piece.size for topic in found for piece in topic.pieces), 0

                def advance(topic: TopicRebuild, size: int) -> None:
                    nonlocal done
                    done += size
                    show(done, total, f"reading {topic.topic}")

                for topic in found:
                    await _rebuild_topic(sources, topic, advance, dry_run=dry_run)
                name = "new metadata" if isinstance(metadata, MemoryMetadata) else metadata.name
                return RebuildReport(store.name, name, dry_run, found)
    finally:
        await store.close()


@asynccontextmanager
async def _opened_metadata(config: Config, *, dry_run: bool) -> AsyncIterator[Metadata]:
    """Open the metadata for writing; a dry run opens it read-only, or yields an empty one if there is none."""
    section = config.wal_cloud.metadata
    if dry_run and section.kind == "sqlite" and not section.sqlite_file.exists():
        yield MemoryMetadata()
        return
    try:
        # Metadata in memory is refused, as by every offline tool, by opening it read-only.
        metadata = await open_metadata(config, read_only=dry_run or section.kind == "memory")
    except LockedError as error:
        raise MetadataInUseError(error.directory, error.holder) from None
    try:
        yield metadata
    finally:
        await metadata.close()


async def _list_topics(store: CloudStore, names: Sequence[TopicName]) -> list[TopicRebuild]:
    """Return each topic with the objects of its newest generation, by the keys of the objects."""
    pieces: dict[TopicName, list[Piece]] = {}
    for prefix in [topic_prefix(name) for name in names] or [""]:
        async with aclosing(store.list(prefix)) as listing:
            async for info in listing:
                name = parse_key(info.key)
                if name is None:
                    continue
                try:
                    topic = TopicName(*info.key.split("/")[:2])
                except InvalidNameError:
                    continue
                if object_key(topic, *name) == info.key:
                    pieces.setdefault(topic, []).append(Piece(info.key, name, info.size))
    for wanted in names:
        if wanted not in pieces:
            raise UnknownTopicError(str(wanted), f"the objects of {store.name}")
    if not pieces:
        raise InputError(store.name, "has no objects of any topic; check --data-dir, or wal_cloud.cloud in --config")
    found = []
    for topic, all_of_it in sorted(pieces.items()):
        newest = max(piece.name.generation for piece in all_of_it)
        mine = sorted({piece for piece in all_of_it if piece.name.generation == newest})
        found.append(TopicRebuild(topic, newest, mine, older=len(set(all_of_it)) - len(mine)))
    return found


async def _described(sources: Sources, names: Sequence[TopicName]) -> list[str]:
    """Return the first few topics, of those named if any, that have descriptors in metadata."""
    prefix = f"{sources.topics.root_prefix.rstrip('/')}/storage/objects/"
    if names:
        return [
            str(name)
            for name in names
            if await sources.metadata.list(f"{prefix}{name.namespace}/{name.topic}/", limit=1)
        ]
    topics: list[str] = []
    start = ""
    while len(topics) <= NAMED_MAX and (entries := await sources.metadata.list(prefix, start=start, limit=1)):
        namespace, topic = entries[0].key.removeprefix(prefix).split("/")[:2]
        topics.append(f"/{namespace}/{topic}")
        start = f"{prefix}{namespace}/{topic}0"  # behind every key of this topic: 0 is the character after /
    return topics


async def _rebuild_topic(
    sources: Sources, topic: TopicRebuild, advance: Callable[[TopicRebuild, int], None], *, dry_run: bool
) -> None:
    record = await sources.registry.get(topic.topic)
    on_disk = max(await sources.log_root.generations(topic.topic), default=0)
    known = 0 if record is None else record.generation
    if (record is not None and record.deleted and known >= topic.generation) or max(known, on_disk) > topic.generation:
        topic.state = "skipped"
        topic.note = f"its objects are of generation {topic.generation}, which was deleted; they are left as they are"
        topic.orphans = len(topic.pieces)
        return
    if record is not None and known < topic.generation:
        topic.problems.append(OtherGenerationError(str(topic.topic), known, topic.generation))
        topic.state = "refused"
        return
    values = await _read_chain(sources.store, topic, advance)
    if topic.problems:
        topic.state = "refused"
        return
    topic.state = "would be rebuilt" if dry_run else "rebuilt"
    if topic.start:
        topic.note = f"nothing is there below offset {topic.start}"
    if dry_run:
        return
    if record is None:
        await sources.registry.restore(topic.topic, topic.generation)
    catalog = sources.catalog(topic.topic, topic.generation)
    for key, value in values:
        await catalog.add(Descriptor.load(key, value))


async def _read_chain(
    store: CloudStore, topic: TopicRebuild, advance: Callable[[TopicRebuild, int], None]
) -> list[tuple[str, bytes]]:
    """Read the longest chain of objects; return their descriptors, and add problems to the topic.

    A damaged object is left out, and the chain is computed again without it.
    """
    read: dict[Piece, bytes] = {}
    damaged: dict[Piece, CorruptError] = {}
    complete = False
    while not complete:
        chain = find_chain([piece for piece in topic.pieces if piece not in damaged])
        complete = True
        for piece in chain.pieces:
            if piece in read:
                continue
            advance(topic, piece.size)
            try:
                read[piece] = await _describe(store, piece)
            except (CorruptObjectError, MissingObjectError) as error:
                damaged[piece] = error
                complete = False
                break
    topic.start, topic.stop = chain.start, chain.stop
    topic.objects, topic.size = len(chain.pieces), sum(piece.size for piece in chain.pieces)
    topic.orphans = len(topic.pieces) - len(chain.pieces)
    if holes := gaps(topic.topic, chain, topic.pieces):
        # Damage that another object covers is no problem of the topic.
        topic.problems += [error for piece, error in damaged.items() if piece.name.stop > chain.stop]
        topic.problems += holes
    return [(piece.key, read[piece]) for piece in chain.pieces]


async def _describe(store: CloudStore, piece: Piece) -> bytes:
    """Read an object; return its serialized descriptor."""

    def described(info: ObjectInfo, data: bytes) -> Descriptor:
        return describe(data, piece.key, piece.name, epoch=0, etag=info.etag)

    return (await read_whole(store, piece.key, check=described)).dump()


# --- chains of objects ------------------------------------------------------------------------------------------------


def find_chain(pieces: Sequence[Piece]) -> Chain:
    """Return the longest chain from the lowest start; of two as long, the one of larger objects."""
    if not pieces:
        return Chain(0, 0, ())
    reach: dict[int, int] = {}
    best: dict[int, Piece] = {}
    for piece in sorted(pieces, key=lambda piece: (-piece.name.start, -piece.name.stop)):
        start, stop = piece.name.start, piece.name.stop
        far = reach.get(stop, stop)
        if far > reach.get(start, start):
            reach[start], best[start] = far, piece
    at = first = min(piece.name.start for piece in pieces)
    chain = []
    while at in best:
        chain.append(best[at])
        at = best[at].name.stop
    return Chain(first, at, tuple(chain))


def gaps(topic: TopicName, chain: Chain, pieces: Sequence[Piece]) -> list[HoleError]:
    """Return the holes of a chain: offsets of its topic's objects that it does not cover.

    No object has them, or only objects that are damaged or not contiguous.
    """
    stop = max((piece.name.stop for piece in pieces), default=0)
    start = min((piece.name.start for piece in pieces), default=0)
    found = []
    if start < chain.start:
        found.append(HoleError(topic, start, chain.start, "only damaged objects have them"))
    if chain.stop < stop:
        beyond = sorted(piece.name for piece in pieces if piece.name.stop > chain.stop)
        behind = [name.start for name in beyond if name.start > chain.stop]
        reason = "the objects that have them are damaged, or do not join those before"
        if len(behind) == len(beyond):
            reason = "no object has them, and later ones are there"
        found.append(HoleError(topic, chain.stop, behind[0] if behind else stop, reason))
    return found
