"""A table is examined and mended without Spark and without a broker: files that are gone or damaged, answers that are lost."""

from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from pyiceberg.exceptions import CommitFailedException

from ister.lake import repair
from ister.lake.catalog import CachingSqlCatalog, LakeCatalog
from ister.lake.errors import CommitConflictError, CommitUnknownError, LakeUnavailableError
from ister.lake.repair import Cut, Offsets, examine, mend
from ister.lake.snapshot import wall_ms
from parts.lake import TOPIC, append, assert_exact, held_rows, lake_of, metadata_files


class Interrupted(CachingSqlCatalog):
    """A catalog that lets others act before a commit, and says something else after it, when told."""

    before = after = staticmethod(lambda: None)

    def commit_table(self, table, requirements, updates):
        self.before()
        answer = super().commit_table(table, requirements, updates)
        self.after()
        return answer


@pytest.fixture
def lake(tmp_path):
    found = lake_of(tmp_path, Interrupted)
    yield found
    found.close()


@pytest.fixture
def table(lake):
    """A table with 30 rows in three files, and a second partition of 10 rows in one."""
    found = lake.table(TOPIC, 1)
    found.claim(1)
    for _ in range(3):
        append(found, 10)
    append(found, 10, partition=1)
    return found


def raw(table):
    return table._table.catalog.load_table(table.identifier)


def examined(table):
    return examine(raw(table), TOPIC, 1)


def data_files(table):
    """The table's data files, in the order of their offsets."""
    tasks = [task.file for task in raw(table).scan().plan_files()]
    order = sorted(tasks, key=lambda file: (file.lower_bounds[2], file.lower_bounds[1]))
    return [Path(urlparse(file.file_path).path) for file in order]


# --- which offsets there are ------------------------------------------------------------------------------------------


def test_offsets_that_come_in_pieces_are_counted_as_if_they_had_come_at_once(count):
    random = np.random.default_rng(1)
    for _ in range(count(2000, 50_000)):
        offsets = random.integers(-1 if random.random() < 0.05 else 0, 12, random.integers(0, 16))
        if random.random() < 0.5:
            offsets = random.permutation(np.unique(offsets))
        counts = [int((offsets == offset).sum()) for offset in range(14)]
        whole = next(offset for offset, held in enumerate(counts) if held != 1)
        found = Offsets()
        for piece in np.array_split(offsets, random.integers(1, 5)):
            found.add(piece)
        assert (found.whole_below, found.rows) == (0 if (offsets < 0).any() else whole, len(offsets)), offsets


def test_ten_million_offsets_in_order_are_one_run():
    found = Offsets()
    for start in range(0, 10_000_000, 100_000):
        found.add(np.arange(start, start + 100_000))
    assert (found.whole_below, found.rows, found.runs) == (10_000_000, 10_000_000, 1)


# --- files that are gone or damaged -----------------------------------------------------------------------------------


