"""Exclusive, Shared, Failover and KeyShared, with the official client."""

import asyncio
from collections import Counter, defaultdict

import grpc
import pytest
from danube import SubType

from interop.official import Crowd, Official, numbered, offsets, payloads
from interop.raw import once_allowed
from interop.waiting import eventually

KEYS = [f"key-{n}" for n in range(20)]


async def send_keyed(producer, count: int, keys=KEYS) -> None:
    for number in range(count):
        await producer.send_with_key(b"%d" % number, None, keys[number % len(keys)])


def assert_order_per_key(got: dict[str, list]) -> None:
    """Insist that each key's messages came in order, and to one consumer."""
    owners = defaultdict(set)
    seen = defaultdict(list)
    for name, messages in got.items():
        for message in messages:
            owners[message.routing_key].add(name)
            seen[message.routing_key].append(message.msg_id.topic_offset)
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}
    for key, found in seen.items():
        assert found == sorted(set(found)), key


# --- exclusive --------------------------------------------------------------------------------------------------------


async def test_exclusive_refuses_a_second_consumer_and_lets_the_first_go_on(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        first = await client.consumer(topic, "sub", "first")
        await producer.send(b"one")
        assert payloads(await first.take(1)) == [b"one"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.consumer(topic, "sub", "second")
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await producer.send(b"two")
        assert payloads(await first.take(1)) == [b"two"]


async def test_exclusive_lets_another_consumer_in_once_the_first_is_gone_for_the_grace(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        first = await client.consumer(topic, "sub", "first")
        await producer.send(b"one")
        await first.next()
        await first.close()

        second = await once_allowed(grpc.StatusCode.PERMISSION_DENIED, lambda: client.consumer(topic, "sub", "second"))
        assert payloads(await second.take(1)) == [b"one"]


# --- shared -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "non-reliable"])
async def test_shared_deals_thirty_six_messages_to_three_consumers_twelve_each(broker, topic, reliable):
    async with Official(broker) as client:
        producer = await client.producer(topic, reliable=reliable)
        receivers = [await client.consumer(topic, "sub", f"c{n}", SubType.SHARED) for n in range(3)]
        async with Crowd(receivers) as crowd:
            await crowd.probe(producer)
            for payload in numbered(36):
                await producer.send(payload)
            await crowd.until_total(36)
            await crowd.settle()
        assert {name: len(got) for name, got in crowd.got.items()} == {"c0": 12, "c1": 12, "c2": 12}
        assert sorted(p for got in crowd.got.values() for p in payloads(got)) == sorted(numbered(36))


async def test_shared_gives_what_a_departed_consumer_held_to_the_others(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        leaving = await client.consumer(topic, "sub", "leaving", SubType.SHARED)
        for payload in numbered(5):
            await producer.send(payload)
        held = [await leaving.next() for _ in range(5)]
        staying = await client.consumer(topic, "sub", "staying", SubType.SHARED)
        await leaving.ack(held[1])
        await leaving.close()
        got = await staying.take(4)
        assert sorted(offsets(got)) == [0, 2, 3, 4]
        await staying.nothing()


async def test_a_consumer_that_does_not_acknowledge_keeps_no_other_from_working(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        stalled = await client.consumer(topic, "sub", "stalled", SubType.SHARED)
        await producer.send(b"one for the stalled")
        await stalled.next()
        working = await client.consumer(topic, "sub", "working", SubType.SHARED)
        async with Crowd([working]) as crowd:
            for payload in numbered(60):
                await producer.send(payload)
            held = 1 + await eventually(
                lambda: stalled.queue.qsize() + len(crowd.got["working"]) == 60 and stalled.queue.qsize() + 1,
                "everything is with one or the other",
            )
        assert held <= 12, "it holds no more than a window"


# --- failover ---------------------------------------------------------------------------------------------------------


async def test_failover_has_one_active_consumer_and_promotes_the_next_when_it_leaves(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        first = await client.consumer(topic, "sub", "first", SubType.FAILOVER)
        await producer.send(b"0")
        assert payloads(await first.take(1)) == [b"0"]
        second = await client.consumer(topic, "sub", "second", SubType.FAILOVER)
        third = await client.consumer(topic, "sub", "third", SubType.FAILOVER)
        for number in range(1, 6):
            await producer.send(b"%d" % number)
        held = [await first.next() for _ in range(5)]
        assert payloads(held) == [b"%d" % n for n in range(1, 6)]
        await second.nothing()
        await third.nothing(0.01)
        await first.ack(held[0])
        await first.close()
        await producer.send(b"6")
        got = await second.take(5)
        assert payloads(got) == [b"2", b"3", b"4", b"5", b"6"], "unacknowledged first, in order, then new ones"
        await third.nothing()
        await second.close()
        await producer.send(b"7")
        assert payloads(await third.take(1)) == [b"7"]


async def test_failover_a_consumer_that_returns_does_not_take_over_from_the_active_one(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        first = await client.consumer(topic, "sub", "first", SubType.FAILOVER)
        await producer.send(b"0")
        await first.take(1)
        second = await client.consumer(topic, "sub", "second", SubType.FAILOVER)
        await first.close()
        await producer.send(b"1")
        assert payloads(await second.take(1)) == [b"1"]
        back = await client.consumer(topic, "sub", "first", SubType.FAILOVER)
        for number in range(2, 6):
            await producer.send(b"%d" % number)
        assert payloads(await second.take(4)) == [b"2", b"3", b"4", b"5"]
        await back.nothing()


# --- key shared -------------------------------------------------------------------------------------------------------


async def test_key_shared_keeps_each_key_with_one_consumer_in_order(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        receivers = [await client.consumer(topic, "sub", f"c{n}", SubType.KEY_SHARED) for n in range(3)]
        async with Crowd(receivers) as crowd:
            # Probes have no key but their producer's name, so one key of each consumer must be found first.
            number = 0
            while not all(crowd.got.values()):
                await producer.send_with_key(b"probe", None, f"probe-{number}")
                number += 1
                assert number < 1000
            await crowd.settle()
            for got in crowd.got.values():
                got.clear()
            await send_keyed(producer, 300)
            await crowd.until_total(300)
            await crowd.settle()
        assert_order_per_key(crowd.got)
        assert sum(map(len, crowd.got.values())) == 300


async def test_key_shared_has_one_message_of_a_key_in_flight_and_another_key_does_not_wait(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub", "only", SubType.KEY_SHARED)
        for number in range(30):
            await producer.send_with_key(b"hot %d" % number, None, "hot")
        await producer.send_with_key(b"cold", None, "cold")
        hot, cold = await consumer.next(), await consumer.next()
        assert (hot.payload, cold.payload) == (b"hot 0", b"cold")
        await consumer.nothing()
        await consumer.ack(cold)
        await consumer.ack(hot)
        assert payloads(await consumer.take(29)) == [b"hot %d" % n for n in range(1, 30)]


async def test_key_shared_filters_choose_the_keys_and_unmatched_ones_are_skipped(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic)
        europe = await client.consumer(topic, "sub", "europe", SubType.KEY_SHARED, ["eu-*"])
        users = await client.consumer(topic, "sub", "users", SubType.KEY_SHARED, ["user-?", "vip"])
        await producer.send_with_key(b"", None, "eu-x")  # both connected once each has one
        await producer.send_with_key(b"", None, "vip")
        await europe.take(1)
        await users.take(1)
        keys = ["eu-west", "user-1", "user-12", "vip", "EU-west", "eu-", "vips", "us-east"]
        for key in keys:
            await producer.send_with_key(key.encode(), None, key)
        assert payloads(await europe.take(2)) == [b"eu-west", b"eu-"]
        assert payloads(await users.take(2)) == [b"user-1", b"vip"]
        await europe.nothing()
        await users.nothing(0.01)


async def test_key_shared_takes_the_producers_name_where_there_is_no_key(broker, topic):
    async with Official(broker) as client:
        producers = [await client.producer(topic, name) for name in ("alpha", "beta")]
        alpha = await client.consumer(topic, "sub", "a", SubType.KEY_SHARED, ["alpha"])
        beta = await client.consumer(topic, "sub", "b", SubType.KEY_SHARED, ["beta"])
        for number in range(3):
            for producer in producers:
                await producer.send(b"%d" % number)
        for consumer, name in ((alpha, "alpha"), (beta, "beta")):
            got = await consumer.take(3)
            assert [m.producer_name for m in got] == [name] * 3
            assert payloads(got) == [b"0", b"1", b"2"]


async def test_key_shared_rebalances_without_loss_stall_or_disorder(broker, topic):
    """Consumers come and go while messages flow: each key in order, everything delivered, nothing twice once acked."""
    seen: dict[str, list[int]] = defaultdict(list)
    acked: set[int] = set()
    total = 400

    async def take(receiver, message) -> None:
        assert message.msg_id.topic_offset not in acked, "an acknowledged message came again"
        seen[message.routing_key].append(message.msg_id.topic_offset)
        await receiver.ack(message)
        acked.add(message.msg_id.topic_offset)

    async def consume(receiver) -> None:
        while True:
            taking = asyncio.ensure_future(take(receiver, await receiver.queue.get()))
            try:
                await asyncio.shield(taking)
            finally:
                await taking  # who leaves knows of every message whether it was acknowledged

    async with Official(broker) as client, asyncio.TaskGroup() as group:
        producer = await client.producer(topic)
        stays = await client.consumer(topic, "sub", "stays", SubType.KEY_SHARED)
        staying = group.create_task(consume(stays))
        group.create_task(send_keyed(producer, total))
        for number in range(3):
            guest = await client.consumer(topic, "sub", f"guest-{number}", SubType.KEY_SHARED)
            visiting = group.create_task(consume(guest))
            target = min(total, len(acked) + 50)
            await eventually(lambda target=target: len(acked) >= target, "messages flow with a guest")
            visiting.cancel()
            await asyncio.wait([visiting])
            await guest.close()
        await eventually(lambda: len(acked) == total, "everything is acknowledged")
        staying.cancel()
    for key, found in seen.items():
        first_seen = list(dict.fromkeys(found))
        assert first_seen == sorted(first_seen), f"{key} came out of order"
    repeated = Counter(offset for found in seen.values() for offset in found)
    assert max(repeated.values()) <= 4, "only what a departing guest had not acknowledged comes again"
