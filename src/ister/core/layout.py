"""Decide which data files of a table to read for some offsets, and in which order; whoever wrote or rewrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OFFSET_MAX = 2**63 - 1


class Part(NamedTuple):
    """A data file: which offsets and partitions it may hold, as its bounds say, ends included.

    `sequence` tells it from deletions that came later.
    """

    path: str
    first: int
    last: int
    rows: int
    size: int
    sequence: int
    partition_first: int = 0
    partition_last: int = OFFSET_MAX
    append_time_us: int = 0
    """When the newest message in it was stored; 0 when it does not say."""
    spec_id: int = 0
    """The partition spec that it was written by."""
    partition_values: tuple[object, ...] = ()
    """Where it lies in that spec: its day, and what else a user partitions by."""


class TableEnd(NamedTuple):
    """How far a table holds a topic: every offset below `upto`; when its newest message was stored; the snapshot seen."""

    upto: int
    append_time_us: int = 0
    snapshot_id: int | None = None


NO_TABLE = TableEnd(0)


class Place(NamedTuple):
    """Where a row is: the snapshot that was looked at, and the data file in it."""

    snapshot_id: int
    file: str


class Changes(NamedTuple):
    """The data files that one snapshot has and another has not."""

    added: list[Part]
    deleted: list[Part]


def select(parts: Iterable[Part], start: int, stop: int, partition: int) -> list[Part]:
    """Return the files that may hold offsets [start, stop) of a partition, by their first offset."""
    found = [
        part
        for part in parts
        if part.first < stop and part.last >= start and part.partition_first <= partition <= part.partition_last
    ]
    return sorted(found, key=lambda part: (part.first, part.last, part.path))


def clusters(parts: Sequence[Part]) -> list[list[Part]]:
    """Group files that are sorted by their first offset: those of one group overlap, and groups follow each other."""
    found: list[list[Part]] = []
    end = -1
    for part in parts:
        if found and part.first <= end:
            found[-1].append(part)
        else:
            found.append([part])
        end = max(end, part.last)
    return found


def changes(before: Iterable[Part], after: Iterable[Part]) -> Changes:
    """Return what lies between two snapshots; data files are never changed, so a path says it all."""
    old = {part.path: part for part in before}
    new = {part.path: part for part in after}
    return Changes(
        [part for path, part in new.items() if path not in old],
        [part for path, part in old.items() if path not in new],
    )
