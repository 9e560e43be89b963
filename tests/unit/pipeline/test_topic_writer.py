"""What a tick takes of which topics, and when one that failed is taken again; without Spark."""

from contextlib import contextmanager

import pytest

from ister.client.storage import BrokerUnavailableError
from ister.core.errors import FencedError
from ister.core.names import TopicName
from ister.core.tiers.splits import SPLIT_BYTES
from ister.lake.errors import CommitUnknownError, LakeUnavailableError
from ister.pipeline.job import JobFailedError, SparkGoneError, is_alive
from ister.pipeline.loop import drain
from ister.pipeline.pacing import MICRO_BATCH_BYTES
from ister.pipeline.task import Verdict
from ister.pipeline.topic_writer import SEEN_MAX, TopicProgress
from parts.writer import SPLIT_ROWS, FakeBroker, FakeLake, FakeWriter

A, B = "/default/a", "/default/b"


@contextmanager
def writing(lake=None, settings=None, **rows):
    writer = FakeWriter(FakeBroker(**rows), lake or FakeLake(), **(settings or {}))
    try:
        writer.start()
        yield writer
    finally:
        writer.close()


def taken(writer):
    """Return how many rows of each topic the last job had."""
    found = {}
    for work in writer.jobs[-1]:
        rows = sum(split.stop - split.start for split in work.splits)
        found[work.topic] = found.get(work.topic, 0) + rows
    return found


# --- who is taken -----------------------------------------------------------------------------------------------------


def test_a_topic_that_fails_is_tried_again_later_and_later_and_a_look_does_not_forget_it():
    with writing(a=10, b=10) as writer:
        writer.verdicts[A] = Verdict.CORRUPT
        tick = writer.tick()
        assert (tick.rows, list(tick.failed)) == (10, [A])
        waits = []
        for _ in range(9):
            writer.refresh()
            assert writer.topics[A].error.startswith("corrupt: ")
            due_s = writer.topics[A].failure.due_s
            waits.append(due_s - writer.clock.s)
            writer.clock.s = due_s - 0.01
            assert list(writer.tick().failed) == [A]
            assert writer.jobs[-1] == [], "nothing is written for it before"
            writer.clock.s = due_s
            assert list(writer.tick().failed) == [A]
            assert taken(writer) == {A: 10}
        assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        writer.verdicts.clear()
        writer.clock.s += 60
        tick = writer.tick()
        assert (tick.rows, tick.failed, writer.topics[A].failure) == (10, {}, None)


def test_what_was_planned_and_is_gone_is_planned_again_at_the_next_tick_but_not_for_ever():
    with writing(a=10) as writer:
        writer.verdicts[A] = Verdict.GONE
        for _ in range(4):
            writer.tick()
            assert taken(writer) == {A: 10}
        writer.tick()
        assert writer.jobs[-1] == []


def test_a_failing_topic_has_nothing_to_say_about_when_the_next_tick_is():
    with writing(a=10, b=10) as writer:
        writer.verdicts[A] = Verdict.FAILED
        writer.tick()
        writer._broker.rows = {A: 1_000_000, B: 10}
        writer.refresh()
        assert [one.name for one in writer.topics.values() if not one.error] == [B]


def test_a_commit_that_landed_without_an_answer_leaves_no_failure_behind():
    with writing(a=10) as writer:
        table = writer._lake.of("a")
        table.trouble = CommitUnknownError("default.a", "no answer")
        assert list(writer.tick().failed) == [A]
        table.held = table.held._replace(upto={0: 10})
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (0, {})


def test_rows_that_did_not_decode_are_counted_when_they_are_committed():
    with writing(a=10) as writer:
        writer._undecoded = lambda progress, file: 3
        writer._lake.of("a").trouble = CommitUnknownError("default.a", "no answer")
        writer.tick()
        assert writer.topics[A].undecoded == 0
        writer.clock.s += 60
        writer.tick()
        assert writer.topics[A].undecoded == 3


def test_the_tries_of_a_tick_are_told_whether_they_landed_or_not():
    with writing(a=10, b=10) as writer:
        table = writer._lake.of("a")
        table.trouble = CommitUnknownError("default.a", "no answer")

        def conflicting(files, spans, commit=table.commit_add_files):
            table.conflicts += 2
            table.unknowns += 1
            commit(files, spans)

        table.commit_add_files = conflicting
        tick = writer.tick()
        assert tick.commits == 1
        assert sorted((one.conflicts, one.unknowns) for one in tick.attempts) == [(0, 0), (2, 1)]
        assert writer.tick().attempts == []


def test_how_large_messages_are_is_not_known_before_the_first_tick():
    with writing(a=10) as writer:
        assert writer.topics[A].waiting == (10, None, False)
        writer.tick()
        writer._broker.rows[A] = 30
        writer.refresh()
        assert writer.topics[A].waiting == (20, 20 * 1024, False)


class Away:
    """Schemas of a broker that does not answer; `known` are the tables that need no answer."""

    def __init__(self, *known):
        self.known = known
        self.asked = []

    def is_typed(self, latest, table):
        return table.identifier[-1] in self.known

    def typed(self, latest, table):
        if not self.is_typed(latest, table):
            self.asked.append(table.identifier[-1])
            raise BrokerUnavailableError("it does not answer in time")


