"""One table, four engines, the same rows: before a compaction and after it."""

import time

import pyarrow as pa
import pytest

from ister.core.names import TopicName
from ister.core.table.maintenance import Procedure
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import arrow_of, table_rows
from ister.lake.parquet import write_files
from ister.pipeline.maintenance import Upkeep
from parts.engines import by_duckdb, by_duckdb_handed_arrow, by_polars, by_pyiceberg, by_spark
from parts.lake import messages
from parts.pipeline import new_topic

NOW_US = 1_790_000_000_123_456
ROWS = 60


def hostile_messages():
    """Messages with everything that an engine might get wrong."""
    n = ROWS
    return messages(
        0,
        n,
        append_time=[NOW_US + offset * 86_400_000_000 // 20 for offset in range(n)],  # three days
        publish_time=[2**64 - 1 if offset % 7 == 0 else 1_700_000_000_001 + offset for offset in range(n)],
        producer_id=[2**64 - 1 - offset for offset in range(n)],
        schema_id=[None if offset % 3 else 2**63 + offset for offset in range(n)],
        schema_version=[None if offset % 3 else offset for offset in range(n)],
        routing_key=[None if offset % 2 else "" if offset % 4 else f"ключ-{offset}" for offset in range(n)],
        attributes=[[] if offset % 5 else [("a", ""), ("ä", f"{offset}")] for offset in range(n)],
        payload=[b"" if offset % 6 == 0 else bytes([offset % 256]) * offset for offset in range(n)],
        frame_crc=[2**32 - 1 - offset for offset in range(n)],
    )


@pytest.fixture
def table(catalog):
    made = LakeCatalog(catalog).table(TopicName.parse(new_topic("engines")), 1)
    made.claim(1)
    rows = table_rows(hostile_messages(), 0)
    for start in range(0, ROWS, 20):
        files = write_files(
            {}, made.location, [rows.slice(start, 20)], partition=0, name=f"file-{start}", target_bytes=1 << 20
        )
        made.commit_add_files(files, {0: (start, start + 20)})
    return made


def rows_of(found: pa.Table, columns: pa.Schema):
    """Return rows as plain values, whatever width an engine gives to texts, in the order of offsets."""
    narrow = pa.table([found[field.name].cast(field.type) for field in columns], schema=columns)
    return narrow.sort_by("topic_offset").to_pylist()


def test_four_engines_read_the_same_rows_before_and_after_compaction(table, catalog, spark, lake_config):
    columns = arrow_of(table.schema)
    plain = pa.schema([field.remove_metadata().with_nullable(True) for field in columns])
    wanted = rows_of(pa.Table.from_batches([table_rows(hostile_messages(), 0)]), plain)
    assert len(wanted) == ROWS
    for read in (by_pyiceberg, by_spark, by_polars, by_duckdb, by_duckdb_handed_arrow):
        assert rows_of(read(table.identifier, catalog, spark), plain) == wanted, read.__name__
    upkeep = Upkeep(spark, catalog, lake_config.storage.iceberg_config.maintenance, lambda: time.time_ns() // 1_000_000)
    upkeep.run(".".join(table.identifier), Procedure.COMPACT)
    for read in (by_pyiceberg, by_spark, by_polars, by_duckdb, by_duckdb_handed_arrow):
        assert rows_of(read(table.identifier, catalog, spark), plain) == wanted, f"{read.__name__} after compaction"
