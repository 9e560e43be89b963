"""Descriptors of one topic's objects in metadata, one key per object, ordered by offset."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from ister.core.errors import CorruptMetadataError, MissingOffsetsError, OtherOwnerError
from ister.core.frames.segment import Descriptor, object_key
from ister.ports.metadata.store import entries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.core.names import TopicName
    from ister.ports.metadata import Entry, Metadata

PAGE = 32
BORDER_NUMBERS = 2
NEARBY = (4, 6, 8, 20)
"""The numbers of trailing digits of an offset that the search for its object leaves open, in order."""


class ObjectCatalog:
    """The descriptors of one topic and generation.

    Descriptors below `begin` do not count: the topic's table holds those messages, or a retention policy deleted them from
    the log while uploads were off. `table_upto` is the offset below which the table was proven complete.
    """

    def __init__(self, metadata: Metadata, root_prefix: str, topic: TopicName, generation: int) -> None:
        self.topic = topic
        self.generation = generation
        self.begin = self.table_upto = 0
        self._saving = asyncio.Lock()
        self._metadata = metadata
        self._prefix = catalog_prefix(root_prefix, topic, generation)
        place = f"{topic.namespace}/{topic.topic}/{generation:010}"
        self._border_key = f"{root_prefix.rstrip('/')}/storage/objects_border/{place}"
        """The key of the border: where this generation's objects begin, and how far its table was proven."""

    def object_key(self, descriptor: Descriptor) -> str:
        """Return the key of a described object."""
        return object_key(self.topic, self.generation, descriptor.start, descriptor.stop)

    async def first(self) -> Descriptor | None:
        """Return the oldest descriptor."""
        found = await self._metadata.list(self._prefix, limit=1)
        return self._load(found[0]) if found else None

    async def last(self) -> Descriptor | None:
        """Return the newest descriptor; an empty one at `begin` if there is no object from there on."""
        found = await self._metadata.list(self._prefix, limit=1, reverse=True)
        last = self._load(found[0]) if found else None
        if self.begin > (last.stop if last else 0):
            return Descriptor(
                generation=self.generation, epoch=0, start=self.begin, stop=self.begin, size=0, checksum=0, etag="",
                append_time_us=0, index=(),
            )  # fmt: skip
        return last

    async def load_border(self) -> None:
        """Load `begin` and `table_upto`."""
        entry = await self._metadata.get(self._border_key)
        if entry is not None:
            numbers = entry.value.split()
            if len(numbers) != BORDER_NUMBERS or not all(number.isdigit() for number in numbers):
                raise CorruptMetadataError(self._border_key, "it is not two offsets")
            self.begin, self.table_upto = map(int, numbers)

    async def begin_at(self, offset: int, *, in_table: bool = True) -> None:
        """Raise `begin` to an offset, because the table was proven to hold everything below.

        Without `in_table`, everything below is deleted from every tier.
        """
        await self._save_border(begin=offset, upto=offset if in_table else 0)

    async def note_table(self, upto: int) -> None:
        """Raise `table_upto`: the table was proven to hold everything below, so it is not missing."""
        await self._save_border(begin=0, upto=upto)

    async def _save_border(self, *, begin: int, upto: int) -> None:
        async with self._saving:  # log pruning and object retention must not undo each other's change
            border = (max(self.begin, begin), max(self.table_upto, upto))
            if border != (self.begin, self.table_upto):
                await self._metadata.put(self._border_key, b"%d %d" % border)
                self.begin, self.table_upto = border

    async def find(self, offset: int) -> Descriptor | None:
        """Return the descriptor of the object that holds an offset, None if there is none."""
        key = self._key(offset)
        for digits in NEARBY:
            # etcd reads a whole range to give its last key, so the range is small at first.
            found = await self._metadata.list(key[: len(key) - digits], start=key, limit=1, reverse=True)
            if found:
                descriptor = self._load(found[0])
                return descriptor if offset < descriptor.stop else None
        return None

    async def span(self, start: int, stop: int) -> AsyncGenerator[Descriptor]:
        """Yield the descriptors that cover [start, stop), in order; raise MissingOffsetsError at a hole."""
        descriptor = await self.find(start)
        if descriptor is None:
            raise await self._hole(start, stop)
        yield descriptor
        while descriptor.stop < stop:
            page = await self._metadata.list(self._prefix, start=self._key(descriptor.stop), limit=PAGE)
            for entry in page:
                following = self._load(entry)
                if following.start != descriptor.stop:
                    raise MissingOffsetsError(descriptor.stop, following.start, "no object describes them")
                descriptor = following
                yield descriptor
                if descriptor.stop >= stop:
                    return
            if not page:
                raise MissingOffsetsError(descriptor.stop, stop, "no object describes them")

    async def add(self, descriptor: Descriptor) -> None:
        """Add a descriptor; adding it twice is harmless. Raise OtherOwnerError if there is a different one."""
        key, value = self._key(descriptor.start), descriptor.dump()
        if await self._metadata.cas(key, value, version=0) is not None:
            return
        there = await self._metadata.get(key)
        if there is None:
            raise OtherOwnerError(key)
        found = self._load(there)
        if (found.stop, found.size, found.checksum) != (descriptor.stop, descriptor.size, descriptor.checksum):
            raise OtherOwnerError(key)

    async def replace(self, before: Descriptor, after: Descriptor) -> None:
        """Replace the descriptor of an object that is put again; OtherOwnerError if it is not `before`."""
        key = self._key(before.start)
        entry = await self._metadata.get(key)
        found = None if entry is None else self._load(entry)
        if entry is None or found not in {before, after}:
            raise OtherOwnerError(key)
        if found != after and await self._metadata.cas(key, after.dump(), version=entry.version) is None:
            raise OtherOwnerError(key)

    async def remove(self, descriptor: Descriptor) -> None:
        """Delete a descriptor."""
        await self._metadata.delete(self._key(descriptor.start))

    async def all(self, start: int = 0) -> AsyncGenerator[Descriptor]:
        """Yield every descriptor from an offset on, in order, with or without holes."""
        async with aclosing(entries(self._metadata, self._prefix, PAGE, start=self._key(start))) as found:
            async for entry in found:
                yield self._load(entry)

    async def clear(self) -> int:
        """Delete every descriptor, the newest first, so that the rest has no hole; return how many there were."""
        count = 0
        while page := await self._metadata.list(self._prefix, limit=PAGE, reverse=True):
            for entry in page:
                await self._metadata.delete(entry.key)
                count += 1
        await self._metadata.delete(self._border_key)
        return count

    async def _hole(self, start: int, stop: int) -> MissingOffsetsError:
        after = await self._metadata.list(self._prefix, start=self._key(start), limit=1)
        ends = min(stop, self._load(after[0]).start) if after else stop
        return MissingOffsetsError(start, ends, "no object describes them")

    def _key(self, start: int) -> str:
        return f"{self._prefix}{start:020}"

    def _load(self, entry: Entry) -> Descriptor:
        descriptor = Descriptor.load(entry.key, entry.value)
        if entry.key != self._key(descriptor.start) or descriptor.generation != self.generation:
            raise CorruptMetadataError(entry.key, "it describes another object than its name says")
        return descriptor


def catalog_prefix(root_prefix: str, topic: TopicName, generation: int) -> str:
    """Return the key prefix of a generation's descriptors."""
    return f"{root_prefix.rstrip('/')}/storage/objects/{topic.namespace}/{topic.topic}/{generation:010}/"
