"""What an acknowledgement, and the sending of a message, refer to: one generation of a topic, one hand-out, one stream."""

import asyncio
from contextlib import aclosing

import pytest
from danube.proto.DanubeApi_pb2 import ReceiveRequest, StreamMessage

from ister.broker.services.ister_admin import IsterAdmin
from ister.cli.commands.consume import from_wire
from ister.core.dispatch.delivery_id import DeliveryId, split_delivery_id, with_delivery_id
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import DeniedError
from ister.core.names import TopicName
from ister.rpc import ister_v1_pb2 as pb
from ister.storage.cursors.move import open_cursors
from parts.broker import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, BrokerWorld, FakeCall, until

T = "/default/t"
NAME = TopicName.parse(T)


class SlowCall(FakeCall):
    """A call whose client takes nothing until it is told to."""

    def __init__(self):
        super().__init__()
        self.written = []

    def when_sent(self, done):
        self.written.append(done)

    def take(self):
        written, self.written = self.written, []
        for done in written:
            done()


async def send_all(client, producer, payloads):
    for payload in payloads:
        await client.send(T, producer, payload)


def names(kind, start, stop):
    return [b"%s-%d" % (kind, number) for number in range(start, stop)]


def payloads(messages):
    return [message.payload for message in messages]


def without_id(message):
    """A message whose MsgID is not echoed whole, or that an older release has delivered."""
    message.msg_id.broker_addr = ""
    return message


async def deliver_old(client, count=4):
    """Have messages of a topic delivered that is deleted then; returns them."""
    producer = await client.producer(T)
    consumer = await client.subscribe(T)
    await send_all(client, producer, names(b"old", 0, count))
    async with client.receive(consumer) as stream:
        old = await stream.take(count)
    await client.broker.delete_topic(NAME)
    return old


async def receive_and_ack(client, stream, count):
    got = []
    for _ in range(count):
        [message] = await stream.take(1)
        got.append(message.payload)
        await client.ack(message)
    return got


@pytest.mark.parametrize("echoes", [True, False], ids=["echoed", "without-an-id"])
def test_a_late_acknowledgement_of_a_deleted_topic_finishes_nothing_of_the_next_one_of_its_name(tmp_path, echoes):
    """J1."""

    async def act():
        async with BrokerWorld(tmp_path).broker(max_unacked_messages=1) as client:
            old = await deliver_old(client, 1)
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, names(b"new", 0, 4))
            late = [with_offset(old[0], offset) for offset in range(4)]
            async with client.receive(consumer) as stream:
                await until(lambda: stream.waiting() == 1)
                for message in late if echoes else [without_id(each) for each in late[1:]]:
                    await client.ack(message)
                    await client.nack(message)
                assert await receive_and_ack(client, stream, 4) == names(b"new", 0, 4)

    asyncio.run(act())


def with_offset(message, offset):
    other = StreamMessage.FromString(message.SerializeToString())
    other.msg_id.topic_offset = offset
    return other


def test_a_late_acknowledgement_of_a_deleted_topic_finishes_nothing_after_a_restart(tmp_path):
    """J1."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            old = await deliver_old(client)
            producer = await client.producer(T)
            await client.subscribe(T)
            await send_all(client, producer, names(b"new", 0, 4))
        async with world.broker(max_unacked_messages=1) as client:
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                await until(lambda: stream.waiting() == 1)
                for message in old:
                    await client.ack(message)
                assert await receive_and_ack(client, stream, 4) == names(b"new", 0, 4)

    asyncio.run(act())


@pytest.mark.parametrize("echoes", [True, False], ids=["echoed", "without-an-id"])
def test_what_was_delivered_before_a_restart_may_be_acknowledged_behind_it(tmp_path, echoes):
    """J1: the way of an older release's deliveries, and of a client's buffer."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, names(b"m", 0, 3))
            async with client.receive(consumer) as stream:
                got = await stream.take(3)
        async with world.broker(max_unacked_messages=1) as client, client.receive(consumer) as stream:
            await until(lambda: stream.waiting() == 1)
            for message in got:
                await client.ack(message if echoes else without_id(message))
            subscription = client.broker.topics[T].subscriptions["s"]
            assert subscription.cursor == 3

    asyncio.run(act())


