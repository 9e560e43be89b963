"""Retention of a topic: its policy deletes files of the log, and old objects are deleted that the table holds.

A policy deletes whole sealed files, never messages that a cursor needs or that a later tier does not hold yet (I5). The
broker's own retention, which deletes uploaded files, is independent of it.

Objects are deleted oldest first, in the order proof, start, descriptors, objects. First the table's newest snapshot must
have exactly these offsets, and every row of them is read with its checksum. Then the start of objects in metadata is moved
after them, and no reader uses them any more. Then the descriptors are deleted, and the objects last. So a crash leaves
neither a descriptor without its object nor a gap for readers, only objects without a descriptor, which a later run finds
in the listing and deletes. Cursors do not retain objects: the table serves subscriptions that are behind.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from ister.aio.periodic import Periodic
from ister.core.errors import InvalidConfigError
from ister.core.frames.segment import generation_prefix, parse_key
from ister.core.tiers.retention import RetentionPolicy, SealedSegment, objects_droppable_below, prunable_below

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.core.frames.segment import Descriptor, ObjectName
    from ister.ports.clock import Clock
    from ister.storage.persistent import PersistentStorage
    from ister.storage.tiered_reader import ObjectTier, TableTier

BATCH = 256
"""Objects checked and deleted at a time."""
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class ReliableOptions:
    """The size of a segment, and when it is deleted.

    `segment_size_mb` is in MiB. `retention_period_s` counts for RETAIN_UNTIL_EXPIRE only.
    """

    segment_size_mb: int
    policy: RetentionPolicy
    retention_period_s: int

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "policy", RetentionPolicy(self.policy))
        except ValueError:
            known = ", ".join(policy.value for policy in RetentionPolicy)
            raise InvalidConfigError("policy", f"{self.policy!r} is none of {known}") from None
        for setting, least in (("segment_size_mb", 1), ("retention_period_s", 0)):
            value = getattr(self, setting)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidConfigError(setting, f"{value!r} must be a whole number of at least {least}")

    @property
    def segment_bytes(self) -> int:
        """The size at which a segment is sealed."""
        return self.segment_size_mb * 1024 * 1024


async def enforce(
    storage: PersistentStorage,
    options: ReliableOptions,
    now_us: int,
    *,
    later_tier_offset: int | None = None,
    prune: Callable[[int], Awaitable[int]] | None = None,
) -> int:
    """Delete what the options do not retain; returns the oldest remaining offset.

    `later_tier_offset` is the end of a later tier that the storage does not know; its own objects count in any case.
    Deletes first and seals then, because sealing needs space on a full disk. `prune` replaces the storage's.
    """
    held = [offset for offset in (later_tier_offset, storage.later_tier_offset) if offset is not None]
    expires = options.policy is RetentionPolicy.RETAIN_UNTIL_EXPIRE
    segments = await storage.dated_segments() if expires else storage.sealed_segments()
    cursors = await storage.cursors()
    # No await between the cursors and the deletion: a new subscription is either among them, or finds the new start.
    below = prunable_below(
        segments,
        policy=options.policy,
        retention_period_s=options.retention_period_s,
        now_us=now_us,
        cursors=cursors.values(),
        later_tier_offset=min(held, default=None),
    )
    if segments and below > segments[0].first:
        await (prune or storage.prune)(below)
    # The file of an idle topic never becomes full: it is sealed when all of it has expired.
    await storage.seal(options.segment_bytes, now_us - options.retention_period_s * US_PER_S if expires else None)
    return storage.start_offset


class LogRetention(Periodic):
    """Enforces one topic's policy periodically; `options` may change at any time, None is no policy."""

    def __init__(self, topic: str, storage: PersistentStorage, clock: Clock) -> None:
        super().__init__(topic, self.enforce, "retention_failed")
        self.options: ReliableOptions | None = None
        self._storage = storage
        self._clock = clock

    async def enforce(self) -> int:
        """Delete what the policy does not retain; returns the oldest remaining offset."""
        if self.options is None:
            return self._storage.start_offset
        return await enforce(self._storage, self.options, self._clock.wall_us())

    def set_options(self, options: ReliableOptions | None) -> None:
        """Enforce another policy from now on; None is no policy."""
        self.options = options


log = structlog.get_logger()


class ObjectRetention(Periodic):
    """The object retention of one topic; `run` as a task, or call `tick`."""

    def __init__(self, objects: ObjectTier, table: TableTier, retention_s: float, clock: Clock) -> None:
        super().__init__(str(objects.reader.catalog.topic), self.tick, "object_retention_failed")
        self.objects_deleted = 0
        self._objects = objects
        self._table = table
        self._retention_s = retention_s
        self._clock = clock
        self._working = asyncio.Lock()
        self._leftovers = True  # an earlier life may have left some

    async def tick(self) -> int:
        """Delete objects that have expired; returns the number of deleted objects without a descriptor."""
        deleted = 0
        async with self._working:
            while await self._delete_oldest():
                pass
            while self._leftovers:
                count = await self._delete_undescribed()
                deleted += count
                self._leftovers = count == BATCH
        return deleted

    async def _delete_oldest(self) -> bool:
        """Delete the descriptors of the oldest expired objects; returns True if there may be more."""
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
