"""Parquet data files of a table, split by day and target size; runs in Spark tasks, without a catalog.

Files have field ids, statistics and page checksums: without checksums a flipped bit is read as another value. Their Iceberg
statistics are returned with the path, so that the commit reads no footer.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from ister.lake.columns import DAY, METRICS
from ister.lake.files import open_io

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import FileIO, OutputStream
    from pyiceberg.io.pyarrow import StatisticsCollector

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Bytes of a row group in memory before it is written."""
DAY_US = 86_400_000_000

_ALL_DIFFERENT = frozenset(
    {"topic_offset", "append_time", "publish_time", "publish_time_ms", "request_id", "payload", "frame_crc"}
)
"""Columns that a dictionary makes larger."""


class Written(NamedTuple):
    """A finished data file, and its metadata for the commit."""

    path: str
    bytes: int
    rows: int
    day: int
    partition: int
    first_offset: int
    last_offset: int
    split_offsets: list[int]
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    lower_bounds: dict[int, str]
    upper_bounds: dict[int, str]

    def to_json(self) -> str:
        """Return JSON, the result of a Spark task."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Written:
        """Parse the result of `to_json`."""
        fields = json.loads(text)
        for name, value in fields.items():
            if isinstance(value, dict):
                fields[name] = {int(field_id): of_it for field_id, of_it in value.items()}
        return cls(**fields)


def write_files(
    io_properties: dict[str, str],
    location: str,
    batches: Iterable[pa.RecordBatch],
    *,
    partition: int,
    name: str,
    target_bytes: int,
) -> list[Written]:
    """Write a table's rows, in offset order; on failure its files are deleted.

    `location` is the table's, `name` is unique to this attempt. Batches have the schema of the table's data files, field ids
    included. At most a row group and a batch are in memory.
    """
    files = open_io(io_properties, location)
    writer = _Writer(files, location, partition, name, target_bytes)
    try:
        for batch in batches:
            for day, rows in _by_day(batch):
                writer.write(day, rows)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def data_file(written: Written, spec_id: int) -> DataFile:
    """Return the manifest entry of a written file."""
    return _data_file(
        file_path=written.path,
        partition=Record(written.day),
        file_size_in_bytes=written.bytes,
        record_count=written.rows,
        column_sizes=written.column_sizes,
        value_counts=written.value_counts,
        null_value_counts=written.null_value_counts,
        nan_value_counts={},
        lower_bounds={field_id: b64decode(bound) for field_id, bound in written.lower_bounds.items()},
        upper_bounds={field_id: b64decode(bound) for field_id, bound in written.upper_bounds.items()},
        split_offsets=written.split_offsets,
        sort_order_id=None,
        spec_id=spec_id,
    )


def open_copy(stream: OutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file with the columns of another data file, written by any engine."""
    return _parquet_writer(stream, schema, _columns_of(schema))


def copied_file(old: DataFile, path: str, size: int, writer: pq.ParquetWriter, schema: pa.Schema) -> DataFile:
    """Return the manifest entry of a finished partial copy, in the partition of the old file."""
    copied = _data_file(
        file_path=path,
        partition=old.partition,
        file_size_in_bytes=size,
        sort_order_id=old.sort_order_id,
        **_statistics(writer, _columns_of(schema)),
    )
    copied.spec_id = old.spec_id
    return copied


def _data_file(**fields: Any) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_format=FileFormat.PARQUET,
        equality_ids=None,
        key_metadata=None,
        **fields,
    )


