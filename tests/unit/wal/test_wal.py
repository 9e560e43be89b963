import asyncio
import errno
import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from ister.cloud.uploader import UPLOAD_NAME
from ister.core.errors import (
    CorruptLogError,
    InvalidConfigError,
    InvalidMessageError,
    LockedError,
    LogClosedError,
    MissingFileError,
    OffsetOutOfRangeError,
)
from ister.core.frames.columns import decode_batch
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.ports.files.files import OsFiles
from ister.storage.cursors.saved import CURSORS_NAME
from ister.wal import AckLevel, SyncMode, Wal, WalConfig
from ister.wal.directory import CHECKPOINT_NAME, FileNames
from ister.wal.read_only import LogView

DEADLINE_S = 120


def run(main):
    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            return await main

    return asyncio.run(limited())


def message(n):
    return StreamMessage(b"payload %d" % n, MsgID(topic_name="/default/t"), request_id=n)


async def take(reader, count):
    return [await anext(reader) for _ in range(count)]


async def offsets_from(wal, start, count):
    return [m.offset for m in await take(wal.create_reader(StartPosition.offset(start)), count)]


def config(directory, **settings):
    return WalConfig(dir=directory, topic="/default/t", **settings)


def test_the_defaults_are_the_specified_ones():
    defaults = WalConfig()
    assert (defaults.file_name, defaults.cache_capacity, defaults.fsync_interval_ms) == ("wal.log", 1024, 5000)
    assert (defaults.max_batch_bytes, defaults.max_bytes, defaults.max_hours) == (10485760, 536870912, None)
    assert (defaults.sync_mode, defaults.ack_level) == (SyncMode.PERIODIC, AckLevel.WAL)


@pytest.mark.parametrize(
    ("mode", "level", "expected"),
    [
        ("always", None, AckLevel.FSYNC),
        ("always", AckLevel.WAL, AckLevel.FSYNC),
        ("periodic", None, AckLevel.WAL),
        ("periodic", AckLevel.FSYNC, AckLevel.FSYNC),
        ("none", None, AckLevel.WAL),
        ("none", AckLevel.FSYNC, AckLevel.FSYNC),
    ],
)
def test_the_higher_of_level_and_sync_mode_wins(mode, level, expected):
    assert WalConfig(dir="d", sync_mode=mode, level=level).ack_level is expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [("sync_mode", "sometimes"), ("file_name", "a/b.log"), ("file_name", "log"), ("file_name", ".log"), ("file_name", "wal.tmp"),
     ("file_name", "wal.aside"), ("file_name", "a\nb.log"), ("file_name", "a\0.log"), ("cache_capacity", 0),
     ("fsync_interval_ms", 0), ("max_batch_bytes", 1), ("max_bytes", 1.5), ("max_hours", 0), ("level", AckLevel.FSYNC)],
)  # fmt: skip
def test_a_setting_out_of_bounds_is_refused_by_name(setting, value):
    with pytest.raises(InvalidConfigError) as refused:
        WalConfig(**{setting: value})
    assert refused.value.setting == setting


@pytest.mark.parametrize("in_memory", [False, True])
def test_every_way_to_append_gives_dense_offsets_and_one_reader_sees_them_all(tmp_path, in_memory):
    async def main():
        wal = await Wal.with_config(config(None if in_memory else tmp_path))
        assert await wal.append(message(0)) == 0
        assert await wal.append_batch([message(1), message(2)]) == range(1, 3)
        assert await wal.append_batch([]) == range(3, 3)
        batch = pa.record_batch({"payload": [b"payload 3", b"payload 4"], "request_id": pa.array([3, 4], pa.uint64())})
        assert await wal.append_arrow(batch) == range(3, 5)
        assert await asyncio.gather(*(wal.append(message(n)) for n in range(5, 9))) == [5, 6, 7, 8]
        assert (wal.start_offset, wal.next_offset) == (0, 9)
        found = await take(wal.create_reader(StartPosition.offset(0)), 9)
        assert [m._replace(append_time_us=0, msg_id=m.msg_id._replace(topic_offset=0)) for m in found] == [
            message(n) for n in range(9)
        ]
        assert [m.offset for m in found] == list(range(9))
        await wal.close()

    run(main())


