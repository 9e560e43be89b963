"""Nack, ack timeout, backoff, and what becomes of a message that nobody can use."""

import time

import grpc
import pytest
from danube import SubType

from interop.official import Official, numbered, offsets, payloads
from interop.raw import BLOCK, DEAD_LETTER, DROP, EXCLUSIVE, EXPONENTIAL, KEY_SHARED, SHARED, api, once_allowed, refused
from interop.waiting import eventually


async def prepare(broker, topic: str, **policy) -> None:
    """Make a topic whose subscription `sub` has this failure policy, before the subscription exists."""
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.set_policy(topic, "sub", **policy)


async def test_a_nacked_message_comes_again_and_others_go_on(broker, topic):
    await prepare(broker, topic)
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub", kind=SubType.SHARED)
        for payload in numbered(3):
            await producer.send(payload)
        first, second, third = [await consumer.next() for _ in range(3)]
        await consumer.nack(second, reason="not now")
        await consumer.ack(first)
        await consumer.ack(third)
        again = await consumer.next()
        assert again == second, "the same message, every field of it"
        await consumer.ack(again)
        await consumer.nothing()


async def test_a_delay_is_kept_and_the_longer_of_policy_and_nack_counts(broker, topics):
    """Never early; how late to the millisecond is told in virtual time (tests/unit/core/dispatch/test_dispatch_failure.py)."""
    async with broker.raw() as raw:
        for topic, base_ms, delay_ms in zip(topics(2), (1, 400), (400, 1), strict=True):
            await raw.create_topic(topic)
            await raw.set_policy(topic, "sub", base_redelivery_delay_ms=base_ms)
            stream = await raw.consume(topic, "sub")
            await raw.send(topic, await raw.create_producer(topic), b"again")
            message = await stream.next()
            began = time.monotonic()
            await raw.nack(message, "sub", delay_ms=delay_ms)
            await stream.next()
            assert time.monotonic() - began >= 0.4
            stream.cancel()


async def test_delays_double_up_to_the_most(broker, topic):
    """Never early, and soon even after so many failures that doubling alone would make it minutes."""
    failures = 14
    await prepare(
        broker,
        topic,
        max_redelivery_count=failures,
        base_redelivery_delay_ms=20,
        max_redelivery_delay_ms=40,
        backoff_strategy=EXPONENTIAL,
    )
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"again")
        spent = []
        message = await stream.next()
        for _ in range(failures):
            began = time.monotonic()
            await raw.nack(message, "sub")
            message = await stream.next()
            spent.append(time.monotonic() - began)
        assert spent[0] >= 0.02
        assert min(spent[1:]) >= 0.04
        stream.cancel()


async def test_an_ack_timeout_is_a_nack(broker, topic):
    await prepare(broker, topic, ack_timeout_ms=150, max_redelivery_count=2, poison_policy=DROP)
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub")
        await producer.send(b"slow")
        assert [m.payload for m in [await consumer.next() for _ in range(3)]] == [b"slow"] * 3
        await producer.send(b"next")
        assert payloads(await consumer.take(1)) == [b"next"], "two redeliveries, then it is dropped"


async def test_a_late_acknowledgement_counts(broker, topic):
    await prepare(broker, topic, ack_timeout_ms=100, base_redelivery_delay_ms=60_000)
    async with broker.raw() as raw:

        async def state() -> tuple[int, int]:
            found = (await raw.ask("DescribeSubscription", topic=topic, subscription="sub")).subscription
            return found.cursor, found.unacked

        async def timed_out() -> bool:
            return await state() == (0, 0)

        stream = await raw.consume(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"late")
        message = await stream.next()
        await eventually(timed_out, "the delivery has failed, and the next one is not due for a minute")
        await raw.ack(message, "sub")
        assert await state() == (1, 0)
        waiting = f'ister_subscription_waiting{{topic="{topic}",subscription="sub"}}'
        assert broker.metrics()[waiting] == 0, "it does not come again"
        stream.cancel()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED], ids=["exclusive", "shared", "key-shared"])
async def test_drop_gives_up_after_one_delivery_and_all_redeliveries(broker, topic, kind):
    await prepare(broker, topic, max_redelivery_count=2, poison_policy=DROP)
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "sub", kind=kind)
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, [b"poison", b"fine"])
        seen = []
        while len(seen) < 4:
            message = await stream.next()
            seen.append(message.payload)
            if message.payload == b"poison":
                await raw.nack(message, "sub")
            else:
                await raw.ack(message, "sub")
        assert sorted(seen) == [b"fine", b"poison", b"poison", b"poison"]
        await stream.nothing()
        stream.cancel()


async def test_block_stops_new_messages_until_the_policy_changes(broker, topic):
    await prepare(broker, topic, max_redelivery_count=0, poison_policy=BLOCK)
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "sub")
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, [b"poison"])
        await raw.nack(await stream.next(), "sub", reason="cannot read it")
        await raw.send_all(topic, producer, numbered(3))
        await stream.nothing(0.3)
        await raw.set_policy(topic, "sub", max_redelivery_count=0, poison_policy=DROP)
        again = await stream.next()
        assert again.payload == b"poison", "it is tried once more, under the new policy"
        await raw.nack(again, "sub")
        assert [m.payload for m in await stream.take(3)] == numbered(3)
        stream.cancel()


