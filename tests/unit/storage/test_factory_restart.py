"""What a factory finds after a restart: tiers that agree, are behind each other, are lost, or cannot be asked (D5)."""

import asyncio
import shutil

import pytest

from ister.core.errors import MissingObjectError, StoreUnavailableError, UnknownHistoryError
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.metadata import MemoryMetadata, SqliteMetadata
from ister.storage import resume as resume_module
from parts.cloud import TroubledMetadata, messages, run
from parts.factory import DOWN, T, World, read


@pytest.mark.parametrize("durable", [False, True])
def test_d5_an_empty_log_directory_serves_history_from_objects_and_goes_on(tmp_path, durable):
    async def story():
        world = World(tmp_path, await SqliteMetadata.open(tmp_path / "metadata.db") if durable else None)
        await world.fill()
        shutil.rmtree(tmp_path / "wal")
        world.clock.now_us -= 3_600_000_000
        factory = world.factory()
        assert await factory.start() == [T]
        storage = await factory.for_topic(T)
        assert (storage.start_offset, storage.next_offset, storage.log_start) == (0, 10, 10)
        assert await storage.append_messages(messages(10, 13)) == range(10, 13)
        await read(storage, 0, 13)
        reader = await storage.create_reader(StartPosition.offset(8))
        times = [(await anext(reader)).append_time_us for _ in range(5)]
        assert times == sorted(times), "append_time never goes back"
        await reader.close()
        await factory.shutdown()
        assert [path.name[5:25] for path in world.object_files()] == [f"{n:020}" for n in (0, 5, 10)]
        if durable:
            await world.metadata.metadata.close()

    run(story())


@pytest.mark.parametrize("wiped", [False, True])
def test_d1_append_time_does_not_go_back_when_a_restart_finds_no_message_in_the_log(tmp_path, wiped):
    async def story():
        world = World(tmp_path)
        await world.fill(pruned=10)
        if wiped:
            shutil.rmtree(tmp_path / "wal")
        for _ in range(2):
            factory = world.factory()
            await factory.start()
            await factory.shutdown()
        world.clock.now_us -= 3_600_000_000
        factory = world.factory()
        storage = await factory.for_topic(T)
        await storage.append_messages(messages(10, 11))
        reader = await storage.create_reader(StartPosition.offset(9))
        times = [(await anext(reader)).append_time_us for _ in range(2)]
        await reader.close()
        await factory.shutdown()
        assert times == sorted(times)

    run(story())


def test_d5_a_log_restored_from_an_old_copy_goes_on_where_objects_end(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill(5, pruned=0)
        shutil.copytree(tmp_path / "wal", tmp_path / "copy")
        await world.fill(10, pruned=0)
        shutil.rmtree(tmp_path / "wal")
        shutil.copytree(tmp_path / "copy", tmp_path / "wal")
        factory = world.factory()
        await factory.start()
        assert factory.problems == {}
        storage = await factory.for_topic(T)
        assert (storage.start_offset, storage.next_offset) == (0, 15)
        await storage.append_messages(messages(15, 17))
        await read(storage, 0, 17)
        await factory.shutdown()
        assert list(world.log_directory().glob("*.aside"))

    run(story())


def test_d5_a_log_that_is_behind_refuses_when_objects_do_not_prove_what_it_lacks(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill(10)
        shutil.rmtree(tmp_path / "wal")
        world.object_files()[0].unlink()
        factory = world.factory()
        assert await factory.start() == []
        assert isinstance(factory.problems[T], MissingObjectError)
        await factory.shutdown()

    run(story())


def test_d7_lost_metadata_is_made_again_from_log_and_objects(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill(15, pruned=10)
        world.metadata = TroubledMetadata(MemoryMetadata())
        factory = world.factory()
        assert await factory.start() == [T]
        storage = await factory.for_topic(T)
        assert (storage.start_offset, storage.log_start, storage.next_offset) == (0, 10, 15)
        await read(storage, 0, 15)
        assert await storage.append_messages(messages(15, 16)) == range(15, 16)
        await factory.shutdown()
        assert len(world.object_files()) == 4

    run(story())


def test_metadata_and_log_lost_but_objects_there_is_refused_and_nothing_is_touched(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill(10)
        shutil.rmtree(tmp_path / "wal")
        world.metadata = TroubledMetadata(MemoryMetadata())
        factory = world.factory()
        assert await factory.start() == []
        with pytest.raises(UnknownHistoryError, match="ister objects rebuild"):
            await factory.for_topic(T)
        assert len(world.object_files()) == 2
        assert await world.metadata.list("/") == []
        await factory.shutdown()

    run(story())


def test_d5_an_unreachable_store_keeps_a_log_with_messages_open_and_an_empty_one_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(resume_module, "REMOTE_TIMEOUT_S", 0.2)

    async def story():
        world = World(tmp_path)
        await world.fill(10, pruned=5)
        other = TopicName("default", "other")
        await world.fill(10, topic=other)
        shutil.rmtree(world.log_directory(other))
        for trouble in ("down", "hangs"):
            if trouble == "down":
                world.store.fail["list"] = DOWN
            else:
                world.store.hold["list"] = asyncio.Event()
            factory = world.factory(drain_timeout_s=0.2)
            storage = await factory.for_topic(T)
            start = storage.next_offset
            await storage.append_messages(messages(start, start + 2))
            await read(storage, 5, start + 2)
            if trouble == "down":
                with pytest.raises(StoreUnavailableError, match="no route"):
                    await factory.for_topic(other)
            await factory.shutdown()
            world.store.fail.clear()
            for event in world.store.hold.values():
                event.set()
            world.store.hold.clear()
        factory = world.factory()
        assert await factory.start() == [other, T]
        await read(await factory.for_topic(T), 0, 14)
        await read(await factory.for_topic(other), 0, 10)
        await factory.shutdown()

    run(story())
