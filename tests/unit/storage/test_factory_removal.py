"""What is left of deleted topics is removed in the background, and never taken for a topic."""

import asyncio
import json
import shutil

import pytest

from ister.core.errors import InvalidConfigError, LogClosedError, StoreUnavailableError, UnknownTopicError
from ister.core.names import TopicName
from ister.ports.metadata import MemoryMetadata
from ister.storage import factory as factory_module
from ister.storage import resume as resume_module
from parts.cloud import TroubledMetadata, TroubledStore, messages, named, run, told, until
from parts.factory import DOWN, T, World, read

RECORD = "/danube-data/storage/topics/default/t"


async def restored(world, entries):
    """Put an old copy of the metadata back."""
    world.metadata = TroubledMetadata(MemoryMetadata())
    for entry in entries:
        await world.metadata.put(entry.key, entry.value)


def test_a_deleted_topic_is_no_topic_when_the_store_is_away_at_start_and_is_removed_later(tmp_path, monkeypatch):
    """I1."""
    monkeypatch.setattr(factory_module, "REMOVE_RETRY_MAX_S", 0.01)

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        world.store.fail["list"] = DOWN
        with pytest.raises(StoreUnavailableError):
            await factory.delete_topic(T)
        await factory.shutdown()
        factory = world.factory()
        with told() as events:
            assert await factory.start() == []
            assert (factory.problems, await factory.topics()) == ({}, [])
            await until(lambda: len(named(events, "topic_not_removed")) > 1)
        assert len(world.object_files()) == 2
        del world.store.fail["list"]
        await until(lambda: world.object_files() == [])
        await until(lambda: not factory._removals)
        assert await world.metadata.list("/danube-data/storage/objects/") == []
        await factory.shutdown()

    run(story())


def test_a_start_asks_the_store_nothing_about_topics_whose_removal_is_complete(tmp_path):
    """I1."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        await factory.delete_topic(T)
        await factory.shutdown()
        assert json.loads((await world.metadata.get(RECORD)).value)["removed"] is True
        factory = world.factory()
        world.store.calls.clear()
        assert await factory.start() == []
        assert (world.store.calls, factory._removals, len(factory._locks)) == ([], {}, 0)
        new = await factory.for_topic(T)
        await new.append_messages(messages(0, 1))
        assert world.log_directory(generation=2).is_dir()
        assert "removed" not in json.loads((await world.metadata.get(RECORD)).value)
        await factory.shutdown()

    run(story())


def test_a_record_that_an_older_release_deleted_is_removed_once(tmp_path):
    """I1."""

    async def story():
        world = World(tmp_path)
        await world.metadata.put(RECORD, b'{"version":1,"generation":1,"epoch":1,"deleted":true}')
        for lists in (1, 0):
            factory = world.factory()
            world.store.calls.clear()
            assert await factory.start() == []
            await until(lambda factory=factory: not factory._removals)
            assert world.store.count("list") == lists
            await factory.shutdown()

    run(story())


def test_a_log_directory_that_comes_back_after_the_removal_is_removed_again(tmp_path):
    """I1."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        shutil.copytree(world.log_directory(), tmp_path / "copy")
        factory = world.factory()
        await factory.delete_topic(T)
        await factory.shutdown()
        shutil.copytree(tmp_path / "copy", world.log_directory())
        factory = world.factory()
        assert await factory.start() == []
        await until(lambda: not factory._removals)
        assert not world.log_directory().exists()
        await factory.shutdown()

    run(story())


def test_a_second_delete_of_a_topic_whose_removal_failed_removes_it_or_says_that_it_cannot(tmp_path):
    """I14."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        await factory.start()
        world.store.fail["list"] = DOWN
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await factory.delete_topic(T)
        del world.store.fail["list"]
        await factory.delete_topic(T)
        assert world.object_files() == []
        assert await world.metadata.list("/danube-data/storage/objects/") == []
        with pytest.raises(UnknownTopicError):
            await factory.delete_topic(T)
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("removed", [False, True])
def test_a_newer_generation_on_disk_counts_although_old_metadata_says_deleted(tmp_path, removed):
    """I15."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        if not removed:
            world.store.fail["delete"] = DOWN
            with pytest.raises(StoreUnavailableError):
                await factory.delete_topic(T)
            del world.store.fail["delete"]
        else:
            await factory.delete_topic(T)
        old = await world.metadata.list("/")
        new = await factory.for_topic(T)
        await new.append_messages(messages(0, 3))
        await factory.shutdown()
        await restored(world, old)
        factory = world.factory()
        assert await factory.start() == [T]
        assert (factory.problems, await factory.topics()) == ({}, [T])
        assert world.object_files() == []
        await read(await factory.for_topic(T), 0, 3)
        await factory.delete_topic(T)
        await factory.shutdown()
        assert not world.log_directory(generation=2).exists()
        factory = world.factory()
        assert await factory.start() == []
        await factory.shutdown()

    run(story())


