"""Proof that offsets are in objects: descriptors without a hole, each object present with its described size."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import CorruptObjectError, MissingObjectError, MissingOffsetsError
from ister.core.frames.segment import generation_prefix, parse_key

if TYPE_CHECKING:
    from ister.cloud.descriptors import ObjectCatalog
    from ister.core.frames.segment import Descriptor, ObjectName
    from ister.ports.objects import CloudStore, ObjectInfo

log = structlog.get_logger()


async def prove(store: CloudStore, catalog: ObjectCatalog, start: int, stop: int) -> None:
    """Return if every offset of [start, stop) is in a described object that exists; else raise the first fault."""
    if start >= stop:
        return
    first = await catalog.find(start)
    prefix = generation_prefix(catalog.topic, catalog.generation)
    after = f"{prefix}data-{start if first is None else first.start:020}"
    info: ObjectInfo | None = None
    async with aclosing(store.list(prefix, after=after)) as listing, aclosing(catalog.span(start, stop)) as described:
        async for descriptor in described:
            key = catalog.object_key(descriptor)
            # Both are ordered by offset, so one listing is enough.
            while info is None or info.key < key:
                info = await anext(listing, None)
                if info is None:
                    break
            if info is None or info.key != key or _fault(key, info, descriptor) is not None:
                await check_object(store, key, descriptor)  # a listing may be wrong; the object itself decides


async def check_object(store: CloudStore, key: str, descriptor: Descriptor) -> None:
    """Raise MissingObjectError or CorruptObjectError unless an object exists as described."""
    info = await store.stat(key)
    if info is None:
        raise MissingObjectError(key, store.name)
    if (fault := _fault(key, info, descriptor)) is not None:
        raise fault


def _fault(key: str, info: ObjectInfo, descriptor: Descriptor) -> CorruptObjectError | None:
    """Return the difference between an object and its descriptor, None if there is none."""
    if info.size != descriptor.size:
        return CorruptObjectError(key, -1, -1, f"it has {info.size} bytes, {descriptor.size} were put")
    if descriptor.etag and info.etag and info.etag != descriptor.etag:
        return CorruptObjectError(key, -1, -1, f"its etag is {info.etag}, {descriptor.etag} was put")
    return None


async def sweep_orphans(store: CloudStore, catalog: ObjectCatalog, upto: int, *, after: int = 0) -> int:
    """Delete objects without a descriptor whose every offset is in others; return how many.

    Only for the topic's owner. An object without a descriptor that holds an offset alone stays: it may be the last copy.
    """
    swept = 0
    for name, key in await _undescribed(store, catalog, upto, after):
        try:
            await prove(store, catalog, name.start, name.stop)
        except (MissingOffsetsError, MissingObjectError, CorruptObjectError) as error:
            log.warning("orphan_kept", key=key, cause=str(error))
            continue
        await store.delete(key)
        log.info("orphan_swept", key=key)
        swept += 1
    return swept


async def _undescribed(
    store: CloudStore, catalog: ObjectCatalog, upto: int, after: int
) -> list[tuple[ObjectName, str]]:
    """Return the objects below `upto` without a descriptor; the listing and the descriptors have the same order."""
    prefix = generation_prefix(catalog.topic, catalog.generation)
    found: list[tuple[ObjectName, str]] = []
    async with (
        aclosing(store.list(prefix, after=f"{prefix}data-{after:020}" if after else "")) as listing,
        aclosing(catalog.all(start=after)) as described,
    ):
        described_key = ""
        async for info in listing:
            name = parse_key(info.key)
            if name is None:
                continue
            if name.start >= upto:
                break
            while described_key < info.key:
                descriptor = await anext(described, None)
                if descriptor is None:
                    break
                described_key = catalog.object_key(descriptor)
            if described_key != info.key and name.stop <= upto:
                found.append((name, info.key))
    return found
