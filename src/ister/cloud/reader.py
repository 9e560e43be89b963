"""Read messages from objects: seek by the index, range by range, a little ahead, every frame checked.

Never a whole object for one message: the first range after a seek is small, the next are larger. What is held at a time
is bounded: a few ranges, and the descriptions of a few objects.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from ister.core import kernels
from ister.core.columns import REASONS, messages_of, scan_run
from ister.core.errors import CorruptObjectError, LogClosedError, MissingObjectError
from ister.ports.ahead import ahead
from ister.ports.objects.checked import read_checked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from ister.cloud.catalog import ObjectCatalog
    from ister.core.columns import Scan
    from ister.core.message import StreamMessage
    from ister.core.segment import Descriptor
    from ister.ports.objects import CloudStore

SEEK_BYTES = 256 * 1024
RANGE_BYTES = 1024 * 1024
AHEAD = 2
"""How many ranges are checked and wait to be used; one more is being checked, and one more is being read."""


class CloudReader:
    """Reads one topic's objects; `open` gives a stream of [start, stop)."""

    def __init__(self, store: CloudStore, catalog: ObjectCatalog) -> None:
        self.store = store
        self.catalog = catalog
        self.objects_read = self.bytes_read = 0

    def open(self, start: int, stop: int) -> ObjectStream:
        """Read the messages [start, stop), in order, each once; MissingSpanError when objects do not hold them all."""
        return ObjectStream(self, start, stop)


class ObjectStream:
    """An ordered stream of messages from objects; close it when you stop early."""

    def __init__(self, reader: CloudReader, start: int, stop: int) -> None:
        self._reader = reader
        self._topic = str(reader.catalog.topic)
        self._next = start
        self._stop = stop
        self._ready: Iterator[StreamMessage] = iter(())
        self._queue: asyncio.Queue[tuple[bytes, Scan, str] | BaseException] = asyncio.Queue(AHEAD)
        self._pump: asyncio.Task[None] | None = None

    @property
    def next_offset(self) -> int:
        """The offset that will be read from objects next."""
        return self._next

    def __aiter__(self) -> ObjectStream:
        return self

    async def __anext__(self) -> StreamMessage:
        for message in self._ready:
            return message
        self._ready = iter(await self.read())
        for message in self._ready:
            return message
        raise StopAsyncIteration

    async def read(self) -> list[StreamMessage]:
        """Return the next messages, about a MiB at most; none at the end."""
        run = await self._take()
        if run is None:
            return []
        data, scan, key = run
        return messages_of(data, scan, self._topic, key)

    async def read_frames(self) -> tuple[bytes, Scan] | None:
        """Return the next frames as they are stored, checked, with what was found in them; None at the end."""
        run = await self._take()
        return None if run is None else run[:2]

    async def close(self) -> None:
        """Stop reading ahead."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(LogClosedError(self._topic))  # for whoever reads on, or is just waiting

    async def _take(self) -> tuple[bytes, Scan, str] | None:
        if self._next >= self._stop:
            return None
        if self._pump is None:
            self._pump = asyncio.create_task(self._read_ahead())
        item = await self._queue.get()
        if isinstance(item, BaseException):
            self._queue.put_nowait(item)  # whoever asks again is told again
            raise item
        self._next = item[1].next_offset
        return item

    # --- reading ahead ------------------------------------------------------------------------------------------------

    async def _read_ahead(self) -> None:
        try:
            start = self._next
            async with aclosing(self._reader.catalog.span(start, self._stop)) as described:
                async for descriptor in described:
                    async with aclosing(self._read_object(descriptor, max(start, descriptor.start))) as runs:
                        async for run in runs:
                            await self._queue.put(run)
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to whoever reads
            await self._queue.put(error)

    async def _read_object(self, descriptor: Descriptor, wanted: int) -> AsyncGenerator[tuple[bytes, Scan, str]]:
        """Give the checked runs of one object from the message `wanted` on."""
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
                    # Only now: whoever wants one message does not wait for a MiB that comes behind it.
                    fetch = self._fetch(key, descriptor, ends, following)
                seeking = False
                held = data[scan.end :]
                at += scan.end
                offset = scan.next_offset
        finally:
            if fetch is not None:
                fetch.cancel()

    def _fetch(self, key: str, descriptor: Descriptor, start: int, stop: int) -> asyncio.Future[bytes]:
        return ahead(asyncio.ensure_future(self._reader.store.read(key, start, stop, etag=descriptor.etag)))


def _scan(key: str, at: int, offset: int, limit: int, wanted: int, is_last: bool, data: bytes) -> tuple[bytes, Scan]:  # noqa: FBT001  # always by partial
    """Check the frames of an object from byte `at` on; returns them with what was found."""
    scan = scan_run(data, first_offset=offset, limit=limit, wanted=wanted)
    if scan.code not in {kernels.OK, kernels.NEED_MORE} or (is_last and scan.next_offset < limit):
        raise CorruptObjectError(key, at + scan.end, scan.next_offset, REASONS.get(scan.code, "it ends too early"))
    return data, scan
