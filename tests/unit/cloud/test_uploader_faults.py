"""The uploader when things go wrong: lost answers, crashes, foreign objects, damage, a store that is down or hangs."""

import asyncio
import errno
import random
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest

from ister.cloud import uploader
from ister.core.errors import (
    CorruptMetadataError,
    ForeignObjectError,
    MetadataUnavailableError,
    MetadataUnknownError,
    MissingOffsetsError,
    NotYetInTierError,
    OtherOwnerError,
    PutUnknownError,
    StoreUnavailableError,
)
from ister.core.frames.columns import strip_markers
from ister.core.frames.frame import Marker, encode_marker
from ister.core.frames.segment import object_key
from ister.core.offsets import StartPosition
from ister.ports.files.files import OsFiles
from ister.wal import AckLevel
from parts.cloud import StepClock, TroubledStore, again, messages, named, open_parts, run, told, until
from parts.uploads import check_objects
from sim.cloud_machine import SimStore
from sim.machine import SimFiles
from sim.machine import run as run_in_virtual_time

DOWN = StoreUnavailableError("fs", "put", "no route")


@pytest.fixture
def soon(monkeypatch):
    """Try again at once, so that a test need not wait."""
    monkeypatch.setattr(uploader, "RETRY_S", 0.02)


# --- crashes and lost answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "op", "kind"),
    [("store", "put", "fail"), ("store", "put", "lose"), ("metadata", "cas", "fail"), ("metadata", "cas", "lose")],
)
def test_f19_a_crash_at_any_step_leads_to_the_same_objects(tmp_path, where, op, kind):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(5)
        await parts.uploader.drain()
        await parts.add(4)
        getattr(getattr(parts, where), kind)[op] = [MetadataUnavailableError("m", op, "killed")]
        with pytest.raises(MetadataUnavailableError):
            await parts.uploader.drain()
        await parts.crash()
        parts = await again(parts)
        await parts.uploader.recover(log_is_open=False)
        await parts.uploader.drain()
        assert await parts.spans() == [(0, 5), (5, 9)]
        assert len(parts.object_files()) == 2
        await check_objects(parts, 9)
        await parts.close()

    run(story())


@pytest.mark.parametrize(
    ("where", "op", "kind", "error"),
    [
        ("store", "put", "lose", PutUnknownError("fs", "k", "no answer")),
        ("store", "put", "fail", PutUnknownError("fs", "k", "no answer")),
        ("metadata", "cas", "lose", MetadataUnknownError("m", "cas", "no answer")),
        ("metadata", "cas", "fail", MetadataUnknownError("m", "cas", "no answer")),
    ],
)
def test_i12_f20_after_a_lost_answer_it_looks_before_it_goes_on_with_more(tmp_path, soon, where, op, kind, error):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(5)
        getattr(getattr(parts, where), kind)[op] = [error]
        with pytest.raises(type(error)):
            await parts.uploader.drain()
        await parts.add(3)
        parts.run_uploader()
        await until(lambda: parts.uploader.uploaded.value == 8 or parts.uploader.stopped)
        assert (parts.uploader.stopped, parts.uploader.problem) == (False, None)
        assert len(parts.object_files()) == len(await parts.spans()), "one object, one description"
        await check_objects(parts, 8)
        await parts.close()

    run(story())


def test_f37_a_cycle_cancelled_anywhere_is_taken_up_by_the_next(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, max_bytes=4096)
        finished = steps = 0
        while finished < 3:
            await parts.add(12, 150)
            cycle = asyncio.create_task(parts.uploader.drain())
            for _ in range(steps):
                await asyncio.sleep(0)
                if cycle.done():
                    break
            else:
                # A thread's answer takes more than a turn of the loop.
                if steps % 2:
                    await asyncio.wait({cycle}, timeout=0.0005 * steps)
            finished += cycle.done()
            cycle.cancel()
            await asyncio.wait({cycle})
            steps += 1
        await parts.add(1, 150)
        await parts.uploader.drain()
        await check_objects(parts, parts.wal.next_offset, 150)
        twice = len(parts.object_files()) - len(await parts.spans())
        assert await parts.deleter().sweep() == twice, "what landed and was not described is swept"
        assert len(parts.object_files()) == len(await parts.spans())
        await parts.close()

    run(story())


