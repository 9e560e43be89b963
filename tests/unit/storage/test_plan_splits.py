"""Where messages lie: each part is read as a task would read it, and must hold exactly the offsets that it says."""

from itertools import pairwise
from pathlib import Path

import pytest

from ister.core.errors import MissingFileError
from ister.core.frames.columns import decode_messages
from ister.ports.files.files import OsFiles
from ister.storage.plan_splits import plan_splits
from parts.cloud import MIB, again, open_parts, payload, run, until

SIZE = 100_000


async def plan(parts, start, *, with_log=True, split_bytes=900_000, splits_max=1000):
    """Plan up to what is synced, and check every part against the bytes."""
    storage = parts.storage
    stop = parts.wal.synced_offset if with_log else storage.objects.span.stop
    found = await plan_splits(storage, start, stop, with_log=with_log, split_bytes=split_bytes, splits_max=splits_max)
    for part in found:
        if part.path:
            data = Path(part.path).read_bytes()[part.start_byte : part.stop_byte]
        else:
            data = await parts.store.store.read(part.key, part.start_byte, part.stop_byte, etag=part.etag)
            assert part.object_bytes == len((parts.directory / "objects" / part.key).read_bytes())
        held = decode_messages(data, first_offset=part.start)
        assert [m.offset for m in held] == list(range(part.start, part.stop))
        assert all(m.payload.startswith(payload(m.offset)) for m in held)
    assert all(a.stop == b.start for a, b in pairwise(found))
    if found:
        assert found[0].start == start
    return found


def ends(found):
    return [part.stop for part in found]


def kinds(found):
    return ["log" if part.path else "object" for part in found]


