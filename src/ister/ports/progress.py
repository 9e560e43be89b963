"""A number that only grows, and those who wait for it."""

from __future__ import annotations

import asyncio


class Progress:
    """How far something has got; `wait` returns once it is far enough, or has ended."""

    __slots__ = ("_loop", "_waiting", "ended", "value")

    def __init__(self, value: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[tuple[int, asyncio.Future[None]]] = set()
        self.value = value
        self.ended = False

    async def wait(self, value: int) -> None:
        """Return once it has reached `value`, or has ended."""
        if self.value >= value or self.ended:
            return
        news: asyncio.Future[None] = self._loop.create_future()
        waiter = (value, news)
        self._waiting.add(waiter)
        try:
            await news
        finally:
            self._waiting.discard(waiter)

    def reach(self, value: int) -> None:
        """Say how far it is now, and wake those who waited for that."""
        self.value = value
        for wanted, news in self._waiting:
            if wanted <= value and not news.done():
                news.set_result(None)

    def end(self) -> None:
        """Say that it will not go on, and wake everyone."""
        self.ended = True
        for _, news in self._waiting:
            if not news.done():
                news.set_result(None)
