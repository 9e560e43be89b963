"""The data files and delete files of a snapshot, from its manifests.

Manifests are immutable, so each is read once and cached for as long as the newest snapshot lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.manifest import DataFileContent, ManifestContent

from ister.core.table.data_files import OFFSET_MAX, DataFileEntry

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

OFFSET_ID = 1
PARTITION_ID = 2
APPEND_TIME_ID = 3


class DeleteFile(NamedTuple):
    """A delete file, its sequence number and its partition."""

    file: DataFile
    sequence: int
    spec_id: int
    partition_values: tuple[object, ...]

    def is_in_partition_of(self, entry: DataFileEntry) -> bool:
        """Return True if it applies to the data file's partition, or to all: its spec has no partition fields."""
        ours = (self.spec_id, self.partition_values)
        return not self.partition_values or ours == (entry.spec_id, entry.partition_values)


class _Manifest(NamedTuple):
    entries: tuple[DataFileEntry, ...]
    deletes: tuple[DeleteFile, ...]


class SnapshotFiles:
    """The files of one snapshot."""

    def __init__(self, snapshot: Snapshot | None = None, files: FileIO | None = None) -> None:
        self.snapshot_id: int | None = None
        self.entries: tuple[DataFileEntry, ...] = ()
        self.deletes: tuple[DeleteFile, ...] = ()
        self.manifests: dict[str, _Manifest] = {}
        """By path."""
        if snapshot is not None and files is not None:
            self.load(snapshot, files)

    def load(self, snapshot: Snapshot | None, files: FileIO) -> None:
        """Load another snapshot; reads only the manifests that are not cached."""
        if snapshot is not None and snapshot.snapshot_id == self.snapshot_id:
            return
        manifests: dict[str, _Manifest] = {}
        for manifest in snapshot.manifests(files) if snapshot is not None else ():
            known = self.manifests.get(manifest.manifest_path)
            manifests[manifest.manifest_path] = known or _read(manifest, files)
        self.manifests = manifests
        self.entries = tuple(entry for one in manifests.values() for entry in one.entries)
        self.deletes = tuple(delete for one in manifests.values() for delete in one.deletes)
        self.snapshot_id = None if snapshot is None else snapshot.snapshot_id


def _read(manifest: ManifestFile, files: FileIO) -> _Manifest:
    entries, spec_id = manifest.fetch_manifest_entry(files, discard_deleted=True), manifest.partition_spec_id
    if manifest.content == ManifestContent.DELETES:
        numbered = [(entry.data_file, entry.sequence_number or 0) for entry in entries]
        return _Manifest((), tuple(DeleteFile(file, at, spec_id, _values(file.partition)) for file, at in numbered))
    data = [entry for entry in entries if entry.data_file.content == DataFileContent.DATA]
    return _Manifest(tuple(_data_file(entry, spec_id) for entry in data), ())


def _values(partition: Record) -> tuple[object, ...]:
    return tuple(partition[position] for position in range(len(partition)))


def _data_file(entry: ManifestEntry, spec_id: int) -> DataFileEntry:
    file = entry.data_file
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return DataFileEntry(
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
    """Return an integer bound, of 4 or 8 bytes: a user may have widened the column."""
    found = bounds.get(field_id)
    return absent if found is None else int.from_bytes(found, "little", signed=True)
