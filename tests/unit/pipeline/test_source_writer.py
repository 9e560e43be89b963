"""How Spark's tasks write rows to a topic: against a broker in this process, without Spark."""

import pickle

import pytest

from ister.config.policies import CompletePolicies
from ister.pipeline.source.offsets import TopicChangedError
from ister.pipeline.source.options import WriteOptions
from ister.pipeline.source.writer import (
    CALL_S,
    MESSAGES_IN_FLIGHT,
    MessageRow,
    Pending,
    Sender,
    Sent,
    StoredBelowLevelError,
    Target,
    TopicBatchWriter,
    TopicStreamWriter,
    find_targets,
    find_targets_now,
)
from parts.served import WAIT_S, T, serving


def rows(count, at=None, then=None):
    """Give so many rows; in front of row `at` something happens."""
    for number in range(count):
        if number == at:
            then()
        yield MessageRow(b"%d" % number, None, {}, None)


def sender(served, level_s=0.05):
    return Sender(served.options(), find_targets(served.options()), 0, level_s)


def sent(by, given):
    try:
        return by.send_all(given)
    finally:
        by.close()


def lake(timeout_ms=1):
    return {"policies": CompletePolicies(ack_level="lake", ack_timeout_ms=timeout_ms)}


def test_a_topic_that_does_not_exist_is_created_by_the_first_row(tmp_path):
    with serving(tmp_path) as served:
        assert find_targets(served.options()) == {}
        found = sent(sender(served), rows(5))
        assert (found.messages, found.generations, found.pending, found.unsent) == (5, {T: 1}, {}, 0)
        assert served.broker.topics[T].next_offset == 5
        assert find_targets(served.options()) == {T: Target(1)}


def test_partitions_are_found_in_their_order_with_their_generations(tmp_path):
    with serving(tmp_path, policies=CompletePolicies(ack_timeout_ms=100_000)) as served:
        for number in (10, 2, 0):
            served.create(f"{T}-part-{number}")
        assert list(find_targets(served.options()).items()) == [
            (f"{T}-part-{number}", Target(1, 100 + CALL_S / 2)) for number in (0, 2, 10)
        ], "a call takes longer than the broker waits for a level"


@pytest.mark.parametrize("again", [False, True], ids=["gone", "created_again"])
@pytest.mark.parametrize("existed", [False, True], ids=["new", "old"])
def test_a_topic_that_is_deleted_while_rows_are_written_fails_the_task_and_is_not_created(tmp_path, again, existed):
    """M2."""
    with serving(tmp_path) as served:
        if existed:
            served.create()

        def change():
            served.delete()
            if again:
                served.create()

        with pytest.raises(TopicChangedError, match=f"{T} was deleted while rows were written to it; what was written"):
            sent(sender(served), rows(3 * MESSAGES_IN_FLIGHT, 2 * MESSAGES_IN_FLIGHT, change))
        assert {name: topic.next_offset for name, topic in served.broker.topics.items()} == ({T: 0} if again else {})


def test_a_task_that_spark_repeats_after_a_deletion_does_not_create_the_topic(tmp_path):
    """M2."""
    with serving(tmp_path) as served:
        served.create()
        targets = find_targets(served.options())
        served.delete()
        with pytest.raises(TopicChangedError, match="was deleted while rows were written"):
            sent(Sender(served.options(), targets, 0, 0), rows(1))
        assert served.broker.topics == {}


def test_a_stream_creates_its_topic_in_its_first_batch_alone(tmp_path):
    """M2."""
    with serving(tmp_path) as served:
        options = served.options()
        later = Sender(options, {}, 0, None, may_create=False)
        assert sent(later, rows(0)).messages == 0
        with pytest.raises(
            TopicChangedError, match=f"{T} does not exist; a stream creates its topic in its first batch only"
        ):
            sent(Sender(options, {}, 0, None, may_create=False), rows(1))
        assert served.broker.topics == {}
        TopicStreamWriter(options, {}).commit([Sent(0)], 1)
        assert served.broker.topics == {}
        TopicStreamWriter(options, {}).commit([Sent(0)], 0)
        assert list(served.broker.topics) == [T], "a first batch without rows"
        TopicStreamWriter(options, {}).commit([Sent(0)], 0)
        found = sent(Sender(options, find_targets(options), 0, None, may_create=False), rows(2))
        assert (found.messages, found.generations) == (2, {T: 1})


