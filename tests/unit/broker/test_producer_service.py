"""CreateProducer and SendMessage, as PROTOCOL has them."""

import asyncio

import pytest
from danube.proto.DanubeApi_pb2 import ProducerRequest, StreamMessage

from ister.broker.services.producer import SAMPLED
from ister.broker.topics import ids
from ister.config.policies import CompletePolicies
from ister.core.dispatch.delivery_id import split_delivery_id
from ister.core.errors import (
    AlreadyExistsError,
    Behind,
    DiskFullError,
    DrainingError,
    InvalidNameError,
    InvalidRequestError,
    LevelNotReachedError,
    LimitError,
    NotFoundError,
    NotYetInTierError,
    PreconditionError,
)
from ister.core.names import TopicName
from parts.broker import BrokerWorld, FakeCall

T = "/default/t"


def run(act):
    return asyncio.run(act)


def test_a_producer_makes_its_topic_and_messages_get_dense_offsets(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            assert [await client.send(T, producer, b"x") for _ in range(3)] == [0, 1, 2]

    run(act())


def test_a_name_gets_the_same_number_again_and_after_a_restart_too(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            number = await client.producer(T)
            assert await client.producer(T) == number
            assert await client.producer(T, "other") != number
            await client.send(T, number, b"1")
        async with world.broker() as client:
            assert await client.send(T, number, b"2") == 1, "sent without attaching again"
            assert await client.producer(T) == number

    run(act())


@pytest.mark.parametrize("number", [0, 1, 12345, 2**63 - 1, 2**64 - 1])
def test_a_number_that_nobody_was_given_is_not_found(tmp_path, number):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            with pytest.raises(NotFoundError):
                await client.send(T, number, b"x")

    run(act())


def test_the_number_of_another_topic_is_not_found(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            other = await client.producer("/default/other")
            with pytest.raises(NotFoundError):
                await client.send(T, other, b"x")

    run(act())


def test_what_is_wrong_with_a_request_is_told_in_the_order_of_the_protocol(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            with pytest.raises(InvalidNameError):
                await client.producer("no-slash")
            with pytest.raises(NotFoundError, match="namespace nowhere"):
                await client.producer("/nowhere/t")
            await client.producer(T)
            with pytest.raises(PreconditionError, match="Reliable"):
                await client.producer(T, "q", reliable=False)
            with pytest.raises(AlreadyExistsError):
                await client.producer(f"{T}-part-0")
            await client.producer("/default/p-part-1")
            with pytest.raises(AlreadyExistsError):
                await client.producer("/default/p")
            await client.producer("/default/p-party")
            with pytest.raises(PreconditionError, match="not found"):
                await client.producer(T, "q", subject="unregistered")
            with pytest.raises(InvalidRequestError):
                await client.producing.create_producer(
                    ProducerRequest(topic_name=T, producer_name="x", dispatch_strategy=7), FakeCall()
                )
            with pytest.raises(InvalidRequestError):
                await client.producer(T, "")

    run(act())


def test_a_topic_is_not_made_when_the_broker_makes_none_by_itself(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker(auto_create_topics=False) as client:
            with pytest.raises(NotFoundError):
                await client.producer(T)
            assert client.broker.topics == {}

    run(act())


def test_a_message_without_an_id_and_one_that_is_too_large_are_refused(tmp_path):
    async def act():
        policies = CompletePolicies(max_message_size=4)
        async with BrokerWorld(tmp_path).broker(policies=policies) as client:
            with pytest.raises(InvalidRequestError, match="msg_id"):
                await client.producing.send_message(StreamMessage(payload=b"x"), None)
            producer = await client.producer(T)
            await client.send(T, producer, b"1234")
            with pytest.raises(InvalidRequestError, match="5 bytes"):
                await client.send(T, producer, b"12345")

    run(act())


def test_limits_of_producers_and_of_the_rate_make_clients_wait(tmp_path):
    async def act():
        policies = CompletePolicies(max_producers_per_topic=2, max_publish_rate=3)
        async with BrokerWorld(tmp_path).broker(policies=policies, producer_expiry_s=0.05) as client:
            first = await client.producer(T, "a")
            await client.producer(T, "b")
            with pytest.raises(LimitError):
                await client.producer(T, "c")
            for _ in range(3):
                await client.send(T, first, b"x")
            with pytest.raises(LimitError):
                await client.send(T, first, b"x")
            loop = asyncio.get_running_loop()
            forgotten = asyncio.Event()
            loop.call_later(0.1, forgotten.set)
            await forgotten.wait()
            await client.producer(T, "c")

    run(act())


def test_a_producer_that_wants_a_topic_alone_gets_it_alone(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            number = await client.producer(T, "a", exclusive=True)
            assert await client.producer(T, "a", exclusive=True) == number
            with pytest.raises(PreconditionError):
                await client.producer(T, "b")

    run(act())


def test_an_attached_producer_that_wants_a_topic_alone_is_refused_beside_others(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            first = await client.producer(T, "a")
            await client.producer(T, "b")
            with pytest.raises(PreconditionError, match="another producer"):
                await client.producer(T, "a", exclusive=True)
            assert not client.broker.topics[T].producers[first].exclusive

    run(act())


def test_every_field_of_a_message_comes_back_as_it_was_sent(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            fields = {
                "attributes": {"a": "1", "ü": ""},
                "schema_id": 7,
                "schema_version": 2,
                "routing_key": "",
            }
            await client.send(T, producer, b"full", **fields)
            await client.send(T, producer, b"")
            async with client.receive(consumer) as stream:
                full, bare = await stream.take(2)
            assert full.payload == b"full"
            assert full.request_id == 1
            assert (full.publish_time, full.producer_name, full.subscription_name) == (1234, "p", "s")
            assert dict(full.attributes) == fields["attributes"]
            assert (full.schema_id, full.schema_version, full.routing_key) == (7, 2, "")
            assert full.HasField("routing_key")
            assert (full.msg_id.producer_id, full.msg_id.topic_name) == (producer, T)
            assert full.msg_id.topic_offset == 0
            assert split_delivery_id(full.msg_id.broker_addr)[0] == "http://b"
            assert not any(bare.HasField(field) for field in ("schema_id", "schema_version", "routing_key"))

    run(act())


def test_a_broker_that_drains_sends_producers_elsewhere(tmp_path):
    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
        with pytest.raises(DrainingError):
            await client.send(T, producer, b"x")
        with pytest.raises(DrainingError):
            await client.producer("/default/new")

    run(act())


def test_only_messages_that_were_taken_are_counted(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            for name, reliable in ((T, True), ("/default/volatile", False)):
                producer = await client.producer(name, reliable=reliable)
                topic = client.broker.topics[name]
                await client.send(name, producer, b"xyz")
                assert (topic.messages_in, topic.bytes_in) == (1, 3)
            topic = client.broker.topics[T]

            async def refuses(_):
                raise DiskFullError("t")

            monkeypatch.setattr(topic.storage, "append_message", refuses)
            with pytest.raises(DiskFullError):
                await client.send(T, client.broker.topics[T].attach("p", exclusive=False).id, b"xyz")
            assert (topic.messages_in, topic.bytes_in) == (1, 3), "nothing was stored"

            async def stores_and_waits_in_vain(_):
                raise NotYetInTierError("cloud", [Behind(T, 1, 2)], "the store is down")

            monkeypatch.setattr(topic.storage, "append_message", stores_and_waits_in_vain)
            with pytest.raises(NotYetInTierError):
                await client.send(T, client.broker.topics[T].attach("p", exclusive=False).id, b"xyz")
            assert (topic.messages_in, topic.bytes_in) == (2, 6), "it is in the log"

    run(act())


def test_how_long_sending_took_is_measured_of_a_sample(tmp_path):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            sends = client.producing.send_ms
            await client.send(T, producer, b"x")
            assert sends.count == 1, "the first counts, so that a quiet broker tells something, too"
            assert 0 < sends.total < 10_000
            for _ in range(SAMPLED - 1):
                await client.send(T, producer, b"x")
            assert sends.count == 1
            await client.send(T, producer, b"x")
            assert sends.count == 2

    run(act())


def test_numbers_of_producers_are_positive_and_tell_their_topic():
    for name in ("a", "b", "ü" * 50):
        number = ids.producer_id(T, name)
        assert 0 < number < 2**63
        assert ids.may_send(number, T)
        assert not ids.may_send(number, "/default/t2")
    assert ids.consumer_id("a", "b", "c") != ids.consumer_id("a", "bc", "")


def test_a_client_that_means_one_generation_creates_no_topic_and_writes_to_no_other(tmp_path):
    """M2."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            created = FakeCall()
            producer = await client.producer(T, call=created)
            assert created.trailing == {"ister-generation": "1"}
            meant = {"ister-generation": "1"}
            assert await client.producer(T, call=FakeCall(meant)) == producer
            assert await client.send(T, producer, b"x", call=FakeCall(meant)) == 0
            await client.broker.delete_topic(TopicName.parse(T))
            with pytest.raises(NotFoundError, match="its generation 1 was deleted"):
                await client.producer(T, call=FakeCall(meant))
            assert T not in client.broker.topics
            again = FakeCall()
            await client.producer(T, call=again)
            assert again.trailing == {"ister-generation": "2"}
            for act in (client.producer(T, call=(first := FakeCall(meant))),
                        client.send(T, producer, b"x", call=(second := FakeCall(meant)))):  # fmt: skip
                with pytest.raises(PreconditionError, match="has generation 2, not 1"):
                    await act
            assert first.trailing == second.trailing == {"ister-generation": "2"}
            assert client.broker.topics[T].next_offset == 0

    run(act())


def test_a_message_whose_level_is_not_reached_in_time_is_answered_with_its_offset_and_the_level(tmp_path):
    """M3."""

    async def act():
        policies = CompletePolicies(ack_level="lake", ack_timeout_ms=1)
        async with BrokerWorld(tmp_path).broker(policies=policies) as client:
            producer = await client.producer(T)
            for offset in range(2):
                call = FakeCall()
                with pytest.raises(LevelNotReachedError):
                    await client.send(T, producer, b"x", call=call)
                assert call.trailing == {"ister-offset": str(offset), "ister-pending-level": "lake"}

    run(act())
