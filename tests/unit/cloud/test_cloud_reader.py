"""Reading from objects: exactly [start, stop), range by range, a little ahead, and nothing that was not put."""

import asyncio
import random
import tracemalloc

import pytest

from ister.cloud import ObjectCatalog
from ister.cloud import reader as cloud_reader
from ister.core.errors import CorruptObjectError, MissingObjectError, MissingOffsetsError, StoreUnavailableError
from ister.core.frames.segment import Descriptor
from ister.ports.metadata import MemoryMetadata
from parts.cloud import MIB, TOPIC, TroubledStore, check, open_parts, run, tasks_end, until
from sim.cloud_machine import SimStore


async def filled(tmp_path, counts, size=0, **settings):
    """Make objects of so many messages each."""
    parts = await open_parts(tmp_path, **settings)
    for count in counts:
        await parts.add(count, size)
        await parts.uploader.drain()
    parts.store.reads.clear()
    return parts


async def collect(stream, size=0):
    """Read until the end or an error; returns what came and the error."""
    found = []
    try:
        while messages := await stream.read():
            found += messages
    except (CorruptObjectError, MissingObjectError, MissingOffsetsError) as error:
        return found, error
    finally:
        await stream.close()
    return found, None


@pytest.mark.parametrize("small", [False, True])
def test_i6_every_range_of_offsets_is_served_exactly(tmp_path, small, monkeypatch):
    if small:
        monkeypatch.setattr(cloud_reader, "SEEK_BYTES", 150)
        monkeypatch.setattr(cloud_reader, "RANGE_BYTES", 333)

    async def story():
        parts = await filled(tmp_path, [1, 7, 3, 9], 40)
        for start in range(21):
            for stop in range(start, 21, 1 if start % 10 == 0 else 5):
                await parts.read_objects(start, stop, 40)
        await parts.close()

    run(story())


def test_an_empty_range_asks_nobody(tmp_path):
    async def story():
        parts = await filled(tmp_path, [5])
        for start, stop in ((0, 0), (3, 3), (5, 5), (9, 9), (4, 2)):
            stream = parts.reader.open(start, stop)
            assert [m async for m in stream] == []
            assert await stream.read_frames() is None
            await stream.close()
        assert parts.store.reads == []
        await parts.close()

    run(story())


def test_a_range_that_begins_or_ends_where_nothing_is_described_is_missing(tmp_path):
    async def story():
        parts = await filled(tmp_path, [5, 5])
        for start, stop, missing in ((0, 12, (10, 12)), (10, 12, (10, 12)), (7, 11, (10, 11))):
            found, error = await collect(parts.reader.open(start, stop))
            assert isinstance(error, MissingOffsetsError)
            assert (error.start, error.stop) == missing
            check(found, start, max(start, 10))
        await parts.close()

    run(story())


def test_a_hole_between_descriptions_is_named_and_never_passed(tmp_path):
    async def story():
        parts = await filled(tmp_path, [4] * 80)
        descriptors = await parts.descriptors()
        for gone in (1, 40, 79):
            await parts.catalog.remove(descriptors[gone])
            hole = (4 * gone, 4 * gone + 4)
            found, error = await collect(parts.reader.open(2, 320))
            assert isinstance(error, MissingOffsetsError), gone
            assert (error.start, error.stop) == hole
            assert f"[{hole[0]}, {hole[1]})" in str(error)
            check(found, 2, hole[0])
            found, error = await collect(parts.reader.open(hole[0] + 1, 320))
            assert (found, error.start, error.stop) == ([], hole[0] + 1, hole[1])
            await parts.read_objects(0, hole[0])
            await parts.catalog.add(descriptors[gone])
        await parts.read_objects(0, 320)
        await parts.close()

    run(story())


# --- damage -----------------------------------------------------------------------------------------------------------


