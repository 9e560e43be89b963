"""A table's metadata stays small however long it is committed to, and on a local disk nothing is pointed at unsynced."""

import asyncio
import os
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import NestedField, StringType
from sqlalchemy import event

from ister.lake.catalog import LakeCatalog
from ister.lake.files import SyncedFileIO, is_local, of_files, open_io
from ister.lake.snapshot import GRACE_MS, SNAPSHOTS_MAX, wall_ms
from ister.lake.table import LakeTable
from ister.lake.topic_table import TableReads
from parts.lake import TOPIC, append, assert_exact, lake_of, metadata_files, sql_catalog, write


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path)
    yield found
    found.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(lake, clock):
    found = LakeTable(lake.table(TOPIC, 1)._table, TOPIC, 1, now=clock)
    found.claim(1)
    return found


@pytest.mark.slow
def test_three_hundred_commits_leave_few_snapshots_few_manifests_and_take_no_longer(table, tell):
    took = []
    for _ in range(300):
        files = write(table, table.upto(0), table.upto(0) + 2)
        began = time.process_time()
        table.commit_add_files(files, {0: (table.upto(0), table.upto(0) + 2)})
        took.append(time.process_time() - began)
        assert len(table._table.metadata.snapshots) <= SNAPSHOTS_MAX
        assert len(table._table.current_snapshot().manifests(table._table.io)) <= 30
    first, last = sorted(took[:50])[25], sorted(took[-50:])[25]
    tell("D12", f"a commit took {first * 1000:.0f} ms of a core at first, {last * 1000:.0f} ms after 300")
    assert last <= 3 * first
    assert len(list((Path(urlparse(table.location).path) / "metadata").glob("*.json"))) <= 12
    assert_exact(table)


@pytest.fixture
def few_snapshots(monkeypatch):
    monkeypatch.setattr("ister.lake.snapshot.SNAPSHOTS_MAX", 10)
    monkeypatch.setattr("ister.lake.snapshot.SNAPSHOTS_KEPT", 6)


@pytest.mark.usefixtures("few_snapshots")
def test_what_expired_snapshots_alone_referred_to_goes_after_a_while_and_nothing_else(table, clock):
    for _ in range(60):
        append(table, 2)
        there, used = metadata_files(table)
        assert used <= there
    there, used = metadata_files(table)
    assert len(there) > len(used), "a query that is under way still finds its manifests"
    clock.now += GRACE_MS / 1000
    append(table, 2)
    there, used = metadata_files(table)
    assert there == used
    assert_exact(table)
    for snapshot in table._table.snapshots():
        rows = table._table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert rows == int(snapshot.summary["total-records"]), "every snapshot that is left can be read"


@pytest.mark.usefixtures("few_snapshots")
def test_another_owner_goes_on_tidying_what_it_has_not_committed_itself(lake, table, clock):
    for _ in range(9):
        append(table, 2)
    after = LakeTable(lake.table(TOPIC, 1)._table, TOPIC, 1, now=clock)
    after.claim(2)
    for _ in range(12):
        append(after, 2)
    clock.now += GRACE_MS / 1000
    append(after, 2)
    there, used = metadata_files(after)
    assert there == used
    assert_exact(after)


@pytest.mark.usefixtures("few_snapshots")
def test_a_snapshot_that_a_tag_or_a_branch_names_is_never_expired_nor_its_manifests(table, clock):
    append(table, 2)
    tagged = table._table.current_snapshot().snapshot_id
    table._table.manage_snapshots().create_tag(tagged, "mine").create_branch(tagged, "beside").commit()
    table.refresh()
    for _ in range(40):
        append(table, 2)
    clock.now += GRACE_MS / 1000
    append(table, 2)
    assert len(table._table.metadata.snapshots) <= 10
    assert table._table.scan(snapshot_id=tagged).to_arrow().num_rows == 2
    assert set(table._table.metadata.refs) == {MAIN_BRANCH, "mine", "beside"}
    assert_exact(table)


def test_snapshots_are_stamped_by_the_clock_that_the_lake_was_given(tmp_path, lake):
    clock = Clock()
    given = LakeCatalog(sql_catalog(tmp_path), now_ms=clock)
    began = clock.now = wall_ms() + GRACE_MS  # later than the library says that the table was made
    table = given.table(TOPIC, 1)
    table.claim(1)
    for _ in range(3):
        clock.now += 1000
        append(table, 2)
    found = lake.catalog.load_table(table.identifier)
    assert [one.timestamp_ms - began for one in found.snapshots()] == [0, 1000, 2000, 3000]
    assert found.metadata.last_updated_ms == began + 3000
    again = given.find(TOPIC, 1)
    again.claim(2)
    assert again.snapshot.timestamp_ms == began + 3001, "two commits of a moment come one after the other"
    given.close()


