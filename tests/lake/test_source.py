"""Topics as DataFrames, on real Spark and a real broker: what was produced is what is read."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, PySparkException

from interop.broker import Broker
from ister.client.storage import BrokerClient
from ister.pipeline.session import activate
from ister.pipeline.source import DanubeDataSource
from ister.pipeline.source.options import Use, WriteOptions, read_options
from ister.pipeline.source.reader import SCHEMA, TopicBatchReader
from ister.pipeline.source.task import SplitGoneError, batches_of
from ister.pipeline.source.writer import TopicBatchWriter, find_targets
from parts.pipeline import TOKEN, Pipeline, broker_with_token, new_topic, produce, rows_of
from parts.source import arrow, assert_same, given, read, register
from services.moto import serve_moto

DEADLINE_S = 120


@pytest.fixture(params=["files", "objects"])
def source(request, spark, monkeypatch):
    """Once with the broker's token, once without."""
    register(spark, monkeypatch, token=request.param == "files")
    return spark


@pytest.fixture
def files(spark, monkeypatch):
    register(spark, monkeypatch, token=True)
    return spark


def test_a_batch_has_every_column_of_the_table_and_equal_rows(source, catalog, broker):
    topic = new_topic("columns")
    attributes = {"color": "blue", "empty": ""}
    produce(broker, topic, [b"a%d" % n for n in range(50)], attributes=attributes, routing_key="k")
    produce(broker, topic, [b"", bytes(range(256))], schema_id=None, publish_time=2**64 - 1)
    with Pipeline(source, broker, catalog, [topic]) as writer:
        assert writer.tick().rows == 52
    frame = read(source, broker, topic)
    assert frame.schema == SCHEMA
    rows = arrow(frame)
    assert_same(rows, rows_of(catalog, topic))
    assert rows["topic_offset"].to_pylist() == list(range(52))
    assert sorted(rows["payload"].to_pylist()[:50]) == sorted(b"a%d" % n for n in range(50))
    assert rows["publish_time"].null_count == 2, "the client's time is out of range there"


def test_offsets_bound_a_batch_on_both_sides(source, broker):
    topic = new_topic("bounds")
    produce(broker, topic, [b"%d" % n for n in range(100)])

    def offsets(**options):
        return arrow(read(source, broker, topic, **options))["topic_offset"].to_pylist()

    assert offsets(startingOffsets="30", endingOffsets="40") == list(range(30, 40))
    assert offsets(startingOffsets="98") == [98, 99]
    assert offsets(startingOffsets="earliest", endingOffsets="3") == [0, 1, 2]
    assert offsets(startingOffsets="7", endingOffsets="7") == []
    assert offsets(startingOffsets="200", endingOffsets="300") == []
    assert offsets(endingOffsets="1000") == list(range(100))


def test_a_base_reads_all_its_partitions_and_a_partition_itself_alone(source, broker):
    base = new_topic("parts")
    for number in range(3):
        produce(broker, f"{base}-part-{number}", [b"%d" % number] * (10 * (number + 1)))
    rows = arrow(read(source, broker, base))
    assert rows["partition"].to_pylist() == [0] * 10 + [1] * 20 + [2] * 30
    assert rows["topic_offset"].to_pylist() == [*range(10), *range(20), *range(30)]
    assert [int(one) for one in rows["payload"].to_pylist()] == rows["partition"].to_pylist()
    assert set(arrow(read(source, broker, f"{base}-part-2"))["partition"].to_pylist()) == {2}


def test_a_big_topic_is_read_in_several_partitions_and_each_offset_once(source, broker):
    topic = new_topic("big")
    produce(broker, topic, [bytes(100_000)] * 500)
    frame = read(source, broker, topic).select("topic_offset")
    assert frame.rdd.getNumPartitions() >= 3
    assert sorted(row.topic_offset for row in frame.collect()) == list(range(500))
    part = read(source, broker, topic, startingOffsets="123", endingOffsets="456").select("topic_offset")
    assert sorted(row.topic_offset for row in part.collect()) == list(range(123, 456))


