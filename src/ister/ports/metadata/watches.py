"""A watch over a history that can be read again: for stores that live in this process or in a file."""

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


class Place(NamedTuple):
    """How far a watch has read: every change up to this key of this version. Changes of one version are in key order."""

    version: int
    key: bytes


class History(NamedTuple):
    """Some changes in order, and the place behind them."""

    changes: list[Change]
    place: Place


def whole(version: int) -> Place:
    """Return the place behind all changes of a version: no key of UTF-8 is behind 0xFF."""
    return Place(version, b"\xff")


class Bell:
    """Wakes watches when the store has a newer version, and ends them when it closes."""

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self._rung = asyncio.Event()

    def ring(self, version: int) -> None:
        """Tell every watch that there is something to read."""
        self.version = max(self.version, version)
        self._wake()

    def close(self) -> None:
        """Tell every watch that there will be nothing more."""
        self.closed = True
        self._wake()

    async def wait(self, version: int, timeout_s: float | None) -> None:
        """Return once the store is behind this version or closed, or when the time is over."""
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
    """Gives what the history holds, then waits for more. A cancelled step loses nothing: the next one goes on."""

    def __init__(
        self, read: Callable[[Place], Awaitable[History]], bell: Bell, *, after: int, poll_s: float | None
    ) -> None:
        self._read = read
        self._bell = bell
        self._place = whole(after)
        self._poll_s = poll_s
        self._read_ahead: deque[Change] = deque()

    def __aiter__(self) -> HistoryWatch:
        return self

    async def __anext__(self) -> Change:
        while not self._read_ahead:
            if self._bell.closed:
                raise StopAsyncIteration
            try:
                history = await self._read(self._place)
            except MetadataUnavailableError:
                await self._bell.wait(self._bell.version, POLL_S)
                continue
            self._place = history.place
            self._read_ahead.extend(history.changes)
            if not history.changes:
                await self._bell.wait(self._place.version, self._poll_s)
        return self._read_ahead.popleft()