def test_a_null_routing_key_over_bytes_is_stored_as_none(tmp_path):
    """I2: bytes under a null are legal Arrow; they were counted, and not written."""

    async def main():
        starts, valid = np.array([0, 3, 6, 9], np.int32), bytes([0b101])
        keys = pa.StringArray.from_buffers(3, pa.py_buffer(starts), pa.py_buffer(b"aaabbbccc"), pa.py_buffer(valid))
        batch = pa.record_batch({"payload": [b"x", b"y", b"z"], "routing_key": keys})
        wal = await Wal.with_config(config(tmp_path))
        assert await wal.append_arrow(batch) == range(3)
        assert await wal.append(message(3)) == 3
        for _ in range(2):
            found = await take(wal.create_reader(StartPosition.offset(0)), 4)
            assert [m.payload for m in found] == [b"x", b"y", b"z", message(3).payload]
            assert [m.routing_key for m in found] == ["aaa", None, "ccc", None]
            await wal.close()
            wal = await Wal.with_config(config(tmp_path))
        await wal.close()

    run(main())


def test_a_reopened_log_goes_on_where_it_was(tmp_path):
    async def main():
        for life in range(4):
            wal = await Wal.with_config(config(tmp_path))
            assert (wal.next_offset, wal.synced_offset) == (life * 3, life * 3)
            await wal.append_batch([message(life * 3 + n) for n in range(3)])
            assert await offsets_from(wal, 0, (life + 1) * 3) == list(range((life + 1) * 3))
            await wal.close()
        assert len(list(tmp_path.glob("*.log"))) == 1

    run(main())


def test_a_log_left_without_closing_loses_nothing_and_starts_a_new_file(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, sync_mode="none"))
        await wal.append_batch([message(n) for n in range(5)])
        wal._disk._lock.release()
        again = await Wal.with_config(config(tmp_path))
        assert (again.next_offset, again.synced_offset, len(again.segments())) == (5, 5, 2)
        assert await offsets_from(again, 0, 5) == [0, 1, 2, 3, 4]
        await again.close()

    run(main())


def test_names_carry_sequence_and_first_offset(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        await wal.append_batch([message(n) for n in range(5)])
        await wal.rotate()
        await wal.rotate()
        await wal.append(message(5))
        assert [s.path.name for s in wal.segments()] == [
            "wal-0000000001-00000000000000000000.log",
            "wal-0000000002-00000000000000000005.log",
        ]
        assert await offsets_from(wal, 0, 6) == list(range(6))
        await wal.close()

    run(main())


def test_a_file_is_sealed_when_it_has_reached_its_size_and_when_its_time_has_come(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path / "size", max_bytes=4096))
        for n in range(100):
            await wal.append(message(n))
        assert len(wal.segments()) > 2
        assert all(4096 <= s.path.stat().st_size < 4096 + 300 for s in wal.segments()[:-1])
        assert await offsets_from(wal, 0, 100) == list(range(100))
        await wal.close()
        wal = await Wal.with_config(config(tmp_path / "time", max_hours=0.00001))
        await wal.append(message(0))
        reader = wal.create_reader(StartPosition.latest())
        while len(wal.segments()) == 1:
            await wal._wait_idle() if wal._operation else await asyncio.sleep(0.005)  # no event tells of a timer
        await wal.append(message(1))
        assert (await anext(reader)).offset == 1
        await wal.close()

    run(main())


