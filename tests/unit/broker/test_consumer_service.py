"""Subscribe, ReceiveMessages, Ack and Nack, as PROTOCOL has them."""

import asyncio
from contextlib import AsyncExitStack
from itertools import chain

import pytest
from danube.proto.DanubeApi_pb2 import AckRequest, HealthCheckRequest, HealthCheckResponse, NackRequest

from ister.config.policies import CompletePolicies
from ister.core.errors import (
    DeniedError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    PreconditionError,
    UnknownPlaceError,
)
from parts.broker import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, BrokerWorld, until

T = "/default/t"


def run(act):
    return asyncio.run(act)


async def send_all(client, producer, count, topic=T, **fields):
    for number in range(count):
        await client.send(topic, producer, b"%d" % number, **fields)


def payloads(messages):
    return [int(message.payload) for message in messages]


def test_a_subscription_gets_what_comes_after_it_in_order_and_no_more_than_its_window(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker(max_unacked_messages=4) as client:
            producer = await client.producer(T)
            await client.send(T, producer, b"-1")
            consumer = await client.subscribe(T)
            await send_all(client, producer, 10)
            async with client.receive(consumer) as stream:
                first = await stream.take(4)
                assert payloads(first) == [0, 1, 2, 3]
                await client.ack(first[0])
                assert payloads(await stream.take(1)) == [4]
                assert stream.waiting() == 0
                for message in first[1:]:
                    await client.ack(message)
                assert payloads(await stream.take(3)) == [5, 6, 7]

    run(act())


def test_what_was_not_acknowledged_comes_again_to_the_same_consumer_on_its_next_stream(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, 5)
            async with client.receive(consumer) as stream:
                messages = await stream.take(5)
                await client.ack(messages[1])
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(4)) == [0, 2, 3, 4]

    run(act())


