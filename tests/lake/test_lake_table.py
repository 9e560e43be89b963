"""A topic's table is found by what it says of itself, made once, and noticed when someone has moved it."""

import threading

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from ister.core.errors import CorruptError
from ister.core.names import TopicName
from ister.core.table.commit import LANDED
from ister.core.table.names import GENERATION, UPTO, with_hash
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.errors import CommitMisplacedError, LakeUnavailableError, TableMovedError
from parts.lake import TOPIC, append, assert_exact, held_rows, lake_of, messages, sql_catalog, write


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    yield found
    found.close()


def test_a_new_table_is_laid_out_partitioned_and_sorted_as_designed(lake, tmp_path):
    table = lake.table(TOPIC, 3)
    assert table.identifier == ("default", "orders")
    assert table.location == f"file://{tmp_path}/warehouse/default/orders"
    found = table._table
    assert [(field.name, str(field.transform)) for field in found.spec().fields] == [("append_time_day", "day")]
    assert [field.source_id for field in found.sort_order().fields] == [2, 1]
    assert any(order.is_unsorted for order in found.metadata.sort_orders), "it was created unsorted"
    assert found.properties["ister.topic"] == "/default/orders"
    assert found.properties[GENERATION] == "3"
    assert "commit.retry.num-retries" not in found.properties
    assert table.upto(0) == 0


def test_a_table_is_found_again_by_whoever_asks_with_what_it_holds(lake, tmp_path):
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 10)
    again = lake_of(tmp_path)
    found = again.table(TOPIC, 1)
    assert found.identifier == table.identifier
    assert found.upto(0) == 10
    again.close()


def test_partitions_share_their_base_s_table_and_each_has_its_own_offsets(lake):
    table = lake.table(TopicName.parse("/default/orders-part-1"), 1)
    assert table.identifier == lake.table(TOPIC, 1).identifier
    table.claim(1)
    files = write(table, 0, 5, partition=0) + write(table, 0, 7, partition=1)
    table.commit_add_files(files, {0: (0, 5), 1: (0, 7)})
    append(table, 3, partition=1)
    assert (table.upto(0), table.upto(1), table.upto(2)) == (5, 10, 0)
    assert_exact(table)


def test_topics_whose_names_collide_have_tables_of_their_own(lake):
    topics = [TopicName.parse(name) for name in ("/a/x-y", "/a/x_y", "/a/X-y")]
    tables = [lake.table(topic, 1) for topic in topics]
    assert [table.identifier for table in tables] == [("a", "x_y"), with_hash(topics[1]), with_hash(topics[2])]
    assert [lake.table(topic, 1).identifier for topic in topics] == [table.identifier for table in tables]


def test_a_topic_keeps_its_table_when_the_one_that_had_its_name_is_dropped(lake, tmp_path):
    first, second = TopicName.parse("/a/x-y"), TopicName.parse("/a/x_y")
    lake.table(first, 1)
    mine = lake.table(second, 1)
    sql_catalog(tmp_path).drop_table(("a", "x_y"))
    assert lake.table(second, 1).identifier == mine.identifier


def test_a_topic_made_again_has_a_new_table_and_the_old_one_stays(lake):
    old = lake.table(TOPIC, 1)
    old.claim(1)
    append(old, 10)
    new = lake.table(TOPIC, 2)
    assert new.identifier == ("default", "orders_g2")
    assert new.upto(0) == 0
    assert lake.table(TOPIC, 1).upto(0) == 10
    assert lake.table(TOPIC, 2).identifier == new.identifier


def test_a_topic_made_again_beside_one_that_has_such_a_name(lake):
    lake.table(TopicName.parse("/default/orders_g2"), 1)
    lake.table(TOPIC, 1)
    found = lake.table(TOPIC, 2).identifier
    assert found == ("default", with_hash(TOPIC)[1] + "_g2")
    assert lake.table(TOPIC, 2).identifier == found


def test_a_table_of_a_user_is_left_alone(lake, tmp_path):
    catalog = sql_catalog(tmp_path)
    catalog.create_namespace("default")
    catalog.create_table(("default", "orders"), Schema(NestedField(1, "id", LongType(), required=True)))
    assert lake.table(TOPIC, 1).identifier == with_hash(TOPIC)
    catalog.close()


def test_a_table_is_not_made_where_one_that_was_renamed_has_its_files(lake, owned, tmp_path):
    lake.catalog.rename_table(("default", "orders"), ("default", "orders_old"))
    new = lake.table(TOPIC, 1)
    assert new.identifier == ("default", "orders")
    assert new.location == f"file://{tmp_path}/warehouse/default/orders-2"
    lake.catalog.rename_table(("default", "orders"), ("default", "orders_older"))
    assert lake.table(TOPIC, 1).location == f"file://{tmp_path}/warehouse/default/orders-3"
    assert lake.catalog.load_table("default.orders_old").location() == owned.location


def test_a_table_is_not_made_where_one_that_was_dropped_and_kept_has_its_files(lake, owned, tmp_path):
    metadata = owned._table.metadata_location
    lake.catalog.drop_table(("default", "orders"))
    new = lake.table(TOPIC, 1)
    assert new.location != owned.location
    lake.catalog.drop_table(new.identifier)
    lake.catalog.register_table(new.identifier, metadata)
    assert lake.table(TOPIC, 1).upto(0) == 30


