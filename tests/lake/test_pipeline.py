"""From a running broker to a table, on real Spark: what was sent is there once, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ister.core.errors import FencedError
from ister.pipeline import job as writing
from ister.pipeline.job import JobFailedError, SparkGoneError, can_run, is_alive
from ister.pipeline.loop import drain
from ister.pipeline.task import write_splits
from ister.rpc import ister_v1_pb2 as pb
from parts.pipeline import Pipeline, assert_exact, new_topic, produce, rows_of, table_of

WAIT_S = 60.0


def test_what_was_sent_is_in_the_table_once_and_equal(spark, catalog, broker):
    topic = new_topic()
    produce(broker, topic, [b"payload %d" % n for n in range(500)], attributes={"color": "blue"})
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        tick = writer.tick()
        assert (tick.rows, tick.files, tick.commits, tick.failed) == (500, 1, 1, {})
        assert_exact(catalog, topic, 500)
        rows = rows_of(catalog, topic)
        assert sorted(rows["payload"].to_pylist()) == sorted(b"payload %d" % n for n in range(500))
        assert rows["attributes"][0].as_py() == [("color", "blue")]
        assert writer.tick().rows == 0
        produce(broker, topic, [b"more"] * 7)
        assert writer.tick().rows == 7
    assert_exact(catalog, topic, 507)


def test_a_new_writer_goes_on_from_nothing_but_the_table_and_the_old_one_is_refused(spark, catalog, broker):
    topic = new_topic()
    produce(broker, topic, [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [topic]) as old:
        old.tick()
        produce(broker, topic, [b"y"] * 10)
        with Pipeline(spark, broker, catalog, [topic]) as new:
            assert new.tick().rows == 10
            produce(broker, topic, [b"z"] * 10)
            with pytest.raises(FencedError):
                old.tick()
            assert new.tick().rows == 10
    assert_exact(catalog, topic, 30)


def test_topics_that_appear_are_taken_those_that_are_opted_out_are_not(spark, catalog, broker):
    word = new_topic("opted")
    with Pipeline(spark, broker, catalog, [f"{word}*"]) as writer:
        assert writer.tick().rows == 0
        produce(broker, f"{word}-in", [b"x"] * 3)
        produce(broker, f"{word}-out", [b"x"] * 3)
        asyncio.run(set_policy(broker, f"{word}-out", lake=False))
        assert writer.tick().rows == 3
        assert sorted(writer.topics) == [f"{word}-in"]
        asyncio.run(set_policy(broker, f"{word}-out", lake=True))
        assert writer.tick().rows == 3
    assert_exact(catalog, f"{word}-out", 3)


def test_partitions_share_the_table_of_their_base(spark, catalog, broker):
    base = new_topic("parts")
    for number in range(3):
        produce(broker, f"{base}-part-{number}", [b"%d" % n for n in range(10 * (number + 1))])
    with Pipeline(spark, broker, catalog, [f"{base}*"]) as writer:
        tick = writer.tick()
        assert (tick.rows, tick.commits) == (60, 1)
    table = table_of(catalog, base)
    assert [table.upto(number) for number in range(3)] == [10, 20, 30]
    rows = rows_of(catalog, base)
    assert rows["topic_offset"].to_pylist() == [*range(10), *range(20), *range(30)]
    assert rows["partition"].to_pylist() == [0] * 10 + [1] * 20 + [2] * 30


def test_a_backlog_larger_than_a_file_goes_out_in_several_and_all_of_it(spark, catalog, broker):
    topic = new_topic("backlog")
    produce(broker, topic, [bytes(100_000)] * 400)
    with Pipeline(spark, broker, catalog, [topic], target_file_bytes=16 << 20) as writer:
        tick = writer.tick()
        assert (tick.rows, tick.commits) == (400, 1)
        assert tick.files >= 3
    assert_exact(catalog, topic, 400)


def test_topics_of_one_tick_share_its_cores_and_get_no_smaller_files_for_it(spark, catalog, broker):
    topics = [new_topic("shared"), new_topic("shared")]
    for topic in topics:
        produce(broker, topic, [bytes(100_000)] * 400)
    with Pipeline(spark, broker, catalog, topics, cores=2) as writer:
        tick = writer.tick()
        assert (tick.rows, tick.files, tick.commits) == (800, 2, 2)


def in_which_pool(path):
    """Return tasks that note the pool that they run in."""

    def run(job, batches):
        from pyspark import TaskContext

        Path(path).write_text(TaskContext.get().getLocalProperty("spark.scheduler.pool") or "")
        yield from write_splits(job, batches)

    return run


def test_a_tick_runs_in_the_ticks_pool(spark, catalog, broker, tmp_path, monkeypatch):
    topic = new_topic("pool")
    produce(broker, topic, [b"x"])
    monkeypatch.setattr(writing, "write_splits", in_which_pool(tmp_path / "pool"))
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        assert writer.tick().rows == 1
    assert (tmp_path / "pool").read_text() == "ticks"


def lost():
    """Return tasks that end their worker, which no code of ours can catch."""

    def run(job, batches):
        os._exit(9)

    return run


def test_a_job_that_failed_ends_its_tick_and_the_next_one_carries_all(spark, catalog, broker, monkeypatch):
    topic = new_topic("lost")
    produce(broker, topic, [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writing, "write_splits", lost())
            with pytest.raises(JobFailedError, match="Python worker exited unexpectedly"):
                writer.tick()
        assert is_alive(spark)
        assert can_run(spark, 2)
        assert writer.tick().rows == 10
    assert_exact(catalog, topic, 10)


def ends_workers_of(topic):
    """Return tasks that end their worker when they have messages of a topic."""

    def run(job, batches):
        batches = list(batches)
        if any(topic in batch.column("topic").to_pylist() for batch in batches):
            os._exit(9)
        yield from write_splits(job, iter(batches))

    return run


def test_a_topic_whose_messages_end_workers_stops_no_other(spark, catalog, broker, monkeypatch):
    """K3."""
    killer, *others = new_topic("killer"), new_topic("beside"), new_topic("besides")
    for topic in (killer, *others):
        produce(broker, topic, [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [killer, *others]) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writing, "write_splits", ends_workers_of(killer))
            tick = writer.tick()
        assert tick.rows == 20
        assert list(tick.failed) == [killer]
        assert "Python worker exited unexpectedly" in tick.failed[killer]
    for topic in others:
        assert_exact(catalog, topic, 10)


SHOWS_SETTINGS = """
import sys
from pathlib import Path
from ister.config import load
from ister.pipeline.session import open_session

