"""Prove that offsets are in objects: described without a hole, each object there with the size that was described."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from ister.core.errors import CorruptObjectError, MissingObjectError, MissingSpanError
from ister.core.segment import generation_prefix, parse_key

if TYPE_CHECKING:
    from ister.cloud.catalog import ObjectCatalog
    from ister.core.segment import Descriptor
    from ister.ports.objects import CloudStore, ObjectInfo

log = structlog.get_logger()


async def prove(store: CloudStore, catalog: ObjectCatalog, start: int, stop: int) -> None:
    """Return if every offset of [start, stop) is in a described object that is there; else say what is not."""
    if start >= stop:
        return
    first = await catalog.find(start)
    prefix = generation_prefix(catalog.topic, catalog.generation)
    after = f"{prefix}data-{start if first is None else first.start:020}"
    info: ObjectInfo | None = None
    async with aclosing(store.list(prefix, after=after)) as listing, aclosing(catalog.span(start, stop)) as described:
        async for descriptor in described:
            key = catalog.object_key(descriptor)
            # Both are in order of their offsets, so one listing serves all.
            while info is None or info.key < key:
                info = await anext(listing, None)
                if info is None:
                    break
            if info is None or info.key != key:
                raise MissingObjectError(key, store.name)
            _compare(key, info, descriptor)


def _compare(key: str, info: ObjectInfo, descriptor: Descriptor) -> None:
    """Refuse an object that is not as it was described."""
    if info.size != descriptor.size:
        raise CorruptObjectError(key, -1, -1, f"it has {info.size} bytes, {descriptor.size} were put")
    if descriptor.etag and info.etag and info.etag != descriptor.etag:
        raise CorruptObjectError(key, -1, -1, f"its etag is {info.etag}, {descriptor.etag} was put")


async def sweep_orphans(store: CloudStore, catalog: ObjectCatalog, upto: int, *, after: int = 0) -> int:
    """Delete objects that nothing describes and whose every offset is in others; returns how many.

    Only the topic's owner may. An object that is described nowhere and holds an offset that no other holds is left: it
    may be all that is left of it.
    """
    prefix = generation_prefix(catalog.topic, catalog.generation)
    swept = 0
    async for info in store.list(prefix, after=f"{prefix}data-{after:020}" if after else ""):
        name = parse_key(info.key)
        if name is None or name.stop > upto:
            continue
        owner = await catalog.find(name.start)
        if owner is not None and (owner.start, owner.stop) == (name.start, name.stop):
            continue
        try:
            await prove(store, catalog, name.start, name.stop)
        except (MissingSpanError, MissingObjectError, CorruptObjectError) as error:
            log.warning("orphan_kept", key=info.key, cause=str(error))
            continue
        await store.delete(info.key)
        log.info("orphan_swept", key=info.key)
        swept += 1
    return swept