@pytest.mark.parametrize("other", ["topic.log", "wal.txt", "a-wal.log"])
@pytest.mark.parametrize("both", [False, True])
def test_a_log_with_other_file_names_is_not_opened_as_an_empty_one(tmp_path, other, both):
    """I3: it went on at offset 0, and what was not uploaded was out of sight."""

    async def main():
        wal = await Wal.with_config(config(tmp_path))
        await wal.append_batch([message(n) for n in range(3)])
        await wal.close()
        if both:
            (tmp_path / FileNames.of(other).name(1, 0)).touch()
        before = sorted(path.name for path in tmp_path.iterdir())
        for opening in (
            lambda: Wal.with_config(config(tmp_path, file_name=other)),
            lambda: asyncio.to_thread(LogView.open, OsFiles(), tmp_path, other),
        ):
            with pytest.raises(InvalidConfigError, match=r"set file_name to wal\.log") as refused:
                await opening()
            assert refused.value.setting == "file_name"
            assert "wal-0000000001-00000000000000000000.log" in str(refused.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        if not both:
            wal = await Wal.with_config(config(tmp_path))
            assert wal.next_offset == 3
            await wal.close()

    run(main())


def test_opening_removes_its_own_drafts_and_no_other_file(tmp_path):
    """I3."""
    segment = "wal-0000000001-00000000000000000000.log"
    drafts = [f"{segment}.tmp", f"{CHECKPOINT_NAME}.tmp", f"{CURSORS_NAME}.tmp", f"{UPLOAD_NAME}.tmp"]
    others = ["notes.tmp", f"topic{segment[3:]}.tmp", f"{segment}.aside", f"topic{segment[3:]}.aside", "wal.log.tmp"]

    async def main():
        for name in (*drafts, *others):
            (tmp_path / name).touch()
        wal = await Wal.with_config(config(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, segment, "LOCK"])
        await wal.close()

    run(main())


def test_latest_equals_the_next_offset_and_anything_outside_is_refused_with_both_bounds(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        await wal.append_batch([message(n) for n in range(3)])
        await wal.rotate()
        await wal.append_batch([message(n) for n in range(3, 5)])
        await wal.prune(3)
        assert wal.start_offset == 3
        readers = [wal.create_reader(StartPosition.latest()), wal.create_reader(StartPosition.offset(5))]
        await wal.append(message(5))
        assert [(await anext(r)).offset for r in readers] == [5, 5]
        for bad in (2, 7, -1):
            with pytest.raises(OffsetOutOfRangeError) as refused:
                wal.create_reader(StartPosition.offset(bad))
            assert (refused.value.requested, refused.value.start, refused.value.stop) == (bad, 3, 6)
        await wal.close()

    run(main())


def test_a_reader_at_the_end_is_woken_by_the_next_message_and_ended_by_close(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        reader = wal.create_reader(StartPosition.latest())
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0)
        assert not waiting.done()
        await wal.append(message(0))
        assert (await waiting).offset == 0
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        await wal.close()
        with pytest.raises(LogClosedError):
            await waiting
        for act in (lambda: wal.append(message(1)), lambda: wal.append_batch([message(1)]), wal.rotate):
            with pytest.raises(LogClosedError):
                await act()
        with pytest.raises(LogClosedError):
            wal.create_reader(StartPosition.latest())
        await wal.close()

    run(main())


def test_a_reader_that_falls_behind_reads_files_and_skips_nothing(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, cache_capacity=4, max_bytes=8192))
        reader = wal.create_reader(StartPosition.offset(0))
        seen = []
        for n in range(300):
            await wal.append(message(n))
            if n % 50 == 49:
                seen += [m.offset for m in await take(reader, 3)]
        seen += [m.offset for m in await take(reader, 300 - len(seen))]
        assert seen == list(range(300))
        await wal.close()

    run(main())


def test_a_reader_below_a_pruned_start_is_told_both_bounds(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, cache_capacity=1))
        reader = wal.create_reader(StartPosition.offset(0))
        await wal.append_batch([message(n) for n in range(3)])
        await wal.rotate()
        await wal.append_batch([message(n) for n in range(3, 6)])
        assert await wal.prune(3) == 3
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 is outside this log: it holds \[3, 6\)"):
            await anext(reader)
        assert await wal.prune(100) == 3
        await wal.close()

    run(main())


def test_fsync_level_shows_readers_only_what_is_synced(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, level=AckLevel.FSYNC))
        appends = [asyncio.create_task(wal.append(message(n))) for n in range(20)]
        reader = wal.create_reader(StartPosition.offset(0))
        for n in range(20):
            assert (await anext(reader)).offset == n
            assert wal.synced_offset > n
        assert await asyncio.gather(*appends) == list(range(20))
        await wal.close()

    run(main())


def test_memory_only_keeps_the_newest_messages(tmp_path):
    async def main():
        wal = await Wal.with_config(WalConfig(cache_capacity=10))
        await wal.append_batch([message(n) for n in range(25)])
        assert (wal.start_offset, wal.next_offset, wal.synced_offset) == (15, 25, 0)
        assert await offsets_from(wal, 15, 10) == list(range(15, 25))
        for n in range(25, 60):
            await wal.append(message(n))
        assert (wal.start_offset, wal.next_offset) == (50, 60)
        await wal.rotate()
        await wal.close()

    run(main())


def test_i10_the_cache_is_bounded_by_messages_and_by_bytes(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, cache_capacity=100_000))
        for _ in range(40):
            await wal.append(StreamMessage(bytes(1 << 20)))
        assert wal.cache.held_bytes <= 16 * 1024 * 1024
        assert wal.cache.start > 0
        assert await offsets_from(wal, 0, 40) == list(range(40))
        await wal.close()

    run(main())