def test_a_log_is_given_file_by_file_in_pieces_up_to_what_is_synced(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(50, SIZE)
        await parts.add(30, SIZE)
        await parts.storage.flush()
        found = await plan(parts, 0)
        assert kinds(found) == ["log"] * len(found)
        assert len({part.path for part in found}) == 2
        assert ends(found)[-1] == 80
        sizes = [part.bytes for part in found]
        assert len(found) >= 5, sizes
        assert max(sizes) < 2.5 * MIB
        await parts.add(5)
        assert ends(await plan(parts, 0))[-1] == parts.wal.synced_offset == 80
        await parts.close()

    run(story())


@pytest.mark.parametrize("start", [0, 1, 7, 49, 50, 51, 79])
def test_a_plan_begins_exactly_where_it_was_asked_to(tmp_path, start):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(50, SIZE)
        await parts.add(30, SIZE)
        await parts.storage.flush()
        await parts.uploader.drain()
        assert ends(await plan(parts, start))[-1] == 80
        found = await plan(parts, start, with_log=False)
        assert kinds(found) == ["object"] * len(found)
        assert ends(found)[-1] == 80
        await parts.close()

    run(story())


def test_at_the_end_there_is_nothing(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        assert await plan(parts, 0) == []
        await parts.add(3)
        assert await plan(parts, 0) == [], "nothing is synced yet"
        await parts.storage.flush()
        assert await plan(parts, 3) == []
        assert await plan(parts, 0, with_log=False) == [], "nothing is uploaded yet"
        await parts.close()

    run(story())


def test_objects_are_cut_at_the_places_of_their_index(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(100, SIZE)
        await parts.uploader.drain()
        (descriptor,) = await parts.descriptors()
        found = await plan(parts, 0, with_log=False, split_bytes=500_000)
        assert len(found) > 10
        assert {(part.stop, part.stop_byte) for part in found[:-1]} <= {*descriptor.index}
        parts.store.reads.clear()
        await plan_splits(parts.storage, 0, 100, with_log=False, split_bytes=500_000, splits_max=1000)
        assert parts.store.reads == [], "nothing is read for it"
        await parts.close()

    run(story())


def test_objects_serve_what_the_log_has_no_more(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        for _ in range(3):
            await parts.add_file(10, SIZE)
        await parts.add(5, SIZE)
        await parts.storage.flush()
        await parts.uploader.drain()
        await parts.storage.prune(20)
        found = await plan(parts, 0)
        assert kinds(found) == sorted(kinds(found), key=["object", "log"].index)
        assert {*kinds(found)} == {"object", "log"}
        assert ends(found)[-1] == 35
        await parts.close()

    run(story())


def test_a_plan_stops_at_the_number_of_parts_and_goes_on_from_there(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(60, SIZE)
        whole = await plan(parts, 0)
        at, found = 0, []
        while more := await plan(parts, at, splits_max=2):
            assert len(more) <= 2
            found += more
            at = more[-1].stop
        assert found == whole
        await parts.close()

    run(story())


def test_bytes_that_a_crash_left_behind_belong_to_no_part(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(4)
        await parts.storage.flush()
        await until(lambda: parts.wal._disk.attested == 4)
        await parts.add(4)
        await parts.crash()
        parts = await again(parts)
        await parts.add(4)
        await parts.storage.flush()
        assert len(parts.log_files()) == 2
        old, new = await plan(parts, 0)
        assert ends([old, new]) == [4, 12]
        assert old.stop_byte < Path(old.path).stat().st_size, "the superseded frames lie behind it"
        await parts.close()

    run(story())


def test_a_message_larger_than_what_is_read_at_a_time_is_one_part(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(2, 3 * MIB)
        await parts.add(2)
        await parts.storage.flush()
        await parts.uploader.drain()
        for start in range(4):
            assert ends(await plan(parts, start))[-1] == 4
            assert ends(await plan(parts, start, with_log=False))[-1] == 4
        parts.wal.segments()[0].index = []
        for start in range(4):
            assert ends(await plan(parts, start)) == [4]
        await parts.close()

    run(story())


def test_a_place_that_is_wrong_misleads_nobody(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(50, SIZE)
        await parts.storage.flush()
        (segment,) = parts.wal.segments()
        honest = await plan(parts, 0)
        assert len(segment.index) == 3
        segment.index[1:] = [(offset, byte + 100) for offset, byte in segment.index[1:]]
        for start in (0, 11, 40):
            assert ends(await plan(parts, start))[-1] == 50
        segment.index = []
        (whole,) = await plan(parts, 0)
        assert (whole.stop, whole.stop_byte) == (honest[-1].stop, honest[-1].stop_byte)
        await parts.close()

    run(story())


class VanishingFiles(OsFiles):
    """Has a file taken away at the moment it is opened."""

    def __init__(self):
        super().__init__()
        self.vanish = None

    def open_read(self, path):
        if self.vanish is not None:
            self.vanish(path)
        return super().open_read(path)


def test_a_file_that_retention_takes_meanwhile_is_replaced_by_its_object(tmp_path):
    async def story():
        files = VanishingFiles()
        parts = await open_parts(tmp_path, files=files)
        await parts.add_file(10, SIZE)
        await parts.add_file(10, SIZE)
        await parts.uploader.drain()

        def prune(path):
            files.vanish = None
            del parts.wal._disk.segments[0]
            path.unlink()

        files.vanish = prune
        found = await plan(parts, 0)
        assert {*kinds(found)} == {"object", "log"}
        assert ends(found)[-1] == 20
        await parts.close()

    run(story())


def test_a_file_that_is_gone_for_good_is_told(tmp_path):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add_file(10)
        await parts.add_file(10)
        parts.log_files()[0].unlink()
        with pytest.raises(MissingFileError):
            await plan(parts, 0)
        assert ends(await plan(parts, 10)) == [20]
        await parts.close()

    run(story())


def test_a_file_is_named_so_that_it_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def story():
        parts = await open_parts(Path("here"))
        await parts.add(1)
        await parts.storage.flush()
        (part,) = await plan(parts, 0)
        assert Path(part.path) == tmp_path / "here" / "log" / parts.log_files()[0].name
        await parts.close()

    run(story())
