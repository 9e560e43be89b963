"""A factory under load and in trouble: one topic's fault stays its own, and shutdown leaves nothing behind."""

import asyncio
import errno
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from ister.core.errors import (
    CorruptLogError,
    CorruptMetadataError,
    InvalidConfigError,
    LogClosedError,
    SyncFailedError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.files.files import OsFiles
from ister.wal import AckLevel
from parts.cloud import messages, named, run, told, until
from parts.factory import T, World, crash, read

pytestmark = pytest.mark.slow

A, B = TopicName("default", "a"), TopicName("default", "b")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


# --- one topic's fault ------------------------------------------------------------------------------------------------


def test_one_broken_log_does_not_block_the_others(tmp_path):
    async def story():
        world = World(tmp_path)
        factory = world.factory()
        for topic in (A, B, T):
            storage = await factory.for_topic(topic)
            await storage.append_messages(messages(0, 5))
        await factory.shutdown()
        flip(next(world.log_directory(B).glob("wal-*.log")), 100)
        factory = world.factory()
        assert await factory.start() == [A, T]
        assert isinstance(factory.problems[B], CorruptLogError)
        for topic in (A, T):
            await read(await factory.for_topic(topic), 0, 5)
        with pytest.raises(CorruptLogError):
            await factory.for_topic(B)
        flip(next(world.log_directory(B).glob("wal-*.log")), 100)
        await read(await factory.for_topic(B), 0, 5)
        assert factory.problems == {}
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("value", [b"", b"{}", b"[" * 100_000, b'{"version":2}', b'{"version":1,"generation":0}'])
def test_one_damaged_record_does_not_block_the_others(tmp_path, value):
    async def story():
        world = World(tmp_path)
        factory = world.factory()
        for topic in (A, B, T):
            await (await factory.for_topic(topic)).append_messages(messages(0, 5))
        await factory.shutdown()
        key = "/danube-data/storage/topics/default/b"
        await world.metadata.put(key, value)
        factory = world.factory()
        assert await factory.start() == [A, T]
        assert isinstance(factory.problems[B], CorruptMetadataError)
        assert factory.problems[B].key == key
        await read(await factory.for_topic(A), 0, 5)
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("field", ["append_time_us", "epoch", "size"])
def test_one_damaged_description_does_not_block_the_others(tmp_path, field):
    async def story():
        world = World(tmp_path)
        factory = world.factory()
        for topic in (A, B):
            await (await factory.for_topic(topic)).append_messages(messages(0, 5))
        await factory.shutdown()
        (entry,) = await world.metadata.list("/danube-data/storage/objects/default/b/")
        await world.metadata.put(
            entry.key, entry.value.replace(f'"{field}":'.encode(), f'"{field}":null,"x":'.encode())
        )
        factory = world.factory()
        assert await factory.start() == [A]
        assert isinstance(factory.problems[B], CorruptMetadataError)
        await factory.shutdown()

    run(story())


class FailingSync(OsFiles):
    """The real file system; files under one directory cannot be opened to read once `broken` is set."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.broken = False

    def open_read(self, path):
        if self.broken and self.part in str(path) and path.suffix == ".log":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().open_read(path)

    def open(self, path):
        return _File(self, super().open(path), path)

    def create(self, path):
        return _File(self, super().create(path), path)


class _File:
    def __init__(self, files, file, path):
        self.files, self.file, self.path = files, file, path

    def __getattr__(self, name):
        return getattr(self.file, name)

    def sync(self):
        if self.files.broken and self.files.part in str(self.path):
            raise OSError(errno.EIO, "Input/output error")
        return self.file.sync()


@pytest.mark.parametrize("uploads", [False, True])
def test_a_topic_whose_disk_fails_at_shutdown_does_not_keep_the_others_from_being_closed(tmp_path, uploads):
    async def story():
        world = World(tmp_path)
        files = FailingSync("default/b/")
        factory = world.factory(files=files, upload={"enabled": uploads})
        storages = {topic: await factory.for_topic(topic) for topic in (A, B, T)}
        for storage in storages.values():
            await storage.append_messages(messages(0, 5))
        files.broken = True
        with told() as events, nullcontext() if uploads else pytest.raises(SyncFailedError):
            await factory.shutdown()
        assert named(events, "log_poisoned")[0]["log"] == str(B)
        assert all(storage.wal.closed for storage in storages.values())
        assert [len(world.object_files(topic)) for topic in (A, B, T)] == ([1, 0, 1] if uploads else [0, 0, 0])
        files.broken = False
        factory = world.factory()
        assert await factory.start() == [A, B, T]
        await factory.shutdown()

    run(story())


# --- settings ---------------------------------------------------------------------------------------------------------


def test_uploads_that_are_off_are_off_and_history_is_still_served(tmp_path):
    async def story():
        world = World(tmp_path)
        await world.fill(10, pruned=5)
        world.store.calls.clear()
        with told() as events:
            factory = world.factory(upload={"enabled": False}, size_mb=1, check_interval_minutes=0.0001)
            storage = await factory.for_topic(T)
            assert (factory.uploader(T), factory.deleter(T)) == (None, None)
            for n in range(10, 13):
                await storage.append_messages([messages(n, n + 1)[0]._replace(payload=bytes(600_000))])
                await storage.seal(0)
            await until(lambda: named(events, "log_grows"))
        assert "enable uploader, or choose a retention policy" in named(events, "log_grows")[0]["hint"]
        assert storage.log_start == 5, "nothing is pruned"
        assert storage.later_tier_offset is None
        await read(storage, 0, 10)
        await factory.shutdown()
        assert world.store.count("put") == 0
        factory = world.factory()
        storage = await factory.for_topic(T)
        await factory.uploader(T).drain()
        assert storage.objects.span.stop == 13
        await factory.shutdown()

    run(story())


def test_level_cloud_is_refused_where_uploads_are_off(tmp_path):
    async def story():
        world = World(tmp_path)
        factory = world.factory(upload={"enabled": False})
        with pytest.raises(InvalidConfigError, match="CLOUD needs the uploader"):
            await factory.for_topic(T, level=AckLevel.CLOUD)
        await (await factory.for_topic(T)).append_messages(messages(0, 1))
        await factory.shutdown()

    run(story())


@pytest.mark.parametrize("level", [AckLevel.WAL, AckLevel.FSYNC, AckLevel.CLOUD])
def test_f39_shutdown_drains_and_whoever_waits_is_answered(tmp_path, level):
    async def story():
        world = World(tmp_path)
        factory = world.factory(level=level)
        storage = await factory.for_topic(T)
        appends = [asyncio.create_task(storage.append_message(message)) for message in messages(0, 40)]
        await until(lambda: storage.wal.synced_offset == 40 or all(append.done() for append in appends))
        await factory.shutdown()
        assert [await append for append in appends] == list(range(40))
        factory = world.factory()
        storage = await factory.for_topic(T)
        assert storage.objects.span.stop == 40
        await read(storage, 0, 40)
        await factory.shutdown()

    run(story())


def test_a_shutdown_is_bounded_when_the_store_hangs(tmp_path):
    async def story():
        world = World(tmp_path)
        factory = world.factory(drain_timeout_s=0.2)
        storage = await factory.for_topic(T)
        await storage.append_messages(messages(0, 5))
        world.store.hold["put"] = asyncio.Event()
        with told() as events:
            await factory.shutdown()
        assert "took longer than 0.2 s" in named(events, "not_all_uploaded")[0]["cause"]
        world.store.hold.pop("put").set()
        factory = world.factory()
        await factory.for_topic(T)
        await factory.uploader(T).drain()
        assert factory.uploader(T).uploaded.value == 5
        await factory.shutdown()

    run(story())


def test_i1_kill_9_again_and_again_loses_nothing_and_repeats_nothing(tmp_path):
    async def story():
        world = World(tmp_path)
        for life in range(8):
            factory = world.factory(time_minutes=0, size_mb=0)
            assert await factory.start() == ([T] if life else [])
            storage = await factory.for_topic(T)
            assert storage.next_offset == life * 6
            await storage.append_messages(messages(life * 6, life * 6 + 4))
            if life % 2:
                await storage.seal(0)
                await factory.uploader(T).drain()
                world.clock.now_us += 10**9
                await factory.deleter(T).tick()
            await storage.append_messages(messages(life * 6 + 4, life * 6 + 6))
            await read(storage, 0, life * 6 + 6)
            await crash(factory)

    run(story())


def test_i10_200_topics_open_quickly_and_leave_no_task_descriptor_or_thread(tmp_path, count, tell):
    many = [TopicName(f"n{n % 7}", f"t{n}") for n in range(count(200, 1000))]

    async def story():
        world = World(tmp_path)
        loop = asyncio.get_running_loop()
        for life in range(2):
            before = loop.time()
            factory = world.factory()
            opened = await factory.start()
            assert len(opened) == (len(many) if life else 0)
            storages = await asyncio.gather(*(factory.for_topic(topic) for topic in many))
            took = loop.time() - before
            await asyncio.gather(*(storage.append_messages(messages(life, life + 1)) for storage in storages))
            reader = await storages[-1].create_reader(StartPosition.offset(0))
            assert len(await reader.read()) > 0
            await factory.shutdown()
            with pytest.raises(LogClosedError):
                await storages[0].append_messages(messages(0, 1))
            assert len(asyncio.all_tasks()) == 1
        return took

    run_once(tmp_path / "warm")
    threads, descriptors = own_threads(), open_descriptors()
    took = run(story(), 120)
    deadline(lambda: own_threads() <= threads)
    deadline(lambda: open_descriptors() <= descriptors)
    assert took < 60
    tell("I10", f"{len(many)} topics opened in {took:.1f} s; tasks, descriptors and threads are as before")


POOLS = ("ister-background", "ister-cursors", "ister-objects")


def own_threads():
    """Count threads, but those of the pools that all factories of a process share."""
    return sum(1 for thread in threading.enumerate() if not thread.name.startswith(POOLS))


def open_descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def run_once(directory):
    """Have everything started that stays for the process's life."""

    async def story():
        factory = World(directory).factory()
        await (await factory.for_topic(T)).append_messages(messages(0, 1))
        await factory.shutdown()

    run(story())


def deadline(holds, deadline_s=20):
    """Wait for threads, which end by themselves after they were told to; outside of a loop, which has its own."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)
