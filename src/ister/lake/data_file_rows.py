"""Row ranges of one Parquet data file without its deleted rows: columns by field id, page checksums verified.

Row groups outside of the range are skipped. Batches have a few MiB at most, also of files that others wrote. Deletes that are
merged on read are position deletes, deletion vectors and equality deletes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import IntegerType

from ister.lake.columns import SCHEMA
from ister.lake.files import is_local
from ister.lake.manifests import OFFSET_ID, PARTITION_ID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile

    from ister.core.table.data_files import DataFileEntry
    from ister.lake.manifests import DeleteFile

PATH_ID = 2147483546
"""Iceberg's field id of `file_path` in position delete files; its bounds limit the data files they refer to."""
FIELD_ID = b"PARQUET:field_id"
BATCH_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
BATCH_ROWS_MIN = 64

MESSAGE_FIELDS = {field.field_id: field.name for field in SCHEMA.fields if field.name != "publish_time"}
"""The columns of a message; `publish_time` is derived from `publish_time_ms`, which is exact."""
OFFSETS = {OFFSET_ID: "topic_offset", PARTITION_ID: "partition"}
"""The columns that identify a message."""
NARROW = frozenset(field.field_id for field in SCHEMA.fields if isinstance(field.field_type, IntegerType))
"""Columns of 32 bits, which a user may have widened."""


class RowRange(NamedTuple):
    """The offsets [start, stop) of a partition."""

    start: int
    stop: int
    partition: int


def read_rows(
    files: FileIO,
    entry: DataFileEntry,
    row_range: RowRange | None,
    deleted: DeletedRows | None,
    fields: dict[int, str] = MESSAGE_FIELDS,
) -> Iterator[pa.RecordBatch]:
    """Yield a row range of a file, None for all rows, in file order, with the columns of some fields.

    OSError and pa.ArrowException when it cannot be read; ValueError when it lacks one of the columns.
    """
    with files.new_input(entry.path).open(seekable=True) as source:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=not is_local(entry.path))
        columns = columns_of(file.schema_arrow, fields.keys(), deleted.equality_ids if deleted else set())
        names, first_row = [name for name in columns.values() if name], 0
        for group in range(file.metadata.num_row_groups):
            about = file.metadata.row_group(group)
            if row_range is not None and not _may_hold(about, columns, row_range):
                first_row += about.num_rows
                continue
            for batch in file.iter_batches(batch_size=rows_a_batch(about), row_groups=[group], columns=names):
                rows = by_field_id(batch, columns)
                keep = None if row_range is None else _in_range(rows, row_range)
                if deleted is not None and (left := deleted.mask(first_row, rows)) is not None:
                    keep = left if keep is None else keep & left
                first_row += batch.num_rows
                if keep is not None:
                    rows = _filtered(rows, keep)
                if rows.num_rows:
                    yield rows.select([str(field_id) for field_id in fields]).rename_columns(list(fields.values()))


