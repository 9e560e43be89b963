"""Retention of objects: periodic deletion of old objects that the table is proven to hold, oldest first.

The order is proof, start, descriptors, objects. First the table's newest snapshot must have exactly these offsets, and every
row of them is read with its checksum. Then the start of objects in metadata is moved after them, and no reader uses them any
more. Then the descriptors are deleted, oldest first, and the objects last. So a crash leaves neither a descriptor without its
object nor a gap for readers, only objects without a descriptor, which a later run finds in the listing and deletes.

Cursors do not retain objects: the table serves subscriptions that are behind.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.aio.periodic import Periodic
from ister.core.frames.segment import generation_prefix, parse_key
from ister.core.tiers.retention import SealedSegment, objects_droppable_below

if TYPE_CHECKING:
    from ister.core.errors import IsterError
    from ister.core.frames.segment import Descriptor, ObjectName
    from ister.ports.clock import Clock
    from ister.storage.table_tier import TableTier
    from ister.storage.tiered_reader import ObjectTier

log = structlog.get_logger()

BATCH = 256
"""Objects checked and deleted at a time."""


class ObjectKeeper:
    """The object retention of one topic; `run` as a task, or `tick` by hand."""

    def __init__(self, objects: ObjectTier, table: TableTier, retention_s: float, clock: Clock) -> None:
        self.objects_deleted = 0
        self._objects = objects
        self._table = table
        self._retention_s = retention_s
        self._clock = clock
        self._topic = str(objects.reader.catalog.topic)
        self._periodic = Periodic(self._topic, self.tick, "object_retention_failed")
        self._working = asyncio.Lock()
        self._leftovers = True  # an earlier life may have left some

    @property
    def problem(self) -> IsterError | None:
        """Why the last run failed, None if it succeeded."""
        return self._periodic.problem

    async def run(self, interval_s: float) -> None:
        """Check once per interval until cancelled."""
        await self._periodic.run(interval_s)

    async def tick(self) -> int:
        """Delete objects that have expired; returns the number of deleted objects without a descriptor."""
        deleted = 0
        async with self._working:
            while await self._let_go():
                pass
            while self._leftovers:
                count = await self._delete_undescribed()
                deleted += count
                self._leftovers = count == BATCH
        return deleted

    async def _let_go(self) -> bool:
        """Delete the descriptors of the oldest objects; returns True if there may be more."""
        catalog = self._objects.reader.catalog
        oldest = await self._oldest()
        start = oldest[0].start if oldest else 0
        if self._droppable(oldest, self._table.end.upto) <= start:
            return False
        end = await self._table.table.look()
        self._table.reached(end)
        below = self._droppable(oldest, end.upto)
        if below <= start:
            return False
        await self._table.table.prove(start, below)
        await self._read(start, below)
        await catalog.begin_at(below)
        self._objects.forget_below(below)
        self._leftovers = True
        for descriptor in oldest:
            if descriptor.stop <= below:
                await catalog.remove(descriptor)
        log.info("objects_let_go", topic=self._topic, start=start, stop=below, snapshot_id=end.snapshot_id)
        return len(oldest) == BATCH

    async def _read(self, start: int, stop: int) -> None:
        """Read rows as a consumer would, with checksums: after the deletion the table has the only copy."""
        stream = self._table.table.open(start, stop)
        try:
            while await stream.read():
                pass
        finally:
            await stream.close()

    async def _oldest(self) -> list[Descriptor]:
        found: list[Descriptor] = []
        async with aclosing(self._objects.reader.catalog.all()) as described:
            async for descriptor in described:
                found.append(descriptor)
                if len(found) == BATCH:
                    break
        return found

    def _droppable(self, oldest: list[Descriptor], upto: int) -> int:
        return objects_droppable_below(
            [SealedSegment(piece.start, piece.stop, piece.append_time_us, piece.size) for piece in oldest],
            upto=upto,
            retention_s=self._retention_s,
            now_us=self._clock.wall_us(),
        )

    async def _delete_undescribed(self) -> int:
        """Delete the oldest objects below the first descriptor, if the table holds them; returns their number."""
        reader = self._objects.reader
        first = await reader.catalog.first()
        prefix = generation_prefix(reader.catalog.topic, reader.catalog.generation)
        start = 0 if first is None else first.start
        found: list[tuple[ObjectName, str]] = []
        async with aclosing(reader.store.list(prefix)) as listing:
            async for info in listing:
                name = parse_key(info.key)
                if len(found) == BATCH or (name is not None and name.start >= start):
                    break
                if name is not None and name.stop <= start:
                    found.append((name, info.key))
        if not found:
            return 0
        await self._table.table.prove(min(name.start for name, _ in found), max(name.stop for name, _ in found))
        for _, key in found:
            await reader.store.delete(key)
            self.objects_deleted += 1
        log.info("objects_deleted", topic=self._topic, objects=len(found), below=start)
        return len(found)
