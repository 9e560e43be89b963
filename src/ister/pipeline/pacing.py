"""Trigger and size of micro-batches: when the next one is due, its budget, files and tasks. Pure."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    T = TypeVar("T")

MICRO_BATCH_BYTES = 1 << 30
"""Budget of a micro-batch, of all topics together: a large backlog does not delay the other topics long."""


class Pace(NamedTuple):
    """The trigger of micro-batches."""

    flush_s: float
    """A message waits about this long under light load."""
    least_s: float
    """Least time between the starts of two micro-batches."""
    rows: int
    bytes: int
    """A backlog, in all topics together, at which a micro-batch starts early."""


class Waiting(NamedTuple):
    """The backlog of one topic: messages that are not in its table."""

    rows: int
    bytes: int | None
    """None until a micro-batch has measured its messages; the first one starts early for that."""
    wanted: bool = False
    """A producer waits for it."""


def seconds_left(pace: Pace, waiting: Sequence[Waiting], since_s: float) -> float:
    """Return how long to wait for the next micro-batch, when the last one started `since_s` ago; 0 is now."""
    is_early = (
        any(one.wanted or (one.rows and one.bytes is None) for one in waiting)
        or sum(one.rows for one in waiting) >= pace.rows
        or sum(one.bytes or 0 for one in waiting) >= pace.bytes
    )
    return max(0.0, (pace.least_s if is_early else max(pace.least_s, pace.flush_s)) - since_s)


def shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Return max-min fair shares: small demands in full, the rest divided equally."""
    given = [0] * len(wanted)
    left = budget
    ordered = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(ordered):
        given[index] = min(wanted[index], left // (len(ordered) - place))
        left -= given[index]
    return given


def splits_each(sizes: Sequence[Sequence[int]], budget: int) -> list[int]:
    """Return how many splits of each topic a micro-batch takes: those in its share of the budget, and one at least."""
    given = shares([sum(each) for each in sizes], budget)
    return [
        max(sum(reached <= share for reached in accumulate(each)), min(1, len(each)))
        for each, share in zip(sizes, given, strict=True)
    ]


def cores_for(part: int, whole: int, cores: int) -> int:
    """Return the cores for a topic that has `part` bytes of a micro-batch's `whole`; one at least."""
    return max(1, cores * part // max(1, whole))


def runs(sizes: Sequence[int], target_bytes: int, cores: int) -> list[range]:
    """Group consecutive splits of one topic into runs, each of which becomes a file; return ranges of indexes.

    A run is about as large as a file should be, or smaller where cores would be idle otherwise.
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
    """Assign items to at most `hands` tasks, the largest first, each to the smallest task; no task stays empty."""
    tasks: list[tuple[int, list[T]]] = [(0, []) for _ in range(min(hands, len(sizes)))]
    for item, size in sorted(sizes.items(), key=lambda item: -item[1]):
        least = min(range(len(tasks)), key=lambda index: (tasks[index][0], len(tasks[index][1])))
        held, items = tasks[least]
        tasks[least] = (held + size, [*items, item])
    return [items for _, items in tasks]
