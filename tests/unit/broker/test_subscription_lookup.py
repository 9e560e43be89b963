"""Who keeps his place in a subscription while he is not listening, and what is kept for him."""

import asyncio

import pytest
from danube.proto.DanubeApi_pb2 import HealthCheckRequest, HealthCheckResponse

from ister.broker.services import consumer as consuming_module
from ister.broker.topics import consumer as stream_module
from ister.broker.topics.consumer import Consumer, Stream
from ister.broker.topics.dead_letters import dead_letter_message
from ister.broker.topics.records import SubscriptionRecord
from ister.broker.topics.subscriptions import _sweep_topic
from ister.config.policies import CompletePolicies, Policies
from ister.core.dispatch.dispatch import DeadLetter
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import DeniedError, LimitError, PreconditionError
from ister.core.message import MsgID, StreamMessage
from parts.broker import EXCLUSIVE, KEY_SHARED, SHARED, BrokerWorld, until
from parts.cloud import named, told
from sim.machine import run as run_in_virtual_time

T = "/default/t"
LONG_AGO_S = 1000.0
CONSUMER = HealthCheckRequest.ClientType.Consumer


def payloads(messages):
    return [message.payload for message in messages]


async def healthy(client, consumer):
    answer = await client.discovery.health_check(HealthCheckRequest(client=CONSUMER, id=consumer))
    return answer.status == HealthCheckResponse.ClientStatus.OK


def age(client, consumer):
    """Let a consumer's stream have ended long ago."""
    _, subscription, known = client.broker.subscriptions.consumers[consumer]
    known.left_at = known.seen = asyncio.get_running_loop().time() - LONG_AGO_S
    if not subscription.reliable:
        subscription.empty_since = known.left_at


async def sweep(client):
    await _sweep_topic(client.broker, client.broker.topics[T], asyncio.get_running_loop().time())


