"""Which files a snapshot has: data files with their bounds, and delete files; each manifest is read once.

Manifests never change, so what was read of one is kept for as long as the newest snapshot has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.manifest import DataFileContent, ManifestContent

from ister.core.layout import OFFSET_MAX, Changes, Part, changes, select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

OFFSET_ID = 1
PARTITION_ID = 2
APPEND_TIME_ID = 3


class Delete(NamedTuple):
    """A delete file, the number that says which data files are older, and which partition it is for."""

    file: DataFile
    sequence: int
    spec_id: int
    partition_values: tuple[object, ...]

    def is_in_partition_of(self, part: Part) -> bool:
        """Return True if it is for the data file's partition, or for all: its spec has no partition fields."""
        ours = (self.spec_id, self.partition_values)
        return not self.partition_values or ours == (part.spec_id, part.partition_values)


class Listing(NamedTuple):
    """What one manifest, or one snapshot, has."""

    parts: tuple[Part, ...]
    deletes: tuple[Delete, ...]


class FileIndex:
    """The files of a table's newest snapshot; `plan` gives those that some offsets need."""

    def __init__(self) -> None:
        self.snapshot_id: int | None = None
        self._manifests: dict[str, Listing] = {}
        self._listing = Listing((), ())

    def turn(self, snapshot: Snapshot | None, files: FileIO) -> None:
        """Look at another snapshot; reads the manifests that are new in it."""
        if snapshot is not None and snapshot.snapshot_id == self.snapshot_id:
            return
        manifests: dict[str, Listing] = {}
        for manifest in snapshot.manifests(files) if snapshot is not None else ():
            known = self._manifests.get(manifest.manifest_path)
            manifests[manifest.manifest_path] = known or _read(manifest, files)
        self._manifests = manifests
        self._listing = _joined(manifests.values())
        self.snapshot_id = None if snapshot is None else snapshot.snapshot_id

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every data file."""
        return self._listing.parts

    @property
    def deletes(self) -> tuple[Delete, ...]:
        """Every delete file."""
        return self._listing.deletes

    @property
    def manifests(self) -> tuple[str, ...]:
        """Every manifest, by its path."""
        return tuple(self._manifests)

    def plan(self, start: int, stop: int, partition: int) -> list[Part]:
        """Return the data files that may hold offsets [start, stop) of a partition, by their first offset."""
        return select(self._listing.parts, start, stop, partition)


def plan_scan(before: Snapshot | None, after: Snapshot, files: FileIO) -> Changes:
    """Return which data files one snapshot has that another has not, and the other way round."""
    old, new = FileIndex(), FileIndex()
    old.turn(before, files)
    new.turn(after, files)
    return changes(old.parts, new.parts)


def _read(manifest: ManifestFile, files: FileIO) -> Listing:
    entries = manifest.fetch_manifest_entry(files, discard_deleted=True)
    if manifest.content == ManifestContent.DELETES:
        return Listing((), tuple(_delete(entry, manifest.partition_spec_id) for entry in entries))
    data = [entry for entry in entries if entry.data_file.content == DataFileContent.DATA]
    return Listing(tuple(_part(entry, manifest.partition_spec_id) for entry in data), ())


def _delete(entry: ManifestEntry, spec_id: int) -> Delete:
    file = entry.data_file
    return Delete(file, entry.sequence_number or 0, spec_id, _values(file.partition))


def _values(partition: Record) -> tuple[object, ...]:
    return tuple(partition[place] for place in range(len(partition)))


def _part(entry: ManifestEntry, spec_id: int) -> Part:
    file = entry.data_file
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return Part(
        file.file_path,
        _bound(lower, OFFSET_ID, 0),
        _bound(upper, OFFSET_ID, OFFSET_MAX),
        file.record_count,
        file.file_size_in_bytes,
        entry.sequence_number or 0,
        _bound(lower, PARTITION_ID, 0),
        _bound(upper, PARTITION_ID, OFFSET_MAX),
        _bound(upper, APPEND_TIME_ID, 0),
        spec_id,
        _values(file.partition),
    )


def _bound(bounds: dict[int, bytes], field_id: int, absent: int) -> int:
    """Read a bound of a whole number, of as many bytes as it has: someone may have widened the column."""
    found = bounds.get(field_id)
    return absent if found is None else int.from_bytes(found, "little", signed=True)


def _joined(listings: Iterable[Listing]) -> Listing:
    found = list(listings)
    return Listing(
        tuple(part for one in found for part in one.parts), tuple(delete for one in found for delete in one.deletes)
    )
