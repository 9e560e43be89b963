"""danube_admin.TopicAdmin: topics, each status of the protocol, and what a restart must not change."""

import asyncio

import pytest
from grpc import StatusCode

from ister.core.errors import MetadataUnavailableError
from ister.ports.metadata import MemoryMetadata
from ister.rpc import danube_admin_pb2 as pb
from parts.admin import AdminWorld, refused
from parts.broker import FAILOVER, SHARED
from parts.cloud import TroubledMetadata, run, told

T = "/default/t"
BAD_NAMES = [
    "",
    "t",
    "default/t",
    "/default",
    "/default/",
    "//t",
    "/a/b/c",
    "/default/ä",
    "/default/.",
    "/d/" + "x" * 300,
]


def texts(infos):
    return [info.name for info in infos.topics]


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "delivery"), [(pb.Reliable, "Reliable"), (pb.NonReliable, "NonReliable")])
def test_a_topic_is_made_described_and_found_again_after_a_restart(tmp_path, strategy, delivery):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            assert (await asker.topic("CreateTopic", name=T, dispatch_strategy=strategy)).success
            before = await asker.topic("DescribeTopic", name=T)
            assert (before.name, before.delivery, [*before.subscriptions]) == (T, delivery, [])
            assert before.broker_id.isdecimal()
            for field in ("schema_subject", "schema_id", "schema_version", "schema_type", "compatibility_mode"):
                assert not before.HasField(field)
        async with world.asker() as asker:
            assert await asker.topic("DescribeTopic", name=T) == before

    run(story())


def test_a_topic_cannot_be_made_twice_nor_where_there_is_no_namespace(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.ALREADY_EXISTS, T):
                await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.NOT_FOUND, "namespace nowhere not found"):
                await asker.topic("CreateTopic", name="/nowhere/t", dispatch_strategy=1)
            with refused(StatusCode.INVALID_ARGUMENT, "dispatch_strategy"):
                await asker.topic("CreateTopic", name="/default/u", dispatch_strategy=2)
            assert texts(await asker.topic("ListNamespaceTopics", name="default")) == [T]

    run(story())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_topic_is_refused_by_every_method_that_takes_one(tmp_path, name):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for method, field in [
                ("CreateTopic", "name"),
                ("CreatePartitionedTopic", "base_name"),
                ("DeleteTopic", "name"),
                ("UnloadTopic", "name"),
                ("DescribeTopic", "name"),
                ("ListSubscriptions", "name"),
            ]:
                more = {"partitions": 2} if method == "CreatePartitionedTopic" else {}
                with refused(StatusCode.INVALID_ARGUMENT):
                    await asker.topic(method, **{field: name}, **more)
            window = pb.SubscriptionDispatchConfig(max_unacked_messages=1)
            for method, more in [
                ("Unsubscribe", {}),
                ("SetSubscriptionFailurePolicy", {"failure_policy": pb.SubscriptionFailurePolicy(poison_policy=1)}),
                ("GetSubscriptionFailurePolicy", {}),
                ("SetSubscriptionDispatchConfig", {"dispatch_config": window}),
                ("GetSubscriptionDispatchConfig", {}),
            ]:
                with refused(StatusCode.INVALID_ARGUMENT):
                    await asker.topic(method, topic=name, subscription="s", **more)

    run(story())