async def test_block_stops_only_the_key_of_a_key_shared_subscription(broker, topic):
    await prepare(broker, topic, max_redelivery_count=0, poison_policy=BLOCK)
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "sub", kind=KEY_SHARED)
        producer = await raw.create_producer(topic)
        await raw.send(topic, producer, b"poison", routing_key="bad")
        await raw.nack(await stream.next(), "sub")
        await raw.send(topic, producer, b"behind it", routing_key="bad")
        await raw.send(topic, producer, b"another key", routing_key="good")
        message = await stream.next()
        assert message.payload == b"another key"
        await raw.ack(message, "sub")
        await stream.nothing()
        await raw.set_policy(topic, "sub", max_redelivery_count=0, poison_policy=DROP)
        await raw.nack(await stream.next(), "sub")
        assert (await stream.next()).payload == b"behind it"
        stream.cancel()


async def test_a_dead_letter_keeps_everything_and_says_where_it_comes_from(broker, topics):
    topic, letters = topics(2)
    await prepare(broker, topic, max_redelivery_count=1, poison_policy=DEAD_LETTER, dead_letter_topic=letters)
    async with broker.raw() as raw:
        await raw.create_topic(letters)
        read_letters = await raw.consume(letters, "morgue", kind=EXCLUSIVE)
        stream = await raw.consume(topic, "sub")
        producer = await raw.create_producer(topic)
        await raw.send(topic, producer, b"fine")
        await raw.ack(await stream.next(), "sub")
        await raw.send(
            topic, producer, b"poison", attributes={"mine": "kept"}, routing_key="k", schema_id=7, schema_version=2
        )
        for reason in ("first", "the last reason"):
            message = await stream.next()
            await raw.nack(message, "sub", reason=reason)
        letter = await read_letters.next()
        assert letter.payload == b"poison"
        assert dict(letter.attributes) == {
            "mine": "kept",
            "x-original-topic": topic,
            "x-original-subscription": "sub",
            "x-original-topic-offset": "1",
            "x-original-producer-id": str(producer),
            "x-original-broker-addr": message.msg_id.broker_addr.partition("#")[0],
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "2",
            "x-failure-reason": "the last reason",
        }
        assert (letter.routing_key, letter.schema_id, letter.schema_version) == ("k", 7, 2)
        assert (letter.msg_id.topic_name, letter.msg_id.topic_offset) == (letters, 0)
        await raw.send(topic, producer, b"goes on")
        assert (await stream.next()).payload == b"goes on"
        stream.cancel()
        read_letters.cancel()


async def test_an_official_consumer_reads_dead_letters_with_all_that_they_tell(broker, topics):
    """One of a message that a consumer refused, one of a message that nobody answered for."""
    topic, letters = topics(2)
    policy = {"poison_policy": DEAD_LETTER, "dead_letter_topic": letters, "max_redelivery_count": 1}
    await prepare(broker, topic, **policy)
    async with Official(broker) as client, broker.raw() as raw:
        await client.producer(letters, "makes the topic")
        morgue = await client.consumer(letters, "morgue")
        producer = await client.producer(topic, "shop")
        consumer = await client.consumer(topic, "sub")
        await producer.send(b"fine")
        await consumer.take(1)

        await producer.send_with_key(b"\x00 poison", {"mine": "kept"}, "customer-7")
        await consumer.nack(await consumer.next(), reason="not this time")
        message = await consumer.next()
        await consumer.nack(message, reason="cannot read it")
        (refused_one,) = await morgue.take(1)
        expected = {
            "mine": "kept",
            "x-original-topic": topic,
            "x-original-subscription": "sub",
            "x-original-topic-offset": "1",
            "x-original-producer-id": str(message.msg_id.producer_id),
            "x-original-broker-addr": broker.url,
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "2",
            "x-failure-reason": "cannot read it",
        }
        assert (refused_one.payload, dict(refused_one.attributes)) == (b"\x00 poison", expected)
        assert (refused_one.routing_key, refused_one.producer_name) == ("customer-7", "shop")
        assert refused_one.publish_time == message.publish_time
        assert (refused_one.msg_id.topic_name, refused_one.msg_id.topic_offset) == (letters, 0)

        await raw.set_policy(topic, "sub", **policy | {"max_redelivery_count": 0, "ack_timeout_ms": 100})
        await producer.send(b"slow")
        await consumer.next()
        (silent_one,) = await morgue.take(1)
        told = {name: silent_one.attributes[name] for name in ("x-original-topic-offset", "x-delivery-attempt")}
        assert (silent_one.payload, told) == (b"slow", {"x-original-topic-offset": "2", "x-delivery-attempt": "1"})
        assert silent_one.attributes["x-failure-reason"] == "ack timeout"
        await morgue.nothing()


