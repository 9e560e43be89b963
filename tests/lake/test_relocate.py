"""G1, G2. Tables of a moved or copied data directory get the paths of their new directory; the original is not touched."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from pyiceberg.catalog.noop import NoopCatalog

from ister.lake.errors import OutsideWarehouseError
from ister.lake.relocate import DELETED_PATH_ID, misplaced, relocate
from parts.lake import TOPIC, append, assert_exact, held_rows, lake_of


def fill(home, commits=3):
    home.mkdir()
    lake = lake_of(home)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    for _ in range(commits):
        append(table, 10)
    lake.close()
    return home


def files_in(directory):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


def relocated(home):
    lake = lake_of(home)
    try:
        return relocate(lake.catalog)
    finally:
        lake.close()


def test_a_moved_warehouse_is_relocated_and_goes_on(tmp_path):
    home = fill(tmp_path / "old").rename(tmp_path / "new")
    lake = lake_of(home)
    with pytest.raises(OutsideWarehouseError, match="ister lake relocate"):
        lake.find(TOPIC, 1)
    assert misplaced(lake.catalog) == ["default.orders"]
    assert relocated(home) == ["default.orders"]
    assert relocated(home) == [], "there is nothing left to do"
    table = lake.table(TOPIC, 1)
    table.claim(2)
    assert_exact(table)
    append(table, 10)
    assert_exact(table)
    assert "/old/" not in lake.catalog.load_table("default.orders").metadata.model_dump_json()


def test_a_relocated_copy_is_independent_of_its_original(tmp_path):
    original = fill(tmp_path / "old")
    copy = shutil.copytree(original, tmp_path / "copy")
    before = files_in(original)
    assert relocated(copy) == ["default.orders"]
    table = lake_of(copy).table(TOPIC, 1)
    table.claim(2)
    append(table, 10)
    assert_exact(table)
    assert files_in(original) == before
    shutil.rmtree(original)
    assert len(held_rows(table)) == 40, "it reads nothing of the original"


def test_every_snapshot_of_a_relocated_table_can_be_read(tmp_path):
    home = fill(tmp_path / "old").rename(tmp_path / "new")
    relocated(home)
    table = lake_of(home).catalog.load_table("default.orders")
    rows = [table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()]
    assert rows == [0, 10, 20, 30]


def test_a_table_whose_files_are_elsewhere_is_refused(tmp_path):
    home = fill(tmp_path / "old")
    shutil.copytree(home, tmp_path / "new", ignore=lambda *_: ["warehouse"])
    with pytest.raises(OutsideWarehouseError):
        relocated(tmp_path / "new")


def attach(spark, name, home):
    """Give Spark a catalog more."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:file:{home}/catalog.db",
        ".jdbc.schema-version": "V1",
        ".warehouse": f"file://{home}/warehouse",
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)


def test_spark_reads_a_relocated_table_and_its_position_deletes_still_delete(tmp_path, spark):
    """Spark finds the tables of the catalog's name: the rows of a JDBC catalog have it."""
    home = fill(tmp_path / "old")
    attach(spark, "ister_before", home)
    lake = lake_of(home)
    with lake.catalog.load_table("default.orders").transaction() as change:
        change.set_properties({"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"})
    lake.close()
    rename_catalog(home, "ister", "ister_before")
    spark.sql("DELETE FROM ister_before.default.orders WHERE topic_offset % 3 = 0")
    rename_catalog(home, "ister_before", "ister")
    moved = home.rename(tmp_path / "new")
    assert relocated(moved) == ["default.orders"]
    table = lake_of(moved).catalog.load_table("default.orders")
    deletes = [entry for entry in table.inspect.delete_files().to_pylist() if entry["content"] == 1]
    assert deletes, "Spark wrote position deletes"
    assert all(DELETED_PATH_ID not in dict(entry["lower_bounds"]) for entry in deletes), "bounds may be truncated"
    left = [offset for offset in range(30) if offset % 3]
    assert sorted(table.scan().to_arrow()["topic_offset"].to_pylist()) == left
    rename_catalog(moved, "ister", "ister_after")
    attach(spark, "ister_after", moved)
    rows = spark.sql("SELECT topic_offset FROM ister_after.default.orders").toArrow()
    assert sorted(rows["topic_offset"].to_pylist()) == left


def rename_catalog(home, old, new):
    """A row of a SQL catalog has the catalog's name, and a session of Spark opens each name once."""
    with closing(sqlite3.connect(home / "catalog.db")) as connection:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            connection.execute(f"UPDATE {table} SET catalog_name = ? WHERE catalog_name = ?", (new, old))
        connection.commit()


def test_a_catalog_that_keeps_its_own_locations_has_nothing_to_relocate(tmp_path):
    catalog = NoopCatalog("rest", type="rest", warehouse=f"file://{tmp_path}/warehouse")
    assert misplaced(catalog) == relocate(catalog) == []