def test_a_topic_can_be_made_with_a_schema_that_is_registered(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            with refused(StatusCode.FAILED_PRECONDITION, "not found"):
                await asker.topic("CreateTopic", name=T, schema_subject="orders", dispatch_strategy=1)
            assert texts(await asker.topic("ListNamespaceTopics", name="default")) == []
            number = await asker.register("orders")
            await asker.topic("CreateTopic", name=T, schema_subject="orders", dispatch_strategy=1)
            await asker.topic("CreatePartitionedTopic", base_name="/default/p", partitions=2, schema_subject="orders")
        async with world.asker() as asker:
            for name in (T, "/default/p-part-0", "/default/p-part-1"):
                found = await asker.topic("DescribeTopic", name=name)
                assert (found.schema_subject, found.schema_id, found.schema_version) == ("orders", number, 1)
                assert (found.schema_type, found.compatibility_mode) == ("string", "backward")

    run(story())


@pytest.mark.parametrize("count", [0, 1025, 2**32 - 1])
def test_a_partitioned_topic_has_from_1_to_1024_partitions(tmp_path, count):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            with refused(StatusCode.INVALID_ARGUMENT, "1 to 1024"):
                await asker.topic("CreatePartitionedTopic", base_name=T, partitions=count)
            assert asker.broker.topics == {}

    run(story())


def test_partitions_are_made_together_and_deleted_together(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        names = [f"{T}-part-{n}" for n in range(12)]
        async with world.asker() as asker:
            await asker.topic("CreatePartitionedTopic", base_name=T, partitions=12, dispatch_strategy=1)
        async with world.asker() as asker:
            assert texts(await asker.topic("ListNamespaceTopics", name="default")) == sorted(names)
            with refused(StatusCode.ALREADY_EXISTS):
                await asker.topic("CreatePartitionedTopic", base_name=T, partitions=12, dispatch_strategy=1)
            with refused(StatusCode.ALREADY_EXISTS):
                await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.FAILED_PRECONDITION, T):
                await asker.topic("DeleteTopic", name=names[3])
            await asker.topic("DeleteTopic", name=T)
            assert asker.broker.topics == {}
        async with world.asker() as asker:
            assert asker.broker.topics == {}

    run(story())


def test_a_partition_that_cannot_be_made_leaves_none_behind(tmp_path):
    async def story():
        async with AdminWorld(tmp_path, TroubledMetadata(MemoryMetadata())).asker() as asker:
            asker.broker.records._metadata.fail["put"] = [None] * 3 + [MetadataUnavailableError("m", "put", "down")]
            with refused(StatusCode.UNAVAILABLE):
                await asker.topic("CreatePartitionedTopic", base_name=T, partitions=8, dispatch_strategy=1)
            assert asker.broker.topics == {}
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            assert [*asker.broker.topics] == [T]

    run(story())


def test_a_base_whose_partitions_would_have_bad_names_is_refused_before_any_is_made(tmp_path):
    async def story():
        metadata = TroubledMetadata(MemoryMetadata())
        async with AdminWorld(tmp_path, metadata).asker() as asker:
            long = "/default/" + "x" * (255 - len("/default/-part-9"))
            await asker.topic("CreatePartitionedTopic", base_name=long, partitions=10)
            await asker.topic("DeleteTopic", name=long)
            writes = metadata.count("put")
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.topic("CreatePartitionedTopic", base_name=long, partitions=11)
            with refused(StatusCode.INVALID_ARGUMENT, "partition"):
                await asker.topic("CreatePartitionedTopic", base_name="/default/x-part-1", partitions=2)
            with refused(StatusCode.NOT_FOUND):
                await asker.topic("CreatePartitionedTopic", base_name="/nowhere/x", partitions=2)
            with refused(StatusCode.INVALID_ARGUMENT, "dispatch_strategy"):
                await asker.topic("CreatePartitionedTopic", base_name=T, partitions=2, dispatch_strategy=7)
            assert asker.broker.topics == {}
            assert metadata.count("put") == writes, "none was made and taken back"

    run(story())


def test_what_is_not_there_is_not_found(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for method in ("DeleteTopic", "UnloadTopic", "DescribeTopic", "ListSubscriptions"):
                with refused(StatusCode.NOT_FOUND, f"topic {T} not found"):
                    await asker.topic(method, name=T)
            for method in ("Unsubscribe", "GetSubscriptionFailurePolicy", "GetSubscriptionDispatchConfig"):
                with refused(StatusCode.NOT_FOUND):
                    await asker.topic(method, topic=T, subscription="s")
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            for method in ("Unsubscribe", "GetSubscriptionFailurePolicy", "GetSubscriptionDispatchConfig"):
                with refused(StatusCode.NOT_FOUND, "subscription s"):
                    await asker.topic(method, topic=T, subscription="s")
            with refused(StatusCode.NOT_FOUND):
                await asker.topic("ListNamespaceTopics", name="nowhere")
            with refused(StatusCode.INVALID_ARGUMENT):
                await asker.topic("ListNamespaceTopics", name="a/b")
            with refused(StatusCode.NOT_FOUND):
                await asker.topic("ListBrokerTopics", broker_id="17")

    run(story())


def test_a_topic_is_never_unloaded_by_the_only_broker(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.UNIMPLEMENTED):
                await asker.topic("UnloadTopic", name=T)

    run(story())


def test_topics_are_listed_sorted_by_namespace_and_by_broker(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            for name in ("/system/z", "/default/b", "/default/a"):
                await asker.topic("CreateTopic", name=name, dispatch_strategy=1)
            await asker.topic("CreateTopic", name="/default/c")
            found = await asker.topic("ListNamespaceTopics", name="default")
            assert [(i.name, i.delivery) for i in found.topics] == [
                ("/default/a", "Reliable"),
                ("/default/b", "Reliable"),
                ("/default/c", "NonReliable"),
            ]
            (this,) = {info.broker_id for info in found.topics}
            assert texts(await asker.topic("ListBrokerTopics", broker_id=this)) == [
                "/default/a",
                "/default/b",
                "/default/c",
                "/system/z",
            ]

    run(story())


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_subscriptions_are_listed_once_and_sorted(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 1)
            await asker.topic(
                "SetSubscriptionDispatchConfig", topic=T, subscription="only-set", dispatch_config=window(3)
            )
            for name in ("b", "a"):
                for consumer in ("c1", "c2"):
                    await asker.client.subscribe(T, name, consumer, SHARED)
            assert [*(await asker.topic("ListSubscriptions", name=T)).subscriptions] == ["a", "b"]
        async with world.asker() as asker:
            assert [*(await asker.topic("ListSubscriptions", name=T)).subscriptions] == ["a", "b"]
            assert [*(await asker.topic("DescribeTopic", name=T)).subscriptions] == ["a", "b"]

    run(story())


def test_a_subscription_is_removed_with_its_progress_once_nobody_is_connected(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 1)
            consumer = await asker.client.subscribe(T)
            async with asker.client.receive(consumer):
                with refused(StatusCode.NOT_FOUND, "active"):
                    await asker.topic("Unsubscribe", topic=T, subscription="s")
            assert (await asker.topic("Unsubscribe", topic=T, subscription="s")).success
            assert consumer not in asker.broker.subscriptions.consumers
            with refused(StatusCode.NOT_FOUND):
                await asker.topic("Unsubscribe", topic=T, subscription="s")
        async with world.asker() as asker:
            assert [*(await asker.topic("ListSubscriptions", name=T)).subscriptions] == []
            assert await asker.broker.topics.find(T).storage.cursors() == {}

    run(story())


def test_a_subscription_that_could_not_be_removed_is_still_there(tmp_path):
    async def story():
        metadata = TroubledMetadata(MemoryMetadata())
        async with AdminWorld(tmp_path, metadata).asker() as asker:
            await asker.fill(T, 1)
            consumer = await asker.client.subscribe(T)
            metadata.fail["delete"] = [MetadataUnavailableError("m", "delete", "down")]
            with refused(StatusCode.UNAVAILABLE):
                await asker.topic("Unsubscribe", topic=T, subscription="s")
            assert [*(await asker.topic("ListSubscriptions", name=T)).subscriptions] == ["s"]
            async with asker.client.receive(consumer) as stream:
                await asker.fill(T, 1)
                await stream.take(1)

    run(story())


def test_settings_that_nobody_used_are_removed_by_unsubscribing(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window(3))
            await asker.topic("Unsubscribe", topic=T, subscription="s")
        async with world.asker() as asker:
            with refused(StatusCode.NOT_FOUND):
                await asker.topic("GetSubscriptionDispatchConfig", topic=T, subscription="s")

    run(story())


def window(count):
    return pb.SubscriptionDispatchConfig(max_unacked_messages=count)


def policy(**fields):
    given = {
        "max_redelivery_count": 2,
        "ack_timeout_ms": 500,
        "base_redelivery_delay_ms": 10,
        "max_redelivery_delay_ms": 20,
        "backoff_strategy": pb.Fixed,
        "poison_policy": pb.Drop,
    }
    return pb.SubscriptionFailurePolicy(**(given | fields))


POLICIES = [
    policy(),
    policy(poison_policy=pb.Block, backoff_strategy=pb.Exponential, ack_timeout_ms=0),
    policy(poison_policy=pb.DeadLetter, dead_letter_topic="/default/dead"),
    policy(max_redelivery_count=2**32 - 1, max_redelivery_delay_ms=30 * 86_400_000),
]


@pytest.mark.parametrize("given", POLICIES)
def test_a_failure_policy_may_be_set_before_the_subscription_exists_and_survives_restarts(tmp_path, given):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)
            await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window(7))
        async with world.asker() as asker:
            found = await asker.topic("GetSubscriptionFailurePolicy", topic=T, subscription="s")
            assert found.failure_policy == given
            await asker.client.subscribe(T, "s", "c", FAILOVER)
            found = await asker.topic("GetSubscriptionFailurePolicy", topic=T, subscription="s")
            assert (found.failure_policy, found.subscription_type) == (given, FAILOVER)
        async with world.asker() as asker:
            found = await asker.topic("GetSubscriptionFailurePolicy", topic=T, subscription="s")
            assert (found.failure_policy, found.subscription_type) == (given, FAILOVER)
            found = await asker.topic("GetSubscriptionDispatchConfig", topic=T, subscription="s")
            assert found.dispatch_config == window(7)

    run(story())


def test_what_is_set_of_a_subscription_that_exists_survives_a_restart(tmp_path):
    async def story():
        world = AdminWorld(tmp_path)
        async with world.asker() as asker:
            await asker.fill(T, 1)
            await asker.client.subscribe(T, "s", "c", SHARED)
            await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=policy())
            await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window(7))
        async with world.asker() as asker:
            found = await asker.topic("GetSubscriptionFailurePolicy", topic=T, subscription="s")
            assert (found.failure_policy, found.subscription_type) == (policy(), SHARED)
            found = await asker.topic("GetSubscriptionDispatchConfig", topic=T, subscription="s")
            assert found.dispatch_config == window(7)

    run(story())