def test_f22_no_flipped_byte_of_an_object_reaches_a_reader(tmp_path, count, tell):
    async def story():
        parts = await filled(tmp_path, [40, 60], 90)
        tried = 0
        for path, span in zip(parts.object_files(), await parts.spans(), strict=True):
            good = path.read_bytes()
            for at in range(0, len(good), count(64, 1)):
                harmed = bytearray(good)
                harmed[at] ^= 1 << (at // 64 % 8)
                path.write_bytes(harmed)
                found, error = await collect(parts.reader.open(0, 100))
                assert isinstance(error, CorruptObjectError), f"byte {at} of {path.name}"
                assert path.name in error.key
                check(found, 0, len(found), 90)
                assert len(found) < span[1]
                tried += 1
            path.write_bytes(good)
        await parts.read_objects(0, 100, 90)
        await parts.close()
        tell("F22", f"{tried} flipped bytes of objects: 0 delivered, each told by key, byte and offset")

    run(story(), 600)


def test_f22_an_object_that_is_gone_cut_or_longer_is_told(tmp_path):
    async def story():
        parts = await filled(tmp_path, [10, 10, 10], 50)
        path = parts.object_files()[1]
        good = path.read_bytes()
        path.unlink()
        found, error = await collect(parts.reader.open(5, 30))
        assert isinstance(error, MissingObjectError)
        check(found, 5, 10, 50)
        for cut in (0, 1, 15, 16, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:cut])
            found, error = await collect(parts.reader.open(5, 30))
            assert isinstance(error, CorruptObjectError), cut
            check(found, 5, 5 + len(found), 50)
        path.write_bytes(good + b"more")
        await parts.read_objects(0, 30, 50)
        await parts.close()

    run(story())


def test_f22_an_object_that_another_took_the_place_of_is_told_by_its_etag(tmp_path):
    async def story():
        store = TroubledStore(SimStore())
        parts = await filled(tmp_path, [10], 50, store=store)
        ((key, good),) = store.store.objects.items()
        await parts.read_objects(0, 10, 50)
        other = await filled(tmp_path / "other", [10], 51, store=TroubledStore(SimStore()))
        (replaced,) = other.store.store.objects.values()
        store.store.objects[key] = replaced[: len(good)].ljust(len(good), b"\0")
        found, error = await collect(parts.reader.open(0, 10))
        assert (found, error.key) == ([], key)
        assert "etag" in str(error)
        await other.close()
        await parts.close()

    run(story())


def test_whoever_asks_again_after_an_error_is_told_again(tmp_path):
    async def story():
        parts = await filled(tmp_path, [10, 10])
        parts.object_files()[1].unlink()
        stream = parts.reader.open(0, 20)
        check(await stream.read(), 0, 10)
        for _ in range(3):
            with pytest.raises(MissingObjectError):
                await stream.read()
        await stream.close()
        await parts.close()

    run(story())


def test_a_store_that_is_down_is_told_and_a_new_stream_goes_on(tmp_path):
    async def story():
        parts = await filled(tmp_path, [10, 10])
        parts.store.fail["read"] = StoreUnavailableError("fs", "read", "no route")
        stream = parts.reader.open(0, 20)
        with pytest.raises(StoreUnavailableError):
            await stream.read()
        await stream.close()
        parts.store.fail.clear()
        await parts.read_objects(stream.next_offset, 20)
        await parts.close()

    run(story())


# --- how much is read, and held ---------------------------------------------------------------------------------------


def test_the_first_message_at_a_random_offset_takes_less_than_a_mib_of_a_large_object(tmp_path, tell):
    async def story():
        parts = await filled(tmp_path, [12_000] * 2, 1000, max_bytes=1 << 30)
        biggest = max(path.stat().st_size for path in parts.object_files())
        rng = random.Random(7)
        most = 0
        for _ in range(30):
            at = rng.randrange(24_000)
            parts.store.reads.clear()
            stream = parts.reader.open(at, 24_000)
            assert (await anext(stream)).offset == at
            most = max(most, parts.store.bytes_read)
            await stream.close()
        assert biggest > 10 * MIB
        assert most < MIB
        tell("CloudReader", f"the first message at a random offset takes {most} bytes at most, of {biggest} an object")
        await parts.close()

    run(story(), 60)


