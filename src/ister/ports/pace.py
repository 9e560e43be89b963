"""How quick a disk's syncs are, and whose: decides where one is waited for.

Handing a sync to a thread and being woken by it costs about 100 µs, on a disk that syncs in 260. When one producer sends
one message at a time, and nobody else syncs, that is time for nothing: the event loop may wait itself. It waits at most
for a disk that has just been quick, and not again for a while when it was not.
"""

from __future__ import annotations

from ister.core.histogram import Histogram

QUICK_S = 0.001
QUICK_RUN = 8
"""How many syncs in a row must have been quick."""
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OTHERS_S = 0.05
"""For how long another log's sync counts as someone else's business."""


class Pace:
    """The pace of one disk, shared by all its logs."""

    __slots__ = ("_at", "_quick", "_user", "sync_seconds")

    def __init__(self) -> None:
        self._user: object = None
        self._at = 0.0
        self._quick = 0
        self.sync_seconds = Histogram(BOUNDS_S)

    def may_wait_here(self, user: object, now: float) -> bool:
        """Tell whether a sync is so quick, and so alone, that the event loop may wait for it."""
        return self._quick >= QUICK_RUN and (self._user is user or now - self._at > OTHERS_S)

    def took(self, user: object, now: float, seconds: float) -> None:
        """Note whose sync it was, and how long it took."""
        self.sync_seconds.observe(seconds)
        self._user, self._at = user, now
        if seconds < QUICK_S:
            self._quick = min(self._quick + 1, QUICK_RUN)
        else:
            # The longer everyone had to wait, the longer it is not tried again.
            self._quick = -int(QUICK_RUN * seconds / QUICK_S)
