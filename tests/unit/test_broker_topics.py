"""Topics come and go whole, whatever happens in between."""

import asyncio

import pytest
from broker_parts import BrokerWorld

from ister.broker.records import Records, TopicRecord
from ister.config.policies import CompletePolicies
from ister.core.dispatch import DeadLetter
from ister.core.errors import MetadataUnavailableError, PreconditionError
from ister.core.failure import FailurePolicy, Poison
from ister.core.message import MsgID, StreamMessage
from ister.core.names import TopicName

T = "/default/t"
NAME = TopicName("default", "t")


def run(act):
    return asyncio.run(act)


def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            await client.send(T, producer, b"x")
            await client.subscribe(T)
        records = Records(world.metadata, "/danube-data")
        await records.save_topic(NAME, TopicRecord(reliable=True, deleting=True))
        async with world.broker() as client:
            assert T not in client.broker.topics
            assert await records.topics() == {}
            assert await records.subscriptions() == {}
            producer = await client.producer(T)
            assert await client.send(T, producer, b"y") == 0

    run(act())


def test_a_deletion_that_failed_can_be_repeated_and_until_then_the_topic_is_as_it_was(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            down = MetadataUnavailableError("memory", "put", "no answer")

            async def fail(*_):
                raise down

            with monkeypatch.context() as patch:
                patch.setattr(client.broker.records, "save_topic", fail)
                with pytest.raises(MetadataUnavailableError):
                    await client.broker.delete_topic(NAME)
            await client.send(T, producer, b"x")
            with monkeypatch.context() as patch:
                patch.setattr(client.broker.records, "forget_topic", fail)
                with pytest.raises(MetadataUnavailableError):
                    await client.broker.delete_topic(NAME)
            await client.broker.delete_topic(NAME)
            assert client.broker.topics == {}

    run(act())


def test_a_cursor_without_a_subscription_is_forgotten_at_the_start_so_that_it_holds_nothing_back(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            await client.producer(T)
            await client.subscribe(T)
            await client.broker.topics[T].storage.reset_cursor("ghost", 0)
        policies = CompletePolicies(retention_policy="retain_until_ack")
        async with world.broker(policies=policies) as client:
            assert set(await client.broker.topics[T].storage.cursors()) == {"s"}

    run(act())


def test_a_dead_letter_is_not_given_to_a_topic_that_does_not_store_it(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            await client.producer("/default/dead", reliable=False)
            policy = FailurePolicy(poison=Poison.DEAD_LETTER, dead_letter_topic="/default/dead")
            letter = DeadLetter(StreamMessage(b"x", MsgID(1, T, "", 3)), 6, "broken")
            with pytest.raises(PreconditionError, match="not reliable"):
                await client.broker.store_dead_letter(client.broker.topics[T], "s", letter, policy)

    run(act())
