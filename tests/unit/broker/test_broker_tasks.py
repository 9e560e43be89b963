"""A bug in a task of the broker's is told once, and ends what waits for that task: nobody hangs, and the next one begins anew."""

import asyncio

import pytest

from ister.broker.status import status_of
from ister.broker.topics import subscription as subscription_module
from ister.broker.topics import subscriptions as sweeping
from ister.broker.topics.records import SubscriptionRecord
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import BusyError, DrainingError
from parts.broker import SHARED, BrokerWorld, until
from parts.cloud import named, told

T = "/default/t"
DEAD = "/default/dead"


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch):
    monkeypatch.setattr(subscription_module, "RETRY_S", 0.01)
    monkeypatch.setattr(sweeping, "SWEEP_S", 0.01)


class BugError(Exception):
    """What nobody expects."""


def failing_once(method):
    """Let a method fail the first time; a plain function or a coroutine's."""
    left = [True]

    def call(*arguments, **named):
        if left:
            left.clear()
            raise BugError("not expected")
        return method(*arguments, **named)

    return call


@pytest.mark.parametrize("where", ["reading", "deciding"])
def test_a_bug_in_reading_ends_the_streams_and_the_next_one_gets_everything(tmp_path, monkeypatch, where):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumers = [await client.subscribe(T, name=name, kind=SHARED) for name in "ab"]
            topic = client.broker.topics[T]
            subscription = topic.subscriptions["s"]
            both_listen, read_from = asyncio.Event(), topic.read_from

            async def fails_when_both_listen(_):
                await both_listen.wait()
                monkeypatch.setattr(topic, "read_from", read_from)
                raise BugError

            if where == "reading":
                monkeypatch.setattr(topic, "read_from", fails_when_both_listen)
            else:
                monkeypatch.setattr(subscription.dispatch, "feed", failing_once(subscription.dispatch.feed))
            with told() as events:
                async with client.receive(consumers[0]) as first, client.receive(consumers[1]) as second:
                    both_listen.set()
                    await client.send(T, producer, b"0")
                    for stream in (first, second):
                        with pytest.raises(BusyError) as caught:
                            await stream.end()
                        assert status_of(caught.value)[0].name == "UNAVAILABLE", "clients come again"
                [event] = named(events, "reading_failed")
                assert (event["log_level"], event["exc_info"]) == ("error", True)
                assert (event["topic"], event["subscription"]) == (T, "s")
                async with client.receive(consumers[0]) as stream:
                    [message] = await stream.take(1)
                    await client.ack(message)
                    await client.send(T, producer, b"1")
                    [message] = await stream.take(1)
                    await client.ack(message)
                assert subscription.cursor == 2
                assert len(named(events, "reading_failed")) == 1

    asyncio.run(act())


