"""A watermark: a monotonic integer that coroutines can await."""

from __future__ import annotations

import asyncio


class Watermark:
    """A monotonic integer; `wait` returns once it is high enough, or has ended."""

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
        reached: asyncio.Future[None] = self._loop.create_future()
        waiter = (value, reached)
        self._waiting.add(waiter)
        try:
            await reached
        finally:
            self._waiting.discard(waiter)

    def reach(self, value: int) -> None:
        """Raise it to `value`, and wake those who wait for that."""
        self.value = value
        for wanted, reached in self._waiting:
            if wanted <= value and not reached.done():
                reached.set_result(None)

    def end(self) -> None:
        """Mark it as final, and wake every waiter."""
        self.ended = True
        for _, reached in self._waiting:
            if not reached.done():
                reached.set_result(None)
