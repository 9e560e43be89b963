"""Measure how late the event loop is: a timer says when it should have fired, the clock says when it did.

Whatever keeps the loop busy keeps every client waiting as long. Ten timers a second cost about 0.1 % of a core. A
block that falls between two timers is not seen; one of 100 ms or more always is. Linux rounds timers up to whole
milliseconds, so values below 1.5 ms mean nothing.
"""

from __future__ import annotations

import asyncio

from ister.core.histogram import Histogram

INTERVAL_S = 0.1
WINDOW_S = 30.0
"""The largest lag is told for the last one to two windows, so a scrape each 15 or 30 seconds misses none."""
BOUNDS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """The lag of the running event loop; `start` and `stop` it there.

    Nothing is reset by reading, so several scrapers do not take the largest lag away from each other.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS_S)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._window_ends = 0.0
        self._max = self._max_before = 0.0

    def start(self) -> None:
        """Begin to measure."""
        assert self._timer is None, "it was started already"
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._window_ends = now + WINDOW_S
        self._arm(self._loop, now)

    def stop(self) -> None:
        """Measure no more; what was measured stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def max_seconds(self) -> float:
        """Return the largest lag of the last 30 to 60 seconds, the present one included."""
        present = 0.0
        if self._loop is not None and self._timer is not None:
            now = self._loop.time()
            self._turn_window(now)
            present = now - self._due
        return max(self._max, self._max_before, present)

    def _arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        # From now, not from when it was due: after a long block there is no burst of timers to catch up.
        self._due = now + INTERVAL_S
        self._timer = loop.call_at(self._due, self._fired, loop)

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = max(0.0, now - self._due)  # a loop may fire within its clock's resolution too early
        self.seconds.observe(late)
        self._turn_window(now)
        self._max = max(self._max, late)
        self._arm(loop, now)

    def _turn_window(self, now: float) -> None:
        if now < self._window_ends:
            return
        # After a block that is longer than a window, what was before it is old.
        self._max_before = self._max if now < self._window_ends + WINDOW_S else 0.0
        self._max = 0.0
        self._window_ends = now + WINDOW_S