def test_what_was_not_set_is_not_told(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.fill(T, 1)
            await asker.client.subscribe(T, "s", "c", SHARED)
            found = await asker.topic("GetSubscriptionFailurePolicy", topic=T, subscription="s")
            assert (found.HasField("failure_policy"), found.subscription_type) == (False, SHARED)
            found = await asker.topic("GetSubscriptionDispatchConfig", topic=T, subscription="s")
            assert not found.HasField("dispatch_config")

    run(story())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (None, "failure_policy"),
        (policy(poison_policy=pb.DeadLetter), "dead_letter_topic"),
        (policy(poison_policy=pb.DeadLetter, dead_letter_topic=""), "dead_letter_topic"),
        (policy(poison_policy=pb.DeadLetter, dead_letter_topic="dead"), "topic name"),
        (policy(dead_letter_topic="no/topic"), "topic name"),
        (policy(poison_policy=pb.DeadLetter, dead_letter_topic=T), "itself"),
        (policy(poison_policy=3), "poison_policy"),
        (policy(backoff_strategy=-1), "backoff_strategy"),
        (policy(ack_timeout_ms=2**64 - 1), "ack_timeout_ms"),
        (policy(base_redelivery_delay_ms=30 * 86_400_000 + 1), "base_redelivery_delay_ms"),
        (policy(max_redelivery_delay_ms=2**63), "max_redelivery_delay_ms"),
    ],
)
def test_a_failure_policy_that_makes_no_sense_is_refused_by_its_field(tmp_path, given, word):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.INVALID_ARGUMENT, word):
                await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)
            assert asker.broker.topics.find(T).dormant == {}

    run(story())