def test_superseded_bytes_behind_a_rescued_tail_are_not_carried(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, sync_mode="none")
        await parts.add(4)
        await parts.wal.sync()
        parts.wal._mark()
        await parts.add(3)
        await parts.crash()
        with parts.log_files()[0].open("ab") as torn:
            torn.write(b"\xaa" * 37)
        parts = await again(parts)
        assert [segment.first for segment in parts.wal.segments()] == [0, 4]
        await parts.add(2)
        await parts.uploader.drain()
        assert await parts.spans() == [(0, 4), (4, 9)]
        await check_objects(parts, 9)
        await parts.close()

    run(story())


def test_d6_an_object_with_the_same_messages_behind_other_markers_is_adopted_and_described_by_its_own_bytes(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(4)
        await parts.uploader.drain()
        for _ in range(3):
            await parts.add(1)
            await parts.wal.sync()
        (segment,) = parts.wal.segments()
        tail = segment.path.read_bytes()[parts.uploader._place.byte :]
        other = encode_marker(Marker(99, 0, 4, 0), 4) + strip_markers(tail)
        key = object_key(parts.catalog.topic, 1, 4, 7)
        await parts.store.put_if_absent(key, other)
        await parts.uploader.drain()
        last = await parts.catalog.last()
        assert (last.size, last.checksum) == (len(other), crc32(other))
        assert other != tail
        assert await parts.spans() == [(0, 4), (4, 7)]
        await check_objects(parts, 7)
        await parts.add(1)
        await parts.uploader.drain()
        await check_objects(parts, 8)
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["other messages", "other offsets", "cut", "damaged", "empty"])
def test_a_foreign_object_under_our_key_stops_the_upload_with_an_alarm_and_appends_go_on(tmp_path, how, soon):
    async def story():
        elsewhere = await open_parts(tmp_path / "elsewhere")
        await elsewhere.storage.append_messages(messages(5 if how == "other messages" else 0, 10)[:5])
        await elsewhere.uploader.drain()
        data = bytearray(elsewhere.object_files()[0].read_bytes())
        await elsewhere.close()
        if how == "other offsets":
            data = data[200:]
        elif how == "cut":
            del data[-1:]
        elif how == "damaged":
            data[-1] ^= 1
        elif how == "empty":
            data.clear()
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        key = object_key(parts.catalog.topic, 1, 0, 5)
        await parts.store.put_if_absent(key, bytes(data))
        with told() as events:
            append = asyncio.create_task(parts.storage.append_messages(messages(0, 5)))
            await until(lambda: parts.wal.synced_offset == 5)
            parts.run_uploader()
            with pytest.raises(NotYetInTierError, match="is not a copy of this log"):
                await append
        assert parts.uploader.stopped
        assert isinstance(parts.uploader.problem, ForeignObjectError)
        assert parts.uploader.problem.key == key
        (alarm,) = named(events, "upload_stopped")
        assert (alarm["log_level"], alarm["offset"]) == ("error", 0)
        with pytest.raises(NotYetInTierError):
            await parts.storage.append_messages(messages(5, 6))
        assert parts.wal.synced_offset == 6
        await parts.read(0, 6)
        assert (tmp_path / "objects" / key).read_bytes() == bytes(data), "nothing was changed"
        assert await parts.descriptors() == []
        await parts.close()

    run(story())


def test_i7_a_description_that_someone_else_wrote_stops_the_upload(tmp_path, soon):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.uploader.drain()
        other = await open_parts(tmp_path / "other", metadata=parts.metadata)
        await other.add(3)
        await other.uploader.drain()
        await parts.add(5)
        parts.run_uploader()
        await until(lambda: parts.uploader.stopped)
        assert isinstance(parts.uploader.problem, OtherOwnerError | MissingOffsetsError | ForeignObjectError)
        assert await parts.spans() == [(0, 3)]
        await other.close()
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["the sync of its name failed", "killed before the sync", "put by an earlier attempt"])
def test_an_object_is_made_durable_before_it_is_described(tmp_path, soon, monkeypatch, how):
    """I4."""

    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(3)
        await parts.uploader.drain()
        await parts.add(5)
        if how == "the sync of its name failed":
            with monkeypatch.context() as patch:
                patch.setattr(OsFiles, "sync_directory", _failing_sync)
                with pytest.raises(PutUnknownError):
                    await parts.uploader.drain()
        else:
            parts.store.lose["put"] = [MetadataUnavailableError("m", "put", "killed")]
            with pytest.raises(MetadataUnavailableError):
                await parts.uploader.drain()
        if how == "put by an earlier attempt":
            parts.uploader._recovered = True
        steps = []
        parts.store.before = _noting(parts.store.before, steps.append)
        parts.metadata.before = _noting(parts.metadata.before, steps.append)
        before = parts.object_files()[-1].stat().st_ino
        await parts.uploader.drain()
        assert steps.index("make_durable") < steps.index("cas")
        assert parts.object_files()[-1].stat().st_ino != before, "written anew: a second sync would prove nothing"
        await check_objects(parts, 8)
        await parts.close()

    run(story())


