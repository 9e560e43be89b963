"""K5. Rows that a repair keeps are copied as they are: nulls, types, field ids, checksums, partitions."""

import uuid
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import IdentityTransform

from ister.lake.catalog import CachingSqlCatalog
from ister.lake.columns import arrow_of, table_rows
from ister.lake.errors import CommitConflictError, CorruptRowsError
from ister.lake.evolve import evolve, own_columns, value_shape
from ister.lake.parquet import write_files
from ister.lake.repair import Cut, examine, mend
from ister.schemas.columns.types import Field, List, Map, Primitive, Struct, arrow_type
from parts.lake import NOW_US, TOPIC, append, assert_exact, held_rows, lake_of, messages, metadata_files, write

X = Struct((Field("x", Primitive.INT),))
SHAPE = Struct(
    (
        Field("items", List(X)),
        Field("m", Map(X)),
        Field("deep", List(List(X))),
        Field("z", Primitive.INT),
        Field("d", Primitive.DOUBLE),
    )
)
VALUES = [
    {"items": None, "m": None, "deep": None, "z": 1, "d": float("inf")},
    {"items": [], "m": [], "deep": [], "z": 2, "d": None},
    {"items": [{"x": 1}, None], "m": [("k", {"x": 1}), ("n", None)], "deep": [None, [], [None]], "z": 3, "d": -0.0},
    None,
    {"items": None, "m": None, "deep": None, "z": 5, "d": 0.5},
]


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    yield found
    found.close()


@pytest.fixture
def table(lake):
    found = lake.table(TOPIC, 1)
    found.claim(1)
    return found


def raw(table):
    return table._table.catalog.load_table(table.identifier)


def append_typed(table, values=VALUES):
    """Append a file whose rows have typed values; returns its rows."""
    evolve(table, [SHAPE])
    columns = arrow_of(own_columns(table.schema))
    count = len(values)
    base = table_rows(messages(0, count), 0)
    arrays = dict(zip(base.schema.names, base.columns, strict=True))
    arrays["value"] = pa.array(values, arrow_type(value_shape(table.schema))).cast(columns.field("value").type)
    arrays["decode_error"] = pa.array([None] * count, pa.string())
    rows = pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)
    name = uuid.uuid4().hex
    written = write_files(table.io_properties, table.location, [rows], partition=0, name=name, target_bytes=1 << 27)
    table.commit_add_files(written, {0: (0, count)})
    return rows


def data_files(table):
    return [Path(urlparse(task.file.file_path).path) for task in raw(table).scan().plan_files()]


def mended(table):
    found = examine(raw(table), TOPIC, 1)
    mend(found)
    assert examine(raw(table), TOPIC, 1).sound
    return found.cuts


def test_null_lists_and_maps_of_structs_survive_a_repair(table):
    rows = append_typed(table)
    [before] = data_files(table)
    double = write_files(
        table.io_properties, table.location, [rows.slice(4, 1)], partition=0, name="double", target_bytes=1 << 27
    )
    raw(table).add_files([double[0].path])
    assert mended(table) == [Cut(0, 5, 4, 2)]
    [after] = data_files(table)
    old, new = pq.ParquetFile(before), pq.ParquetFile(after, page_checksum_verification=True)
    assert new.read().equals(old.read().slice(0, 4), check_metadata=True)
    assert new.schema.equals(old.schema), "field ids, types and nulls of the Parquet columns, too"
    items = pc.struct_field(new.read()["value"], "items").to_pylist()
    assert items == [None, [], [{"x": 1}, None], None]


def test_the_entry_of_a_rewritten_file_is_that_of_a_file_that_was_written_so(table, tmp_path):
    """Its bounds and counts, so that nothing is pruned wrongly."""
    append(table, 10)
    raw(table).delete("topic_offset = 5")
    mended(table)
    [task] = raw(table).scan().plan_files()
    (tmp_path / "other").mkdir()
    other = lake_of(tmp_path / "other")
    twin = other.table(TOPIC, 1)
    twin.claim(1)
    append(twin, 5)
    [wanted] = raw(twin).scan().plan_files()
    for name in (
        "record_count", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds", "partition",
        "file_format", "content",
    ):  # fmt: skip
        assert getattr(task.file, name) == getattr(wanted.file, name), name
    assert task.file.file_size_in_bytes == data_files(table)[0].stat().st_size
    assert raw(table).current_snapshot().summary["total-records"] == "5"
    other.close()