def test_a_broker_that_does_not_tell_a_schema_in_time_is_asked_once_a_tick_and_only_who_needs_it_waits():
    with writing(a=1, b=1, c=1, d=1) as writer:
        listed = writer._broker.topics

        def bound():
            topics = listed()
            for topic in topics[1:]:
                topic.schema.schema_id, topic.schema.latest_version = 7, 1
            return topics

        writer._broker.topics = bound
        writer._schemas = Away("d")
        tick = writer.tick()
        assert (tick.rows, set(tick.failed)) == (2, {B, "/default/c"})
        assert writer._schemas.asked == ["b"]


# --- how much is taken ------------------------------------------------------------------------------------------------


def test_a_backlog_gets_what_topics_with_little_leave_of_a_tick():
    small = {f"s{number}": 5 for number in range(50)}
    with writing(large=100 * SPLIT_ROWS, **small) as writer:
        writer.tick()
        rows = taken(writer)
        assert {rows[f"/default/{name}"] for name in small} == {5}
        assert rows["/default/large"] == (MICRO_BATCH_BYTES // SPLIT_BYTES - 1) * SPLIT_ROWS, (
            "all but what is less than a split"
        )


def test_topics_of_one_tick_share_the_cores_so_that_none_gets_smaller_files_than_it_needs():
    settings = {"cores": 8, "target_file_bytes": 4 * SPLIT_BYTES}
    with writing(settings=settings, **{f"t{number}": 4 * SPLIT_ROWS for number in range(8)}) as writer:
        assert writer.tick().files == 8
    with writing(settings=settings, alone=8 * SPLIT_ROWS) as writer:
        assert writer.tick().files == 8


# --- jobs that fail ---------------------------------------------------------------------------------------------------


