"""Decide when the pipeline ticks, and how what waits is shared out among its tasks."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    T = TypeVar("T")

TICK_BYTES = 1 << 30
"""About how much of the logs one tick takes, of all topics together: a large backlog does not hold up the others long."""


class Pace(NamedTuple):
    """How often tables are committed to."""

    flush_s: float
    """A message waits about this long when little comes."""
    least_s: float
    """Two ticks begin at least this far from each other."""
    rows: int
    bytes: int
    """When so much waits, in all topics together, a tick begins early."""


class Waiting(NamedTuple):
    """What one topic has that its table has not."""

    rows: int
    bytes: int | None
    """None while nobody has measured its messages: the first tick does, and comes early for it."""
    wanted: bool = False
    """A producer waits for it."""


def seconds_left(pace: Pace, waiting: Sequence[Waiting], since_s: float) -> float:
    """Return how long to wait for the next tick, when the last one began `since_s` ago; 0 is now."""
    hurry = (
        any(one.wanted or (one.rows and one.bytes is None) for one in waiting)
        or sum(one.rows for one in waiting) >= pace.rows
        or sum(one.bytes or 0 for one in waiting) >= pace.bytes
    )
    return max(0.0, (pace.least_s if hurry else max(pace.least_s, pace.flush_s)) - since_s)


def shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Share a budget: all of it while anyone wants more; who wants little gets that, the others get the same each."""
    given = [0] * len(wanted)
    left = budget
    ordered = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(ordered):
        given[index] = min(wanted[index], left // (len(ordered) - place))
        left -= given[index]
    return given


def splits_each(sizes: Sequence[Sequence[int]], budget: int) -> list[int]:
    """Return how many splits of each topic one tick takes: those in its share of the budget, and one at least."""
    given = shares([sum(each) for each in sizes], budget)
    return [
        max(sum(reached <= share for reached in accumulate(each)), min(1, len(each)))
        for each, share in zip(sizes, given, strict=True)
    ]


def cores_for(part: int, whole: int, cores: int) -> int:
    """Return how many cores work for a topic that is such a part of a tick; one at least."""
    return max(1, cores * part // max(1, whole))


def runs(sizes: Sequence[int], target_bytes: int, cores: int) -> list[range]:
    """Cut consecutive splits of one topic into runs, each of which becomes a file; returns ranges of indexes.

    A run is about as large as a file should be, or smaller where cores would have nothing to do otherwise.
    """
    total = sum(sizes)
    goal = max(1, min(target_bytes, -(-total // max(1, cores))))
    found: list[range] = []
    begin = held = 0
    for index, size in enumerate(sizes):
        if held and held + size / 2 > goal:
            found.append(range(begin, index))
            begin, held = index, 0
        held += size
    if begin < len(sizes):
        found.append(range(begin, len(sizes)))
    return found


def deal(sizes: Mapping[T, int], hands: int) -> list[list[T]]:
    """Deal works to at most so many tasks, the largest first, each to the task that has least; none stays empty."""
    tasks: list[tuple[int, list[T]]] = [(0, []) for _ in range(min(hands, len(sizes)))]
    for work, size in sorted(sizes.items(), key=lambda item: -item[1]):
        least = min(range(len(tasks)), key=lambda index: (tasks[index][0], len(tasks[index][1])))
        held, works = tasks[least]
        tasks[least] = (held + size, [*works, work])
    return [works for _, works in tasks]
