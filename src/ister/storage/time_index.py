"""Search for the first offset that was appended at a time or later.

Append times never decrease within a topic, so this is a binary search: over objects by their descriptors and over files by
the log's own records, then over the index entries of one of them; in the table over single rows.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from ister.core.errors import BusyError, MissingOffsetsError, OffsetOutOfRangeError, UnknownOutcomeError
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import NOTHING, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ister.core.frames.segment import Descriptor
    from ister.core.message import StreamMessage
    from ister.storage.tiered_reader import TopicTable
    from ister.storage.wal_storage import WalStorage


async def offset_at(storage: WalStorage, append_time_us: int) -> int:
    """Return the first offset that was appended at this time or later, the next offset if there is none."""
    while True:
        try:
            return await _search(storage, append_time_us)
        except OffsetOutOfRangeError:
            continue  # retention has moved the start during the search


async def _search(storage: WalStorage, append_time_us: int) -> int:
    if storage.wal.visible_offset < storage.wal.next_offset:
        with suppress(BusyError, UnknownOutcomeError):  # a log that cannot sync is searched as far as it is visible
            await storage.flush()
    start, log_start = storage.start_offset, storage.log_start
    described = _in_objects(storage, start, log_start)
    if start < described.start and await _table_time(storage, described.start - 1) >= append_time_us:

        async def is_before(offset: int) -> bool:
            return await _table_time(storage, offset) < append_time_us

        return await bisect(start, described.start - 1, is_before)
    if described.start < described.stop:
        last = await _described(storage, log_start - 1)
        if last.append_time_us >= append_time_us:
            found = await _first_object(storage, described.start, last, append_time_us)
            return await _first_message(storage, [offset for offset, _ in found.index], found.stop, append_time_us)
    await storage.dated_segments()
    segments, stop = storage.wal.segments(), storage.wal.visible_offset
    sealed = [(segment, after.first) for segment, after in pairwise(segments) if segment.first < after.first]
    at = bisect_left(sealed, append_time_us, key=lambda piece: piece[0].append_time_us)
    if not segments:  # a log in memory
        return await _first_message(storage, [log_start], stop, append_time_us)
    segment, end = sealed[at] if at < len(sealed) else (segments[-1], stop)
    places = [segment.first, *(offset for offset, _ in segment.index if segment.first < offset < end)]
    return await _first_message(storage, places, end, append_time_us)


def _in_objects(storage: WalStorage, start: int, log_start: int) -> OffsetRange:
    """Return which offsets below the log are searched in objects; lower ones are in the table only."""
    objects = NOTHING if storage.objects is None else storage.objects.span
    if storage.table is None:
        return OffsetRange(start, log_start) if storage.objects is not None else OffsetRange(start, start)
    begins = objects.start if log_start - 1 in objects else log_start
    return OffsetRange(max(start, begins), log_start)


async def _table_time(storage: WalStorage, offset: int) -> int:
    """Return the append time of a message from the table."""
    assert storage.table is not None, "only a table is left"
    found = await append_time_of(storage.table.table, offset)
    if found is None:
        raise MissingOffsetsError(offset, offset + 1, "the table does not have them")
    return found


async def append_time_of(table: TopicTable, offset: int) -> int | None:
    """Return the append time of a row; None if it is missing, and missing rows are skipped."""
    stream = table.open(offset, offset + 1)
    try:
        found = await stream.read()
    finally:
        await stream.close()
    return found[0].append_time_us if found else None


async def bisect(low: int, high: int, is_before: Callable[[int], Awaitable[bool]]) -> int:
    """Return the first number of [low, high) for which `is_before` is False, `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        if await is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low


async def _described(storage: WalStorage, offset: int) -> Descriptor:
    objects = storage.objects
    assert objects is not None, "only existing tiers are searched"
    found = await objects.reader.catalog.find(offset)
    if found is None and offset < objects.span.start:
        raise OffsetOutOfRangeError(offset, objects.span.start, objects.span.stop)  # deleted during the search
    if found is None:
        raise MissingOffsetsError(offset, offset + 1, "no object describes them")
    return found


async def _first_object(storage: WalStorage, start: int, last: Descriptor, append_time_us: int) -> Descriptor:
    """Return the first object from `start` on whose newest message is not too old; that of `last` is not."""
    found, low, high = last, start, last.start
    while low < high:
        middle = await _described(storage, (low + high) // 2)
        if middle.append_time_us < append_time_us:
            low = middle.stop
        else:
            found, high = middle, middle.start
    return found


async def _first_message(storage: WalStorage, places: Sequence[int], stop: int, append_time_us: int) -> int:
    """Return the first offset from `places[0]` on that is not too old, `stop` if there is none."""

    async def is_before(index: int) -> bool:
        return (await _read(storage, places[index]))[0].append_time_us < append_time_us

    at = places[max(0, await bisect(0, len(places) if places[0] < stop else 0, is_before) - 1)]
    while at < stop:
        messages = await _read(storage, at)
        index = bisect_left(messages, append_time_us, key=lambda message: message.append_time_us)
        if index < len(messages):
            return min(messages[index].offset, stop)
        at = messages[-1].offset + 1
    return stop


async def _read(storage: WalStorage, offset: int) -> list[StreamMessage]:
    """Return the messages from a visible offset on, about a MiB at most."""
    reader = await storage.create_reader(StartPosition.offset(offset))
    try:
        return await reader.read()
    finally:
        await reader.close()
