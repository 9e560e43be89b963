"""Decide what is due: at most one timer for an offset, the earliest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

STALE_MIN = 64


class Timers:
    """Times by offset. A cancelled one stays in the heap for a while, but never more of those than of the others."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __contains__(self, offset: int) -> bool:
        return offset in self._times

    def __len__(self) -> int:
        return len(self._times)

    def set(self, offset: int, at: float) -> None:
        """Have an offset expire at a time, and not at an earlier set one."""
        self._times[offset] = at
        heappush(self._heap, (at, offset))

    def cancel(self, offset: int) -> None:
        """Have an offset not expire."""
        self._times.pop(offset, None)
        if len(self._heap) > 2 * len(self._times) + STALE_MIN:
            self._heap = [(at, offset) for offset, at in self._times.items()]
            heapify(self._heap)

    def expired(self, now: float) -> list[int]:
        """Return, once, the offsets whose time has come."""
        offsets = []
        while (at := self.next) is not None and at <= now:
            offset = heappop(self._heap)[1]
            del self._times[offset]
            offsets.append(offset)
        return offsets

    @property
    def next(self) -> float | None:
        """When the next offset expires; None: never."""
        heap = self._heap
        while heap:
            at, offset = heap[0]
            if self._times.get(offset) == at:
                return at
            heappop(heap)
        return None
