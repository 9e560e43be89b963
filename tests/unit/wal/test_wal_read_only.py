"""A log looked at from outside: whole frames of files that another process may be writing, pruning or rescuing."""

import asyncio
from zlib import crc32

import pytest

from ister.core.errors import CorruptLogError, MissingFileError, OffsetOutOfRangeError, UnknownFormatError
from ister.core.frames.checksummed_json import seal
from ister.core.frames.frame import HEADER
from ister.core.offsets import StartPosition
from ister.ports.files.files import OsFiles
from ister.storage.tiered_reader import TieredReader
from ister.wal import Wal, WalConfig
from ister.wal.directory import FileNames
from ister.wal.read_only import LogView
from parts.data_dir import broker, fill, flip, listing, log_files, make, messages
from parts.log_dir import crashed_log, reopen


def make_log(directory, files=3, count=10):
    async def making():
        wal = await Wal.with_config(WalConfig(dir=directory))
        for file in range(files):
            await wal.append_batch(messages(file * count, file * count + count))
            if file < files - 1:
                await wal.rotate()
        await wal.close()

    asyncio.run(making())
    return sorted(directory.glob("wal-*.log"))


def look(directory):
    return LogView.open(OsFiles(), directory, topic="/default/orders")


async def read_all(view, start):
    reader = view.create_reader(StartPosition.offset(start))
    found = []
    while batch := await reader.read():
        found += batch
    assert reader.next_offset == view.next_offset
    return found


def offsets(view, start):
    return [message.offset for message in asyncio.run(read_all(view, start))]


def test_a_closed_log_is_seen_whole(tmp_path):
    paths = make_log(tmp_path)
    view = look(tmp_path)
    assert (view.start_offset, view.next_offset, view.closed) == (0, 30, False)
    assert [(segment.first, segment.path, segment.size) for segment in view.segments] == [
        (n * 10, path, path.stat().st_size) for n, path in enumerate(paths)
    ]
    assert view.size == sum(path.stat().st_size for path in paths)
    assert (view.tail.synced_offset, view.tail.torn_bytes) == (30, 0)
    found = asyncio.run(read_all(view, 0))
    assert [message.payload for message in found] == [f"payload {n}".encode() for n in range(30)]
    assert found[0].msg_id.topic_name == "/default/orders"
    assert view.tail.append_time_us == found[-1].append_time_us


@pytest.mark.parametrize("start", range(31))
def test_a_reader_begins_anywhere_and_ends_at_the_end(tmp_path, start):
    make_log(tmp_path)
    assert offsets(look(tmp_path), start) == list(range(start, 30))


@pytest.mark.parametrize("start", [0, 9, 31])
def test_an_offset_that_the_files_do_not_hold_is_refused(tmp_path, start):
    make_log(tmp_path)[0].unlink()
    with pytest.raises(OffsetOutOfRangeError, match=r"holds \[10, 30\)"):
        look(tmp_path).create_reader(StartPosition.offset(start))


def test_the_latest_position_is_the_end(tmp_path):
    make_log(tmp_path)
    assert look(tmp_path).create_reader(StartPosition.latest()).next_offset == 30


def test_the_file_of_an_offset_ends_where_the_next_one_begins(tmp_path):
    paths = make_log(tmp_path)
    view = look(tmp_path)
    for offset, (path, stop) in {0: (paths[0], 10), 9: (paths[0], 10), 10: (paths[1], 20), 29: (paths[2], 30)}.items():
        segment, end = view.locate(offset)
        assert (segment.path, end) == (path, stop)
    paths[0].unlink()
    assert look(tmp_path).locate(9) is None


@pytest.mark.parametrize("torn", [b"", b"torn", b"\0" * 100])
def test_whole_frames_count_and_a_torn_tail_does_not(tmp_path, torn):
    crashed_log(tmp_path, torn=torn)
    view = look(tmp_path)
    assert (view.next_offset, view.tail.synced_offset, view.tail.torn_bytes) == (5, 3, len(torn))
    assert offsets(view, 0) == [0, 1, 2, 3, 4]


