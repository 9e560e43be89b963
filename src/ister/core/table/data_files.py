"""Selection of the data files of a table that hold an offset range, by their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OFFSET_MAX = 2**63 - 1


class DataFileEntry(NamedTuple):
    """A data file as its manifest lists it; bounds of offsets and partitions are inclusive.

    `sequence` orders it among delete files.
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
    """The append time of its newest message; 0 when unknown."""
    spec_id: int = 0
    """The partition spec that it was written with."""
    partition_values: tuple[object, ...] = ()
    """Its values of that spec's fields: the day, and others that a user partitions by."""


class TableEnd(NamedTuple):
    """The committed end of a topic in its table: every offset below `upto`; the newest append time; the snapshot."""

    upto: int
    append_time_us: int = 0
    snapshot_id: int | None = None


NO_TABLE = TableEnd(0)


class RowLocation(NamedTuple):
    """The data file that holds a row, and the snapshot that lists it."""

    snapshot_id: int
    file: str


class Changes(NamedTuple):
    """The data files that differ between two snapshots."""

    added: list[DataFileEntry]
    deleted: list[DataFileEntry]


def select(files: Iterable[DataFileEntry], start: int, stop: int, partition: int) -> list[DataFileEntry]:
    """Return the files that may hold offsets [start, stop) of a partition, by their first offset."""
    found = [
        file
        for file in files
        if file.first < stop and file.last >= start and file.partition_first <= partition <= file.partition_last
    ]
    return sorted(found, key=lambda file: (file.first, file.last, file.path))


def overlap_groups(files: Sequence[DataFileEntry]) -> list[list[DataFileEntry]]:
    """Group files that are sorted by first offset: the files of a group overlap, groups do not."""
    found: list[list[DataFileEntry]] = []
    end = -1
    for file in files:
        if found and file.first <= end:
            found[-1].append(file)
        else:
            found.append([file])
        end = max(end, file.last)
    return found


def changes(before: Iterable[DataFileEntry], after: Iterable[DataFileEntry]) -> Changes:
    """Return the difference of two snapshots; data files are immutable, so paths identify them."""
    old = {file.path: file for file in before}
    new = {file.path: file for file in after}
    return Changes(
        [file for path, file in new.items() if path not in old],
        [file for path, file in old.items() if path not in new],
    )
