"""The fenced commit, decided: against a plain model, and by every interleaving of two owners."""

import itertools
import random

import pytest

from ister.core.table.commit import (
    COMMIT,
    ENTRIES_MAX,
    FANOUT,
    LANDED,
    Append,
    FileRows,
    Refused,
    TableProgress,
    Why,
    check_files,
    check_summary,
    check_surplus,
    decide,
    to_merge,
    upto_after,
)

HELD = TableProgress("/a/x", 1, 5, {0: 10, 1: 20})


def offer(spans, topic="/a/x", generation=1, epoch=5):
    return Append(topic, generation, epoch, spans)


def test_what_begins_where_the_table_ends_is_committed():
    assert decide(HELD, offer({0: (10, 15)})) is COMMIT
    assert decide(HELD, offer({0: (10, 15), 1: (20, 21)})) is COMMIT
    assert decide(HELD, offer({2: (0, 3)})) is COMMIT, "a partition that the table has not seen begins at 0"
    assert upto_after(HELD, offer({0: (10, 15), 2: (0, 3)})) == {0: 15, 1: 20, 2: 3}


def test_what_the_table_holds_already_has_landed():
    assert decide(HELD, offer({0: (5, 10)})) is LANDED
    assert decide(HELD, offer({0: (5, 10), 1: (0, 20)})) is LANDED


@pytest.mark.parametrize(
    ("offered", "why"),
    [
        (offer({0: (10, 15)}, topic="/a/y"), Why.FOREIGN),
        (offer({0: (10, 15)}, generation=2), Why.FOREIGN),
        (offer({0: (10, 15)}, generation=0), Why.FOREIGN),
        (offer({0: (10, 15)}, epoch=4), Why.EPOCH),
        (offer({0: (5, 10)}, epoch=4), Why.EPOCH),
        (offer({0: (10, 15)}, epoch=6), Why.UNCLAIMED),
        (offer({0: (9, 15)}), Why.GAP),
        (offer({0: (11, 15)}), Why.GAP),
        (offer({0: (10, 15), 1: (19, 22)}), Why.GAP),
        (offer({0: (5, 10), 1: (20, 22)}), Why.GAP),
        (offer({2: (1, 3)}), Why.GAP),
        (offer({}), Why.GAP),
        (offer({0: (10, 10)}), Why.GAP),
        (offer({0: (12, 10)}), Why.GAP),
        (offer({3: (-1, 0)}), Why.GAP),
    ],
)
def test_everything_else_is_refused_by_reason(offered, why):
    verdict = decide(HELD, offered)
    assert isinstance(verdict, Refused)
    assert verdict.why is why
    assert verdict.reason


class Model:
    """A table as a plain list of rows, and no decision in it."""

    def __init__(self, partitions):
        self.rows = [(partition, offset) for partition, upto in partitions.items() for offset in range(upto)]

    def takes(self, spans):
        new = [(partition, offset) for partition, (start, stop) in spans.items() for offset in range(start, stop)]
        rows = self.rows + new
        dense = all(
            sorted(offset for p, offset in rows if p == partition) == list(range(sum(p == partition for p, _ in rows)))
            for partition in {p for p, _ in rows}
        )
        return bool(new) and dense


def test_ten_thousand_offers_are_committed_exactly_when_the_rows_stay_dense_and_single(count):
    rng = random.Random(9)
    verdicts = {COMMIT: 0, LANDED: 0, Refused: 0}
    for _ in range(count(10_000, 200_000)):
        upto = {partition: rng.randrange(4) for partition in range(rng.randrange(3))}
        spans = {}
        for partition in rng.sample(range(3), rng.randrange(1, 3)):
            start = rng.randrange(4)
            spans[partition] = (start, start + rng.randrange(1, 3))
        held = TableProgress("/a/x", 1, rng.choice([4, 5, 5, 5, 6]), upto)
        verdict = decide(held, offer(spans))
        verdicts[Refused if isinstance(verdict, Refused) else verdict] += 1
        may = held.epoch == 5 and Model(upto).takes(spans)
        assert (verdict is COMMIT) == may, (held, spans, verdict)
        if verdict is LANDED:
            assert all(upto.get(partition, 0) == stop for partition, (_, stop) in spans.items())
            assert held.epoch == 5
        if verdict is COMMIT:
            assert decide(held._replace(upto=upto_after(held, offer(spans))), offer(spans)) is LANDED, (
                "a lost answer is seen"
            )
    assert min(verdicts.values()) > 100, verdicts


def play(order, *, claims):
    """Two owners, each: look, write, commit, twice; the table takes what `decide` and the parent assertion allow."""
    table = {"epoch": 0, "upto": 0, "version": 0, "rows": []}
    owners = {name: {"step": 0, "seen": None, "epoch": epoch} for name, epoch in claims.items()}
    for name in order:
        me = owners[name]
        step, me["step"] = me["step"], me["step"] + 1
        if step == 0:
            if table["epoch"] <= me["epoch"]:
                table.update(epoch=me["epoch"], version=table["version"] + 1)
        elif step % 2 == 1:
            me["seen"] = (table["version"], TableProgress("/a/x", 1, table["epoch"], {0: table["upto"]}), table["upto"])
        else:
            version, held, start = me["seen"]
            span = (start, start + 10)
            if decide(held, offer({0: span}, epoch=me["epoch"])) is COMMIT and table["version"] == version:
                table.update(upto=span[1], version=version + 1, rows=table["rows"] + list(range(*span)))
    return table


