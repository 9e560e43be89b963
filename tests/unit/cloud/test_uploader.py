"""The uploader when all is well: what it cuts, what it describes, when it goes, and that it carries each byte once."""

import asyncio
import json
from pathlib import Path
from zlib import crc32

import pytest

from ister.cloud import UploadOptions
from ister.core.errors import InvalidConfigError, NotYetInTierError, UnknownOutcomeError
from ister.core.frames.checksummed_json import unseal
from ister.core.frames.columns import strip_markers
from ister.core.frames.segment import OBJECT_BYTES, ObjectName, describe, parse_key
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import AckLevel, WalConfig
from parts.cloud import MIB, TOPIC, again, messages, open_parts, run, until
from sim.cloud_machine import SimMetadata, SimStore
from sim.machine import SimClock, SimFiles
from sim.machine import run as run_in_virtual_time


def test_the_defaults_are_the_specified_ones():
    options = UploadOptions()
    assert (options.enabled, options.interval_s, options.object_bytes) == (True, 300, 16 * MIB)


@pytest.mark.parametrize(("cap", "size"), [(None, 16), (1, 1), (15, 15), (16, 16), (17, 16), (1024, 16)])
def test_the_largest_object_is_a_cap_that_only_makes_objects_smaller(cap, size):
    assert UploadOptions(max_object_mb=cap).object_bytes == size * MIB


@pytest.mark.parametrize("setting", [{"interval_s": 0}, {"interval_s": float("nan")}, {"max_object_mb": 0}])
def test_a_setting_out_of_bounds_is_refused(setting):
    with pytest.raises(InvalidConfigError):
        UploadOptions(**setting)


def test_d6_objects_are_byte_exact_copies_of_the_log_markers_included_and_never_cross_a_file(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.FSYNC)
        for count in (3, 1, 5):
            for _ in range(count):
                await parts.add(1, 100)
            await parts.storage.seal(0)
        await parts.add(2)
        await parts.uploader.drain()
        assert await parts.spans() == [(0, 3), (3, 4), (4, 9), (9, 11)]
        marked = 0
        for path, log_file in zip(parts.object_files(), parts.log_files(), strict=True):
            data = path.read_bytes()
            assert log_file.read_bytes().startswith(data)
            marked += len(data) - len(strip_markers(data))
        assert marked > 0
        await parts.read_objects(4, 9, 100)
        await parts.close()

    run(story())


