"""Watches over a stored history, for stores in memory or in a file."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ister.core.errors import MetadataUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ister.ports.metadata.store import Change

POLL_S = 0.2
BATCH_CHANGES = 64


class WatchPosition(NamedTuple):
    """The position of a watch: behind this key of this version. Changes of one version are in key order."""

    version: int
    key: bytes


class History(NamedTuple):
    """Some changes in order, and the place behind them."""

    changes: list[Change]
    place: WatchPosition


def whole(version: int) -> WatchPosition:
    """Return the place behind all changes of a version: no key of UTF-8 is behind 0xFF."""
    return WatchPosition(version, b"\xff")


class ChangeSignal:
    """Wakes watches when the store has a newer version, and ends them when it closes."""

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self._rung = asyncio.Event()

    def notify(self, version: int) -> None:
        """Wake every watch: there is a newer version."""
        self.version = max(self.version, version)
        self._wake()

    def close(self) -> None:
        """End every watch."""
        self.closed = True
        self._wake()

    async def wait(self, version: int, timeout_s: float | None) -> None:
        """Return once the store has a newer version or is closed, or on a timeout."""
        rung = self._rung
        if self.version > version or self.closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await rung.wait()

    def _wake(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()


class HistoryWatch:
    """Yields the history, then waits for more. A cancelled step loses nothing: the next one continues."""

    def __init__(
        self,
        read: Callable[[WatchPosition], Awaitable[History]],
        changes: ChangeSignal,
        *,
        after: int,
        poll_s: float | None,
    ) -> None:
        self._read = read
        self._changes = changes
        self._place = whole(after)
        self._poll_s = poll_s
        self._read_ahead: deque[Change] = deque()

    def __aiter__(self) -> HistoryWatch:
        return self

    async def __anext__(self) -> Change:
        while not self._read_ahead:
            if self._changes.closed:
                raise StopAsyncIteration
            try:
                history = await self._read(self._place)
            except MetadataUnavailableError:
                await self._changes.wait(self._changes.version, POLL_S)
                continue
            self._place = history.place
            self._read_ahead.extend(history.changes)
            if not history.changes:
                await self._changes.wait(self._place.version, self._poll_s)
        return self._read_ahead.popleft()
