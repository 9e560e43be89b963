"""ister.v1.Admin: cursors are moved, policies set, topics and subscriptions told."""

import errno
import json

import pytest
from grpc import StatusCode

from ister.config.policies import CompletePolicies
from ister.core.errors import CorruptLogError
from ister.ports.files.files import OsFiles
from ister.rpc import danube_admin_pb2, ister_v1_pb2
from ister.rpc import ister_v1_pb2 as pb
from parts.admin import AdminWorld, Asker, refused
from parts.broker import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, until
from parts.cloud import StepClock, run

T = "/default/t"


def payloads(messages):
    return [message.payload for message in messages]


async def send(asker, *bodies, topic=T):
    producer = await asker.client.producer(topic)
    for body in bodies:
        await asker.client.send(topic, producer, body)


async def consumed(asker, count, *, ack=True):
    """Receive so many messages as consumer c of subscription s, acknowledge them, and go."""
    consumer = await asker.client.subscribe(T)
    async with asker.client.receive(consumer) as stream:
        found = await stream.take(count)
        if ack:
            for message in found:
                await asker.client.ack(message)
    return payloads(found)


async def cursor(asker):
    return (await asker.admin("DescribeSubscription", topic=T, subscription="s")).subscription.cursor


# --- cursors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "lands"),
    [({"offset": 2}, 2), ({"offset": 0}, 0), ({"offset": 5}, 5), ({"earliest": True}, 0), ({"latest": True}, 5)],
)
def test_a_cursor_is_moved_to_a_place_and_stays_there_through_a_restart(tmp_path, to, lands):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker(policies=CompletePolicies(start_position="earliest")) as asker:
            await send(asker, *(b"%d" % n for n in range(5)))
            assert await consumed(asker, 3) == [b"0", b"1", b"2"]
            moved = await asker.admin("ResetCursor", topic=T, subscription="s", **to)
            assert (moved.cursor, moved.previous) == (lands, 3)
            assert await cursor(asker) == lands
            kept = (await asker.admin("DescribeSubscription", topic=T, subscription="s")).subscription.durable_cursor
            assert kept == lands
        async with world.asker() as asker:
            assert await cursor(asker) == lands
            await send(asker, b"5")
            assert await consumed(asker, 6 - lands) == [b"%d" % n for n in range(lands, 6)]

    run(story())