def test_an_empty_topic_has_no_rows(source, broker):
    topic = new_topic("empty")

    async def create():
        async with broker.raw() as raw:
            await raw.create_producer(topic)

    asyncio.run(create())
    assert read(source, broker, topic).count() == 0


def test_what_is_written_is_read_again(files, broker):
    topic = new_topic("written")
    sent = [
        (b"one", "key", {"a": "b"}, 1_700_000_000_123),
        (b"", None, {}, -1),
        (bytes(range(256)), "", None, 5),
        (b"last", "key", {"": ""}, 0),
    ]
    frame = files.createDataFrame(
        sent, "payload binary, routing_key string, attributes map<string,string>, publish_time_ms long"
    )
    given(frame.write, broker, topic).mode("append").save()
    rows = arrow(read(files, broker, topic)).select(["payload", "routing_key", "attributes", "publish_time_ms"])
    found = sorted((p, k, tuple(a), t) for p, k, a, t in (row.values() for row in rows.to_pylist()))
    assert found == sorted((p, k, tuple((a or {}).items()), t) for p, k, a, t in sent)


def test_strings_are_written_as_utf8_with_the_time_of_sending(files, broker):
    topic = new_topic("strings")
    frame = files.range(1000).selectExpr("concat('Größe ', id) AS payload").repartition(3)
    given(frame.write, broker, topic).mode("append").save()
    rows = arrow(read(files, broker, topic))
    assert sorted(rows["payload"].to_pylist()) == sorted(f"Größe {n}".encode() for n in range(1000))
    assert min(rows["publish_time_ms"].to_pylist()) > 1_600_000_000_000
    assert set(rows["producer_name"].to_pylist()) <= {"spark-0", "spark-1", "spark-2"}


def test_rows_are_written_in_a_thread_that_has_activated_the_session(files, broker):
    """M7."""
    topic = new_topic("thread")
    frame = files.sql("SELECT 'x' AS payload")

    def write():
        activate(files)
        given(frame.write, broker, topic).mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result(DEADLINE_S)
    assert read(files, broker, topic).count() == 1


def test_rows_go_to_partitions_by_key_or_in_turn(files, broker):
    base = new_topic("routed")
    for number in range(3):
        produce(broker, f"{base}-part-{number}", [b"first"])
    frame = files.range(300).selectExpr("cast(id AS string) AS payload", "concat('key-', id % 10) AS routing_key")
    given(frame.write, broker, base).mode("append").save()
    given(frame.select("payload").write, broker, base).mode("append").save()
    rows = arrow(read(files, broker, base)).to_pylist()
    assert len(rows) == 603
    places = {row["routing_key"]: set() for row in rows}
    for row in rows:
        places[row["routing_key"]].add(row["partition"])
    assert places.pop(None) == {0, 1, 2}
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) > 1


def test_a_null_payload_is_refused_by_name(files, broker):
    frame = files.sql("SELECT cast(null AS binary) AS payload")
    with pytest.raises(PySparkException, match="payload is null"):
        given(frame.write, broker, new_topic("null")).mode("append").save()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 AS payload", "column payload is int"),
        ("'x' AS value", "no column payload"),
        ("'x' AS payload, 1 AS topic_offset", "no place for column topic_offset"),
        ("'x' AS payload, map('a', 1) AS attributes", "column attributes is map<string,int>"),
    ],
)
def test_rows_that_are_no_messages_are_refused_before_any_is_sent(files, broker, columns, message):
    with pytest.raises(AnalysisException, match=message):
        given(files.sql(f"SELECT {columns}").write, broker, new_topic("wrong")).mode("append").save()