def damage(path):
    found = bytearray(path.read_bytes())
    found[4 : len(found) // 2] = bytes(len(found) // 2 - 4)
    path.write_bytes(found)


@pytest.mark.parametrize("ruin", [Path.unlink, damage, lambda path: path.write_bytes(b"PAR1"), lambda path: path.write_bytes(b"")])  # fmt: skip
@pytest.mark.parametrize(("place", "cut"), [(0, Cut(0, 30, 0, 20)), (1, Cut(0, 30, 10, 10)), (2, Cut(0, 30, 20, 0))])
def test_a_file_that_is_gone_or_damaged_is_cut_at_its_first_offset(table, ruin, place, cut):
    path = data_files(table)[place]
    ruin(path)
    found = examined(table)
    assert list(found.cuts) == [cut, Cut(1, 10, 10, 0)]
    assert path.name in found.found
    assert not found.sound
    mend(found)
    table.refresh()
    assert (table.upto(0), table.upto(1)) == (cut.keep, 10)
    assert examined(table).sound
    assert_exact(table)
    append(table, 30 - cut.keep)
    assert_exact(table)


def test_a_file_of_two_partitions_that_is_gone_is_cut_from_both(table):
    rewrite(table)
    [path] = data_files(table)
    newest = raw(table).current_snapshot().snapshot_id
    old = [one.snapshot_id for one in raw(table).snapshots() if one.snapshot_id != newest]
    raw(table).maintenance.expire_snapshots().by_ids(old).commit()
    path.unlink()
    found = examined(table)
    assert list(found.cuts) == [Cut(0, 30, 0, 0), Cut(1, 10, 0, 0)]
    mend(found)
    assert held_rows(table) == []
    table.refresh()
    assert table.held.upto == {0: 0, 1: 0}


def rewrite(table):
    """Do as a compaction does: all rows in other files."""
    before = raw(table)
    before.overwrite(before.scan().to_arrow())


@pytest.mark.parametrize("later", [0, 10])
def test_a_rewritten_file_that_is_gone_is_replaced_by_what_it_was_made_from(table, later):
    """As after a power loss: Java syncs nothing, and log and objects may have been pruned because the table had it all."""
    rewrite(table)
    [path] = data_files(table)
    if later:
        table.refresh()
        append(table, later)
    path.unlink()
    found = examined(table)
    assert list(found.cuts) == [Cut(0, 30 + later, 30, 0), Cut(1, 10, 10, 0)]
    assert "it goes back to snapshot" in found.found
    mend(found)
    table.refresh()
    assert table.held.upto == {0: 30, 1: 10}
    assert examined(table).sound
    assert_exact(table)
    append(table, 5)
    assert_exact(table)


def test_of_older_snapshots_the_newest_is_taken_whose_files_are_all_there(table):
    rewrite(table)
    rewrite(table)
    older = [task.file.file_path for snapshot in raw(table).snapshots()[-4:-2] for task in raw(table).scan(snapshot_id=snapshot.snapshot_id).plan_files()]  # fmt: skip
    data_files(table)[0].unlink()
    found = examined(table)
    assert list(found.cuts) == [Cut(0, 30, 30, 0), Cut(1, 10, 10, 0)]
    mend(found)
    assert {task.file.file_path for task in raw(table).scan().plan_files()} <= set(older)
    assert examined(table).sound


def test_an_older_snapshot_that_has_less_is_not_read_and_not_gone_back_to(table, monkeypatch):
    data_files(table)[2].unlink()
    read = repair._held

    def held(found, snapshot):
        assert snapshot == found.current_snapshot()
        return read(found, snapshot)

    monkeypatch.setattr(repair, "_held", held)
    found = examined(table)
    assert list(found.cuts) == [Cut(0, 30, 20, 0), Cut(1, 10, 10, 0)], "before that file there was no second partition"
    assert "goes back" not in found.found


def test_a_table_that_counts_more_rows_than_it_has_is_told_how_many_there_are(table):
    """The library counts a file once that was in a table twice and is taken out."""
    path = data_files(table)[1]
    raw(table).add_files([f"file://{path}"], check_duplicate_files=False)
    raw(table).delete("partition = 0 and topic_offset >= 10")
    assert raw(table).current_snapshot().summary["total-records"] == "30", "else this shows nothing: there are 20"
    mend(examined(table))
    assert examined(table).sound
    table.refresh()
    assert table.held.upto == {0: 10, 1: 10}
    assert raw(table).current_snapshot().summary["total-records"] == "20"
    append(table, 5)
    assert_exact(table)


def test_a_store_that_does_not_answer_is_not_taken_for_one_that_has_lost_its_files(table, monkeypatch):
    files = type(table.files)
    plain = files.new_input

    class Away:
        def __init__(self, location):
            self.location = location

        def open(self, **_):
            raise OSError(110, "Connection timed out")

    monkeypatch.setattr(
        files, "new_input", lambda self, where: Away(where) if where.endswith("parquet") else plain(self, where)
    )
    with pytest.raises(LakeUnavailableError, match="timed out"):
        examined(table)


# --- commits whose outcome is not what was said -----------------------------------------------------------------------


def refuse():
    raise CommitFailedException("Cannot commit: the table was changed by another")


def lose():
    raise ConnectionError("the answer is lost")


def roll_back(table):
    """Let the table say more than it holds; no row has to be cut."""
    snapshots = sorted(raw(table).metadata.snapshots, key=lambda one: one.sequence_number)
    raw(table).manage_snapshots().rollback_to_snapshot(snapshots[-3].snapshot_id).commit()


def punch(table):
    raw(table).delete("partition = 0 and topic_offset = 14")


HARM = {"without a cut": roll_back, "with a cut": punch}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
@pytest.mark.parametrize("answer", [refuse, lose])
def test_f30_a_mend_that_landed_and_is_then_refused_or_not_answered_keeps_its_manifests(lake, table, harm, answer):
    harm(table)
    lake.catalog.after = answer
    mend(examined(table))
    lake.catalog.after = lambda: None
    assert examined(table).sound
    there, used = metadata_files(table)
    assert used <= there


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_f29_a_mend_that_is_refused_leaves_no_manifest_behind(lake, table, harm):
    harm(table)
    found = examined(table)
    there, used = metadata_files(table)

    def meanwhile():
        lake.catalog.before = lambda: None
        raw(table).delete("partition = 0 and topic_offset = 3")

    lake.catalog.before = meanwhile
    left = there - used
    with pytest.raises(CommitConflictError):
        mend(found)
    there, used = metadata_files(table)
    assert used <= there
    assert there - used == left, "what the refused one wrote is gone"
    mend(examined(table))
    assert examined(table).sound


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
@pytest.mark.parametrize("answer", [refuse, lose])
def test_f30_a_mend_whose_table_cannot_be_read_afterwards_may_have_landed(lake, table, harm, answer, monkeypatch):
    harm(table)
    found = examined(table)
    load = lake.catalog.load_table

    def vanish():
        monkeypatch.setattr(lake.catalog, "load_table", lambda _: lose())
        answer()

    lake.catalog.after = vanish
    with pytest.raises(CommitUnknownError):
        mend(found)
    monkeypatch.setattr(lake.catalog, "load_table", load)
    lake.catalog.after = lambda: None
    assert examined(table).sound


def test_a_mend_that_did_not_land_and_was_not_answered_is_unknown(lake, table):
    punch(table)
    lake.catalog.before = lose
    with pytest.raises(CommitUnknownError):
        mend(examined(table))


def test_a_mend_is_stamped_behind_what_came_before_it(tmp_path):
    lake = LakeCatalog(lake_of(tmp_path).catalog, now_ms=lambda: wall_ms() + 3_600_000)
    table = lake.table(TOPIC, 1)
    table.claim(1)
    append(table, 10)
    append(table, 10)
    data_files(table)[1].unlink()
    for said in ('{"0":20}', '{"0":30}'):
        with raw(table).transaction() as change:
            change.set_properties({"ister.upto": said})
        mend(examined(table))
        metadata = raw(table).metadata
        for entries in (metadata.snapshot_log, metadata.metadata_log):
            stamps = [one.timestamp_ms for one in entries]
            assert stamps == sorted(stamps)
            assert metadata.last_updated_ms >= stamps[-1]
    assert examined(table).sound
    lake.close()