def test_a_message_that_comes_again_has_the_same_id(tmp_path):
    """J1: a consumer may recognise it by that."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await client.send(T, producer, b"x")
            got = []
            for _ in range(2):
                async with client.receive(consumer) as stream:
                    got += await stream.take(1)
            assert got[0] == got[1]

    asyncio.run(act())


async def reset_to_earliest(client):
    request = pb.ResetCursorRequest(topic=T, subscription="s", earliest=True)
    await IsterAdmin(client.broker).reset_cursor(request)


def test_an_acknowledgement_from_before_a_reset_finishes_nothing_that_is_delivered_again(tmp_path):
    """J1."""

    async def act():
        async with BrokerWorld(tmp_path).broker(max_unacked_messages=1) as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, names(b"m", 0, 3))
            async with client.receive(consumer) as stream:
                [first] = await stream.take(1)
                await reset_to_earliest(client)
                await until(lambda: stream.waiting() == 1)
                for offset in range(3):
                    await client.ack(with_offset(first, offset))
                assert await receive_and_ack(client, stream, 3) == names(b"m", 0, 3)

    asyncio.run(act())


async def next_payload(stream):
    async with asyncio.timeout(10):
        return StreamMessage.FromString(await anext(stream)).payload


@pytest.mark.parametrize("why", ["another stream", "a reset"])
def test_a_message_that_an_old_stream_was_writing_does_not_take_its_place_in_the_new_order(tmp_path, why):
    """J7."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            receive = client.consuming.receive_messages
            slow = SlowCall()
            async with aclosing(receive(ReceiveRequest(consumer_id=consumer), slow)) as old:
                first = asyncio.ensure_future(next_payload(old))
                await send_all(client, producer, names(b"m", 0, 6))
                assert [await first, *[await next_payload(old) for _ in range(3)]] == names(b"m", 0, 4)
                if why == "a reset":
                    await reset_to_earliest(client)
                    slow.take()
                    got = [await next_payload(old) for _ in range(6)]
                else:
                    before = client.broker.subscriptions.consumers[consumer][2].stream
                    async with client.receive(consumer) as new:
                        await until(lambda: client.broker.subscriptions.consumers[consumer][2].stream is not before)
                        slow.take()
                        with pytest.raises(StopAsyncIteration):
                            await anext(old)
                        got = payloads(await new.take(6))
                assert got == names(b"m", 0, 6)

    asyncio.run(act())


def test_what_has_not_left_the_send_buffer_does_not_fail_and_what_has_does(tmp_path):
    """J8."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            subscription = client.broker.topics[T].subscriptions["s"]
            policy = FailurePolicy(max_redelivery_count=0, ack_timeout_ms=40, poison=Poison.DROP)
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            slow = SlowCall()
            async with client.receive(consumer, slow) as stream:
                await client.send(T, producer, b"x")
                await stream.take(1)
                dispatch = subscription.dispatch
                due = dispatch.due
                await until(lambda: dispatch.due > due)  # it was looked at twice, at least
                due = dispatch.due
                await until(lambda: dispatch.due > due)
                assert (subscription.dropped, dispatch.unacked) == (0, 1)
                slow.take()
                await until(lambda: subscription.dropped == 1)

    asyncio.run(act())


def test_a_second_stream_of_the_active_failover_consumer_leaves_it_active(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            first = await client.subscribe(T, name="a", kind=FAILOVER)
            second = await client.subscribe(T, name="b", kind=FAILOVER)
            async with client.receive(first), client.receive(second) as other, client.receive(first) as again:
                dispatch = client.broker.topics[T].subscriptions["s"].dispatch
                await client.send(T, producer, b"x")
                await again.take(1)
                assert (dispatch.active, other.waiting()) == (first, 0)

    asyncio.run(act())


def test_a_reset_keeps_the_active_failover_consumer_and_the_counters(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            first = await client.subscribe(T, name="a", kind=FAILOVER)
            second = await client.subscribe(T, name="b", kind=FAILOVER)
            subscription = client.broker.topics[T].subscriptions["s"]
            await client.send(T, producer, b"x")
            async with client.receive(second) as active:
                await active.take(1)
            async with client.receive(second) as active, client.receive(first):
                await active.take(1)
                assert subscription.dispatch.redelivered == 1
                await reset_to_earliest(client)
                await active.take(1)
                assert (subscription.dispatch.active, subscription.dispatch.redelivered) == (second, 1)

    asyncio.run(act())


def test_a_change_of_type_delivers_nothing_again_that_was_acknowledged(tmp_path):
    """J6, J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_grace_s=0.0) as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T, kind=SHARED)
            await send_all(client, producer, names(b"m", 0, 4))
            async with client.receive(consumer) as stream:
                for message in (await stream.take(4))[1:3]:
                    await client.ack(message)
            consumer = await client.subscribe(T, kind=EXCLUSIVE)
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(2)) == [b"m-0", b"m-3"]

    asyncio.run(act())


