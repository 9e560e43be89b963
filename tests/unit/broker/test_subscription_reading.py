"""What becomes of a subscription that cannot read its messages, for a while or until somebody acts."""

import asyncio

import pytest

from ister.broker.services.ister_admin import IsterAdmin
from ister.broker.topics import subscription as subscription_module
from ister.core.dispatch.failure import FailurePolicy, Poison
from ister.core.errors import CorruptLogError, StoreRefusedError, StoreUnavailableError
from ister.core.offsets import StartPosition
from ister.core.reader import Reader
from ister.rpc import ister_v1_pb2 as pb
from parts.broker import SHARED, BrokerWorld, until
from parts.cloud import named, told
from parts.table import object_retention, tabled

T, DEAD = "/default/t", "/default/dead"
DAMAGED = CorruptLogError("a file", 7, 3, "a checksum is wrong")
REFUSED = StoreRefusedError("s3", "read", "ExpiredToken")
BUSY = StoreUnavailableError("s3", "read", "timeout")


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch):
    monkeypatch.setattr(subscription_module, "RETRY_S", 0.02)


class Reads:
    """Lets reading a topic fail for as long as `error` is set."""

    def __init__(self, topic, monkeypatch):
        self.error = None
        self.tries = 0
        self._read_from = topic.read_from
        monkeypatch.setattr(topic, "read_from", self)

    async def __call__(self, offset):
        self.tries += 1
        if self.error is not None:
            raise self.error
        return await self._read_from(offset)


async def begin(client, monkeypatch, error, count=3, kind=0):
    producer = await client.producer(T)
    consumer = await client.subscribe(T, kind=kind)
    for number in range(count):
        await client.send(T, producer, b"%d" % number)
    topic = client.broker.topics[T]
    reads = Reads(topic, monkeypatch)
    reads.error = error
    return reads, topic.subscriptions["s"], producer, consumer


def payloads(messages):
    return [int(message.payload) for message in messages]


@pytest.mark.parametrize("error", [REFUSED, BUSY], ids=["refused", "busy"])
def test_a_stream_stays_open_while_messages_cannot_be_read_for_now(tmp_path, monkeypatch, error):
    """J4."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            reads, subscription, _, consumer = await begin(client, monkeypatch, error)
            with told() as events:
                async with client.receive(consumer) as stream:
                    await until(lambda: reads.tries == 3)
                    assert subscription.problem is error
                    reads.error = None
                    assert payloads(await stream.take(3)) == [0, 1, 2]
                    assert subscription.problem is None
            assert len(named(events, "reading_waits")) == 3
            assert len(named(events, "reading_resumed")) == 1

    asyncio.run(act())


def test_reading_is_tried_again_when_a_consumer_comes_back_and_not_too_often(tmp_path, monkeypatch):
    """J4."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            monkeypatch.setattr(subscription_module, "RETRY_S", 20.0)
            reads, subscription, _, consumer = await begin(client, monkeypatch, DAMAGED)
            for _ in range(3):
                with pytest.raises(CorruptLogError):
                    async with client.receive(consumer) as stream:
                        await stream.end()
            assert reads.tries == 1, "it is left alone for a moment"
            reads.error = None
            assert subscription._resume_at > asyncio.get_running_loop().time() + 10
            subscription._resume_at = asyncio.get_running_loop().time()  # as if that time had passed
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(3)) == [0, 1, 2]
            assert subscription.problem is None

    asyncio.run(act())