def rows_a_batch(about: pq.RowGroupMetaData) -> int:
    """Return the batch size for a row group, in rows, so that a batch has a few MiB."""
    row_bytes: int = max(1, about.total_byte_size // max(1, about.num_rows))
    return min(BATCH_ROWS, max(BATCH_ROWS_MIN, BATCH_BYTES // row_bytes))


def columns_of(schema: pa.Schema, wanted: Collection[int], optional: Collection[int]) -> dict[int, str | None]:
    """Return the column names of fields in this file, where they may differ from the table's.

    An `optional` field that the file does not have is None.
    """
    names = _names_by_id(schema)
    missing = sorted(field_id for field_id in wanted if field_id not in names)
    if missing:
        raise ValueError(f"it has no column with field id {', '.join(map(str, missing))}")
    return {field_id: names.get(field_id) for field_id in sorted({*wanted, *optional})}


def by_field_id(batch: pa.RecordBatch, columns: dict[int, str | None]) -> pa.RecordBatch:
    """Return the columns named by field id; one that the file does not have is all null."""
    arrays = []
    for field_id, name in columns.items():
        array = pa.nulls(batch.num_rows) if name is None else batch.column(name)
        arrays.append(array.cast(pa.int32()) if name is not None and field_id in NARROW else array)
    return pa.RecordBatch.from_arrays(arrays, names=[str(field_id) for field_id in columns])


def _may_hold(about: pq.RowGroupMetaData, columns: dict[int, str | None], row_range: RowRange) -> bool:
    start, stop, partition = row_range
    bounds = {columns[OFFSET_ID]: (start, stop - 1), columns[PARTITION_ID]: (partition, partition)}
    for position in range(about.num_columns):
        column = about.column(position)
        wanted = bounds.get(column.path_in_schema)
        if wanted is None or column.statistics is None or not column.statistics.has_min_max:
            continue
        if column.statistics.max < wanted[0] or column.statistics.min > wanted[1]:
            return False
    return True


def _in_range(by_id: pa.RecordBatch, row_range: RowRange) -> np.ndarray | None:
    """Return a mask of the rows in the range; None when all are."""
    offsets = by_id.column(str(OFFSET_ID)).to_numpy(zero_copy_only=False)
    partitions = by_id.column(str(PARTITION_ID)).to_numpy(zero_copy_only=False)
    keep: np.ndarray = (offsets >= row_range.start) & (offsets < row_range.stop) & (partitions == row_range.partition)
    return None if keep.all() else keep


def _filtered(rows: pa.RecordBatch, keep: np.ndarray) -> pa.RecordBatch:
    """Return the rows of a mask, without a copy if they are contiguous."""
    at = np.flatnonzero(keep)
    if not len(at):
        return rows.slice(0, 0)
    if at[-1] - at[0] + 1 == len(at):
        return rows.slice(int(at[0]), len(at))
    return rows.filter(pa.array(keep))


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    return {int(field.metadata[FIELD_ID]): field.name for field in schema if FIELD_ID in (field.metadata or {})}


# --- deletes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The deleted rows of one data file, from every delete file that may refer to it."""

    positions: np.ndarray
    values: Sequence[tuple[list[int], set[tuple[object, ...]]]]

    @property
    def equality_ids(self) -> set[int]:
        """The fields that equality deletes compare."""
        return {field_id for ids, _ in self.values for field_id in ids}

    def mask(self, first_row: int, rows: pa.RecordBatch) -> np.ndarray | None:
        """Return a mask of the rows that are not deleted, None when all are; `first_row` is the position in the file.

        The columns of `rows` are named by field id.
        """
        keep = np.ones(rows.num_rows, np.bool_)
        low, high = np.searchsorted(self.positions, [first_row, first_row + rows.num_rows])
        keep[self.positions[low:high] - first_row] = False
        for ids, deleted in self.values:
            columns = [rows.column(str(field_id)).to_pylist() for field_id in ids]
            keep &= np.fromiter((row not in deleted for row in zip(*columns, strict=True)), np.bool_, rows.num_rows)
        return None if keep.all() else keep


def deleted_of(entry: DataFileEntry, deletes: Iterable[DeleteFile], files: FileIO) -> DeletedRows | None:
    """Return the deleted rows of a data file, None when there are none."""
    positions: list[np.ndarray] = []
    values: list[tuple[list[int], set[tuple[object, ...]]]] = []
    for delete in deletes:
        if delete.file.content == DataFileContent.POSITION_DELETES:
            if delete.sequence >= entry.sequence and _may_name(delete.file, entry.path):
                positions.append(_positions(delete.file, entry.path, files))
        elif delete.sequence > entry.sequence and delete.is_in_partition_of(entry):
            values.append(_values(delete.file, files))
    if not positions and not values:
        return None
    merged = np.unique(np.concatenate(positions)) if positions else np.empty(0, np.int64)
    return DeletedRows(merged, values)


def _may_name(file: DataFile, path: str) -> bool:
    lower, upper = (file.lower_bounds or {}).get(PATH_ID), (file.upper_bounds or {}).get(PATH_ID)
    if lower is None or upper is None:
        return True
    wanted = path.encode()
    return lower <= wanted and wanted[: len(upper)] <= upper


def _positions(file: DataFile, path: str, files: FileIO) -> np.ndarray:
    with files.new_input(file.file_path).open() as source:
        if file.file_format == FileFormat.PUFFIN:
            vectors = deletion_vectors_from_puffin_file(PuffinFile(source.read()))
            found = [vector.to_vector().to_numpy() for vector in vectors if vector.referenced_data_file == path]
            return np.concatenate(found) if found else np.empty(0, np.int64)
        table = pq.read_table(source, page_checksum_verification=True)
    positions: np.ndarray = table.filter(pa.compute.equal(table["file_path"], path))["pos"].to_numpy()
    return positions


def _values(file: DataFile, files: FileIO) -> tuple[list[int], set[tuple[object, ...]]]:
    ids = list(file.equality_ids or ())
    with files.new_input(file.file_path).open() as source:
        table = pq.read_table(source, page_checksum_verification=True)
    names = _names_by_id(table.schema)
    columns = [table[names[field_id]].to_pylist() for field_id in ids]
    return ids, set(zip(*columns, strict=True))
