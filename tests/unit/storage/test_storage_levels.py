"""A topic's acknowledgement level changes while it is used: nothing seen is unseen, nothing promised is broken (D4)."""

import asyncio
import errno
from pathlib import Path

import pytest

from ister.core.errors import InvalidConfigError, LogClosedError, NotYetInTierError, PoisonedError, SyncFailedError
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.storage import WalStorage
from ister.wal import AckLevel, SyncMode, Wal, WalConfig
from parts.cloud import messages, open_parts, until
from parts.cloud import run as run_real
from parts.factory import T, World
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")
WAL, FSYNC, CLOUD = AckLevel.WAL, AckLevel.FSYNC, AckLevel.CLOUD


async def opened(files=None, **settings):
    config = WalConfig(**{"dir": DIRECTORY, "sync_mode": SyncMode.NONE, "topic": "/default/topic"} | settings)
    return WalStorage.from_wal(await Wal.with_config(config, files=files or SimFiles(), clock=SimClock()))


async def moments(*futures):
    """Give every moment until all of these are done; a moment is less than what the simulated disk needs."""
    while not all(future.done() for future in futures):
        yield
        await asyncio.sleep(0.00005)


async def store(storage, count=1):
    return await storage.append_messages([StreamMessage(b"m")] * count)


def test_d4_appends_wait_for_the_level_that_is_set():
    async def story():
        storage = await opened()
        synced = []
        for level in (WAL, FSYNC, WAL, FSYNC):
            await storage.set_level(level)
            assert storage.level is level
            await storage.append_message(StreamMessage(b"m"))
            await store(storage)
            synced.append(storage.next_offset - storage.wal.synced_offset)
        assert synced == [2, 0, 2, 0]
        await storage.close()

    run(story())


def test_d4_a_raised_level_syncs_what_was_seen_before_it_is_set():
    async def story():
        storage = await opened()
        await store(storage, 5)
        assert (storage.wal.visible_offset, storage.wal.synced_offset) == (5, 0)
        raising = asyncio.ensure_future(storage.set_level(FSYNC))
        seen = [storage.wal.visible_offset async for _ in moments(raising)]
        assert set(seen) == {5}, "what readers saw is not taken back"
        assert (storage.wal.visible_offset, storage.wal.synced_offset) == (5, 5)
        reader = await storage.create_reader(StartPosition.offset(0))
        assert len(await reader.read()) == 5
        await storage.close()

    run(story())


def test_d4_a_level_is_raised_although_producers_never_pause():
    async def story():
        storage = await opened()

        async def produce():
            while storage.level is WAL or storage.next_offset < 50:
                await storage.append_message(StreamMessage(b"m"))

        await store(storage)
        producing = [asyncio.ensure_future(produce()) for _ in range(3)]
        await storage.set_level(FSYNC)
        await asyncio.gather(*producing)
        assert storage.wal.synced_offset == storage.next_offset
        await storage.close()

    run(story())


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("rotating", [False, True])
def test_d4_appends_that_wait_keep_the_promise_of_the_level_before(batch, rotating):
    async def story():
        files = SimFiles()
        storage = await opened(files, level=FSYNC)
        await store(storage)
        if rotating:
            turning = asyncio.ensure_future(storage.wal.rotate())
            await asyncio.sleep(0)
        one = [store(storage)] if batch else [storage.append_message(StreamMessage(b"m")) for _ in range(3)]
        waiting = [asyncio.ensure_future(append) for append in one]
        await asyncio.sleep(0)
        lowering = asyncio.ensure_future(storage.set_level(WAL))
        async for _ in moments(*waiting):
            assert storage.wal.synced_offset == 1 + len(waiting) or not any(append.done() for append in waiting)
        assert storage.wal.synced_offset == 1 + len(waiting)
        await lowering
        if rotating:
            await turning
        await store(storage)
        assert storage.wal.synced_offset == 1 + len(waiting)
        await storage.close()

    run(story())