def test_a_bug_that_stays_is_told_no_more_often_than_reading_is_tried(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(T)
            consumer = await client.subscribe(T)
            topic = client.broker.topics[T]
            monkeypatch.setattr(subscription_module, "RETRY_S", 60.0)

            def fails(_):
                raise BugError

            monkeypatch.setattr(topic, "read_from", fails)
            with told() as events:
                async with client.receive(consumer) as stream:
                    with pytest.raises(BusyError):
                        await stream.end()
                async with client.receive(consumer) as stream:
                    for _ in range(10):
                        await asyncio.sleep(0)
                    assert not stream.ended(), "it waits before it is tried again"
                assert len(named(events, "reading_failed")) == 1

    asyncio.run(act())


def test_a_bug_in_storing_a_dead_letter_ends_the_streams_and_the_letter_is_stored_later(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            subscription = client.broker.topics[T].subscriptions["s"]
            policy = FailurePolicy(max_redelivery_count=0, poison=Poison.DEAD_LETTER, dead_letter_topic=DEAD)
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            monkeypatch.setattr(client.broker, "store_dead_letter", failing_once(client.broker.store_dead_letter))
            await client.send(T, producer, b"poison")
            with told() as events:
                async with client.receive(consumer) as stream:
                    await client.nack((await stream.take(1))[0], reason="no")
                    with pytest.raises(BusyError):
                        await stream.end()
                assert len(named(events, "dead_letter_failed")) == 1
                async with client.receive(consumer) as stream:
                    await client.nack((await stream.take(1))[0], reason="no")
                    await until(lambda: subscription.dead_lettered == 1)
            assert client.broker.topics[DEAD].next_offset == 1
            assert subscription.cursor == 1

    asyncio.run(act())


def test_a_bug_in_one_sweep_does_not_end_the_sweeping(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_expiry_s=0.0) as client:
            for topic in (T, "/default/u"):
                await client.producer(topic)
                await client.subscribe(topic)
            forget = failing_once(client.broker.subscriptions.expire_consumers)
            monkeypatch.setattr(client.broker.subscriptions, "expire_consumers", forget)
            with told() as events:
                await until(lambda: not client.broker.subscriptions.consumers)
            [event] = named(events, "sweep_failed")
            assert (event["log_level"], event["exc_info"]) == ("error", True)

    asyncio.run(act())


def test_a_topic_that_is_being_closed_does_not_end_the_sweeping(tmp_path, monkeypatch):
    """C12."""

    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_expiry_s=0.0) as client:
            forget, closing = client.broker.subscriptions.expire_consumers, []

            async def closes(topic, *args):
                if topic.text == T and not closing:
                    closing.append(topic)
                    raise DrainingError("it is being closed")
                await forget(topic, *args)

            monkeypatch.setattr(client.broker.subscriptions, "expire_consumers", closes)
            for topic in (T, "/default/u"):
                await client.producer(topic)
                await client.subscribe(topic)
            await until(lambda: closing and not client.broker.subscriptions.consumers)

    asyncio.run(act())


def test_a_topic_that_is_being_changed_does_not_hold_up_the_sweeping_of_others(tmp_path):
    """C12."""

    async def act():
        async with BrokerWorld(tmp_path).broker(consumer_expiry_s=0.0) as client:
            await client.producer(T)
            await client.producer("/default/u")
            async with client.broker.topics.changing(client.broker.topics[T].name):
                client.broker.topics[T].open_subscription("s", SubscriptionRecord(consumers={"c": ()}), 0)
                await client.subscribe("/default/u")
                await until(lambda: not client.broker.topics["/default/u"].subscriptions["s"].consumers)
            await until(lambda: not client.broker.topics[T].subscriptions["s"].consumers)

    asyncio.run(act())


def test_producers_that_have_long_been_silent_do_not_count_as_attached(tmp_path):
    """J13."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            silent, heard_of = [await client.producer(T, name) for name in ("silent", "heard of")]
            producers = client.broker.topics[T].producers
            producers[silent].seen -= client.broker.settings.producer_expiry_s + 1
            await until(lambda: list(producers) == [heard_of])

    asyncio.run(act())


def test_a_bug_in_saving_progress_is_told_and_it_is_saved_later(tmp_path, monkeypatch):
    async def act():
        async with BrokerWorld(tmp_path).broker(cursor_interval_s=0.01) as client:
            producer = await client.producer(T)
            consumer = await client.subscribe(T)
            storage = client.broker.topics[T].storage
            await client.send(T, producer, b"0")
            await storage.flush()
            monkeypatch.setattr(storage, "save_cursors", failing_once(storage.save_cursors))
            with told() as events:
                async with client.receive(consumer) as stream:
                    await client.ack((await stream.take(1))[0])
                    saved = {}

                    async def look():
                        saved.update(await storage.cursors())

                    async with asyncio.timeout(20):
                        while saved.get("s") != 1:
                            await asyncio.sleep(0.01)
                            await look()
            [event] = named(events, "cursors_not_saved")
            assert (event["log_level"], event["exc_info"]) == ("error", True)

    asyncio.run(act())
