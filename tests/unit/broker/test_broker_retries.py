"""What a broker could not open or delete because something was away for a while is done later, without a restart."""

import asyncio

import pytest

from ister.broker.topics import open_topic as opening
from ister.broker.topics.records import Records, TopicRecord
from ister.core.errors import (
    BusyError,
    CorruptLogError,
    DiskFullError,
    InvalidConfigError,
    LockedError,
    MetadataUnavailableError,
    MetadataUnknownError,
    NotFoundError,
    PoisonedError,
    StoreUnavailableError,
    TopicTakenError,
)
from ister.core.names import TopicName
from ister.lake.errors import LakeUnavailableError
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage import factory as factory_module
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import Wal, WalConfig
from parts.broker import BrokerWorld, until
from parts.cloud import TroubledStore, named, told

T = "/default/t"
NAME = TopicName("default", "t")
DOWN = StoreUnavailableError("fs", "list", "no route")


class World(BrokerWorld):
    """A broker on a store that can be away."""

    def __init__(self, directory, metadata=None):
        super().__init__(directory, metadata)
        self.store = TroubledStore(FsStore(directory / "objects"))

    def factory(self):
        config = TopicsConfig(wal=WalConfig(dir=self.directory / "wal"), drain_timeout_s=1)
        return WalStorageFactory(config, store=self.store, metadata=self.metadata)

    def objects(self):
        return [path for path in (self.directory / "objects").rglob("*") if path.is_file()]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(opening, "RETRY_S", 0.01)
    monkeypatch.setattr(opening, "RETRY_MAX_S", 0.02)
    monkeypatch.setattr(factory_module, "REMOVE_RETRY_MAX_S", 0.02)


def run(act):
    asyncio.run(act)


def test_topics_and_namespaces_that_were_deleted_do_not_come_back_when_the_store_is_away_at_start(tmp_path):
    """I1."""

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            broker = client.broker
            await broker.namespaces.create("gone")
            await client.producer("/gone/x")
            await client.producer(T)
            await broker.delete_topic(NAME)
            world.store.fail["list"] = DOWN
            with pytest.raises(StoreUnavailableError):
                await broker.delete_topic(TopicName("gone", "x"))
            await broker.factory.shutdown()  # before the deletion is finished
        for away in (True, False):
            if not away:
                world.store.fail.clear()
            async with world.broker() as client:
                assert list(client.broker.topics) == []
                assert set(await Records(world.metadata, "/danube-data").topics()) == set()
                if away:
                    await client.broker.namespaces.delete("gone")
                assert sorted(client.broker.namespaces) == ["default", "system"]

    run(act())


@pytest.mark.parametrize("asked", [False, True])
def test_a_topic_that_could_not_be_opened_while_the_store_was_away_is_opened_once_it_is_back(
    tmp_path, monkeypatch, asked
):
    """I8, J4."""

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            await client.producer(T)
            consumer = await client.subscribe(T)
        world.store.fail["list"] = DOWN
        if asked:
            monkeypatch.setattr(opening, "backoff_s", lambda *_: 1e6)
        async with world.broker() as client:
            lists = world.store.count("list")
            topic = client.broker.topics[T]
            assert isinstance(topic.problem, StoreUnavailableError)
            with pytest.raises(StoreUnavailableError):
                await client.producer(T)
            if asked:
                await until(lambda: world.store.count("list") > lists)  # because someone has asked, and never again
            world.store.fail.clear()
            if asked:
                with pytest.raises(StoreUnavailableError):
                    await client.producer(T)
            with told() as events:
                await until(lambda: topic.problem is None)
                assert len(named(events, "topic_opened_later")) == 1
            assert client.broker.topics[T] is topic
            producer = await client.producer(T)
            async with client.receive(consumer) as stream:
                assert await client.send(T, producer, b"x") == 0
                assert [message.payload for message in await stream.take(1)] == [b"x"]

    run(act())


def test_a_topic_that_is_damaged_is_not_opened_again_and_again(tmp_path):
    """I8."""

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            await client.producer(T)
        async with world.broker() as client:
            topic = client.broker.topics[T]
            topic.set_storage(None, CorruptLogError("f", 0, 0, "rot"))
            with pytest.raises(CorruptLogError):
                await client.producer(T)
            assert client.broker.retries._waiting() == []

    run(act())


