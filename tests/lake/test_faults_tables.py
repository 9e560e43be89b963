"""What others do to tables while a TopicWriter commits: conflicts (F29), lost answers (F30), maintenance, a roll-back."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from ister.config.catalog import catalog_properties
from ister.config.lake_models import Maintenance
from ister.core.table.maintenance import Procedure
from ister.lake.catalog import CachingSqlCatalog
from ister.pipeline.maintenance import MaintenanceConflictError, Upkeep
from parts.fault import assert_all, files_of, some
from parts.pipeline import Pipeline, new_topic, produce, table_of

HOUR_MS = 3_600_000
DAY_S = 86_400
LATE_MAX = 5
"""How often a procedure may come too late: ticks follow each other here without a pause, and Iceberg tries five times a call."""


class Interrupted(CachingSqlCatalog):
    """A catalog that lets others act in the moment before a commit, and loses answers when told; each once."""

    before = after = None
    away = False

    def once(self, **acts):
        for when, act in acts.items():
            setattr(self, when, act)

    def load_table(self, identifier):
        if self.away:
            raise ConnectionError("the catalog is away")
        return super().load_table(identifier)

    def commit_table(self, table, requirements, updates):
        self._act("before")
        answer = super().commit_table(table, requirements, updates)
        self._act("after")
        return answer

    def _act(self, when):
        act = getattr(self, when)
        setattr(self, when, None)
        if act is not None:
            act()


@pytest.fixture
def interrupted(lake_config):
    name, properties = catalog_properties(lake_config)
    found = Interrupted(name, **properties)
    yield found
    found.close()


def lose():
    raise ConnectionError("the answer is lost")


def refuse():
    raise CommitFailedException("another came first, says who has sent it twice")


def now_ms():
    return time.time_ns() // 1_000_000


def test_f29_a_compaction_in_the_moment_of_a_commit_neither_stops_nor_repeats_it(
    spark, catalog, broker, interrupted, count, tell
):
    topic = new_topic("conflict")
    ticks, compacted = count(6, 50), []
    sent = some(topic, 10)
    produce(broker, topic, sent)

    def compact():
        found = catalog.load_table(table_of(catalog, topic).identifier)
        found.overwrite(found.scan().to_arrow())
        compacted.append(found.name())

    with Pipeline(spark, broker, interrupted, [topic]) as writer:
        writer.tick()
        for _ in range(ticks):
            more = some(topic, 10, len(sent))
            produce(broker, topic, more)
            sent += more
            interrupted.once(before=compact)
            tick = writer.tick()
            assert (tick.rows, tick.commits, tick.failed) == (10, 1, {})
    assert len(compacted) == ticks
    assert_all(catalog, topic, sent)
    tell("F29", f"{ticks} commits of a pipeline, a compaction in between each time: {len(sent)} rows, 0 lost, 0 twice")


def test_f30_a_commit_whose_answer_is_lost_is_made_once_and_keeps_its_files(
    spark, catalog, broker, interrupted, count, tell
):
    topic = new_topic("answer")
    sent = some(topic, 10)
    produce(broker, topic, sent)
    chance = random.Random(30)
    commits, landed, refused, unknown = count(8, 50), 0, 0, 0
    with Pipeline(spark, broker, interrupted, [topic]) as writer:
        writer.tick()
        for _ in range(commits):
            more = some(topic, 10, len(sent))
            produce(broker, topic, more)
            sent += more
            where, gone = chance.choice(["before", "after"]), chance.random() < 0.5
            answer = chance.choice([lose, refuse])

            def act(gone=gone, answer=answer):
                interrupted.away = gone
                answer()

            interrupted.once(**{where: act})
            tick = writer.tick()
            if gone:
                assert "may or may not have the commit" in tick.failed[topic]
                unknown += 1
                tick = writer.tick()
                assert "the catalog is away" in tick.failed[topic]
                interrupted.away = False
                tick = writer.tick()
                assert tick.rows == (0 if where == "after" else 10), "what has landed is not written again"
            else:
                assert tick.rows == 10
            landed += where == "after"
            refused += answer is refuse
            assert tick.failed == {}
            assert table_of(catalog, topic).upto(0) == len(sent)
    assert_all(catalog, topic, sent)
    live, there = files_of(catalog, topic)
    assert len(live) == commits + 1
    assert set(live) <= there
    tell(
        "F30",
        f"{commits} commits, {commits - refused} answers lost and {refused} that said no, {landed} after it had landed, "
        f"{unknown} with the catalog away: 0 rows lost, 0 twice",
    )


def test_maintenance_beside_commits_keeps_every_row_and_removes_only_what_is_nobody_s(
    spark, catalog, broker, count, tell
):
    topic, sent, done, failed, late = new_topic("upkeep"), [], [], [], []
    rounds = count(1, 10)
    ahead = Upkeep(spark, catalog, Maintenance(keep_snapshots=1), lambda: now_ms() + 2 * HOUR_MS)
    upkeep = Upkeep(spark, catalog, Maintenance(), now_ms)
    stop = threading.Event()

    def in_the_end(keeper, name, procedure):
        """Come too late a few times, and no more: who does so tries again, as the next round would."""
        for _ in range(LATE_MAX):
            try:
                return keeper.run(name, procedure)
            except MaintenanceConflictError as error:
                late.append(error)
        return keeper.run(name, procedure)

    def maintain(name):
        try:
            for _ in range(rounds):
                done.append(in_the_end(ahead, name, Procedure.COMPACT).removed)
                done.append(in_the_end(ahead, name, Procedure.EXPIRE).snapshots)
                done.append(upkeep.run(name, Procedure.ORPHANS).removed)
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            stop.set()

    with Pipeline(spark, broker, catalog, [topic]) as writer:

        def carry():
            more = some(topic, 20, len(sent))
            produce(broker, topic, more)
            sent.extend(more)
            tick = writer.tick()
            assert (tick.rows, tick.failed) == (20, {})

        for _ in range(6):
            carry()
        orphan = Path(min(files_of(catalog, topic)[1])).with_name("nobody-s.parquet")
        orphan.write_bytes(b"left behind")
        os.utime(orphan, (time.time() - 2 * DAY_S,) * 2)
        thread = threading.Thread(target=maintain, args=[".".join(table_of(catalog, topic).identifier)])
        thread.start()
        while not stop.is_set():
            carry()
        thread.join()
        carry()
    assert not failed
    assert not orphan.exists()
    assert all(done[0::3])
    assert sum(done[2::3]) == 1
    assert_all(catalog, topic, sent)
    tell(
        "F29",
        f"{len(done)} procedures of Iceberg beside {len(sent) // 20} commits, {len(late)} times too late and tried again: "
        "0 rows lost, 0 twice",
    )


def test_a_table_that_was_rolled_back_stops_its_topic_by_name_and_no_other(spark, catalog, broker):
    rolled, other = new_topic("rolled"), new_topic("other")
    with Pipeline(spark, broker, catalog, [rolled, other]) as writer:
        for _ in range(2):
            for topic in (rolled, other):
                produce(broker, topic, [b"x"] * 5)
            assert writer.tick().rows == 10
        table = catalog.load_table(table_of(catalog, rolled).identifier)
        earlier = table.snapshots()[-2].snapshot_id
        spark.sql(f"CALL ister.system.rollback_to_snapshot('{'.'.join(table.name())}', {earlier})").collect()
        for topic in (rolled, other):
            produce(broker, topic, [b"x"] * 5)
        for writes in (5, 0):
            tick = writer.tick()
            assert (tick.rows, set(tick.failed)) == (writes, {rolled})
            assert "is not as it was left" in tick.failed[rolled]
            assert "ister lake repair" in tick.failed[rolled]
    with Pipeline(spark, broker, catalog, [rolled, other]) as writer:
        assert set(writer.tick().failed) == {rolled}, "a new one sees it as well"
    assert_all(catalog, other, [b"x"] * 15)
