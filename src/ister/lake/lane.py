"""Read the rows of one data file that are asked for: columns by their field ids, pages by their checksums.

Row groups that cannot hold them are not read. What comes out is bounded: a few MiB at a time, whoever wrote the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import IntegerType

from ister.lake.deletes import FIELD_ID
from ister.lake.files import is_local
from ister.lake.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyiceberg.io import FileIO

    from ister.core.layout import Part
    from ister.lake.deletes import Deleted

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
BATCH_ROWS_MIN = 64

WANTED = {field.field_id: field.name for field in SCHEMA.fields if field.name != "publish_time"}
"""What a message is made of; `publish_time` is there for people, `publish_time_ms` has it exactly."""
OFFSETS = {1: "topic_offset", 2: "partition"}
"""What tells which messages there are."""
OFFSET_ID, PARTITION_ID = 1, 2
NARROW = frozenset(field.field_id for field in SCHEMA.fields if isinstance(field.field_type, IntegerType))
"""Columns of 32 bits, which someone may have widened."""


class Wish(NamedTuple):
    """The rows that are wanted: offsets [start, stop) of a partition."""

    start: int
    stop: int
    partition: int


def read_lane(
    files: FileIO, part: Part, wish: Wish | None, deleted: Deleted | None, fields: dict[int, str] = WANTED
) -> Iterator[pa.RecordBatch]:
    """Give the rows of a file that are wanted, None for all, in the order of the file, with some columns by their names.

    OSError and pa.ArrowException when it cannot be read; ValueError when it has not the columns of a table of ours.
    """
    with files.new_input(part.path).open(seekable=True) as source:
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=not is_local(part.path))
        columns = columns_of(file.schema_arrow, fields.keys(), deleted.equality_ids if deleted else set())
        first_row = 0
        for group in range(file.metadata.num_row_groups):
            about = file.metadata.row_group(group)
            if wish is None or _may_hold(about, columns, wish):
                for rows in _read_group(file, group, first_row, columns, wish, deleted):
                    yield rows.select([str(field_id) for field_id in fields]).rename_columns(list(fields.values()))
            first_row += about.num_rows


def _read_group(
    file: pq.ParquetFile,
    group: int,
    first_row: int,
    columns: dict[int, str | None],
    wish: Wish | None,
    deleted: Deleted | None,
) -> Iterator[pa.RecordBatch]:
    rows_each, names = rows_a_batch(file.metadata.row_group(group)), [name for name in columns.values() if name]
    for batch in file.iter_batches(batch_size=rows_each, row_groups=[group], columns=names):
        by_id = by_field_id(batch, columns)
        keep = None if wish is None else _wanted(by_id, wish)
        if deleted is not None and (left := deleted.kept(first_row, by_id)) is not None:
            keep = left if keep is None else keep & left
        first_row += batch.num_rows
        rows = by_id if keep is None else _kept(by_id, keep)
        if rows.num_rows:
            yield rows


def rows_a_batch(about: pq.RowGroupMetaData) -> int:
    """Return how many rows of a row group are read at a time, so that a batch has a few MiB."""
    row_bytes: int = max(1, about.total_byte_size // max(1, about.num_rows))
    return min(BATCH_ROWS, max(BATCH_ROWS_MIN, BATCH_BYTES // row_bytes))


def columns_of(schema: pa.Schema, wanted: Collection[int], optional: Collection[int]) -> dict[int, str | None]:
    """Return the names that fields have in this file: a column may have been renamed since, or before.

    An `optional` field that was added to the table after the file was written has no name here.
    """
    names = {int(field.metadata[FIELD_ID]): field.name for field in schema if FIELD_ID in (field.metadata or {})}
    missing = sorted(field_id for field_id in wanted if field_id not in names)
    if missing:
        raise ValueError(f"it has no column with field id {', '.join(map(str, missing))}")
    return {field_id: names.get(field_id) for field_id in sorted({*wanted, *optional})}


def by_field_id(batch: pa.RecordBatch, columns: dict[int, str | None]) -> pa.RecordBatch:
    """Return columns named by their field ids; one that the file does not have is null in each row."""
    arrays = []
    for field_id, name in columns.items():
        array = pa.nulls(batch.num_rows) if name is None else batch.column(name)
        arrays.append(array.cast(pa.int32()) if name is not None and field_id in NARROW else array)
    return pa.RecordBatch.from_arrays(arrays, names=[str(field_id) for field_id in columns])


def _may_hold(about: pq.RowGroupMetaData, columns: dict[int, str | None], wish: Wish) -> bool:
    ranges = {OFFSET_ID: (wish.start, wish.stop - 1), PARTITION_ID: (wish.partition, wish.partition)}
    names = {columns[field_id]: wanted for field_id, wanted in ranges.items()}
    for place in range(about.num_columns):
        column = about.column(place)
        wanted = names.get(column.path_in_schema)
        if wanted is None or column.statistics is None or not column.statistics.has_min_max:
            continue
        if column.statistics.max < wanted[0] or column.statistics.min > wanted[1]:
            return False
    return True


def _wanted(by_id: pa.RecordBatch, wish: Wish) -> np.ndarray | None:
    """Return which rows are wanted; None when all are."""
    offsets = by_id.column(str(OFFSET_ID)).to_numpy(zero_copy_only=False)
    partitions = by_id.column(str(PARTITION_ID)).to_numpy(zero_copy_only=False)
    keep: np.ndarray = (offsets >= wish.start) & (offsets < wish.stop) & (partitions == wish.partition)
    return None if keep.all() else keep


def _kept(rows: pa.RecordBatch, keep: np.ndarray) -> pa.RecordBatch:
    """Return the rows that are kept; a run of them without a copy."""
    at = np.flatnonzero(keep)
    if not len(at):
        return rows.slice(0, 0)
    if at[-1] - at[0] + 1 == len(at):
        return rows.slice(int(at[0]), len(at))
    return rows.filter(pa.array(keep))
