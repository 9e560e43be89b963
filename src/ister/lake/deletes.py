"""Merge-on-read deletes of a data file: position deletes, deletion vectors and equality deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile

    from ister.core.table.data_files import DataFileEntry
    from ister.lake.manifests import DeleteFile

PATH_ID = 2147483546
"""Iceberg's field id of `file_path` in position delete files; its bounds limit the data files they refer to."""
FIELD_ID = b"PARQUET:field_id"


class DeletedRows:
    """The deleted rows of one data file, from every delete file that may refer to it."""

    def __init__(self, positions: np.ndarray, values: Sequence[tuple[list[int], set[tuple[object, ...]]]]) -> None:
        self._positions = positions
        self._values = values

    @property
    def equality_ids(self) -> set[int]:
        """The fields that equality deletes compare."""
        return {field_id for ids, _ in self._values for field_id in ids}

    def mask(self, first_row: int, rows: pa.RecordBatch) -> np.ndarray | None:
        """Return a mask of the rows that are not deleted, None when all are; `first_row` is the position in the file.

        The columns of `rows` are named by field id.
        """
        keep = np.ones(rows.num_rows, np.bool_)
        low, high = np.searchsorted(self._positions, [first_row, first_row + rows.num_rows])
        keep[self._positions[low:high] - first_row] = False
        for ids, deleted in self._values:
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
    names = {int(field.metadata[FIELD_ID]): field.name for field in table.schema if FIELD_ID in (field.metadata or {})}
    columns = [table[names[field_id]].to_pylist() for field_id in ids]
    return ids, set(zip(*columns, strict=True))
