"""One ordered stream over objects, files, memory and whatever comes, while retention moves the border between them."""

import asyncio
import random
from contextlib import suppress

import pytest

from ister.core.errors import (
    CorruptLogError,
    CorruptObjectError,
    LogClosedError,
    MissingFileError,
    MissingOffsetsError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
)
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import OffsetRange
from ister.wal import AckLevel
from parts.cloud import check, named, open_parts, read_on, run, tasks_end, told, until


async def layered(tmp_path, **settings):
    """Objects have [0, 20) in 4 objects, the log [10, 25) in files of 5, and only the newest 2 are in memory."""
    parts = await open_parts(tmp_path, cache_capacity=2, **settings)
    for _ in range(4):
        await parts.add_file(5, 50)
    await parts.uploader.drain()
    await parts.storage.prune(10)
    await parts.add(5, 50)
    assert (parts.storage.start_offset, parts.storage.log_start, parts.storage.next_offset) == (0, 10, 25)
    assert parts.storage.objects.span == OffsetRange(0, 20)
    return parts


async def take(reader, count):
    return [await anext(reader) for _ in range(count)]


@pytest.mark.parametrize("level", [AckLevel.WAL, AckLevel.FSYNC])
def test_i6_one_stream_from_any_offset_through_objects_and_log_to_what_comes(tmp_path, level):
    async def story():
        parts = await layered(tmp_path, level=level)
        readers = [await parts.storage.create_reader(StartPosition.offset(at)) for at in range(26)]
        latest = await parts.storage.create_reader(StartPosition.latest())
        found = [await take(reader, 25 - at) for at, reader in enumerate(readers)]
        waiting = [asyncio.create_task(anext(reader)) for reader in (*readers, latest)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waiting)
        await parts.add(1, 50)
        for at, wait in enumerate(waiting[:-1]):
            check([*found[at], await wait], at, 26, 50)
        check([await waiting[-1]], 25, 26, 50)
        assert parts.store.count("read") >= 4
        await parts.close()

    run(story())


