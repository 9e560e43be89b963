"""Topic generations in metadata: one record a name, which outlives deletion so that a generation is used once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ister.core.errors import CorruptMetadataError, TopicTakenError
from ister.core.names import TopicName
from ister.core.table.names import base_of
from ister.ports.metadata.store import entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.errors import IsterError
    from ister.ports.metadata import Entry, Metadata

VERSION = 1
PAGE = 500


@dataclass(frozen=True, slots=True)
class TopicGeneration:
    """A topic's generation, the count of its openings, and whether it was deleted; `version` is the metadata's.

    `removed` means that log, objects, descriptors and cursors of a deleted generation were removed.
    """

    generation: int
    epoch: int
    deleted: bool = False
    version: int = field(default=0, compare=False)
    removed: bool = False

    def is_deleted(self, on_disk: Sequence[int]) -> bool:
        """Return True if the topic is deleted; a directory of a later generation means that this record is old."""
        return self.deleted and max(on_disk, default=0) <= self.generation

    def needs_removal(self, on_disk: Sequence[int]) -> bool:
        """Return True if data of the deleted generation may be left."""
        return self.deleted and (not self.removed or self.generation in on_disk)


class TopicRegistry:
    """The records of all topics."""

    def __init__(self, metadata: Metadata, root_prefix: str) -> None:
        self._metadata = metadata
        self._prefix = f"{root_prefix.rstrip('/')}/storage/topics/"

    async def get(self, topic: TopicName) -> TopicGeneration | None:
        """Return a topic's record, None if there never was one."""
        entry = await self._metadata.get(self._key(topic))
        return None if entry is None else _load(entry)

    async def all(self, damaged: dict[TopicName, IsterError] | None = None) -> dict[TopicName, TopicGeneration]:
        """Return every record, those of deleted topics included; damage goes to `damaged` if given, else it is raised."""
        found: dict[TopicName, TopicGeneration] = {}
        async for entry in entries(self._metadata, self._prefix, PAGE):
            topic = TopicName.parse(entry.key.removeprefix(self._prefix[:-1]))
            try:
                found[topic] = _load(entry)
            except CorruptMetadataError as error:
                if damaged is None:
                    raise
                damaged[topic] = error
        return found

    async def claim(self, topic: TopicName, known: TopicGeneration | None, on_disk: Sequence[int]) -> TopicGeneration:
        """Open a topic: choose its generation, increment its epoch, and write both before anything else is done.

        `known` is its record as it was read; TopicTakenError if it has changed since.
        """
        relatives = await self._relatives(topic) if known is None or known.deleted else ()
        record = decide_record(known, on_disk, relatives)
        await self._write(topic, record, 0 if known is None else known.version)
        return record

    async def mark_deleted(self, topic: TopicName, on_disk: Sequence[int] = ()) -> TopicGeneration | None:
        """Mark a topic as deleted; its name means another generation from then on. Returns None if there is no record.

        The record covers generations `on_disk`, too, which a restored old copy of the metadata does not know.
        """
        known = await self.get(topic)
        if known is None:
            return None
        record = replace(known, generation=max([known.generation, *on_disk]), deleted=True, removed=False)
        await self._write(topic, record, known.version)
        return record

    async def mark_removed(self, topic: TopicName, generation: int) -> None:
        """Mark a deleted generation as removed; does nothing if the record has changed meanwhile."""
        record = await self.get(topic)
        if record is not None and record.deleted and not record.removed and record.generation == generation:
            await self._write(topic, replace(record, removed=True), record.version)

    async def restore(self, topic: TopicName, generation: int) -> None:
        """Create the record of a topic that was found in a listing of objects; TopicTakenError if there is one."""
        await self._write(topic, TopicGeneration(generation, 0), 0)

    async def _relatives(self, topic: TopicName) -> list[TopicGeneration]:
        """Return the records of topics that share a table with this one: its base, and the other partitions of that."""
        base = base_of(topic)
        found = [] if base == topic else [await self.get(base)]
        async for entry in entries(self._metadata, f"{self._key(base)}-part-", PAGE):
            name = TopicName.parse(entry.key.removeprefix(self._prefix[:-1]))
            if name != topic and base_of(name) == base:
                found.append(_load(entry))
        return [record for record in found if record is not None]

    async def _write(self, topic: TopicName, record: TopicGeneration, version: int) -> None:
        content = {
            "version": VERSION,
            "generation": record.generation,
            "epoch": record.epoch,
            "deleted": record.deleted,
            **({"removed": True} if record.removed else {}),
        }
        value = json.dumps(content, separators=(",", ":")).encode()
        if await self._metadata.cas(self._key(topic), value, version=version) is None:
            raise TopicTakenError(str(topic))

    def _key(self, topic: TopicName) -> str:
        return f"{self._prefix}{topic.namespace}/{topic.topic}"


def decide_record(
    known: TopicGeneration | None, on_disk: Sequence[int], relatives: Sequence[TopicGeneration] = ()
) -> TopicGeneration:
    """Return the record under which a topic is opened.

    A deleted generation is never used again. A generation on disk that metadata does not know means that metadata was
    lost or restored: names on disk are the truth. A new topic joins the generation of its live relatives, the partitions of
    the same base; without any it gets a generation that none of them ever had, because a generation shares a table, which
    keeps the rows of deleted topics.
    """
    newest = max(on_disk, default=0)
    epoch = 1 if known is None else known.epoch + 1
    if known is not None and not known.deleted:
        return TopicGeneration(max(known.generation, newest), epoch)
    if newest > (0 if known is None else known.generation):
        return TopicGeneration(newest, epoch)
    living = max((record.generation for record in relatives if not record.deleted), default=0)
    deleted = [record.generation for record in relatives if record.deleted]
    dead = max(deleted if known is None else [*deleted, known.generation], default=0)
    return TopicGeneration(living if living > dead else dead + 1, epoch)


def _load(entry: Entry) -> TopicGeneration:
    try:
        content = json.loads(entry.value)
        if content["version"] != VERSION:
            raise CorruptMetadataError(
                entry.key, f"its version is {content['version']!r}, this release knows {VERSION}"
            )
        generation, epoch, deleted = content["generation"], content["epoch"], content["deleted"]
        removed = content.get("removed", False)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadataError(entry.key, f"it is not a topic's record ({type(error).__name__})") from None
    numbers = isinstance(generation, int) and isinstance(epoch, int) and generation > 0
    if not (numbers and isinstance(deleted, bool) and isinstance(removed, bool)):
        raise CorruptMetadataError(entry.key, "what it says of a topic cannot be")
    return TopicGeneration(generation, epoch, deleted, entry.version, removed)