def test_a_topic_is_not_overwritten(files, broker):
    frame = files.sql("SELECT 'x' AS payload")
    with pytest.raises(AnalysisException, match="only be appended to"):
        given(frame.write, broker, new_topic("over")).mode("overwrite").save()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "1"}, "option startingoffset is not known; did you mean startingOffsets"),
        ({"startingOffsets": "latest"}, "spark.read finds nothing"),
        ({"maxOffsetsPerTrigger": "5"}, "is for spark.readStream, not for spark.read"),
        ({"config": "/nowhere/ister.yml"}, "option config is /nowhere/ister.yml, which cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_by_name(files, broker, options, message):
    topic = new_topic("options")
    produce(broker, topic, [b"x"])
    with pytest.raises(PySparkException, match=message):
        read(files, broker, topic, **options).collect()


def test_a_topic_that_is_not_there_or_stores_nothing_is_refused(files, broker):
    with pytest.raises(PySparkException, match="there is no topic /default/nowhere in the broker at http://127"):
        read(files, broker, "/default/nowhere").collect()
    topic = new_topic("volatile")

    async def create():
        async with broker.raw() as raw:
            await raw.create_producer(topic, dispatch_strategy=0)

    asyncio.run(create())
    with pytest.raises(PySparkException, match="it is not reliable"):
        read(files, broker, topic).collect()


def test_objects_in_another_place_than_told_are_missed_by_the_option_s_name(spark, monkeypatch, broker, tmp_path):
    register(spark, monkeypatch, token=False)
    topic = new_topic("elsewhere")
    produce(broker, topic, [b"x"])
    frame = given(spark.read, broker, topic, dataDir=str(tmp_path / "none")).load()
    with pytest.raises(PySparkException, match="option dataDir or config must say where"):
        frame.collect()


def test_a_topic_whose_objects_are_in_s3_is_read_by_the_broker_s_configuration_alone(spark, monkeypatch):
    register(spark, monkeypatch, token=False)
    topic = new_topic("s3")
    with serve_moto() as moto, Broker({"wal_cloud": {"cloud": moto.cloud(f"{moto.make_bucket()}/some")}}) as broker:
        produce(broker, topic, [b"%d" % n for n in range(1000)])
        config = str(broker.directory / "ister.yml")
        found = arrow(spark.read.format("danube").options(topic=topic, config=config).load())
    assert found["topic_offset"].to_pylist() == list(range(1000))
    assert set(found["payload"].to_pylist()) == {b"%d" % n for n in range(1000)}


def test_a_foreign_schema_is_refused(files, broker):
    frame = given(files.read, broker, new_topic("schema")).schema("payload binary").load
    with pytest.raises(PySparkException, match="a topic has its own columns"):
        frame().collect()


def planned(broker, topic):
    """Plan a read in this process, with the token of its environment if it has one."""
    options = {"topic": topic, "broker": broker.url, "dataDir": str(broker.data)}
    [part] = TopicBatchReader(read_options(options, Use.READ)).partitions()
    return part


def offsets_of(part):
    return [offset for batch in batches_of(part) for offset in batch["topic_offset"].to_pylist()]


def uploaded(broker, topic, count):
    """Store messages, have them uploaded, and return the file and the object that they are in."""
    produce(broker, topic, [b"x"] * count)
    client = BrokerClient(broker.target)
    client.sync(topic, 1)
    assert client.upload(topic, 1) == count
    client.close()
    [file] = (broker.data / "wal").glob(f"{topic[1:]}/1/wal-*.log")
    [made] = (broker.data / "objects").glob(f"{topic[1:]}/1/data-*.dnb")
    return file, made


def test_messages_that_moved_between_plan_and_task_are_found_where_they_are_now(broker, monkeypatch):
    topic = new_topic("moved")
    file, made = uploaded(broker, topic, 50)
    monkeypatch.setenv("ISTER_PIPELINE_TOKEN", TOKEN)
    in_file = planned(broker, topic)
    monkeypatch.delenv("ISTER_PIPELINE_TOKEN")
    in_object = planned(broker, topic)
    hidden = file.rename(file.with_suffix(".hidden"))  # pruned: without the token, the broker tells of the object
    assert offsets_of(in_file) == list(range(50))
    hidden.rename(file)
    made.unlink()
    monkeypatch.setenv("ISTER_PIPELINE_TOKEN", TOKEN)
    assert offsets_of(in_object) == list(range(50))


def test_messages_that_are_nowhere_any_more_fail_the_read_and_name_the_place(broker, monkeypatch):
    topic = new_topic("nowhere")
    _, made = uploaded(broker, topic, 5)
    monkeypatch.delenv("ISTER_PIPELINE_TOKEN")
    part = planned(broker, topic)
    made.unlink()
    with pytest.raises(SplitGoneError, match=f"{made.name} was deleted after the read was planned"):
        offsets_of(part)


def kill_and_start(broker, count):
    """Kill a broker as soon as its one topic has so many messages, and start it again."""
    client = BrokerClient(broker.target)
    deadline = time.monotonic() + DEADLINE_S
    while client.topics("default")[0].offsets.next < count:
        assert time.monotonic() < deadline, "nothing is written"
    client.close()
    broker.kill()
    broker.start()


def test_rows_are_written_through_a_broker_that_is_killed_and_comes_back(files, tell):
    topic, count = new_topic("killed"), 4000
    with pytest.MonkeyPatch.context() as patch, broker_with_token(patch) as own, ThreadPoolExecutor(1) as pool:
        produce(own, topic, [b"first"])
        frame = files.range(count, numPartitions=2).selectExpr("cast(id AS string) AS payload")
        killing = pool.submit(kill_and_start, own, count // 4)
        given(frame.write, own, topic).mode("append").save()
        killing.result(DEADLINE_S)
        found = [row.payload for row in read(files, own, topic, startingOffsets="1").select("payload").collect()]
    assert {bytes(payload) for payload in found} == {b"%d" % n for n in range(count)}, "none is missing"
    tell("F6", f"a Spark job wrote {count} rows through kill -9: {len(found) - count} came twice, none is missing")


def delete_after(broker, topic, count):
    """Delete a topic as soon as it has so many messages."""
    client = BrokerClient(broker.target)
    deadline = time.monotonic() + DEADLINE_S
    while {one.name: one.offsets.next for one in client.topics("default")}[topic] < count:
        assert time.monotonic() < deadline, "nothing is written"
    client.close()

    async def delete():
        async with broker.raw() as raw:
            await raw.ask("DeleteTopic", name=topic)

    asyncio.run(delete())


def test_a_topic_that_is_deleted_while_a_job_writes_fails_the_job_and_is_not_created_again(files, broker):
    """M2."""
    topic = new_topic("deleted")
    produce(broker, topic, [b"first"])
    frame = files.range(40_000, numPartitions=4).selectExpr("cast(id AS string) AS payload")
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(delete_after, broker, topic, 500)
        with pytest.raises(PySparkException, match="was deleted while rows were written to it"):
            given(frame.write, broker, topic).mode("append").save()
        deleting.result(DEADLINE_S)
    with pytest.raises(PySparkException, match="there is no topic"):
        read(files, broker, topic).collect()


def test_rows_that_are_stored_below_their_level_are_written_once_and_fail_the_job(files, broker):
    """M3."""

    class Impatient(DanubeDataSource):  # in the test's body, so that Spark's workers get the class itself
        def writer(self, schema, overwrite):
            return TopicBatchWriter(options, find_targets(options), level_s=0)

    topic = new_topic("lake")
    options = WriteOptions(topic, broker.url)

    async def create():
        async with broker.raw() as raw:
            await raw.create_topic(topic)
            await raw.set_topic(topic, ack_level="lake", ack_timeout_ms=100)

    asyncio.run(create())
    files.dataSource.register(Impatient)
    frame = files.range(600, numPartitions=2).selectExpr("cast(id AS string) AS payload")
    with pytest.raises(
        PySparkException, match="not yet in the table: 512 rows are stored, do not write them again, and 88"
    ):
        given(frame.write, broker, topic).mode("append").save()
    files.dataSource.register(DanubeDataSource)
    found = [bytes(row.payload) for row in read(files, broker, topic).select("payload").collect()]
    assert len(found) == len(set(found)) == 512
