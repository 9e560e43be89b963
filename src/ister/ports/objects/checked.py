"""Checked reads of objects: damage is reported only after the store gave the same wrong answer several times.

One answer proves nothing. Bytes may be changed in transit, and a proxy may answer instead of the store.
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

    from ister.ports.objects.store import CloudStore

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
    answers: set[tuple[str, int]] = set()
    attempts = 0
    while True:
        checksum = 0
        try:
            data = await store.read(key, start, stop, etag=etag)
            checksum = crc32(data)
            return await asyncio.get_running_loop().run_in_executor(None, check, data)
        except (CorruptObjectError, MissingObjectError) as error:
            answers.add((str(error), checksum))
            attempts += 1
            if attempts == READS and len(answers) == 1:
                raise
            if attempts == READS:
                cause = f"{READS} reads gave different answers, the last: {error}"
                raise StoreUnavailableError(store.name, f"read {key}", cause) from error
            log.warning("object_read_again", key=key, cause=str(error))
        await asyncio.sleep(backoff_s(attempts, PAUSE_S * 8, PAUSE_S))
