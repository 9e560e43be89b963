"""Brokers that only read, without a transport: one table in memory, one metadata store, several brokers."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial, wraps
from types import SimpleNamespace

import pytest

from ister.broker.cluster.read_only import TopicSync, for_readers
from ister.broker.cluster.subscription_leases import Leased
from ister.broker.methods import METHODS, ReadOnly
from ister.broker.registry.store import SchemaStore
from ister.broker.services.broker_admin import BrokerAdmin
from ister.broker.services.consumer import ConsumerService
from ister.broker.services.discovery import Discovery
from ister.broker.services.ister_admin import IsterAdmin
from ister.broker.services.ister_storage import IsterStorage
from ister.broker.services.namespace_admin import NamespaceAdmin
from ister.broker.services.producer import ProducerService
from ister.broker.services.schema_registry import SchemaRegistry
from ister.broker.services.storage import StorageService
from ister.broker.services.topic_admin import TopicAdmin
from ister.broker.settings import BrokerSettings
from ister.broker.topics.broker import Broker
from ister.broker.topics.records import NamespaceRecord, Records, SubscriptionRecord, TopicRecord
from ister.config.policies import CompletePolicies
from ister.core.errors import (
    DrainingError,
    LogClosedError,
    NotFoundError,
    OffsetOutOfRangeError,
    PreconditionError,
    UnknownTopicError,
)
from ister.core.message import MsgID, StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.core.table.data_files import TableEnd
from ister.ports.metadata import MemoryMetadata
from ister.rpc import ister_v1_pb2 as pb
from ister.storage.cursors.metadata import CursorRecord, progress_root, record_key
from ister.storage.cursors.move import Marker
from ister.storage.generations import TopicRegistry
from ister.storage.lake_factory import LakeConfig, LakeStorageFactory
from ister.transport.service import ServerStream
from parts.broker import EXCLUSIVE, SETTINGS, SHARED, Client, until
from parts.cloud import named, told

ROOT = "/danube-data"
PROGRESS = progress_root(ROOT)
T = "/default/t"
NAME = TopicName.parse(T)
FIRST, SECOND = "http://first:6650", "http://second:6650"


def on_a_loop(test):
    @wraps(test)
    def run(**given):
        asyncio.run(test(**given))

    return run


class MemoryTable:
    """A table that is a list; `looks` counts how often the catalog was asked."""

    def __init__(self):
        self.rows = []
        self.looks = 0

    def append(self, count):
        start = len(self.rows)
        for at in range(start, start + count):
            message = StreamMessage(b"%d" % at, MsgID(1, T, "http://owner", at))
            self.rows.append(message._replace(append_time_us=at // 2 * 10))

    async def look(self):
        self.looks += 1
        return TableEnd(len(self.rows))

    def open(self, start, stop):
        return MemoryRows(self, start, stop)

    def place(self, _offset):
        return None

    async def close(self):
        pass


class MemoryRows:
    skipped_upto = 0

    def __init__(self, table, start, stop):
        self.table, self.next_offset, self.stop = table, start, stop

    async def read(self):
        found = self.table.rows[self.next_offset : min(self.stop, self.next_offset + 3)]
        self.next_offset += len(found)
        return found

    async def close(self):
        pass


class World:
    """What brokers share: metadata, and a table."""

    def __init__(self):
        self.metadata = MemoryMetadata()
        self.table = MemoryTable()

    async def own(self, name=NAME, generation=1):
        await TopicRegistry(self.metadata, ROOT).restore(name, generation)
        await Records(self.metadata, ROOT).save_namespace(name.namespace, NamespaceRecord())
        await Records(self.metadata, ROOT).save_topic(name, TopicRecord(reliable=True))
        marker = Marker(self.metadata, PROGRESS, name, generation)
        await marker.read()
        await marker.set("metadata")

    def factory(self):
        config = LakeConfig(ROOT, 0.01)
        return LakeStorageFactory(config, metadata=self.metadata, tables=lambda _topic, _generation: self.table)

    @asynccontextmanager
    async def reader(self, url, **settings):
        schemas = SchemaStore(self.metadata, ROOT)
        earliest = CompletePolicies(start_position="earliest")
        given = {"broker_url": url, "auto_create_topics": False, "cursor_interval_s": 0.01, "policies": earliest}
        factory = self.factory()
        broker = Broker(
            BrokerSettings(**SETTINGS | given | settings),
            factory, Records(self.metadata, ROOT), schemas, ownership=partial(Leased, metadata=self.metadata),
        )  # fmt: skip
        sync = TopicSync(broker, factory)
        await sync.start()
        await broker.start()
        try:
            client = Client(broker)
            client.topic_sync = sync
            yield client
        finally:
            await sync.stop()
            await broker.drain(5)

    async def cursor(self, subscription="s"):
        entry = await self.metadata.get(record_key(PROGRESS, subscription, NAME))
        return None if entry is None else CursorRecord.load(entry.key, entry.value).offset

    async def cursor_reaches(self, offset, subscription="s"):
        async with asyncio.timeout(10):
            async for _ in self.metadata.watch(f"{PROGRESS}/", after=0):
                if await self.cursor(subscription) == offset:
                    return


@asynccontextmanager
async def world_with(rows=10):
    world = World()
    await world.own()
    world.table.append(rows)
    yield world
    await world.metadata.close()


def offsets(messages):
    return [message.msg_id.topic_offset for message in messages]


# --- the storage ------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_storage_reads_from_anywhere_waits_at_the_end_and_ends_when_it_is_closed():
    async with world_with(7) as world:
        factory = world.factory()
        storage = await factory.for_topic(T)
        assert storage.start_offset == 0
        reader = await storage.create_reader(StartPosition.offset(2))
        assert [(await anext(reader)).offset for _ in range(5)] == [2, 3, 4, 5, 6]
        assert storage.next_offset == 7
        waiting = asyncio.ensure_future(anext(reader))
        latest = asyncio.ensure_future((await storage.create_reader(StartPosition.latest())).read())
        ahead = asyncio.ensure_future((await storage.create_reader(StartPosition.offset(9))).read())
        world.table.append(2)
        assert (await waiting).offset == 7
        assert [message.offset for message in await latest] == [7, 8]
        assert not ahead.done(), "the table is not there yet"
        world.table.append(1)
        assert [message.offset for message in await ahead] == [9]
        assert [message.offset for message in await reader.read()] == [8]
        end = asyncio.ensure_future((await storage.create_reader(StartPosition.offset(10))).read())
        await asyncio.sleep(0)
        await factory.shutdown()
        for asked in (end, reader.read(), storage.cursors(), storage.create_reader(StartPosition.offset(0))):
            with pytest.raises(LogClosedError):
                await asked


@on_a_loop
async def test_all_who_wait_share_one_question_to_the_catalog():
    async with world_with(1) as world:
        storage = await world.factory().for_topic(T)
        readers = [await storage.create_reader(StartPosition.offset(1)) for _ in range(50)]
        waiting = [asyncio.ensure_future(reader.read()) for reader in readers]
        looks = world.table.looks
        await until(lambda: world.table.looks >= looks + 3)
        assert world.table.looks < looks + 10
        world.table.append(1)
        assert all([message.offset for message in found] == [1] for found in await asyncio.gather(*waiting))
        await storage.close()


@on_a_loop
async def test_a_storage_takes_nothing_keeps_everything_and_finds_times():
    async with world_with(9) as world:
        storage = await world.factory().for_topic(T)
        with pytest.raises(PreconditionError, match="produce to the broker that owns"):
            await storage.append_message(world.table.rows[0])
        for name in ("append_messages", "prune", "dated_segments", "sealed_segments", "seal"):
            assert not hasattr(storage, name), "it is no WritableTopic"
        await storage.flush()
        assert [await storage.offset_at(us) for us in (0, 1, 10, 11, 40, 41)] == [0, 2, 2, 4, 8, 9]
        assert await storage.refresh_cursor("s") is None
        assert await storage.reset_cursor("s", 9) == 9
        world.table.append(1)
        assert await storage.ack_checkpoint("s", 10) == 10, "what was committed meanwhile counts"
        with pytest.raises(OffsetOutOfRangeError):
            await storage.reset_cursor("s", 11)
        assert await storage.cursors() == {"s": 10}
        await storage.forget_cursor("s")
        assert await storage.cursors() == {}
        await storage.close()


@on_a_loop
async def test_a_factory_claims_nothing_and_tells_generations_apart():
    async with world_with() as world:
        factory = world.factory()
        before = await world.metadata.version()
        storage = await factory.for_topic(NAME)
        assert await factory.for_topic(T) is storage
        assert await factory.start() == [NAME]
        assert await world.metadata.version() == before, "nothing was written"
        registry = TopicRegistry(world.metadata, ROOT)
        await registry.mark_deleted(NAME)
        with pytest.raises(UnknownTopicError):
            await factory.for_topic(T)
        assert await factory.topics() == []
        await registry.claim(NAME, await registry.get(NAME), [])
        anew = await factory.for_topic(T)
        assert (anew.generation, storage.generation) == (2, 1)
        with pytest.raises(LogClosedError):
            await storage.refresh()
        with pytest.raises(PreconditionError):
            await factory.delete_topic(T)
        await factory.shutdown()
        with pytest.raises(LogClosedError):
            await factory.for_topic(T)


# --- brokers ----------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_late_write_of_the_last_holder_makes_the_new_one_begin_anew():
    async with world_with() as world, world.reader(FIRST) as client:
        number = await client.subscribe(T)
        async with client.receive(number) as stream:
            got = await stream.take(10)
            late = world.factory()
            storage = await late.for_topic(T)
            await storage.refresh_cursor("s")
            await storage.save_cursors({"s": 4})
            for message in got[:2]:
                await client.ack(message)
            with pytest.raises(DrainingError):
                await stream.end()
        async with client.receive(number) as stream:
            got = await stream.take(6)
            assert offsets(got) == [4, 5, 6, 7, 8, 9]
            for message in got:
                await client.ack(message)
            await world.cursor_reaches(10)


@on_a_loop
async def test_a_broker_that_lost_its_lease_delivers_and_saves_nothing_more():
    async with world_with() as world, world.reader(FIRST, cursor_interval_s=0.05) as client:
        number = await client.subscribe(T)
        async with client.receive(number) as stream:
            got = await stream.take(10)
            await client.ack(got[0])
            await world.cursor_reaches(1)
            await client.ack(got[1])  # to be saved in a moment
            client.broker.ownership._leases._lease.lose()
            with pytest.raises(DrainingError):
                await stream.end()
        with pytest.raises(DrainingError):
            await client.ack(got[2])
        topic = client.broker.topics[T]
        await topic._save()
        await topic.settle_cursors()
        assert await world.cursor() == 1
        assert number not in client.broker.subscriptions.consumers


@on_a_loop
async def test_nobody_joins_a_subscription_that_is_lost_while_that_is_written(monkeypatch):
    async with world_with() as world, world.reader(FIRST) as client:
        await client.subscribe(T, name="first", kind=SHARED)
        records = client.broker.records
        save = records.save_subscription

        async def lost_meanwhile(*args):
            await save(*args)
            client.broker.ownership._leases._lease.lose()
            await until(lambda: not client.broker.topics[T].subscriptions)

        monkeypatch.setattr(records, "save_subscription", lost_meanwhile)
        with pytest.raises(DrainingError):
            await client.subscribe(T, name="second", kind=SHARED)
        assert not client.broker.subscriptions.consumers, "or a consumer could be served by two brokers"


@on_a_loop
async def test_a_bug_in_ending_one_subscription_does_not_keep_the_others_that_are_lost():
    """C12."""

    def fails(_):
        raise ValueError("not expected")

    async with world_with() as world, world.reader(FIRST) as client:
        first = await client.subscribe(T, "first")
        second = await client.subscribe(T, "second")
        async with client.receive(first), client.receive(second) as stream:
            await stream.take(10)
            client.broker.topics[T].subscriptions["first"].close = fails
            with told() as events:
                client.broker.ownership._leases._lease.lose()
                with pytest.raises(DrainingError):
                    await stream.end()
            [event] = named(events, "subscription_not_ended")
            assert (event["subscription"], event["exc_info"]) == ("first", True)


@on_a_loop
async def test_a_subscription_is_made_once_and_moves_with_its_settings():
    async with world_with() as world, world.reader(FIRST) as first, world.reader(SECOND) as second:
        await first.subscribe(T, kind=EXCLUSIVE)
        await second.topic_sync.refresh()
        with pytest.raises(PreconditionError, match=FIRST):
            await second.subscribe(T, kind=EXCLUSIVE)
        told = await IsterAdmin(second.broker).describe_subscriptions(pb.DescribeSubscriptionsRequest(topic=T))
        assert [(one.name, one.cursor, one.type) for one in told.subscriptions] == [
            ("s", 0, pb.SUBSCRIPTION_TYPE_EXCLUSIVE)
        ]
        with pytest.raises(PreconditionError, match=FIRST):
            await IsterAdmin(second.broker).reset_cursor(pb.ResetCursorRequest(topic=T, subscription="s", offset=3))
        topic = first.broker.topics[T]
        await first.broker.ownership.stop_serving(topic, "s")
        answer = await IsterAdmin(second.broker).reset_cursor(
            pb.ResetCursorRequest(topic=T, subscription="s", offset=3)
        )
        assert answer.cursor == 3
        number = await second.subscribe(T, name="another", kind=SHARED)
        async with second.receive(number) as stream:
            assert offsets(await stream.take(7)) == [3, 4, 5, 6, 7, 8, 9]
        with pytest.raises(PreconditionError, match=SECOND):
            await first.subscribe(T)


@on_a_loop
async def test_what_nobody_consumes_is_given_up_and_what_is_consumed_is_not():
    async with (
        world_with() as world,
        world.reader(FIRST, consumer_grace_s=0.05) as first,
        world.reader(SECOND) as second,
    ):
        number = await first.subscribe(T)
        await first.subscribe(T, "idle")
        async with first.receive(number) as stream:
            await stream.take(1)
            topic = first.broker.topics[T]
            await until(lambda: "idle" not in topic.subscriptions)
            assert "s" in topic.subscriptions
            await second.subscribe(T, "idle")
            with pytest.raises(PreconditionError, match=FIRST):
                await second.subscribe(T, "s")


@on_a_loop
async def test_a_topic_that_is_gone_or_another_one_now_is_let_go_with_its_subscriptions():
    async with world_with() as world, world.reader(FIRST) as client:
        number = await client.subscribe(T)
        registry = TopicRegistry(world.metadata, ROOT)
        async with client.receive(number) as stream:
            await stream.take(10)
            await registry.mark_deleted(NAME)
            await client.topic_sync.refresh()
            with pytest.raises(NotFoundError):
                await stream.end()
        assert client.broker.topics == {}
        assert await world.metadata.list(f"{PROGRESS}/holders/") == []
        await registry.claim(NAME, await registry.get(NAME), [])
        await client.topic_sync.refresh()
        assert client.broker.topics[T].generation == 2


@on_a_loop
async def test_a_topic_that_was_deleted_and_made_again_between_two_looks_is_another_one():
    async with world_with() as world, world.reader(FIRST) as client:
        number = await client.subscribe(T)
        registry = TopicRegistry(world.metadata, ROOT)
        async with client.receive(number) as stream:
            await stream.take(10)
            await registry.mark_deleted(NAME)
            await registry.claim(NAME, await registry.get(NAME), [])
            await client.topic_sync.refresh()
            with pytest.raises(NotFoundError):
                await stream.end()
        assert client.broker.topics[T].generation == 2


@on_a_loop
async def test_whoever_gives_up_saves_first_and_whoever_drains_gives_up():
    async with world_with() as world, world.reader(SECOND) as second:
        async with world.reader(FIRST, cursor_interval_s=60.0) as first:
            for name in ("s", "t"):
                number = await first.subscribe(T, name)
                async with first.receive(number) as stream:
                    for message in await stream.take(3):
                        await first.ack(message, name)
            await first.broker.ownership.stop_serving(first.broker.topics[T], "s")
            assert (await world.cursor("s"), await world.cursor("t")) == (3, 0)
        assert await world.cursor("t") == 3
        assert await world.metadata.list(f"{PROGRESS}/holders/") == []
        number = await second.subscribe(T, "t")
        async with second.receive(number) as stream:
            assert offsets(await stream.take(7)) == [3, 4, 5, 6, 7, 8, 9]


@on_a_loop
async def test_what_was_acknowledged_beyond_the_cursor_goes_with_a_subscription_to_another_broker():
    """J6."""
    async with world_with() as world, world.reader(FIRST) as first, world.reader(SECOND) as second:
        number = await first.subscribe(T)
        async with first.receive(number) as stream:
            got = await stream.take(5)
            for at in (1, 2, 4):
                await first.ack(got[at])
        await first.broker.ownership.stop_serving(first.broker.topics[T], "s")
        number = await second.subscribe(T)
        async with second.receive(number) as stream:
            got = await stream.take(4)
            assert offsets(got) == [0, 3, 5, 6]
            await second.ack(got[0])
        await second.broker.ownership.stop_serving(second.broker.topics[T], "s")
        number = await first.subscribe(T)
        async with first.receive(number) as stream:
            assert offsets(await stream.take(3)) == [3, 5, 6]


@on_a_loop
async def test_a_cursor_that_is_ahead_of_the_table_stays_and_is_waited_for():
    async with world_with() as world:
        storage = await world.factory().for_topic(T)
        await storage.refresh_cursor("s")
        await storage.reset_cursor("s", 10)
        del world.table.rows[7:]  # the owner's log is ahead of the table, and served the rest
        async with world.reader(FIRST) as client:
            await Records(world.metadata, ROOT).save_subscription(NAME, "s", SubscriptionRecord())
            number = await client.subscribe(T)
            async with client.receive(number) as stream:
                assert await world.cursor() == 10
                world.table.append(5)
                assert offsets(await stream.take(2)) == [10, 11]


@on_a_loop
async def test_many_who_ask_share_one_look_that_began_after_they_asked():
    async with world_with() as world, world.reader(FIRST) as client:
        sync = client.topic_sync
        asked = [asyncio.ensure_future(sync.refresh()) for _ in range(20)]
        await asyncio.sleep(0)
        looks = sync._begun
        await TopicRegistry(world.metadata, ROOT).mark_deleted(NAME)
        late = asyncio.ensure_future(sync.refresh())
        await asyncio.gather(*asked, late)
        assert sync._begun <= looks + 2
        assert client.broker.topics == {}


# --- which calls are answered -----------------------------------------------------------------------------------------


@on_a_loop
async def test_every_call_is_answered_or_refused_and_none_that_is_listed_is_missing():
    broker = SimpleNamespace(when_forgotten=[], forget=None)
    looked = []

    async def look():
        looked.append(1)

    services = [
        *ProducerService(broker, broker).services(), *ConsumerService(broker).services(), *Discovery(broker).services(),
        *StorageService(broker).services(), SchemaRegistry(broker, broker).service(),
        *IsterStorage(broker, token=None).services(), *TopicAdmin(broker).services(), *IsterAdmin(broker).services(),
        *NamespaceAdmin(broker).services(), *BrokerAdmin(broker).services(),
    ]  # fmt: skip
    names = {f"{service.name}/{method.name}" for service in services for method in service.methods}
    assert names == set(METHODS)
    cached, refreshed = (
        {name for name, row in METHODS.items() if row.read_only is rule}
        for rule in (ReadOnly.CACHED, ReadOnly.REFRESHED)
    )

    async def owner():
        return "http://owner:6650"

    for service in services:
        for before, method in zip(service.methods, for_readers(service, look, owner).methods, strict=True):
            name = f"{service.name}/{method.name}"
            if name in cached:
                assert method is before
            elif name in refreshed:
                assert method.finishes == before.finishes
            elif isinstance(method, ServerStream):
                with pytest.raises(PreconditionError):
                    await anext(aiter(method.handler(None, None)))
            else:
                with pytest.raises(PreconditionError, match=r"only reads.*owns the topic, http://owner:6650, and"):
                    await method.handler(None)
    changing = ("Create", "Delete", "Send", "SetTopic", "SetNamespace", "SetCompat", "Register", "Update", "Configure",
                "Report", "Unload", "Request", "Remove", "Add", "Promote", "Trigger")  # fmt: skip
    assert not [name for name in cached | refreshed if name.rpartition("/")[2].startswith(changing)]
