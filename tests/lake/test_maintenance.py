"""Iceberg's procedures on real tables that PyIceberg made, beside commits and readers."""

import gc
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, TimestamptzType
from pyspark.errors import PySparkException

from ister.config.lake_models import Maintenance
from ister.core.errors import BusyError, NotFoundError
from ister.core.names import TopicName
from ister.core.table.maintenance import Procedure, spelling
from ister.lake.catalog import LakeCatalog
from ister.pipeline import maintenance
from ister.pipeline.maintenance import (
    MaintenanceConflictError,
    MaintenanceFailedError,
    MaintenanceUnknownError,
    NothingRewrittenError,
    Upkeep,
    reachable,
    state_of,
    sync_written,
    tables_of,
)
from parts.lake import append, assert_exact

COMPACT, MANIFESTS, EXPIRE, ORPHANS = Procedure.COMPACT, Procedure.MANIFESTS, Procedure.EXPIRE, Procedure.ORPHANS
HOUR_MS = 3_600_000
SCHEMA = Schema(
    NestedField(1, "topic_offset", LongType(), required=True),
    NestedField(2, "partition", IntegerType(), required=True),
    NestedField(3, "append_time", TimestamptzType(), required=True),
    NestedField(4, "payload", BinaryType(), required=True),
)
DAY = PartitionSpec(PartitionField(3, 1000, DayTransform(), "append_time_day"))
ROWS = 10
START = datetime(2026, 1, 1, tzinfo=UTC)
names = itertools.count()


def rows(first, days=1):
    """Make rows in no order, so that sorting shows."""
    offsets = list(range(first + ROWS - 1, first - 1, -1))
    return pa.table(
        {
            "topic_offset": pa.array(offsets, pa.int64()),
            "partition": pa.array([0] * ROWS, pa.int32()),
            "append_time": pa.array([START + timedelta(days=n % days) for n in offsets], pa.timestamp("us", "UTC")),
            "payload": [b"%d" % n for n in offsets],
        },
        schema=pa.schema(
            [
                pa.field("topic_offset", pa.int64(), nullable=False),
                pa.field("partition", pa.int32(), nullable=False),
                pa.field("append_time", pa.timestamp("us", "UTC"), nullable=False),
                pa.field("payload", pa.binary(), nullable=False),
            ]
        ),
    )


@pytest.fixture
def make(catalog):
    def table(commits=6, days=1, namespace="my-ns", **options):
        name = f"{namespace}.t{next(names)}"
        catalog.create_namespace_if_not_exists(namespace)
        made = catalog.create_table(name, SCHEMA, partition_spec=DAY, properties={"ister.upto": '{"0": 60}'}, **options)
        with made.update_sort_order() as order:
            order.asc("partition", IdentityTransform())
            order.asc("topic_offset", IdentityTransform())
        for n in range(commits):
            made.append(rows(n * ROWS, days))
        return name

    return table


class Clock:
    """The real time, that can be moved on."""

    def __init__(self):
        self.ahead_ms = 0

    def __call__(self):
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def upkeep(spark, catalog, clock):
    return Upkeep(spark, catalog, Maintenance(keep_snapshots=1), clock)


def offsets(table):
    return table.scan().to_arrow()["topic_offset"].to_pylist()


def files_of(table):
    return {Path(path) for path in map(spelling, reachable(table))}


def on_disk(table):
    return {path for path in Path(spelling(table.location())).rglob("*") if path.is_file() and path.suffix != ".crc"}


def test_compaction_keeps_every_row_sorts_them_and_touches_no_property(upkeep, catalog, make):
    name = make(6, days=2)
    before = catalog.load_table(name)
    result = upkeep.run(name, COMPACT)
    after = catalog.load_table(name)
    assert (result.removed, result.added, result.dry_run) == (12, 2, False)
    assert result.size == sum(file.size for file in state_of(before).files)
    assert sorted(offsets(after)) == list(range(60))
    for task in after.scan().plan_files():
        found = parquet.read_table(spelling(task.file.file_path))["topic_offset"].to_pylist()
        assert found == sorted(found)
    assert after.properties["ister.upto"] == before.properties["ister.upto"]
    assert state_of(after).lineage[-1].operation == "replace"