def test_a_reset_past_what_cannot_be_read_lets_reading_begin_at_once(tmp_path, monkeypatch):
    """J4."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            monkeypatch.setattr(subscription_module, "RETRY_S", 60.0)
            reads, subscription, producer, consumer = await begin(client, monkeypatch, DAMAGED)
            with pytest.raises(CorruptLogError):
                async with client.receive(consumer) as stream:
                    await stream.end()
            reads.error = None
            await IsterAdmin(client.broker).reset_cursor(pb.ResetCursorRequest(topic=T, subscription="s", latest=True))
            assert subscription.problem is None
            async with client.receive(consumer) as stream:
                await client.send(T, producer, b"3")
                assert payloads(await stream.take(1)) == [3]

    asyncio.run(act())


def test_a_dead_letter_that_is_being_stored_when_reading_stops_is_stored_all_the_same(tmp_path, monkeypatch):
    """J4."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            await client.producer(DEAD)
            reads, subscription, _, consumer = await begin(client, monkeypatch, None, count=1)
            policy = FailurePolicy(max_redelivery_count=0, poison=Poison.DEAD_LETTER, dead_letter_topic=DEAD)
            subscription.configure(subscription.record.model_copy(update={"failure_policy": policy}))
            store, may_store = client.broker.store_dead_letter, asyncio.Event()

            async def waits(*arguments):
                await may_store.wait()
                await store(*arguments)

            monkeypatch.setattr(client.broker, "store_dead_letter", waits)
            async with client.receive(consumer) as stream:
                [message] = await stream.take(1)
                await client.nack(message)
            reads.error = DAMAGED
            with pytest.raises(CorruptLogError):
                async with client.receive(consumer) as stream:
                    await stream.end()
            may_store.set()
            await until(lambda: subscription.cursor == 1)
            assert subscription.dead_lettered == 1

    asyncio.run(act())


@pytest.mark.parametrize("kind", [0, SHARED], ids=["exclusive", "shared"])
def test_a_subscription_goes_on_behind_rows_that_are_missing_and_to_be_skipped(tmp_path, monkeypatch, kind):
    """J3."""

    async def act():
        parts = await tabled(tmp_path / "parts")
        await object_retention(parts).tick()
        parts.table.missing, parts.table.skips_missing = {0, 5, 8, 9}, True
        async with BrokerWorld(tmp_path / "broker").broker() as client:
            _, subscription, _, consumer = await begin(client, monkeypatch, None, count=25, kind=kind)

            async def read_from(offset):
                return await parts.storage.create_reader(StartPosition.offset(offset))

            monkeypatch.setattr(client.broker.topics[T], "read_from", read_from)
            with told() as events:
                async with client.receive(consumer) as stream:
                    got = []
                    while subscription.cursor < 25:
                        [message] = await stream.take(1)
                        got.append(message.msg_id.topic_offset)
                        message.msg_id.topic_name = T
                        await client.ack(message)
            assert got == [offset for offset in range(25) if offset not in parts.table.missing]
            skipped = [(event["start"], event["stop"]) for event in named(events, "missing_messages_skipped")]
            assert skipped == [(0, 1), (5, 6), (8, 10)]
        await parts.close()

    asyncio.run(act())


def test_a_gap_that_no_reader_has_announced_is_a_bug_and_skips_nothing(tmp_path, monkeypatch):
    """J3."""

    async def act():
        async with BrokerWorld(tmp_path).broker() as client:
            _, subscription, _, consumer = await begin(client, monkeypatch, None, count=4)
            topic = client.broker.topics[T]
            read_from, leaves_out = topic.read_from, [True]

            class Gap(Reader):
                def __init__(self, reader):
                    super().__init__()
                    self._reader = reader

                async def _read(self):
                    messages = await self._reader.read()
                    if leaves_out:
                        leaves_out.clear()
                        del messages[0]
                    return messages

            async def with_gap(offset):
                return Gap(await read_from(offset))

            monkeypatch.setattr(topic, "read_from", with_gap)
            with told() as events:
                async with client.receive(consumer) as stream:
                    with pytest.raises(Exception, match="a bug in the broker"):
                        await stream.take(1)
                assert len(named(events, "reading_failed")) == 1
            async with client.receive(consumer) as stream:
                assert payloads(await stream.take(4)) == [0, 1, 2, 3]
            assert subscription.cursor == 0

    asyncio.run(act())