def test_i10_a_reader_that_stalls_holds_a_few_ranges_however_much_there_is(tmp_path, tell):
    async def story():
        parts = await filled(tmp_path, [12_000] * 2, 1000, max_bytes=1 << 30)
        stream = parts.reader.open(0, 24_000)
        taken = 0
        most = 0
        while run_of := await stream.read_frames():
            taken += run_of[1].end
            before = -1
            while before != parts.store.bytes_read:  # let it read ahead as far as it will
                before = parts.store.bytes_read
                await asyncio.sleep(0.02)
            most = max(most, before - taken)
        assert most <= (cloud_reader.PREFETCH + 3) * cloud_reader.RANGE_BYTES
        await stream.close()
        tell("I10", f"a stalled reader of objects holds {most} bytes at most")
        await parts.close()

    run(story(), 60)


def test_i10_reading_much_takes_little_memory(tmp_path):
    async def story():
        parts = await filled(tmp_path, [12_000] * 2, 1000, max_bytes=1 << 30)
        tracemalloc.start()
        try:
            stream = parts.reader.open(0, 24_000)
            seen = 0
            while found := await stream.read():
                seen += len(found)
            await stream.close()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (seen, peak < 16 * MIB) == (24_000, True), peak
        await parts.close()

    run(story(), 60)


# --- ending -----------------------------------------------------------------------------------------------------------


def test_closing_early_leaves_no_task_wherever_the_reader_is(tmp_path):
    async def story():
        parts = await filled(tmp_path, [2000] * 4, 1000)
        for taken in (0, 1, 2000, 4001, 8000):
            stream = parts.reader.open(0, 8000)
            for _ in range(taken):
                await anext(stream)
            await stream.close()
            await stream.close()
            await tasks_end()
        await parts.close()

    run(story())


def test_closing_while_the_store_hangs_leaves_no_task(tmp_path):
    async def story():
        parts = await filled(tmp_path, [100])
        parts.store.hold["read"] = asyncio.Event()
        stream = parts.reader.open(0, 100)
        waiting = asyncio.create_task(stream.read())
        await until(lambda: parts.store.count("read") == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        await stream.close()
        await tasks_end()
        await parts.close()

    run(story())


def test_f37_a_read_that_is_cancelled_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cloud_reader, "RANGE_BYTES", 2000)

    async def story():
        parts = await filled(tmp_path, [50, 50], 100)
        stream = parts.reader.open(0, 100)
        found = []
        turns = 0
        while len(found) < 100:
            reading = asyncio.create_task(stream.read())
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            turns += 1
            if turns % 3 == 0:
                await asyncio.wait({reading})
            if reading.done():
                found += reading.result()
            else:
                reading.cancel()
                await asyncio.wait({reading})
                if not reading.cancelled():
                    found += reading.result()
        check(found, 0, 100, 100)
        await stream.close()
        await parts.close()

    run(story())


def test_the_object_of_an_offset_is_found_wherever_the_digits_turn(count):
    async def story(seed):
        rng = random.Random(seed)
        catalog = ObjectCatalog(MemoryMetadata(), "/p", TOPIC, 1)
        spans = []
        at = rng.choice((0, 9_990, 999_000, 10**8 - 50, 10**12))
        for _ in range(30):
            at += rng.choice((0, 0, 0, 1, 5000))
            stop = at + rng.choice((1, 7, 3000, 10**5, 10**8, 10**9))
            spans.append((at, stop))
            at = stop
        for start, stop in spans:
            await catalog.add(
                Descriptor(generation=1, epoch=1, start=start, stop=stop, size=9, checksum=0, etag="",
                           append_time_us=0, index=((start, 0),))
            )  # fmt: skip
        asked = [edge + step for span in spans for edge in span for step in (-1, 0, 1)]
        for offset in [*asked, *(rng.randrange(at + 10) for _ in range(50))]:
            found = await catalog.find(max(0, offset))
            expected = [span for span in spans if span[0] <= max(0, offset) < span[1]]
            assert ([(found.start, found.stop)] if found else []) == expected, offset
        assert ((await catalog.first()).start, (await catalog.last()).stop) == (spans[0][0], at)

    for seed in range(count(20, 500)):
        asyncio.run(story(seed))
