"""G1. The copy of a data directory never writes, expires or deletes in the original: Iceberg names files by absolute paths."""

import asyncio
import shutil
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from interop.broker import Broker
from ister.cli.commands.lake import names_of, repair
from ister.cli.commands.topics import TopicTable
from ister.client.storage import BrokerClient
from ister.config import load
from ister.config.catalog import catalog_properties
from ister.config.lake_models import Maintenance
from ister.core.table.maintenance import Procedure
from ister.lake.catalog import LakeCatalog
from ister.lake.columns import table_rows
from ister.lake.errors import OutsideWarehouseError
from ister.lake.files import open_io
from ister.lake.parquet import write_files
from ister.pipeline.maintenance import Upkeep, _require_files_inside
from ister.pipeline.topic_writer import TopicWriter, WriterSettings
from ister.ports.metadata import SqliteMetadata
from ister.rpc import ister_v1_pb2 as pb
from ister.runtime.pipeline import reach
from parts.lake import NOW_US, TOPIC, append, assert_exact, messages
from parts.pipeline import produce
from parts.repair import FakeBroker, iceberg_offsets

ROWS = 30
IDENTITY = "/danube-data/identity"


@contextmanager
def lake_in(home):
    found = LakeCatalog.open(*catalog_properties(load(None, home, {}).config))
    try:
        yield found
    finally:
        found.close()