def test_d6_a_description_has_everything_a_reader_needs(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(2000, 200)
        await parts.uploader.drain()
        (found,) = await parts.descriptors()
        (path,) = parts.object_files()
        data = path.read_bytes()
        assert path.name == "data-00000000000000000000-00000000000000002000.dnb"
        assert (found.start, found.stop, found.size, found.checksum) == (0, 2000, len(data), crc32(data))
        assert (found.generation, found.epoch, found.append_time_us) == (1, 1, parts.wal.append_time_us)
        assert len(found.index) > 5
        assert found == describe(data, "k", ObjectName(1, 0, 2000), epoch=1, etag=found.etag)
        (entry,) = await parts.metadata.list("/danube-data/storage/objects/")
        assert entry.key == "/danube-data/storage/objects/default/t/0000000001/00000000000000000000"
        assert json.loads(entry.value)["completed"] is True
        saved = unseal(parts.checkpoint_file.read_bytes())
        assert (saved["offset"], saved["file_seq"]) == (2000, 1)
        assert saved["byte_pos"] == len(data)
        await parts.close()

    run(story())


def test_d6_first_the_object_then_its_description_then_the_checkpoint(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(5)
        parts.metadata.hold["cas"] = asyncio.Event()
        drain = asyncio.create_task(parts.uploader.drain())
        await until(lambda: parts.metadata.count("cas") == 1)
        assert len(parts.object_files()) == 1
        assert (parts.uploader.uploaded.value, parts.checkpoint_file.exists()) == (0, False)
        parts.metadata.hold.pop("cas").set()
        await drain
        assert (parts.uploader.uploaded.value, parts.checkpoint_file.exists()) == (5, True)
        await parts.close()

    run(story())


def test_objects_are_cut_at_their_size_and_only_between_frames(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, upload={"max_object_mb": 1})
        for _ in range(8):
            await parts.add(5, 100_000)
        await parts.uploader.drain()
        sizes = [path.stat().st_size for path in parts.object_files()]
        assert len(sizes) == 4
        assert all(MIB - 101_000 < size <= MIB for size in sizes[:-1])
        await parts.read_objects(0, 40, 100_000)
        await parts.close()

    run(story())


def test_a_message_larger_than_an_object_gets_one_of_its_own(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(3)
        await parts.add(1, 20 * MIB)
        await parts.add(3)
        await parts.uploader.drain()
        assert await parts.spans() == [(0, 3), (3, 4), (4, 7)]
        assert max(path.stat().st_size for path in parts.object_files()) > 20 * MIB
        stream = parts.reader.open(2, 5)
        assert [(m.offset, len(m.payload)) async for m in stream] == [(2, 2), (3, 2 + 20 * MIB), (4, 2)]
        await stream.close()
        await parts.close()

    assert OBJECT_BYTES == 16 * MIB
    run(story())


def test_confirmed_bytes_are_never_uploaded_again(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, max_bytes=4096)
        for life in range(4):
            for _ in range(6):
                await parts.add(3, 150)
                await parts.uploader.drain()
            await parts.uploader.drain()
            if life % 2:
                await parts.close()
            else:
                await parts.crash()
            parts = await again(parts, max_bytes=4096)
        await parts.uploader.drain()
        keys = [key for op, key in parts.store.calls if op == "put"]
        assert len(keys) == len(set(keys)) == 24
        at = 0
        for key in keys:
            name = parse_key(key)
            assert name.start == at
            at = name.stop
        assert at == 72
        await parts.read_objects(0, 72, 150)
        await parts.close()

    run(story())


def test_a_cycle_requests_a_sync_and_takes_what_is_synced(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, sync_mode="none")
        await parts.add(7)
        assert parts.wal.synced_offset == 0
        await parts.uploader.drain()
        assert (parts.wal.synced_offset, await parts.spans()) == (7, [(0, 7)])
        await parts.close()

    run(story())


def test_nothing_new_means_no_call_to_the_store(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.uploader.drain()
        await parts.add(3)
        await parts.uploader.drain()
        calls = len(parts.store.calls) + len(parts.metadata.calls)
        for _ in range(5):
            await parts.uploader.drain()
        assert len(parts.store.calls) + len(parts.metadata.calls) == calls
        await parts.close()

    run(story())


# --- when a cycle begins ----------------------------------------------------------------------------------------------


def test_a_cycle_begins_at_its_interval(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, upload={"interval_s": 0.05})
        parts.run_uploader()
        for stop in (3, 6):
            await parts.add(3)
            await until(lambda stop=stop: parts.uploader.uploaded.value == stop)
        await parts.close()

    run(story())


def test_a_cycle_begins_at_once_when_an_objects_worth_of_synced_frames_waits(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, upload={"max_object_mb": 1}, level=AckLevel.FSYNC)
        parts.run_uploader()
        await parts.add(1)
        await until(lambda: parts.uploader.uploaded.value == 1 or parts.store.count("list") == 1)
        await parts.add(12, 100_000)
        await until(lambda: parts.uploader.uploaded.value >= 12)
        await parts.close()

    run(story())


def test_an_objects_worth_that_was_synced_during_a_cycle_does_not_wait_for_the_next_interval(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, upload={"max_object_mb": 1}, level=AckLevel.FSYNC)
        await parts.add(1)
        parts.store.hold["put"] = asyncio.Event()
        parts.run_uploader()
        await until(lambda: parts.store.count("put") == 1)
        await parts.add(20, 100_000)
        parts.store.hold.pop("put").set()
        await until(lambda: parts.uploader.uploaded.value >= 20)
        await parts.close()

    run(story())


def test_sealing_a_file_begins_a_cycle(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        parts.run_uploader()
        await parts.add(3)
        await parts.storage.seal(0)
        await until(lambda: parts.uploader.uploaded.value == 3)
        await parts.close()

    run(story())


# --- level cloud ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_d4_level_cloud_acknowledges_after_the_description_and_not_before(tmp_path, batch):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        parts.run_uploader()
        parts.metadata.hold["cas"] = asyncio.Event()
        if batch:
            append = asyncio.create_task(parts.storage.append_messages(messages(0, 5)))
        else:
            append = asyncio.create_task(parts.storage.append_message(messages(0, 1)[0]))
        await until(lambda: parts.metadata.count("cas") == 1)
        assert len(parts.object_files()) == 1
        assert not append.done()
        parts.metadata.hold.pop("cas").set()
        assert await append == (range(5) if batch else 0)
        assert (await parts.catalog.last()).stop == (5 if batch else 1)
        await parts.close()

    run(story())


def test_d4_appends_that_wait_together_share_objects(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        parts.run_uploader()
        appends = [parts.storage.append_message(message) for message in messages(0, 200)]
        assert sorted(await asyncio.gather(*appends)) == list(range(200))
        assert len(await parts.descriptors()) <= 4
        await parts.read_objects(0, 200)
        await parts.close()

    run(story())


def test_d4_on_timeout_the_outcome_is_unknown_and_the_message_is_in_the_log(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD, timeout_s=0.2)
        parts.run_uploader()
        parts.store.hold["put"] = asyncio.Event()
        with pytest.raises(NotYetInTierError, match=r"in the log and synced.*do not send them again") as told:
            await parts.storage.append_message(messages(0, 1)[0])
        assert isinstance(told.value, UnknownOutcomeError)
        assert (told.value.topic, told.value.offset) == (str(TOPIC), 1)
        assert parts.wal.synced_offset == 1
        await parts.read(0, 1)
        parts.store.hold.pop("put").set()
        await parts.uploader.wait_uploaded(1, 10)
        assert await parts.spans() == [(0, 1)]
        await parts.close()

    run(story())


def test_level_cloud_without_an_uploader_is_refused(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        parts.storage.objects.uploader = None
        with pytest.raises(InvalidConfigError, match="CLOUD needs the uploader"):
            type(parts.storage).from_wal(parts.wal, parts.storage.objects)
        with pytest.raises(InvalidConfigError, match="CLOUD needs the uploader"):
            type(parts.storage).from_wal(parts.wal)
        await parts.close()

    run(story())


def test_an_uploader_that_ends_tells_whoever_waits(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        append = asyncio.create_task(parts.storage.append_message(messages(0, 1)[0]))
        await until(lambda: parts.wal.synced_offset == 1)
        parts.uploader.end()
        with pytest.raises(NotYetInTierError, match="uploading has ended"):
            await append
        await parts.close()

    run(story())


def test_a_thousand_cancelled_waits_leave_nothing_behind(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        waits = [asyncio.create_task(parts.uploader.wait_uploaded(5, 60)) for _ in range(1000)]
        await asyncio.sleep(0)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        assert (parts.uploader._waiting, parts.uploader.uploaded._waiting) == (0, set())
        await parts.close()

    run(story())


def test_d4_a_waiting_producer_is_acknowledged_within_a_quarter_of_a_second_of_virtual_time():
    async def story():
        loop = asyncio.get_running_loop()
        config = TopicsConfig(wal=WalConfig(dir=Path("/sim"), level=AckLevel.CLOUD))
        factory = WalStorageFactory(
            config, store=SimStore(), metadata=SimMetadata(), files=SimFiles(), clock=SimClock()
        )
        storage = await factory.for_topic(TOPIC)
        took = []
        for n in range(50):
            await asyncio.sleep((n % 7) * 0.05)
            began = loop.time()
            assert await storage.append_message(messages(n, n + 1)[0]) == n
            took.append(loop.time() - began)
        await factory.shutdown()
        return max(took)

    assert run_in_virtual_time(story()) < 0.25
