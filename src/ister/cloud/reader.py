"""Object reader: seeks by the index, prefetches ranges, checks every frame.

A single message does not cost a whole object: the first range after a seek is small, the next are larger. Memory is bounded
by a few ranges, and the descriptors of a few objects.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from ister.aio.background import mark_retrieved
from ister.core.errors import CorruptObjectError, LogClosedError, MissingObjectError
from ister.core.frames import kernels
from ister.core.frames.columns import REASONS, messages_of, scan_run
from ister.core.reader import Reader
from ister.ports.objects.checked import read_checked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ister.cloud.descriptors import ObjectCatalog
    from ister.core.frames.columns import Scan
    from ister.core.frames.segment import Descriptor
    from ister.core.message import StreamMessage
    from ister.ports.objects import CloudStore

SEEK_BYTES = 256 * 1024
RANGE_BYTES = 1024 * 1024
PREFETCH = 2
"""The number of checked ranges in the queue; one more is being checked, and one more is being read."""


class CloudReader:
    """Reads one topic's objects; `open` gives a stream of [start, stop)."""

    def __init__(self, store: CloudStore, catalog: ObjectCatalog) -> None:
        self.store = store
        self.catalog = catalog
        self.objects_read = self.bytes_read = 0

    def open(self, start: int, stop: int) -> ObjectStream:
        """Return a stream of [start, stop), each message once; it raises MissingOffsetsError if objects do not hold them all."""
        return ObjectStream(self, start, stop)


class ObjectStream(Reader):
    """An ordered stream of messages from objects; close it when you stop early."""

    def __init__(self, reader: CloudReader, start: int, stop: int) -> None:
        super().__init__()
        self._reader = reader
        self._topic = str(reader.catalog.topic)
        self._next = start
        self._stop = stop
        self._queue: asyncio.Queue[tuple[bytes, Scan, str] | BaseException] = asyncio.Queue(PREFETCH)
        self._pump: asyncio.Task[None] | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next read."""
        return self._next

    async def _read(self) -> list[StreamMessage]:
        run = await self._take()
        if run is None:
            return []
        data, scan, key = run
        return messages_of(data, scan, self._topic, key)

    async def read_frames(self) -> tuple[bytes, Scan] | None:
        """Return the next frames as they are stored, checked, with their scan; None at the end."""
        run = await self._take()
        return None if run is None else run[:2]

    async def close(self) -> None:
        """Stop prefetching."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(LogClosedError(self._topic))  # for later and pending reads

    async def _take(self) -> tuple[bytes, Scan, str] | None:
        if self._next >= self._stop:
            return None
        if self._pump is None:
            self._pump = asyncio.create_task(self._prefetch_all())
        item = await self._queue.get()
        if isinstance(item, BaseException):
            self._queue.put_nowait(item)  # a later read raises it again
            raise item
        self._next = item[1].next_offset
        return item

    # --- prefetching --------------------------------------------------------------------------------------------------

    async def _prefetch_all(self) -> None:
        try:
            start = self._next
            async with aclosing(self._reader.catalog.span(start, self._stop)) as described:
                async for descriptor in described:
                    async with aclosing(self._read_object(descriptor, max(start, descriptor.start))) as runs:
                        async for run in runs:
                            await self._queue.put(run)
        except Exception as error:  # noqa: BLE001  # the reader gets it
            await self._queue.put(error)

    async def _read_object(self, descriptor: Descriptor, wanted: int) -> AsyncGenerator[tuple[bytes, Scan, str]]:
        """Yield the checked frames of one object from the message `wanted` on."""
        key = self._reader.catalog.object_key(descriptor)
        self._reader.objects_read += 1
        stop = min(self._stop, descriptor.stop)
        offset, at = descriptor.place(wanted)
        seeking = wanted > offset or at > 0
        following = min(descriptor.size, at + (SEEK_BYTES if seeking else RANGE_BYTES))
        fetch: asyncio.Future[bytes] | None = self._fetch(key, descriptor, at, following)
        held = b""
        try:
            while offset < stop:
                assert fetch is not None, "an object that ends too early is damaged"
                needed, fetch = fetch, None
                ends = following
                following = min(descriptor.size, ends + RANGE_BYTES)
                is_last = ends == descriptor.size
                check = partial(_scan, key, at, offset, stop, max(wanted, offset), is_last)
                try:
                    data = held + await needed
                    if not is_last and not seeking:
                        fetch = self._fetch(key, descriptor, ends, following)
                    data, scan = await asyncio.get_running_loop().run_in_executor(None, check, data)
                except (CorruptObjectError, MissingObjectError):
                    # One answer proves nothing: the bytes may have been changed in transit.
                    data, scan = await read_checked(
                        self._reader.store, key, at, ends, etag=descriptor.etag, check=check
                    )
                self._reader.bytes_read += len(data) - len(held)
                if scan.rows:
                    yield data, scan, key
                if fetch is None and not is_last:
                    # Only now: a read of one message does not wait for the MiB behind it.
                    fetch = self._fetch(key, descriptor, ends, following)
                seeking = False
                held = data[scan.end :]
                at += scan.end
                offset = scan.next_offset
        finally:
            if fetch is not None:
                fetch.cancel()

    def _fetch(self, key: str, descriptor: Descriptor, start: int, stop: int) -> asyncio.Future[bytes]:
        return mark_retrieved(asyncio.ensure_future(self._reader.store.read(key, start, stop, etag=descriptor.etag)))


def _scan(key: str, at: int, offset: int, limit: int, wanted: int, is_last: bool, data: bytes) -> tuple[bytes, Scan]:  # noqa: FBT001  # always by partial
    """Check the frames of an object from byte `at` on; return them with their scan."""
    scan = scan_run(data, first_offset=offset, limit=limit, wanted=wanted)
    if scan.code not in {kernels.OK, kernels.NEED_MORE} or (is_last and scan.next_offset < limit):
        raise CorruptObjectError(key, at + scan.end, scan.next_offset, REASONS.get(scan.code, "it ends too early"))
    return data, scan
