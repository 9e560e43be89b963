"""Every topic's storage from one factory: made, found again after a restart, deleted, and none in another's way."""

import asyncio
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.core.errors import (
    InvalidNameError,
    LockedError,
    LogClosedError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    UnknownTopicError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import Wal, WalConfig
from parts.cloud import messages, read_on, run, until
from parts.factory import DOWN, T, World, read

# --- topics -----------------------------------------------------------------------------------------------------------


def test_each_topic_and_generation_has_its_own_directory_and_keys(tmp_path):
    async def story():
        world = World(tmp_path)
        factory = world.factory()
        assert await factory.start() == []
        names = [TopicName("a", "b"), TopicName("a", "c"), TopicName("b", "b"), TopicName("a-b", "b_1")]
        for number, name in enumerate(names):
            storage = await factory.for_topic(name)
            assert await storage.append_messages(messages(0, number + 1)) == range(number + 1)
        assert await factory.topics() == sorted(names)
        await factory.shutdown()
        for name in names:
            assert world.log_directory(name).is_dir()
            assert len(world.object_files(name)) == 1
        factory = world.factory()
        assert await factory.start() == sorted(names)
        for number, name in enumerate(names):
            await read(await factory.for_topic(str(name)), 0, number + 1)
        await factory.shutdown()

    run(story())


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=40), st.from_regex(r"[/.a\x00\\~ -]{1,12}", fullmatch=True)))
def test_s7_a_hostile_name_is_refused_before_it_touches_anything(text):
    async def story():
        factory = WalStorageFactory(
            TopicsConfig(wal=WalConfig(dir="/nowhere/at/all")), store=None, metadata=None, files=None
        )
        for act in (factory.for_topic, factory.delete_topic):
            with pytest.raises(InvalidNameError):
                await act(text)

    try:
        TopicName.parse(text)
    except InvalidNameError:
        asyncio.run(story())


def test_s7_directories_that_are_no_topics_are_left_alone(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill()
        strange = [
            "wal/default/t/not-a-number",
            "wal/.hidden/t/1",
            "wal/default/sp ace/1",
            "wal/default/..x/1",
            "wal/file",
        ]
        for name in strange[:-1]:
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / strange[-1]).write_text("a file")
        before = sorted(path for path in tmp_path.rglob("*") if "default/t/1" not in str(path))
        factory = world.factory()
        assert await factory.start() == [T]
        assert factory.problems == {}
        await factory.shutdown()
        assert sorted(path for path in tmp_path.rglob("*") if "default/t/1" not in str(path)) == before

    run(story())


def test_concurrent_calls_for_one_topic_give_one_storage(tmp_path):
    async def story():
        world = World(tmp_path)
        factory = world.factory()
        found = await asyncio.gather(*(factory.for_topic(T) for _ in range(50)))
        assert len({id(storage) for storage in found}) == 1
        assert len(factory._open[T].tasks) == 2
        await factory.shutdown()

    run(story())


