"""What the deleter takes from a log: only sealed files, old or too much, whose every offset is proven in objects."""

import asyncio
import random

import pytest

from ister.cloud import Retention
from ister.cloud.deleter import GrowthWatch
from ister.cloud.proof import prove
from ister.core.errors import (
    CorruptObjectError,
    InvalidConfigError,
    MissingObjectError,
    MissingOffsetsError,
    StoreUnavailableError,
)
from ister.core.frames.segment import object_key
from ister.core.offsets import StartPosition
from ister.core.tiers.retention import SealedSegment, overdue_below, proven_below
from parts.cloud import MIB, TOPIC, named, open_parts, run, told, until

ALL = {"time_minutes": 0, "size_mb": 0}
NONE = {"time_minutes": None, "size_mb": None}


# --- what may go, decided without I/O ---------------------------------------------------------------------------------


def segments(rng):
    """Make the sealed files of a log, some of them superseded and empty, some of unknown age."""
    at = rng.randint(0, 5)
    found = []
    for _ in range(rng.randint(0, 6)):
        count = rng.choice((0, 1, 2, 3))
        time = 0 if rng.random() < 0.1 else rng.randint(1, 100) * 1_000_000
        found.append(SealedSegment(at, at + count, time, rng.randint(0, 50)))
        at += count
    return found


def overdue(files, index, active, time_s, size_bytes, now_us):
    """Tell of one file alone whether it is too old, or too much with everything behind it."""
    file = files[index]
    size = active + sum(other.size for other in files[index:])
    old = time_s is not None and (
        file.first == file.stop or (file.append_time_us > 0 and now_us - file.append_time_us > time_s * 1_000_000)
    )
    return old or (size_bytes is not None and size > size_bytes)


def test_i5_what_is_overdue_and_proven_is_as_a_model_says_that_looks_at_each_file_by_itself(count, tell):
    rng = random.Random(4)
    trials = count(40_000, 500_000)
    for _ in range(trials):
        files = segments(rng)
        active, now_us = rng.randint(0, 50), rng.randint(0, 150) * 1_000_000
        time_s, size_bytes = rng.choice((None, 0, 20, 60)), rng.choice((None, 0, 30, 100))
        wanted = overdue_below(files, active_bytes=active, time_s=time_s, size_bytes=size_bytes, now_us=now_us)
        expected = files[0].first if files else 0
        for index, file in enumerate(files):
            if not overdue(files, index, active, time_s, size_bytes, now_us):
                break
            expected = file.stop
        assert wanted == expected
        uploaded = rng.randint(0, 20)
        below = proven_below(files, wanted=wanted, uploaded=uploaded)
        ends = [file.stop for file in files]
        assert below in [*ends, files[0].first if files else 0]
        gone = [file for file in files if file.stop <= below]
        assert all(file.stop <= uploaded or file.first == file.stop for file in gone if file.stop > files[0].first)
        assert all(file.stop <= wanted for file in gone)
        assert not [file for file in files if below < file.stop <= min(wanted, uploaded)], "nothing more could go"
    tell("I5", f"{trials} logs: overdue and proven as the model says")


def test_an_earlier_clock_never_deletes_more(count):
    rng = random.Random(5)
    for _ in range(count(5000, 50_000)):
        files = segments(rng)
        early, late = sorted(rng.randint(0, 10**9) for _ in range(2))
        found = [overdue_below(files, active_bytes=0, time_s=30, size_bytes=None, now_us=now) for now in (early, late)]
        assert found[0] <= found[1]


@pytest.mark.parametrize("setting", [{"time_minutes": -1}, {"size_mb": -1}, {"check_interval_minutes": 0}])
def test_a_setting_out_of_bounds_is_refused(setting):
    with pytest.raises(InvalidConfigError) as refused:
        Retention(**setting)
    assert refused.value.setting in setting


def test_the_defaults_are_the_specified_ones():
    assert (Retention().time_minutes, Retention().size_mb, Retention().check_interval_minutes) == (2880, 20480, 5)


