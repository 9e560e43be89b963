"""Tables that others have changed are mended: after repair and a tick, each message is there once, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
import structlog
from pyiceberg.expressions import AlwaysTrue
from typer.testing import CliRunner

from ister.cli.app import app
from ister.cli.commands import lake as cli_lake
from ister.cli.commands.lake import repair
from ister.client.channel import Remote
from ister.core.errors import CorruptError, NotFoundError
from ister.core.names import TopicName
from ister.core.table.maintenance import spelling
from ister.lake.errors import CommitConflictError, TableMovedError
from ister.lake.repair import (
    Cut,
    Offsets,
    RepairRefusedError,
    Served,
    cuts_of,
    examine,
    fallback_of,
    losses,
    mend,
)
from parts.pipeline import Pipeline, assert_exact, new_topic, produce, rows_of, table_of

# --- where to cut -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "upto"),
    [
        ([], 0),
        ([0], 1),
        ([1], 0),
        ([2, 0, 1], 3),
        ([0, 1, 1, 2], 1),
        ([0, 1, 3, 4], 2),
        ([0, 0], 0),
        ([0, 1, 2, 5, 5], 3),
        ([0, 1, 1, 2, 4], 1),
        ([-1, 0, 1], 0),
    ],
)
def test_a_partition_is_whole_below_its_first_hole_or_its_first_double(offsets, upto):
    assert held(p0=offsets)[0].whole_below == upto


def held(**partitions):
    found = {int(name[1:]): Offsets() for name in partitions}
    for name, offsets in partitions.items():
        found[int(name[1:])].add(np.array(offsets, np.int64))
    return found


def test_what_is_behind_the_first_fault_is_cut_and_what_nobody_told_of_as_well():
    assert cuts_of(held(p0=[0, 1, 2]), {0: 3}) == [Cut(0, 3, 3, 0)]
    assert cuts_of(held(p0=[0, 1, 2, 2, 3]), {0: 4}) == [Cut(0, 4, 2, 3)]
    assert cuts_of(held(p0=[0, 1, 2, 3]), {0: 2}) == [Cut(0, 2, 2, 2)]
    assert cuts_of(held(p0=[0, 2], p7=[5]), {0: 3, 1: 4}) == [Cut(0, 3, 1, 1), Cut(1, 4, 0, 0), Cut(7, 0, 0, 1)]
    assert cuts_of(held(p0=[0, 1, 3]), None) == [Cut(0, 2, 2, 1)]


def test_what_log_and_objects_do_not_have_is_named():
    def lost(cut, ends=0, **served):
        return list(
            losses([cut], {int(name[1:]): Served(*span) for name, span in served.items()}, {cut.partition: ends})
        )

    assert lost(Cut(0, 10, 4, 0), p0=(0, 10)) == []
    assert lost(Cut(0, 10, 4, 0), p0=(4, 10)) == []
    assert "offsets [4, 5) would be lost" in lost(Cut(0, 10, 4, 0), p0=(5, 10))[0]
    assert lost(Cut(0, 4, 4, 0), p0=(5, 10)) == [], "nothing is to be cut there"
    assert "its log ends at 3" in lost(Cut(0, 4, 4, 1), p0=(0, 3))[0]
    assert "the broker has no such partition" in lost(Cut(2, 10, 4, 0), p0=(0, 10))[0]
    assert "offsets [8, 10) would be lost" in lost(Cut(0, 10, 4, 0), p0=(0, 8))[0], "K1: the end counts, too"
    assert "offsets [10, 20) would be lost" in lost(Cut(0, 4, 4, 3), ends=20, p0=(0, 10))[0], "and rows behind it"
    assert "lacks offsets [0, 5)" in lost(Cut(2, 0, 0, 5), ends=5, p0=(0, 10))[0], "whoever wrote them"


# --- real tables ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    yield
    structlog.reset_defaults()


@pytest.fixture
def mending(broker, catalog):
    def mended(topic, *, dry_run=False, ask=lambda _: None):
        with Remote.broker(broker.url) as remote:
            return repair(remote, catalog, topic, dry_run=dry_run, ask=ask)

    return mended


@pytest.fixture
def topic(spark, catalog, broker):
    """A topic with 30 messages in its table, in three commits."""
    name = new_topic("repair")
    with Pipeline(spark, broker, catalog, [name]) as writer:
        for _ in range(3):
            produce(broker, name, [b"payload"] * 10)
            assert writer.tick().rows == 10
    return name


def loaded(catalog, topic):
    return catalog.load_table(table_name(topic))


def table_name(topic):
    namespace, name = topic.strip("/").split("/")
    return f"{namespace}.{name.replace('-', '_')}"


def tick(spark, broker, catalog, topic):
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        done = writer.tick()
        assert done.failed == {}
        return done.rows


def roll_back(spark, catalog, topic, commits):
    snapshots = sorted(loaded(catalog, topic).metadata.snapshots, key=lambda one: one.sequence_number)
    where = snapshots[-1 - commits].snapshot_id
    spark.sql(f"CALL {catalog.name}.system.rollback_to_snapshot('{table_name(topic)}', {where})").collect()


def test_a_sound_table_is_left_alone(catalog, topic, mending):
    before = loaded(catalog, topic).metadata_location
    done = mending(topic, ask=pytest.fail)
    assert done.sound
    assert done.cuts == [Cut(0, 30, 30, 0)]
    assert loaded(catalog, topic).metadata_location == before


def test_a_rolled_back_table(spark, catalog, broker, topic, mending):
    roll_back(spark, catalog, topic, 1)
    with pytest.raises(TableMovedError, match="rolled back"):
        table_of(catalog, topic)
    asked = []
    done = mending(topic, ask=asked.append)
    assert done.cuts == [Cut(0, 30, 20, 0)]
    assert "rolled back" in done.found
    assert asked == [f"0 rows of table {table_name(topic)} will be deleted, and appended anew by the pipeline."]
    assert table_of(catalog, topic).upto(0) == 20
    assert tick(spark, broker, catalog, topic) == 10
    assert_exact(catalog, topic, 30)


def test_an_emptied_table(spark, catalog, broker, topic, mending):
    loaded(catalog, topic).delete(AlwaysTrue())
    with pytest.raises(TableMovedError, match="emptied"):
        table_of(catalog, topic)
    assert mending(topic).cuts == [Cut(0, 30, 0, 0)]
    assert tick(spark, broker, catalog, topic) == 30
    assert_exact(catalog, topic, 30)


def test_rows_that_someone_appended_again_while_the_pipeline_runs(spark, catalog, broker, topic, mending):
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        assert writer.tick().failed == {}
        table = loaded(catalog, topic)
        table.append(table.scan(row_filter="topic_offset >= 15 and topic_offset < 18").to_arrow())
        assert mending(topic).cuts == [Cut(0, 30, 15, 18)]
        produce(broker, topic, [b"new"] * 5)
        ticks = [writer.tick() for _ in range(2)]
        assert sum(one.rows for one in ticks) == 20
        assert ticks[-1].failed == {}
    assert_exact(catalog, topic, 35)
    assert mending(topic).sound


def test_a_file_that_is_in_the_table_twice(spark, catalog, broker, topic, mending):
    table = loaded(catalog, topic)
    path = next(iter(table.inspect.files()["file_path"].to_pylist()))
    table.add_files([path], check_duplicate_files=False)
    done = mending(topic)
    assert sum(cut.rows for cut in done.cuts) >= 20
    tick(spark, broker, catalog, topic)
    assert_exact(catalog, topic, 30)


def test_a_hole_in_the_middle_of_a_file_keeps_what_comes_before(spark, catalog, broker, topic, mending):
    rows = rows_of(catalog, topic)
    loaded(catalog, topic).delete("topic_offset = 4")
    assert mending(topic).cuts == [Cut(0, 30, 4, 25)]
    assert tick(spark, broker, catalog, topic) == 26
    assert_exact(catalog, topic, 30)
    assert rows_of(catalog, topic).equals(rows)


def test_a_data_file_that_is_gone_is_written_anew(spark, catalog, broker, topic, mending):
    rows = rows_of(catalog, topic)
    files = sorted(loaded(catalog, topic).scan().plan_files(), key=lambda task: task.file.lower_bounds[1])
    path = Path(spelling(files[1].file.file_path))
    path.unlink()
    told = mending(topic, dry_run=True)
    assert told.cuts == [Cut(0, 30, 10, 10)]
    assert f"{path.name}: it is not there" in told.found
    mending(topic)
    assert tick(spark, broker, catalog, topic) == 20
    assert_exact(catalog, topic, 30)
    assert rows_of(catalog, topic).equals(rows)


def test_partitions_are_cut_each_where_it_must_be(spark, catalog, broker, mending):
    base = new_topic("repairparts")
    for number in range(3):
        produce(broker, f"{base}-part-{number}", [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [f"{base}*"]) as writer:
        writer.tick()
    loaded(catalog, base).delete("partition = 1 and topic_offset = 6")
    assert mending(f"{base}-part-0").cuts == [Cut(0, 10, 10, 0), Cut(1, 10, 6, 3), Cut(2, 10, 10, 0)]
    with Pipeline(spark, broker, catalog, [f"{base}*"]) as writer:
        assert writer.tick().rows == 4
    rows = rows_of(catalog, base)
    assert rows["topic_offset"].to_pylist() == [*range(10)] * 3


def test_a_missing_metadata_file_is_replaced_by_the_one_before(spark, catalog, broker, topic, mending):
    current = loaded(catalog, topic).metadata_location
    before = loaded(catalog, topic).metadata.metadata_log[-1].metadata_file
    Path(spelling(current)).unlink()
    with pytest.raises(FileNotFoundError):
        loaded(catalog, topic)
    told = mending(topic, dry_run=True)
    assert (told.broken.startswith(current), spelling(told.chosen), told.sound) == (True, spelling(before), False)
    with pytest.raises(FileNotFoundError):
        loaded(catalog, topic)
    mending(topic)
    assert spelling(loaded(catalog, topic).metadata_location) == spelling(before)
    assert tick(spark, broker, catalog, topic) == 10
    assert_exact(catalog, topic, 30)


def test_a_metadata_file_that_is_cut_short_and_its_predecessor_too(spark, catalog, broker, topic, mending):
    table = loaded(catalog, topic)
    *_, older, before = [entry.metadata_file for entry in table.metadata.metadata_log]
    Path(spelling(table.metadata_location)).write_bytes(b"{")
    Path(spelling(before)).unlink()
    assert spelling(mending(topic).chosen) == spelling(older)
    assert tick(spark, broker, catalog, topic) in {20, 30}
    assert_exact(catalog, topic, 30)


def test_what_log_and_objects_no_longer_have_is_refused_by_name(catalog, topic, mending, monkeypatch):
    loaded(catalog, topic).delete("topic_offset = 4")
    before = loaded(catalog, topic).metadata_location
    monkeypatch.setattr(cli_lake, "_served", lambda _: Served(7, 30))
    with pytest.raises(RepairRefusedError, match=r"whole below offset 4 only.* at 7: offsets \[4, 7\) would be lost"):
        mending(topic)
    assert issubclass(RepairRefusedError, CorruptError)
    assert loaded(catalog, topic).metadata_location == before


def test_a_commit_in_between_is_noticed_and_looked_at_anew(spark, catalog, broker, topic, mending):
    loaded(catalog, topic).delete("topic_offset = 25")
    stale = examine(loaded(catalog, topic), TopicName.parse(topic), 1)
    loaded(catalog, topic).delete("topic_offset = 12")
    with pytest.raises(CommitConflictError):
        mend(stale)
    asked = []

    def meanwhile(what):
        if not asked:
            loaded(catalog, topic).delete("topic_offset = 8")
        asked.append(what)

    assert mending(topic, ask=meanwhile).cuts == [Cut(0, 30, 8, 19)]
    assert len(asked) == 2
    tick(spark, broker, catalog, topic)
    assert_exact(catalog, topic, 30)


def test_the_property_that_stops_retries_is_never_kept_in_the_table(catalog, topic, mending):
    loaded(catalog, topic).delete("topic_offset = 25")
    mending(topic)
    assert not [key for key in loaded(catalog, topic).properties if "retry" in key]


def test_a_topic_that_is_not_there_and_one_that_has_no_table(broker, catalog, mending):
    with pytest.raises(NotFoundError, match="no stored topic"):
        mending("/default/nobody")
    name = new_topic("untabled")
    produce(broker, name, [b"x"])
    with pytest.raises(NotFoundError, match="the pipeline makes it anew"):
        mending(name)
    assert fallback_of(catalog, TopicName.parse(name), 1) is None


def test_by_command(spark, catalog, broker, topic, lake_home):
    def run(*words):
        return CliRunner().invoke(
            app, ["lake", "repair", topic, "--broker", broker.url, "--data-dir", str(lake_home), *words]
        )

    roll_back(spark, catalog, topic, 1)
    assert "it says 30, and is whole below offset 20" in run("--dry-run").stdout
    refused = run()
    assert (refused.exit_code, "give --yes" in refused.stderr) == (2, True)
    assert json.loads(run("--dry-run", "-o", "json").stdout)["verdict"] == "broken"
    assert json.loads(run("--yes", "-o", "json").stdout) | {"found": ""} == {
        "topic": topic,
        "table": table_name(topic),
        "dry_run": False,
        "verdict": "mended",
        "found": "",
        "broken_metadata": None,
        "chosen_metadata": None,
        "partitions": [{"partition": 0, "said": 30, "upto": 20, "rows_deleted": 0}],
    }
    assert "Sound" in run().stdout
    tick(spark, broker, catalog, topic)
    assert_exact(catalog, topic, 30)