@pytest.mark.parametrize("count", [0, 10_001, 2**32 - 1])
def test_a_window_is_from_1_to_10000(tmp_path, count):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            with refused(StatusCode.INVALID_ARGUMENT, "1 to 10000"):
                await asker.topic(
                    "SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window(count)
                )
            with refused(StatusCode.INVALID_ARGUMENT, "dispatch_config"):
                await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s")

    run(story())


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
def test_a_subscription_must_have_a_name_that_can_be_printed(tmp_path, name):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            for method, more in [
                ("Unsubscribe", {}),
                ("SetSubscriptionFailurePolicy", {"failure_policy": policy()}),
                ("GetSubscriptionFailurePolicy", {}),
                ("SetSubscriptionDispatchConfig", {"dispatch_config": window(1)}),
                ("GetSubscriptionDispatchConfig", {}),
            ]:
                with refused(StatusCode.INVALID_ARGUMENT, "subscription"):
                    await asker.topic(method, topic=T, subscription=name, **more)

    run(story())


def test_a_topic_that_is_not_reliable_has_neither_policy_nor_window(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T)
            await asker.client.subscribe(T)
            for method, more in [
                ("SetSubscriptionFailurePolicy", {"failure_policy": policy()}),
                ("GetSubscriptionFailurePolicy", {}),
                ("SetSubscriptionDispatchConfig", {"dispatch_config": window(1)}),
                ("GetSubscriptionDispatchConfig", {}),
            ]:
                with refused(StatusCode.FAILED_PRECONDITION, "not reliable"):
                    await asker.topic(method, topic=T, subscription="s", **more)

    run(story())