def test_a_directory_that_is_there_and_has_no_table_in_it_is_used(lake, tmp_path):
    (tmp_path / "warehouse" / "default" / "orders" / "metadata").mkdir(parents=True)
    assert lake.table(TOPIC, 1).location == f"file://{tmp_path}/warehouse/default/orders"


def test_ten_who_make_a_table_at_once_have_one(tmp_path):
    lakes = [lake_of(tmp_path) for _ in range(10)]
    found, ready = [], threading.Barrier(len(lakes))

    def make(lake):
        ready.wait()
        found.append(lake.table(TOPIC, 1)._table.metadata.table_uuid)

    threads = [threading.Thread(target=make, args=(lake,)) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    assert len(set(found)) == 1
    for lake in lakes:
        lake.close()


def moved(lake, table, word):
    """Both the owner's handle and the next one who opens the table refuse, by name and with the next step."""
    files = []
    for attempt in (table.refresh, lambda: lake.table(TOPIC, 1), lambda: table.commit_add_files(files, {})):
        with pytest.raises((TableMovedError, CommitMisplacedError)) as error:
            attempt()
        if isinstance(error.value, CorruptError):
            assert "default.orders" in str(error.value)
            assert word in str(error.value)
            assert "ister lake repair" in str(error.value)


@pytest.fixture
def owned(lake):
    table = lake.table(TOPIC, 1)
    table.claim(1)
    for _ in range(3):
        append(table, 10)
    return table


def test_a_rolled_back_table_is_noticed(lake, owned):
    first = [snapshot.snapshot_id for snapshot in owned._table.snapshots()][1]
    owned._table.manage_snapshots().rollback_to_snapshot(first).commit()
    moved(lake, owned, "rolled back")
    with pytest.raises(TableMovedError):
        owned.commit_add_files(write(owned, 30, 40), {0: (30, 40)})
    assert len(held_rows(owned)) == 10, "nothing was appended behind the hole"


def test_an_emptied_table_is_noticed(lake, owned):
    owned._table.delete(AlwaysTrue())
    moved(lake, owned, "emptied")


def test_a_property_set_by_hand_is_noticed(lake, owned):
    with owned._table.transaction() as change:
        change.set_properties({UPTO: '{"0":20}'})
    moved(lake, owned, "its newest snapshot of ours")


def test_a_dropped_and_replaced_table_is_noticed(owned, tmp_path):
    catalog = sql_catalog(tmp_path)
    catalog.drop_table(("default", "orders"))
    with pytest.raises(TableMovedError, match="not in the catalog"):
        owned.refresh()
    catalog.create_table(("default", "orders"), Schema(NestedField(1, "id", LongType(), required=True)))
    with pytest.raises(TableMovedError, match="another one has its name"):
        owned.commit_add_files(write(owned, 30, 40), {0: (30, 40)})
    catalog.close()


def test_rows_that_someone_appended_are_noticed(lake, owned):
    owned._table.append(owned._table.scan(row_filter="topic_offset < 3").to_arrow())
    for attempt in (
        lambda: owned.commit_add_files(write(owned, 30, 40), {0: (30, 40)}),
        lambda: owned.claim(2),
        lambda: lake.table(TOPIC, 1),
    ):
        with pytest.raises(TableMovedError, match=r"it has 33 rows: someone appended to it.* `ister lake repair`"):
            attempt()
    assert lake.find(TOPIC, 1).upto(0) == 30, "who reads is not kept from what is whole"


def test_rows_that_a_user_deletes_or_rewrites_stop_nothing(owned):
    owned._table.delete("topic_offset < 5")
    rows = owned._table.scan().to_arrow()
    owned._table.overwrite(rows)
    owned.refresh()
    append(owned, 10)
    assert [offset for _, offset in held_rows(owned)] == list(range(5, 40))


def test_a_catalog_that_cannot_be_opened_is_said_so():
    with pytest.raises(LakeUnavailableError, match="could not open the catalog"):
        LakeCatalog.open("ister", {"type": "nothing"})


def test_only_what_comes_next_is_taken_and_what_is_there_has_landed(owned):
    with pytest.raises(CommitMisplacedError, match="ends at 30"):
        owned.commit_add_files(write(owned, 31, 40), {0: (31, 40)})
    with pytest.raises(CommitMisplacedError, match="should come next"):
        owned.commit_add_files(write(owned, 30, 40) * 2, {0: (30, 40)})
    assert owned.commit_add_files(write(owned, 20, 30), {0: (20, 30)}) is LANDED
    assert_exact(owned)


def test_a_table_that_nobody_has_claimed_takes_nothing(lake):
    table = lake.table(TOPIC, 1)
    with pytest.raises(CommitMisplacedError, match="not claimed"):
        table.commit_add_files(write(table, 0, 10), {0: (0, 10)})


def test_the_rows_read_back_are_those_that_were_written(owned):
    rows = owned._table.scan().to_arrow().sort_by("topic_offset")
    want = pa.Table.from_batches([table_rows(messages(0, 30), 0)])
    assert rows.select(want.column_names).cast(want.schema).equals(want)
