"""Decide how far a subscription is: the lowest offset that is not finished."""

from __future__ import annotations


class Cursor:
    """Finished offsets: all below `at`, and the runs beyond it.

    Runs are kept, not offsets: between two runs lies something unfinished, so there are never more of them than
    unfinished messages, however long the lowest one takes.
    """

    __slots__ = ("_starts", "_stops", "at")

    def __init__(self, at: int) -> None:
        self.at = at
        self._stops: dict[int, int] = {}  # start of a run → its stop
        self._starts: dict[int, int] = {}  # stop of a run → its start

    def finish(self, offset: int) -> None:
        """Count an offset that was not finished before as finished."""
        stop = offset + 1
        stops = self._stops
        if not stops:
            if offset == self.at:
                self.at = stop
            else:
                stops[offset] = stop
                self._starts[stop] = offset
            return
        further = stops.pop(stop, None)
        if further is not None:
            del self._starts[further]
            stop = further
        if offset == self.at:
            self.at = stop
            return
        start = self._starts.pop(offset, offset)
        stops[start] = stop
        self._starts[stop] = start

    def skip_to(self, offset: int) -> None:
        """Count everything below as finished."""
        if offset <= self.at:
            return
        self.at = offset
        for start in [start for start in self._stops if start <= offset]:
            stop = self._stops.pop(start)
            del self._starts[stop]
            self.at = max(self.at, stop)

    @property
    def runs(self) -> int:
        """How many runs of finished offsets lie beyond `at`."""
        return len(self._stops)