def test_a_compacted_table_needs_no_compaction(upkeep, make):
    name = make(6)
    assert COMPACT in upkeep.due(name)
    upkeep.run(name, COMPACT)
    assert COMPACT not in upkeep.due(name)
    assert upkeep.run(name, COMPACT).removed == 0, "and having nothing to do is no failure"


@pytest.mark.parametrize("procedure", list(Procedure))
def test_a_dry_run_tells_and_changes_nothing(upkeep, catalog, make, procedure):
    name = make(6)
    before = catalog.load_table(name)
    stray = Path(spelling(before.location())) / "data" / "stray.parquet"
    stray.write_bytes(b"stray")
    os.utime(stray, (0, 0))
    disk = on_disk(before)
    result = upkeep.run(name, procedure, dry_run=True)
    told = {COMPACT: (6, 0), MANIFESTS: (6, 0), EXPIRE: (0, 5), ORPHANS: (1, 0)}
    assert (result.removed, result.snapshots) == told[procedure]
    after = catalog.load_table(name)
    assert (after.metadata_location, on_disk(after)) == (before.metadata_location, disk)


def test_orphans_go_and_live_files_stay_whatever_their_spelling(upkeep, catalog, make):
    """PyIceberg writes file:///x and Java file:/x; both are in one table after a compaction."""
    name = make(6)
    upkeep.run(name, COMPACT)
    catalog.load_table(name).append(rows(60))
    table = catalog.load_table(name)
    home = Path(spelling(table.location()))
    assert len({location[:7] for location in reachable(table)}) > 1, "else this shows nothing"
    young, old = home / "data" / "young.parquet", home / "data" / "old.parquet"
    young.write_bytes(b"young")
    old.write_bytes(b"old!")
    checksum = old.with_name(".old.parquet.crc")
    checksum.touch()
    live = files_of(table)
    for path in live | {old}:
        os.utime(path, (0, 0))
    result = upkeep.run(name, ORPHANS)
    assert not old.exists()
    assert not checksum.exists()
    assert live | {young} <= on_disk(table)
    assert (result.removed >= 1, result.size >= 4) == (True, True)
    assert sorted(offsets(catalog.load_table(name))) == list(range(70))


def test_a_live_file_that_is_listed_as_an_orphan_is_spared(upkeep, catalog, make, monkeypatch):
    name = make(2)
    table = catalog.load_table(name)
    [first, *_] = [task.file.file_path for task in table.scan().plan_files()]
    plain = spelling(first)

    class Row:
        def __init__(self, location):
            self.orphan_file_location = location

    monkeypatch.setattr(upkeep, "_call", lambda *_: [Row(plain), Row(f"file:{plain}"), Row(f"file://{plain}")])
    assert upkeep.run(name, ORPHANS).spared == 3
    assert sorted(offsets(catalog.load_table(name))) == list(range(20))


def aged(*tables):
    """Have every file of some tables look as if it had been there for ever."""
    for table in tables:
        for path in on_disk(table):
            os.utime(path, (0, 0))


@pytest.mark.parametrize(("namespace", "below"), [("my-ns", ""), ("other-ns", ""), ("other-ns", "/data/inner"), ("my-ns.deep", "")])  # fmt: skip
def test_orphans_of_a_table_are_not_what_another_has_in_its_directory(upkeep, catalog, make, namespace, below):
    """As it is after ALTER TABLE orders RENAME TO orders_old, when the pipeline has made orders again."""
    first = make(3)
    outer = catalog.load_table(first)
    second = make(3, namespace=namespace, location=outer.location() + below)
    inner = catalog.load_table(second)
    stray = Path(spelling(inner.location())) / "data" / "stray.parquet"
    stray.write_bytes(b"nobody's")
    aged(outer, inner)
    results = [upkeep.run(name, ORPHANS) for name in (first, second)]
    for name in (first, second):
        table = catalog.load_table(name)
        assert sorted(offsets(table)) == list(range(30))
        assert files_of(table) <= on_disk(table)
    assert not stray.exists()
    assert sum(result.removed for result in results) == 1


