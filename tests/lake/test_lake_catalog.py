"""What a commit does not read and copy again is as if it had: these fail when the library changes below us."""

import gc
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import IdentityTransform

from ister.lake import snapshot
from ister.lake.catalog import CachingSqlCatalog, SharedMetadata, open_catalog
from ister.lake.snapshot import Stage
from parts.lake import TOPIC, append, assert_exact, lake_of, sql_catalog

NAME = "default.orders"


@pytest.fixture
def table(tmp_path):
    found = lake_of(tmp_path).table(TOPIC, 1)
    found.claim(1)
    return found


def as_others_read_it(directory):
    """The newest metadata and its manifests, by the library alone."""
    found = sql_catalog(directory, SqlCatalog).load_table(NAME)
    return found.metadata.model_dump_json(), found.current_snapshot().manifests(found.io)


def file_of(table):
    return Path(unquote(urlparse(table.metadata_location).path))


def test_what_someone_holds_is_not_read_again_and_what_nobody_holds_is(tmp_path, table):
    append(table, 5)
    catalog = table._table.catalog
    first = catalog.load_table(NAME)
    text = file_of(first).read_bytes()
    file_of(first).unlink()
    again = catalog.load_table(NAME)
    assert again is not first, "a handle may be refreshed, and is nobody else's"
    assert again.metadata is first.metadata
    with pytest.raises(FileNotFoundError):
        sql_catalog(tmp_path).load_table(NAME)
    file_of(first).write_bytes(text)
    del first, again
    table._table = None
    gc.collect()
    assert not catalog._known


def test_a_commit_reads_no_metadata_file_that_it_wrote_itself(table, monkeypatch):
    append(table, 5)
    opened = []
    plain = type(table.files).new_input

    def new_input(self, location):
        opened.append(location)
        return plain(self, location)

    monkeypatch.setattr(type(table.files), "new_input", new_input)
    append(table, 5)
    assert opened == []


def test_what_others_commit_is_seen_at_once(tmp_path, table):
    append(table, 5)
    mine = table._table.catalog
    before = mine.load_table(NAME)
    with sql_catalog(tmp_path, SqlCatalog).load_table(NAME).transaction() as change:
        change.set_properties({"by": "others"})
    after = mine.load_table(NAME)
    assert after.properties["by"] == "others"
    assert "by" not in before.properties


def test_after_each_commit_everyone_reads_what_we_know(tmp_path, table, monkeypatch):
    monkeypatch.setattr(snapshot, "SNAPSHOTS_MAX", 12)
    monkeypatch.setattr(snapshot, "SNAPSHOTS_KEPT", 8)
    for _ in range(20):  # with manifests merged, and snapshots let go
        append(table, 5)
        written, manifests = as_others_read_it(tmp_path)
        assert isinstance(table._table.metadata, SharedMetadata)
        assert table._table.metadata.model_dump_json() == written
        assert table._newest == {table.snapshot.snapshot_id: tuple(manifests)}
    assert len(table._table.metadata.snapshots) < 20
    assert_exact(table)


def test_no_update_changes_the_metadata_that_it_began_with(tmp_path, table):
    append(table, 5)
    catalog = table._table.catalog
    seen = []

    def change(update):
        before = catalog.load_table(NAME)
        text = before.metadata.model_dump_json()
        update(catalog.load_table(NAME))
        assert before.metadata.model_dump_json() == text
        assert catalog.load_table(NAME).metadata.model_dump_json() != text
        seen.append(text)

    def sort_by_name(found):
        with found.update_sort_order() as order:
            order.asc("producer_name", IdentityTransform())

    def add_column(found):
        with found.update_schema() as schema:
            schema.add_column("extra", found.schema().find_type("producer_name"))

    change(lambda _: append(table, 5))
    change(lambda found: found.transaction().set_properties({"a": "b"}).commit_transaction())
    change(lambda found: found.transaction().remove_properties("a").commit_transaction())
    change(sort_by_name)
    change(add_column)
    change(lambda found: found.manage_snapshots().create_tag(found.current_snapshot().snapshot_id, "kept").commit())
    change(lambda found: found.delete("topic_offset = 9"))
    assert len(set(seen)) == len(seen)


def test_metadata_is_updated_without_a_copy_of_its_parts_and_as_the_library_would(tmp_path, table):
    append(table, 5)
    stage = Stage(table._table, {})
    staged = stage.write([], {}, {"a": "b"})
    ours = table._table.metadata
    plain = sql_catalog(tmp_path, SqlCatalog).load_table(NAME).metadata
    shared, copied = (update_table_metadata(one, staged.updates, metadata_location="m") for one in (ours, plain))
    assert shared.model_dump_json() == copied.model_dump_json()
    assert shared.snapshots[0] is ours.snapshots[0]
    assert copied.snapshots[0] is not plain.snapshots[0]


def test_only_a_sql_catalog_is_one_that_knows(tmp_path):
    properties = {"warehouse": f"file://{tmp_path}/warehouse"}
    sql = open_catalog("ister", {**properties, "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "own": "kept"})
    assert type(sql) is CachingSqlCatalog
    assert sql.properties["own"] == "kept"
    assert sql.name == "ister"
    sql.close()
    memory = open_catalog("ister", {**properties, "type": "in-memory"})
    assert not isinstance(memory, CachingSqlCatalog)
    memory.close()