class _Writer:
    """The finished files, and the open one, whose rows wait until they are a row group."""

    def __init__(self, files: FileIO, location: str, partition: int, name: str, target_bytes: int) -> None:
        self._files = files
        self._location = location.rstrip("/")
        self._partition = partition
        self._name = name
        self._target_bytes = target_bytes
        self._group_bytes = max(1, min(ROW_GROUP_BYTES, target_bytes))
        self._done: list[Written] = []
        self._open: _OpenFile | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._paths: list[str] = []

    def write(self, day: int, rows: pa.RecordBatch) -> None:
        """Append rows of a day, in order."""
        if self._open is not None and self._open.day != day:
            self._end_file()
        for rows_slice in _slices(rows, self._group_bytes):
            if self._open is None:
                self._open = self._new_file(day, rows_slice)
            self._pending.append(rows_slice)
            self._pending_bytes += rows_slice.nbytes
            if self._pending_bytes >= self._group_bytes:
                self._end_group(self._open)
                if self._open.stream.tell() >= self._target_bytes:
                    self._end_file()

    def finish(self) -> list[Written]:
        """Close the last file and return all."""
        self._end_file()
        return self._done

    def discard(self) -> None:
        """Delete the written files; one that cannot be deleted is in no snapshot."""
        if self._open is not None:
            with suppress(Exception):
                self._open.stream.close()
        for path in self._paths:
            with suppress(Exception):
                self._files.delete(path)

    def _new_file(self, day: int, rows: pa.RecordBatch) -> _OpenFile:
        first = rows.column("topic_offset")[0].as_py()
        directory = f"{self._location}/data/{DAY}={np.datetime64(day, 'D')}"
        path = f"{directory}/{self._partition:05d}-{first:020d}-{self._name}.parquet"
        self._paths.append(path)
        return _OpenFile(path, day, first, rows.schema, self._files.new_output(path).create())

    def _end_group(self, file: _OpenFile) -> None:
        if self._pending:
            file.write(pa.Table.from_batches(self._pending))
            self._pending, self._pending_bytes = [], 0

    def _end_file(self) -> None:
        if self._open is not None:
            self._end_group(self._open)
            self._done.append(self._open.close(self._partition))
            self._open = None


class _Columns(NamedTuple):
    """The statistics plan and field ids of a schema."""

    statistics: dict[int, StatisticsCollector]
    ids: dict[str, int]


def _columns_of(schema: pa.Schema) -> _Columns:
    return _columns(schema.serialize().to_pybytes())


@lru_cache(maxsize=64)
def _columns(schema: bytes) -> _Columns:
    """Return them for a serialized schema, as Arrow ignores field ids when it compares schemas."""
    found = pyarrow_to_schema(pa.ipc.read_schema(pa.BufferReader(schema)))
    return _Columns(compute_statistics_plan(found, METRICS), parquet_path_to_id_mapping(found))


def _parquet_writer(stream: OutputStream, schema: pa.Schema, columns: _Columns) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        use_dictionary=[column for column in columns.ids if column not in _ALL_DIFFERENT],
        write_statistics=True,
        write_page_checksum=True,
        store_schema=False,
    )


def _statistics(writer: pq.ParquetWriter, columns: _Columns) -> dict[str, Any]:
    """Return the Iceberg statistics of a closed file."""
    found = data_file_statistics_from_parquet_metadata(writer.writer.metadata, columns.statistics, columns.ids)
    return found.to_serialized_dict()


class _OpenFile:
    """An open file; on a local disk it is fsynced on close."""

    def __init__(self, path: str, day: int, first_offset: int, schema: pa.Schema, stream: OutputStream) -> None:
        self.path = path
        self.day = day
        self.stream = stream
        self._first = first_offset
        self._last = first_offset - 1
        self._columns = _columns_of(schema)
        self._writer = _parquet_writer(stream, schema, self._columns)

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._last = table.column("topic_offset")[-1].as_py()

    def close(self, partition: int) -> Written:
        """Close the file and return its metadata."""
        self._writer.close()
        size = self.stream.tell()
        self.stream.close()
        found = _statistics(self._writer, self._columns)
        return Written(
            path=self.path,
            bytes=size,
            rows=found["record_count"],
            day=self.day,
            partition=partition,
            first_offset=self._first,
            last_offset=self._last,
            **{name: found[name] for name in ("split_offsets", "column_sizes", "value_counts", "null_value_counts")},
            lower_bounds={field_id: b64encode(bound).decode() for field_id, bound in found["lower_bounds"].items()},
            upper_bounds={field_id: b64encode(bound).decode() for field_id, bound in found["upper_bounds"].items()},
        )


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by the day of its append time."""
    if not batch.num_rows:
        return
    days = batch.column("append_time").view(pa.int64()).to_numpy() // DAY_US
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for start, stop in pairwise(cuts):
        yield int(days[start]), batch.slice(start, stop - start)


def _slices(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Split rows into slices of about a size."""
    step = max(1, -(-rows.num_rows * size // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