def test_tasks_that_wrote_to_different_generations_are_not_committed():
    """M2."""
    options = WriteOptions(T, "http://127.0.0.1:1")
    for commit in (
        TopicBatchWriter(options, {}).commit,
        lambda messages: TopicStreamWriter(options, {}).commit(messages, 0),
    ):
        commit([Sent(3, {T: 1}), Sent(2, {T: 1}), Sent(0), None])
        with pytest.raises(TopicChangedError, match="was deleted and created again while rows were written"):
            commit([Sent(3, {T: 1}), Sent(2, {T: 2})])


def test_rows_that_are_stored_below_their_level_are_not_sent_again_and_fail_the_job_not_the_task(tmp_path):
    """M3."""
    with serving(tmp_path, **lake()) as served:
        found = pickle.loads(pickle.dumps(sent(sender(served), rows(3))))
        assert (found.messages, found.pending, found.unsent) == (3, {T: Pending("lake", 3)}, 0)
        assert served.broker.topics[T].next_offset == 3
        with pytest.raises(
            StoredBelowLevelError,
            match=f"{T} is stored below offset 3, not yet in the table: 3 rows are stored, do not write them again, and all",
        ):
            TopicBatchWriter(served.options(), {}).commit([found, Sent(0)])


def test_a_task_that_waited_for_a_level_in_vain_sends_no_more_rows_and_counts_them(tmp_path):
    """M3."""
    with serving(tmp_path, **lake()) as served:
        found = sent(sender(served), rows(MESSAGES_IN_FLIGHT + 50))
        assert (found.messages, found.unsent) == (MESSAGES_IN_FLIGHT, 50)
        assert served.broker.topics[T].next_offset == MESSAGES_IN_FLIGHT
        with pytest.raises(
            StoredBelowLevelError, match="256 rows are stored, do not write them again, and 50 rows were not"
        ):
            TopicBatchWriter(served.options(), {}).commit([found])


@pytest.mark.parametrize("by", ["pipeline", "policy"])
@pytest.mark.parametrize("level_s", [WAIT_S, None], ids=["batch", "stream"])
def test_a_level_that_is_reached_late_is_waited_for(tmp_path, by, level_s, monkeypatch):
    """M3."""
    with serving(tmp_path, **lake()) as served:
        waits = []

        async def reach():
            topic, pipelines = served.broker.topics[T], served.broker.pipelines
            if by == "policy":
                topic.set_policies(CompletePolicies(ack_level="fsync"))
            else:
                epoch = await pipelines.register("p")
                await pipelines.report(topic.name, topic.generation, epoch, topic.next_offset)

        def wait(seconds):
            waits.append(seconds)
            served.run(reach())

        monkeypatch.setattr("ister.pipeline.source.writer.time.sleep", wait)
        found = sent(sender(served, level_s), rows(2 * MESSAGES_IN_FLIGHT))
        assert waits
        assert (found.messages, found.pending, found.unsent) == (2 * MESSAGES_IN_FLIGHT, {}, 0)
        assert served.broker.topics[T].next_offset == 2 * MESSAGES_IN_FLIGHT


def test_a_topic_that_is_deleted_while_its_level_is_waited_for_fails_the_task(tmp_path, monkeypatch):
    """M2, M3."""
    with serving(tmp_path, **lake()) as served:
        monkeypatch.setattr("ister.pipeline.source.writer.time.sleep", lambda _: served.delete())
        with pytest.raises(TopicChangedError):
            sent(sender(served, level_s=None), rows(3))


def test_a_commit_of_a_stream_does_not_need_the_broker():
    """Spark makes a writer for every commit; what is stored must not be sent again because the broker went away."""
    options = WriteOptions(T, "http://127.0.0.1:1")
    assert find_targets_now(options) is None
    TopicStreamWriter(options, None).commit([Sent(1, {T: 1})], 7)
