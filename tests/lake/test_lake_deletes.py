"""K6, K7. What delete files of other engines take away, and data files that a snapshot lists twice."""

import asyncio

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from ister.lake.errors import CorruptRowsError, MissingRowsError
from ister.lake.repair import Cut, examine, mend
from parts.deletes import DAY_US, PRODUCER_ID, delete_equal, put
from parts.lake import NOW_US
from parts.readback import Fixture, read_all

FIRST_DAY = NOW_US // DAY_US
ERIKAS = [0, 5, 10, 15]


@pytest.fixture
def fixture(tmp_path):
    """A table with messages 0 to 9 of one day and 10 to 19 of the next; every fifth is Erika's."""
    found = Fixture(tmp_path, on_missing="skip")
    for start in (0, 10):
        put(found, start, start + 10, NOW_US + start // 10 * DAY_US)
    yield found
    found.close()


def offsets_read(fixture, stop=20):
    return [message.offset for message in asyncio.run(read_all(fixture.rows, 0, stop))]


def without(gone, stop=20):
    return [offset for offset in range(stop) if offset not in gone]


# --- equality deletes -------------------------------------------------------------------------------------------------


def test_an_equality_delete_of_one_day_takes_nothing_from_another(fixture, monkeypatch):
    """K6."""
    day = {"partition": Record(FIRST_DAY), "spec": fixture.iceberg.spec()}
    delete_equal(fixture, monkeypatch, PRODUCER_ID, "producer_name", ["erika"], **day)
    assert offsets_read(fixture) == without({0, 5})
    asyncio.run(fixture.rows.prove(10, 20))
    with pytest.raises(MissingRowsError):
        asyncio.run(fixture.rows.prove(0, 10))
    assert examine(fixture.iceberg, fixture.topic, 1).cuts == [Cut(0, 20, 0, 18)]


def test_an_equality_delete_without_partition_fields_counts_for_all_days(fixture, monkeypatch):
    """K6."""
    everywhere = {"partition": Record(), "spec": PartitionSpec(spec_id=7)}
    delete_equal(fixture, monkeypatch, PRODUCER_ID, "producer_name", ["erika"], **everywhere)
    assert offsets_read(fixture) == without(ERIKAS)


def test_an_equality_delete_of_another_spec_counts_for_none_of_our_files(fixture, monkeypatch):
    """K6. The same day, and not the same partition."""
    other = {"partition": Record(FIRST_DAY), "spec": PartitionSpec(*fixture.iceberg.spec().fields, spec_id=7)}
    delete_equal(fixture, monkeypatch, PRODUCER_ID, "producer_name", ["erika"], **other)
    assert offsets_read(fixture) == without(())


@pytest.mark.parametrize(("values", "gone"), [([None], range(20)), ([1], ())])
def test_a_field_that_an_old_data_file_does_not_have_is_null_in_it(fixture, monkeypatch, values, gone):
    """K6."""
    with fixture.iceberg.update_schema() as change:
        change.add_column("later", LongType())
    fixture.table.refresh()
    field_id = fixture.iceberg.schema().find_field("later").field_id
    everywhere = {"partition": Record(), "spec": PartitionSpec(spec_id=7)}
    delete_equal(fixture, monkeypatch, field_id, "later", pa.array(values, pa.int64()), **everywhere)
    assert offsets_read(fixture) == without(gone)


def test_a_repair_keeps_no_row_that_an_equality_delete_has_taken(fixture, monkeypatch):
    """K5, K6. The new file is younger than the delete, which does not count for it any more."""
    day = {"partition": Record(FIRST_DAY + 1), "spec": fixture.iceberg.spec()}
    delete_equal(fixture, monkeypatch, PRODUCER_ID, "producer_name", ["erika"], **day)
    found = examine(fixture.iceberg, fixture.topic, 1)
    assert found.cuts == [Cut(0, 20, 10, 8)]
    mend(found)
    assert examine(fixture.iceberg, fixture.topic, 1).sound
    fixture.rows.refresh()
    assert offsets_read(fixture, 10) == without((), 10)


# --- data files that are listed twice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [1, 2])
def test_a_data_file_that_is_listed_twice_is_damage_for_whoever_reads_or_proves(fixture, files):
    """K7."""
    paths = sorted(task.file.file_path for task in fixture.iceberg.scan().plan_files())
    fixture.iceberg.add_files(paths[:files], check_duplicate_files=False)
    fixture.rows.refresh()
    with pytest.raises(CorruptRowsError, match=r"lists it twice.*ister lake repair"):
        asyncio.run(read_all(fixture.rows, 0, 20))
    with pytest.raises(CorruptRowsError, match=r"lists it twice.*ister lake repair"):
        asyncio.run(fixture.rows.prove(0, 20))
    if files == 1:
        asyncio.run(fixture.rows.prove(10, 20))
    mend(examine(fixture.iceberg, fixture.topic, 1))
    assert examine(fixture.iceberg, fixture.topic, 1).sound


def test_rows_that_are_in_two_files_are_not_proven(fixture):
    """K7. As after an append by hand."""
    copy = fixture.iceberg.scan(row_filter="topic_offset = 3").to_arrow()
    fixture.iceberg.append(copy)
    fixture.rows.refresh()
    with pytest.raises(CorruptRowsError, match="twice"):
        asyncio.run(fixture.rows.prove(0, 20))
    with pytest.raises(CorruptRowsError, match="twice"):
        asyncio.run(read_all(fixture.rows, 0, 20))