def test_orphans_stay_while_a_table_cannot_be_read_that_may_have_them(upkeep, catalog, make):
    first, broken = make(3), make(3)
    table, other = catalog.load_table(first), catalog.load_table(broken)
    stray = Path(spelling(table.location())) / "data" / "stray.parquet"
    stray.write_bytes(b"whose?")
    aged(table)
    metadata = Path(spelling(other.metadata_location))
    kept = metadata.rename(metadata.with_suffix(".away"))
    del other
    gc.collect()  # the catalog knows what someone holds
    with pytest.raises(MaintenanceFailedError, match=f"{broken} cannot be read"):
        upkeep.run(first, ORPHANS)
    assert stray.exists()
    kept.rename(metadata)
    assert upkeep.run(first, ORPHANS).removed == 1


def test_a_partition_a_little_larger_than_a_file_is_compacted_once(spark, catalog, make, clock):
    """Iceberg's own threshold would have it rewritten in every round, for ever."""
    name = make(0)
    for n in range(6):
        made = rows(n * ROWS)
        payloads = pa.array([os.urandom(23_000) for _ in range(ROWS)], pa.binary())
        catalog.load_table(name).append(made.set_column(3, made.schema.field(3), payloads))
    upkeep = Upkeep(spark, catalog, Maintenance(target_file_bytes=1 << 20), clock)
    upkeep.run(name, COMPACT)
    sizes = [file.size / (1 << 20) for file in state_of(catalog.load_table(name)).files]
    assert len(sizes) == 2
    assert all(0.5 <= size < 0.75 for size in sizes), "else this shows nothing"
    assert COMPACT not in upkeep.due(name)
    assert upkeep.run(name, COMPACT).removed == 0
    assert sorted(offsets(catalog.load_table(name))) == list(range(60))