def test_progress_and_registrations_outlive_a_restart(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            acked = await client.subscribe(T, "acked")
            idle = await client.subscribe(T, "idle")
            await send_all(client, producer, 6)
            async with client.receive(acked) as stream:
                for message in (await stream.take(6))[:3]:
                    await client.ack(message, "acked")
        async with world.broker() as client:
            async with client.receive(acked) as stream:
                assert payloads(await stream.take(3)) == [3, 4, 5]
            async with client.receive(idle) as stream:
                assert payloads(await stream.take(6)) == list(range(6)), "a subscription that never acknowledged"

    run(act())


def test_progress_is_saved_while_the_broker_runs_so_a_crash_repeats_little(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker(cursor_interval_s=0.01) as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, 4)
            storage = client.broker.topics[T].storage
            async with client.receive(consumer) as stream:
                for message in await stream.take(4):
                    await client.ack(message)
                await storage.flush()
                saved = tmp_path / "wal/default/t/1/cursors.json"
                await until(lambda: '"s":4' in saved.read_text())

    run(act())


def test_36_messages_for_3_shared_consumers_are_12_for_each(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumers = [await client.subscribe(T, name=f"c{n}", kind=SHARED) for n in range(3)]
            async with AsyncExitStack() as stack:
                streams = [await stack.enter_async_context(client.receive(consumer)) for consumer in consumers]

                async def work(stream):
                    found = []
                    for _ in range(12):
                        (message,) = await stream.take(1)
                        await client.ack(message)
                        found.append(int(message.payload))
                    return found

                working = asyncio.gather(*map(work, streams))
                await send_all(client, producer, 36)
                assert sorted(chain.from_iterable(await working)) == list(range(36))
                assert not any(stream.waiting() for stream in streams)

    run(act())


def test_failover_promotes_the_next_and_resends_what_was_not_acknowledged(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            first = await client.subscribe(T, name="a", kind=FAILOVER)
            second = await client.subscribe(T, name="b", kind=FAILOVER)
            async with AsyncExitStack() as stack:
                active = await stack.enter_async_context(client.receive(first))
                async with client.receive(second) as waiting:
                    await send_all(client, producer, 3)
                    messages = await active.take(3)
                    await client.ack(messages[0])
                    assert waiting.waiting() == 0
                    await active.stop()
                    assert payloads(await waiting.take(2)) == [1, 2]

    run(act())


def test_each_key_keeps_its_order_and_its_consumer(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumers = [await client.subscribe(T, name=f"c{n}", kind=KEY_SHARED) for n in range(2)]
            got = {}

            async def work(number, stream):
                while True:
                    (message,) = await stream.take(1)
                    got.setdefault(message.routing_key, []).append((number, int(message.payload)))
                    await client.ack(message)

            async with client.receive(consumers[0]) as a, client.receive(consumers[1]) as b:
                workers = [asyncio.create_task(work(n, stream)) for n, stream in enumerate((a, b))]
                for number in range(60):
                    await client.send(T, producer, b"%d" % number, routing_key=f"k{number % 6}")
                await until(lambda: sum(map(len, got.values())) == 60)
                for worker in workers:
                    worker.cancel()
                await asyncio.wait(workers)
            for key, messages in got.items():
                assert len({consumer for consumer, _ in messages}) == 1, key
                assert [number for _, number in messages] == sorted(number for _, number in messages)

    run(act())


def test_a_second_stream_of_a_consumer_ends_the_first_without_an_error(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as first:
                await client.send(T, producer, b"0")
                await first.take(1)
                async with client.receive(consumer) as second:
                    await first.end()
                    assert payloads(await second.take(1)) == [0]

    run(act())


def test_subscribing_again_under_the_same_name_takes_over(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                assert await client.subscribe(T) == consumer
                await stream.end()

    run(act())


def test_an_exclusive_subscription_is_for_one_until_he_is_gone_for_long_enough(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=0.2) as client:
            producer = await client.producer(T)
            first = await client.subscribe(T, name="a")
            with pytest.raises(DeniedError, match="exclusive"):
                await client.subscribe(T, name="b")
            async with client.receive(first) as stream:
                await client.send(T, producer, b"0")
                await stream.take(1)
                with pytest.raises(DeniedError):
                    await client.subscribe(T, name="b")
            with pytest.raises(DeniedError):
                await client.subscribe(T, name="b")
            gone = asyncio.Event()
            asyncio.get_running_loop().call_later(0.3, gone.set)
            await gone.wait()
            second = await client.subscribe(T, name="b")
            async with client.receive(second) as stream:
                assert payloads(await stream.take(1)) == [0]
            with pytest.raises(NotFoundError):
                async with client.receive(first) as stream:
                    await stream.take(1)

    run(act())


def test_a_type_stays_as_long_as_the_subscription_has_consumers(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=0.0) as client:
            producer = await client.producer(T)
            first = await client.subscribe(T, name="a", kind=SHARED)
            async with client.receive(first) as stream:
                await client.send(T, producer, b"0")
                await stream.take(1)
                with pytest.raises(PreconditionError, match="SHARED"):
                    await client.subscribe(T, name="b", kind=FAILOVER)
            second = await client.subscribe(T, name="b", kind=EXCLUSIVE)
            async with client.receive(second) as stream:
                assert payloads(await stream.take(1)) == [0]

    run(act())


def test_who_may_not_subscribe_is_told_why(tmp_path):
    async def act():
        policies = CompletePolicies(
            max_subscriptions_per_topic=2, max_consumers_per_topic=3, max_consumers_per_subscription=2
        )
        async with BrokerWorld(tmp_path).broker(policies=policies) as client:
            with pytest.raises(NotFoundError):
                await client.subscribe(T)
            await client.producer(T)
            with pytest.raises(InvalidRequestError):
                await client.subscribe(T, kind=9)
            with pytest.raises(InvalidRequestError):
                await client.subscribe(T, subscription="")
            await client.subscribe(T, "one", "a", SHARED)
            await client.subscribe(T, "one", "b", SHARED)
            with pytest.raises(DeniedError):
                await client.subscribe(T, "one", "c", SHARED)
            await client.subscribe(T, "two", "a", SHARED)
            with pytest.raises(LimitError):
                await client.subscribe(T, "two", "b", SHARED)
            with pytest.raises(DeniedError):
                await client.subscribe(T, "three", "a", SHARED)

    run(act())


def test_acknowledgements_that_nobody_expects_are_fine_and_those_for_nothing_are_not(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await client.send(T, producer, b"0")
            async with client.receive(consumer) as stream:
                (message,) = await stream.take(1)
                for _ in range(2):
                    await client.ack(message)
                message.msg_id.topic_offset = 10**12
                await client.ack(message)
                await client.nack(message)
                with pytest.raises(UnknownPlaceError):
                    await client.ack(message, "nobody")
                message.msg_id.topic_name = "/default/nothing"
                with pytest.raises(UnknownPlaceError):
                    await client.nack(message)
            with pytest.raises(InvalidRequestError):
                client.consuming.ack(AckRequest(subscription_name="s"))
            with pytest.raises(InvalidRequestError):
                client.consuming.nack(NackRequest(subscription_name="s"))

    run(act())


def test_a_new_subscription_begins_with_the_oldest_message_where_the_policy_says_so(tmp_path):
    async def act():
        policies = CompletePolicies(start_position="earliest")
        async with BrokerWorld(tmp_path).broker(policies=policies) as client:
            producer = await client.producer(T)
            await send_all(client, producer, 3)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(3)) == [0, 1, 2]

    run(act())


def test_a_non_reliable_topic_delivers_to_whoever_listens_and_forgets_subscriptions(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker(volatile_subscription_expiry_s=0.1) as client:
            producer = await client.producer(T, reliable=False)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                await send_all(client, producer, 30)
                messages = await stream.take(30)
                assert payloads(messages) == list(range(30))
                assert {message.msg_id.topic_offset for message in messages} == {0}
                await client.ack(messages[0])
            await until(lambda: not client.broker.topics[T].subscriptions)
            with pytest.raises(NotFoundError):
                async with client.receive(consumer) as stream:
                    await stream.take(1)

    run(act())


def test_the_health_of_clients_that_are_known_is_ok_and_of_others_close(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)

            async def status(kind, number):
                request = HealthCheckRequest(client=kind, id=number)
                return (await client.discovery.health_check(request)).status

            assert await status(0, producer) == HealthCheckResponse.ClientStatus.OK
            assert await status(1, consumer) == HealthCheckResponse.ClientStatus.OK
            assert await status(0, 17) == HealthCheckResponse.ClientStatus.CLOSE
            assert await status(1, 17) == HealthCheckResponse.ClientStatus.CLOSE
            with pytest.raises(InvalidRequestError):
                await status(5, producer)

    run(act())


def test_deleting_a_topic_ends_its_streams_and_its_consumers(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                await client.send(T, producer, b"0")
                await stream.take(1)
                await client.broker.delete_topic(client.broker.topics[T].name)
                with pytest.raises(NotFoundError):
                    await stream.end()
            with pytest.raises(NotFoundError):
                await client.send(T, producer, b"1")
            producer = await client.producer(T)
            assert await client.send(T, producer, b"1") == 0

    run(act())
