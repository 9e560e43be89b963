"""One ordered stream over table, objects, files and memory, while retention moves every border between them."""

import asyncio
import random

import pytest

from ister.core.errors import (
    CorruptLogError,
    CorruptObjectError,
    LogClosedError,
    MissingObjectError,
    MissingOffsetsError,
    OffsetOutOfRangeError,
)
from ister.core.offsets import StartPosition
from ister.core.table.data_files import NO_TABLE, TableEnd
from ister.core.tiers.selection import OffsetRange
from ister.lake.errors import LakeUnavailableError, MissingRowsError, TableMovedError
from ister.storage import WalStorage
from ister.storage.tiered_reader import TableTier
from parts.cloud import check, named, open_parts, read_on, run, tasks_end, told
from parts.table import commit, object_retention, tabled
from sim.table_machine import SimTable


async def take(reader, count):
    return [await anext(reader) for _ in range(count)]


def test_i6_one_stream_from_any_offset_through_all_tiers_to_what_comes(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        assert await object_retention(parts).tick() == 3
        assert (parts.storage.objects.span, parts.storage.table.span) == (OffsetRange(15, 20), OffsetRange(0, 15))
        assert (parts.storage.start_offset, parts.storage.frames_start, parts.storage.log_start) == (0, 10, 10)
        readers = [await parts.storage.create_reader(StartPosition.offset(at)) for at in range(26)]
        found = [await take(reader, 25 - at) for at, reader in enumerate(readers)]
        waiting = [asyncio.create_task(anext(reader)) for reader in readers]
        await parts.add(1, 50)
        for at, wait in enumerate(waiting):
            check([*found[at], await wait], at, 26, 50)
        assert parts.table.opens == 10 + 1, "ten readers, and who deleted the objects"
        for reader in readers:
            await reader.close()
        await parts.close()

    run(story())


def test_what_cheaper_tiers_have_is_never_asked_of_the_table(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await parts.read(0, 25, 50)
        assert parts.table.opens == parts.table.looks == 0
        await parts.close()

    run(story())


def test_f23_objects_are_deleted_under_a_reader_that_is_in_them(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        with told() as events:
            reader = await parts.storage.create_reader(StartPosition.offset(0))
            found = await take(reader, 2)
            assert await object_retention(parts).tick() == 3
            found += await take(reader, 23)
        check(found, 0, 25, 50)
        assert named(events, "objects_damaged") == [], "what retention takes is no damage"
        await reader.close()
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["zeros", "cut", "gone", "undescribed"])
def test_f22_a_damaged_object_is_read_from_the_table_with_one_alarm(tmp_path, how):
    async def story():
        parts = await tabled(tmp_path)
        path = parts.object_files()[1]
        if how == "gone":
            path.unlink()
        elif how == "undescribed":
            await parts.catalog.remove((await parts.descriptors())[1])
        else:
            size = path.stat().st_size
            path.write_bytes(bytes(size) if how == "zeros" else path.read_bytes()[: size // 2])
        with told() as events:
            for start in (0, 5, 7, 9):
                await parts.read(start, 25, 50)
        (alarm,) = named(events, "objects_damaged")
        assert (alarm["log_level"], alarm["start"], alarm["stop"]) == ("error", 5, 10)
        assert parts.table.opens == 4
        await parts.close()

    run(story())


def test_damage_behind_the_table_s_end_is_told_once_what_the_table_has_was_read(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await parts.wal.prune(20)
        third, fourth = parts.object_files()[2:]
        third.write_bytes(bytes(third.stat().st_size))
        await parts.read(7, 25, 50)
        fourth.unlink()
        reader = await parts.storage.create_reader(StartPosition.offset(12))
        found = []
        with pytest.raises(MissingObjectError):
            await read_on(reader, found)
        check(found, 12, 15, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_an_object_that_the_table_holds_half_of_is_read_from_it_that_far(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await commit(parts.storage, parts.table, 17)
        await parts.wal.prune(20)
        path = parts.object_files()[3]
        path.write_bytes(bytes(path.stat().st_size))
        reader = await parts.storage.create_reader(StartPosition.offset(13))
        found = []
        with pytest.raises(CorruptObjectError):
            await read_on(reader, found)
        check(found, 13, 17, 50)
        await reader.close()
        await parts.close()

    run(story())


def test_f13_a_damaged_file_of_the_log_that_objects_do_not_have_is_read_from_the_table(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await parts.storage.seal(0)
        await commit(parts.storage, parts.table, 25)
        await parts.add(5, 50)
        path = parts.log_files()[2]
        data = bytearray(path.read_bytes())
        data[data.index(b"22:")] ^= 4
        path.write_bytes(data)
        with told() as events:
            await parts.read(18, 30, 50)
        assert len(named(events, "log_damaged")) == 1
        data = bytearray(parts.log_files()[3].read_bytes())
        data[data.index(b"26:")] ^= 4
        parts.log_files()[3].write_bytes(data)
        reader = await parts.storage.create_reader(StartPosition.offset(24))
        with pytest.raises(CorruptLogError):
            await read_on(reader)
        await reader.close()
        await parts.close()

    run(story())


def test_a_reader_that_was_told_of_a_table_that_is_down_goes_on_when_it_is_back(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await object_retention(parts).tick()
        reader = await parts.storage.create_reader(StartPosition.offset(2))
        found = [await anext(reader)]
        parts.table.down = True
        with pytest.raises(LakeUnavailableError):
            await read_on(reader, found)
        for _ in range(2):
            with pytest.raises(LakeUnavailableError):
                await reader.read()
        await tasks_end()
        parts.table.down = False
        found += await take(reader, 23 - len(found))
        check(found, 2, 25, 50)
        parts.table.moved = True
        reader = await parts.storage.create_reader(StartPosition.offset(2))
        with pytest.raises(TableMovedError):
            await reader.read()
        await parts.close()

    run(story())


def test_i11_rows_that_a_table_lost_are_an_error_and_not_an_end(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await object_retention(parts).tick()
        parts.table.missing.add(7)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        found = []
        with pytest.raises(MissingRowsError):
            await read_on(reader, found)
        check(found, 0, len(found), 50)
        assert len(found) <= 7
        await parts.close()

    run(story())


def test_closing_ends_a_reader_that_is_in_the_table(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await object_retention(parts).tick()
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        await anext(reader)
        await parts.storage.close()
        with pytest.raises(LogClosedError):
            await read_on(reader)
        await reader.close()

    run(story())


def test_what_is_known_of_a_table_never_goes_back(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        parts.storage.table_reached(9)
        assert parts.storage.table.span == OffsetRange(0, 15)
        parts.storage.table_reached(18)
        assert parts.storage.table.span == OffsetRange(0, 18)
        await parts.close()
        alone = TableTier(SimTable())
        assert (alone.end, alone.span) == (NO_TABLE, OffsetRange(0, 0))
        alone.reached(TableEnd(4, 7, 9))
        assert alone.end == TableEnd(4, 7, 9)

    run(story())


def test_a_storage_without_a_table_is_told_for_nothing(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(3)
        parts.storage.table_reached(2)
        assert parts.storage.table is None
        await parts.wal.rotate()
        await parts.wal.prune(3)
        assert parts.storage.start_offset == 3
        await parts.close()

    run(story())


# --- pruning ----------------------------------------------------------------------------------------------------------


async def without_uploads(tmp_path):
    """The log has [0, 20) in files of 5, nothing is uploaded, the table has [0, 12)."""
    parts = await open_parts(tmp_path, cache_capacity=2)
    parts.table = SimTable()
    parts.storage.objects.uploader = None
    parts.storage = WalStorage.from_wal(parts.wal, parts.storage.objects, TableTier(parts.table))
    for _ in range(4):
        await parts.add_file(5, 50)
    await commit(parts.storage, parts.table, 12)
    return parts


def test_i5_without_uploads_the_log_is_pruned_behind_the_table_and_no_further(tmp_path):
    async def story():
        parts = await without_uploads(tmp_path)
        assert parts.storage.later_tier_offset == 12
        assert await parts.storage.prune(20) == 10
        assert parts.table.proved == [(0, 10)]
        assert parts.catalog.table_upto == 10
        await parts.read(0, 20, 50)
        await parts.close()

    run(story())


@pytest.mark.parametrize("trouble", ["down", "missing", "moved"])
def test_i5_nothing_is_pruned_that_the_table_does_not_prove(tmp_path, trouble):
    async def story():
        parts = await without_uploads(tmp_path)
        if trouble == "missing":
            parts.table.missing.add(7)
        else:
            setattr(parts.table, trouble, True)
        with pytest.raises((LakeUnavailableError, MissingRowsError, TableMovedError)):
            await parts.storage.prune(20)
        assert parts.storage.log_start == 0
        await parts.close()

    run(story())


def test_i5_objects_deleted_behind_the_table_do_not_keep_the_log_from_being_pruned(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await object_retention(parts).tick()
        assert await parts.storage.prune(20) == 20
        assert parts.table.proved[-1] == (10, 15), "what objects have is asked of them"
        await parts.read(0, 25, 50)
        await parts.close()

    run(story())


@pytest.mark.parametrize("upto", [15, 20])
def test_i5_behind_an_emptied_store_only_what_the_table_has_is_pruned(tmp_path, upto):
    async def story():
        parts = await tabled(tmp_path)
        await commit(parts.storage, parts.table, upto) if upto > 15 else None
        for path in parts.object_files():
            path.unlink()
        if upto == 20:
            assert await parts.storage.prune(20) == 20
        else:
            assert await parts.storage.prune(15) == 15
            with pytest.raises(MissingObjectError):
                await parts.storage.prune(20)
        await parts.read(0, 25, 50)
        await parts.close()

    run(story())


def test_uploads_come_first_where_they_are_on(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await parts.storage.seal(0)
        await commit(parts.storage, parts.table, 25)
        assert parts.storage.later_tier_offset == 20
        assert await parts.deleter(time_minutes=0, size_mb=0).tick() == 20
        await parts.close()

    run(story())


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["nothing", "objects", "objects and log"])
def test_the_offset_of_a_time_is_found_where_only_the_table_has_it(tmp_path, gone):
    async def story():
        parts = await tabled(tmp_path)
        await parts.storage.seal(0)
        await commit(parts.storage, parts.table, 25)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        times = [message.append_time_us for message in await take(reader, 25)]
        await reader.close()
        if gone != "nothing":
            await object_retention(parts).tick()
        if gone == "objects and log":
            parts.storage.objects.uploader = None
            parts.storage.objects.known = OffsetRange(20, 20)
            assert await parts.storage.prune(25) == 25
        for time in sorted({0, *times, *(time + 1 for time in times), *(time - 1 for time in times)}):
            assert await parts.storage.offset_at(time) == sum(1 for stored in times if stored < time), time
        await parts.close()

    run(story())


# --- random readers ---------------------------------------------------------------------------------------------------


def test_f24_readers_at_random_starts_while_everything_moves_on_a_real_disk(tmp_path, count, tell):
    async def story(seed):
        rng = random.Random(seed)
        parts = await open_parts(tmp_path / str(seed), cache_capacity=3, max_bytes=4096)
        parts.table = SimTable()
        parts.storage = WalStorage.from_wal(parts.wal, parts.storage.objects, TableTier(parts.table))
        deleter, keeper = parts.deleter(time_minutes=0, size_mb=0), object_retention(parts)
        await parts.add(5, 60)

        async def read():
            at = rng.choice((0, rng.randint(0, parts.wal.next_offset)))
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

        readers = [asyncio.create_task(read()) for _ in range(3)]
        while parts.wal.next_offset < 240:
            await parts.add(rng.randint(1, 8), 60)
            for act in (parts.uploader.drain, deleter.tick, keeper.tick):
                if rng.random() < 0.3:
                    await act()
            if rng.random() < 0.3 and len(parts.table.rows) < (synced := await parts.wal.sync()):
                await commit(parts.storage, parts.table, rng.randint(len(parts.table.rows) + 1, synced))
            assert parts.storage.log_start <= parts.storage.objects.span.stop, "I5"
            assert parts.storage.objects.span.start <= len(parts.table.rows), "objects go behind the table only"
            if rng.random() < 0.15:
                readers.append(asyncio.create_task(read()))
        await asyncio.gather(*readers)
        assert parts.table.reads > 0
        await parts.close()
        return len(readers), keeper.objects_deleted

    seeds = count(5, 200)
    lives = [run(story(seed)) for seed in range(seeds)]
    readers, deleted = sum(life[0] for life in lives), sum(life[1] for life in lives)
    assert deleted > seeds
    tell("F24", f"{readers} readers in {seeds} lives saw each offset once; {deleted} objects went behind the table")


def test_a_hole_between_table_and_objects_is_an_error_that_names_it(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await parts.wal.prune(20)
        parts.storage.objects.forget_below(18)
        reader = await parts.storage.create_reader(StartPosition.offset(11))
        found = []
        with pytest.raises(MissingOffsetsError) as error:
            await read_on(reader, found)
        check(found, 11, 15, 50)
        assert (error.value.start, error.value.stop) == (15, 18)
        with pytest.raises(OffsetOutOfRangeError):
            await parts.storage.create_reader(StartPosition.offset(26))
        await reader.close()
        await parts.close()

    run(story())


def test_j3_a_reader_that_skips_missing_rows_says_which(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        await object_retention(parts).tick()
        parts.table.missing, parts.table.skips_missing = {0, 5, 8, 9}, True
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        assert reader.skipped_upto == 0
        found, gaps, expected = [], [], 0
        while len(found) < 21:
            batch = await reader.read()
            if batch[0].offset != expected:
                assert reader.skipped_upto == batch[0].offset
                gaps.append((expected, batch[0].offset))
            found += [message.offset for message in batch]
            expected = batch[-1].offset + 1
        assert (found, gaps) == ([n for n in range(25) if n not in parts.table.missing], [(0, 1), (5, 6), (8, 10)])
        await reader.close()
        await parts.close()

    run(story())
