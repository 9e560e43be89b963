"""Exactly once: two owners in every order (F31), a compaction in between (F29), an answer that is lost (F30)."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from ister.core.names import TopicName
from ister.core.table.commit import LANDED
from ister.lake.catalog import CachingSqlCatalog
from ister.lake.errors import (
    CommitConflictError,
    CommitMisplacedError,
    CommitRefusedError,
    CommitUnknownError,
    LakeUnavailableError,
)
from ister.lake.table import TRIES
from parts.lake import TOPIC, append, assert_exact, held_rows, lake_of, metadata_files, sql_catalog, write


class Interrupted(CachingSqlCatalog):
    """A catalog that lets others act in the moment before a commit, and loses answers when told."""

    before = staticmethod(lambda: None)
    after = staticmethod(lambda: None)

    def commit_table(self, table, requirements, updates):
        self.before()
        answer = super().commit_table(table, requirements, updates)
        self.after()
        return answer


class Owner:
    """One driver: it loads, claims, writes what comes next, and commits it; refused, it stops."""

    def __init__(self, directory, epoch):
        self.lake = lake_of(directory, Interrupted)
        self.epoch = epoch
        self.table = None
        self.files = None
        self.start = 0
        self.stopped = False

    def step(self, name):
        if not self.stopped:
            try:
                getattr(self, name)()
            except (CommitRefusedError, CommitMisplacedError):
                self.stopped = True

    def load(self):
        self.table = self.lake.table(TOPIC, 1)

    def claim(self):
        self.table.claim(self.epoch)

    def write(self):
        self.start = self.table.upto(0)
        self.files = write(self.table, self.start, self.start + 10)

    def commit(self):
        self.table.commit_add_files(self.files, {0: (self.start, self.start + 10)})


STEPS = ("load", "claim", "write", "commit")


@pytest.mark.slow
def test_f31_two_owners_in_every_order_of_their_steps_leave_every_row_once(tmp_path):
    appended = []
    for number, chosen in enumerate(itertools.combinations(range(8), 4)):
        directory = tmp_path / str(number)
        directory.mkdir()
        old, new = Owner(directory, 1), Owner(directory, 2)
        steps = {old: iter(STEPS), new: iter(STEPS)}
        for place in range(8):
            owner = old if place in chosen else new
            owner.step(next(steps[owner]))
        assert not new.stopped or new.start < new.lake.table(TOPIC, 1).upto(0), chosen
        table = new.lake.table(TOPIC, 1)
        assert_exact(table)
        appended.append(table.upto(0))
        old.lake.close()
        new.lake.close()
    assert len(appended) == 70
    assert set(appended) == {10, 20}


@pytest.mark.parametrize("window", ["claim", "commit"])
@pytest.mark.parametrize("acts", [("load",), ("load", "claim"), ("load", "claim", "write", "commit")], ids=len)
@pytest.mark.parametrize("epochs", [(1, 2), (2, 1)])
def test_a_second_owner_who_acts_in_the_moment_before_a_commit(tmp_path, window, acts, epochs):
    first, second = Owner(tmp_path, epochs[0]), Owner(tmp_path, epochs[1])

    def meanwhile():
        first.lake.catalog.before = lambda: None
        for act in acts:
            second.step(act)

    for step in STEPS:
        if step == window:
            first.lake.catalog.before = meanwhile
        first.step(step)
    if "claim" in acts and epochs[1] > epochs[0]:
        assert first.stopped, "the new owner has fenced what was under way"
    else:
        assert not first.stopped
    assert_exact(first.lake.table(TOPIC, 1))
    first.lake.close()
    second.lake.close()


def test_an_older_owner_is_told_to_stop_and_a_claim_can_be_repeated(tmp_path):
    old, new = Owner(tmp_path, 1), Owner(tmp_path, 2)
    for owner in (old, new):
        owner.load()
        owner.claim()
    with pytest.raises(CommitRefusedError, match="epoch 2 owns the table, and this is epoch 1"):
        old.claim()
    with pytest.raises(CommitRefusedError, match="epoch 2"):
        old.table.commit_add_files(write(old.table, 0, 10), {0: (0, 10)})
    snapshot = new.table._table.current_snapshot().snapshot_id
    new.claim()
    assert new.table._table.current_snapshot().snapshot_id == snapshot
    append(new.table)
    assert_exact(new.table)
    old.lake.close()
    new.lake.close()


@pytest.fixture
def owner(tmp_path):
    found = Owner(tmp_path, 1)
    found.load()
    found.claim()
    yield found
    found.lake.close()


@pytest.mark.slow
def test_f29_a_compaction_in_between_is_seen_and_the_commit_goes_on(owner, tmp_path, count):
    compactions = count(50, 200)
    catalog = sql_catalog(tmp_path)

    def compact():
        owner.lake.catalog.before = lambda: None
        other = catalog.load_table(owner.table.identifier)
        other.overwrite(other.scan().to_arrow())

    append(owner.table, 5)
    for _ in range(compactions):
        owner.lake.catalog.before = compact
        assert isinstance(append(owner.table, 2), int)
    assert owner.table.upto(0) == 5 + 2 * compactions
    assert_exact(owner.table)
    catalog.close()


def test_f29_a_refused_commit_leaves_no_manifest_behind(owner, tmp_path):
    second = Owner(tmp_path, 2)
    append(owner.table, 5)

    def fence():
        owner.lake.catalog.before = lambda: None
        second.load()
        second.claim()

    owner.lake.catalog.before = fence
    with pytest.raises(CommitRefusedError):
        append(owner.table, 5)
    there, used = metadata_files(second.table)
    assert there == used
    second.lake.close()


def test_f29_who_never_comes_first_gives_up_without_a_commit(owner, tmp_path):
    catalog = sql_catalog(tmp_path)
    append(owner.table, 5)
    tries = []

    def compact():
        tries.append(1)
        other = catalog.load_table(owner.table.identifier)
        other.overwrite(other.scan().to_arrow())

    owner.lake.catalog.before = compact
    with pytest.raises(CommitConflictError, match="nothing was committed"):
        append(owner.table, 5)
    assert len(tries) == TRIES
    owner.lake.catalog.before = lambda: None
    owner.table.refresh()
    append(owner.table, 5)
    assert_exact(owner.table)
    catalog.close()


def lose():
    raise ConnectionError("the answer is lost")


def test_f30_a_lost_answer_makes_no_second_commit_and_deletes_nothing(owner, count):
    rng = random.Random(30)
    catalog = owner.lake.catalog
    landed = 0
    for _ in range(count(50, 300)):
        where = rng.choice(["before", "after"])

        def once(where=where):
            setattr(catalog, where, lambda: None)
            lose()

        setattr(catalog, where, once)
        start = owner.table.upto(0)
        files = write(owner.table, start, start + 3)
        answer = owner.table.commit_add_files(files, {0: (start, start + 3)})
        assert (answer is LANDED) == (where == "after")
        landed += answer is LANDED
        assert owner.table.upto(0) == start + 3
        assert all(Path(one.path.removeprefix("file://")).exists() for one in files)
    assert landed > 10
    assert_exact(owner.table)
    there, used = metadata_files(owner.table)
    assert used <= there


def test_f30_when_the_table_cannot_be_read_the_outcome_is_unknown_and_the_same_offer_settles_it(owner, monkeypatch):
    catalog = owner.lake.catalog
    files = write(owner.table, 0, 10)
    load = catalog.load_table
    away = []

    def vanish():
        monkeypatch.setattr(catalog, "load_table", lambda _: lose())
        away.append(1)
        lose()

    catalog.after = vanish
    with pytest.raises(CommitUnknownError, match="offer the same again"):
        owner.table.commit_add_files(files, {0: (0, 10)})
    with pytest.raises(LakeUnavailableError):
        owner.table.commit_add_files(files, {0: (0, 10)})
    monkeypatch.setattr(catalog, "load_table", load)
    catalog.after = lambda: None
    assert owner.table.commit_add_files(files, {0: (0, 10)}) is LANDED
    assert away == [1]
    assert_exact(owner.table)


def test_f30_a_claim_whose_answer_is_lost_is_made_once(tmp_path):
    owner = Owner(tmp_path, 1)
    owner.load()
    owner.lake.catalog.after = lose
    owner.claim()
    owner.lake.catalog.after = lambda: None
    assert len(owner.table._table.snapshots()) == 1
    append(owner.table)
    assert_exact(owner.table)
    owner.lake.close()


def refuse():
    raise CommitFailedException("Cannot commit: the table was changed by another")


def test_f30_a_commit_that_landed_and_is_then_refused_keeps_its_manifests(owner, count):
    """A client or a gateway that sends a request twice is refused the second time, by what the first has done."""
    catalog = owner.lake.catalog
    commits = count(10, 100)
    for _ in range(commits):

        def once():
            catalog.after = lambda: None
            refuse()

        catalog.after = once
        assert append(owner.table, 3) is LANDED
        assert_exact(owner.table)
    there, used = metadata_files(owner.table)
    assert used <= there
    assert owner.table.upto(0) == 3 * commits


def test_f30_a_claim_that_landed_and_is_then_refused_is_made_once(tmp_path):
    owner = Owner(tmp_path, 1)
    owner.load()
    owner.lake.catalog.after = refuse
    owner.claim()
    owner.lake.catalog.after = lambda: None
    assert len(owner.table._table.snapshots()) == 1
    append(owner.table)
    assert_exact(owner.table)
    owner.lake.close()


def test_f30_a_refused_commit_whose_table_cannot_be_read_may_have_landed_and_loses_nothing(owner, monkeypatch):
    catalog = owner.lake.catalog
    files = write(owner.table, 0, 10)
    load = catalog.load_table

    def vanish():
        monkeypatch.setattr(catalog, "load_table", lambda _: lose())
        refuse()

    catalog.after = vanish
    with pytest.raises(CommitUnknownError, match="offer the same again"):
        owner.table.commit_add_files(files, {0: (0, 10)})
    monkeypatch.setattr(catalog, "load_table", load)
    catalog.after = lambda: None
    assert owner.table.commit_add_files(files, {0: (0, 10)}) is LANDED
    assert_exact(owner.table)


def test_f30_a_commit_that_landed_and_whose_snapshot_has_expired_before_the_refusal_keeps_its_manifests(
    owner, tmp_path
):
    append(owner.table, 5)
    second = Owner(tmp_path, 1)
    second.load()
    second.claim()

    def later():
        owner.lake.catalog.after = lambda: None
        second.table.refresh()
        landed = second.table.snapshot.snapshot_id
        append(second.table, 5)
        second.lake.catalog.load_table(second.table.identifier).maintenance.expire_snapshots().by_id(landed).commit()
        refuse()

    owner.lake.catalog.after = later
    with pytest.raises(CommitMisplacedError, match="the table ends at 15"):
        append(owner.table, 5)
    assert_exact(second.table)
    second.lake.close()


def test_f30_a_refusal_that_no_other_snapshot_explains_deletes_nothing_as_the_commit_may_be_under_way(owner):
    """The first of two requests is still at work when the second is refused, and lands when the next one is sent."""
    catalog = owner.lake.catalog
    offered = []

    def remembered(*offer):
        offered.append(offer)
        return Interrupted.commit_table(catalog, *offer)

    def land():
        catalog.before = lambda: None
        CachingSqlCatalog.commit_table(catalog, *offered[0])

    def under_way():
        catalog.before = land
        refuse()

    catalog.commit_table = remembered
    catalog.before = under_way
    assert append(owner.table, 5) is LANDED
    assert len(offered) == 2
    assert_exact(owner.table)


def test_a_disk_that_is_full_while_manifests_are_written_changes_nothing(owner, monkeypatch):
    append(owner.table, 5)
    files = write(owner.table, 5, 10)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ister.lake.snapshot.write_manifest_list", full)
    with pytest.raises(LakeUnavailableError, match="No space left"):
        owner.table.commit_add_files(files, {0: (5, 10)})
    monkeypatch.undo()
    there, used = metadata_files(owner.table)
    assert there == used
    assert isinstance(owner.table.commit_add_files(files, {0: (5, 10)}), int)
    assert_exact(owner.table)


def test_the_library_s_own_retry_is_never_asked_and_never_switched_off_for_others(owner, tmp_path):
    append(owner.table, 5)
    other = sql_catalog(tmp_path).load_table(owner.table.identifier)
    assert not [name for name in other.properties if name.startswith("commit.retry")]


def test_a_snapshot_says_what_it_appended_and_by_whom(owner):
    append(owner.table, 5)
    append(owner.table, 7)
    summary = owner.table._table.current_snapshot().summary.additional_properties
    assert summary["ister.from"] == '{"0":5}'
    assert summary["ister.upto"] == '{"0":12}' == owner.table._table.properties["ister.upto"]
    assert summary["ister.epoch"] == "1"
    assert (summary["added-records"], summary["total-records"]) == ("7", "12")
    assert held_rows(owner.table)[-1] == (0, 11)


def test_several_tables_are_committed_to_at_once_through_one_catalog(tmp_path):
    lake = lake_of(tmp_path)

    def fill(number):
        table = lake.table(TopicName.parse(f"/default/topic-{number}"), 1)
        table.claim(1)
        for _ in range(5):
            append(table, 3)
        return table

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(fill, range(8)))
    assert len({table.identifier for table in tables}) == 8
    for table in tables:
        assert table.upto(0) == 15
        assert_exact(table)
    lake.close()
