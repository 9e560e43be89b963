"""Delete old objects behind the table: those that it provably holds, oldest first, from time to time.

The order is proof, beginning, descriptions, objects. First the table's newest snapshot is asked for exactly these offsets,
and every row of them is read, its checksum checked.
Then metadata says that objects begin behind them, and no reader looks there any more. Then the descriptions go, oldest
first, and the objects last. So no crash leaves a description of an object that is not there, nor a hole that a reader
would fall into; what it may leave are objects that nobody describes, which a later run finds in the listing and deletes.

Cursors hold no object back: the table serves whoever is behind.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.cloud.deleter import check_periodically
from ister.core.retain import SealedSegment, objects_droppable_below
from ister.core.segment import generation_prefix, parse_key

if TYPE_CHECKING:
    from ister.core.errors import IsterError
    from ister.core.segment import Descriptor, ObjectName
    from ister.ports.clock import Clock
    from ister.storage.table_tier import TableTier
    from ister.storage.tiers import ObjectTier

log = structlog.get_logger()

BATCH = 256
"""How many objects are looked at, and deleted, at a time."""


class ObjectKeeper:
    """One topic's keeper of objects; `run` as a task, or `tick` by hand."""

    def __init__(self, objects: ObjectTier, table: TableTier, retention_s: float, clock: Clock) -> None:
        self.problem: IsterError | None = None
        self.objects_deleted = 0
        self._objects = objects
        self._table = table
        self._retention_s = retention_s
        self._clock = clock
        self._topic = str(objects.reader.catalog.topic)
        self._working = asyncio.Lock()
        self._leftovers = True  # an earlier life may have left some

    async def run(self, interval_s: float) -> None:
        """Look again and again until cancelled."""
        await check_periodically(self._topic, interval_s, self.tick, self._report)

    def _report(self, error: IsterError | None) -> None:
        self.problem = error
        if error is not None:
            log.warning("object_retention_failed", topic=self._topic, cause=str(error))

    async def tick(self) -> int:
        """Delete what may go now; returns how many objects that were."""
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
        """Take the descriptions of the oldest objects away; tells whether there may be more."""
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
        """Read rows as a consumer would, every checksum checked: what is deleted then can be had from nowhere else."""
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
        """Delete the oldest objects below the first one that is described, if the table holds them; returns how many."""
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