def test_d4_a_lowered_level_shows_readers_at_once_what_is_written():
    async def story():
        storage = await opened(level=FSYNC)
        await store(storage)
        reader = await storage.create_reader(StartPosition.latest())
        reading = asyncio.ensure_future(reader.read())
        appending = asyncio.ensure_future(storage.append_message(StreamMessage(b"m")))
        await asyncio.sleep(0)
        await storage.set_level(WAL)
        assert len(await reading) == 1
        assert (appending.done(), storage.wal.synced_offset) == (False, 1)
        assert await appending == 1
        await storage.close()

    run(story())


def test_d4_a_level_below_what_the_sync_mode_implies_is_not_taken():
    async def story():
        storage = await opened(sync_mode=SyncMode.ALWAYS)
        for level in (WAL, None):
            await storage.set_level(level)
            assert storage.level is FSYNC
        await store(storage)
        assert storage.wal.synced_offset == 1
        await storage.close()

    run(story())


def test_a_level_that_cannot_be_had_is_refused_and_changes_nothing():
    async def story():
        on_disk = await opened()
        in_memory = await opened(dir=None)
        with pytest.raises(InvalidConfigError, match="CLOUD needs the uploader"):
            await on_disk.set_level(CLOUD)
        with pytest.raises(InvalidConfigError, match="cannot be synced"):
            await in_memory.set_level(FSYNC)
        assert (on_disk.level, in_memory.level) == (WAL, WAL)
        await store(on_disk)
        await on_disk.close()
        with pytest.raises(LogClosedError):
            await on_disk.set_level(FSYNC)

    run(story())


def test_f8_a_level_whose_sync_fails_is_told_and_acknowledges_nothing_more():
    async def story():
        files = SimFiles()
        storage = await opened(files)
        await store(storage)

        def fail(op, path):
            if op == "sync":
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises(SyncFailedError):
            await storage.set_level(FSYNC)
        with pytest.raises(PoisonedError):
            await store(storage)
        with pytest.raises(PoisonedError):
            await storage.set_level(WAL)

    run(story())


# --- level cloud ------------------------------------------------------------------------------------------------------


def test_d4_level_cloud_can_be_set_and_taken_back_while_an_append_waits_for_it(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        storage = parts.storage
        await parts.add(1)
        await storage.set_level(CLOUD)
        parts.store.hold["put"] = asyncio.Event()
        parts.run_uploader()
        waiting = asyncio.ensure_future(storage.append_messages(messages(1, 2)))
        one = asyncio.ensure_future(storage.append_message(messages(2, 3)[0]))
        await until(lambda: storage.next_offset == 3)
        await storage.set_level(WAL)
        assert await storage.append_messages(messages(3, 4)) == range(3, 4)
        await storage.flush()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert not one.done()
        parts.store.hold.pop("put").set()
        assert (await waiting, await one) == (range(1, 2), 2)
        assert parts.uploader.uploaded.value >= 3
        await parts.close()

    run_real(story())


def test_d4_the_time_that_level_cloud_waits_is_the_topics_own(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=CLOUD, timeout_s=1000)
        for wrong in (0, -1, float("nan")):
            with pytest.raises(InvalidConfigError, match="cloud_timeout_s"):
                parts.storage.set_cloud_timeout(wrong)
        parts.storage.set_cloud_timeout(0.01)
        with pytest.raises(NotYetInTierError, match=r"longer than 0\.01 s"):
            await parts.add(1)
        await parts.close()

    run_real(story())


def test_d4_a_topic_that_is_open_gets_the_level_it_is_asked_for_with(tmp_path):
    async def story():
        factory = World(tmp_path).factory()
        storage = await factory.for_topic(T)
        assert storage.level is WAL
        for level in (FSYNC, CLOUD, WAL):
            assert await factory.for_topic(T, level=level) is storage
            assert storage.level is level
            await storage.append_messages(messages(storage.next_offset, storage.next_offset + 1))
            if level is CLOUD:
                assert storage.objects.span.stop == storage.next_offset
        assert await factory.for_topic(T) is storage
        assert storage.level is WAL, "who does not ask changes nothing"
        await factory.shutdown()

    run_real(story())
