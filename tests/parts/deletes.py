"""Delete files as engines write them."""

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.manifest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from ister.core.frames.columns import decode_batch
from ister.core.frames.frame import encode_message
from ister.core.message import StreamMessage
from ister.lake.columns import table_rows
from ister.lake.parquet import write_files
from ister.lake.snapshot import Stage

DAY_US = 86_400_000_000


PRODUCER_ID = 6


def put(fixture, start, stop, us):
    frames = b"".join(
        encode_message(
            StreamMessage(b"x", request_id=at, publish_time=1, producer_name="erika" if at % 5 == 0 else "max"), at, us
        )
        for at in range(start, stop)
    )
    rows, table = table_rows(decode_batch(frames, first_offset=start), 0), fixture.table
    written = write_files(
        table.io_properties, table.location, [rows], partition=0, name=uuid.uuid4().hex, target_bytes=1 << 27
    )
    table.commit_add_files(written, {0: (start, stop)})


class DeleteManifest(ManifestWriterV2):
    """PyIceberg writes manifests of data files only."""

    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


def delete_equal(fixture, monkeypatch, field_id, name, values, *, partition, spec):
    """Commit an equality delete as another engine does."""
    kept = pyiceberg.manifest.DATA_FILE_TYPE[2]
    ids = ListType(136, IntegerType(), element_required=True)  # the library writes them as what no engine reads
    fields = [NestedField(f.field_id, f.name, ids if f.name == "equality_ids" else f.field_type, required=f.required) for f in kept.fields]  # fmt: skip
    monkeypatch.setitem(pyiceberg.manifest.DATA_FILE_TYPE, 2, StructType(*fields))
    table = fixture.iceberg
    path = Path(table.location().removeprefix("file://")) / "data" / f"{uuid.uuid4().hex}.parquet"
    column = pa.field(name, pa.array(values).type, metadata={b"PARQUET:field_id": str(field_id).encode()})
    pq.write_table(pa.table({name: values}, schema=pa.schema([column])), path)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=f"file://{path}", file_format=FileFormat.PARQUET,
        partition=partition, record_count=len(values), file_size_in_bytes=path.stat().st_size, equality_ids=[field_id],
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={}, lower_bounds={}, upper_bounds={},
        key_metadata=None, split_offsets=None, sort_order_id=None,
    )  # fmt: skip
    stage = Stage(table, {})
    plain = stage._manifests

    def manifests(files, parent):
        where = table.io.new_output(stage._path(f"{uuid.uuid4()}-d.avro"))
        with DeleteManifest(spec, table.schema(), where, stage._snapshot_id, "deflate") as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=stage._snapshot_id, sequence_number=None,
                file_sequence_number=None, data_file=file,
            )  # fmt: skip
            writer.add(entry)
        return [*plain(files, parent), writer.to_manifest_file()]

    stage._manifests = manifests
    staged = stage.write([], {"ister.upto": table.properties["ister.upto"]}, {})
    table.catalog.commit_table(table, staged.requirements, staged.updates)
    fixture.rows.refresh()
