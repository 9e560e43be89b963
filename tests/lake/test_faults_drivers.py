"""Real drivers: with tasks that are repeated (F28), two of them at once (F31), and killed at each step (F27)."""

from contextlib import ExitStack
from itertools import pairwise

import pytest
from driver import STEPS

from parts.fault import Driver, appends_of, assert_all, files_of, some, wait_for, wait_until
from parts.pipeline import Pipeline, new_topic, produce, table_of

NO_SPARK = ("register", "claim", "plan")


@pytest.fixture(scope="module")
def pair(lake_home, broker, catalog, tmp_path_factory):
    """Two drivers with Spark, which may be killed by the last test; a task has two attempts."""
    with ExitStack() as stack:
        home = tmp_path_factory.mktemp("pair")
        drivers = [stack.enter_context(Driver(lake_home, broker, home, master="local[2,2]")) for _ in range(2)]
        for driver in drivers:
            driver.begin("ready")
        for driver in drivers:
            driver.answer()
        yield drivers


@pytest.mark.parametrize("faults", ["failing", "doubled"])
def test_f28_a_task_that_runs_twice_leaves_one_file_in_the_table(pair, catalog, broker, tmp_path, count, tell, faults):
    topics = [new_topic(faults), new_topic(faults)]
    ticks = count(2, 25)
    sent = {topic: [] for topic in topics}
    driver = pair[0]
    driver.ask("start", topics=topics, faults=faults, path=str(tmp_path))
    for _ in range(ticks):
        for topic in topics:
            more = some(topic, 50, len(sent[topic]))
            produce(broker, topic, more)
            sent[topic] += more
        assert driver.ask("tick") == {"rows": 100, "files": 2, "failed": {}}
    attempts = list(tmp_path.iterdir())
    assert len(attempts) == 2 * 2 * ticks, "two topics, two tasks, two attempts"
    for topic in topics:
        assert_all(catalog, topic, sent[topic])
        live, there = files_of(catalog, topic)
        assert (len(live), len(set(live)), len(there)) == (ticks, ticks, 2 * ticks), "the others lie beside the table"
    tell("F28", f"{len(attempts)} attempts of {len(attempts) // 2} tasks ({faults}): 0 files twice in a table")


def test_f31_two_drivers_that_take_over_from_each_other_write_every_row_once(
    pair, catalog, broker, tmp_path, count, tell
):
    topic, sent = new_topic("zombie"), some("", 20)
    epochs = count(6, 50)
    produce(broker, topic, sent)
    end = tmp_path / "end"
    for driver in pair:
        driver.begin("race", topic=topic, path=str(end))
    seen = set()
    while len(seen) <= epochs and not any(driver.has_answered for driver in pair):
        before = table_of(catalog, topic).held
        seen.add(before.epoch)
        more = some("", 20, len(sent))
        produce(broker, topic, more)
        sent += more
        wait_until(lambda before=before: table_of(catalog, topic).held != before, pair)
    end.touch()
    answers = [driver.answer() for driver in pair]
    assert not set(answers[0]["epochs"]) & set(answers[1]["epochs"]), "an epoch is one driver's"
    assert_all(catalog, topic, sent)
    appends = appends_of(catalog, topic)
    assert [epoch for epoch, _, _ in appends] == sorted(epoch for epoch, _, _ in appends), "none commits after its end"
    assert all(upto == start for (_, _, upto), (_, start, _) in pairwise(appends))
    owners = [next(n for n, answer in enumerate(answers) if epoch in answer["epochs"]) for epoch, _, _ in appends]
    assert set(owners) == {0, 1}, "both have committed"
    taken = sum(len(answer["epochs"]) for answer in answers)
    tell("F31", f"2 drivers took over {taken} times, {len(appends)} commits, {len(sent)} rows, 0 lost, 0 twice")


def test_f27_a_driver_killed_at_each_step_leaves_nothing_out_and_nothing_twice(
    spark, pair, catalog, lake_home, broker, tmp_path, count, tell
):
    topic, sent = new_topic("killed"), []
    steps = STEPS * 5 if count(0, 1) else ("claim", "job", "committed")
    spare = list(pair)
    for step in steps:
        more = some(topic, 100, len(sent))
        produce(broker, topic, more)
        sent += more
        path = tmp_path / f"at-{len(sent)}-{step}"
        with_spark = step not in NO_SPARK
        with spare.pop() if with_spark and spare else Driver(lake_home, broker, tmp_path) as driver:
            if with_spark and driver not in pair:
                driver.ask("ready")
            driver.begin("start", topics=[topic], hold=step, path=str(path))
            driver.begin("tick")
            wait_for(path, driver)
            driver.kill()
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        assert writer.tick().failed == {}
        (found,) = [one for one in writer._broker.topics() if one.name == topic]
    assert found.offsets.lake_upto == len(sent), "what the last one could not report is reported"
    assert_all(catalog, topic, sent)
    assert len(appends_of(catalog, topic)) == steps.count("committed"), "no one else came to a commit"
    tell("F27", f"{len(steps)} drivers killed at {len(set(steps))} steps: {len(sent)} rows, 0 lost, 0 twice")
