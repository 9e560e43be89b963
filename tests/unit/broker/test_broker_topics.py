"""Topics come and go whole, whatever happens in between."""

import asyncio

import pytest
from danube.proto.SchemaRegistry_pb2 import ConfigureTopicSchemaRequest, UpdateTopicValidationPolicyRequest

from ister.broker.registry.store import NewSchema
from ister.broker.services.schema_registry import SchemaRegistry
from ister.broker.topics.records import Records, TopicRecord
from ister.config.policies import CompletePolicies, Policies
from ister.core.dispatch.dispatch import DeadLetter
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import MetadataUnavailableError, NotFoundError, PreconditionError
from ister.core.message import MsgID, StreamMessage
from ister.core.names import TopicName
from ister.schemas import SchemaType, TopicSchema, ValidationPolicy
from parts.broker import BrokerWorld, until

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


def held_up(monkeypatch, records, method):
    """Let a write to metadata wait; returns what tells that it has begun, and what lets it go on."""
    write, begun, go_on = getattr(records, method), asyncio.Event(), asyncio.Event()

    async def slow(*args):
        begun.set()
        await go_on.wait()
        await write(*args)

    monkeypatch.setattr(records, method, slow)
    return begun, go_on


@pytest.mark.parametrize("meanwhile", ["created", "given policies"])
def test_a_namespace_that_is_being_deleted_is_changed_before_or_after(tmp_path, monkeypatch, meanwhile):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            broker = client.broker
            await broker.namespaces.create("n")
            begun, go_on = held_up(monkeypatch, broker.records, "forget_namespace")
            deleting = asyncio.create_task(broker.namespaces.delete("n"))
            await begun.wait()
            change = (
                broker.namespaces.create("n")
                if meanwhile == "created"
                else broker.set_namespace_policies("n", Policies())
            )
            changing = asyncio.create_task(change)
            await asyncio.sleep(0)
            go_on.set()
            results = await asyncio.gather(deleting, changing, return_exceptions=True)
            assert results[0] is None
            assert results[1] is None if meanwhile == "created" else isinstance(results[1], NotFoundError)
            assert set(await broker.records.namespaces()) == set(broker.namespaces)
            assert ("n" in broker.namespaces) is (meanwhile == "created")

    run(act())


def test_a_namespace_that_is_given_policies_is_not_deleted_meanwhile(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            broker = client.broker
            await broker.namespaces.create("n")
            begun, go_on = held_up(monkeypatch, broker.records, "save_namespace")
            setting = asyncio.create_task(broker.set_namespace_policies("n", Policies(max_producers_per_topic=1)))
            await begun.wait()
            deleting = asyncio.create_task(broker.namespaces.delete("n"))
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(setting, deleting)
            assert "n" not in broker.namespaces
            assert "n" not in await broker.records.namespaces()

    run(act())


def test_a_topic_that_is_being_made_gets_the_policies_that_its_namespace_is_given_meanwhile(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            broker = client.broker
            open_storage, begun, go_on = broker._open_storage, asyncio.Event(), asyncio.Event()

            async def slow(topic, storage):
                found = await open_storage(topic, storage)
                begun.set()
                await go_on.wait()
                return found

            monkeypatch.setattr(broker, "_open_storage", slow)
            making = asyncio.create_task(client.producer(T))
            await begun.wait()
            policies = Policies(max_producers_per_topic=7)
            setting = asyncio.create_task(broker.set_namespace_policies("default", policies))
            await until(lambda: broker.namespaces["default"].policies == policies)
            go_on.set()
            await asyncio.gather(making, setting)
            assert broker.topics[T].policies.max_producers_per_topic == 7

    run(act())


def test_a_validation_policy_that_is_set_beside_a_binding_keeps_the_new_subject(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            broker = client.broker
            await client.producer(T)
            for subject in ("old", "new"):
                await broker.schemas.register(NewSchema(subject=subject, schema_type=SchemaType.STRING, definition=b""))
            registry = SchemaRegistry(broker.schemas, broker)
            bind = {"topic_name": T, "validation_policy": "warn"}
            await registry.configure_topic_schema(ConfigureTopicSchemaRequest(schema_subject="old", **bind))
            begun, go_on = held_up(monkeypatch, broker.records, "save_topic")
            request = ConfigureTopicSchemaRequest(schema_subject="new", **bind)
            binding = asyncio.create_task(registry.configure_topic_schema(request))
            await begun.wait()
            request = UpdateTopicValidationPolicyRequest(topic_name=T, validation_policy="enforce")
            updating = asyncio.create_task(registry.update_topic_validation_policy(request))
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(binding, updating)
            assert broker.topics[T].record.topic_schema == TopicSchema("new", ValidationPolicy.ENFORCE)

    run(act())