def test_what_the_log_has_is_never_asked_of_the_store(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        parts.store.calls.clear()
        await parts.read(10, 25, 50)
        assert parts.store.calls == []
        await parts.close()

    run(story())


def test_f22_a_damaged_object_is_served_from_the_log_while_it_is_still_there(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        for path in parts.object_files():
            path.write_bytes(b"\0" * path.stat().st_size)
        await parts.read(10, 25, 50)
        reader = await parts.storage.create_reader(StartPosition.offset(9))
        with pytest.raises(CorruptObjectError):
            await reader.read()
        await reader.close()
        await parts.close()

    run(story())


def test_f23_retention_moves_the_log_s_start_under_a_reader_in_the_log(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(10))
        found = await take(reader, 2)
        assert await parts.storage.prune(20) == 20
        found += await take(reader, 13)
        check(found, 10, 25, 50)
        assert parts.store.count("read") > 0
        await reader.close()
        await parts.close()

    run(story())


def test_f23_retention_moves_the_log_s_start_under_a_reader_in_objects(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(3))
        found = await take(reader, 4)
        assert await parts.storage.prune(20) == 20
        found += await take(reader, 18)
        check(found, 3, 25, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_f23_an_upload_goes_on_under_a_reader(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        found = await take(reader, 3)
        await parts.storage.seal(0)
        await parts.uploader.drain()
        await parts.add(5, 50)
        assert await parts.storage.prune(25) == 25
        found += await take(reader, 27)
        check(found, 0, 30, 50)
        await reader.close()
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["flip", "zeros", "cut", "gone"])
def test_f13_a_damaged_file_of_the_log_is_served_from_objects_with_an_alarm(tmp_path, how):
    async def story():
        parts = await layered(tmp_path)
        path = parts.log_files()[0]
        data = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
        else:
            at = data.index(b"12:")
            if how == "flip":
                data[at] ^= 4
            elif how == "zeros":
                data[at:] = bytes(len(data) - at)
            else:
                del data[at:]
            path.write_bytes(data)
        with told() as events:
            reader = await parts.storage.create_reader(StartPosition.offset(10))
            check(await take(reader, 15), 10, 25, 50)
            await reader.close()
            await parts.read(13, 25, 50)
        alarms = named(events, "log_damaged")
        assert {alarm["log_level"] for alarm in alarms} == {"error"}
        assert all(10 <= alarm["start"] < 15 for alarm in alarms)
        await parts.close()

    run(story())


def test_damage_that_no_object_covers_is_told(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        await parts.add_file(1, 50)
        await parts.add(3, 50)
        path = parts.log_files()[2]
        data = bytearray(path.read_bytes())
        data[data.index(b"22:")] ^= 4
        path.write_bytes(data)
        reader = await parts.storage.create_reader(StartPosition.offset(18))
        check(await take(reader, 2), 18, 20, 50)
        found = []
        with pytest.raises(CorruptLogError) as error:
            await read_on(reader, found)
        assert (error.value.file, error.value.expected_offset) == (str(path), 22)
        check(found, 20, 20 + len(found), 50)
        assert len(found) <= 2
        path.unlink()
        reader = await parts.storage.create_reader(StartPosition.offset(20))
        with pytest.raises(MissingFileError):
            await reader.read()
        await parts.close()

    run(story())


def test_a_hole_between_the_tiers_is_an_error_that_names_it(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        (*_, third, _) = await parts.descriptors()
        await parts.catalog.remove(third)
        with pytest.raises(MissingOffsetsError):
            await parts.storage.prune(20)
        await parts.wal.prune(20)
        reader = await parts.storage.create_reader(StartPosition.offset(7))
        found = []
        with pytest.raises(MissingOffsetsError) as error:
            await read_on(reader, found)
        assert (error.value.start, error.value.stop) == (10, 15)
        check(found, 7, 10, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_a_reader_that_was_told_of_a_store_that_is_down_goes_on_when_it_is_back(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(2))
        parts.store.fail["read"] = StoreUnavailableError("fs", "read", "no route")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await reader.read()
        await tasks_end()
        parts.store.fail.clear()
        check(await take(reader, 23), 2, 25, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_an_offset_that_nobody_holds_is_refused_with_both_bounds(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        for bad in (-1, 26, 2**63):
            with pytest.raises(OffsetOutOfRangeError) as refused:
                await parts.storage.create_reader(StartPosition.offset(bad))
            assert (refused.value.requested, refused.value.start, refused.value.stop) == (bad, 0, 25)
        await parts.close()

    run(story())


def test_closing_ends_readers_wherever_they_are(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        in_objects = await parts.storage.create_reader(StartPosition.offset(0))
        await anext(in_objects)
        at_the_end = await parts.storage.create_reader(StartPosition.latest())
        in_the_log = await parts.storage.create_reader(StartPosition.offset(10))
        waiting = asyncio.create_task(at_the_end.read())
        parts.store.hold["read"] = asyncio.Event()
        held = await parts.storage.create_reader(StartPosition.offset(6))
        hanging = asyncio.create_task(held.read())
        await until(lambda: parts.store.count("read") >= 3)
        await parts.storage.close()
        with pytest.raises(LogClosedError):
            await waiting
        parts.store.hold.pop("read").set()
        for reader in (in_objects, in_the_log):
            with pytest.raises(LogClosedError):
                await read_on(reader)
        with pytest.raises(LogClosedError):
            await parts.storage.create_reader(StartPosition.offset(0))
        with suppress(LogClosedError):
            await hanging
        for reader in (in_objects, held):
            await reader.close()
        await tasks_end()

    run(story())


def test_a_reader_of_a_topic_whose_objects_are_deleted_hears_that_it_is_closed_and_no_alarm(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, cache_capacity=2)
        for _ in range(60):
            await parts.add_file(2, 50)
        await parts.uploader.drain()
        await parts.storage.prune(118)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        await anext(reader)
        await parts.storage.close()
        for path in parts.object_files():
            path.unlink()
        await parts.catalog.clear()
        with pytest.raises(LogClosedError):
            await read_on(reader)
        await reader.close()

    run(story())


def test_a_reader_that_is_closed_early_leaves_no_task_and_can_go_on(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        first = await reader.read()
        await reader.close()
        await reader.close()
        await tasks_end()
        found = first + await reader.read()
        check(found, 0, len(found), 50)
        await reader.close()
        await parts.close()

    run(story())


def test_f37_a_cancelled_read_loses_nothing_across_the_tiers(tmp_path):
    async def story():
        parts = await layered(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        found = []
        turns = 0
        while len(found) < 25:
            reading = asyncio.create_task(reader.read())
            for _ in range(turns % 9):
                await asyncio.sleep(0)
            turns += 1
            if turns % 4 == 0:
                await asyncio.wait({reading}, timeout=0.5)
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                found += reading.result()
        check(found, 0, 25, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_f24_readers_at_random_starts_while_the_log_rotates_uploads_and_prunes(tmp_path, count, tell):
    async def story(seed):
        rng = random.Random(seed)
        parts = await open_parts(tmp_path / str(seed), cache_capacity=3, max_bytes=4096)
        deleter = parts.deleter(time_minutes=0, size_mb=0)
        await parts.add(5, 60)

        async def read():
            at = rng.randint(0, parts.wal.next_offset)
            reader = await parts.storage.create_reader(StartPosition.offset(at))
            try:
                while at < 240:
                    found = await reader.read()
                    check(found, at, at + len(found), 60)
                    at += len(found)
                    if rng.random() < 0.3:
                        await asyncio.sleep(0.002)
            finally:
                await reader.close()

        readers = [asyncio.create_task(read()) for _ in range(4)]
        while parts.wal.next_offset < 240:
            await parts.add(rng.randint(1, 8), 60)
            if rng.random() < 0.3:
                await parts.uploader.drain()
            if rng.random() < 0.3:
                await deleter.tick()
            assert parts.storage.log_start <= parts.storage.objects.span.stop, "I5"
            if rng.random() < 0.1:
                readers.append(asyncio.create_task(read()))
        await asyncio.gather(*readers)
        await parts.close()
        return len(readers)

    seeds = count(5, 200)
    readers = sum(run(story(seed)) for seed in range(seeds))
    tell("F24", f"{readers} readers in {seeds} lives on a real disk saw each offset once")
