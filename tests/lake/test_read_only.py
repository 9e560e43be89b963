"""`ister serve --read-only`: subscriptions from the lake alone, each served by one broker at a time."""

import asyncio
import itertools
import subprocess
from functools import partial

import grpc
import pytest
import yaml
from danube.proto import DanubeApi_pb2 as api

from interop.broker import ISTER
from interop.official import Official
from interop.raw import EXCLUSIVE, once_allowed, refused
from interop.waiting import eventually
from ister.broker.topics.records import Records
from ister.core.names import TopicName
from ister.storage.generations import TopicRegistry
from parts.readback import expected
from parts.reader import Serving, assert_exact, coroutine_test, metadata_of, own, saved_cursor, table
from services.etcd import Etcd

FAILED = grpc.StatusCode.FAILED_PRECONDITION
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def etcd():
    with Etcd() as made:
        yield made


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def reader(etcd, home):
    with Serving(etcd, home) as made:
        yield made


@pytest.fixture(scope="module")
def other(etcd, home):
    with Serving(etcd, home) as made:
        yield made


@pytest.fixture
def topic(etcd):
    """A topic that a broker owns which is not running now."""
    made = TopicName.parse(f"/default/read-{next(NUMBERS)}")
    asyncio.run(own(etcd, made))
    return made


@pytest.fixture
def rows(home, topic):
    with table(home, topic) as made:
        yield made


async def cursor_reaches(etcd, topic, subscription, offset):
    async def there():
        return await saved_cursor(etcd, topic, subscription) == offset

    await eventually(there, f"cursor {offset} in metadata")


@coroutine_test
async def test_a_reader_gives_every_message_exact_and_follows_new_commits(etcd, reader, topic, rows):
    rows.append(300, files=3)
    async with Official(reader) as client:
        consumer = await client.consumer(str(topic), "all")
        assert_exact(await consumer.take(300), expected(0, 300, topic))
        rows.append(50)
        rows.append(50)
        assert_exact(await consumer.take(100), expected(300, 400, topic))
        await cursor_reaches(etcd, topic, "all", 400)


@coroutine_test
async def test_a_subscription_may_be_made_before_the_table_is(reader, topic, home):
    async with reader.raw() as raw:
        stream = await raw.consume(str(topic), "early")
        with table(home, topic) as rows:
            rows.append(5)
            assert [message.msg_id.topic_offset for message in await stream.take(5)] == [0, 1, 2, 3, 4]


@coroutine_test
async def test_after_kill_9_another_reader_resumes_exactly_once_the_lease_has_ended(etcd, home, other, topic, rows):
    rows.append(200)
    with Serving(etcd, home, ttl_s=2.0) as first:
        async with Official(first) as client:
            consumer = await client.consumer(str(topic), "moving")
            assert_exact(await consumer.take(120), expected(0, 120, topic))
            await cursor_reaches(etcd, topic, "moving", 120)
            first.kill()
        async with other.raw() as raw:
            said = await refused(FAILED, raw.subscribe(str(topic), "moving", "consumer", EXCLUSIVE))
            assert first.url in said
            await once_allowed(FAILED, lambda: raw.subscribe(str(topic), "moving", "consumer", EXCLUSIVE), 20.0)
        async with Official(other) as client:
            consumer = await client.consumer(str(topic), "moving")
            assert_exact(await consumer.take(80), expected(120, 200, topic))
            await cursor_reaches(etcd, topic, "moving", 200)


@coroutine_test
async def test_a_held_subscription_is_refused_elsewhere_naming_its_holder_and_others_are_served(
    reader, other, topic, rows
):
    rows.append(10)
    async with reader.raw() as here, other.raw() as there:
        stream = await here.consume(str(topic), "held")
        said = await refused(FAILED, there.subscribe(str(topic), "held"))
        assert reader.url in said
        assert len(await (await there.consume(str(topic), "theirs")).take(10)) == 10
        assert len(await stream.take(10)) == 10


