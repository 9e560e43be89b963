"""What the tests of the lake share: messages as the log decodes them, a catalog on a disk, and what a table holds."""

import uuid
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa

from ister.core.frames.columns import SCHEMA
from ister.core.names import TopicName
from ister.lake.catalog import CachingSqlCatalog, LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.parquet import Written, write_files

TOPIC = TopicName.parse("/default/orders")
NOW_US = 1_750_000_000_000_000


def messages(start, stop, *, us=NOW_US, **columns):
    """Messages [start, stop) as the log decodes them; a column given by name replaces the plain one."""
    n = stop - start
    plain = {
        "topic_offset": range(start, stop),
        "append_time": [us] * n,
        "publish_time": [us // 1000] * n,
        "producer_id": [7] * n,
        "request_id": range(start, stop),
        "schema_id": [None] * n,
        "schema_version": [None] * n,
        "producer_name": ["producer"] * n,
        "broker_addr": ["127.0.0.1:6650"] * n,
        "routing_key": [None] * n,
        "attributes": [[("n", str(offset))] for offset in range(start, stop)],
        "payload": [b"payload %d" % offset for offset in range(start, stop)],
        "frame_crc": [offset * 2_654_435_761 % 2**32 for offset in range(start, stop)],
    }
    return pa.RecordBatch.from_pydict({**plain, **columns}, schema=SCHEMA)


def sql_catalog(directory: Path, kind=CachingSqlCatalog):
    return kind("ister", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse", type="sql")


def lake_of(directory: Path, kind=CachingSqlCatalog):
    return LakeCatalog(sql_catalog(directory, kind))


def write(table, start, stop, *, partition=0, us=NOW_US):
    """Write [start, stop) as a task does; what comes back has travelled as text."""
    found = write_files(
        table.io_properties,
        table.location,
        [table_rows(messages(start, stop, us=us), partition)],
        partition=partition,
        name=uuid.uuid4().hex,
        target_bytes=1 << 27,
    )
    return [Written.from_json(one.to_json()) for one in found]


def append(table, rows=10, partition=0):
    """Append the next rows; returns what the commit returned."""
    start = table.upto(partition)
    return table.commit_add_files(
        write(table, start, start + rows, partition=partition), {partition: (start, start + rows)}
    )


def held_rows(table):
    """Read all rows by a reader of its own: (partition, offset), sorted."""
    fresh = table._table.catalog.load_table(table.identifier)
    rows = fresh.scan(selected_fields=("partition", "topic_offset")).to_arrow()
    return sorted(zip(rows["partition"].to_pylist(), rows["topic_offset"].to_pylist(), strict=True))


def assert_exact(table):
    """Every offset below `upto` is there once, and nothing else."""
    fresh = table._table.catalog.load_table(table.identifier)
    table.refresh()
    upto = table.held.upto
    assert held_rows(table) == [(p, offset) for p in sorted(upto) for offset in range(upto[p])]
    assert table._table.metadata.current_snapshot_id == fresh.metadata.current_snapshot_id


def metadata_files(table):
    """Which manifests and manifest lists are on the disk, and which of them a snapshot refers to."""
    fresh = table._table.catalog.load_table(table.identifier)
    there = {path.name for path in (Path(urlparse(table.location).path) / "metadata").glob("*.avro")}
    used = set()
    for snapshot in fresh.snapshots():
        used.add(Path(snapshot.manifest_list).name)
        used.update(Path(manifest.manifest_path).name for manifest in snapshot.manifests(fresh.io))
    return there, used