def test_no_interleaving_of_two_owners_makes_a_row_twice_or_leaves_one_out():
    steps = 5
    orders = (
        set(itertools.permutations("a" * steps + "b" * steps))
        if steps < 4
        else {
            tuple("a" if place in chosen else "b" for place in range(2 * steps))
            for chosen in itertools.combinations(range(2 * steps), steps)
        }
    )
    assert len(orders) == 252
    for order in orders:
        table = play(order, claims={"a": 1, "b": 2})
        assert table["rows"] == list(range(table["upto"])), order
        assert table["upto"] > 0, "one of them gets on"


def test_files_that_make_up_the_offer_fit():
    spans = {0: (10, 15), 1: (0, 2)}
    assert check_files(spans, [FileRows(0, 12, 14, 3), FileRows(1, 0, 1, 2), FileRows(0, 10, 11, 2)]) is None


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [FileRows(0, 10, 13, 4)],
        [FileRows(0, 11, 14, 4)],
        [FileRows(0, 10, 14, 5), FileRows(0, 10, 14, 5)],
        [FileRows(0, 10, 12, 3), FileRows(0, 12, 14, 3)],
        [FileRows(0, 10, 14, 4)],
        [FileRows(0, 10, 14, 5), FileRows(1, 0, 0, 1)],
        [FileRows(0, 10, 15, 6)],
        [FileRows(0, 10, 14, 5), FileRows(0, 15, 14, 0)],
    ],
)
def test_files_with_a_row_too_few_too_many_or_twice_are_refused(runs):
    assert check_files({0: (10, 15)}, runs).why is Why.GAP


@pytest.mark.parametrize(
    ("upto", "newest", "records", "deletes", "word"),
    [
        ({}, None, 0, 0, None),
        ({0: 0}, {}, 0, 0, None),
        ({0: 5}, {0: 5}, 5, 0, None),
        ({0: 5}, {0: 5}, 4, 0, None),
        ({0: 5}, {0: 5}, 5, 2, None),
        ({0: 5}, {0: 5}, 7, 2, None),
        ({0: 5, 1: 2}, None, 7, 0, None),
        ({0: 5, 1: 2}, None, 9, 2, None),
        ({0: 5}, None, 5, 2, None),
        ({0: 5}, {0: 3}, 3, 0, "rolled back"),
        ({0: 3}, {0: 5}, 5, 0, "rolled back"),
        ({}, {0: 5}, 5, 0, "rolled back"),
        ({0: 5}, {0: 5}, 0, 0, "emptied"),
        ({0: 5}, {0: 5}, 6, 0, None),
        ({0: 5}, None, 0, 0, "no snapshot of ours"),
        ({0: 5}, None, 3, 0, "no snapshot of ours"),
        ({0: 5}, None, 9, 3, "no snapshot of ours"),
        ({}, None, 3, 0, "no snapshot of ours"),
    ],
)
def test_a_table_whose_property_and_snapshots_differ_is_told_by_what_was_found(upto, newest, records, deletes, word):
    found = check_summary(upto, newest, records=records, deletes=deletes)
    assert (found is None) == (word is None), found
    if word:
        assert word in found


@pytest.mark.parametrize(
    ("upto", "records", "deletes", "rows"),
    [
        ({}, 0, 0, None),
        ({0: 5}, 5, 0, None),
        ({0: 5}, 4, 0, None),
        ({0: 5, 1: 2}, 7, 0, None),
        ({0: 5, 1: 2}, 9, 2, None),
        ({0: 5}, 6, 0, 6),
        ({0: 5, 1: 2}, 10, 2, 8),
        ({}, 1, 0, 1),
    ],
)
def test_rows_that_are_more_than_messages_are_not_ours(upto, records, deletes, rows):
    found = check_surplus(upto, records=records, deletes=deletes)
    assert (found is None) == (rows is None)
    if rows is not None:
        assert f"it has {rows} rows: someone appended to it" in found


@pytest.mark.parametrize("files", [1, 3, 20])
def test_manifests_stay_few_and_a_file_is_listed_anew_a_few_times_only(files):
    manifests, rewritten, commits = [], 0, 3000
    for _ in range(commits):
        entries = [*manifests, files]
        merge = to_merge(entries)
        assert len(merge) != 1
        if merge:
            total = sum(entries[place] for place in merge)
            assert total < 2 * FANOUT * ENTRIES_MAX
            rewritten += total
            entries = [count for place, count in enumerate(entries) if place not in merge] + [total]
        manifests = entries
        assert len(manifests) <= commits * files / ENTRIES_MAX + 3 * FANOUT
    assert sum(manifests) == commits * files
    assert rewritten <= 4 * commits * files


def test_manifests_that_others_left_in_any_order_are_merged_too():
    assert to_merge([600, *[1] * 7, 5000]) == []
    assert to_merge([600, *[1] * 8, 5000]) == list(range(1, 9))
    assert to_merge([]) == []