def test_an_acknowledgement_while_its_topic_is_being_deleted_is_answered(tmp_path):
    """J13 (H5)."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            async with client.receive(consumer) as stream:
                await send_all(client, producer, names(b"m", 0, 20))
                got = await stream.take(10)
                topic = client.broker.topics[T]
                deleting = asyncio.create_task(client.broker.delete_topic(NAME))
                while not topic.closing:  # noqa: ASYNC110  # the very next step: the deletion is not over then
                    await asyncio.sleep(0)
                await client.ack(got[0])
                await client.nack(got[1])
                await deleting

    asyncio.run(act())


def test_an_address_gives_its_delivery_id_back_and_nothing_else_is_taken_for_one():
    for address in ("", "http://b:6650", "http://b#", "a#1.2", "#", "ü#x.y"):
        delivery = DeliveryId(3, 1794971409563732)
        assert split_delivery_id(with_delivery_id(address, delivery)) == (address, delivery)
    for other in (
        "",
        "http://b:6650",
        "#",
        "#1",
        "#1.",
        "#.1",
        "#-1.2",
        "#1.2.3",
        "#1.x",
        f"#1.{'9' * 5000}",
        "1.2",
        "#²",
    ):
        assert split_delivery_id(other) == (other, None)
    assert split_delivery_id("#1.2") == ("", DeliveryId(1, 2))


@pytest.mark.parametrize("in_metadata", [False, True], ids=["file", "metadata"])
def test_what_was_acknowledged_does_not_come_again_after_a_clean_stop(tmp_path, in_metadata, monkeypatch):
    """J6."""

    def open_as_with_a_table(*arguments, **named):
        return open_cursors(*arguments, **{**named, "in_metadata": in_metadata})

    async def act():
        monkeypatch.setattr("ister.storage.factory.open_cursors", open_as_with_a_table)
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T, kind=SHARED)
            await send_all(client, producer, names(b"m", 0, 10))
            async with client.receive(consumer) as stream:
                got = await stream.take(10)
                for number in (1, 2, 3, 5, 8, 9):
                    await client.ack(got[number])
        for _ in range(2):
            async with world.broker() as client, client.receive(consumer) as stream:
                assert payloads(await stream.take(4)) == [b"m-0", b"m-4", b"m-6", b"m-7"]
        async with world.broker() as client, client.receive(consumer) as stream:
            producer = await client.producer(T)
            await client.send(T, producer, b"m-10")
            assert await receive_and_ack(client, stream, 5) == [b"m-0", b"m-4", b"m-6", b"m-7", b"m-10"]
            assert client.broker.topics[T].subscriptions["s"].cursor == 11

    asyncio.run(act())


def test_a_reset_brings_back_what_was_acknowledged_before_a_clean_stop(tmp_path):
    """J6."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, names(b"m", 0, 3))
            async with client.receive(consumer) as stream:
                await client.ack((await stream.take(3))[1])
        async with world.broker() as client:
            await reset_to_earliest(client)
        async with world.broker() as client, client.receive(consumer) as stream:
            assert payloads(await stream.take(3)) == names(b"m", 0, 3)

    asyncio.run(act())


def test_what_a_key_shared_subscription_acknowledged_beside_a_blocked_key_does_not_come_again(tmp_path):
    """J6."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T, kind=KEY_SHARED)
            subscription = client.broker.topics[T].subscriptions["s"]
            policy = FailurePolicy(max_redelivery_count=0, poison=Poison.BLOCK)
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            async with client.receive(consumer) as stream:
                for number in range(60):
                    await client.send(T, producer, b"%d" % number, routing_key="bad" if number % 5 == 0 else "good")
                await client.nack((await stream.take(1))[0])
                await receive_and_ack(client, stream, 48)
        async with world.broker() as client, client.receive(consumer) as stream:
            assert await receive_and_ack(client, stream, 12) == [b"%d" % number for number in range(0, 60, 5)]

    asyncio.run(act())


def test_no_more_than_a_bounded_number_of_ranges_is_saved(tmp_path, monkeypatch):
    """J6."""

    async def act():
        monkeypatch.setattr("ister.broker.topics.subscription.FINISHED_RANGES_MAX", 2)
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            await send_all(client, producer, names(b"m", 0, 8))
            async with client.receive(consumer) as stream:
                for message in (await stream.take(8))[1::2]:
                    await client.ack(message)
        async with world.broker() as client, client.receive(consumer) as stream:
            assert payloads(await stream.take(6)) == [b"m-%d" % number for number in (0, 2, 4, 5, 6, 7)]

    asyncio.run(act())


def test_a_remembered_consumer_that_does_not_come_back_after_a_restart_keeps_nobody_out(tmp_path):
    """J13."""

    async def act():
        world = BrokerWorld(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            await client.subscribe(T, name="gone")
            await client.send(T, producer, b"x")
        async with world.broker() as client:
            consumer = await client.subscribe(T, name="new")
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(1)) == [b"x"]
                with pytest.raises(DeniedError):
                    await client.subscribe(T, name="another")

    asyncio.run(act())


def test_what_the_command_line_shows_of_a_message_is_what_its_producer_sent():
    """J1."""
    delivered = StreamMessage(payload=b"x")
    delivered.msg_id.broker_addr = with_delivery_id("http://b:6650", DeliveryId(2, 0))
    assert from_wire(delivered).msg_id.broker_addr == "http://b:6650"
