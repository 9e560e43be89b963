"""Find the first offset that was stored at a time or later, reading a few places of one file or object only.

Within a topic an append time is never before that of the message before. So this is a binary search: over objects by their
descriptions and over files by what the log knows of them, then over the places of one that can be sought. Of what only the
table has, single messages are read.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from ister.core.errors import BusyError, MissingSpanError, OffsetOutOfRangeError, UnknownOutcomeError
from ister.core.handoff import NOTHING, Span
from ister.core.offsets import StartPosition
from ister.storage.persistent import ReadsAhead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ister.core.message import StreamMessage
    from ister.core.segment import Descriptor
    from ister.storage.wal_storage import WalStorage


async def offset_at(storage: WalStorage, append_time_us: int) -> int:
    """Return the first offset whose append time is not before this one, the offset behind the last when there is none."""
    while True:
        try:
            return await _search(storage, append_time_us)
        except OffsetOutOfRangeError:
            continue  # retention has moved the start meanwhile


async def _search(storage: WalStorage, append_time_us: int) -> int:
    if storage.wal.visible_offset < storage.wal.next_offset:
        with suppress(BusyError, UnknownOutcomeError):  # of a log that takes nothing more, what can be seen counts
            await storage.flush()
    start, log_start = storage.start_offset, storage.log_start
    described = _in_objects(storage, start, log_start)
    if start < described.start and await _table_time(storage, described.start - 1) >= append_time_us:
        return await _first_row(storage, start, described.start, append_time_us)
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


def _in_objects(storage: WalStorage, start: int, log_start: int) -> Span:
    """Return which of the offsets before the log's are to be looked for in objects; those before are in the table only."""
    objects = NOTHING if storage.objects is None else storage.objects.span
    if storage.table is None:
        return Span(start, log_start) if storage.objects is not None else Span(start, start)
    begins = objects.start if log_start - 1 in objects else log_start
    return Span(max(start, begins), log_start)


async def _table_time(storage: WalStorage, offset: int) -> int:
    """Return the append time of a message that only the table has."""
    assert storage.table is not None, "only a table is left"
    stream = storage.table.table.open(offset, offset + 1)
    try:
        found = await stream.read()
    finally:
        await stream.close()
    if not found:
        raise MissingSpanError(offset, offset + 1, "the table does not have them")
    return found[0].append_time_us


async def _first_row(storage: WalStorage, low: int, high: int, append_time_us: int) -> int:
    """Return the first offset from `low` on that is not too old; the one before `high` is not."""
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if await _table_time(storage, middle) < append_time_us:
            low = middle + 1
        else:
            high = middle
    return low


async def _described(storage: WalStorage, offset: int) -> Descriptor:
    objects = storage.objects
    assert objects is not None, "only what is there is looked for"
    found = await objects.reader.catalog.find(offset)
    if found is None and offset < objects.span.start:
        raise OffsetOutOfRangeError(offset, objects.span.start, objects.span.stop)  # deleted meanwhile
    if found is None:
        raise MissingSpanError(offset, offset + 1, "no object describes them")
    return found


async def _first_object(storage: WalStorage, start: int, last: Descriptor, append_time_us: int) -> Descriptor:
    """Return the first object from `start` on whose last message is not too old; the last one's is not."""
    found, low, high = last, start, last.start
    while low < high:
        middle = await _described(storage, (low + high) // 2)
        if middle.append_time_us < append_time_us:
            low = middle.stop
        else:
            found, high = middle, middle.start
    return found


async def _first_message(storage: WalStorage, places: Sequence[int], stop: int, append_time_us: int) -> int:
    """Return the first offset from the first place on that is not too old, `stop` when all before it are."""
    low, high = 0, len(places) if places[0] < stop else 0
    while low < high:
        middle = (low + high) // 2
        if (await _read(storage, places[middle]))[0].append_time_us < append_time_us:
            low = middle + 1
        else:
            high = middle
    at = places[max(0, low - 1)]
    while at < stop:
        messages = await _read(storage, at)
        index = bisect_left(messages, append_time_us, key=lambda message: message.append_time_us)
        if index < len(messages):
            return min(messages[index].offset, stop)
        at = messages[-1].offset + 1
    return stop


async def _read(storage: WalStorage, offset: int) -> list[StreamMessage]:
    """Return the messages from an offset on, about a MiB at most; it must be below what can be seen."""
    reader = await storage.create_reader(StartPosition.offset(offset))
    try:
        return await reader.read()
    finally:
        if isinstance(reader, ReadsAhead):
            await reader.close()