@pytest.mark.parametrize("reliable", [True, False])
def test_who_subscribes_again_has_his_place_until_his_stream_opens(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            first = await client.subscribe(T, name="a")
            age(client, first)
            assert await client.subscribe(T, name="a") == first
            with pytest.raises(DeniedError, match="exclusive"):
                await client.subscribe(T, name="b", kind=EXCLUSIVE)
            await sweep(client)
            async with client.receive(first):
                assert await healthy(client, first)

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_who_is_heard_of_is_not_forgotten_though_he_does_not_listen(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            consumer = await client.subscribe(T)
            age(client, consumer)
            assert await healthy(client, consumer)
            await sweep(client)
            assert await healthy(client, consumer)
            age(client, consumer)
            await sweep(client)
            assert not await healthy(client, consumer), "nobody has heard of him"

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_who_comes_while_the_sweep_waits_for_its_turn_stays(tmp_path, reliable):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            consumer = await client.subscribe(T)
            age(client, consumer)
            topic = client.broker.topics[T]
            async with client.broker.topics.changing(topic.name):
                sweeping = asyncio.create_task(sweep(client))
                for _ in range(3):
                    await asyncio.sleep(0)  # it has seen that nobody is there, and waits
                client.broker.subscriptions.consumers[consumer][1].join(consumer, "c", ())
            await sweeping
            async with client.receive(consumer):
                assert await healthy(client, consumer)

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_a_sweep_writes_nothing_of_a_topic_that_is_deleted_meanwhile(tmp_path, reliable):
    """J9."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            broker = client.broker
            await client.producer(T, reliable=reliable)
            consumer = await client.subscribe(T)
            topic = broker.topics[T]
            subscription = topic.subscriptions["s"]
            async with broker.topics.changing(topic.name):
                deleting = asyncio.create_task(broker.delete_topic(topic.name))
                await asyncio.sleep(0)  # it is the first that waits
                age(client, consumer)
                sweeping = asyncio.create_task(sweep(client))
                for _ in range(3):
                    await asyncio.sleep(0)
            await asyncio.gather(deleting, sweeping)
            assert topic.subscriptions["s"] is subscription
            assert not await broker.records.subscriptions()

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_a_consumer_whose_stream_is_ended_by_the_broker_has_only_just_left(tmp_path, reliable):
    """J9."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T, reliable=reliable)
            consumer = await client.subscribe(T)
            subscription = client.broker.topics[T].subscriptions["s"]
            async with client.receive(consumer) as stream:
                age(client, consumer)
                subscription.close()
                await stream.end()
            assert not subscription.consumers["c"].is_expired(asyncio.get_running_loop().time(), LONG_AGO_S / 2)

    asyncio.run(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_a_consumer_that_comes_back_while_it_is_being_forgotten_stays(tmp_path, monkeypatch, reliable):
    """J9."""

    async def act():
        async with BrokerWorld(tmp_path).broker(volatile_subscription_expiry_s=2 * LONG_AGO_S) as client:
            broker = client.broker
            producer = await client.producer(T, reliable=reliable)
            back, gone = [await client.subscribe(T, name=name, kind=SHARED) for name in ("back", "gone")]
            age(client, back)
            age(client, gone)
            save, written, go_on = broker.records.save_subscription, asyncio.Event(), asyncio.Event()

            async def slow_save(*args):
                await save(*args)
                written.set()
                await go_on.wait()

            monkeypatch.setattr(broker.records, "save_subscription", slow_save)
            sweeping = asyncio.create_task(sweep(client))
            await written.wait()
            async with client.receive(back) as stream:
                go_on.set()
                await sweeping
                assert list(broker.subscriptions.consumers) == [back]
                [records] = (await broker.records.subscriptions()).values()
                assert list(records["s"].consumers) == ["back"]
                await client.send(T, producer, b"0")
                assert payloads(await stream.take(1)) == [b"0"]

    asyncio.run(act())


def test_no_progress_of_a_deleted_topic_is_saved(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker(cursor_interval_s=0.05) as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            topic = client.broker.topics[T]
            async with client.receive(consumer) as stream:
                await client.send(T, producer, b"0")
                [message] = await stream.take(1)
                await client.ack(message)
                assert topic._saving is not None, "a save is due"
                await client.broker.delete_topic(topic.name)
            assert topic._saving is None

    asyncio.run(act())


def test_streams_of_one_consumer_take_over_from_each_other_later_each_time():
    """J13."""

    async def act():
        now, takes = asyncio.get_running_loop().time, []
        consumer = Consumer(1, "c", (), now(), now())

        async def keep_coming(until_s):
            while now() < until_s:
                await consumer.wait_to_take_over(T, "s")
                if consumer.stream is not None:
                    consumer.stream.end()
                consumer.stream = mine = Stream()
                takes.append(now())
                await mine.over.wait()

        with told() as events:
            rivals = [asyncio.create_task(keep_coming(100.0)) for _ in range(2)]
            await asyncio.sleep(130)
        assert takes == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91, 121])
        assert len(named(events, "consumer_contended")) == 1
        for rival in rivals:
            rival.cancel()

    run_in_virtual_time(act())


def test_a_stream_that_lasted_is_taken_over_at_once_and_one_that_ended_is_not_waited_for():
    """J13."""

    async def act():
        loop = asyncio.get_running_loop()
        consumer = Consumer(1, "c", (), loop.time(), loop.time())
        consumer.stream, consumer.take_overs = Stream(), 2
        await asyncio.sleep(61)
        began = loop.time()
        await consumer.wait_to_take_over(T, "s")
        assert (loop.time(), consumer.take_overs) == (began, 0)
        consumer.stream = stream = Stream()
        waiting = asyncio.create_task(consumer.wait_to_take_over(T, "s"))
        await asyncio.sleep(0.25)
        consumer.stream = None
        stream.end()
        await waiting
        assert loop.time() == pytest.approx(began + 0.25)

    run_in_virtual_time(act())


@pytest.mark.parametrize("reliable", [True, False])
def test_a_second_stream_of_a_consumer_waits_before_it_takes_over(tmp_path, monkeypatch, reliable):
    """J13."""
    monkeypatch.setattr(stream_module, "TAKE_OVER_S", 0.05)

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T, reliable=reliable)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as first, client.receive(consumer) as second:
                await client.send(T, producer, b"0")
                assert payloads(await first.take(1)) == [b"0"]
                await first.end()
                await client.send(T, producer, b"1")
                assert payloads(await second.take(1 + reliable))[-1:] == [b"1"]

    asyncio.run(act())


def test_a_new_topic_has_no_subscription_that_was_written_late(tmp_path):
    """J9."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            await client.producer(T)
            await client.subscribe(T)
            name, record = client.broker.topics[T].name, client.broker.topics[T].subscriptions["s"].record
            await client.broker.delete_topic(name)
            await client.broker.records.save_subscription(name, "s", record)  # as another broker may, a moment later
            await client.producer(T)
        async with world.broker() as client:
            assert not client.broker.topics[T].subscriptions

    asyncio.run(act())


LIMITS = [
    (Policies(max_consumers_per_subscription=1), DeniedError),
    (Policies(max_consumers_per_topic=1), LimitError),
]


async def refused_stream(client, consumer, error):
    async with client.receive(consumer) as stream:
        with pytest.raises(error, match="as many as it may have"):
            await stream.end()


@pytest.mark.parametrize(("policies", "error"), LIMITS)
@pytest.mark.parametrize("reliable", [True, False])
def test_a_remembered_consumer_counts_as_new_once_its_grace_is_over(tmp_path, reliable, policies, error):
    """J11."""

    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=LONG_AGO_S / 2) as client:
            await client.producer(T, reliable=reliable)
            await client.broker.set_topic_policies(client.broker.topics[T].name, policies)
            first = await client.subscribe(T, name="a", kind=SHARED)
            age(client, first)
            second = await client.subscribe(T, name="b", kind=SHARED)
            await refused_stream(client, first, error)
            with pytest.raises(error):
                await client.subscribe(T, name="a", kind=SHARED)
            async with client.receive(second):
                await refused_stream(client, first, error)
                assert await client.subscribe(T, name="b", kind=SHARED) == second, "it takes over from itself"
            age(client, second)
            async with client.receive(first):
                await refused_stream(client, second, error)

    asyncio.run(act())


@pytest.mark.parametrize(("policies", "error"), LIMITS)
def test_a_consumer_beyond_the_limits_is_refused_after_a_pause(tmp_path, monkeypatch, policies, error):
    """J11."""
    monkeypatch.setattr(consuming_module, "PAUSE_S", 0.05)

    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=LONG_AGO_S / 2) as client:
            await client.producer(T)
            await client.broker.set_topic_policies(client.broker.topics[T].name, policies)
            first = await client.subscribe(T, name="a", kind=SHARED)
            age(client, first)
            await client.subscribe(T, name="b", kind=SHARED)
            began = asyncio.get_running_loop().time()
            await refused_stream(client, first, error)
            assert asyncio.get_running_loop().time() - began >= 0.05, "clients ask again at once"

    asyncio.run(act())


@pytest.mark.parametrize(("policies", "error"), LIMITS)
def test_after_a_restart_those_who_come_first_have_the_places(tmp_path, policies, error):
    """J11."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker(consumer_grace_s=LONG_AGO_S / 2) as client:
            await client.producer(T)
            numbers = [await client.subscribe(T, name=name, kind=SHARED) for name in "ab"]
            await client.broker.set_topic_policies(client.broker.topics[T].name, policies)
        async with world.broker(consumer_grace_s=LONG_AGO_S / 2) as client:
            async with client.receive(numbers[1]):
                await refused_stream(client, numbers[0], error)
            async with client.receive(numbers[0]):
                pass

    asyncio.run(act())


def test_a_subscription_that_another_broker_serves_counts_for_the_limit(tmp_path):
    """J11."""

    async def act():
        policies = CompletePolicies(max_subscriptions_per_topic=1)
        async with BrokerWorld(tmp_path).broker(policies=policies) as client:
            await client.producer(T)
            client.broker.topics[T].dormant["elsewhere"] = SubscriptionRecord()
            with pytest.raises(DeniedError, match="1 subscriptions"):
                await client.subscribe(T)

    asyncio.run(act())


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_what_is_sent_between_subscribe_and_the_stream_is_kept_for_it(tmp_path, kind):
    async def act():
        async with BrokerWorld(tmp_path).broker(non_reliable_queue=4) as client:
            producer = await client.producer(T, reliable=False)
            consumer = await client.subscribe(T, kind=kind)
            for number in range(6):
                await client.send(T, producer, b"%d" % number)
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(4)) == [b"0", b"1", b"2", b"3"]
                await client.send(T, producer, b"6")
                assert payloads(await stream.take(1)) == [b"6"]
            assert client.broker.topics[T].subscriptions["s"].dropped == 2, "the queue has room for four"

    asyncio.run(act())


