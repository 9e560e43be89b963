"""fsync latency of a disk; decides whether a lone fsync may block the event loop instead of using a thread.

The round trip to a thread costs about 100 µs, on a disk that syncs in 260. When one producer sends one message at a time,
and no other log syncs, that is wasted: the event loop may block itself, if the last syncs were quick.
"""

from __future__ import annotations

from ister.core.histogram import Histogram

QUICK_S = 0.001
QUICK_RUN = 8
"""The number of consecutive quick syncs that is required."""
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OTHERS_S = 0.05
"""How long a log counts as syncing after its last sync."""


class SyncLatency:
    """The fsync latency of one disk, shared by all its logs."""

    __slots__ = ("_at", "_quick", "_user", "sync_seconds")

    def __init__(self) -> None:
        self._user: object = None
        self._at = 0.0
        self._quick = 0
        self.sync_seconds = Histogram(BOUNDS_S)

    def may_block_loop(self, user: object, now: float) -> bool:
        """Return True if a sync by `user` may block the event loop: recent syncs were quick, and no other log syncs."""
        return self._quick >= QUICK_RUN and (self._user is user or now - self._at > OTHERS_S)

    def observe(self, user: object, now: float, seconds: float) -> None:
        """Record a sync by `user`."""
        self.sync_seconds.observe(seconds)
        self._user, self._at = user, now
        if seconds < QUICK_S:
            self._quick = min(self._quick + 1, QUICK_RUN)
        else:
            # The longer the event loop was blocked, the longer it is not blocked again.
            self._quick = -int(QUICK_RUN * seconds / QUICK_S)