def test_files_of_deletions_are_not_counted_as_files_to_compact(spark, catalog, upkeep, make):
    name = make(1)
    for n in range(5):
        spark.sql(f"ALTER TABLE {catalog.name}.{quoted(name)} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
        spark.sql(f"DELETE FROM {catalog.name}.{quoted(name)} WHERE topic_offset = {n}")
    table = catalog.load_table(name)
    assert int(table.current_snapshot().summary["total-delete-files"]) > 0, "else this shows nothing"
    assert len(state_of(table).files) == 1
    assert COMPACT not in upkeep.due(name)


def quoted(name):
    return ".".join(f"`{part}`" for part in name.split("."))


def test_expiry_keeps_what_running_readers_need_within_the_grace(upkeep, catalog, make, clock):
    name = make(6)
    reader = catalog.load_table(name).scan()
    planned = [Path(spelling(task.file.file_path)) for task in reader.plan_files()]
    upkeep.run(name, COMPACT)
    catalog.load_table(name).append(rows(60))
    clock.ahead_ms = HOUR_MS - 60_000
    assert upkeep.run(name, EXPIRE).snapshots == 5, "all but the newest, the rewrite, and the one before it"
    assert all(path.exists() for path in planned)
    assert sorted(offsets(catalog.load_table(name))) == list(range(70))


def test_expiry_removes_what_left_the_table_before_the_grace(upkeep, catalog, make, clock):
    name = make(6)
    planned = [Path(spelling(task.file.file_path)) for task in catalog.load_table(name).scan().plan_files()]
    upkeep.run(name, COMPACT)
    catalog.load_table(name).append(rows(60))
    clock.ahead_ms = HOUR_MS + 60_000
    assert EXPIRE in upkeep.due(name)
    result = upkeep.run(name, EXPIRE)
    assert result.snapshots == 7
    assert result.removed >= len(planned)
    assert not any(path.exists() for path in planned)
    after = catalog.load_table(name)
    assert sorted(offsets(after)) == list(range(70))
    assert len(after.metadata.snapshots) == 1
    assert EXPIRE not in upkeep.due(name)


def test_manifests_are_rewritten_and_every_row_stays(upkeep, catalog, make):
    name = make(6)
    result = upkeep.run(name, MANIFESTS)
    assert (result.removed, result.added) == (6, 1)
    after = catalog.load_table(name)
    assert state_of(after).manifests == 1
    assert sorted(offsets(after)) == list(range(60))


def test_compaction_and_expiry_go_on_beside_live_commits(upkeep, catalog, make):
    name = make(6)
    stop = threading.Event()
    appended = [6]

    def append():
        while not stop.is_set():
            try:
                catalog.load_table(name).append(rows(appended[0] * ROWS))
            except CommitFailedException:
                continue
            appended[0] += 1

    thread = threading.Thread(target=append)
    thread.start()
    done = []
    try:
        for procedure in (COMPACT, EXPIRE, COMPACT, MANIFESTS, EXPIRE):
            try:
                done.append(upkeep.run(name, procedure))
            except MaintenanceConflictError:
                continue
    finally:
        stop.set()
        thread.join()
    assert done, "not one of them came through"
    assert sorted(offsets(catalog.load_table(name))) == list(range(appended[0] * ROWS))


@pytest.fixture
def synced(monkeypatch):
    found = set()
    monkeypatch.setattr(maintenance, "sync_path", found.add)
    return found


def test_what_java_wrote_is_synced_and_at_first_what_a_process_before_may_have_left(upkeep, catalog, make, synced):
    name = make(6)
    table = catalog.load_table(name)
    aged(table)
    upkeep.run(name, MANIFESTS)
    assert on_disk(table) <= synced
    synced.clear()
    aged(table)
    before = on_disk(table)
    upkeep.run(name, COMPACT)
    written = on_disk(table) - before
    assert len(written) >= 4, "data, manifests, their list and metadata"
    assert written <= synced
    assert {path.parent for path in written} <= synced
    assert not before & synced, "what was there is not synced again"


def test_what_java_wrote_is_synced_though_nobody_knows_whether_it_was_committed(
    upkeep, catalog, make, synced, monkeypatch
):
    name = make(6)
    table = catalog.load_table(name)
    real = upkeep._call

    def call(*given):
        real(*given)
        raise MaintenanceUnknownError(name, COMPACT, "the answer is lost")

    upkeep.run(name, MANIFESTS)
    aged(table)
    before = on_disk(table)
    monkeypatch.setattr(upkeep, "_call", call)
    with pytest.raises(MaintenanceUnknownError, match="the answer is lost"):
        upkeep.run(name, COMPACT)
    written = on_disk(table) - before
    assert len(written) >= 4
    assert written <= synced


def test_what_cannot_be_synced_is_told_and_synced_with_all_the_rest_the_next_time(upkeep, catalog, make, monkeypatch):
    name = make(6)
    upkeep.run(name, MANIFESTS)
    aged(catalog.load_table(name))

    def fails(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(maintenance, "sync_path", fails)
    with pytest.raises(MaintenanceUnknownError, match=r"could not be synced: .*Input/output error"):
        upkeep.run(name, COMPACT)
    found = set()
    monkeypatch.setattr(maintenance, "sync_path", found.add)
    upkeep.run(name, EXPIRE)
    assert on_disk(catalog.load_table(name)) <= found


def test_only_a_local_warehouse_is_synced(tmp_path):
    (tmp_path / "f").touch()
    assert sync_written(f"file://{tmp_path}", 0) == 1
    assert sync_written(str(tmp_path), time.time() + 60) == 0
    assert sync_written("s3://bucket/t", 0) == 0


def test_compaction_that_does_nothing_though_it_should_is_a_failure(upkeep, make, monkeypatch):
    class Row:
        rewritten_data_files_count = 0

    name = make(6)
    monkeypatch.setattr(upkeep, "_call", lambda *_: [Row()])
    with pytest.raises(NothingRewrittenError, match="none of 6 files"):
        upkeep.run(name, COMPACT)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("org.apache.iceberg.exceptions.CommitFailedException: stale", MaintenanceConflictError),
        (
            "org.apache.iceberg.exceptions.ValidationException: Missing required files to delete",
            MaintenanceConflictError,
        ),
        ("org.apache.iceberg.exceptions.CommitStateUnknownException: timeout", MaintenanceUnknownError),
        ("java.io.IOException: No space left on device", MaintenanceFailedError),
    ],
)
def test_what_spark_raises_is_told_as_what_it_means(upkeep, make, monkeypatch, text, error):
    class Broken:
        sparkContext = upkeep._spark.sparkContext  # noqa: N815  # Spark's name

        def sql(self, _):
            raise PySparkException(text)

    name = make(6)
    monkeypatch.setattr(upkeep, "_spark", Broken())
    with pytest.raises(error, match=f"{name}") as caught:
        upkeep.run(name, COMPACT)
    assert text.partition(":")[2].strip() in str(caught.value)


