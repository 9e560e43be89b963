import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.core.table.maintenance import (
    FILES_MIN,
    GROUP_TARGETS_MIN,
    LARGE,
    MANIFESTS_MAX,
    ORPHANS_EVERY_MS,
    SMALL,
    Lineage,
    LiveFile,
    Procedure,
    Rewrite,
    TableState,
    due,
    expirable,
    overlap,
    spelling,
    to_compact,
)

HOUR = 3_600_000
NOW = 100 * HOUR


def chain(*steps):
    """Make a lineage from (age in ms, operation), oldest first."""
    return [
        Lineage(number, number - 1 if number else None, NOW - age_ms, operation, operation == "append")
        for number, (age_ms, operation) in enumerate(steps)
    ]


def let_go(lineage, *, named=(), keep=1, grace_ms=HOUR, current=None):
    if current is None and lineage:
        current = lineage[-1].snapshot_id
    return expirable(lineage, named=named, current=current, keep=keep, grace_ms=grace_ms, now_ms=NOW)


# --- compaction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "rewritten"),
    [
        ([], 0),
        ([1] * 4, 0),
        ([1] * 5, 5),
        ([100] * 20, 0),
        ([50, 180] * 5, 0),
        ([49] * 5, 5),
        ([60, 60], 0),
        ([49, 49, 49], 3),
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


TARGET = 1000


def outputs(size):
    """Return the sizes of what Iceberg 1.x makes of a group of files: SizeBasedFileRewritePlanner.expectedOutputFiles."""
    if size < TARGET:
        return [size]
    whole, rest = divmod(size, TARGET)
    number = whole + bool(rest)
    if rest <= SMALL * TARGET and size // whole < 1.1 * TARGET:
        number = whole  # spread over the others
    return [size // number + (place < size % number) for place in range(number)]


def rewritten(sizes):
    """Return what the files of a partition are after a compaction by Iceberg's rules, None when it leaves them alone."""
    chosen = [size for size in sizes if not SMALL * TARGET <= size <= LARGE * TARGET]
    groups = [[]]
    for size in chosen:
        if groups[-1] and sum(groups[-1]) + size > GROUP_TARGETS_MIN * TARGET:
            groups.append([])
        groups[-1].append(size)
    taken = [
        group
        for group in groups
        if len(group) >= FILES_MIN or (len(group) > 1 and sum(group) > TARGET) or sum(group) > LARGE * TARGET
    ]
    if not taken:
        return None
    left = [size for group in groups if group not in taken for size in group]
    return (
        [size for size in sizes if size not in chosen] + left + [new for group in taken for new in outputs(sum(group))]
    )


SIZES = st.lists(st.one_of(st.integers(1, 600), st.integers(400, 2500)), max_size=40)


@given(SIZES)
def test_what_was_compacted_needs_no_compaction_and_what_needs_it_is_compacted(sizes):
    """A day's partition that is a little larger than the target was rewritten in every round, for ever."""
    for _ in range(len(sizes) + 1):
        after = rewritten(sizes)
        needs_it = to_compact([LiveFile("day", size) for size in sizes], TARGET).files > 0
        assert needs_it == (after is not None), sizes
        if after is None:
            break
        assert sum(after) == sum(sizes)
        made = [size for size in after if size not in sizes]
        assert to_compact([LiveFile("day", size) for size in made if size >= SMALL * TARGET], TARGET).files == 0
        sizes = after
    else:
        pytest.fail(f"it does not end: {sizes}")


@given(st.integers(TARGET, 50 * TARGET))
def test_no_file_of_several_that_compaction_makes_is_small(size):
    made = outputs(size)
    assert sum(made) == size
    assert all(SMALL * TARGET <= one <= LARGE * TARGET for one in made)


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


def test_the_snapshot_of_main_that_tells_how_far_the_table_goes_stays_whatever_a_branch_appends():
    """K12. Main is 1 (ours), 2 (rows deleted), 4 (a rewrite); a user's branch has appended 3."""
    lineage = [
        Lineage(1, None, NOW - 99 * HOUR, "append", has_upto=True),
        Lineage(2, 1, NOW - 98 * HOUR, "overwrite"),
        Lineage(3, 2, NOW - 97 * HOUR, "append"),
        Lineage(4, 2, NOW - 96 * HOUR, "replace"),
    ]
    assert let_go(lineage, named={3, 4}, current=4) == [2]
    ours = Lineage(5, 4, NOW - 95 * HOUR, "append", has_upto=True)
    assert let_go([*lineage, ours], named={3, 5}, current=5) == [1, 2, 4]


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
    current = lineage[-1].snapshot_id if lineage else None
    state = TableState(list(files), manifests, list(lineage), set(), current)
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


def test_directories_overlap_when_one_is_within_the_other():
    assert all(
        overlap(*pair) for pair in (("/w/a", "/w/a"), ("/w/a", "/w/a/b"), ("/w/a/b", "/w"), ("s3://b/x", "s3://b"))
    )
    assert not any(
        overlap(*pair) for pair in (("/w/a", "/w/ab"), ("/w/a-2", "/w/a"), ("/w/a", "/w/b"), ("s3://b/x", "/b/x"))
    )
