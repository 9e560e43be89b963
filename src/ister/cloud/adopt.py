"""Adoption of objects that were put and not described: those with the log's messages get a descriptor, others none.

An object is adopted if its frames are whole, dense, and hold the same messages. Markers are not compared: after a crash the
log may have its messages in another file, behind other markers.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import CorruptObjectError, MissingObjectError, MissingOffsetsError
from ister.core.frames.columns import scan_run, strip_markers
from ister.core.frames.segment import describe, generation_prefix, parse_key
from ister.core.offsets import StartPosition
from ister.ports.objects.checked import read_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.cloud.descriptors import ObjectCatalog
    from ister.core.frames.columns import Frames
    from ister.core.frames.segment import Descriptor, ObjectName
    from ister.ports.objects import CloudStore, ObjectInfo
    from ister.wal import Wal

log = structlog.get_logger()


async def adopt(
    store: CloudStore,
    catalog: ObjectCatalog,
    wal: Wal,
    stop: int,
    *,
    epoch: int,
    ahead_allowed: bool,
) -> list[Descriptor]:
    """Describe the objects that continue at `stop`, in order; return their descriptors."""
    prefix = generation_prefix(catalog.topic, catalog.generation)
    adopted: list[Descriptor] = []
    async with aclosing(store.list(prefix, after=f"{prefix}data-{stop:020}")) as listing:
        async for info in listing:
            name = parse_key(info.key)
            if name is None or name.start < stop:
                continue
            if name.start > stop:
                if ahead_allowed and name.stop > wal.synced_offset:
                    # The uploader never leaves a hole: these messages are lost, and their offsets must not be assigned again.
                    missing = max(stop, min(name.start, wal.synced_offset))
                    raise MissingOffsetsError(missing, name.start, f"only the object behind them is left, {info.key}")
                break
            if name.stop > wal.synced_offset and not ahead_allowed:
                log.warning("object_ahead_of_log", key=info.key, log_stop=wal.synced_offset)
                continue
            descriptor = await _check(store, info, name, wal, epoch)
            if descriptor is None:
                continue
            await catalog.add(descriptor)
            log.info("object_adopted", key=info.key, start=name.start, stop=name.stop)
            adopted.append(descriptor)
            stop = name.stop
    return adopted


async def same_messages(store: CloudStore, key: str, name: ObjectName, data: Frames, epoch: int) -> Descriptor | None:
    """Return the descriptor of an existing object if it holds these messages, else None."""

    async def is_same(there: bytes) -> bool:
        if there == data:
            return True
        mine, theirs = await asyncio.get_running_loop().run_in_executor(
            None, lambda: (strip_markers(data), strip_markers(there))
        )
        return mine == theirs

    try:
        return await _confirmed(store, key, name, epoch, is_same)
    except CorruptObjectError as error:
        log.warning("object_damaged", key=key, cause=str(error))
        return None


async def _check(store: CloudStore, info: ObjectInfo, name: ObjectName, wal: Wal, epoch: int) -> Descriptor | None:
    start, stop = max(name.start, wal.start_offset), min(name.stop, wal.synced_offset)

    async def is_same(data: bytes) -> bool:
        if start >= stop or await _equals_log(data, name, wal, start, stop):
            return True
        log.warning("object_not_adopted", key=info.key, cause="its messages are others than those in the log")
        return False

    try:
        return await _confirmed(store, info.key, name, epoch, is_same)
    except CorruptObjectError as error:
        log.warning("object_not_adopted", key=info.key, cause=str(error))
        return None


async def _confirmed(
    store: CloudStore, key: str, name: ObjectName, epoch: int, is_same: Callable[[bytes], Awaitable[bool]]
) -> Descriptor | None:
    """Return the descriptor of a found object once it is whole, the same as the log, and durable; else None.

    Required before anything relies on an object that this process did not put, or whose put did not succeed: the bytes read
    may be in the page cache only. Raise CorruptObjectError if its frames are not whole.
    """

    def described(info: ObjectInfo, data: bytes) -> tuple[bytes, Descriptor]:
        return data, describe(data, key, name, epoch=epoch, etag=info.etag)

    try:
        data, descriptor = await read_whole(store, key, check=described)
    except MissingObjectError:
        return None  # deleted meanwhile, by another owner
    if not await is_same(data):
        return None
    await store.make_durable(key, data)
    return descriptor


async def _equals_log(data: bytes, name: ObjectName, wal: Wal, start: int, stop: int) -> bool:
    """Compare an object's messages in [start, stop) with the log's."""
    scan = scan_run(data, first_offset=name.start, limit=stop, wanted=start)
    mine = memoryview(strip_markers(memoryview(data)[scan.first_row : scan.end]))
    reader = wal.create_reader(StartPosition.offset(start))
    at = 0
    while at < len(mine):
        frames, found = await reader.read_frames()
        theirs = strip_markers(memoryview(frames)[found.first_row : found.end])
        count = min(len(theirs), len(mine) - at)
        if mine[at : at + count] != theirs[:count]:
            return False
        at += count
    return True
