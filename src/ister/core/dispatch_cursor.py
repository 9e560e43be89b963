"""Decide how far a subscription is: the lowest offset that is not finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Cursor:
    """Finished offsets: all below `at`, and the runs beyond it.

    Runs are kept, not offsets: between two runs lies something unfinished, so there are never more of them than
    unfinished messages, however long the lowest one takes.
    """

    __slots__ = ("_starts", "_stops", "at")

    def __init__(self, at: int, finished: Iterable[tuple[int, int]] = ()) -> None:
        self.at = at
        self._stops: dict[int, int] = {}  # start of a run → its stop
        self._starts: dict[int, int] = {}  # stop of a run → its start
        last = at
        for start, stop in sorted(finished):
            if stop <= self.at:
                continue
            if start <= self.at:
                self.at = last = stop
            elif start <= last:  # it touches the run before
                first = self._starts.pop(last)
                last = max(last, stop)
                self._stops[first] = last
                self._starts[last] = first
            else:
                self._stops[start] = last = stop
                self._starts[stop] = start

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

    def finish_range(self, start: int, stop: int) -> None:
        """Count [start, stop) as finished, whatever of it was finished before."""
        start, stop = max(start, self.at), max(stop, self.at)
        if start == stop:
            return
        for first in [first for first, last in self._stops.items() if first <= stop and last >= start]:
            last = self._stops.pop(first)
            del self._starts[last]
            start, stop = min(start, first), max(stop, last)
        if start == self.at:
            self.at = stop
        else:
            self._stops[start] = stop
            self._starts[stop] = start

    def skip_to(self, offset: int) -> None:
        """Count everything below as finished."""
        self.finish_range(self.at, offset)

    @property
    def runs(self) -> int:
        """How many runs of finished offsets lie beyond `at`."""
        return len(self._stops)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The runs [start, stop) of finished offsets beyond `at`, in order."""
        return sorted(self._stops.items())
