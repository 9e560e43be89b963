"""Process-wide tuning and measurement: the cyclic GC, glibc malloc, event-loop lag."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from typing import Final

from ister.core.histogram import Histogram

LONG_S: Final = 0.01
"""A full collection of at least this duration traverses long-lived objects, such as late imports."""
TIMES_MAX: Final = 16
"""How often the survivors of such a collection are frozen. Bounded, because frozen cycles are never collected."""
LARGE: Final = 1 << 20
"""Buffers from this size on are mapped separately, and unmapped when freed."""
MMAP_THRESHOLD: Final = -3
"""`M_MMAP_THRESHOLD` of <malloc.h>."""
INTERVAL_S: Final = 0.1
WINDOW_S: Final = 30.0
"""The maximum lag covers the last one to two windows, so that a scrape every 15 or 30 seconds misses none."""
BOUNDS_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class GcTuning:
    """Freezes long-lived objects so that full runs of the cyclic GC, which block the event loop, stay short."""

    def __init__(self) -> None:
        self._began = 0.0
        self._left = TIMES_MAX

    def pause(self) -> None:
        """Disable the GC until `start`: start-up makes long-lived objects, and collections were a fifth of its time."""
        gc.disable()

    def start(self) -> None:
        """Collect once and freeze the survivors."""
        gc.enable()
        gc.collect()
        gc.freeze()
        trim_heap()
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Restore the GC's normal operation."""
        gc.enable()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:  # the oldest; the others are short
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > LONG_S and self._left:
            self._left -= 1
            gc.freeze()


def map_large_buffers() -> None:
    """Fix glibc's mmap threshold; no effect on other C libraries.

    glibc raises the threshold when a large buffer is freed. Later buffers of that size come from the heap, where a small
    allocation behind one keeps the hole from being returned: 60 MB after 100,000 messages of 1 kB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGE)


def trim_heap() -> None:
    """Return free heap memory to the system (glibc only): opening 1,000 topics leaves 15 MB of holes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class LoopLag:
    """Lag of the running event loop, measured by a timer ten times a second (about 0.1 % of a core).

    A block of 100 ms or more is always seen, a shorter one may fall between two timers. Linux rounds timers up to whole
    milliseconds, so values below 1.5 ms are noise. Reading resets nothing: several scrapers see the same maximum.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS_S)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._window_ends = 0.0
        self._max = self._max_before = 0.0

    def start(self) -> None:
        """Start the timer."""
        assert self._timer is None, "it was started already"
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._window_ends = now + WINDOW_S
        self._arm(self._loop, now)

    def stop(self) -> None:
        """Stop the timer; the measurements remain readable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def max_seconds(self) -> float:
        """Return the maximum lag of the last 30 to 60 seconds, including a block in progress."""
        present = 0.0
        if self._loop is not None and self._timer is not None:
            now = self._loop.time()
            self._roll_window(now)
            present = now - self._due
        return max(self._max, self._max_before, present)

    def _arm(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        # From now, not from the due time: a long block is not followed by a burst of timers.
        self._due = now + INTERVAL_S
        self._timer = loop.call_at(self._due, self._fired, loop)

    def _fired(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = max(0.0, now - self._due)  # a loop may fire early, by its clock's resolution
        self.seconds.observe(late)
        self._roll_window(now)
        self._max = max(self._max, late)
        self._arm(loop, now)

    def _roll_window(self, now: float) -> None:
        if now < self._window_ends:
            return
        # After a block longer than a window the previous maximum is out of date.
        self._max_before = self._max if now < self._window_ends + WINDOW_S else 0.0
        self._max = 0.0
        self._window_ends = now + WINDOW_S
