"""Consumers that come and go, and a broker that is killed, stopped and started again under clients that do not change."""

import asyncio
from itertools import pairwise

import grpc
from danube import SchemaType, SubType

from interop.official import PATIENT, Crowd, Official, numbered, offsets, payloads
from interop.raw import EXCLUSIVE, api, once_allowed, refused
from interop.waiting import eventually


async def in_thread(work, *given):
    """Wait for a process without holding up the event loop."""
    return await asyncio.to_thread(work, *given)


async def keep_producing(producer, acknowledged: list[bytes], stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        payload = b"message %d" % number
        await producer.send(payload)
        acknowledged.append(payload)
        number += 1


def assert_nothing_lost(got: list, acknowledged: list[bytes]) -> None:
    """Insist on every acknowledged message, on order, and that only an unanswered send is there twice."""
    by_offset = {message.msg_id.topic_offset: message.payload for message in got}
    assert sorted(by_offset) == list(range(len(by_offset))), "offsets are dense"
    stored = [by_offset[offset] for offset in sorted(by_offset)]
    first_seen = list(dict.fromkeys(stored))
    assert first_seen == acknowledged, "every acknowledged message is there, in order"
    repeats = [later for earlier, later in pairwise(stored) if later == earlier]
    assert len(stored) - len(first_seen) == len(repeats), "a repeated message follows its first"
    delivered = list(dict.fromkeys(offsets(got)))
    assert delivered == sorted(delivered), "first deliveries are in order"


async def test_an_official_client_works_through_kill_nine_and_restart_without_a_change(victim, topic):
    broker = victim
    acknowledged: list[bytes] = []
    stop = asyncio.Event()
    async with Official(broker) as client:
        producer = await client.producer(topic, prepare=lambda builder: builder.with_options(PATIENT))
        receivers = [
            await client.consumer(topic, "exclusive", "e"),
            await client.consumer(topic, "shared", "s", SubType.SHARED),
            await client.consumer(topic, "failover", "f", SubType.FAILOVER),
            await client.consumer(topic, "keys", "k", SubType.KEY_SHARED),
        ]
        async with Crowd(receivers) as crowd:
            producing = asyncio.create_task(keep_producing(producer, acknowledged, stop))
            for enough in (100, 300, 500):
                await eventually(
                    lambda enough=enough: len(acknowledged) > enough or producing.done(), "messages are acknowledged"
                )
                if enough < 500 and not producing.done():
                    await in_thread(broker.restart)
            stop.set()
            await producing
            await crowd.until(
                lambda got: all({m.payload for m in each} == {*acknowledged} for each in got.values()),
                "every subscription gets everything",
            )
        for got in crowd.got.values():
            assert_nothing_lost(got, acknowledged)


async def test_a_program_with_default_retries_that_tries_again_itself_goes_on(victim, topic):
    broker = victim
    async with Official(broker) as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, "sub")
        await producer.send(b"before")
        await consumer.take(1)
        await in_thread(broker.kill)
        restarting = asyncio.create_task(in_thread(broker.start))
        await once_allowed(grpc.StatusCode.UNAVAILABLE, lambda: producer.send(b"after"), 120)
        await restarting
        while (message := await consumer.next()).payload != b"after":
            # Its acknowledgement was not saved yet when the kill came: at least once.
            assert message.payload == b"before"
            await consumer.ack_if_possible(message)


async def test_a_clean_stop_keeps_everything_and_says_goodbye(victim, topic):
    broker = victim
    async with Official(broker) as client:
        producer = await client.producer(topic, prepare=lambda builder: builder.with_options(PATIENT))
        consumer = await client.consumer(topic, "sub")
        for payload in numbered(50):
            await producer.send(payload)
        assert payloads(await consumer.take(20)) == numbered(20)
        code, seconds = await in_thread(broker.terminate)
        assert code == 0
        assert seconds < 10
        await in_thread(broker.start)
        await producer.send(b"after")
        got = await consumer.take_through(31)
        assert payloads(got) == [*numbered(30, 20), b"after"], "acknowledged ones do not come again"


