"""What a log does later, each thing at most once at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """Named timers on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._armed: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then` after a while, unless this timer runs already."""
        if name not in self._armed:
            self._armed[name] = self._loop.call_later(delay_s, self._ring, name, then)

    def armed(self, name: str) -> bool:
        """Return True if this timer runs."""
        return name in self._armed

    def disarm(self, *names: str) -> None:
        """Stop these timers, or all when none is named."""
        for name in names or list(self._armed):
            timer = self._armed.pop(name, None)
            if timer is not None:
                timer.cancel()

    def _ring(self, name: str, then: Callable[[], None]) -> None:
        del self._armed[name]
        then()