async def test_a_dead_letter_topic_is_made_when_it_is_not_there(broker, topics):
    topic, letters = topics(2)
    await prepare(broker, topic, max_redelivery_count=0, poison_policy=DEAD_LETTER, dead_letter_topic=letters)
    async with Official(broker) as client, broker.raw() as raw:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub")
        await producer.send(b"poison")
        await consumer.nack(await consumer.next())
        await producer.send(b"fine")
        assert payloads(await consumer.take(1)) == [b"fine"]
        described = await once_allowed(grpc.StatusCode.NOT_FOUND, lambda: raw.ask("DescribeTopic", name=letters))
        assert described.delivery == "Reliable"


async def test_a_disconnect_does_not_use_up_a_message(broker, topic):
    await prepare(broker, topic, max_redelivery_count=1, poison_policy=DROP)
    async with broker.raw() as raw:
        await raw.subscribe(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"precious")
        for _ in range(5):
            stream = await raw.consume(topic, "sub")
            assert (await stream.next()).payload == b"precious"
            stream.cancel()
        stream = await raw.consume(topic, "sub")
        await raw.ack(await stream.next(), "sub")
        stream.cancel()


async def test_acks_and_nacks_of_what_is_unknown_are_ignored(broker, topic):
    await prepare(broker, topic)
    async with broker.raw() as raw:
        stream = await raw.consume(topic, "sub")
        producer = await raw.create_producer(topic)
        await raw.send(topic, producer, b"one")
        message = await stream.next()
        await raw.ack(message, "sub")
        await raw.ack(message, "sub")
        await raw.nack(message, "sub")
        ahead = api.StreamMessage(msg_id=api.MsgID(topic_name=topic, topic_offset=1 << 60))
        await raw.ack(ahead, "sub")
        await raw.nack(ahead, "sub")
        await stream.nothing()
        await raw.send(topic, producer, b"two")
        assert (await stream.next()).payload == b"two", "an ack from the future skips nothing"
        stream.cancel()


async def test_policies_that_make_no_sense_are_refused(broker, topics):
    topic, volatile = topics(2)
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.create_producer(volatile, dispatch_strategy=api.NonReliable)
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.set_policy(topic, "sub", poison_policy=DEAD_LETTER))
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.set_policy(topic, "sub", poison_policy=9))
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.set_policy(topic, "sub", backoff_strategy=9))
        await refused(grpc.StatusCode.FAILED_PRECONDITION, raw.set_policy(volatile, "sub"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.set_policy("/default/nowhere", "sub"))
        for window in (0, 10_001):
            await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.set_window(topic, "sub", window))


async def test_a_policy_and_a_window_are_read_back_as_they_were_set(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.set_policy(topic, "sub", max_redelivery_count=3, ack_timeout_ms=1234, poison_policy=DROP)
        await raw.set_window(topic, "sub", 77)
        await raw.subscribe(topic, "sub", kind=KEY_SHARED)
        answer = await raw.ask("GetSubscriptionFailurePolicy", topic=topic, subscription="sub")
        policy = answer.failure_policy
        assert (policy.max_redelivery_count, policy.ack_timeout_ms, policy.poison_policy) == (3, 1234, DROP)
        assert answer.subscription_type == KEY_SHARED
        found = await raw.ask("GetSubscriptionDispatchConfig", topic=topic, subscription="sub")
        assert found.dispatch_config.max_unacked_messages == 77


async def test_the_window_bounds_what_is_out_and_changes_while_messages_flow(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, numbered(40))
        first = await stream.take(10)
        await stream.nothing()  # ten is the default
        await raw.ack(first[4], "sub")
        assert offsets([await stream.next()]) == [10]
        await stream.nothing()
        await raw.set_window(topic, "sub", 25)
        await stream.take(15)
        await stream.nothing()
        await raw.set_window(topic, "sub", 1)
        for message in first[:4]:
            await raw.ack(message, "sub")
        await stream.nothing()
        stream.cancel()


async def test_the_official_client_echoes_which_delivery_it_acknowledges(broker, topic):
    """J1: the acknowledgement of what was delivered before a reset does not finish what is delivered since."""
    await prepare(broker, topic)
    async with Official(broker) as client, broker.raw() as raw:

        async def progress():
            found = (await raw.ask("DescribeSubscription", topic=topic, subscription="sub")).subscription
            return found.cursor, found.unacked

        consumer = await client.consumer(topic, "sub", kind=SubType.SHARED)
        await (await client.producer(topic)).send(b"again")
        before = await consumer.next()
        await raw.ask("ResetCursor", topic=topic, subscription="sub", earliest=True)
        since = await consumer.next()
        assert (before.payload, before.msg_id.topic_offset) == (since.payload, since.msg_id.topic_offset)
        await consumer.ack(before)
        assert await progress() == (0, 1)
        await consumer.ack(since)
        assert await progress() == (1, 0)
