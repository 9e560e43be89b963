"""Tell what each tier holds of a topic: offsets and bytes."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.storage.wal_storage import WalStorage


@dataclass(frozen=True, slots=True)
class TierStats:
    """The offsets [start, stop) that a tier holds, and how many bytes they take there."""

    start: int = 0
    stop: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """How much there is of a topic. The tiers overlap; memory holds copies of what is in the log, and is not counted."""

    message_count: int
    """How many messages can be read."""
    bytes_stored: int
    """How many bytes log, objects and table take together."""
    memory: TierStats
    log: TierStats
    objects: TierStats
    table: TierStats


async def stats_of(storage: WalStorage, table: TierStats) -> TopicStats:
    """Return what there is of a topic; what is known of its table is given."""
    wal, cache = storage.wal, storage.wal.cache
    memory = TierStats(cache.start, cache.stop, cache.held_bytes)
    logged = TierStats(wal.start_offset, wal.next_offset, wal.log_bytes)
    objects = TierStats()
    if storage.objects is not None:
        span = storage.objects.span
        size = 0
        async with aclosing(storage.objects.reader.catalog.all(span.start)) as descriptors:
            async for descriptor in descriptors:
                size += descriptor.size
        objects = TierStats(*span, size)
    return TopicStats(
        message_count=storage.next_offset - storage.start_offset,
        bytes_stored=logged.size + objects.size + table.size,
        memory=memory,
        log=logged,
        objects=objects,
        table=table,
    )
