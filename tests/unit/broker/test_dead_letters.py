"""A dead letter is stored once, whatever level its topic waits for and however a try to store it ends."""

import asyncio

import pytest

from ister.config.policies import Policies
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import SyncFailedError
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from parts.broker import BrokerWorld, until

T, DEAD = "/default/t", "/default/dead"


async def poison(client, count=1):
    """Subscribe with a dead letter topic, and fail some messages; returns the subscription."""
    producer = await client.producer(T)
    consumer = await client.subscribe(T)
    subscription = client.broker.topics[T].subscriptions["s"]
    policy = FailurePolicy(max_redelivery_count=0, poison=Poison.DEAD_LETTER, dead_letter_topic=DEAD)
    subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
    for number in range(count):
        await client.send(T, producer, b"%d" % number)
    async with client.receive(consumer) as stream:
        for message in await stream.take(count):
            await client.nack(message, reason="bad")
        await until(lambda: subscription.cursor == count)
    return subscription


async def letters(client):
    """The offsets of the messages of which there are dead letters."""
    storage = client.broker.topics[DEAD].storage
    reader = await storage.create_reader(StartPosition.offset(0))
    found = []
    while len(found) < storage.next_offset:
        found += await reader.read()
    return [int(letter.attributes["x-original-topic-offset"]) for letter in found]


def test_a_dead_letter_that_is_in_the_log_and_not_at_its_level_is_not_stored_again(tmp_path, monkeypatch):
    """J5."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            monkeypatch.setattr("ister.broker.topics.broker.require_table", lambda *_: None)
            await client.producer(DEAD)
            await client.broker.set_topic_policies(TopicName.parse(DEAD), Policies(ack_level="lake", ack_timeout_ms=1))
            tries, store = [], client.broker.store_dead_letter

            async def counted(*arguments):
                tries.append(arguments)
                await store(*arguments)

            monkeypatch.setattr(client.broker, "store_dead_letter", counted)
            subscription = await poison(client)
            assert (await letters(client), subscription.dead_lettered, len(tries)) == ([0], 1, 1)

    asyncio.run(act())


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not-stored"])
def test_a_dead_letter_whose_storing_has_no_known_outcome_is_looked_for_first(tmp_path, monkeypatch, is_stored):
    """J5."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(DEAD)
            topic = client.broker.topics[DEAD]
            publish, failures = topic.publish, []

            async def fails_once(message):
                if message.attributes.get("x-original-topic-offset") != "1" or failures:
                    return await publish(message)
                failures.append(message)
                if is_stored:
                    await publish(message)
                await client.send(DEAD, producer, b"another", attributes={"x-original-topic-offset": "-1"})
                raise SyncFailedError("log", "the disk is gone")

            monkeypatch.setattr(topic, "publish", fails_once)
            subscription = await poison(client, 3)
            assert sorted(await letters(client)) == [-1, 0, 1, 2]
            assert (subscription.dead_lettered, subscription._unknown_dead_letters) == (3, {})

    asyncio.run(act())