def test_f17_two_factories_on_one_directory(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill()
        first, second = world.factory(), world.factory()
        storage = await first.for_topic(T)
        with pytest.raises(LockedError):
            await second.for_topic(T)
        assert await second.start() == []
        assert isinstance(second.problems[T], LockedError)
        assert await storage.append_messages(messages(10, 11)) == range(10, 11)
        await read(storage, 0, 11)
        await first.shutdown()
        await second.start()
        assert second.problems == {}
        await read(await second.for_topic(T), 0, 11)
        await second.shutdown()

    run(story())


def test_f17_a_factory_that_does_not_own_a_topic_cannot_delete_it(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill()
        first, second = world.factory(), world.factory()
        storage = await first.for_topic(T)
        with pytest.raises(LockedError):
            await second.delete_topic(T)
        assert len(world.object_files()) == 2
        await read(storage, 0, 10)
        await first.shutdown()
        again = world.factory()
        assert await again.start() == [T]
        await read(await again.for_topic(T), 0, 10)
        await again.shutdown()

    run(story())


def test_f17_a_log_that_a_factory_owns_cannot_be_opened_by_itself_nor_the_other_way_round(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        storage = await factory.for_topic(T)
        alone = WalConfig(dir=world.log_directory())
        for _ in range(2):
            with pytest.raises(LockedError, match=f"directory {tmp_path / 'wal'} is owned by process {os.getpid()}"):
                await Wal.with_config(alone)
            storage.wal.close_active()
            await until(lambda: storage.wal._disk.active_closed)
        assert await storage.append_messages(messages(10, 11)) == range(10, 11)
        await factory.shutdown()
        wal = await Wal.with_config(alone)
        factory = world.factory()
        assert await factory.start() == []
        assert isinstance(factory.problems[T], LockedError)
        with pytest.raises(LockedError):
            await factory.delete_topic(T)
        assert len(world.object_files()) == 3
        other = await factory.for_topic("/default/other")
        await other.append_messages(messages(0, 1))
        await wal.close()
        await read(await factory.for_topic(T), 0, 11)
        await factory.shutdown()

    run(story())


HOLDS = """
import asyncio, sys
from pathlib import Path
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import Wal, WalConfig

async def main(directory):
    factory = WalStorageFactory(
        TopicsConfig(wal=WalConfig(dir=directory / "wal")), store=FsStore(directory / "objects"), metadata=MemoryMetadata()
    )
    await factory.for_topic("/default/t")
    print("open", flush=True)
    sys.stdin.read()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_f17_a_killed_process_lets_go_of_all_its_topics_and_no_earlier(tmp_path):
    world = World(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    async def story(refused):
        factory = world.factory()
        if refused:
            with pytest.raises(LockedError, match=f"owned by process {holder.pid}"):
                await factory.for_topic(T)
        else:
            await (await factory.for_topic(T)).append_messages(messages(0, 1))
        await factory.shutdown()

    try:
        assert holder.stdout.readline() == "open\n"
        run(story(refused=True))
    finally:
        holder.kill()
        holder.communicate()
    run(story(refused=False))


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_d5_a_topic_deleted_and_made_again_is_another_one(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        await factory.start()
        old = await factory.for_topic(T)
        reader = await old.create_reader(StartPosition.offset(0))
        await anext(reader)
        await factory.delete_topic(T)
        with pytest.raises(LogClosedError):
            await read_on(reader)
        await reader.close()
        assert (world.object_files(), world.log_directory().exists()) == ([], False)
        assert await world.metadata.list("/danube-data/storage/objects/") == []
        assert await factory.topics() == []
        new = await factory.for_topic(T)
        assert (new.start_offset, new.next_offset) == (0, 0)
        assert world.log_directory(generation=2).is_dir()
        with pytest.raises(OffsetOutOfRangeError):
            await new.create_reader(StartPosition.offset(1))
        assert await new.append_messages(messages(0, 3)) == range(3)
        await factory.shutdown()
        assert len(world.object_files(generation=2)) == 1
        factory = world.factory()
        assert await factory.start() == [T]
        await read(await factory.for_topic(T), 0, 3)
        await factory.delete_topic(T)
        assert await factory.start() == []
        for gone in (T, "/default/never"):
            with pytest.raises(UnknownTopicError):
                await factory.delete_topic(gone)
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize(
    ("where", "op", "after"),
    [("store", "list", 0), ("store", "delete", 0), ("store", "delete", 1), ("metadata", "delete", 0), ("metadata", "delete", 1)],
)  # fmt: skip
@pytest.mark.parametrize("recreate", [False, True])
def test_what_a_crash_leaves_of_a_deleted_topic_is_removed_later(tmp_path, where, op, after, recreate):
    async def story():
        world = World(tmp_path)
        await world.fill()
        factory = world.factory()
        await factory.start()
        getattr(world, where).fail[op] = [*[None] * after, DOWN]
        with pytest.raises(StoreUnavailableError):
            await factory.delete_topic(T)
        if recreate:
            new = await factory.for_topic(T)
            assert (new.start_offset, new.next_offset) == (0, 0)
            await new.append_messages(messages(0, 2))
        await factory.shutdown()
        factory = world.factory()
        assert await factory.start() == ([T] if recreate else [])
        assert factory.problems == {}
        await until(lambda: not world.log_directory().exists() and world.object_files() == [])
        await until(lambda: not factory._removals)
        assert [e for e in await world.metadata.list("/danube-data/storage/objects/") if "/0000000001/" in e.key] == []
        new = await factory.for_topic(T)
        assert new.next_offset == (2 if recreate else 0)
        await factory.shutdown()

    run(story())
