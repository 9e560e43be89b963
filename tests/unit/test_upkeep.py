import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.core.upkeep import (
    MANIFESTS_MAX,
    ORPHANS_EVERY_MS,
    Lineage,
    LiveFile,
    Procedure,
    Rewrite,
    TableState,
    due,
    expirable,
    spelling,
    to_compact,
)

HOUR = 3_600_000
NOW = 100 * HOUR


def chain(*steps):
    """Make a lineage from (age in ms, operation), oldest first."""
    return [
        Lineage(number, number - 1 if number else None, NOW - age_ms, operation)
        for number, (age_ms, operation) in enumerate(steps)
    ]


def let_go(lineage, *, named=(), keep=1, grace_ms=HOUR):
    return expirable(lineage, named=named, keep=keep, grace_ms=grace_ms, now_ms=NOW)


# --- compaction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "rewritten"),
    [
        ([], 0),
        ([1] * 4, 0),
        ([1] * 5, 5),
        ([100] * 20, 0),
        ([75, 180] * 5, 0),
        ([74] * 5, 5),
        ([60, 60], 2),
        ([181], 1),
        ([100] * 5 + [1] * 4, 0),
    ],
)
def test_files_are_rewritten_when_many_are_small_or_some_fill_one(sizes, rewritten):
    found = to_compact([LiveFile("day", size) for size in sizes], 100)
    assert found.files == rewritten


def test_files_of_two_partitions_never_go_together():
    assert to_compact([LiveFile(day, 1) for day in "abcde"], 100) == Rewrite(0, 0)
    assert to_compact([LiveFile(day, 7) for day in "ab" for _ in range(5)], 100) == Rewrite(10, 70)


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_the_oldest_appends_go_whatever_their_age():
    assert let_go(chain(*[(age, "append") for age in (5, 4, 3, 2, 1)]), keep=2) == [0, 1, 2]


def test_the_snapshot_before_a_rewrite_stays_until_the_rewrite_is_older_than_the_grace():
    young = chain((90 * HOUR, "append"), (HOUR - 1, "replace"), (2, "append"), (1, "append"))
    assert let_go(young) == [2], (
        "its files left the table a moment ago, however old it is; and what replaced it tells so"
    )
    old = chain((90 * HOUR, "append"), (HOUR, "replace"), (2, "append"), (1, "append"))
    assert let_go(old) == [0, 1, 2]


@pytest.mark.parametrize("operation", ["replace", "overwrite", "delete"])
def test_anything_but_an_append_may_take_files_away(operation):
    assert 0 not in let_go(chain((9, "append"), (8, operation), (7, "append")))


def test_what_a_branch_or_tag_names_stays():
    assert let_go(chain((3, "append"), (2, "append"), (1, "append")), named={0}) == [1]


def test_the_newest_append_stays_behind_any_number_of_rewrites():
    rewrites = [(age * HOUR, "replace") for age in range(9, 2, -1)]
    assert let_go(chain((11 * HOUR, "append"), (10 * HOUR, "append"), *rewrites)) == [0, 2, 3, 4, 5, 6, 7]


STEPS = st.lists(st.tuples(st.integers(0, 3 * HOUR), st.sampled_from(["append", "append", "replace"])), max_size=30)


@given(STEPS, st.integers(1, 10))
def test_no_file_that_left_within_the_grace_loses_its_last_snapshot(steps, keep):
    """Each append adds a file, each rewrite replaces all; a file is on disk as long as a snapshot that is kept has it."""
    lineage = chain(*sorted(steps, reverse=True))
    gone = set(let_go(lineage, keep=keep))
    contents, left_at, current = {}, {}, frozenset()
    for one in lineage:
        if one.operation == "append":
            current |= {one.snapshot_id}
        else:
            left_at |= dict.fromkeys(current, one.timestamp_ms)
            current = frozenset({one.snapshot_id})
        contents[one.snapshot_id] = current
    held = frozenset().union(*(files for number, files in contents.items() if number not in gone))
    assert {file for file, left_ms in left_at.items() if left_ms > NOW - HOUR} <= held
    assert current <= held
    assert len(lineage) - len(gone) >= min(keep, len(lineage))


# --- what is due ------------------------------------------------------------------------------------------------------


def needs(*, files=(), manifests=1, lineage=(), done_ms=None):
    state = TableState(list(files), manifests, list(lineage), set())
    done = {Procedure.ORPHANS: NOW} if done_ms is None else done_ms
    return due(state, target_bytes=100, keep=2, grace_ms=HOUR, now_ms=NOW, done_ms=done)


def test_a_table_in_order_needs_nothing():
    assert needs(files=[LiveFile("d", 100)] * 9, lineage=chain((2, "append"), (1, "append"))) == []
    assert needs(done_ms={}) == [], "nor does an empty one"


def test_each_procedure_has_its_own_reason():
    assert needs(files=[LiveFile("d", 1)] * 5) == [Procedure.COMPACT]
    assert needs(manifests=MANIFESTS_MAX) == []
    assert needs(manifests=MANIFESTS_MAX + 1) == [Procedure.MANIFESTS]
    assert needs(lineage=chain((3, "append"), (2, "append"), (1, "append"))) == [Procedure.EXPIRE]
    one = chain((1, "append"))
    assert needs(lineage=one, done_ms={Procedure.ORPHANS: NOW - ORPHANS_EVERY_MS}) == [Procedure.ORPHANS]
    assert needs(lineage=one, done_ms={Procedure.ORPHANS: NOW - ORPHANS_EVERY_MS + 1}) == []


def test_they_are_done_in_an_order_in_which_each_helps_the_next():
    lineage = chain((3, "append"), (2, "append"), (1, "append"))
    found = needs(files=[LiveFile("d", 1)] * 5, manifests=99, lineage=lineage, done_ms={})
    assert found == [Procedure.COMPACT, Procedure.MANIFESTS, Procedure.EXPIRE, Procedure.ORPHANS]


# --- spelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same",
    [
        ("/x/y.parquet", "file:/x/y.parquet", "file:///x/y.parquet", "FILE:///x/y.parquet", "//x/y.parquet"),
        ("s3://b/k", "s3a://b/k", "s3n://b/k", "S3://b/k"),
        ("gs://b/k",),
        ("/x/append_time_day=2026-01-01/a:b",),
    ],
)
def test_a_file_has_one_spelling(same):
    assert len({spelling(location) for location in same}) == 1


def test_different_files_are_spelt_differently():
    assert len({spelling(x) for x in ("/x", "/y", "s3://x/k", "gs://x/k", "/x/a:b", "/x/a", "s3://x/K")}) == 7
