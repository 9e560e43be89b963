"""K1. `ister lake repair` deletes only rows that log or objects hold durably; the table is no backup of itself."""

from pathlib import Path
from urllib.parse import urlparse

import pytest

from ister.broker.services.wire import offsets_of
from ister.cli.commands.lake import repair
from ister.cli.exit_codes import exit_code
from ister.core.errors import PreconditionError
from ister.lake.repair import RepairRefusedError
from ister.pipeline.plan import Choice
from ister.rpc import ister_v1_pb2 as pb
from parts.lake import TOPIC, append, assert_exact, lake_of
from parts.repair import FakeBroker, iceberg_offsets


def read_only_offsets():
    class Topic:
        log, reliable, problem, next_offset = None, True, None, 30

    return offsets_of(None, Topic())


@pytest.fixture
def table(tmp_path):
    """A table of 30 rows in three data files."""
    lake = lake_of(tmp_path)
    found = lake.table(TOPIC, 1)
    found.claim(1)
    for _ in range(3):
        append(found, 10)
    yield found
    lake.close()


def raw(table):
    return table._table.catalog.load_table(table.identifier)


def make_hole(table):
    raw(table).delete("topic_offset = 3")


def ruin_first_file(table):
    files = sorted(task.file.file_path for task in raw(table).scan().plan_files())
    Path(urlparse(files[0]).path).write_bytes(b"PAR1")


def mended(table, broker, *, dry_run=False, ask=lambda _: None, choice=None):
    return repair(broker, table._table.catalog, str(TOPIC), dry_run=dry_run, ask=ask, choice=choice)


def refuse_to_ask(question):
    raise AssertionError(f"asked although rows would be lost: {question}")


@pytest.mark.parametrize("harm", [make_hole, ruin_first_file])
@pytest.mark.parametrize(
    "offsets",
    [
        iceberg_offsets(log_start=25),
        iceberg_offsets(log_start=25, cloud=(20, 25)),
        iceberg_offsets(log_start=30, cloud=(5, 30)),
        iceberg_offsets(log_start=25, cloud=(0, 20)),
        iceberg_offsets(log_start=0, end=20),
        read_only_offsets(),
    ],
    ids=[
        "log pruned",
        "log and objects pruned",
        "objects pruned",
        "a gap between",
        "log cut short",
        "read-only broker",
    ],
)
def test_rows_that_only_the_table_has_are_never_cut(table, harm, offsets):
    harm(table)
    before = raw(table).metadata_location
    for dry_run in (True, False):
        with pytest.raises(RepairRefusedError, match=r"offsets \[\d+, \d+\) would be lost") as refused:
            mended(table, FakeBroker(offsets), dry_run=dry_run, ask=refuse_to_ask)
        assert exit_code(refused.value) == 1
    assert raw(table).metadata_location == before


@pytest.mark.parametrize("harm", [make_hole, ruin_first_file])
@pytest.mark.parametrize("offsets", [iceberg_offsets(log_start=0), iceberg_offsets(log_start=25, cloud=(0, 25))])
def test_rows_that_log_and_objects_hold_together_are_cut_and_appended_again(table, harm, offsets):
    harm(table)
    broker = FakeBroker(offsets)
    assert mended(table, broker, dry_run=True).cuts
    assert broker.woken == []
    cut = mended(table, broker).cuts[0]
    assert broker.woken == [(str(TOPIC), 1)], "K2"
    table.refresh()
    assert table.upto(0) == cut.keep < 4
    append(table, 30 - cut.keep)
    assert_exact(table)


def test_a_read_only_broker_is_named_as_the_cause(table):
    make_hole(table)
    with pytest.raises(RepairRefusedError, match="if it is read-only, name the owner's"):
        mended(table, FakeBroker(read_only_offsets()))


def test_messages_that_are_not_synced_do_not_count_as_held(table):
    make_hole(table)
    offsets = pb.Offsets(start=0, next=30, synced=20, log_start=0)
    with pytest.raises(RepairRefusedError, match=r"offsets \[20, 30\) would be lost"):
        mended(table, FakeBroker(offsets))


def test_what_retention_deletes_while_the_question_is_open_is_noticed(table):
    make_hole(table)
    before = raw(table).metadata_location
    whole, pruned = iceberg_offsets(log_start=0), iceberg_offsets(log_start=25)
    asked = []
    with pytest.raises(RepairRefusedError):
        mended(table, FakeBroker(whole, whole, pruned), ask=asked.append)
    assert len(asked) == 1
    assert raw(table).metadata_location == before


@pytest.mark.parametrize("harm", [None, make_hole])
def test_a_table_whose_property_cannot_be_read_is_measured_by_its_rows(table, harm):
    if harm is not None:
        harm(table)
    with raw(table).transaction() as change:
        change.set_properties({"ister.upto": "?"})
    broker = FakeBroker(iceberg_offsets(log_start=25))
    if harm is None:
        assert mended(table, broker).cuts[0].keep == 30
    else:
        with pytest.raises(RepairRefusedError, match=r"offsets \[3, 25\) would be lost"):
            mended(table, broker)


@pytest.mark.parametrize("log_start", [25, 20])
def test_older_metadata_is_gone_back_to_only_if_the_commits_behind_it_can_be_appended_again(table, log_start):
    """The newest metadata file is gone; the one before it has 20 rows, and knows nothing of the last 10."""
    current = Path(urlparse(raw(table).metadata_location).path)
    current.unlink()
    broker = FakeBroker(iceberg_offsets(log_start=log_start))
    if log_start == 20:
        assert mended(table, broker).chosen
        table.refresh()
        assert table.upto(0) == 20
        return
    for dry_run in (True, False):
        with pytest.raises(RepairRefusedError, match=r"offsets \[20, 25\) would be lost"):
            mended(table, broker, dry_run=dry_run, ask=refuse_to_ask)


def test_older_metadata_that_knows_nothing_of_a_partition_is_not_gone_back_to_without_its_log(table):
    append(table, 10, partition=1)
    Path(urlparse(raw(table).metadata_location).path).unlink()
    broker = FakeBroker(iceberg_offsets(log_start=0))
    broker.others = [
        pb.Topic(
            name=f"{TOPIC}-part-1",
            generation=1,
            dispatch=pb.DISPATCH_RELIABLE,
            policies=broker.policies,
            partition=pb.Partition(base=str(TOPIC), number=1),
            offsets=iceberg_offsets(log_start=7, end=10),
        )
    ]
    with pytest.raises(RepairRefusedError, match=r"partition 1 .* offsets \[0, 7\) would be lost"):
        mended(table, broker)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("lake", "choice", "why"),
    [(False, Choice(), "lake"), (True, Choice((), ("/default/*",)), r"writer\.exclude")],
)
def test_a_table_that_the_pipeline_does_not_append_to_is_not_cut(table, lake, choice, why, dry_run):
    """K12. Nothing would append the rows again."""
    make_hole(table)
    before = raw(table).metadata_location
    broker = FakeBroker(iceberg_offsets(log_start=0), lake=lake)
    with pytest.raises(PreconditionError, match=rf"does not append.*{why}"):
        mended(table, broker, choice=choice, dry_run=dry_run, ask=refuse_to_ask)
    assert raw(table).metadata_location == before


def test_a_sound_table_is_sound_whatever_log_and_objects_hold(table):
    broker = FakeBroker(iceberg_offsets(log_start=30), lake=False)
    assert mended(table, broker).sound