# --- with a real log and real objects ---------------------------------------------------------------------------------


async def four_files(tmp_path, **settings):
    """A log of files [0, 5), [5, 10), [10, 15) and the active one, [15, 20)."""
    parts = await open_parts(tmp_path, cache_capacity=2, **settings)
    for _ in range(3):
        await parts.add_file(5, 50)
    await parts.add(5, 50)
    return parts


def test_i5_only_what_is_uploaded_goes_and_never_the_active_file(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        deleter = parts.deleter(**ALL)
        parts.clock.now_us += 10**9
        assert await deleter.tick() == 0, "nothing is uploaded"
        parts.store.fail["put"] = [None, None, StoreUnavailableError("fs", "put", "down")]
        with pytest.raises(StoreUnavailableError):
            await parts.uploader.drain()
        assert await parts.spans() == [(0, 5), (5, 10)]
        assert await deleter.tick() == 10
        assert [path.name[-24:-4] for path in parts.log_files()] == [f"{10:020}", f"{15:020}"]
        await parts.uploader.drain()
        assert await deleter.tick() == 15
        assert await deleter.tick() == 15
        assert len(parts.log_files()) == 1
        await parts.read(0, 20, 50)
        await parts.close()

    run(story())


def test_a_file_whose_last_message_is_not_uploaded_stays_whole(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(4)
        await parts.uploader.drain()
        await parts.add_file(1)
        await parts.add(1)
        parts.clock.now_us += 10**9
        assert await parts.deleter(**ALL).tick() == 0
        await parts.uploader.drain()
        assert await parts.deleter(**ALL).tick() == 5
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["object cut", "object longer", "description gone"])
def test_an_object_that_changed_behind_our_back_keeps_the_log_whole_and_is_told(tmp_path, how):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        path = parts.object_files()[1]
        if how == "object cut":
            path.write_bytes(path.read_bytes()[:-1])
        elif how == "object longer":
            path.write_bytes(path.read_bytes() + b"x")
        else:
            await parts.catalog.remove((await parts.descriptors())[1])
        parts.clock.now_us += 10**9
        deleter = parts.deleter(**ALL, check_interval_minutes=0.0001)
        with pytest.raises((MissingObjectError, CorruptObjectError, MissingOffsetsError)):
            await deleter.tick()
        assert parts.storage.log_start == 0
        assert len(parts.log_files()) == 4
        with told() as events:
            parts.tasks.append(asyncio.create_task(deleter.run(0.006)))
            await until(lambda: deleter.problem is not None)
        assert named(events, "prune_failed")
        await parts.read(0, 20, 50)
        await parts.close()

    run(story())


def test_files_go_by_age(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(3):
            await parts.add_file(5)
            parts.clock.now_us += 10 * 60_000_000
        await parts.add(1)
        await parts.uploader.drain()
        assert await parts.deleter(time_minutes=40, size_mb=None).tick() == 0
        assert await parts.deleter(time_minutes=25, size_mb=None).tick() == 5
        assert await parts.deleter(**NONE).tick() == 5
        assert await parts.deleter(time_minutes=15, size_mb=None).tick() == 10
        parts.clock.now_us -= 3_600_000_000
        assert await parts.deleter(time_minutes=5, size_mb=None).tick() == 10, "a clock that steps back only delays"
        await parts.close()

    run(story())


def test_files_go_by_size_the_active_one_counted(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(3):
            await parts.add_file(1, MIB)
        await parts.add(1, MIB // 2)
        await parts.uploader.drain()
        assert await parts.deleter(time_minutes=None, size_mb=4).tick() == 0
        assert await parts.deleter(time_minutes=None, size_mb=3).tick() == 1
        assert await parts.deleter(time_minutes=None, size_mb=1).tick() == 3
        await parts.close()

    run(story())


def test_a_tick_never_disturbs_a_reader(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        reader = await parts.storage.create_reader(StartPosition.offset(1))
        found = [await anext(reader) for _ in range(2)]
        await parts.uploader.drain()
        parts.clock.now_us += 10**9
        assert await parts.deleter(**ALL).tick() == 15
        found += [await anext(reader) for _ in range(17)]
        assert [m.offset for m in found] == list(range(1, 20))
        await reader.close()
        await parts.close()

    run(story())


def test_a_store_that_is_down_prunes_nothing_and_the_next_tick_does(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        parts.clock.now_us += 10**9
        deleter = parts.deleter(**ALL, check_interval_minutes=0.0001)
        parts.store.fail["list"] = StoreUnavailableError("fs", "list", "no route")
        parts.tasks.append(asyncio.create_task(deleter.run(0.006)))
        await until(lambda: deleter.problem is not None)
        assert parts.storage.log_start == 0
        parts.store.fail.clear()
        await until(lambda: parts.storage.log_start == 15)
        await until(lambda: deleter.problem is None)
        await parts.close()

    run(story())


def test_prove_insists_on_every_object_of_a_span(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        for start in range(20):
            for stop in range(start, 21):
                await prove(parts.store, parts.catalog, start, stop)
        with pytest.raises(MissingOffsetsError):
            await prove(parts.store, parts.catalog, 3, 21)
        parts.object_files()[2].unlink()
        await prove(parts.store, parts.catalog, 0, 10)
        await prove(parts.store, parts.catalog, 15, 20)
        for start, stop in ((9, 11), (10, 15), (14, 15), (0, 20)):
            with pytest.raises(MissingObjectError):
                await prove(parts.store, parts.catalog, start, stop)
        await parts.close()

    run(story())


# --- orphans ----------------------------------------------------------------------------------------------------------


def test_f19_orphans_are_swept_and_nothing_else(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        orphan, partly, beyond = (object_key(TOPIC, 1, *span) for span in ((5, 8), (3, 12), (18, 25)))
        stranger = "default/t/1/notes.txt"
        other_generation, other_topic = object_key(TOPIC, 2, 5, 8), "default/t2/1/" + orphan.rsplit("/", 1)[1]
        for key in (orphan, partly, beyond, stranger, other_generation, other_topic):
            await parts.store.put_if_absent(key, b"left behind")
        deleter = parts.deleter(**NONE)
        assert await deleter.sweep() == 2
        left = {
            str(path.relative_to(tmp_path / "objects"))
            for path in (tmp_path / "objects").rglob("*.*")
            if path.is_file()
        }
        assert {orphan, partly} & left == set()
        assert {beyond, stranger, other_generation, other_topic} <= left
        assert await deleter.sweep() == 0
        await parts.read_objects(0, 20, 50)
        await parts.close()

    run(story())


def test_f19_an_orphan_that_may_be_all_that_is_left_is_kept(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        orphan = object_key(TOPIC, 1, 5, 8)
        await parts.store.put_if_absent(orphan, b"left behind")
        parts.object_files()[2].unlink()
        with told() as events:
            assert await parts.deleter(**NONE).sweep() == 0
        assert named(events, "orphan_kept")[0]["key"] == orphan
        await parts.close()

    run(story())


def test_f20_a_put_that_lands_late_is_swept_a_round_later(tmp_path):
    async def story():
        parts = await four_files(tmp_path)
        await parts.uploader.drain()
        deleter = parts.deleter(**NONE)
        assert await deleter.sweep() == 0
        late = object_key(TOPIC, 1, 15, 18)
        await parts.store.put_if_absent(late, b"late")
        assert await deleter.sweep() == 1
        await parts.close()

    run(story())


# --- uploads off ------------------------------------------------------------------------------------------------------


def test_with_uploads_off_the_growing_log_is_told_at_each_doubling():
    with told() as events:
        watch = GrowthWatch("/default/t", Retention(size_mb=10))
        for size_mb in (1, 9, 10, 11, 15, 22, 23, 40, 47):
            watch.check(size_mb * MIB, "enable it")
    grown = named(events, "log_grows")
    assert [event["bytes"] // MIB for event in grown] == [11, 23, 47]
    assert grown[0]["hint"] == "enable it"
