"""Topics as streams, on real Spark and a real broker: every offset once, also over a restart."""

import asyncio
import json
import time

import pytest
from pyspark.errors import StreamingQueryException

from parts.pipeline import new_topic, produce
from parts.source import arrow, given, read, register

DEADLINE_S = 120


@pytest.fixture
def source(spark, monkeypatch):
    register(spark, monkeypatch, token=True)
    return spark


def delete(broker, topic):
    async def ask():
        async with broker.raw() as raw:
            await raw.ask("DeleteTopic", name=topic)

    asyncio.run(ask())


class Sink:
    """A stream into a directory: what each batch had, which a batch that is repeated replaces."""

    def __init__(self, spark, broker, topic, directory, **options):
        self.spark, self.broker, self.topic, self.options = spark, broker, topic, options
        self.checkpoint, self.rows = str(directory / "checkpoint"), directory / "rows"
        self.rows.mkdir(parents=True, exist_ok=True)

    def start(self, **trigger):
        options = {"startingOffsets": "earliest", "dataDir": str(self.broker.data)} | self.options
        frame = given(self.spark.readStream, self.broker, self.topic, **options).load()
        writer = frame.writeStream.option("checkpointLocation", self.checkpoint).foreachBatch(self._keep)
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _keep(self, frame, batch):
        found = [[row.partition, row.topic_offset] for row in frame.select("partition", "topic_offset").collect()]
        (self.rows / str(batch)).write_text(json.dumps(sorted(found)))

    def run(self):
        """Take what is there now, and stop."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(DEADLINE_S)

    def run_until(self, count):
        """Run until so many rows were taken; then stop."""
        query = self.start()
        try:
            deadline = time.monotonic() + DEADLINE_S
            while len(self.offsets()) < count:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, f"{len(self.offsets())} of {count} rows came"
                query.processAllAvailable()
        finally:
            query.stop()
        return query

    def batches(self):
        files = sorted(self.rows.iterdir(), key=lambda path: int(path.name))
        return [json.loads(path.read_text()) for path in files]

    def offsets(self):
        return [tuple(one) for batch in self.batches() for one in batch]


def test_a_restart_from_the_checkpoint_gives_every_offset_once(source, broker, tmp_path):
    topic = new_topic("stream")
    sink = Sink(source, broker, topic, tmp_path)
    produce(broker, topic, [b"x"] * 30)
    sink.run()
    assert sink.offsets() == [(0, n) for n in range(30)]
    sink.run()
    assert sink.offsets() == [(0, n) for n in range(30)]
    produce(broker, topic, [b"y"] * 20)
    sink.run_until(50)
    broker.restart()
    produce(broker, topic, [b"z"] * 5)
    sink.run_until(55)
    assert sink.offsets() == [(0, n) for n in range(55)]


def test_without_the_token_a_stream_has_its_messages_uploaded_and_reads_objects(spark, monkeypatch, broker, tmp_path):
    register(spark, monkeypatch, token=False)
    topic = new_topic("objects")
    sink = Sink(spark, broker, topic, tmp_path)
    produce(broker, topic, [b"x"] * 10)
    sink.run()
    produce(broker, topic, [b"x"] * 10)
    sink.run()
    assert sink.offsets() == [(0, n) for n in range(20)]
    assert list((broker.data / "objects").glob(f"{topic[1:]}/*/data-*.dnb"))


def test_a_trigger_takes_no_more_than_it_may_and_a_restart_knows_how_far_it_was(source, broker, tmp_path):
    # Spark tells latestOffset() no start. That we know it after a restart rests on Spark planning its last batch first,
    # which is not documented: where it does not, the first batch after the restart begins at 0 and this fails.
    topic = new_topic("limited")
    produce(broker, topic, [b"x"] * 35)
    sink = Sink(source, broker, topic, tmp_path, maxOffsetsPerTrigger="10")
    sink.run()
    assert sink.batches() == [[[0, n] for n in range(10)]], "availableNow takes one trigger, as docs/spark.md says"
    sink.run_until(35)
    assert [len(batch) for batch in sink.batches()] == [10, 10, 10, 5]
    assert sink.offsets() == [(0, n) for n in range(35)]
    produce(broker, topic, [b"y"] * 12)
    sink.run_until(47)
    assert [len(batch) for batch in sink.batches()][4:] == [10, 2]
    assert sink.offsets() == [(0, n) for n in range(47)]


def test_a_limit_is_shared_by_partitions_and_one_that_appears_is_read_from_its_beginning(source, broker, tmp_path):
    base = new_topic("shared")
    produce(broker, f"{base}-part-0", [b"x"] * 30)
    produce(broker, f"{base}-part-1", [b"x"] * 10)
    sink = Sink(source, broker, base, tmp_path, maxOffsetsPerTrigger="20")
    sink.run()
    assert sink.offsets() == [(0, n) for n in range(15)] + [(1, n) for n in range(5)]
    produce(broker, f"{base}-part-2", [b"x"] * 7)
    sink.run_until(47)
    assert sorted(sink.offsets()) == [(p, n) for p, count in ((0, 30), (1, 10), (2, 7)) for n in range(count)]
    assert max(len(batch) for batch in sink.batches()) == 20


def test_a_batch_that_failed_is_taken_again_with_the_same_offsets(source, broker, tmp_path):
    topic = new_topic("failed")
    sink = Sink(source, broker, topic, tmp_path)
    produce(broker, topic, [b"x"] * 10)
    sink.run()
    produce(broker, topic, [b"y"] * 10)
    keep, seen = sink._keep, []

    def fail(frame, batch):
        seen.append((batch, frame.count()))
        raise RuntimeError("the sink is away")

    sink._keep = fail
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        sink.run()
    sink._keep = keep
    produce(broker, topic, [b"z"] * 10)
    sink.run_until(30)
    assert seen == [(1, 10)]
    assert sink.batches()[1] == [[0, n] for n in range(10, 20)]
    assert sink.offsets() == [(0, n) for n in range(30)]


def test_a_first_batch_that_failed_is_taken_again_though_messages_have_come(source, broker, tmp_path):
    topic = new_topic("first")
    produce(broker, topic, [b"x"] * 10)
    sink = Sink(source, broker, topic, tmp_path, startingOffsets="latest")
    keep = sink._keep

    def fail(frame, batch):
        raise RuntimeError("the sink is away")

    sink._keep = fail
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        sink.run()
    sink._keep = keep
    produce(broker, topic, [b"y"] * 5)
    sink.run_until(5)
    assert sink.offsets() == [(0, n) for n in range(10, 15)]


def test_a_first_batch_that_failed_is_taken_again_from_the_offset_in_the_checkpoint(source, broker, tmp_path):
    """M6: it does not look for its beginning again, here by other options, else by what retention has left."""
    topic = new_topic("begin")
    produce(broker, topic, [b"x"] * 10)
    sink = Sink(source, broker, topic, tmp_path)
    keep = sink._keep

    def fail(frame, batch):
        raise RuntimeError("the sink is away")

    sink._keep = fail
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        sink.run()
    sink._keep = keep
    sink.options = {"startingOffsets": "5"}
    sink.run()
    assert sink.offsets() == [(0, n) for n in range(10)]


def test_a_query_goes_on_when_its_broker_is_restarted(source, broker, tmp_path):
    """M5."""
    topic = new_topic("restarted")
    produce(broker, topic, [b"x"] * 10)
    sink = Sink(source, broker, topic, tmp_path)
    query = sink.start()
    try:
        query.processAllAvailable()
        broker.kill()
        broker.start()
        produce(broker, topic, [b"y"] * 10)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sink.offsets() == [(0, n) for n in range(20)]


def test_latest_begins_behind_what_is_there_and_a_number_waits_for_its_offset(source, broker, tmp_path):
    topic = new_topic("latest")
    produce(broker, topic, [b"x"] * 10)
    latest = Sink(source, broker, topic, tmp_path / "latest", startingOffsets="latest")
    number = Sink(source, broker, topic, tmp_path / "number", startingOffsets="12")
    for sink in (latest, number):
        sink.run()
    produce(broker, topic, [b"y"] * 5)
    for sink in (latest, number):
        sink.run()
    assert latest.offsets() == [(0, n) for n in range(10, 15)]
    assert number.offsets() == [(0, n) for n in range(12, 15)]


def test_a_topic_that_was_made_again_stops_the_query(source, broker, tmp_path):
    topic = new_topic("again")
    produce(broker, topic, [b"x"] * 10)
    sink = Sink(source, broker, topic, tmp_path)
    sink.run()
    delete(broker, topic)
    produce(broker, topic, [b"y"] * 12)
    with pytest.raises(StreamingQueryException, match="was deleted and made again"):
        sink.run_until(12)
    assert sink.offsets() == [(0, n) for n in range(10)]


def test_a_stream_is_written_to_a_topic_which_is_not_created_again_after_it_was_deleted(source, broker, tmp_path):
    """M2."""
    topic, copy = new_topic("from"), new_topic("to")
    produce(broker, topic, [b"%d" % n for n in range(40)], routing_key="k", attributes={"a": "b"})

    def run():
        frame = given(source.readStream, broker, topic, startingOffsets="earliest", dataDir=str(broker.data)).load()
        wanted = frame.select("payload", "routing_key", "attributes", "publish_time_ms")
        writer = given(wanted.writeStream, broker, copy).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_S)

    for _ in range(2):
        run()
    rows = [arrow(read(source, broker, name)) for name in (topic, copy)]
    columns = ["payload", "routing_key", "attributes", "publish_time_ms"]
    assert len(rows[1]) == 40
    before, after = (table.select(columns).sort_by("payload").to_pylist() for table in rows)
    assert before == after
    delete(broker, copy)
    produce(broker, topic, [b"more"])
    with pytest.raises(
        StreamingQueryException, match="does not exist; a stream creates its topic in its first batch only"
    ):
        run()


def test_an_option_for_a_batch_is_refused_in_a_stream(source, broker, tmp_path):
    sink = Sink(source, broker, new_topic("options"), tmp_path, endingOffsets="5")
    with pytest.raises(StreamingQueryException, match=r"endingOffsets is for spark\.read, not for spark\.readStream"):
        sink.run()