def test_files_wholly_before_or_behind_a_cut_are_not_rewritten(table):
    for _ in range(3):
        append(table, 10)
    before = {path.name for path in data_files(table)}
    raw(table).delete("topic_offset = 15")
    first = min(path.name for path in data_files(table) if path.name in before)
    mended(table)
    after = {path.name for path in data_files(table)}
    assert first in after
    assert len(after) == 2
    assert held_rows(table) == [(0, offset) for offset in range(15)]


def test_a_file_of_several_partitions_keeps_the_rows_of_the_others(table):
    append(table, 10)
    append(table, 10, partition=1)
    everything = raw(table).scan().to_arrow()
    raw(table).overwrite(everything)  # as a compaction does
    assert len(data_files(table)) == 1
    raw(table).add_files([write(table, 4, 5, partition=1)[0].path])
    assert mended(table) == [Cut(0, 10, 10, 0), Cut(1, 10, 4, 7)]
    table.refresh()
    append(table, 6, partition=1)
    assert_exact(table)


def test_a_rewritten_file_stays_in_the_partition_spec_of_the_old_one(table):
    """A user may have added a partition field: ours are still written by our own spec."""
    append(table, 10)
    with raw(table).update_spec() as spec:
        spec.add_field("producer_name", IdentityTransform(), "who")
    table.refresh()
    append(table, 10)
    with raw(table).transaction() as change:
        change.set_properties({"ister.upto": '{"0":17}'})
    assert mended(table) == [Cut(0, 17, 17, 3)]
    files = [task.file for task in raw(table).scan().plan_files()]
    assert {(file.spec_id, len(file.partition)) for file in files} == {(0, 1)}
    assert held_rows(table) == [(0, offset) for offset in range(17)]
    table.refresh()
    append(table, 5)
    assert_exact(table)


def test_a_file_whose_kept_rows_are_damaged_is_named_and_nothing_is_changed(table):
    append(table, 10)
    raw(table).add_files([write(table, 5, 6)[0].path])
    found = examine(raw(table), TOPIC, 1)
    [path] = [path for path in data_files(table) if pq.ParquetFile(path).metadata.num_rows == 10]
    content, start = bytearray(path.read_bytes()), payload_page(path)
    content[start : start + 8] = bytes(8)
    path.write_bytes(content)
    before, metadata = set(Path(urlparse(table.location).path).rglob("*.parquet")), raw(table).metadata_location
    with pytest.raises(CorruptRowsError, match="move the file away"):
        mend(found)
    assert set(Path(urlparse(table.location).path).rglob("*.parquet")) == before
    assert raw(table).metadata_location == metadata


def payload_page(path):
    """Return where the bytes of a file's payloads are."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    [column] = [group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "payload"]
    return column.data_page_offset + column.total_compressed_size - 16


class Refusing(CachingSqlCatalog):
    """A catalog that refuses a commit after another came first."""

    meanwhile = None

    def commit_table(self, table, requirements, updates):
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act()
            raise CommitFailedException("another came first")
        return super().commit_table(table, requirements, updates)


def test_a_refused_repair_leaves_no_rewritten_file_behind(tmp_path):
    lake = lake_of(tmp_path, Refusing)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 10)
    raw(table).delete("topic_offset = 5")
    found = examine(raw(table), TOPIC, 1)
    before = data_files(table)
    lake.catalog.meanwhile = lambda: raw(table).delete("topic_offset = 7")
    with pytest.raises(CommitConflictError):
        mend(found)
    left = {path.name for path in Path(urlparse(table.location).path).rglob("*-repair.parquet")}
    assert left == set()
    assert before != data_files(table)
    there, used = metadata_files(table)
    assert used <= there
    mended(table)
    assert held_rows(table) == [(0, offset) for offset in range(5)]
    lake.close()


def test_rows_of_several_days_are_cut_in_each_file(table):
    day_us = 86_400_000_000
    files = write(table, 0, 10) + write(table, 10, 20, us=NOW_US + day_us)
    table.commit_add_files(files, {0: (0, 20)})
    raw(table).delete("topic_offset = 12")
    mended(table)
    assert held_rows(table) == [(0, offset) for offset in range(12)]
    assert {task.file.partition[0] for task in raw(table).scan().plan_files()} == {
        NOW_US // day_us, NOW_US // day_us + 1,
    }  # fmt: skip