def test_a_topic_of_which_metadata_is_old_is_deleted_with_the_generation_on_disk(tmp_path):
    """I15: it could not be opened, so its record still has the old generation."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        old = await world.metadata.list("/danube-data/storage/topics/")
        world.log_directory().rename(world.log_directory(generation=2))
        await restored(world, old)
        factory = world.factory()
        await factory.delete_topic(T)
        assert not world.log_directory(generation=2).exists()
        assert await factory.start() == []
        await factory.shutdown()

    run(story())


def test_a_cancelled_deletion_goes_on_and_shutdown_waits_for_it(tmp_path):
    """I13."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        storage = await factory.for_topic(T)
        world.store.calls.clear()
        world.store.hold["list"] = asyncio.Event()
        for wait in (asyncio.sleep(0), until(lambda: world.store.count("list"))):
            deleting = asyncio.create_task(factory.delete_topic(T))
            await wait
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
        world.store.hold.pop("list").set()
        await factory.shutdown()
        assert storage.wal.closed
        assert (world.object_files(), world.log_directory().exists()) == ([], False)

    run(story())


def test_a_shutdown_ends_a_deletion_and_an_opening_that_wait_for_a_store_that_hangs(tmp_path):
    """I13."""

    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory(drain_timeout_s=0.05)
        storage = await factory.for_topic(T)
        world.store.hold["list"] = asyncio.Event()
        world.store.calls.clear()
        waiting = [
            asyncio.create_task(factory.delete_topic(T)),
            asyncio.create_task(factory.for_topic("/default/other")),
        ]
        await until(lambda: world.store.count("list") > 1)
        async with asyncio.timeout(10):
            await factory.shutdown()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, LogClosedError)
        assert storage.wal.closed
        del world.store.hold["list"]
        factory = world.factory()
        assert T not in await factory.start()
        await until(lambda: world.object_files() == [])
        await until(lambda: not factory._removals)
        await factory.shutdown()

    run(story())


def test_a_start_waits_once_for_a_store_that_hangs_and_not_once_for_each_group_of_topics(tmp_path, monkeypatch):
    """I11."""
    monkeypatch.setattr(resume_module, "REMOTE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(factory_module, "REMOTE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(factory_module, "OPEN_AT_ONCE", 2)

    async def story():
        world = World(tmp_path)
        names = [TopicName("default", f"t{n:02}") for n in range(20)]
        factory = world.factory()
        for name in names[:18]:
            await (await factory.for_topic(name)).append_messages(messages(0, 1))
        for name in names[18:]:
            await factory.for_topic(name)  # without messages: only objects can say where it goes on
        await factory.for_topic(T)
        world.store.fail["list"] = DOWN
        with pytest.raises(StoreUnavailableError):
            await factory.delete_topic(T)
        await factory.shutdown()
        world.store.fail.clear()
        world.store.hold["list"] = asyncio.Event()
        world.store.calls.clear()
        factory = world.factory(drain_timeout_s=0.05)
        assert await factory.start() == names[:18]
        assert {name: type(error) for name, error in factory.problems.items()} == dict.fromkeys(
            names[18:], StoreUnavailableError
        )
        assert world.store.count("list") <= 4, "the openings of the first round, and the removal"
        world.store.hold.pop("list").set()
        for name in names[18:]:
            assert (await factory.for_topic(name)).next_offset == 0
        assert factory.problems == {}
        await factory.shutdown()

    run(story())


def test_a_slow_topic_does_not_make_the_store_count_as_away(tmp_path, monkeypatch):
    """I11."""
    monkeypatch.setattr(resume_module, "REMOTE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(factory_module, "OPEN_AT_ONCE", 2)

    class SlowFor(TroubledStore):
        async def before(self, op, key):
            await super().before(op, key)
            if op == "list" and key.startswith("default/t00/"):
                await asyncio.Event().wait()
            if op == "list" and key.startswith("default/t19/"):  # it begins later, and is still waiting
                await until(lambda: self.factory.problems)

    async def story():
        world = World(tmp_path)
        names = [TopicName("default", f"t{n:02}") for n in range(20)]
        factory = world.factory()
        for name in names:
            await factory.for_topic(name)
        await factory.shutdown()
        world.store = SlowFor(world.store.store)
        factory = world.store.factory = world.factory()
        assert await factory.start() == names[1:]
        assert list(factory.problems) == names[:1]
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("kind", ["file", "below a file", "device"])
def test_a_log_directory_that_cannot_be_one_is_refused_at_start(tmp_path, kind):
    """L8."""

    async def story():
        (tmp_path / "file").write_text("x")
        world = World(tmp_path)
        path = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "wal", "device": "/dev/null"}[kind]
        factory = world.factory()
        factory._root.path = type(tmp_path)(path)
        with pytest.raises(InvalidConfigError, match=r"wal\.dir.*cannot be used as a directory"):
            await factory.start()
        await factory.shutdown()

    run(story())