def fill(home):
    """Make a data directory with a table in which a row was deleted, so that a repair has something to do."""
    (home / "objects").mkdir(parents=True)
    (home / "objects" / "one").write_bytes(b"an object")
    with lake_in(home) as lake:
        table = lake.table(TOPIC, 1)
        table.claim(1)
        for _ in range(3):
            append(table, ROWS // 3)
        lake.catalog.load_table(table.identifier).delete("topic_offset = 3")
    return home


@pytest.fixture
def original(tmp_path):
    return fill(tmp_path / "original")


@pytest.fixture
def copy(original, tmp_path):
    """A copy of all of it; whatever the test does with it, the original stays as it is."""
    before = files_in(original)
    yield shutil.copytree(original, tmp_path / "copy")
    assert files_in(original) == before


def files_in(directory):
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


async def entries_of(path):
    metadata = await SqliteMetadata.open(path, read_only=True)
    try:
        return await metadata.list("/")
    finally:
        await metadata.close()


class NoSpark:
    """A Spark session that must not be asked for anything."""

    def sql(self, statement):
        raise AssertionError(f"Spark was asked: {statement}")


class OneTopicBroker:
    """What a TopicWriter asks of a broker, for one topic whose log goes on behind the table."""

    def topics(self):
        offsets = pb.Offsets(next=ROWS + 10, synced=ROWS + 10)
        return [
            pb.Topic(
                name=str(TOPIC), generation=1, dispatch=pb.DISPATCH_RELIABLE, policies='{"lake":true}', offsets=offsets
            )
        ]

    def register(self, _name):
        return 2


def assert_told(error, original, copy):
    assert str(original / "warehouse") in str(error)
    assert str(copy / "warehouse") in str(error)
    assert "run `ister lake relocate`" in str(error)


# --- a copy changes nothing of the original ---------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["table", "find"])
def test_a_table_of_a_copy_is_opened_neither_to_append_nor_to_read(original, copy, use):
    with lake_in(copy) as lake, pytest.raises(OutsideWarehouseError) as refused:
        getattr(lake, use)(TOPIC, 1)
    assert_told(refused.value, original, copy)


def test_the_writer_of_a_copy_stops_the_topic_and_says_why(original, copy):
    config = load(None, copy, {}).config
    with lake_in(copy) as lake:
        writer = TopicWriter(NoSpark(), OneTopicBroker(), lake, WriterSettings(reach(config)))
        try:
            writer.start()
            tick = writer.tick()
        finally:
            writer.close()
    assert tick.commits == 0
    assert_told(tick.failed[str(TOPIC)], original, copy)


def test_no_procedure_of_maintenance_runs_on_a_copy(original, copy):
    with lake_in(copy) as lake:
        upkeep = Upkeep(NoSpark(), lake.catalog, Maintenance(keep_snapshots=1), lambda: NOW_US // 1000)
        [name] = names_of(lake.catalog, ())
        for procedure, dry_run in product(Procedure, [True, False]):
            with pytest.raises(OutsideWarehouseError) as refused:
                upkeep.run(name, procedure, dry_run=dry_run)
            assert_told(refused.value, original, copy)
        assert [type(one) for one in upkeep.round([name])] == [OutsideWarehouseError], "told, and others go on"


def test_a_repair_of_a_copy_is_refused(original, copy):
    broker = FakeBroker(iceberg_offsets(log_start=0))
    with lake_in(copy) as lake, pytest.raises(OutsideWarehouseError) as refused:
        repair(broker, lake.catalog, str(TOPIC), dry_run=False, ask=lambda _: None)
    assert_told(refused.value, original, copy)


def test_a_repair_of_a_copy_whose_original_is_gone_is_refused(original, copy, tmp_path):
    """As after `mv`: the newest metadata file cannot be read, and no older one is to be taken instead."""
    original.rename(tmp_path / "moved")
    try:
        with lake_in(copy) as lake, pytest.raises(OutsideWarehouseError):
            repair(
                FakeBroker(iceberg_offsets(log_start=0)), lake.catalog, str(TOPIC), dry_run=False, ask=lambda _: None
            )
    finally:
        (tmp_path / "moved").rename(original)


def test_a_topic_of_a_copy_is_not_deleted_with_its_table(original, copy):
    config = load(None, copy, {}).config
    with pytest.raises(OutsideWarehouseError):
        TopicTable(config, str(TOPIC), [pb.TopicDetail(name=str(TOPIC), generation=1)])


def test_a_task_of_a_copy_writes_and_deletes_nothing_outside_of_its_warehouse(original, copy):
    """Where files are opened: even if nobody had looked at the table's location."""
    files = reach(load(None, copy, {}).config).files
    location = f"file://{original}/warehouse/default/orders"
    with pytest.raises(OutsideWarehouseError):
        write_files(files, location, [table_rows(messages(30, 40), 0)], partition=0, name="x", target_bytes=1 << 20)
    for spelt in (location, location.replace("file://", "file:"), f"{original}/warehouse/default/orders"):
        with pytest.raises(OutsideWarehouseError):
            open_io(files, spelt).delete(f"{spelt}/metadata/x.json")
    with pytest.raises(OutsideWarehouseError):
        open_io(files, "s3://bucket/orders").new_output("s3://bucket/orders/x")


def test_a_path_that_leaves_the_warehouse_by_dots_or_a_link_is_outside(original, copy, tmp_path):
    files = open_io(reach(load(None, copy, {}).config).files, str(copy))
    with pytest.raises(OutsideWarehouseError):
        files.new_output(f"file://{copy}/warehouse/../../original/warehouse/x")
    (copy / "warehouse" / "link").symlink_to(original / "warehouse")
    with pytest.raises(OutsideWarehouseError):
        files.new_output(f"file://{copy}/warehouse/link/x")


def test_expiry_looks_at_the_data_files_that_it_would_delete(original, copy):
    """As after someone has rewritten the paths in catalog.db and in the metadata, and not those in the manifests."""
    with lake_in(original) as lake:
        table = lake.catalog.load_table("default.orders")
        snapshots = [snapshot.snapshot_id for snapshot in table.snapshots()]
        table.catalog.properties["ister.warehouse-root"] = str(copy / "warehouse")
        with pytest.raises(OutsideWarehouseError):
            _require_files_inside(table, snapshots)


# --- what must keep working -------------------------------------------------------------------------------------------


def go_on(home):
    with lake_in(home) as lake:
        table = lake.table(TOPIC, 1)
        table.claim(2)
        append(table, 10)
        assert lake.find(TOPIC, 1).upto(0) == ROWS + 10


def test_the_original_goes_on(original):
    go_on(original)


def test_a_data_directory_behind_a_link_is_the_same_directory(original, tmp_path):
    (tmp_path / "link").symlink_to(original)
    go_on(tmp_path / "link")


def test_a_data_directory_that_was_made_behind_a_link_is_served_without_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link" / "data")
    go_on(tmp_path / "real" / "data")


def test_a_relative_data_directory_is_served_by_its_whole_path_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(Path("data"))
    go_on(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    go_on_again(Path("../data"))


def go_on_again(home):
    with lake_in(home) as lake:
        assert lake.find(TOPIC, 1).upto(0) == ROWS + 10


def test_a_copy_without_catalog_and_warehouse_makes_its_tables_anew(original, copy):
    (copy / "catalog.db").unlink()
    shutil.rmtree(copy / "warehouse")
    with lake_in(copy) as lake:
        table = lake.table(TOPIC, 1)
        table.claim(1)
        append(table, ROWS)
        assert_exact(table)


def test_metadata_log_and_objects_of_an_embedded_broker_name_no_absolute_path():
    with Broker() as broker:
        produce(broker, "/default/copied", [b"payload"] * 100)
        client = BrokerClient(broker.target)
        client.upload("/default/copied", 1)
        client.close()
        broker.stop()
        files = files_in(broker.data)
        assert any("/objects/" in path for path in files)
        assert any("/wal/" in path for path in files)
        assert any(path.endswith("metadata.db") for path in files)
        named = [path for path, (_, content) in files.items() if str(broker.directory).encode() in content]
        assert named == [str(broker.data / "metadata.db")], "it has the identity, which is checked at each start"
        entries = asyncio.run(entries_of(broker.data / "metadata.db"))
        assert [entry.key for entry in entries if str(broker.directory).encode() in entry.value] == [IDENTITY]