def test_nothing_is_kept_for_someone_whose_grace_is_over(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T, reliable=False)
            consumer = await client.subscribe(T)
            await client.send(T, producer, b"early")
            age(client, consumer)
            await client.send(T, producer, b"late")
            async with client.receive(consumer) as stream:
                await client.send(T, producer, b"now")
                assert payloads(await stream.take(1)) == [b"now"]
            assert client.broker.topics[T].subscriptions["s"].dropped == 2

    asyncio.run(act())


def test_a_rate_does_not_hold_dead_letters_back(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            topic = client.broker.topics[T]
            policy = FailurePolicy(max_redelivery_count=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/dead")
            subscription = topic.subscriptions["s"]
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            await client.broker.set_topic_policies(topic.name, Policies(max_subscription_dispatch_rate=1))
            for number in range(50):
                await client.send(T, producer, b"%d" % number)
            async with client.receive(consumer) as stream:
                [message] = await stream.take(1)
                await client.nack(message, reason="no")
                await until(lambda: subscription.dead_lettered == 1)
            assert subscription.delivered < 20, "the others wait for the rate"

    asyncio.run(act())


def test_why_dead_letters_wait_is_logged_once_for_each_cause(tmp_path, monkeypatch):
    """J10."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            policy = FailurePolicy(max_redelivery_count=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/dead")
            subscription = client.broker.topics[T].subscriptions["s"]
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            store, failures = client.broker.store_dead_letter, iter(["full"] * 10 + ["broken"] * 10)
            tried = []

            async def fails(topic, name, letter, *more):
                tried.append(letter.message.offset)
                if (cause := next(failures, None)) is not None:
                    raise PreconditionError(cause)
                await store(topic, name, letter, *more)

            monkeypatch.setattr(client.broker, "store_dead_letter", fails)
            with told() as events:
                async with client.receive(consumer) as stream:
                    for number in range(10):
                        await client.send(T, producer, b"%d" % number)
                    for message in await stream.take(10):
                        await client.nack(message)
                    await until(lambda: len(tried) == 10)
                    assert [event["cause"] for event in named(events, "dead_letter_waits")] == ["full"]
                    await until(lambda: subscription.dead_lettered == 10)
            assert [event["cause"] for event in named(events, "dead_letter_waits")] == ["full", "broken"]

    asyncio.run(act())


def test_a_letter_adds_little_to_the_largest_message():
    original = StreamMessage(b"x", msg_id=MsgID(2**64 - 1, T, "ä" * 4000), producer_name="p")
    letter = DeadLetter(original, 2**31, "ü" * 1024)
    found = dead_letter_message(T, "s" * 255, letter, FailurePolicy(poison=Poison.DEAD_LETTER), "/default/dead")
    added = sum(len(key.encode()) + len(value.encode()) + 8 for key, value in found.attributes.items())
    assert added < 2048, "clients take 4 KiB more than the largest message"
    assert found.attributes["x-failure-reason"] == "ü" * 256
