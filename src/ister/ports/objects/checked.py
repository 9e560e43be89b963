"""Checked reads of objects: damage is reported only after the store gave the same wrong response several times.

One response proves nothing: bytes may be changed in transit, and a proxy may respond instead of the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

import structlog

from ister.core.errors import CorruptObjectError, MissingObjectError, StoreUnavailableError
from ister.core.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from ister.ports.objects.store import CloudStore, ObjectInfo

    T = TypeVar("T")

log = structlog.get_logger()

READS = 4
"""How often a range is read before damage is believed."""
PAUSE_S = 0.5
"""How long to wait before the second read; then twice as long each time."""


async def read_checked(
    store: CloudStore, key: str, start: int, stop: int, *, etag: str = "", check: Callable[[bytes], T]
) -> T:
    """Read the bytes [start, stop) and return what `check` makes of them; it runs in a thread and may raise CorruptObjectError.

    CorruptObjectError and MissingObjectError are raised after READS equal answers, StoreUnavailableError when the answers
    were wrong and differed.
    """
    wrong = _WrongAnswers(store, key)
    while True:
        data = b""
        try:
            data = await store.read(key, start, stop, etag=etag)
            return await asyncio.get_running_loop().run_in_executor(None, check, data)
        except (CorruptObjectError, MissingObjectError) as error:
            await wrong.add(error, data)


async def read_whole(store: CloudStore, key: str, *, check: Callable[[ObjectInfo, bytes], T]) -> T:
    """Do the same with a whole object, whose size and etag are requested each time."""
    wrong = _WrongAnswers(store, key)
    while True:
        data = b""
        info = await store.stat(key)
        if info is None:
            await wrong.add(MissingObjectError(key, store.name), data)
            continue
        try:
            data = await store.read(key, 0, info.size, etag=info.etag)
            return await asyncio.get_running_loop().run_in_executor(None, check, info, data)
        except (CorruptObjectError, MissingObjectError) as error:
            await wrong.add(error, data)


class _WrongAnswers:
    """The wrong answers of one read."""

    def __init__(self, store: CloudStore, key: str) -> None:
        self._store = store
        self._key = key
        self._different: set[tuple[str, int]] = set()
        self._reads = 0

    async def add(self, error: CorruptObjectError | MissingObjectError, data: bytes) -> None:
        """Wait for the next read; raises when there were enough."""
        self._different.add((str(error), crc32(data)))
        self._reads += 1
        if self._reads == READS and len(self._different) == 1:
            raise error
        if self._reads == READS:
            cause = f"{READS} reads gave different answers, the last: {error}"
            raise StoreUnavailableError(self._store.name, f"read {self._key}", cause) from error
        log.warning("object_read_again", key=self._key, cause=str(error))
        await asyncio.sleep(backoff_s(self._reads, PAUSE_S * 8, PAUSE_S))