async def test_everything_that_was_registered_outlives_a_kill(victim, topics):
    """Ids, filters, policies, windows, namespaces, schemas, and where a subscription that never acknowledged began."""
    broker = victim
    topic, other, late = topics(3)
    subject = topic.rpartition("/")[2]
    async with broker.raw() as raw, broker.client() as client:
        producer = await raw.create_producer(topic, "p")
        await raw.create_producer(other, "p", dispatch_strategy=api.NonReliable)
        consumer = await raw.subscribe(topic, "sub", "c", EXCLUSIVE)
        await raw.set_policy(topic, "sub", max_redelivery_count=2)
        await raw.set_window(topic, "sub", 5)
        await raw.ask("CreateNamespace", name=subject)
        await raw.send(topic, producer, b"zero")
        writer = await raw.create_producer(late, "p")
        await raw.send(late, writer, b"before the subscription")
        await raw.subscribe(late, "never acknowledges", "c", EXCLUSIVE)
        await raw.send_all(late, writer, numbered(5))
        register = client.schema().register_schema(subject).with_type(SchemaType.STRING).with_schema_data(b"string")
        schema_id = await register.execute()
    await in_thread(broker.restart)
    async with broker.raw() as raw, broker.client() as client:
        assert await raw.is_well(api.HealthCheckRequest.Producer, producer)
        assert await raw.is_well(api.HealthCheckRequest.Consumer, consumer)
        await raw.send(topic, producer, b"one")
        stream = raw.receive(consumer)
        assert [(m.payload, m.msg_id.topic_offset) for m in await stream.take(2)] == [(b"zero", 0), (b"one", 1)]
        stream.cancel()
        assert await raw.create_producer(topic, "p") == producer
        assert await raw.subscribe(topic, "sub", "c", EXCLUSIVE) == consumer
        policy = await raw.ask("GetSubscriptionFailurePolicy", topic=topic, subscription="sub")
        assert policy.failure_policy.max_redelivery_count == 2
        window = await raw.ask("GetSubscriptionDispatchConfig", topic=topic, subscription="sub")
        assert window.dispatch_config.max_unacked_messages == 5
        assert subject in (await raw.ask("ListNamespaces")).namespaces
        assert (await raw.ask("DescribeTopic", name=other)).delivery == "NonReliable"
        await refused(grpc.StatusCode.NOT_FOUND, raw.ask("DescribeTopic", name="/default/never"))
        stream = await raw.consume(late, "never acknowledges", "c", EXCLUSIVE)
        assert payloads(await stream.take(5)) == numbered(5)
        stream.cancel()
        assert (await client.schema().get_latest_schema(subject)).schema_id == schema_id
        register = (
            client.schema().register_schema(f"{subject}-2").with_type(SchemaType.STRING).with_schema_data(b"string")
        )
        assert await register.execute() > schema_id, "an id is never given twice"


async def test_consumers_that_come_and_go_lose_nothing(broker, topic):
    """Each consumer takes a few, acknowledges some of them, and leaves in one of three ways."""
    total, acked = 120, []
    async with Official(broker) as client:
        producer = await client.producer(topic)
        keeper = await client.consumer(topic, "sub", "keeper", SubType.SHARED)
        await keeper.close()
        for number in range(total):
            await producer.send(b"%d" % number)
        life = 0
        while len(acked) < total:
            life += 1
            assert life < 60, f"{len(acked)} of {total} after {life} lives"
            consumer = await client.consumer(topic, "sub", f"guest-{life % 3}", SubType.SHARED)
            for taken in range(min(9, total - len(acked))):
                message = await consumer.next()
                if (life + taken) % 4:
                    await consumer.ack(message)
                    acked.append(message.msg_id.topic_offset)
            await consumer.close()
    assert sorted(acked) == list(range(total)), "an acknowledged message does not come again"


async def test_a_consumer_that_subscribes_again_takes_over_from_itself(broker, topic):
    async with broker.raw() as raw, broker.raw() as another:
        await raw.create_topic(topic)
        first = await raw.consume(topic, "sub", "me", EXCLUSIVE)
        producer = await raw.create_producer(topic)
        await raw.send_all(topic, producer, numbered(3))
        await first.take(3)
        again = await another.consume(topic, "sub", "me", EXCLUSIVE)
        assert [m.payload for m in await again.take(3)] == numbered(3), "unacknowledged ones are due at once"
        assert await first.ended() is grpc.StatusCode.OK, "a plain end, no error"
        again.cancel()


async def test_a_second_stream_of_a_consumer_ends_the_first(broker, topic):
    async with broker.raw() as raw:
        await raw.create_topic(topic)
        consumer = await raw.subscribe(topic, "sub", "me", EXCLUSIVE)
        first = raw.receive(consumer)
        await first.opened()
        second = raw.receive(consumer)
        await second.opened()
        assert await first.ended() is grpc.StatusCode.OK
        await raw.send(topic, await raw.create_producer(topic), b"for the second")
        assert (await second.next()).payload == b"for the second"
        second.cancel()
