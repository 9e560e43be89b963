"""Tables whose name something else has, whose name is long, or whose format is newer than what can be written."""

import json
import sqlite3
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchPropertyException, TableAlreadyExistsError

from ister.core.names import TopicName
from ister.core.table.names import with_generation, with_hash
from ister.lake.errors import LakeUnavailableError, UnsupportedFormatError
from ister.lake.repair import examine, find_table
from ister.pipeline.maintenance import tables_of
from parts.lake import TOPIC, append, assert_exact, held_rows, lake_of

PLAIN = ("default", "orders")


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    yield found
    found.close()


def make_view(directory, name):
    """Write what Spark's JDBC catalog does for CREATE VIEW."""
    with sqlite3.connect(directory / "catalog.db") as database:
        database.execute(
            "insert into iceberg_tables(catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
            "values('ister', 'default', ?, 'file:///v.json', 'VIEW')",
            (name,),
        )
    database.close()


# --- names that something else has ------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 2])
def test_a_topic_whose_plain_name_a_view_has_gets_the_hashed_one(lake, tmp_path, views):
    """K9."""
    names = [PLAIN, with_hash(TOPIC), with_generation(with_hash(TOPIC), 1)]
    for _, name in names[:views]:
        make_view(tmp_path, name)
    table = lake.table(TOPIC, 1)
    assert table.identifier == names[views]
    table.claim(1)
    append(table, 10)
    assert lake.table(TOPIC, 1).identifier == names[views], "and it is found again"
    assert lake.find(TOPIC, 1).upto(0) == 10
    assert find_table(lake.catalog, TOPIC, 1).name() == names[views]
    assert list(tables_of(lake.catalog)) == [".".join(names[views])]
    assert_exact(table)


@pytest.mark.parametrize(
    "error",
    [
        NoSuchIcebergTableError("Property table_type is EXTERNAL, expected iceberg: default.orders"),
        NoSuchPropertyException("Property table_type missing, could not determine type: default.orders"),
    ],
    ids=["of another type", "without a type"],
)
def test_a_topic_whose_plain_name_a_hive_table_has_gets_the_hashed_one(lake, monkeypatch, error):
    """K9. What PyIceberg's Glue catalog raises."""
    foreign(lake.catalog, monkeypatch, error)
    assert lake.table(TOPIC, 1).identifier == with_hash(TOPIC)
    assert lake.find(TOPIC, 1).identifier == with_hash(TOPIC)
    assert find_table(lake.catalog, TOPIC, 1).name() == with_hash(TOPIC)


def test_an_iceberg_table_without_its_metadata_location_is_not_taken_for_another_engines(lake, monkeypatch):
    foreign(lake.catalog, monkeypatch, NoSuchPropertyException("Table property metadata_location is missing"))
    with pytest.raises(LakeUnavailableError, match="metadata_location"):
        lake.table(TOPIC, 1)


def foreign(catalog, monkeypatch, error):
    """Have something else have the plain name."""
    load, create = catalog.load_table, catalog.create_table

    def load_table(identifier):
        if tuple(identifier) == PLAIN:
            raise error
        return load(identifier)

    def create_table(name, *given, **named):
        if tuple(name) == PLAIN:
            raise TableAlreadyExistsError("Table default.orders already exists")
        return create(name, *given, **named)

    monkeypatch.setattr(catalog, "load_table", load_table)
    monkeypatch.setattr(catalog, "create_table", create_table)


def test_a_table_that_another_makes_at_the_same_moment_is_taken(lake, monkeypatch):
    create = lake.catalog.create_table

    def create_table(name, *given, **named):
        create(name, *given, **named)
        raise TableAlreadyExistsError("another was first")

    monkeypatch.setattr(lake.catalog, "create_table", create_table)
    assert lake.table(TOPIC, 1).identifier == PLAIN


# --- long names -------------------------------------------------------------------------------------------------------


def test_topics_of_the_longest_names_that_differ_by_case_have_tables_on_a_disk(lake):
    """K12."""
    ends = ["a", "A"]
    topics = [TopicName.parse(f"/d/{'x' * 251}{end}") for end in ends]
    tables = [lake.table(topic, generation) for topic in topics for generation in (1, 2)]
    for table in tables:
        table.claim(1)
        append(table, 5)
        assert_exact(table)
    assert len({table.identifier for table in tables}) == 4
    assert len({table.location for table in tables}) == 4


def test_a_table_of_a_long_name_whose_directory_is_taken_gets_another(lake):
    """K12."""
    topic = TopicName.parse(f"/d/{'x' * 252}")
    first = lake.table(topic, 1)
    lake.catalog.rename_table(first.identifier, ("d", "renamed"))
    second = lake.table(topic, 2)
    second.claim(1)
    append(second, 5)
    assert first.location != second.location
    assert all(len(part) <= 255 for part in Path(second.location.removeprefix("file://")).parts)


# --- formats ----------------------------------------------------------------------------------------------------------


def raise_format(lake, directory):
    """Do as `ALTER TABLE … SET TBLPROPERTIES('format-version'='3')` does."""
    old = Path(lake.catalog.load_table(PLAIN).metadata_location.removeprefix("file://"))
    content = json.loads(old.read_text()) | {"format-version": 3, "next-row-id": 10}
    new = old.with_name(old.name.replace(".metadata.json", "x.metadata.json"))
    new.write_text(json.dumps(content))
    with sqlite3.connect(directory / "catalog.db") as database:
        database.execute("update iceberg_tables set metadata_location = ?", (f"file://{new}",))
    database.close()


def test_a_table_of_format_version_3_is_read_and_not_appended_to(lake, tmp_path):
    """K12."""
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 10)
    raise_format(lake, tmp_path)
    for write in (lambda: append(table, 10), lambda: lake.table(TOPIC, 1)):
        with pytest.raises(UnsupportedFormatError, match=r"format version 3.*writes version 2 at most.*lake=false"):
            write()
    with pytest.raises(UnsupportedFormatError):
        examine(lake.catalog.load_table(PLAIN), TOPIC, 1)
    assert lake.find(TOPIC, 1).upto(0) == 10
    assert len(held_rows(table)) == 10
