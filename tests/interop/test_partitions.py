"""Partitioned topics: made by the admin or by a producer, produced to in turn or by key, consumed as one."""

from collections import Counter, defaultdict

import grpc
import pytest
from danube import SubType

from interop.official import Crowd, Official, payloads
from interop.raw import refused


async def create_partitioned(broker, topic: str, partitions: int, reliable: int = 1) -> None:
    async with broker.raw() as raw:
        answer = await raw.ask(
            "CreatePartitionedTopic", base_name=topic, partitions=partitions, dispatch_strategy=reliable
        )
        assert answer.success


def partition_of(message) -> int:
    return int(message.msg_id.topic_name.rpartition("-part-")[2])


async def test_round_robin_over_partitions_and_one_consumer_gets_all(broker, topic):
    await create_partitioned(broker, topic, 3)
    async with Official(broker) as client:
        consumer = await client.consumer(topic, "sub")
        producer = await client.producer(topic, partitions=3)
        for number in range(30):
            await producer.send(b"%d" % number)
        got = await consumer.take(30)
    assert Counter(map(partition_of, got)) == {0: 10, 1: 10, 2: 10}
    by_partition = defaultdict(list)
    for message in got:
        by_partition[partition_of(message)].append((message.msg_id.topic_offset, int(message.payload)))
    for partition, found in by_partition.items():
        assert found == [(n, 3 * n + partition) for n in range(10)], "each partition has its own dense offsets"


async def test_a_key_always_goes_to_the_same_partition(broker, topic):
    await create_partitioned(broker, topic, 4)
    async with Official(broker) as client:
        receivers = [await client.consumer(topic, "sub", f"c{n}", SubType.KEY_SHARED) for n in range(2)]
        producer = await client.producer(topic, partitions=4)
        async with Crowd(receivers) as crowd:
            for number in range(120):
                await producer.send_with_key(b"%d" % number, None, f"key-{number % 12}")
            await crowd.until_total(120)
    places = defaultdict(set)
    order = defaultdict(list)
    for messages in crowd.got.values():
        for message in messages:
            places[message.routing_key].add(partition_of(message))
            order[message.routing_key].append(int(message.payload))
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) > 1, "keys are spread"
    assert all(found == sorted(found) and len(found) == 10 for found in order.values())


async def test_a_producer_makes_the_partitions_that_are_not_there(broker, topic):
    async with Official(broker) as client:
        producer = await client.producer(topic, partitions=3)
        consumer = await client.consumer(topic, "sub")
        for number in range(9):
            await producer.send(b"%d" % number)
        assert sorted(payloads(await consumer.take(9))) == [b"%d" % n for n in range(9)]
    async with broker.raw() as raw:
        assert await raw.partitions(topic) == [f"{topic}-part-{n}" for n in range(3)]


async def test_partitions_of_a_non_reliable_topic_work_too(broker, topic):
    await create_partitioned(broker, topic, 2, reliable=0)
    async with Official(broker) as client:
        producer = await client.producer(topic, partitions=2, reliable=False)
        async with Crowd([await client.consumer(topic, "sub")]) as crowd:
            sent = 0
            while len({partition_of(m) for m in crowd.got["consumer"]}) < 2:
                await producer.send(b"probe")
                await crowd.settle(0.02)
                sent += 1
                assert sent < 200
            crowd.got["consumer"].clear()
            for number in range(20):
                await producer.send(b"%d" % number)
            await crowd.until_total(20)
        assert sorted(map(int, payloads(crowd.got["consumer"]))) == list(range(20))


async def test_partitions_are_listed_by_number_and_not_by_prefix(broker, topics):
    base, longer = (f"{name}x" for name in topics(2))
    await create_partitioned(broker, base, 12)
    async with broker.raw() as raw:
        for name in (f"{base}bar", f"{base}-part-x", f"{base}-part-"):
            await raw.create_topic(name)
        assert await raw.partitions(base) == [f"{base}-part-{n}" for n in range(12)]
        assert await raw.partitions(f"{base}-part-3") == [f"{base}-part-3"]
        assert await raw.partitions(longer) == []


async def test_a_plain_topic_and_partitions_of_one_name_exclude_each_other(broker, topics):
    plain, parts = topics(2)
    await create_partitioned(broker, parts, 2)
    async with broker.raw() as raw:
        await raw.create_topic(plain)
        await refused(
            grpc.StatusCode.ALREADY_EXISTS,
            raw.ask("CreatePartitionedTopic", base_name=plain, partitions=2, dispatch_strategy=1),
        )
        await refused(grpc.StatusCode.ALREADY_EXISTS, raw.ask("CreateTopic", name=parts, dispatch_strategy=1))
        await refused(grpc.StatusCode.ALREADY_EXISTS, raw.create_producer(parts))
        await refused(grpc.StatusCode.ALREADY_EXISTS, raw.create_producer(f"{plain}-part-0"))


async def test_deleting_the_base_deletes_every_partition_and_one_alone_cannot_go(broker, topic):
    await create_partitioned(broker, topic, 3)
    async with broker.raw() as raw:
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.ask("DeleteTopic", name=f"{topic}-part-1")
        assert len(await raw.partitions(topic)) == 3
        assert (await raw.ask("DeleteTopic", name=topic)).success
        assert await raw.partitions(topic) == []