@pytest.mark.parametrize(
    ("problem", "passes"),
    [
        (DOWN, True),
        (BusyError("x"), True),
        (DiskFullError("x"), True),
        (LakeUnavailableError("t", "look", "x"), True),
        (MetadataUnavailableError("m", "get", "x"), True),
        (MetadataUnknownError("m", "cas", "x"), True),
        (TopicTakenError("t"), True),
        (LockedError("d", "process 7"), True),
        (InvalidConfigError("metadata", "permission denied"), True),
        (PoisonedError("l", "x"), False),
        (CorruptLogError("f", 0, 0, "rot"), False),
        (NotFoundError("x"), False),
    ],
)
def test_which_problems_may_pass(problem, passes):
    """I8."""
    assert opening.may_pass(problem) is passes


def test_a_start_with_a_store_that_hangs_waits_for_it_once_and_opens_the_topics_later(tmp_path, monkeypatch):
    """I11: the broker does not try again what the factory has just tried."""
    monkeypatch.setattr("ister.storage.resume.REMOTE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(opening, "RETRY_S", 0.2)

    async def act():
        world = World(tmp_path)
        names = [f"/default/t{number}" for number in range(3)]
        async with world.broker() as client:
            for name in names:
                await client.producer(name)
        world.store.hold["list"] = asyncio.Event()
        world.store.calls.clear()
        async with asyncio.timeout(10):
            broker = await world.start()
        assert world.store.count("list") == 3
        world.store.hold.pop("list").set()
        await until(lambda: all(topic.problem is None for topic in broker.topics.values()))
        await broker.drain(5)

    run(act())


def test_a_deletion_that_the_store_failed_is_finished_in_the_background(tmp_path):
    """I14."""

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            broker = client.broker
            producer = await client.producer(T)
            await client.send(T, producer, b"x")
            await broker.factory.uploader(NAME).drain()
            assert len(world.objects()) == 1
            world.store.fail["list"] = DOWN
            with pytest.raises(StoreUnavailableError):
                await broker.delete_topic(NAME)
            with pytest.raises((StoreUnavailableError, NotFoundError)):
                await broker.delete_topic(NAME)
            assert T in broker.topics, "it is not said to be deleted while objects are left"
            world.store.fail.clear()
            await until(lambda: T not in broker.topics)
            assert world.objects() == []
            assert await world.metadata.list("/danube-data/storage/objects/") == []
            producer = await client.producer(T)
            assert await client.send(T, producer, b"y") == 0

    run(act())


def test_a_second_delete_answers_once_everything_is_removed(tmp_path, monkeypatch):
    """I14."""
    monkeypatch.setattr(opening, "RETRY_S", 1000)
    monkeypatch.setattr(factory_module, "backoff_s", lambda *_: 1000)

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            producer = await client.producer(T)
            await client.send(T, producer, b"x")
            await client.broker.factory.uploader(NAME).drain()
            world.store.fail["list"] = DOWN
            with pytest.raises(StoreUnavailableError):
                await client.broker.delete_topic(NAME)
            world.store.fail.clear()
            await client.broker.delete_topic(NAME)
            assert world.objects() == []
            assert await world.metadata.list("/danube-data/storage/objects/") == []

    run(act())


def test_a_topic_whose_deletion_cannot_go_on_at_start_is_not_made_again_with_its_messages(tmp_path):
    """I1."""

    class Failing(MemoryMetadata):
        fail = False

        async def cas(self, key, value, *, version, lease=None):
            if self.fail and key.endswith("/storage/topics/default/t") and b'"deleted":true' in value:
                raise MetadataUnavailableError("memory", "cas", "no answer")
            return await super().cas(key, value, version=version, lease=lease)

    async def act():
        world = World(tmp_path, Failing())
        async with world.broker() as client:
            producer = await client.producer(T)
            await client.send(T, producer, b"old")
        await Records(world.metadata, "/danube-data").save_topic(NAME, TopicRecord(reliable=True, deleting=True))
        world.metadata.fail = True
        async with world.broker() as client:
            with pytest.raises(BusyError):
                await client.producer(T)
            world.metadata.fail = False
            await until(lambda: T not in client.broker.topics)
            producer = await client.producer(T)
            assert await client.send(T, producer, b"new") == 0

    run(act())


def test_a_topic_whose_log_another_process_had_open_is_opened_once_that_has_ended(tmp_path):
    """I8."""

    async def act():
        world = World(tmp_path)
        async with world.broker() as client:
            await client.producer(T)
        alone = await Wal.with_config(WalConfig(dir=tmp_path / "wal" / "default" / "t" / "1"))
        async with world.broker() as client:
            topic = client.broker.topics[T]
            assert isinstance(topic.problem, LockedError)
            await alone.close()
            await until(lambda: topic.problem is None)

    run(act())
