"""Every change of a subscription is one event."""

import asyncio

import pytest

from ister.broker.registry.validation import Validation
from ister.core.errors import OffsetOutOfRangeError
from ister.core.message import MsgID, StreamMessage
from ister.rpc import danube_admin_pb2 as pb
from ister.schemas import TopicSchema
from parts.admin import AdminWorld
from parts.broker import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, BrokerWorld, until
from parts.cloud import named, told

T = "/default/t"
PLACE = {"topic": T, "subscription": "s", "log_level": "info"}


def fields(events, name):
    return [{key: value for key, value in event.items() if key != "event"} for event in named(events, name)]


@pytest.mark.parametrize("made", [True, False])
def test_a_failure_policy_and_a_window_that_are_set_are_told(tmp_path, made):
    async def act():
        async with AdminWorld(tmp_path).asker() as asker:
            await asker.client.producer(T)
            if made:
                await asker.client.subscribe(T)
            policy = pb.SubscriptionFailurePolicy(
                max_redelivery_count=3, ack_timeout_ms=1000, poison_policy=0, dead_letter_topic="/default/dead"
            )
            window = pb.SubscriptionDispatchConfig(max_unacked_messages=7)
            with told() as events:
                await asker.topic("SetSubscriptionFailurePolicy", topic=T, subscription="s", failure_policy=policy)
                await asker.topic("SetSubscriptionDispatchConfig", topic=T, subscription="s", dispatch_config=window)
            [event] = fields(events, "failure_policy_set")
            assert event.items() >= PLACE.items()
            assert (event["max_redelivery_count"], event["ack_timeout_ms"]) == (3, 1000)
            assert (event["poison"], event["dead_letter_topic"]) == ("dead_letter", "/default/dead")
            assert fields(events, "window_set") == [PLACE | {"window": 7}]

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_the_next_in_a_failover_is_told_when_its_turn_comes(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            first, second = [await client.subscribe(T, name=name, kind=FAILOVER) for name in ("first", "second")]
            with told() as events:
                async with client.receive(first) as leading:
                    async with client.receive(second):
                        assert named(events, "consumer_promoted") == [], "the first was nobody's successor"
                        await leading.stop()
                        await until(lambda: named(events, "consumer_promoted"))
                        async with client.receive(first):
                            pass
                    async with client.receive(second):
                        pass
            assert fields(events, "consumer_promoted") == [PLACE | {"consumer": "second"}], "who comes back is no event"

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_those_who_share_have_no_successor(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            consumers = [await client.subscribe(T, name=name, kind=SHARED) for name in "ab"]
            with told() as events:
                async with client.receive(consumers[1]), client.receive(consumers[0]):
                    pass
                async with client.receive(consumers[0]):
                    pass
            assert named(events, "consumer_promoted") == []

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_another_type_is_told(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=0.0) as client:
            await client.producer(T, reliable=reliable)
            await client.subscribe(T, kind=EXCLUSIVE)
            with told() as events:
                await client.subscribe(T, kind=EXCLUSIVE)
                await client.subscribe(T, kind=SHARED)
            assert fields(events, "subscription_type_changed") == [PLACE | {"before": "EXCLUSIVE", "type": "SHARED"}]

    asyncio.run(act())


def test_messages_that_no_filter_takes_are_counted_and_told_once_in_a_while(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T, kind=KEY_SHARED, filters=["eu-*"])
            subscription = client.broker.topics[T].subscriptions["s"]
            with told() as events:
                async with client.receive(consumer) as stream:
                    for number in range(3):
                        await client.send(T, producer, b"%d" % number, routing_key="us-1")
                        await until(lambda count=number + 1: subscription.cursor == count)
                    await client.send(T, producer, b"mine", routing_key="eu-1")
                    assert [message.payload for message in await stream.take(1)] == [b"mine"]
            assert fields(events, "messages_skipped") == [PLACE | {"log_level": "warning", "count": 1}]
            assert subscription.dispatch.skipped == 3

    asyncio.run(act())


class ExpiringLog:
    """A reader that gives ten messages, and then finds that retention has deleted up to 200."""

    def __init__(self):
        self.next_offset, self.skipped_upto, self.expire = 0, 0, asyncio.Event()

    async def read(self):
        if self.next_offset == 10:
            await self.expire.wait()
            raise OffsetOutOfRangeError(10, 200, 300)
        self.next_offset = 10
        return [StreamMessage(b"%d" % at, MsgID(1, T, "b", at), producer_name="p") for at in range(10)]

    async def close(self):
        """Nothing is open."""


def test_messages_that_retention_took_are_told_with_all_that_were_not_acknowledged(tmp_path, monkeypatch):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker(max_unacked_messages=4) as client:
            await client.producer(T)
            consumer = await client.subscribe(T)
            topic = client.broker.topics[T]
            reader, go_on = ExpiringLog(), asyncio.Event()

            async def read_from(offset):
                if offset >= 200:
                    go_on.set()
                    await asyncio.Event().wait()
                return reader

            monkeypatch.setattr(topic, "read_from", read_from)
            monkeypatch.setattr(type(topic), "start_offset", 200)
            with told() as events:
                async with client.receive(consumer) as stream:
                    first, second, *_ = await stream.take(4)
                    await client.ack(first)
                    await client.ack(second)
                    reader.expire.set()
                    await go_on.wait()
            [event] = fields(events, "messages_expired")
            assert (event["start"], event["stop"], event["count"]) == (2, 200, 198)

    asyncio.run(act())


def test_a_deleted_topic_leaves_no_counts_of_its_schema(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            validation = client.producing._validation
            assert isinstance(validation, Validation)
            await validation.check(T, TopicSchema("subject"), StreamMessage(b"x"))
            assert validation.counters.checked
            await client.broker.delete_topic(client.broker.topics[T].name)
            assert not validation.counters.checked
            assert not validation.counters.failed

    asyncio.run(act())