def test_a_job_that_failed_is_tried_again_with_less_and_less_and_then_with_all():
    with writing(a=100 * SPLIT_ROWS) as writer:
        writer.trouble = JobFailedError("a task was lost")
        rows = []
        for _ in range(8):
            with pytest.raises(JobFailedError):
                writer.tick()
            rows.append(taken(writer)[A] // SPLIT_ROWS)
        assert rows == [64, 32, 16, 8, 4, 2, 1, 1]
        writer.trouble = None
        assert [writer.tick().rows // SPLIT_ROWS for _ in range(4)] == [1, 2, 4, 8]


def topics_of(jobs):
    return [sorted({work.topic.rsplit("/", 1)[1] for work in works}) for works in jobs]


def test_a_topic_whose_messages_end_workers_is_found_by_halves_and_the_others_are_carried():
    """K3."""
    with writing(**dict.fromkeys("abcdefgh", 10)) as writer:
        writer.killers = {"/default/c"}
        tick = writer.tick()
        assert (tick.rows, tick.commits, list(tick.failed)) == (70, 7, ["/default/c"])
        assert topics_of(writer.jobs) == [
            list("abcdefgh"),
            list("abcd"),
            ["a", "b"],
            ["c", "d"],
            ["c"],
            ["d"],
            list("efgh"),
        ]
        assert "a worker was killed" in tick.failed["/default/c"]
        writer.jobs.clear()
        for name in "abd":
            writer._broker.rows[f"/default/{name}"] = 20
        writer.clock.s += 100
        assert writer.tick().rows == 30
        assert topics_of(writer.jobs) == [["a", "b", "d"], ["c"]], "it has a job of its own until it is carried"
        writer.killers.clear()
        writer.clock.s += 100
        tick = writer.tick()
        assert (tick.rows, tick.failed) == (10, {})
        assert not writer.topics["/default/c"].runs_apart


def test_a_topic_that_has_its_own_job_gets_one_split_of_its_backlog():
    """K3."""
    with writing(a=10, b=5 * SPLIT_ROWS) as writer:
        writer.killers = {B}
        assert list(writer.tick().failed) == [B]
        writer.clock.s += 100
        writer.tick()
        assert taken(writer) == {B: SPLIT_ROWS}


def test_a_spark_that_runs_no_job_at_all_stops_no_topic():
    """K3."""
    with writing(a=10, b=10) as writer:
        writer.killers, writer.can_run = {A, B}, False
        with pytest.raises(JobFailedError):
            writer.tick()
        assert len(writer.jobs) == 1
        assert not writer.topics[A].error


class Misfits:
    """Schemas of a table that can have one more column, or none."""

    def __init__(self, can_grow):
        self.can_grow = can_grow
        self.added = []

    def is_typed(self, latest, table):
        return True

    def typed(self, latest, table):
        return None

    def add_beside(self, table, misfits):
        self.added += misfits
        return self.can_grow


@pytest.mark.parametrize("can_grow", [True, False])
def test_messages_with_values_that_do_not_fit_are_decoded_once_more_if_their_table_has_new_columns(can_grow):
    """K4."""
    with writing(a=10, b=10) as writer:
        writer._schemas = Misfits(can_grow)
        writer.misfits = {A: [("count",)]}
        tick = writer.tick()
        assert tick.rows == (10 if can_grow else 20)
        assert tick.failed == {}
        assert writer._schemas.added == [("count",)]
        writer.misfits = {}
        assert writer.tick().rows == (10 if can_grow else 0)


def test_a_table_whose_columns_cannot_be_changed_now_stops_its_topic_only():
    """K4."""

    def away(table, misfits):
        raise LakeUnavailableError("t", "change the columns of", "the catalog is away")

    with writing(a=10, b=10) as writer:
        writer._schemas = Misfits(can_grow=True)
        writer._schemas.add_beside = away
        writer.misfits = {A: [("count",)]}
        tick = writer.tick()
        assert (tick.rows, list(tick.failed)) == (10, [A])


def test_a_spark_that_cannot_say_whether_it_lives_does_not():
    assert not is_alive(None)
    assert issubclass(SparkGoneError, Exception)


def test_a_topic_that_is_stopped_for_a_day_takes_no_more_memory_and_its_lag_is_known():
    """K8."""
    progress = TopicProgress(A, None)
    for second in range(86_400):
        progress.saw(100 * (second + 1), float(second))
    assert len(progress.seen) <= SEEN_MAX
    assert progress.lag_s(86_400.0) == 86_400.0
    progress.upto = 100 * 43_200
    assert progress.lag_s(86_400.0) == pytest.approx(43_200, abs=200)
    progress.upto = progress.next
    assert progress.lag_s(86_400.0) == 0.0


def test_a_topic_that_is_gone_is_forgotten():
    """K8."""
    with writing(a=10, b=10) as writer:
        writer.tick()
        identifier = writer._lake.of("a").identifier
        writer._schemas._met[identifier] = {(7, 1)}
        writer._schemas._typed[identifier] = (((7, 1), 0, 0), None)
        del writer._broker.rows[A]
        writer.refresh()
        assert (writer._schemas._met, writer._schemas._typed, list(writer._reported)) == ({}, {}, [B])


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_tables_of_a_higher_epoch_than_metadata_knows_are_taken_over_by_whoever_is_the_owner():
    lake = FakeLake()
    lake.of("a").claim(7)
    lake.of("b").claim(40)
    with writing(lake, a=10, b=10, c=10) as writer:
        assert writer.epoch == writer._broker.epoch == 41
        assert {table.held.epoch for table in lake.tables.values()} == {41}
        assert writer.tick().rows == 30


def test_a_newer_owner_s_tables_are_left_to_it():
    lake, broker = FakeLake(), FakeBroker(a=10)
    writer = FakeWriter(broker, lake)
    register = broker.register

    def overtaken(name, **epochs):
        mine = register(name, **epochs)
        if not epochs:
            lake.of("a").claim(register("a newer one"))
        return mine

    broker.register = overtaken
    with pytest.raises(FencedError, match="another pipeline is the owner"):
        writer.start()
    writer.close()
    assert lake.of("a").held.epoch == broker.epoch == 2


def test_a_table_that_was_claimed_after_the_start_stops_the_pipeline():
    with writing(a=10) as writer:
        later = writer._lake.of("b")
        later.claim(9)
        writer._broker.rows[B] = 5
        writer._broker.generations[B] = 1
        with pytest.raises(FencedError, match="claimed with epoch 9"):
            writer.tick()


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_made_again_while_all_is_carried_once_is_another_one():
    with writing(a=100) as writer:
        broker, ticks = writer._broker, []

        def told(tick):
            ticks.append(tick.rows)
            broker.rows[A], broker.generations[A] = 3, 2
            assert len(ticks) < 10

        drain(writer, told)
        assert ticks == [100]
        assert writer._lake.table(TopicName.parse(A), 1).upto(0) == 100


def test_what_does_not_move_is_not_waited_for():
    with writing(a=100, b=100) as writer:
        spans = writer._broker.splits

        def none_of_a(topic, *place, **how):
            return spans(topic, *place, **how | ({"splits_max": 0} if topic == A else {}))

        writer._broker.splits = none_of_a
        ticks = []
        drain(writer, ticks.append)
        assert [tick.rows for tick in ticks] == [100, 0, 0, 0]


def test_what_fails_does_not_keep_once_from_its_end():
    with writing(a=100, b=200 * SPLIT_ROWS) as writer:
        writer.verdicts[A] = Verdict.FAILED
        ticks = []
        drain(writer, ticks.append)
        assert sum(tick.rows for tick in ticks) == 200 * SPLIT_ROWS
        assert list(ticks[-1].failed) == [A]


def test_a_broker_that_is_away_ends_a_tick_and_nothing_else():
    with writing(a=10) as writer:
        spans, writer._broker.splits = writer._broker.splits, lambda *_, **__: raise_(BrokerUnavailableError("away"))
        with pytest.raises(BrokerUnavailableError):
            writer.tick()
        writer._broker.splits = spans
        assert (writer.topics[A].error, writer.tick().rows) == ("", 10)


def raise_(error):
    raise error