def test_what_a_rescue_has_superseded_is_read_once(tmp_path):
    crashed_log(tmp_path, torn=b"torn")
    reopen(tmp_path)
    view = look(tmp_path)
    assert [segment.first for segment in view.segments] == [0, 3]
    assert offsets(view, 0) == [0, 1, 2, 3, 4]


def test_a_log_that_is_rescued_under_a_reader_reads_on(tmp_path):
    crashed_log(tmp_path, torn=b"torn")
    view = look(tmp_path)
    reopen(tmp_path)
    assert offsets(view, 0) == [0, 1, 2, 3, 4]
    view.refresh()
    assert [segment.first for segment in view.segments] == [0, 3]


def test_a_new_log_without_a_file_is_empty(tmp_path):
    view = look(tmp_path)
    assert (view.start_offset, view.next_offset, view.segments) == (0, 0, [])
    assert offsets(view, 0) == []


def test_a_directory_that_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "nothing")


def test_beside_a_writer_it_sees_more_each_time_it_looks_and_changes_nothing(tmp_path):
    async def use():
        wal = await Wal.with_config(WalConfig(dir=tmp_path))  # owns the directory all the time
        view = await asyncio.to_thread(look, tmp_path)
        for start in range(0, 50, 10):
            await wal.append_batch(messages(start, start + 10))
            before = listing(tmp_path)
            assert view.next_offset == start
            await asyncio.to_thread(view.refresh)
            assert listing(tmp_path) == before
            assert view.next_offset == start + 10
            assert len(await read_all(view, 0)) == start + 10
            await wal.rotate()
        await wal.close()

    asyncio.run(use())


def test_what_is_pruned_under_a_reader_is_out_of_range(tmp_path):
    paths = make_log(tmp_path)

    async def use():
        view = await asyncio.to_thread(look, tmp_path)
        reader = view.create_reader(StartPosition.offset(0))
        assert [message.offset for message in await reader.read()] == list(range(10))
        for path in paths[:2]:
            path.unlink()
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 10 .* holds \[20, 30\)"):
            await reader.read()
        assert (view.start_offset, view.next_offset) == (20, 30)

    asyncio.run(use())


def test_a_log_that_is_deleted_under_a_reader_is_missing(tmp_path):
    paths = make_log(tmp_path / "log")

    async def use():
        view = await asyncio.to_thread(look, tmp_path / "log")
        reader = view.create_reader(StartPosition.offset(0))
        for path in (*paths, *(tmp_path / "log").iterdir()):
            path.unlink(missing_ok=True)
        (tmp_path / "log").rmdir()
        with pytest.raises(MissingFileError, match=r"offsets \[0, 10\)"):
            await reader.read()

    asyncio.run(use())


def test_files_that_vanish_between_listing_and_opening_were_pruned(tmp_path):
    paths = make_log(tmp_path, files=5)

    class Pruning(OsFiles):
        """Removes the oldest files one by one, each time the next of them is about to be opened."""

        def open_read(self, path):
            if path in paths[:3]:
                path.unlink()
            return super().open_read(path)

    view = LogView.open(Pruning(), tmp_path)
    assert (view.start_offset, view.next_offset) == (30, 50)


def test_a_missing_middle_file_is_named(tmp_path):
    paths = make_log(tmp_path)
    paths[1].unlink()
    with pytest.raises(MissingFileError, match=r"offsets \[10, 20\) cannot be served") as found:
        look(tmp_path)
    assert (found.value.start, found.value.stop) == (10, 20)


def test_damage_that_a_marker_attests_is_refused_by_name(tmp_path):
    (path,) = make_log(tmp_path, files=1)
    flip(path, 100)
    with pytest.raises(CorruptLogError) as found:
        look(tmp_path)
    assert (found.value.file, found.value.byte, found.value.expected_offset) == (str(path), 56, 0)