def test_of_two_compactions_at_once_one_comes_first_and_the_other_says_so(upkeep, catalog, make):
    name = make(6)
    barrier = threading.Barrier(2)

    def compact(_):
        barrier.wait()
        try:
            return upkeep.run(name, COMPACT).removed
        except BusyError as error:
            return type(error)

    with ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(compact, range(2)))
    assert 6 in ended
    # The second finds nothing left when it begins after the first has ended.
    assert set(ended) - {6} <= {MaintenanceConflictError, NothingRewrittenError, 0}
    assert sorted(offsets(catalog.load_table(name))) == list(range(60))


def test_a_table_that_is_not_there_is_told(upkeep):
    with pytest.raises(NotFoundError, match=r"no table my-ns\.nothing"):
        upkeep.run("my-ns.nothing", COMPACT)


def test_a_round_does_what_is_due_and_one_failure_stops_no_other_table(upkeep, catalog, make, monkeypatch):
    first, broken, last = make(6), make(6), make(6)
    real = upkeep._call

    def call(result, procedure, arguments):
        if result.table == broken:
            raise MaintenanceConflictError(broken, result.procedure, "on purpose")
        return real(result, procedure, arguments)

    monkeypatch.setattr(upkeep, "_call", call)
    told = list(upkeep.round([first, "my-ns.nothing", broken, last]))
    assert [type(one).__name__ for one in told] == [
        "Result", "Result", "NotFoundError", "MaintenanceConflictError", "Result", "Result",
    ]  # fmt: skip
    assert [(one.table, one.procedure) for one in told[-2:]] == [(last, COMPACT), (last, EXPIRE)]
    assert len(list(catalog.load_table(first).scan().plan_files())) == 1


def test_orphans_wait_an_hour_after_a_start_and_then_a_day(spark, catalog, make, clock):
    name = make(1)
    clock.ahead_ms = -2 * HOUR_MS  # Iceberg itself holds 24 hours by the real time
    upkeep = Upkeep(spark, catalog, Maintenance(), clock)
    assert upkeep.due(name) == []
    clock.ahead_ms = -HOUR_MS
    assert upkeep.due(name) == [ORPHANS]
    upkeep.run(name, ORPHANS)
    assert upkeep.due(name) == []
    clock.ahead_ms = 23 * HOUR_MS
    assert upkeep.due(name) == [ORPHANS]


def test_spark_reads_a_table_though_the_clock_was_set_back(spark, catalog, clock, upkeep):
    """Java refuses a table whose logs are out of order by more than a minute, and to make such a one."""
    lake = LakeCatalog(catalog, now_ms=clock)
    table = lake.table(TopicName.parse(f"/default/clock{next(names)}"), 1)
    clock.ahead_ms = HOUR_MS
    table.claim(1)
    append(table, 2)
    clock.ahead_ms = -HOUR_MS
    for _ in range(4):
        append(table, 2)
    name = ".".join(table.identifier)
    assert spark.sql(f"SELECT count(*) FROM {catalog.name}.{name}").first()[0] == 10
    assert table.snapshot.timestamp_ms > clock() + HOUR_MS
    with pytest.raises(MaintenanceFailedError, match=r"Expected sorted|before last"):
        upkeep.run(name, COMPACT)
    assert spark.sql(f"SELECT count(*) FROM {catalog.name}.{name}").first()[0] == 10
    assert_exact(table)


def test_only_tables_of_topics_are_maintained_by_themselves(catalog, make):
    ours, theirs = make(0), make(0)
    with catalog.load_table(ours).transaction() as change:
        change.set_properties({"ister.topic": "/my-ns/t"})
    found = list(tables_of(catalog))
    assert ours in found
    assert theirs not in found