conf = open_session(load(None, Path(sys.argv[1]), {}).config, master="local[1]").sparkContext.getConf()
print(conf.get("spark.executor.memory"), conf.get("spark.scheduler.mode"))
"""


def test_spark_s_own_settings_come_from_its_own_file_and_ours_count_for_more(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 777m\nspark.scheduler.mode FIFO\n")
    said = subprocess.run(
        [sys.executable, "-c", SHOWS_SETTINGS, str(tmp_path / "data")],
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=True,
    )
    assert said.stdout.split() == ["777m", "FAIR"]


class Stopped:
    """A session whose Java has ended: whatever is asked of it fails, as py4j fails then."""

    def __getattr__(self, name):
        raise ConnectionRefusedError("nobody listens")


def test_a_job_on_a_spark_that_is_gone_says_so():
    with pytest.raises(SparkGoneError, match="start the pipeline again"):
        can_run(Stopped(), 1)


def test_metadata_that_is_older_than_the_tables_fences_nobody(spark, catalog, broker):
    topic = new_topic("restored")
    produce(broker, topic, [b"x"] * 10)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        writer.tick()
        epoch = writer.epoch
    table_of(catalog, topic).claim(epoch + 1000)
    produce(broker, topic, [b"y"] * 10)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        assert writer.epoch == epoch + 1001
        assert writer.tick().rows == 10
        (found,) = [one for one in writer._broker.topics() if one.name == topic]
    assert found.offsets.lake_upto == 20
    assert_exact(catalog, topic, 20)


def test_a_topic_that_is_made_again_gets_a_table_of_its_own(spark, catalog, broker):
    topic = new_topic("again")
    produce(broker, topic, [b"old"] * 5)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        writer.tick()
        asyncio.run(delete_topic(broker, topic))
        produce(broker, topic, [b"new"] * 3)
        assert writer.tick().rows == 3
    assert_exact(catalog, topic, 5, generation=1)
    assert_exact(catalog, topic, 3, generation=2)
    assert rows_of(catalog, topic, 2)["payload"].to_pylist() == [b"new"] * 3


def test_level_lake_answers_once_the_message_is_in_the_table(spark, catalog, broker):
    topic = new_topic("level")
    produce(broker, topic, [b"first"])
    asyncio.run(set_policy(broker, topic, ack_level="lake"))
    with Pipeline(spark, broker, catalog, [topic]) as writer:

        async def send_and_tick():
            async with broker.raw() as raw:
                producer = await raw.create_producer(topic)
                sending = asyncio.ensure_future(raw.send(topic, producer, b"waits"))
                async with asyncio.timeout(WAIT_S):
                    while writer.topics[topic].next < 2:
                        await asyncio.sleep(0.05)  # until the broker has it
                        await asyncio.to_thread(writer.refresh)
                assert not sending.done()
                await asyncio.to_thread(writer.tick)
                await asyncio.wait_for(sending, WAIT_S)

        asyncio.run(send_and_tick())
    assert_exact(catalog, topic, 2)


def test_without_the_token_the_pipeline_reads_objects(spark, catalog, broker):
    topic = new_topic("objects")
    produce(broker, topic, [b"payload %d" % n for n in range(300)])
    with Pipeline(spark, broker, catalog, [topic], token=None) as writer:
        splits = writer._broker.splits(topic, 1, 0, split_bytes=1 << 20, splits_max=10)
        assert not splits, "nothing is uploaded yet, and files are not for us"
        drain(writer, lambda _: None)
        splits = writer._broker.splits(topic, 1, 0, split_bytes=1 << 20, splits_max=10)
        assert splits
        assert all(split.key and not split.path for split in splits)
    assert_exact(catalog, topic, 300)


async def set_policy(broker, topic, **policies):
    async with broker.raw() as raw:
        await raw.set_topic(topic, **policies)


async def delete_topic(broker, topic):
    async with broker.raw() as raw:
        assert (await raw.ask("DeleteTopic", name=topic)).success


def test_the_broker_is_told_how_far_tables_are(spark, catalog, broker):
    topic = new_topic("told")
    produce(broker, topic, [b"x"] * 4)
    with Pipeline(spark, broker, catalog, [topic]) as writer:
        writer.tick()
        (found,) = [one for one in writer._broker.topics() if one.name == topic]
    assert isinstance(found, pb.Topic)
    assert found.offsets.lake_upto == 4
    assert json.loads(found.policies)["lake"] is True