def test_f17_a_second_opener_is_refused_by_name(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        with pytest.raises(LockedError, match=f"owned by process {os.getpid()}"):
            await Wal.with_config(config(tmp_path))
        await wal.close()
        await (await Wal.with_config(config(tmp_path))).close()

    run(main())


def test_a_bad_message_is_refused_and_leaves_no_hole(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        results = await asyncio.gather(
            wal.append(message(0)),
            wal.append(StreamMessage(b"", request_id=-1)),
            wal.append(message(1)),
            return_exceptions=True,
        )
        assert results[0] == 0
        assert isinstance(results[1], InvalidMessageError)
        assert results[2] == 1
        with pytest.raises(InvalidMessageError):
            await wal.append_batch([message(2), StreamMessage("no bytes")])
        assert await wal.append(message(2)) == 2
        await wal.close()

    run(main())


async def _three_files(directory, **settings):
    wal = await Wal.with_config(config(directory, cache_capacity=1, **settings))
    for start in (0, 10, 20):
        await wal.append_batch([message(n) for n in range(start, start + 10)])
        if start < 20:
            await wal.rotate()
    await wal.close()
    return sorted(directory.glob("*.log"))


def test_f3_rot_in_a_sealed_file_is_an_error_that_names_file_byte_and_offset(tmp_path):
    async def main():
        paths = await _three_files(tmp_path)
        data = bytearray(paths[0].read_bytes())
        data[len(data) // 2] ^= 4
        paths[0].write_bytes(data)
        wal = await Wal.with_config(config(tmp_path, cache_capacity=1))
        reader = wal.create_reader(StartPosition.offset(0))
        with pytest.raises(CorruptLogError) as found:
            await take(reader, 30)
        assert found.value.file == str(paths[0])
        assert 0 < found.value.expected_offset < 10
        assert 0 < found.value.byte <= len(data) // 2
        assert await offsets_from(wal, 10, 20) == list(range(10, 30))
        await wal.close()
        assert paths[0].read_bytes() == data

    run(main())


def test_rot_in_the_active_file_refuses_to_serve_and_changes_nothing(tmp_path):
    async def main():
        paths = await _three_files(tmp_path)
        data = bytearray(paths[2].read_bytes())
        data[len(data) // 2] ^= 4
        paths[2].write_bytes(data)
        before = {p: p.read_bytes() for p in tmp_path.iterdir()}
        with pytest.raises(CorruptLogError, match="attests that it was on disk"):
            await Wal.with_config(config(tmp_path))
        assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
        with pytest.raises(CorruptLogError):
            await Wal.with_config(config(tmp_path))

    run(main())


@pytest.mark.parametrize("which", [0, 1])
def test_f13_a_missing_or_emptied_file_is_named_with_its_span(tmp_path, which):
    async def main():
        paths = await _three_files(tmp_path)
        kept = paths[which].read_bytes()
        paths[which].write_bytes(b"")
        with pytest.raises(MissingFileError, match="is empty") as found:
            await Wal.with_config(config(tmp_path))
        assert (found.value.start, found.value.stop) == (which * 10, which * 10 + 10)
        paths[which].write_bytes(kept)
        paths[which].unlink()
        if which == 1:
            with pytest.raises(MissingFileError, match=r"wal-0000000002-\*.log is missing") as found:
                await Wal.with_config(config(tmp_path))
            assert (found.value.start, found.value.stop) == (10, 20)
        else:
            wal = await Wal.with_config(config(tmp_path))
            assert wal.start_offset == 10
            await wal.close()

    run(main())


@pytest.mark.parametrize("how", ["deleted", "flipped", "another log's", "rubbish"])
def test_f12_a_checkpoint_is_only_a_cache(tmp_path, how):
    async def main():
        await _three_files(tmp_path / "a")
        other = tmp_path / "b"
        wal = await Wal.with_config(config(other, cache_capacity=1))
        for start in (0, 10, 20):
            await wal.append_batch([StreamMessage(bytes(900 + n)) for n in range(start, start + 10)])
            await wal.rotate()
        await wal.close()
        checkpoint = tmp_path / "a" / "checkpoint.json"
        data = bytearray(checkpoint.read_bytes())
        if how == "deleted":
            checkpoint.unlink()
        elif how == "flipped":
            data[len(data) // 2] ^= 1
            checkpoint.write_bytes(data)
        elif how == "another log's":
            checkpoint.write_bytes((other / "checkpoint.json").read_bytes())
        else:
            checkpoint.write_bytes(b"\xff\x00 rubbish")
        wal = await Wal.with_config(config(tmp_path / "a", cache_capacity=1))
        assert (wal.start_offset, wal.next_offset) == (0, 30)
        for start in (0, 7, 10, 15, 29):
            found = await take(wal.create_reader(StartPosition.offset(start)), 30 - start)
            assert [m.payload for m in found] == [message(n).payload for n in range(start, 30)]
        await wal.close()

    run(main())


def test_a_misleading_place_to_seek_by_is_not_taken_for_damage(tmp_path):
    async def main():
        await _three_files(tmp_path)
        wal = await Wal.with_config(config(tmp_path, cache_capacity=1))
        wal.segments()[0].index[:] = [(0, 0), (3, 17)]
        assert await offsets_from(wal, 5, 25) == list(range(5, 30))
        await wal.close()

    run(main())


def test_replaying_takes_no_more_memory_for_a_longer_log(tmp_path):
    async def peak(directory, count):
        wal = await Wal.with_config(config(directory, cache_capacity=1))
        for start in range(0, count, 1000):
            await wal.append_batch([StreamMessage(bytes(1000), request_id=start + n) for n in range(1000)])
        tracemalloc.start()
        reader = wal.create_reader(StartPosition.offset(0))
        seen = 0
        while seen < count:
            seen += len(await reader.read())
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        await wal.close()
        return used

    async def main():
        short = await peak(tmp_path / "short", 4_000)
        long = await peak(tmp_path / "long", 20_000)
        assert long < short * 1.2 + 100_000

    run(main())


def test_frames_larger_than_a_read_are_read(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, cache_capacity=1))
        sizes = [10, 3_000_000, 10, 1_048_000, 1_048_576, 5]
        for size in sizes:
            await wal.append(StreamMessage(bytes(size)))
        found = await take(wal.create_reader(StartPosition.offset(0)), len(sizes))
        assert [len(m.payload) for m in found] == sizes
        await wal.close()
        wal = await Wal.with_config(config(tmp_path))
        assert wal.next_offset == len(sizes)
        await wal.close()

    run(main())


def test_a_reader_gives_frames_as_they_are_stored(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        await wal.append_batch([message(n) for n in range(5)])
        frames, scan = await wal.create_reader(StartPosition.offset(2)).read_frames()
        assert decode_batch(frames[scan.first_row : scan.end])["topic_offset"].to_pylist() == [2, 3, 4]
        await wal.close()

    run(main())


def test_opening_can_be_cancelled_and_leaves_nothing_locked(tmp_path):
    async def main():
        opening = asyncio.create_task(Wal.with_config(config(tmp_path)))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while True:
            try:
                wal = await Wal.with_config(config(tmp_path))
            except LockedError:
                await asyncio.sleep(0.001)
                continue
            break
        await wal.close()

    run(main())


def test_another_file_name_is_another_log(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, file_name="events.seg"))
        await wal.append(message(0))
        await wal.close()
        assert [s.path.name for s in wal.segments()] == ["events-0000000001-00000000000000000000.seg"]

    run(main())


def test_closing_during_a_rotation_syncs_what_came_meanwhile(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path, sync_mode="none"))
        await wal.append(message(0))
        rotation = asyncio.create_task(wal.rotate())
        await asyncio.sleep(0)
        late = asyncio.create_task(wal.append(message(1)))
        await asyncio.sleep(0)
        await wal.close()
        await rotation
        assert (await late, wal.synced_offset, wal.next_offset) == (1, 2, 2)

    run(main())


def test_two_rotations_at_once_are_one(tmp_path):
    async def main():
        wal = await Wal.with_config(config(tmp_path))
        await wal.append(message(0))
        await asyncio.gather(wal.rotate(), wal.rotate())
        assert [(s.seq, s.first) for s in wal.segments()] == [(1, 0), (2, 1)]
        await wal.close()

    run(main())


def test_a_file_that_cannot_be_deleted_stays_part_of_the_log(tmp_path):
    class NoRemoval(OsFiles):
        def remove(self, path):
            raise OSError(errno.EIO, "Input/output error")

    async def main():
        await _three_files(tmp_path)
        wal = await Wal.with_config(config(tmp_path, cache_capacity=1), files=NoRemoval())
        assert await wal.prune(20) == 0
        assert await offsets_from(wal, 0, 30) == list(range(30))
        await wal.close()

    run(main())