def test_a_cursor_is_moved_to_the_first_message_appended_at_or_after_a_time(tmp_path):
    async def story():
        clock = StepClock()
        second_us, began_us = 1_000_000, clock.now_us
        async with AdminWorld(tmp_path, clock=clock).asker() as asker:
            await asker.client.producer(T)
            await asker.client.subscribe(T)
            for number in range(5):
                clock.now_us = began_us + number * second_us
                await send(asker, b"%d" % number)
            for time_ms, lands in [
                (0, 0),
                (began_us // 1000, 0),
                (began_us // 1000 + 1, 1),
                (began_us // 1000 + 2000, 2),
                (began_us // 1000 + 2500, 3),
                (began_us // 1000 + 9000, 5),
                (253_402_300_799_999, 5),
            ]:
                assert (await asker.admin("ResetCursor", topic=T, subscription="s", time_ms=time_ms)).cursor == lands

    run(story())


def test_a_consumer_that_is_connected_goes_on_from_the_new_place(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            consumer = await asker.client.subscribe(T)
            await send(asker, b"0", b"1", b"2")
            async with asker.client.receive(consumer) as stream:
                before = await stream.take(3)
                await asker.client.ack(before[0])
                await asker.admin("ResetCursor", topic=T, subscription="s", offset=1)
                assert payloads(await stream.take(2)) == [b"1", b"2"]
                await asker.admin("ResetCursor", topic=T, subscription="s", earliest=True)
                assert payloads(await stream.take(3)) == [b"0", b"1", b"2"]
                await asker.admin("ResetCursor", topic=T, subscription="s", latest=True)
                await send(asker, b"3")
                assert payloads(await stream.take(1)) == [b"3"]

    run(story())


def test_progress_that_is_being_saved_does_not_undo_a_reset(tmp_path, monkeypatch):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker(policies=CompletePolicies(start_position="earliest")) as asker:
            await send(asker, *(b"%d" % n for n in range(10)))
            await consumed(asker, 10)
            topic = asker.broker.topics.find(T)
            reset = topic.storage.reset_cursor

            async def reset_between_saves(*args):
                await topic._save()
                await reset(*args)
                await topic._save()

            monkeypatch.setattr(topic.storage, "reset_cursor", reset_between_saves)
            await asker.admin("ResetCursor", topic=T, subscription="s", offset=4)
            assert await topic.storage.cursors() == {"s": 4}

    run(story())


@pytest.mark.parametrize(
    ("to", "code", "word"),
    [
        ({}, StatusCode.INVALID_ARGUMENT, "offset"),
        ({"earliest": False}, StatusCode.INVALID_ARGUMENT, "earliest"),
        ({"latest": False}, StatusCode.INVALID_ARGUMENT, "latest"),
        ({"time_ms": 2**64 - 1}, StatusCode.INVALID_ARGUMENT, "milliseconds"),
        ({"offset": 6}, StatusCode.OUT_OF_RANGE, "6"),
        ({"offset": 2**64 - 1}, StatusCode.OUT_OF_RANGE, ""),
    ],
)
def test_a_cursor_is_not_moved_to_where_nothing_is(tmp_path, to, code, word):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            await asker.client.subscribe(T)
            await send(asker, *(b"%d" % n for n in range(5)))
            with refused(code, word):
                await asker.admin("ResetCursor", topic=T, subscription="s", **to)
            assert await cursor(asker) == 0

    run(story())


def test_there_must_be_a_subscription_that_has_a_place(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            with refused(StatusCode.NOT_FOUND):
                await asker.admin("ResetCursor", topic=T, subscription="s", offset=0)
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.admin("ResetCursor", topic="t", subscription="s", offset=0)
            await send(asker, b"0")
            with refused(StatusCode.NOT_FOUND, "subscription s"):
                await asker.admin("ResetCursor", topic=T, subscription="s", offset=0)
            with refused(StatusCode.INVALID_ARGUMENT, "subscription"):
                await asker.admin("ResetCursor", topic=T, subscription="", offset=0)
            await asker.topic("CreateTopic", name="/default/volatile")
            await asker.client.subscribe("/default/volatile")
            with refused(StatusCode.FAILED_PRECONDITION, "not reliable"):
                await asker.admin("ResetCursor", topic="/default/volatile", subscription="s", offset=0)

    run(story())


# --- policies ---------------------------------------------------------------------------------------------------------


def test_a_topics_key_wins_over_its_namespaces_and_that_over_the_brokers(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        defaults = CompletePolicies(max_publish_rate=1, max_producers_per_topic=2, max_message_size=3)
        async with world.asker(policies=defaults) as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            of_namespace = json.dumps({"max_producers_per_topic": 20, "max_message_size": 30})
            set_ = await asker.admin("SetNamespacePolicies", namespace="default", policies=of_namespace)
            assert json.loads(set_.effective)["max_producers_per_topic"] == 20
            set_ = await asker.admin("SetTopicPolicies", topic=T, policies='{"max_message_size": 300}')
            assert json.loads(set_.effective)["max_message_size"] == 300
        async with world.asker(policies=defaults) as asker:
            found = await asker.admin("GetTopicPolicies", topic=T)
            assert json.loads(found.policies) == {"max_message_size": 300}
            effective = json.loads(found.effective)
            assert {*effective} == {*CompletePolicies.model_fields}
            assert [effective[k] for k in ("max_publish_rate", "max_producers_per_topic", "max_message_size")] == [
                1,
                20,
                300,
            ]
            found = await asker.admin("GetNamespacePolicies", namespace="default")
            assert json.loads(found.policies) == {"max_producers_per_topic": 20, "max_message_size": 30}
            assert json.loads(found.effective)["max_publish_rate"] == 1
            await asker.admin("SetTopicPolicies", topic=T, policies="{}")
            assert json.loads((await asker.admin("GetTopicPolicies", topic=T)).effective)["max_message_size"] == 30
            await asker.admin("SetNamespacePolicies", namespace="default", policies="{}")
            assert json.loads((await asker.admin("GetTopicPolicies", topic=T)).effective)["max_message_size"] == 3

    run(story())


def test_policies_count_at_once(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await send(asker, b"123")
            await asker.admin("SetTopicPolicies", topic=T, policies='{"max_message_size": 2}')
            with refused(StatusCode.INVALID_ARGUMENT, "bytes"):
                await send(asker, b"123")
            await asker.admin("SetTopicPolicies", topic=T, policies="{}")
            await asker.admin("SetNamespacePolicies", namespace="default", policies='{"max_message_size": 1}')
            with refused(StatusCode.INVALID_ARGUMENT, "bytes"):
                await send(asker, b"12")
            await asker.admin("SetTopicPolicies", topic=T, policies='{"ack_level": "fsync"}')
            detail = (await asker.admin("DescribeTopic", topic=T)).topic
            assert detail.level == pb.ACK_LEVEL_FSYNC
            assert detail.policies == '{"ack_level":"fsync"}'
            await send(asker, b"1")
            assert asker.broker.topics.find(T).storage.wal.synced_offset == 2

    run(story())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "nonsense",
        '{"max_mesage_size": 1}',
        '{"max_message_size": -1}',
        '{"ack_level": "most"}',
        "[" * 100_000,
    ],
)
def test_policies_that_make_no_sense_change_nothing(tmp_path, text):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.admin("SetTopicPolicies", topic=T, policies=text)
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.admin("SetNamespacePolicies", namespace="default", policies=text)
            assert (await asker.admin("GetTopicPolicies", topic=T)).policies == "{}"
            assert (await asker.admin("GetNamespacePolicies", namespace="default")).policies == "{}"

    run(story())


def test_policies_that_this_broker_cannot_keep_are_refused_before_anything_changes(tmp_path):
    async def story():
        world = AdminWorld(tmp_path, upload={"enabled": False})
        async with world.asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.FAILED_PRECONDITION):
                await asker.admin("SetTopicPolicies", topic=T, policies='{"ack_level": "cloud"}')
            with refused(StatusCode.FAILED_PRECONDITION):
                await asker.admin("SetNamespacePolicies", namespace="default", policies='{"ack_level": "cloud"}')
            assert (await asker.admin("GetTopicPolicies", topic=T)).policies == "{}"
            assert (await asker.admin("GetNamespacePolicies", namespace="default")).policies == "{}"
        async with world.asker() as asker:
            assert (await asker.admin("DescribeTopic", topic=T)).topic.trouble == ""

    run(story())


LAKE, NO_LAKE = '{"ack_level": "lake"}', '{"lake": false}'


@pytest.mark.parametrize(("above", "below"), [(LAKE, NO_LAKE), (NO_LAKE, LAKE)])
def test_who_waits_for_a_table_must_have_one_whoever_says_so(tmp_path, above, below):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            await asker.admin("SetNamespacePolicies", namespace="default", policies=above)
            with refused(StatusCode.FAILED_PRECONDITION, "needs a table"):
                await asker.admin("SetTopicPolicies", topic=T, policies=below)
            assert (await asker.admin("GetTopicPolicies", topic=T)).policies == "{}"
            await asker.admin("SetNamespacePolicies", namespace="default", policies="{}")
            await asker.admin("SetTopicPolicies", topic=T, policies=below)
            with refused(StatusCode.FAILED_PRECONDITION, f"topic {T}", "needs a table"):
                await asker.admin("SetNamespacePolicies", namespace="default", policies=above)
            assert (await asker.admin("GetNamespacePolicies", namespace="default")).policies == "{}"

    run(story())


def test_the_brokers_own_policies_count_when_someone_waits_for_a_table(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker(policies=CompletePolicies(lake=False)) as asker:
            await asker.client.producer(T)
            for change in ({"topic": T}, {"namespace": "default"}):
                name = "SetTopicPolicies" if "topic" in change else "SetNamespacePolicies"
                with refused(StatusCode.FAILED_PRECONDITION, "needs a table"):
                    await asker.admin(name, policies=LAKE, **change)
            await asker.admin("SetTopicPolicies", topic=T, policies='{"ack_level": "lake", "lake": true}')

    run(story())


def test_a_topic_that_stores_nothing_waits_for_no_table(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T, reliable=False)
            await asker.admin("SetTopicPolicies", topic=T, policies=NO_LAKE)
            await asker.admin("SetNamespacePolicies", namespace="default", policies=LAKE)

    run(story())


def test_policies_are_of_topics_and_namespaces_that_exist(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for method, fields in [
                ("SetTopicPolicies", {"topic": T, "policies": "{}"}),
                ("GetTopicPolicies", {"topic": T}),
                ("SetNamespacePolicies", {"namespace": "nowhere", "policies": "{}"}),
                ("GetNamespacePolicies", {"namespace": "nowhere"}),
            ]:
                with refused(StatusCode.NOT_FOUND):
                    await asker.admin(method, **fields)
            for method, fields in [
                ("SetTopicPolicies", {"topic": "t", "policies": "{}"}),
                ("GetTopicPolicies", {"topic": ""}),
                ("SetNamespacePolicies", {"namespace": "", "policies": "{}"}),
                ("GetNamespacePolicies", {"namespace": "a/b"}),
            ]:
                with refused(StatusCode.INVALID_ARGUMENT):
                    await asker.admin(method, **fields)

    run(story())


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_subscription_tells_where_it_stands(tmp_path):
    async def story():
        async with AdminWorld(tmp_path, sync_mode="none").asker(max_unacked_messages=3) as asker:
            await asker.client.producer(T)
            consumer = await asker.client.subscribe(T, kind=SHARED)
            await asker.client.subscribe(T, name="away", kind=SHARED)
            await send(asker, *(b"%d" % n for n in range(10)))
            async with asker.client.receive(consumer) as stream:
                found = await stream.take(3)
                await asker.client.ack(found[0])
                await stream.take(1)
                told = (await asker.admin("DescribeSubscription", topic=T, subscription="s")).subscription
                assert (told.name, told.type, told.dispatch) == ("s", pb.SUBSCRIPTION_TYPE_SHARED, pb.DISPATCH_RELIABLE)
                assert (told.cursor, told.lag, told.unacked, told.window, told.blocked) == (1, 9, 3, 3, False)
                assert told.durable_cursor == 0, "what is acknowledged is not synced yet"
                assert told.failure_policy.max_redelivery_count == 5
                assert told.failure_policy.poison == pb.POISON_BLOCK
                assert told.failure_policy.backoff == pb.BACKOFF_EXPONENTIAL
                away, here = told.consumers
                assert (away.name, away.connected, away.active, away.unacked) == ("away", False, False, 0)
                assert (here.name, here.connected, here.active, here.unacked) == ("c", True, True, 3)
                assert here.consumer_id == consumer
                topic = asker.broker.topics.find(T)
                await topic.storage.flush()
                await until(lambda: topic.storage._cursors.durable() == {"s": 1})
                told = (await asker.admin("DescribeSubscription", topic=T, subscription="s")).subscription
                assert told.durable_cursor == 1

    run(story())


def test_of_a_failover_subscription_one_consumer_is_active(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            first = await asker.client.subscribe(T, name="a", kind=FAILOVER)
            second = await asker.client.subscribe(T, name="b", kind=FAILOVER)

            async def active():
                told = (await asker.admin("DescribeSubscription", topic=T, subscription="s")).subscription
                assert all(consumer.connected for consumer in told.consumers if consumer.active)
                return [consumer.name for consumer in told.consumers if consumer.active]

            assert await active() == []
            async with asker.client.receive(second):
                async with asker.client.receive(first):
                    one = await active()
                    assert len(one) == 1
                assert await active() == ["b"]

    run(story())


def test_subscriptions_are_told_sorted_with_filters_and_their_own_settings(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            await asker.client.subscribe(T, "b", kind=KEY_SHARED, filters=("x*", "y?"))
            await asker.client.subscribe(T, "a", kind=EXCLUSIVE)
            config = danube_admin_pb2.SubscriptionDispatchConfig(max_unacked_messages=77)
            await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="a", dispatch_config=config)
            policy = danube_admin_pb2.SubscriptionFailurePolicy(ack_timeout_ms=5, poison_policy=2)
            await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="a", failure_policy=policy)
            a, b = (await asker.admin("DescribeSubscriptions", topic=T)).subscriptions
            assert (a.name, a.window, a.failure_policy.ack_timeout_ms, a.failure_policy.poison) == ("a", 77, 5, 2)
            assert (b.name, b.type, [*b.consumers[0].key_filters]) == (
                "b",
                pb.SUBSCRIPTION_TYPE_KEY_SHARED,
                ["x*", "y?"],
            )
            for method, fields in [
                ("DescribeSubscriptions", {"topic": "/default/u"}),
                ("DescribeSubscription", {"topic": "/default/u", "subscription": "s"}),
                ("DescribeSubscription", {"topic": T, "subscription": "nobody"}),
            ]:
                with refused(StatusCode.NOT_FOUND):
                    await asker.admin(method, **fields)

    run(story())


def test_a_subscription_that_is_not_reliable_is_told_without_a_place(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T)
            consumer = await asker.client.subscribe(T)
            async with asker.client.receive(consumer):
                (told,) = (await asker.admin("DescribeSubscriptions", topic=T)).subscriptions
                assert (told.name, told.dispatch) == ("s", pb.DISPATCH_NON_RELIABLE)
                assert (told.cursor, told.lag, told.window) == (0, 0, 0)
                assert not told.HasField("failure_policy")
                assert [c.connected for c in told.consumers] == [True]

    run(story())


def test_a_topic_is_told_with_its_tiers(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 5, 1000)
            await asker.client.subscribe(T)
            storage = asker.broker.topics.find(T).storage
            await storage.seal(0)
            await storage.objects.uploader.drain()
            await storage.prune(5)
            await asker.fill(T, 2)
            await storage.flush()
            told = (await asker.admin("DescribeTopic", topic=T)).topic
            assert (told.name, told.generation, told.dispatch, told.level) == (
                T,
                1,
                pb.DISPATCH_RELIABLE,
                pb.ACK_LEVEL_WAL,
            )
            offsets = told.offsets
            assert (offsets.start, offsets.next, offsets.synced, offsets.log_start) == (0, 7, 7, 5)
            assert (offsets.cloud_start, offsets.cloud_stop) == (0, 5)
            assert not offsets.HasField("lake_upto")
            assert told.log_bytes == sum(file.stat().st_size for file in tmp_path.glob("wal/default/t/1/wal-*.log"))
            assert told.cloud_bytes == sum(file.stat().st_size for file in tmp_path.glob("objects/default/t/1/*"))
            assert (told.producers, told.consumers, [*told.subscriptions], told.trouble) == (1, 0, ["s"], "")
            assert not told.HasField("schema")
            assert not told.HasField("partition")
            assert told.created_at_ms > 1_700_000_000_000
        async with world.asker() as asker:
            again = (await asker.admin("DescribeTopic", topic=T)).topic
            told.offsets.cloud_stop = 7  # what was left was uploaded when the broker stopped
            assert (again.created_at_ms, again.offsets) == (told.created_at_ms, told.offsets)

    run(story())


def test_a_topic_that_was_deleted_and_made_again_has_another_generation(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for generation in (1, 2):
                await asker.fill(T, 1)
                assert (await asker.admin("DescribeTopic", topic=T)).topic.generation == generation
                await asker.topic("DeleteTopic", name=T)

    run(story())


def test_topics_are_listed_sorted_all_or_of_one_namespace(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreatePartitionedTopic", base_name=T, partitions=2, dispatch_strategy=1)
            await asker.topic("CreateTopic", name="/system/a")
            listed = (await asker.admin("ListTopics")).topics
            assert [told.name for told in listed] == [f"{T}-part-0", f"{T}-part-1", "/system/a"]
            assert (listed[1].partition.base, listed[1].partition.number) == (T, 1)
            assert (listed[2].level, listed[2].generation) == (pb.ACK_LEVEL_MEMORY, 0)
            assert not listed[2].HasField("offsets")
            assert [told.name for told in (await asker.admin("ListTopics", namespace="system")).topics] == ["/system/a"]
            with refused(StatusCode.NOT_FOUND):
                await asker.admin("ListTopics", namespace="nowhere")
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.admin("ListTopics", namespace="..")
            with refused(StatusCode.NOT_FOUND):
                await asker.admin("DescribeTopic", topic="/default/u")

    run(story())


def test_a_topic_in_trouble_is_told_with_its_trouble_and_without_a_path(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 3)
            await asker.client.subscribe(T)
        (file,) = tmp_path.glob("wal/default/t/1/wal-*.log")
        data = bytearray(file.read_bytes())
        data[100] ^= 0xFF
        file.write_bytes(data)
        async with world.asker() as asker:
            assert isinstance(asker.broker.topics[T].problem, CorruptLogError)
            (told,) = (await asker.admin("ListTopics")).topics
            assert "damaged" in told.trouble
            assert str(tmp_path) not in told.trouble
            assert [*told.subscriptions] == ["s"]
            for method, fields in [
                ("DescribeSubscriptions", {}),
                ("DescribeSubscription", {"subscription": "s"}),
                ("ResetCursor", {"subscription": "s", "offset": 0}),
            ]:
                with refused(StatusCode.DATA_LOSS):
                    await asker.admin(method, topic=T, **fields)
            with refused(StatusCode.DATA_LOSS):
                await asker.topic("Unsubscribe", topic=T, subscription="s")

    run(story())


class FailingFiles(OsFiles):
    """A disk whose syncs can be made to fail."""

    fails = False

    def open(self, path):
        return FailingFile(super().open(path), self)

    def create(self, path):
        return FailingFile(super().create(path), self)


class FailingFile:
    """A file on such a disk."""

    def __init__(self, file, disk):
        self._file = file
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync(self):
        if self._disk.fails:
            raise OSError(errno.EIO, "Input/output error", "/secret/place")
        return self._file.sync()


def test_a_topic_whose_log_takes_nothing_more_says_so(tmp_path):
    async def story():
        files = FailingFiles()
        world = AdminWorld(tmp_path, files=files)
        async with world.asker() as asker:
            await asker.fill(T, 1)
            files.fails = True
            with refused(StatusCode.UNKNOWN):
                await asker.storage("RequestSync", topic=T)
            (told,) = (await asker.admin("ListTopics")).topics
            assert "takes no messages" in told.trouble
            assert "secret" not in told.trouble
            files.fails = False

    run(story())


@pytest.mark.parametrize("name", ["ister.v1.Admin", "ister.v1.Storage"])
def test_every_method_of_the_proto_is_served_with_its_own_messages(tmp_path, name):
    async def story():
        async with AdminWorld(tmp_path).broker() as client:
            (service,) = [service for service in Asker(client).services if service.name == name]
            described = ister_v1_pb2.DESCRIPTOR.services_by_name[name.rpartition(".")[2]].methods_by_name
            assert {method.name for method in service.methods} == {*described}
            for method in service.methods:
                assert method.request.DESCRIPTOR is described[method.name].input_type
                assert method.response.DESCRIPTOR is described[method.name].output_type

    run(story())
