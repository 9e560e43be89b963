"""What every user does first: produce, consume, acknowledge, with the official client."""

import asyncio
import os
import time

import grpc
import pytest
from danube import DanubeError, SubType

from interop.official import Crowd, Official, numbered, offsets, payloads

MIB = 1024 * 1024


async def test_a_reliable_topic_delivers_each_message_once_in_order(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "billing")
        for payload in numbered(100):
            await producer.send(payload)
        got = await consumer.take(100)
        assert payloads(got) == numbered(100)
        assert offsets(got) == list(range(100))
        await consumer.nothing()


async def test_a_non_reliable_topic_delivers_to_whoever_is_connected(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic, reliable=False)
        receivers = [await client.consumer(topic, f"sub-{n}", f"consumer-{n}") for n in range(3)]
        async with Crowd(receivers) as crowd:
            await crowd.probe(producer)
            for payload in numbered(36):
                await producer.send(payload)
            await crowd.until_total(3 * 36)
            await crowd.settle()
        for got in crowd.got.values():
            assert payloads(got) == numbered(36)
            assert set(offsets(got)) == {0}


async def test_every_field_of_a_message_arrives_as_it_was_sent(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic, "the producer")
        consumer = await client.consumer(topic, "all")
        attributes = {"plain": "text", "river": "Δούναβις", "empty": "", "long": "x" * 5000}
        before_ms = int(time.time() * 1000)
        request_id = await producer.send_with_key(b"\x00\xff payload", attributes, "key-7")
        (got,) = await consumer.take(1)
    assert got.payload == b"\x00\xff payload"
    assert dict(got.attributes) == attributes
    assert got.routing_key == "key-7"
    assert got.producer_name == "the producer"
    assert got.request_id == request_id
    assert before_ms <= got.publish_time <= int(time.time() * 1000)
    assert got.msg_id.topic_name == topic
    assert got.msg_id.producer_id == producer._producers[0].producer_id
    assert got.msg_id.broker_addr.partition("#")[0] == broker.url
    assert got.subscription_name == "all"
    assert not got.HasField("schema_id")


async def test_what_is_absent_stays_absent_and_what_is_empty_stays_empty(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "all")
        await producer.send(b"")
        await producer.send_with_key(b"", {}, "")
        without, empty = await consumer.take(2)
    assert (without.payload, empty.payload) == (b"", b"")
    assert (without.HasField("routing_key"), empty.HasField("routing_key")) == (False, True)
    assert not without.attributes


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "non-reliable"])
async def test_payloads_of_three_mib_pass(broker, topic, reliable):
    big = os.urandom(3 * MIB)
    async with Official(broker) as client:
        producer = await client.producer(topic, reliable=reliable)
        async with Crowd([await client.consumer(topic, "all")]) as crowd:
            await crowd.probe(producer)
            for _ in range(3):
                await producer.send(big)
            await crowd.until_total(3)
            assert payloads(crowd.got["consumer"]) == [big] * 3


async def test_a_message_that_no_client_could_receive_is_refused(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await producer.send(bytes(4 * MIB))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        consumer = await client.consumer(topic, "all")
        await producer.send(b"the next one")
        assert payloads(await consumer.take(1)) == [b"the next one"]


async def test_each_of_several_subscriptions_gets_every_message(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        receivers = [await client.consumer(topic, f"sub-{n}", f"consumer-{n}") for n in range(4)]
        async with Crowd(receivers) as crowd:
            for payload in numbered(50):
                await producer.send(payload)
            await crowd.until_total(4 * 50)
            await crowd.settle()
        for got in crowd.got.values():
            assert payloads(got) == numbered(50)


async def test_a_new_subscription_begins_with_what_comes_after_it(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        await producer.send(b"before")
        consumer = await client.consumer(topic, "late")
        await producer.send(b"after")
        (got,) = await consumer.take(1)
        assert (got.payload, got.msg_id.topic_offset) == (b"after", 1)
        await consumer.nothing()


async def test_a_subscription_remembers_what_it_has_not_acknowledged(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        first = await client.consumer(topic, "sub")
        for payload in numbered(10):
            await producer.send(payload)
        assert payloads(await first.take(4)) == numbered(4)
        await first.close()
        for payload in numbered(5, 10):
            await producer.send(payload)
        again = await client.consumer(topic, "sub")
        assert payloads(await again.take(11)) == numbered(11, 4)


async def test_two_clients_at_once_produce_and_consume_without_losing_order(broker, topic):
    async with Official(broker) as one, Official(broker) as two:
        producers = [await one.producer(topic, "a"), await two.producer(topic, "b")]
        receivers = [await two.consumer(topic, "x", "x"), await one.consumer(topic, "y", "y")]

        async def produce(name: bytes, producer) -> None:
            for number in range(100):
                await producer.send(b"%s %d" % (name, number))

        async with Crowd(receivers) as crowd:
            await asyncio.gather(produce(b"a", producers[0]), produce(b"b", producers[1]))
            await crowd.until_total(2 * 200)
        for got in crowd.got.values():
            assert offsets(got) == list(range(200))
            for name in (b"a", b"b"):
                assert [p for p in payloads(got) if p.startswith(name)] == [b"%s %d" % (name, n) for n in range(100)]
        assert payloads(crowd.got["x"]) == payloads(crowd.got["y"])


async def test_a_consumer_of_a_topic_that_is_not_there_is_told_so(broker, topic):
    async with Official(broker) as client:
        with pytest.raises(DanubeError, match="no partitions found"):
            await client.consumer(topic, "sub", kind=SubType.SHARED)


async def test_acknowledgements_may_come_in_any_order(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub")
        for payload in numbered(10):
            await producer.send(payload)
        got = [await consumer.next() for _ in range(10)]
        for message in [got[n] for n in (3, 9, 0, 7, 1, 8, 2)]:
            await consumer.ack(message)
        await consumer.close()
        again = await client.consumer(topic, "sub")
        assert offsets(await again.take(3)) == [4, 5, 6]
        await again.nothing()
