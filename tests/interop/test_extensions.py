"""What Ister's broker offers beyond Danube's, without any client noticing: start positions, cursors, levels."""

import time

import grpc
import pytest

from interop.official import Official, numbered, offsets, payloads
from interop.raw import EXCLUSIVE, KEY_SHARED, SHARED, api, refused
from interop.waiting import eventually


async def filled(raw, topic: str, count: int = 10) -> int:
    """Make a topic with messages; returns the producer."""
    producer = await raw.create_producer(topic)
    await raw.send_all(topic, producer, numbered(count))
    return producer


# --- where a new subscription begins ----------------------------------------------------------------------------------


async def test_a_topic_may_say_that_subscriptions_begin_at_its_first_message(broker, topic):
    async with broker.raw() as raw, Official(broker) as client:
        await filled(raw, topic)
        await raw.set_topic(topic, start_position="earliest")
        consumer = await client.consumer(topic, "sub")
        assert payloads(await consumer.take(10)) == numbered(10)


async def test_a_namespace_may_say_it_and_a_topic_may_contradict(broker, topic):
    name = topic.rpartition("/")[2]
    follows, contradicts = f"/{name}/follows", f"/{name}/contradicts"
    async with broker.raw() as raw:
        await raw.ask("CreateNamespace", name=name)
        await raw.ask("SetNamespacePolicies", namespace=name, policies='{"start_position": "earliest"}')
        for each in (follows, contradicts):
            await filled(raw, each, 3)
        await raw.set_topic(contradicts, start_position="latest")
        stream = await raw.consume(follows, "sub")
        assert payloads(await stream.take(3)) == numbered(3)
        other = await raw.consume(contradicts, "sub")
        await other.nothing()


async def test_policies_that_nobody_knows_are_refused_with_the_nearest_one(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        await refused(invalid, raw.set_topic(topic, start_positoin="earliest"), saying="start_position")
        await refused(invalid, raw.set_topic(topic, start_position="middle"))
        await refused(invalid, raw.set_topic(topic, max_message_size=-1))
        await refused(invalid, raw.ask("SetTopicPolicies", topic=topic, policies="{"))


# --- moving a cursor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED], ids=["exclusive", "shared", "key-shared"])
async def test_a_cursor_is_moved_back_and_forth_under_a_consumer(broker, topic, kind):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        consumer = await raw.subscribe(topic, "sub", "me", kind)
        await raw.send_all(topic, producer, numbered(10))

        async def all_from_now() -> list[int]:
            """Take everything that there is, acknowledging it."""
            stream = raw.receive(consumer)
            await stream.opened()
            got = []
            await raw.send(topic, producer, b"end")
            while (message := await stream.next()).payload != b"end" or message.msg_id.topic_offset + 1 < await end():
                got.append(message.msg_id.topic_offset)
                await raw.ack(message, "sub")
            await raw.ack(message, "sub")
            stream.cancel()
            return got

        async def end() -> int:
            found = (await raw.ask("DescribeSubscription", topic=topic, subscription="sub")).subscription
            return found.cursor + found.lag

        assert await all_from_now() == list(range(10))
        answer = await raw.ask("ResetCursor", topic=topic, subscription="sub", offset=7)
        assert (answer.cursor, answer.previous) == (7, 11)
        assert await all_from_now() == [7, 8, 9, 10]
        assert (await raw.ask("ResetCursor", topic=topic, subscription="sub", earliest=True)).cursor == 0
        assert await all_from_now() == list(range(12))
        await raw.send_all(topic, producer, numbered(3))
        assert (await raw.ask("ResetCursor", topic=topic, subscription="sub", latest=True)).cursor == 16
        assert await all_from_now() == []


async def test_a_cursor_is_moved_to_a_time(broker, topic):
    async with broker.raw() as raw:
        producer = await filled(raw, topic, 3)
        await raw.subscribe(topic, "sub", "me", EXCLUSIVE)
        moment_ms = int(time.time() * 1000) + 2  # behind what is stored, by the clock that the broker has too
        await eventually(lambda: time.time() * 1000 > moment_ms, "the moment has come")
        await raw.send_all(topic, producer, numbered(3, 3))
        assert (await raw.ask("ResetCursor", topic=topic, subscription="sub", time_ms=moment_ms)).cursor == 3
        stream = await raw.consume(topic, "sub", "me", EXCLUSIVE)
        assert payloads(await stream.take(3)) == numbered(3, 3)
        stream.cancel()


async def test_a_cursor_outside_the_topic_is_refused(broker, topic):
    async with broker.raw() as raw:
        await filled(raw, topic, 3)
        await raw.subscribe(topic, "sub")
        await refused(grpc.StatusCode.OUT_OF_RANGE, raw.ask("ResetCursor", topic=topic, subscription="sub", offset=4))
        await refused(grpc.StatusCode.NOT_FOUND, raw.ask("ResetCursor", topic=topic, subscription="none", offset=1))
        await refused(grpc.StatusCode.INVALID_ARGUMENT, raw.ask("ResetCursor", topic=topic, subscription="sub"))


# --- how much an answer means -----------------------------------------------------------------------------------------


async def test_level_cloud_answers_once_the_message_is_in_an_object(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.set_topic(topic, ack_level="cloud")
        for number in range(2):
            await raw.send(topic, producer, b"%d" % number)
            segments = (await raw.ask("ListSegmentDescriptors", topic=topic)).segments
            assert segments[-1].end_offset == number


async def test_level_fsync_answers_once_the_message_is_synced(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        await raw.set_topic(topic, ack_level="fsync")
        for number in range(5):
            await raw.send(topic, producer, b"%d" % number)
            synced = [v for k, v in broker.metrics().items() if "synced_offset" in k and f'topic="{topic}"' in k]
            assert synced == [number + 1]


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [api.Reliable, api.NonReliable], ids=["reliable", "non-reliable"])
async def test_a_dispatch_rate_slows_deliveries_and_loses_none(broker, topic, strategy):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic, dispatch_strategy=strategy)
        await raw.set_topic(topic, max_subscription_dispatch_rate=20)
        stream = await raw.consume(topic, "sub")
        began = time.monotonic()
        await raw.send_all(topic, producer, numbered(40))
        got = []
        for _ in range(40):
            message = await stream.next()
            await raw.ack(message, "sub")
            got.append(message)
        assert payloads(got) == numbered(40)
        assert time.monotonic() - began > 0.99, "twenty at once, and twenty more at twenty a second"
        if strategy == api.Reliable:
            assert offsets(got) == list(range(40))
        stream.cancel()


async def test_a_burst_on_a_non_reliable_topic_is_not_lost(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic, dispatch_strategy=api.NonReliable)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        await raw.send_all(topic, producer, numbered(300))  # nobody reads meanwhile
        assert payloads(await stream.take(300)) == numbered(300)
        stream.cancel()