@coroutine_test
async def test_a_subscription_that_nobody_consumes_is_given_up_after_its_grace_with_its_progress(
    etcd, reader, other, topic, rows
):
    rows.append(10)
    async with reader.raw() as here, other.raw() as there:
        stream = await here.consume(str(topic), "idle", "one", EXCLUSIVE)
        for message in await stream.take(4):
            await here.ack(message, "idle")
        stream.cancel()
        stream = await once_allowed(FAILED, lambda: there.consume(str(topic), "idle", "another", EXCLUSIVE), 20.0)
        assert [message.msg_id.topic_offset for message in await stream.take(6)] == [4, 5, 6, 7, 8, 9]
        said = await refused(FAILED, here.subscribe(str(topic), "idle"))
        assert other.url in said
    assert await saved_cursor(etcd, topic, "idle") == 4


@coroutine_test
async def test_a_reader_that_drains_gives_up_at_once_and_saves_what_was_acknowledged(etcd, home, other, topic, rows):
    rows.append(10)
    with Serving(etcd, home) as first:
        async with first.raw() as raw:
            stream = await raw.consume(str(topic), "drained")
            for message in await stream.take(7):
                await raw.ack(message, "drained")
            await asyncio.to_thread(first.stop)
    async with other.raw() as raw:
        stream = await raw.consume(str(topic), "drained")
        assert [message.msg_id.topic_offset for message in await stream.take(3)] == [7, 8, 9]


@coroutine_test
async def test_a_consumer_comes_back_by_its_number_alone(reader, topic, rows):
    rows.append(10)
    async with reader.raw() as raw:
        number = await raw.subscribe(str(topic), "number")
        stream = raw.receive(number)
        for message in await stream.take(3):
            await raw.ack(message, "number")
        stream.cancel()

        async def given_up():
            return not await raw.is_well(api.HealthCheckRequest.Consumer, number)

        await eventually(given_up, "the end of the grace")
        stream = raw.receive(number)
        assert [message.msg_id.topic_offset for message in await stream.take(7)] == [3, 4, 5, 6, 7, 8, 9]


@coroutine_test
async def test_a_reader_that_loses_its_lease_stops_and_goes_on_when_it_has_another(home):
    topic = TopicName.parse("/default/lost")
    with Etcd() as etcd:
        await own(etcd, topic)
        with table(home, topic) as rows, Serving(etcd, home, ttl_s=2.0) as reader:
            rows.append(10)
            async with reader.raw() as raw:
                number = await raw.subscribe(str(topic), "frozen")
                stream = raw.receive(number)
                got = await stream.take(10)
                etcd.freeze()
                assert await stream.ended() is grpc.StatusCode.UNAVAILABLE
                await refused(grpc.StatusCode.UNAVAILABLE, raw.ack(got[0], "frozen"))
                etcd.thaw()
                again = partial(raw.consume, str(topic), "frozen")
                stream = await once_allowed(grpc.StatusCode.UNAVAILABLE, again)
                assert [message.msg_id.topic_offset for message in await stream.take(10)] == list(range(10))