def assert_in_time(table):
    """Insist on what Java does when it reads a table, which leaves a minute to clocks that differ."""
    metadata = table._table.metadata
    for entries in (metadata.snapshot_log, metadata.metadata_log):
        stamps = [one.timestamp_ms for one in entries]
        assert stamps == sorted(stamps)
        assert metadata.last_updated_ms >= stamps[-1]


def test_a_clock_that_is_set_back_leaves_a_table_whose_logs_are_in_order(tmp_path):
    clock = Clock()
    clock.now = wall_ms() + 2 * GRACE_MS
    lake = LakeCatalog(sql_catalog(tmp_path), now_ms=clock)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    for step_ms in (1000, -GRACE_MS, 1000, 0, -GRACE_MS, GRACE_MS, 2 * GRACE_MS):
        clock.now += step_ms
        append(table, 2)
        assert_in_time(table)
    assert table.snapshot.timestamp_ms == clock.now, "once it is behind no more, it is believed again"
    assert_exact(table)
    lake.close()


def test_a_change_of_columns_while_the_clock_is_behind_leaves_a_table_whose_logs_are_in_order(tmp_path):
    lake = LakeCatalog(sql_catalog(tmp_path), now_ms=lambda: wall_ms() + GRACE_MS)
    table = lake.table(TOPIC, 1)
    table.claim(1)  # stamped an hour ahead of the clock of the library, which is that of the machine
    table.change_columns([(("extra",), NestedField(100, "extra", StringType()), True)])
    table.refresh()
    assert "extra" in table.schema.column_names
    assert_in_time(table)
    append(table, 2)
    assert_in_time(table)
    lake.close()


@pytest.mark.usefixtures("few_snapshots")
def test_what_a_rewrite_replaced_is_kept_for_an_hour_of_the_given_clock(tmp_path):
    clock = Clock()
    clock.now = wall_ms()
    lake = LakeCatalog(sql_catalog(tmp_path), now_ms=clock)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 2)
    replaced = table.snapshot.snapshot_id
    beside = lake.catalog.load_table(table.identifier)
    beside.overwrite(beside.scan().to_arrow())  # stamped by the library, with the machine's clock
    for _ in range(30):
        clock.now += 1000
        append(table, 2)
    assert table.snapshot_of(replaced) is not None
    clock.now += GRACE_MS + 1000
    for _ in range(10):
        append(table, 2)
    assert table.snapshot_of(replaced) is None
    assert_exact(table)
    lake.close()


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("hours", [1, 5])
def test_what_a_rewrite_replaced_is_kept_for_the_grace_that_the_lake_was_given(tmp_path, hours):
    clock, lingering = Clock(), Clock()
    clock.now = wall_ms()
    lake = LakeCatalog(sql_catalog(tmp_path), now_ms=clock, grace_ms=hours * GRACE_MS)
    table = lake.table(TOPIC, 1)
    table._now = lingering
    table.claim(1)
    append(table, 2)
    replaced = table.snapshot.snapshot_id
    beside = lake.catalog.load_table(table.identifier)
    beside.overwrite(beside.scan().to_arrow())
    for number in range(hours):
        clock.now += GRACE_MS - 60_000
        lingering.now += GRACE_MS / 1000 - 60
        for _ in range(10):
            append(table, 2)
        assert table.snapshot_of(replaced) is not None, number
        there, used = metadata_files(table)
        assert len(there) > len(used), "manifests stay as long"
    clock.now += (hours + 1) * 60_000
    for _ in range(10):
        append(table, 2)
    assert table.snapshot_of(replaced) is None
    lingering.now += hours * GRACE_MS / 1000
    append(table, 2)
    there, used = metadata_files(table)
    assert there == used
    assert_exact(table)
    lake.close()


@pytest.mark.usefixtures("few_snapshots")
def test_an_expiry_by_someone_else_in_between_is_no_obstacle(lake, table):
    for _ in range(9):
        append(table, 2)
    oldest = min(table._table.snapshots(), key=lambda snapshot: snapshot.sequence_number)
    commit_table = lake.catalog.commit_table

    def meanwhile(*args):
        lake.catalog.commit_table = commit_table
        lake.catalog.load_table(table.identifier).maintenance.expire_snapshots().by_id(oldest.snapshot_id).commit()
        return commit_table(*args)

    lake.catalog.commit_table = meanwhile
    append(table, 2)
    assert_exact(table)