def test_dead_letters_are_not_sent_where_they_would_be_lost(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            await asker.topic("CreateTopic", name="/default/dead")
            given = policy(poison_policy=pb.DeadLetter, dead_letter_topic="/default/dead")
            with refused(StatusCode.FAILED_PRECONDITION, "not reliable"):
                await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)

    run(story())


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/default/parts", "with partitions; name one of its partitions"),
        ("/default/plain-part-0", "exists without partitions"),
        ("/nowhere/dead", "namespace nowhere not found"),
        ("/default/absent", "create it first"),
    ],
)
def test_a_dead_letter_topic_that_could_not_be_made_is_refused(tmp_path, target, reason):
    """J10."""

    async def story():
        async with AdminWorld(tmp_path).asker(auto_create_topics="absent" not in target) as asker:
            for name in (T, "/default/plain"):
                await asker.topic("CreateTopic", name=name, dispatch_strategy=1)
            await asker.topic("CreatePartitionedTopic", base_name="/default/parts", partitions=2, dispatch_strategy=1)
            given = policy(poison_policy=pb.DeadLetter, dead_letter_topic=target)
            with refused(StatusCode.FAILED_PRECONDITION, reason):
                await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)

    run(story())


def test_a_partition_may_take_dead_letters(tmp_path):
    """J10."""

    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            await asker.topic("CreatePartitionedTopic", base_name="/default/parts", partitions=2, dispatch_strategy=1)
            given = policy(poison_policy=pb.DeadLetter, dead_letter_topic="/default/parts-part-1")
            await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)

    run(story())


def test_a_larger_window_counts_at_once(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker(max_unacked_messages=2) as asker:
            consumer = None
            producer = await asker.client.producer(T)
            consumer = await asker.client.subscribe(T)
            for number in range(10):
                await asker.client.send(T, producer, b"%d" % number)
            async with asker.client.receive(consumer) as stream:
                await stream.take(2)
                assert stream.waiting() == 0
                await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window(6))
                assert [m.payload for m in await stream.take(4)] == [b"2", b"3", b"4", b"5"]
                await asyncio.sleep(0)
                assert stream.waiting() == 0

    run(story())


def test_a_blocked_subscription_goes_on_when_its_policy_is_changed_and_both_are_told(tmp_path):
    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            producer = await asker.client.producer(T)
            consumer = await asker.client.subscribe(T)
            given = policy(max_redelivery_count=0, poison_policy=pb.Block)
            await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)
            async with asker.client.receive(consumer) as stream:
                await asker.client.send(T, producer, b"bad")
                (bad,) = await stream.take(1)
                with told() as events:
                    await asker.client.nack(bad)
                    assert asker.broker.topics.find(T).subscriptions["s"].dispatch.blocked
                    given = policy(max_redelivery_count=0, poison_policy=pb.Drop)
                    await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=given)
                logged = [(event["event"], event["subscription"], event.get("cursor")) for event in events]
                unblocked = [("subscription_unblocked", "s", 0), ("failure_policy_set", "s", None)]
                assert logged == [("subscription_blocked", "s", 0), *unblocked]
                (bad,) = await stream.take(1)
                await asker.client.nack(bad)
                await asker.client.send(T, producer, b"good")
                assert [m.payload for m in await stream.take(1)] == [b"good"]

    run(story())


def test_dormant_subscriptions_that_nobody_makes_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("ister.broker.services.topic_admin.SETTINGS_MAX", 3)

    async def story():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.topic("CreateTopic", name=T, dispatch_strategy=1)
            for name in ("a", "b", "c", "a"):
                await asker.topic(
                    "SetSubscriptionDispatchConfig", topic=T, subscription=name, dispatch_config=window(1)
                )
            with refused(StatusCode.RESOURCE_EXHAUSTED):
                await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="d", dispatch_config=window(1))

    run(story())
