"""When the pipeline ticks, and how what waits is shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.pipeline.pacing import Pace, Waiting, cores_for, deal, runs, seconds_left, shares, splits_each

PACE = Pace(flush_s=5.0, least_s=1.0, rows=1000, bytes=1 << 20)
SIZES = st.lists(st.integers(1, 1 << 30), max_size=60)


@pytest.mark.parametrize(
    ("waiting", "since_s", "left_s"),
    [
        ([], 0.0, 5.0),
        ([Waiting(1, 10)], 2.0, 3.0),
        ([Waiting(1, 10)], 9.0, 0.0),
        ([Waiting(1, 10), Waiting(999, 10)], 0.25, 0.75),
        ([Waiting(999, 10)], 0.25, 4.75),
        ([Waiting(1, 1 << 20)], 0.25, 0.75),
        ([Waiting(1, 10, wanted=True)], 0.25, 0.75),
        ([Waiting(1, 10, wanted=True)], 1.0, 0.0),
        ([Waiting(5000, 10)], 3.0, 0.0),
        ([Waiting(1, None)], 0.25, 0.75),
        ([Waiting(0, None)], 0.25, 4.75),
    ],
)
def test_a_tick_is_due_by_the_clock_or_early_when_much_waits_and_never_too_early(waiting, since_s, left_s):
    assert seconds_left(PACE, waiting, since_s) == pytest.approx(left_s)


def test_a_flush_interval_below_the_least_does_not_commit_more_often():
    assert seconds_left(PACE._replace(flush_s=0.1), [Waiting(1, 1)], 0.5) == pytest.approx(0.5)


@given(wanted=st.lists(st.integers(0, 1 << 40), max_size=300), budget=st.integers(0, 1 << 30))
def test_a_budget_is_shared_out_whole_and_nobody_starves(wanted, budget):
    given = shares(wanted, budget)
    assert sum(given) == min(budget, sum(wanted))
    for share, want in zip(given, wanted, strict=True):
        assert min(want, budget // len(wanted)) <= share <= want


@given(wanted=st.lists(st.integers(0, 1 << 40), min_size=2, max_size=50), budget=st.integers(0, 1 << 30))
def test_who_wants_more_never_gets_less_and_who_gets_less_than_he_wants_gets_as_much_as_anyone(wanted, budget):
    given = shares(wanted, budget)
    most = max(given)
    for share, want in zip(given, wanted, strict=True):
        assert share == want or share >= most - 1


def test_a_backlog_beside_many_topics_with_a_trickle_gets_nearly_all_of_a_tick():
    given = shares([1000] * 99 + [100 << 30], 1 << 30)
    assert given == [1000] * 99 + [(1 << 30) - 99_000]


@given(sizes=st.lists(st.lists(st.integers(1, 16 << 20), max_size=64), max_size=40), budget=st.integers(0, 1 << 30))
def test_a_tick_takes_a_split_of_every_topic_and_more_only_within_the_budget(sizes, budget):
    taken = splits_each(sizes, budget)
    assert len(taken) == len(sizes)
    for count, each in zip(taken, sizes, strict=True):
        assert (count >= 1) == bool(each)
    more = [sum(each[:count]) for count, each in zip(taken, sizes, strict=True) if count > 1]
    assert sum(more) <= budget


@given(parts=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=200), cores=st.integers(1, 64))
def test_cores_are_shared_by_bytes_and_every_topic_has_one(parts, cores):
    given = [cores_for(part, sum(parts), cores) for part in parts]
    assert min(given) >= 1
    assert sum(given) <= cores + len(parts)
    assert cores_for(7, 7, cores) == cores


@given(sizes=SIZES, target=st.integers(1, 1 << 30), cores=st.integers(1, 64))
def test_runs_cover_every_split_once_and_in_order(sizes, target, cores):
    found = runs(sizes, target, cores)
    assert [index for run in found for index in run] == list(range(len(sizes)))
    assert all(len(run) for run in found)


@given(sizes=SIZES, target=st.integers(1, 1 << 30), cores=st.integers(1, 64))
def test_a_run_is_larger_than_a_file_should_be_only_by_half_a_split(sizes, target, cores):
    for run in runs(sizes, target, cores):
        assert len(run) == 1 or sum(sizes[index] for index in run) <= target + sizes[run[-1]] / 2


def test_a_backlog_goes_out_in_files_of_the_target_size_and_a_trickle_in_one_small_file():
    assert [len(run) for run in runs([16] * 32, 128, 2)] == [8, 8, 8, 8]
    assert runs([3], 128, 2) == [range(1)]


def test_a_backlog_of_one_file_is_shared_by_the_cores():
    assert [len(run) for run in runs([16] * 4, 128, 2)] == [2, 2]


@given(sizes=st.dictionaries(st.integers(), st.integers(0, 1 << 30), max_size=60), hands=st.integers(1, 16))
def test_every_work_is_dealt_once_and_no_task_is_empty(sizes, hands):
    tasks = deal(sizes, hands)
    assert sorted(work for task in tasks for work in task) == sorted(sizes)
    assert len(tasks) == min(hands, len(sizes))
    assert all(tasks)


@given(sizes=st.dictionaries(st.integers(), st.integers(1, 1000), min_size=1, max_size=60), hands=st.integers(1, 16))
def test_no_task_has_more_than_its_share_and_one_work(sizes, hands):
    most = max(sum(sizes[work] for work in task) for task in deal(sizes, hands))
    assert most <= sum(sizes.values()) / hands + max(sizes.values())