def test_damage_that_is_gone_at_the_second_look_was_none(tmp_path):
    (path,) = make_log(tmp_path, files=1)
    good = path.read_bytes()
    flip(path, 100)

    class Mending(OsFiles):
        """Puts the file right once it was read."""

        def open_read(self, opened):
            file = super().open_read(opened)
            if opened == path:
                draft = tmp_path / "good"
                draft.write_bytes(good)
                draft.replace(path)
            return file

    assert LogView.open(Mending(), tmp_path).next_offset == 10


def test_a_frame_of_a_newer_release_is_said_to_be_one(tmp_path):
    body = b"\x07\x09 from the future"
    head = HEADER.pack(0, len(body), 0)[:12]
    path = tmp_path / FileNames.of("wal.log").name(1, 0)
    path.write_bytes(head + crc32(body, crc32(head)).to_bytes(4, "little") + body)
    with pytest.raises(UnknownFormatError, match="kind 7, version 9"):
        look(tmp_path)


def test_damage_in_a_sealed_file_is_told_by_the_reader_that_gets_there(tmp_path):
    paths = make_log(tmp_path)
    flip(paths[1], 100)
    view = look(tmp_path)
    assert offsets(view, 20) == list(range(20, 30))
    with pytest.raises(CorruptLogError, match="at byte 56, where offset 10 should be"):
        offsets(view, 0)


def test_a_checkpoint_that_misleads_costs_time_only(tmp_path):
    paths = make_log(tmp_path)
    sealed = [[n + 1, n * 10, n * 10 + 10, 7, [[n * 10 + 2, 77]]] for n in range(2)]
    (tmp_path / "checkpoint.json").write_bytes(seal({"version": 1, "sealed": sealed}))
    assert offsets(look(tmp_path), 5) == list(range(5, 30))
    (tmp_path / "checkpoint.json").unlink()
    assert offsets(look(tmp_path), 5) == list(range(5, 30))
    assert len(paths) == 3


def test_a_reader_over_tiers_goes_from_objects_to_a_view_and_ends(tmp_path):
    data = make(tmp_path / "data")

    async def use():
        async with broker(data) as factory:
            storage = await factory.for_topic("/default/orders")
            await storage.append_messages(messages(40, 50))
            view = await asyncio.to_thread(look, data / "wal/default/orders/1")
            for start in (0, 9, 10, 35, 50):
                reader = TieredReader(view, storage.objects, StartPosition.offset(start))
                assert [message.offset async for message in reader] == list(range(start, 50))
                assert await reader.read() == []
                await reader.close()

    asyncio.run(use())


def test_a_reader_over_tiers_takes_a_damaged_file_of_a_view_from_objects(tmp_path):
    data = make(tmp_path / "data", pruned=0)
    flip(log_files(data)[1], 100)

    async def use():
        async with broker(data) as factory:
            storage = await factory.for_topic("/default/orders")
            view = await asyncio.to_thread(look, data / "wal/default/orders/1")
            reader = TieredReader(view, storage.objects, StartPosition.offset(0))
            assert [message.offset async for message in reader] == list(range(40))
            await reader.close()

    asyncio.run(use())


def test_a_view_and_the_log_itself_agree(tmp_path):
    data = tmp_path / "data"

    async def use():
        async with broker(data) as factory:
            storage = await fill(factory, files=5, count=7)
            view = await asyncio.to_thread(look, data / "wal/default/orders/1")
            wal = storage.wal
            assert (view.start_offset, view.next_offset) == (wal.start_offset, wal.next_offset)
            for offset in range(view.start_offset, view.next_offset):
                (mine, my_stop), (theirs, their_stop) = view.locate(offset), wal.locate(offset)
                assert (mine.path, my_stop) == (theirs.path, their_stop)
            reader = wal.create_reader(StartPosition.offset(wal.start_offset))
            theirs = []
            while len(theirs) < wal.next_offset - wal.start_offset:
                theirs += await reader.read()
            assert await read_all(view, view.start_offset) == theirs

    asyncio.run(use())