def test_every_file_and_directory_is_synced_before_the_catalog_points_at_it(lake, monkeypatch, tmp_path):
    happened = []
    sync = os.fsync

    def recorded(fd):
        sync(fd)
        happened.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    monkeypatch.setattr(os, "fsync", recorded)

    @event.listens_for(lake.catalog.engine, "before_cursor_execute")
    def pointed(_connection, _cursor, statement, *_):
        if statement.startswith(("UPDATE iceberg_tables", "INSERT INTO iceberg_tables")):
            happened.append("pointer")

    table = lake.table(TOPIC, 1)
    table.claim(1)
    for _ in range(10):
        happened.clear()
        append(table, 3)
        assert happened.count("pointer") == 1
        synced = set(happened[: happened.index("pointer")])
        found = table._table
        snapshot = found.current_snapshot()
        added = [
            manifest for manifest in snapshot.manifests(found.io) if manifest.added_snapshot_id == snapshot.snapshot_id
        ]
        data = [entry.data_file.file_path for manifest in added for entry in manifest.fetch_manifest_entry(found.io) if entry.snapshot_id == snapshot.snapshot_id]  # fmt: skip
        assert len(data) == 1
        needed = [
            found.metadata_location,
            snapshot.manifest_list,
            *(manifest.manifest_path for manifest in added),
            *data,
        ]
        for path in map(Path, (urlparse(location).path for location in needed)):
            assert str(path) in synced, path
            assert str(path.parent) in synced, path.parent
            assert happened.index(str(path)) < len(happened) - happened[::-1].index(str(path.parent)), "then its name"


def test_what_pruning_relies_on_is_on_disk_whoever_wrote_it(lake, monkeypatch):
    """Java syncs nothing; whoever deletes objects because the table has them must not lose both with the power."""
    table = lake.table(TOPIC, 1)
    table.claim(1)
    for _ in range(3):
        append(table, 3)
    other = lake.catalog.load_table(table.identifier)
    other.overwrite(other.scan().to_arrow())
    happened = []
    sync = os.fsync

    def recorded(fd):
        sync(fd)
        happened.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    async def prove():
        reads = TableReads(Finder(lake))
        rows = reads.table(TOPIC, 1)
        await rows.prove(0, 9)
        first = [*happened]
        await rows.prove(0, 9)
        await rows.close()
        reads.close()
        return first

    monkeypatch.setattr(os, "fsync", recorded)
    synced = asyncio.run(prove())
    assert happened == synced, "what is on disk stays there"
    found = lake.catalog.load_table(table.identifier)
    snapshot = found.current_snapshot()
    manifests = snapshot.manifests(found.io)
    data = [entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(found.io)]
    for location in (found.metadata_location, snapshot.manifest_list, *(one.manifest_path for one in manifests), *data):
        path = Path(urlparse(location).path)
        assert str(path) in synced, path
        home = Path(urlparse(table.location).path)
        for directory in (one for one in path.parents if one.is_relative_to(home)):
            assert str(directory) in synced[synced.index(str(path)) :], directory


class Finder:
    """A lake that is closed by whoever made it."""

    def __init__(self, lake):
        self.find = lake.find

    def close(self):
        pass


def test_new_directories_are_durable_in_their_parents(monkeypatch, tmp_path):
    happened = []
    sync = os.fsync

    def recorded(fd):
        sync(fd)
        happened.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    monkeypatch.setattr(os, "fsync", recorded)
    files = open_io({}, f"file://{tmp_path}")
    assert isinstance(files, SyncedFileIO)
    with files.new_output(f"file://{tmp_path}/a/b/c.bin").create() as stream:
        stream.write(b"bytes")
    assert files.new_input(f"{tmp_path}/a/b/c.bin").open().read() == b"bytes"
    for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b" / "c.bin", tmp_path / "a" / "b"):
        assert str(path) in happened
    assert happened[-2:] == [str(tmp_path / "a" / "b" / "c.bin"), str(tmp_path / "a" / "b")]
    with pytest.raises(FileExistsError):
        files.new_output(f"file://{tmp_path}/a/b/c.bin").create()


def test_a_failed_sync_is_a_failed_write(monkeypatch, tmp_path):
    def fails(_):
        raise OSError(5, "Input/output error")

    stream = open_io({}, str(tmp_path)).new_output(f"{tmp_path}/c.bin").create()
    stream.write(b"bytes")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        stream.close()


def test_only_what_files_need_leaves_the_driver():
    catalog = {
        "uri": "postgresql://user:secret@host/db",
        "token": "secret",
        "s3.endpoint": "http://localhost",
        "py-io-impl": "x.Y",
        "warehouse": "s3://bucket",
    }
    assert of_files(catalog) == {"s3.endpoint": "http://localhost", "py-io-impl": "x.Y"}


def test_a_warehouse_in_a_store_is_not_taken_for_a_disk():
    assert [is_local(place) for place in ("/a", "a/b", "file:///a", "file:/a")] == [True] * 4
    assert [is_local(place) for place in ("s3://a", "gs://a", "abfss://a@b", "memory://a")] == [False] * 4
    assert not isinstance(load_file_io({}, "s3://bucket"), SyncedFileIO)
    assert not isinstance(open_io({}, "s3://bucket"), SyncedFileIO)
