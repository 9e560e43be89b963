"""The uploader and the disk: damage in the log, files that cannot be read, a full disk, checkpoints that mislead (F12)."""

import errno

import pytest

from ister.core.errors import CorruptLogError, MissingFileError, NotYetInTierError, ResourceExhaustedError
from ister.core.frames.checksummed_json import seal, unseal
from ister.ports.files.files import OsFiles
from parts.cloud import again, named, open_parts, run, told, until
from parts.uploads import check_objects

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_damaged_frame_in_a_sealed_file_stops_the_upload_there_and_nothing_is_skipped(tmp_path, checkpointed):
    async def story():
        parts = await open_parts(tmp_path)
        if checkpointed:
            await parts.add(2, 100)
            await parts.uploader.drain()
        await parts.add_file(6 - parts.wal.next_offset, 100)
        await parts.add(2, 100)
        path = parts.log_files()[0]
        data = bytearray(path.read_bytes())
        at = data.index(b"4:" + bytes(100))
        data[at] ^= 1
        path.write_bytes(data)
        with told() as events:
            parts.run_uploader()
            await until(lambda: parts.uploader.stopped)
        assert isinstance(parts.uploader.problem, CorruptLogError)
        assert (parts.uploader.problem.file, parts.uploader.problem.expected_offset) == (str(path), 4)
        assert len(named(events, "upload_stopped")) == 1
        assert (await parts.catalog.last()).stop == 4
        await parts.add(1, 100)
        await parts.read_objects(0, 4, 100)
        await parts.close()

    run(story())


@pytest.mark.parametrize("how", ["missing", "cut short", "unreadable"])
def test_f13_a_sealed_file_that_cannot_be_read_stops_the_upload_with_an_alarm(tmp_path, how):
    async def story():
        files = StubbornFiles()
        parts = await open_parts(tmp_path, files=files)
        await parts.add_file(5, 100)
        await parts.add(2)
        path = parts.log_files()[0]
        if how == "missing":
            path.unlink()
        elif how == "cut short":
            path.write_bytes(path.read_bytes()[:300])
        else:
            files.refuse = lambda op, name: OSError(errno.EIO, "Input/output error") if op == "open_read" else None
        with told() as events:
            parts.run_uploader()
            await until(lambda: parts.uploader.stopped or parts.tasks[0].done())
        assert isinstance(parts.uploader.problem, MissingFileError | CorruptLogError)
        assert len(named(events, "upload_stopped")) == 1
        with pytest.raises(NotYetInTierError):
            await parts.uploader.wait_uploaded(7, 10)
        await parts.close()

    run(story())


def test_a_log_file_that_cannot_be_opened_for_a_moment_delays_the_upload_and_does_not_stop_it(tmp_path):
    """I7."""

    async def story():
        files = StubbornFiles()
        parts = await open_parts(tmp_path, files=files)
        await parts.add_file(5, 100)
        await parts.add(2, 100)
        files.refuse = lambda op, name: OSError(errno.EMFILE, "Too many open files") if op == "open_read" else None
        parts.run_uploader()
        await until(lambda: parts.uploader.problem is not None)
        assert isinstance(parts.uploader.problem, ResourceExhaustedError)
        assert not parts.uploader.stopped
        files.refuse = lambda op, name: None
        await parts.uploader.wait_uploaded(7, 10)
        await parts.read_objects(0, 7, 100)
        await parts.close()

    run(story())


class StubbornFiles(OsFiles):
    """The real file system, which refuses what a test wants: `refuse(op, name)` returns the error to raise."""

    refuse = staticmethod(lambda op, name: None)

    def create(self, path):
        self._ask("create", path)
        return super().create(path)

    def open_read(self, path):
        self._ask("open_read", path)
        return super().open_read(path)

    def rename(self, source, target):
        self._ask("rename", target)
        super().rename(source, target)

    def _ask(self, op, path):
        error = self.refuse(op, path.name)
        if error is not None:
            raise error


def test_f10_a_full_disk_keeps_the_checkpoint_from_being_written_and_nothing_else(tmp_path):
    async def story():
        files = StubbornFiles()
        parts = await open_parts(tmp_path, files=files)
        await parts.add(5)
        files.refuse = lambda op, name: OSError(errno.ENOSPC, "full") if name.startswith("upload") else None
        with told() as events:
            await parts.uploader.drain()
        assert len(named(events, "upload_checkpoint_not_written")) == 1
        assert not parts.checkpoint_file.exists()
        await parts.add(2)
        await parts.uploader.drain()
        files.refuse = lambda op, name: None
        await parts.crash()
        parts = await again(parts)
        await parts.add(1)
        await parts.uploader.drain()
        await check_objects(parts, 8)
        await parts.close()

    run(story())


@pytest.mark.parametrize("harm", ["gone", "flipped", "cut", "old", "zero", "far", "negative", "huge", "text", "list"])
def test_f12_a_checkpoint_is_a_cache(tmp_path, harm):
    async def story():
        parts = await open_parts(tmp_path)
        await parts.add(5)
        await parts.uploader.drain()
        older = parts.checkpoint_file.read_bytes()
        await parts.add(5)
        await parts.uploader.drain()
        await parts.add(5)
        await parts.wal.sync()
        parts.wal._mark()  # so that the same file goes on
        await parts.crash()
        good = parts.checkpoint_file.read_bytes()
        numbers = {"zero": 0, "far": 10**9, "negative": -5, "huge": 2**70, "text": "7", "list": []}
        flipped = bytes([good[0] ^ 1]) + good[1:]
        harmed = {"gone": None, "flipped": flipped, "cut": good[:-3], "old": older}
        content = harmed[harm] if harm in harmed else seal(unseal(good) | {"byte_pos": numbers[harm]})
        parts.checkpoint_file.unlink()
        if content is not None:
            parts.checkpoint_file.write_bytes(content)
        parts = await again(parts)
        assert len(parts.wal.segments()) == 1, "the checkpoint is of the file that goes on"
        await parts.uploader.drain()
        assert await parts.spans() == [(0, 5), (5, 10), (10, 15)]
        await check_objects(parts, 15)
        await parts.close()

    run(story())