def test_an_object_that_cannot_be_made_durable_is_not_described_and_tried_again(tmp_path, soon):
    """I4."""

    async def story():
        parts = await open_parts(tmp_path, level=AckLevel.CLOUD)
        parts.store.lose["put"] = [PutUnknownError("fs", "k", "EIO")]
        parts.store.fail["make_durable"] = [DOWN] * 3
        append = asyncio.create_task(parts.storage.append_messages(messages(0, 5)))
        parts.run_uploader()
        await until(lambda: parts.store.count("make_durable") >= 3)
        assert not append.done()
        assert await parts.spans() == []
        assert await append == range(5)
        await check_objects(parts, 5)
        await parts.close()

    run(story())


def _failing_sync(_files, _directory):
    raise OSError(errno.EIO, "Input/output error")


# --- the store --------------------------------------------------------------------------------------------------------


def test_f21_a_store_that_is_down_is_tried_again_later_and_later_and_then_everything_is_carried():
    async def story():
        loop = asyncio.get_running_loop()
        store = TroubledStore(SimStore())
        parts = await open_parts(
            Path("/sim"),
            store=store,
            files=SimFiles(),
            level=AckLevel.FSYNC,
            max_bytes=4096,
            upload={"interval_s": 3600},
        )
        tries = []
        store.before = _noting(store.before, lambda op: tries.append(loop.time()) if op == "put" else None)
        store.fail["put"] = DOWN
        for _ in range(40):
            await parts.add(2, 150)
        parts.run_uploader()
        await until(lambda: len(tries) >= 10, 1000)
        assert parts.uploader.problem is DOWN
        waits = [after - before for before, after in pairwise(tries)]
        for wait, due in zip(waits, (0.5, 1, 2, 4, 8, 16, 30, 30, 30), strict=False):
            assert due <= wait < due + 0.5, "half of 1, 2, 4, … 60 s: the jitter of this test is 0"
        store.fail.clear()
        await until(lambda: parts.uploader.uploaded.value == 80, 1000)
        await until(lambda: parts.uploader.problem is None, 1000)
        await parts.read_objects(0, 80, 150)
        await parts.close()

    run_in_virtual_time(story())


def _noting(act, note):
    async def noted(op, key):
        note(op)
        await act(op, key)

    return noted


def test_a_put_that_hangs_holds_up_neither_appends_nor_readers(tmp_path):
    async def story():
        parts = await open_parts(tmp_path, timeout_s=0.05)
        parts.store.hold["put"] = asyncio.Event()
        await parts.add(3)
        parts.run_uploader()
        await until(lambda: parts.store.count("put") == 1)
        await parts.add(50, 10)
        reader = await parts.storage.create_reader(StartPosition.offset(0))
        assert len(await reader.read()) == 53
        with pytest.raises(NotYetInTierError, match="took longer than"):
            await parts.uploader.wait_uploaded(3, 0.05)
        await parts.end_tasks()
        parts.store.hold.pop("put").set()
        await parts.uploader.drain()
        assert (await parts.catalog.last()).stop == 53
        await parts.close()

    run(story())


def test_damaged_metadata_is_named_by_its_key(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(3)
        await parts.uploader.drain()
        (entry,) = await parts.metadata.list("/danube-data/")
        await parts.metadata.put(entry.key, entry.value[:-2])
        await parts.crash()
        with pytest.raises(CorruptMetadataError) as refused:
            await again(parts)
        assert refused.value.key == entry.key

    run(story())


def test_f15_a_clock_that_steps_changes_no_key(tmp_path, count):
    async def story(seed):
        rng = random.Random(seed)
        clock = StepClock()
        parts = await open_parts(tmp_path / str(seed), clock=clock, max_bytes=4096)
        for _ in range(6):
            clock.now_us += rng.choice((-1, 1)) * 3_600_000_000
            await parts.add(rng.randint(1, 20), 100)
            if rng.random() < 0.5:
                await parts.uploader.drain()
        await parts.uploader.drain()
        await check_objects(parts, parts.wal.next_offset, 100)
        stream = parts.reader.open(0, parts.wal.next_offset)
        times = [message.append_time_us async for message in stream]
        assert times == sorted(times)
        await stream.close()
        await parts.close()

    for seed in range(count(8, 300)):
        run(story(seed))
