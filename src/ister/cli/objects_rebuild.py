"""Get metadata back that was lost: topics and descriptions from a listing of the object store and the bytes in it.

Nothing is guessed. An object counts once it was read whole; a topic whose objects do not reach from its first offset to
its last without a hole is left as it is, because its next owner would give the missing offsets to new messages. Each
topic is written only after all of it was read: its record, then its descriptions in order, so that whatever a crash in
between leaves is what the broker itself completes at its next start.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ister import config as settings
from ister.cli.compose import missing_store, open_metadata, open_store, topics_config
from ister.cli.display import bars
from ister.cli.exits import InputError
from ister.cli.objects_chain import Chain, Piece, find_chain, gaps
from ister.cli.topics_look import PATIENCE, Sources, generations_on_disk, store_told
from ister.core.errors import (
    ClientError,
    CorruptError,
    CorruptObjectError,
    FencedError,
    InvalidNameError,
    LockedError,
    MissingObjectError,
    StoreUnavailableError,
    UnknownTopicError,
)
from ister.core.names import TopicName
from ister.core.segment import Descriptor, describe, object_key, parse_key, topic_prefix
from ister.ports.objects.checked import read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ister.config import Config
    from ister.ports.metadata import Metadata
    from ister.ports.objects import CloudStore, ObjectInfo

NAMED_MAX = 3


class DescribedError(ClientError):
    """Metadata is not lost: it describes objects."""

    def __init__(self, metadata: str, topics: Sequence[str]) -> None:
        self.metadata = metadata
        self.topics = topics
        which = ", ".join(topics[:NAMED_MAX]) + (" and others" if len(topics) > NAMED_MAX else "")
        super().__init__(
            f"{metadata} describes objects already, of {which}; a rebuild is for metadata that was lost, so move what is "
            "left of it away first, and keep a copy"
        )


class MetadataInUseError(FencedError):
    """A broker writes this metadata."""

    def __init__(self, path: str, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"metadata {path} is in use by {holder}, probably a running broker; stop it, then rebuild")


class OtherGenerationError(CorruptError):
    """Metadata and objects disagree about which generation of a topic is the newest."""

    def __init__(self, topic: str, known: int, found: int) -> None:
        self.topic = topic
        self.known = known
        self.found = found
        super().__init__(
            f"topic {topic} is of generation {known} in metadata, and has objects of generation {found}; nothing of it was "
            "written: metadata is an old copy, so restore a newer one, or move it away and rebuild all of it"
        )


@dataclass(slots=True)
class TopicRebuild:
    """What was found of one topic, and what is wrong; `older` counts objects of generations before this one."""

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
    """What was found and done, topic by topic."""

    store: str
    metadata: str
    dry_run: bool
    topics: list[TopicRebuild]

    @property
    def problems(self) -> list[CorruptError]:
        """Everything that kept a topic from being rebuilt."""
        return [problem for topic in self.topics for problem in topic.problems]


def rebuild_with_bar(config: Config, topics: Sequence[str], *, dry_run: bool) -> RebuildReport:
    """Rebuild the topics, or all that have objects, with a progress bar where stderr is a terminal."""
    names = [TopicName.parse(topic) for topic in topics]
    with bars() as progress:
        task = progress.add_task("listing objects", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        return asyncio.run(_rebuild(config, names, show, dry_run=dry_run))


async def _rebuild(
    config: Config, names: Sequence[TopicName], show: Callable[[str, int, int], None], *, dry_run: bool
) -> RebuildReport:
    store = open_store(config, patience=PATIENCE)
    try:
        with store_told():
            if cause := missing_store(config):
                raise StoreUnavailableError(store.name, "be listed", cause)
            found = await _list_topics(store, names)
            async with _writing(config, dry_run=dry_run) as metadata:
                sources = Sources(config, topics_config(config), store, metadata) if metadata else None
                if sources is not None and (known := await _described(sources, names)):
                    raise DescribedError(sources.metadata.name, known)
                await _rebuild_topics(config, sources, store, found, show, dry_run=dry_run)
                name = "new metadata" if sources is None else sources.metadata.name
                return RebuildReport(store.name, name, dry_run, found)
    finally:
        await store.close()


async def _rebuild_topics(
    config: Config,
    sources: Sources | None,
    store: CloudStore,
    found: Sequence[TopicRebuild],
    show: Callable[[str, int, int], None],
    *,
    dry_run: bool,
) -> None:
    total = sum(piece.size for topic in found for piece in topic.pieces)
    done = 0

    def advance(topic: TopicRebuild, size: int) -> None:
        nonlocal done
        done += size
        show(f"reading {topic.topic}", done, total)

    for topic in found:
        await _rebuild_topic(config, sources, store, topic, advance, dry_run=dry_run)


@asynccontextmanager
async def _writing(config: Config, *, dry_run: bool) -> AsyncIterator[Metadata | None]:
    """Own the metadata; a dry run only reads it, and makes none where there is none."""
    match config.wal_cloud.metadata.store:
        case settings.SqliteMetadata(path) if dry_run and not path.exists():
            yield None
            return
        case settings.MemoryMetadata():
            dry_run = True  # refused, as for every tool
        case _:
            pass
    try:
        metadata = await open_metadata(config, read_only=dry_run)
    except LockedError as error:
        raise MetadataInUseError(error.directory, error.holder) from None
    try:
        yield metadata
    finally:
        await metadata.close()


async def _list_topics(store: CloudStore, names: Sequence[TopicName]) -> list[TopicRebuild]:
    """Return each topic with the objects of its newest generation, by the names of the objects alone."""
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
    """Return the first few topics that metadata describes objects of, among those that were named if any were."""
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
    config: Config,
    sources: Sources | None,
    store: CloudStore,
    topic: TopicRebuild,
    advance: Callable[[TopicRebuild, int], None],
    *,
    dry_run: bool,
) -> None:
    record = None if sources is None else await sources.registry.get(topic.topic)
    on_disk = max(await asyncio.to_thread(generations_on_disk, config.wal_cloud.wal.dir, topic.topic), default=0)
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
    values = await _read_chain(store, topic, advance)
    if topic.problems:
        topic.state = "refused"
        return
    topic.state = "would be rebuilt" if dry_run else "rebuilt"
    if topic.start:
        topic.note = f"nothing is there below offset {topic.start}"
    if sources is None or dry_run:
        return
    if record is None:
        await sources.registry.restore(topic.topic, topic.generation)
    catalog = sources.catalog(topic.topic, topic.generation)
    for key, value in values:
        await catalog.add(Descriptor.load(key, value))


async def _read_chain(
    store: CloudStore, topic: TopicRebuild, advance: Callable[[TopicRebuild, int], None]
) -> list[tuple[str, bytes]]:
    """Read the objects that join and reach farthest; returns their descriptions, or notes what is in the way.

    One that turns out to be damaged is left out, and the chain is sought anew without it.
    """
    read: dict[Piece, bytes] = {}
    damaged: dict[Piece, CorruptError] = {}
    whole = False
    while not whole:
        chain = find_chain([piece for piece in topic.pieces if piece not in damaged])
        whole = True
        for piece in chain.pieces:
            if piece in read:
                continue
            advance(topic, piece.size)
            try:
                read[piece] = await _describe(store, piece)
            except (CorruptObjectError, MissingObjectError) as error:
                damaged[piece] = error
                whole = False
                break
    _judge(topic, chain, damaged)
    return [(piece.key, read[piece]) for piece in chain.pieces]


def _judge(topic: TopicRebuild, chain: Chain, damaged: dict[Piece, CorruptError]) -> None:
    topic.start, topic.stop = chain.start, chain.stop
    topic.objects, topic.size = len(chain.pieces), sum(piece.size for piece in chain.pieces)
    topic.orphans = len(topic.pieces) - len(chain.pieces)
    holes = gaps(topic.topic, chain, topic.pieces)
    if holes:
        # Damage that another object makes good for is no problem of the topic.
        topic.problems += [error for piece, error in damaged.items() if piece.name.stop > chain.stop]
        topic.problems += holes


async def _describe(store: CloudStore, piece: Piece) -> bytes:
    """Read an object whole; returns its description, in the compact form that metadata keeps."""

    def described(info: ObjectInfo, data: bytes) -> Descriptor:
        return describe(data, piece.key, piece.name, epoch=0, etag=info.etag)

    return (await read_whole(store, piece.key, check=described)).dump()
