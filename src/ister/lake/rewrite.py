"""Copy-on-write deletes: data files are rewritten without some rows, in the file's own Arrow schema.

PyIceberg's own rewrite projects rows to the table's schema, and its projection loses the nulls of lists and maps of structs.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from ister.lake.data_file_rows import (
    OFFSETS,
    by_field_id,
    columns_of,
    deleted_of,
    read_rows,
    rows_a_batch,
)
from ister.lake.errors import CorruptRowsError
from ister.lake.manifests import OFFSET_ID, PARTITION_ID, SnapshotFiles
from ister.lake.parquet import ROW_GROUP_BYTES, copied_file, open_copy
from ister.lake.snapshot import added_entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from ister.core.table.data_files import DataFileEntry
    from ister.lake.data_file_rows import DeletedRows

NAMES = tuple(OFFSETS.values())


class Truncation(NamedTuple):
    """The rows of a partition at or after an offset; all of its rows when that is 0."""

    partition: int
    offset: int

    def may_concern(self, entry: DataFileEntry) -> bool:
        """Return True if a data file may hold some of the rows."""
        return entry.last >= self.offset and entry.partition_first <= self.partition <= entry.partition_last


class Replacement(NamedTuple):
    """A data file to remove, and the file that replaces it; None when no row is left."""

    old: DataFile
    new: DataFile | None


class Overwrite(_OverwriteFiles):
    """PyIceberg's overwrite, where an added file has the partition spec of the file that it replaces."""

    def __init__(self, transaction: Transaction, files: FileIO, summary: dict[str, str]) -> None:
        super().__init__(Operation.OVERWRITE, transaction, files, snapshot_properties=summary)

    def _manifests(self) -> list[ManifestFile]:
        added, self._added_data_files = self._added_data_files, []
        try:
            listed = super()._manifests()
        finally:
            self._added_data_files = added
        for spec_id in sorted({file.spec_id for file in added}):
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for file in added:
                    if file.spec_id == spec_id:
                        writer.add(added_entry(file, self.snapshot_id))
            listed = [writer.to_manifest_file(), *listed]
        return listed

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata, collector = self._transaction.table_metadata, SnapshotSummaryCollector()
        specs, schema = metadata.specs(), metadata.schema()
        for file in self._added_data_files:
            collector.add_file(file, schema, specs[file.spec_id])
        for file in self._deleted_data_files:
            collector.remove_file(file, schema, specs[file.spec_id])
        summary = Summary(operation=Operation.OVERWRITE, **collector.build(), **snapshot_properties)
        current = metadata.current_snapshot()
        return update_snapshot_summaries(summary, None if current is None else current.summary)


def replacements(
    table: Table, snapshot: Snapshot, unreadable: Collection[str], truncations: Sequence[Truncation]
) -> list[Replacement]:
    """Rewrite the data files that hold truncated rows; unreadable files are removed as a whole.

    On failure the new files are deleted. CorruptRowsError when rows that stay cannot be read.
    """
    files, found = table.io, list[Replacement]()
    listed = SnapshotFiles(snapshot, files)
    old_files = {
        entry.data_file.file_path: entry.data_file
        for manifest in snapshot.manifests(files)
        for entry in manifest.fetch_manifest_entry(files, discard_deleted=True)
        if entry.data_file.content == DataFileContent.DATA
    }
    try:
        for path, entry in {entry.path: entry for entry in listed.entries}.items():
            if path in unreadable:
                found.append(Replacement(old_files[path], None))
            elif cuts := [cut for cut in truncations if cut.may_concern(entry)]:
                deleted = deleted_of(entry, listed.deletes, files)
                masks = [_mask(batch, NAMES, cuts) for batch in read_rows(files, entry, None, deleted, OFFSETS)]
                if all(mask.all() for mask in masks):
                    continue
                has_rows = any(mask.any() for mask in masks)
                new = _copied(table, entry, old_files[path], deleted, cuts) if has_rows else None
                found.append(Replacement(old_files[path], new))
    except BaseException:
        discard(files, found)
        raise
    return found


def discard(files: FileIO, found: Sequence[Replacement]) -> None:
    """Delete new files, which no snapshot refers to."""
    for one in found:
        if one.new is not None:
            files.delete(one.new.file_path)


def _copied(
    table: Table, entry: DataFileEntry, old: DataFile, deleted: DeletedRows | None, cuts: Sequence[Truncation]
) -> DataFile:
    """Copy the remaining rows of a data file, a row group at a time."""
    files, path = table.io, table.location_provider().new_data_location(f"{uuid.uuid4().hex}-repair.parquet")
    stream = files.new_output(path).create()
    try:
        with files.new_input(entry.path).open(seekable=True) as source, stream:
            try:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                schema = file.schema_arrow
                writer = open_copy(stream, schema)
                for rows in _row_groups(_remaining(file, deleted, cuts)):
                    writer.write_table(rows, row_group_size=rows.num_rows)
            except (OSError, pa.ArrowException) as error:
                cause = (
                    f"rows that are to be kept cannot be read ({error}); if log and objects hold all of its rows, move the file "
                    "away and repair again"
                )
                raise CorruptRowsError(".".join(table.name()), entry.path, cause) from error
            writer.close()
            size = stream.tell()
    except BaseException:
        files.delete(path)
        raise
    return copied_file(old, path, size, writer, schema)


def _remaining(
    file: pq.ParquetFile, deleted: DeletedRows | None, cuts: Sequence[Truncation]
) -> Iterator[pa.RecordBatch]:
    columns = columns_of(file.schema_arrow, OFFSETS.keys(), deleted.equality_ids if deleted else set())
    names, first_row = (str(OFFSET_ID), str(PARTITION_ID)), 0
    for group in range(file.metadata.num_row_groups):
        for batch in file.iter_batches(batch_size=rows_a_batch(file.metadata.row_group(group)), row_groups=[group]):
            by_id = by_field_id(batch, columns)
            keep = _mask(by_id, names, cuts)
            if deleted is not None and (left := deleted.mask(first_row, by_id)) is not None:
                keep &= left
            first_row += batch.num_rows
            yield batch.filter(pa.array(keep))


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
        if sum(one.nbytes for one in pending) >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _mask(rows: pa.RecordBatch, names: Sequence[str], cuts: Sequence[Truncation]) -> np.ndarray:
    """Return a mask of the rows that no truncation removes."""
    offsets, partitions = (rows.column(name).to_numpy(zero_copy_only=False) for name in names)
    keep = np.ones(rows.num_rows, np.bool_)
    for cut in cuts:
        ours = partitions == cut.partition
        keep &= ~(ours & (offsets >= cut.offset)) if cut.offset else ~ours
    return keep
