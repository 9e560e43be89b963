"""Subscribing, receiving, acknowledging and health by bare gRPC: each refusal has its status, no stream dies of one."""

import grpc
import pytest

from interop.official import numbered, offsets
from interop.raw import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Raw, api, once_allowed, refused
from interop.waiting import eventually

INVALID = grpc.StatusCode.INVALID_ARGUMENT
OTHER_TOPIC = 1 << 50
"""A bit of a producer's number that belongs to its topic's part (ADR 12)."""


# --- subscribing ------------------------------------------------------------------------------------------------------


async def test_an_unknown_topic_is_not_found_and_never_made(broker, topic):
    async with broker.raw() as raw:
        await refused(grpc.StatusCode.NOT_FOUND, raw.subscribe(topic, "sub"))
        assert await raw.partitions(topic) == []


async def test_names_and_types_that_make_no_sense_are_refused(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await refused(INVALID, raw.subscribe(topic, "", "me"))
        await refused(INVALID, raw.subscribe(topic, "sub", ""))
        await refused(INVALID, raw.subscribe(topic, "sub", "me", kind=9))
        for bad in ("a\nb", "a\x00", "x" * 300, "\u202e"):
            await refused(INVALID, raw.subscribe(topic, bad, "me"))
            await refused(INVALID, raw.subscribe(topic, "sub", bad))
        assert [*(await raw.ask("ListSubscriptions", name=topic)).subscriptions] == []


async def test_s7_odd_names_of_subscriptions_are_kept_apart(broker, topics):
    one, two = topics(2)
    names = ["a/b", "a%2Fb", "../x", "..", "a b", "ä", "A", "a", f"..{two}/sub", "'; --"]
    async with broker.raw() as raw:
        for topic in (one, two):
            await raw.create_topic(topic)
        found = {await raw.subscribe(one, name) for name in names}
        assert len(found) == len(names)
        assert sorted((await raw.ask("ListSubscriptions", name=one)).subscriptions) == sorted(names)
        assert [*(await raw.ask("ListSubscriptions", name=two)).subscriptions] == []


async def test_the_same_name_has_the_same_id_and_others_have_their_own(broker, topics):
    one, two = topics(2)
    async with broker.raw() as raw:
        for topic in (one, two):
            await raw.create_topic(topic)
        first = await raw.subscribe(one, "sub", "me")
        assert await raw.subscribe(one, "sub", "me") == first
        others = {
            await raw.subscribe(one, "sub", "you"),
            await raw.subscribe(one, "sub-2", "me"),
            await raw.subscribe(two, "sub", "me"),
        }
        assert len({first} | others) == 4


async def test_the_type_is_fixed_while_there_are_consumers(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        stream = await raw.consume(topic, "sub", "first", SHARED)
        for kind in (EXCLUSIVE, FAILOVER, KEY_SHARED):
            await refused(grpc.StatusCode.FAILED_PRECONDITION, raw.subscribe(topic, "sub", "second", kind))
        stream.cancel()
        await once_allowed(grpc.StatusCode.FAILED_PRECONDITION, lambda: raw.subscribe(topic, "sub", "second", FAILOVER))


async def test_subscriptions_and_consumers_are_limited(broker, topics):
    subscriptions, consumers = topics(2)
    async with broker.raw() as raw:
        for topic in (subscriptions, consumers):
            await raw.create_topic(topic)
            await raw.set_topic(topic, max_subscriptions_per_topic=2, max_consumers_per_topic=3)
        for number in range(2):
            await raw.consume(subscriptions, f"sub-{number}")
        await refused(grpc.StatusCode.PERMISSION_DENIED, raw.subscribe(subscriptions, "sub-2"))
        for number in range(3):
            await raw.consume(consumers, "sub", f"c-{number}")
        await refused(grpc.StatusCode.RESOURCE_EXHAUSTED, raw.subscribe(consumers, "sub", "c-3"))
        await raw.subscribe(consumers, "sub", "c-0")


async def test_consumers_of_one_subscription_are_limited(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        await raw.set_topic(topic, max_consumers_per_subscription=1)
        await raw.consume(topic, "sub", "first")
        await refused(grpc.StatusCode.PERMISSION_DENIED, raw.subscribe(topic, "sub", "second"))
        await raw.subscribe(topic, "other", "second")


async def test_filters_are_replaced_when_a_consumer_subscribes_again(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", "me", KEY_SHARED, ["a*"])
        await raw.send(topic, producer, b"a", routing_key="a1")
        await raw.ack(await stream.next(), "sub")
        stream = await raw.consume(topic, "sub", "me", KEY_SHARED, ["b*"])
        await raw.send(topic, producer, b"not mine", routing_key="a1")
        await raw.send(topic, producer, b"mine", routing_key="b1")
        assert (await stream.next()).payload == b"mine"
        stream.cancel()


async def test_filters_mean_nothing_to_other_types(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", "me", SHARED, ["none*"])
        await raw.send(topic, producer, b"all", routing_key="a")
        assert (await stream.next()).payload == b"all"
        stream.cancel()


# --- receiving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 1 << 62, (1 << 64) - 1])
async def test_an_unknown_consumer_is_not_found(broker, number):
    async with broker.raw() as raw:
        call = raw.consuming.ReceiveMessages(api.ReceiveRequest(consumer_id=number), timeout=30)
        await refused(grpc.StatusCode.NOT_FOUND, call.read())


async def test_what_a_lost_stream_held_is_due_at_once(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        consumer = await raw.subscribe(topic, "sub", "me", EXCLUSIVE)
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, numbered(5))
        for _ in range(3):
            stream = raw.receive(consumer)
            assert [m.payload for m in await stream.take(5)] == numbered(5)
            stream.cancel()


async def test_a_connection_that_is_cut_counts_as_a_lost_stream(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        cut = Raw(broker.target, broker.admin_target)
        stream = await cut.consume(topic, "sub", "first", SHARED)
        await raw.send_all(topic, producer, numbered(3))
        await stream.take(3)
        await cut.close()
        other = await raw.consume(topic, "sub", "second", SHARED)
        assert sorted(offsets(await other.take(3))) == [0, 1, 2]
        other.cancel()


async def test_a_deleted_topic_ends_its_streams_and_is_gone(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        consumer = await raw.subscribe(topic, "sub")
        stream = raw.receive(consumer)
        await stream.opened()
        await raw.send(topic, producer, b"x")
        await stream.next()
        assert (await raw.ask("DeleteTopic", name=topic)).success
        await stream.ended()
        await refused(grpc.StatusCode.NOT_FOUND, raw.lookup(topic))
        await refused(grpc.StatusCode.NOT_FOUND, raw.send(topic, producer, b"x"))
        await refused(grpc.StatusCode.NOT_FOUND, raw.receive(consumer)._call.read())
        await raw.create_topic(topic)
        fresh = await raw.consume(topic, "sub")
        await raw.send(topic, await raw.create_producer(topic), b"new")
        message = await fresh.next()
        assert (message.payload, message.msg_id.topic_offset) == (b"new", 0), "it adopts nothing of its predecessor"
        fresh.cancel()


# --- acknowledging ----------------------------------------------------------------------------------------------------


async def test_acks_and_nacks_of_nothing_are_refused_and_the_stream_lives(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub")
        await refused(INVALID, raw.consuming.Ack(api.AckRequest(subscription_name="sub"), timeout=30))
        await refused(INVALID, raw.consuming.Nack(api.NackRequest(subscription_name="sub"), timeout=30))
        nowhere = api.StreamMessage(msg_id=api.MsgID(topic_name="/default/nowhere"))
        here = api.StreamMessage(msg_id=api.MsgID(topic_name=topic))
        for call in (
            raw.ack(nowhere, "sub"),
            raw.nack(nowhere, "sub"),
            raw.ack(here, "no such subscription"),
            raw.nack(here, "no such subscription"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL}
        await raw.send(topic, producer, b"still here")
        assert (await stream.next()).payload == b"still here"
        stream.cancel()


async def test_anyone_may_acknowledge_by_topic_subscription_and_offset_alone(broker, topic):
    async with broker.raw() as raw, broker.raw() as another:
        producer = await raw.create_producer(topic)
        stream = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        await raw.send_all(topic, producer, numbered(2))
        await stream.take(2)
        only = api.StreamMessage(msg_id=api.MsgID(topic_name=topic, topic_offset=0))
        await another.ack(only, "sub")
        stream.cancel()
        again = await raw.consume(topic, "sub", kind=EXCLUSIVE)
        assert offsets(await again.take(1)) == [1]
        again.cancel()


async def test_non_reliable_acks_and_nacks_are_accepted_without_effect(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic, dispatch_strategy=api.NonReliable)
        stream = await raw.consume(topic, "sub")
        await raw.send(topic, producer, b"once")
        message = await stream.next()
        await raw.nack(message, "sub")
        await raw.ack(message, "sub")
        await stream.nothing()
        stream.cancel()


# --- health -----------------------------------------------------------------------------------------------------------


async def test_health_is_ok_for_who_is_known_and_close_for_who_is_not(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        consumer = await raw.subscribe(topic, "sub")
        kinds = api.HealthCheckRequest
        assert await raw.is_well(kinds.Producer, producer)
        assert await raw.is_well(kinds.Consumer, consumer), "registered, and its stream will come"
        stream = raw.receive(consumer)
        await stream.opened()
        assert await raw.is_well(kinds.Consumer, consumer)
        stream.cancel()
        assert await raw.is_well(kinds.Consumer, consumer), "between two streams"
        for number in (0, producer ^ OTHER_TOPIC, consumer ^ 1, (1 << 64) - 1):
            assert not await raw.is_well(kinds.Producer, number)
            assert not await raw.is_well(kinds.Consumer, number)
        await refused(INVALID, raw.is_well(9, producer))


async def test_who_took_over_is_well_and_a_deleted_topics_clients_are_not(broker, topic):
    async with broker.raw() as raw:
        producer = await raw.create_producer(topic)
        consumer = await raw.subscribe(topic, "sub")
        await raw.ask("DeleteTopic", name=topic)
        assert not await raw.is_well(api.HealthCheckRequest.Producer, producer)
        assert not await raw.is_well(api.HealthCheckRequest.Consumer, consumer)


# --- volatile subscriptions -------------------------------------------------------------------------------------------


async def test_a_subscription_of_a_non_reliable_topic_goes_with_its_last_consumer(broker, topic):
    async with broker.raw() as raw:
        await raw.create_producer(topic, dispatch_strategy=api.NonReliable)
        stream = await raw.consume(topic, "sub")
        assert [*(await raw.ask("ListSubscriptions", name=topic)).subscriptions] == ["sub"]
        stream.cancel()

        async def gone():
            return not (await raw.ask("ListSubscriptions", name=topic)).subscriptions

        await eventually(gone, "the subscription ends")