@coroutine_test
async def test_a_reader_answers_lookups_with_itself_and_refuses_producers_and_changes(reader, topic, rows):
    rows.append(3)
    async with reader.raw() as raw:
        answer = await raw.lookup(str(topic))
        assert (answer.broker_url, answer.connect_url) == (reader.url, reader.url)
        said = await refused(FAILED, raw.create_producer(str(topic)))
        assert "produce to the broker that owns the topic" in said
        await refused(FAILED, raw.create_producer("/default/never-made"))
        await refused(FAILED, raw.send(str(topic), 1, b"x"))
        await refused(FAILED, raw.create_topic("/default/never-made"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.lookup("/default/never-made"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.subscribe("/default/never-made", "s"))
        assert str(topic) in await raw.partitions(str(topic))
    assert reader.is_ready()
    assert reader.metrics()["ister_table_reader_snapshots_total"] >= 0
    assert not reader.data.exists()


@coroutine_test
async def test_topics_that_come_go_and_come_again_are_noticed(etcd, reader, home):
    topic = TopicName.parse("/default/again")
    async with reader.raw() as raw, metadata_of(etcd) as metadata:
        await refused(grpc.StatusCode.NOT_FOUND, raw.lookup(str(topic)))
        await own(etcd, topic)
        stream = await raw.consume(str(topic), "s")
        await TopicRegistry(metadata, "/danube-data").mark_deleted(topic)
        await refused(grpc.StatusCode.NOT_FOUND, raw.lookup(str(topic)))
        assert await stream.ended() is grpc.StatusCode.NOT_FOUND
        await Records(metadata, "/danube-data").forget_topic(topic)
        await metadata.delete(f"/danube-data/storage/topics{topic}")
        await own(etcd, topic, generation=2)
        assert (await raw.lookup(str(topic))).broker_url == reader.url
        await raw.subscribe(str(topic), "s")


@coroutine_test
async def test_progress_of_a_topic_whose_owner_keeps_it_in_files_is_not_touched(etcd, reader):
    topic = TopicName.parse("/default/files")
    async with metadata_of(etcd) as metadata:
        await own(etcd, topic)
        await metadata.delete(f"/danube-data/persistent_storage/iceberg/topics{topic}")
    async with reader.raw() as raw:
        said = await refused(FAILED, raw.subscribe(str(topic), "s"))
        assert "storage.type" in said
    assert await saved_cursor(etcd, topic, "s") is None


@coroutine_test
async def test_the_owner_and_a_reader_hold_subscriptions_by_the_same_rule(etcd, home, reader):
    topic = "/default/owned"
    with Serving(etcd, home, owner=True) as owner:
        async with owner.raw() as at_owner, reader.raw() as at_reader:
            producer = await at_owner.create_producer(topic)
            await at_owner.send(topic, producer, b"one")
            stream = await at_owner.consume(topic, "s")
            assert (await stream.next()).payload == b"one"
            said = await refused(FAILED, at_reader.subscribe(topic, "s"))
            assert owner.url in said
            assert (await at_reader.lookup(topic)).broker_url == reader.url


@coroutine_test
async def test_progress_goes_from_the_owner_to_a_reader_and_back(etcd, home, reader):
    topic = TopicName.parse("/default/handed-over")
    with Serving(etcd, home, owner=True) as owner, table(home, topic) as rows:
        async with owner.raw() as at_owner, reader.raw() as at_reader:
            producer = await at_owner.create_producer(str(topic))
            await at_owner.send_all(str(topic), producer, [b"%d" % number for number in range(20)])
            rows.append(20)
            assert f"owns the topic, {owner.url}," in await refused(FAILED, at_reader.create_producer(str(topic)))
            at = 0
            for raw in (at_owner, at_reader, at_owner, at_reader):
                subscribe = partial(raw.consume, str(topic), "s")
                stream = await once_allowed(FAILED, subscribe)
                got = await stream.take(5)
                assert [message.msg_id.topic_offset for message in got] == list(range(at, at + 5))
                for message in got:
                    await raw.ack(message, "s")
                stream.cancel()
                at += 5
    await cursor_reaches(etcd, topic, "s", 20)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "wal_cloud.metadata.etcd_endpoint"),
        ({"wal_cloud": {"metadata": {"etcd_endpoint": "127.0.0.1:1"}}}, "storage.type"),
    ],
)
def test_the_command_is_refused_without_etcd_or_without_tables(tmp_path, config, says):
    file = tmp_path / "ister.yml"
    file.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [*ISTER, "serve", "--read-only", "--config", str(file), "--data-dir", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
    assert "--read-only" in done.stderr
    assert not (tmp_path / "data").exists()
