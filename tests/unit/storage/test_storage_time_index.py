"""The offset of a time: whatever lies in the log or in objects, it is what a loop over all messages finds."""

import asyncio
import random
from pathlib import Path

import pytest

from ister.core.errors import LogClosedError
from ister.core.frames.segment import INDEX_BYTES
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.storage import InMemoryStorage, WalStorage
from ister.wal import AckLevel, SyncMode, Wal, WalConfig, directory
from parts.cloud import messages, open_parts
from parts.cloud import run as run_real
from parts.storage import every_storage
from parts.storage import run as run_loop
from sim.cloud_story import small_sizes
from sim.machine import SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")


class SetClock:
    """A wall clock that stands where it is put."""

    def __init__(self, now_us=1000):
        self.now_us = now_us

    def wall_us(self):
        return self.now_us


async def stored_times(storage):
    """Return the append time of every message there is, from the first on."""
    reader = await storage.create_reader(StartPosition.offset(storage.start_offset))
    times = []
    while storage.start_offset + len(times) < storage.next_offset:
        times += [message.append_time_us for message in await reader.read()]
    return times


async def check_all(storage):
    """Insist on what a loop finds, for every time that makes a difference."""
    times = await stored_times(storage)
    wanted = {0, 1, *times, *(time - 1 for time in times), *(time + 1 for time in times)}
    for time in sorted(wanted):
        before = sum(1 for stored in times if stored < time)
        assert await storage.offset_at(time) == storage.start_offset + before, time
    return len(wanted)


async def fill(storage, clock, rng, count):
    """Store messages in runs of equal times, with gaps between them, and steps back of the clock."""
    while storage.next_offset < count:
        clock.now_us += rng.choice((-500, 0, 1, 2, 1000))
        await storage.append_messages([StreamMessage(bytes(rng.randint(0, 900)))] * rng.randint(1, 9))


async def wal_storage(clock, files=None, **settings):
    config = WalConfig(**{"dir": DIRECTORY, "max_bytes": 4096, "cache_capacity": 3} | settings)
    return WalStorage.from_wal(await Wal.with_config(config, files=files or SimFiles(), clock=clock))


@every_storage
def test_an_empty_topic_has_only_its_end(make, tmp_path):
    async def story():
        storage = await make(tmp_path)
        for time in (-1, 0, 10**18):
            assert await storage.offset_at(time) == 0
        await storage.append_messages([StreamMessage(b"m")] * 3)
        assert [await storage.offset_at(time) for time in (0, 10**18)] == [0, 3]
        await storage.close()
        with pytest.raises(LogClosedError):
            await storage.offset_at(0)

    run_loop(story())


@pytest.mark.parametrize(
    "settings", [{}, {"level": AckLevel.FSYNC}, {"sync_mode": SyncMode.NONE}, {"dir": None, "cache_capacity": 90}]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_log_knows_the_offset_of_every_time(seed, settings, monkeypatch):
    monkeypatch.setattr(directory, "READ_BYTES", 700)

    async def story():
        clock, rng = SetClock(), random.Random(seed)
        storage = await wal_storage(clock, **settings)
        await fill(storage, clock, rng, 120)
        assert await check_all(storage) > 10
        await storage.prune(storage.next_offset // 2)
        await check_all(storage)
        await storage.close()

    run(story(), seed)


def test_memory_knows_the_offset_of_every_time():
    async def story():
        clock = SetClock()
        storage = InMemoryStorage(clock=clock)
        await fill(storage, clock, random.Random(1), 100)
        await storage.prune(17)
        await check_all(storage)

    run(story())


@pytest.mark.parametrize("harm", ["none", "checkpoint gone", "killed"])
def test_a_log_that_was_opened_again_knows_it_too(harm):
    async def story():
        clock, files = SetClock(), SimFiles()
        storage = await wal_storage(clock, files)
        await fill(storage, clock, random.Random(2), 80)
        if harm == "killed":
            files = files.killed()
        else:
            await storage.close()
        if harm == "checkpoint gone":
            del files.names_now[DIRECTORY / "checkpoint.json"]
        storage = await wal_storage(clock, files)
        assert len(storage.sealed_segments()) > 3
        await check_all(storage)

    run(story())


def test_what_is_not_synced_yet_counts_as_well():
    async def story():
        clock = SetClock()
        storage = await wal_storage(clock, sync_mode=SyncMode.NONE, level=AckLevel.FSYNC)
        await storage.append_message(StreamMessage(b"m"))
        appending = []
        for _ in range(2):
            clock.now_us += 10
            appending.append(asyncio.ensure_future(storage.append_message(StreamMessage(b"m"))))
            await asyncio.sleep(0)
            await storage.wal.flush()
        assert (storage.wal.visible_offset, storage.next_offset) == (1, 3)
        assert await storage.offset_at(clock.now_us) == 2
        await asyncio.gather(*appending)

    run(story())


# --- with objects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_objects_know_the_offset_of_every_time_that_the_log_no_longer_has(tmp_path, seed):
    async def story():
        clock, rng = SetClock(), random.Random(seed)
        parts = await open_parts(tmp_path, clock=clock, cache_capacity=2, max_bytes=4096)
        with small_sizes(seed):
            await fill(parts.storage, clock, rng, 100)
            await parts.uploader.drain()
            await parts.storage.prune(rng.choice((30, 60, 100)))
            await fill(parts.storage, clock, rng, 130)
            assert 0 == parts.storage.start_offset < parts.storage.log_start
            await check_all(parts.storage)
        await parts.close()

    run_real(story())


def test_a_topic_whose_log_is_empty_knows_it_by_objects_alone(tmp_path):
    async def story():
        clock = SetClock()
        parts = await open_parts(tmp_path, clock=clock)
        for _ in range(5):
            clock.now_us += 100
            await parts.add_file(4)
        await parts.uploader.drain()
        await parts.storage.prune(20)
        assert parts.storage.log_start == parts.storage.next_offset == 20
        await check_all(parts.storage)
        await parts.close()

    run_real(story())


def test_only_a_little_of_one_object_is_read(tmp_path):
    async def story():
        clock = SetClock()
        parts = await open_parts(tmp_path, clock=clock, cache_capacity=2)
        for _ in range(12):
            for _ in range(100):
                clock.now_us += 10
                await parts.storage.append_messages(messages(0, 8, 5000))
            await parts.storage.seal(0)
        await parts.uploader.drain()
        await parts.storage.prune(9600)
        parts.store.reads.clear()
        assert await parts.storage.offset_at(1000 + 10 * 567) == 566 * 8
        keys = {key for key, _, _ in parts.store.reads}
        assert len(keys) == 1, "one object is asked"
        size = parts.object_files()[0].stat().st_size
        assert size > 50 * INDEX_BYTES, "it has many places"
        assert parts.store.bytes_read < size / 2
        await parts.close()

    run_real(story())
