"""A process that runs out of file descriptors: operations are refused and may be tried again; nothing counts as damage."""

import asyncio
import errno
from pathlib import Path

import pytest

from ister.core.errors import CorruptCursorsError, MissingFileError, ResourceExhaustedError, UnknownOutcomeError
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.core.retry import TRANSIENT_ERRNOS, is_transient
from ister.ports.files.open_files import OpenFiles
from ister.storage.cursors.saved import CursorFile
from ister.wal import Wal, WalConfig
from ister.wal.read_only import LogView
from parts.cloud import named, told
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/log")
CONFIG = WalConfig(dir=DIRECTORY, topic="/default/t", max_bytes=4096, cache_capacity=1)
MESSAGES = 40


def message(n):
    return StreamMessage(b"%d:" % n + bytes(300), MsgID(topic_name="/default/t"), request_id=n)


class LimitedFiles(SimFiles):
    """A simulated file system with a table of descriptors, which is full during some of the calls."""

    def __init__(self, full_from=0, full_calls=0, free=0, slots=None):
        super().__init__()
        self.open_files = OpenFiles(slots) if slots else None
        self.calls = self.held = self.refused = 0
        self._full = range(full_from, full_from + full_calls)
        self._free = free
        self._limit = 0

    def create(self, path):
        self._need_descriptor()
        return self._hold(super().create(path))

    def create_durable(self, path):
        self._need_descriptor(2)
        file = SimFiles.create(self, path)
        SimFiles.sync_directory(self, path.parent)
        return self._hold(file)

    def open(self, path):
        self._need_descriptor()
        return self._hold(super().open(path))

    def open_read(self, path):
        self._need_descriptor()
        return self._hold(super().open_read(path))

    def names(self, directory):
        self._need_descriptor()
        return super().names(directory)

    def sync_directory(self, directory):
        self._need_descriptor()
        super().sync_directory(directory)

    def lock(self, directory, within=None):
        self._need_descriptor()
        return super().lock(directory, within)

    def _need_descriptor(self, count=1):
        if self.calls not in self._full:
            self._limit = self.held + self._free
        elif self.held + count > self._limit:
            self.calls += 1
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        self.calls += 1

    def _hold(self, file):
        self.held += 1
        close = file.close

        def close_and_give_back():
            self.held -= 1
            close()

        file.close = close_and_give_back
        return file


async def again(operation, *arguments, **settings):
    """Repeat an operation as long as it is refused for a reason that passes."""
    for _ in range(50):
        try:
            return await operation(*arguments, **settings)
        except Exception as error:
            if not is_transient(error):
                raise
            await asyncio.sleep(1)
    raise AssertionError("refused for ever")


async def one_life(files, life):
    """Open, append, rotate, read, look, save cursors, prune and close."""
    wal = await again(Wal.with_config, CONFIG, files=files, clock=SimClock())
    assert wal.next_offset == life * MESSAGES
    cursors = CursorFile(files, DIRECTORY, "/default/t", wal.next_offset)
    await again(cursors.load)
    assert cursors.durable() == ({"s": MESSAGES} if life else {})
    for n in range(life * MESSAGES, (life + 1) * MESSAGES):
        assert await again(wal.append, message(n)) == n
        if n % 15 == 0 and files.open_files is not None:
            wal.close_active()
            await asyncio.sleep(0.1)
    await again(wal.sync)
    await again(wal.rotate)
    await again(cursors.advance, "s", wal.next_offset)
    reader = wal.create_reader(StartPosition.offset(wal.start_offset))
    while reader.next_offset < wal.next_offset:
        await again(reader.read)
    assert (await again(wal.read_raw, wal.start_offset, None, 1 << 20)).data
    await again(asyncio.to_thread, LogView.open, files, DIRECTORY)
    await again(wal.prune, 0 if life else MESSAGES // 2)
    assert not wal.poison
    await wal.close()


async def story(files):
    """Live twice, and return what a reader finds then."""
    await one_life(files, 0)
    await one_life(files, 1)
    view = await again(asyncio.to_thread, LogView.open, files, DIRECTORY)
    reader = view.create_reader(StartPosition.offset(view.start_offset))
    found = []
    while reader.next_offset < view.next_offset:
        found += await again(reader.read)
    return [m.payload for m in found]


@pytest.mark.parametrize(("full_calls", "free", "slots"), [(4, 0, 2), (4, 1, None)])
def test_no_moment_without_descriptors_damages_or_stops_a_log(full_calls, free, slots):
    """I7."""
    untouched = LimitedFiles(slots=slots)
    run(story(untouched))
    expected = [message(n).payload for n in range(MESSAGES // 2, 2 * MESSAGES)]
    refused = 0
    for full_from in range(untouched.calls):
        files = LimitedFiles(full_from, full_calls, free, slots)
        with told() as events:
            found = run(story(files))
        assert found[-len(expected) :] == expected, full_from
        assert not named(events, "log_poisoned"), full_from
        assert not files.locked, full_from
        assert files.held == 0, f"a file stays open: {full_from}"
        refused += files.refused
    assert refused


class FailingFiles(SimFiles):
    """A simulated file system whose calls fail as a test wants: `fail(op, path)` raises."""

    fail = staticmethod(lambda op, path: None)

    def create_durable(self, path):
        self.fail("create_durable", path)
        return super().create_durable(path)

    def open_read(self, path):
        self.fail("open_read", path)
        return super().open_read(path)


def failing(number, *ops, suffix=""):
    def fail(op, path):
        if op in ops and path.name.endswith(suffix):
            raise OSError(number, "refused")

    return fail


@pytest.mark.parametrize("number", sorted(TRANSIENT_ERRNOS))
def test_a_rotation_without_descriptors_is_postponed_and_appends_go_on_in_the_old_file(number):
    """I7."""

    async def main():
        files = FailingFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        files.fail = failing(number, "create_durable")
        with told() as events:
            await wal.append_batch([message(n) for n in range(20)])
            with pytest.raises(ResourceExhaustedError, match="create wal-0000000002"):
                await wal.rotate()
            assert [await wal.append(message(n)) for n in range(20, 25)] == list(range(20, 25))
            await asyncio.sleep(3)
        assert (wal.poison, wal.rotations, wal.synced_offset >= 20) == ("", 0, True)
        assert 2 <= len(named(events, "rotation_postponed")) <= 5, "once a second, not with each append"
        files.fail = lambda op, path: None
        await asyncio.sleep(2)
        assert (wal.rotations, len(wal.segments())) == (1, 2), "it is tried again without an append"
        assert await wal.append(message(25)) == 25
        await wal.close()
        again = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        assert again.next_offset == 26
        await again.close()

    run(main())


def test_a_write_that_is_refused_for_lack_of_memory_stores_nothing_and_the_next_one_goes_on():
    """I7."""

    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        files.on_step = failing(errno.ENOMEM, "append")
        for refused in (wal.append(message(0)), wal.append_batch([message(0)])):
            with pytest.raises(ResourceExhaustedError):
                await refused
        files.on_step = lambda op, path: None
        assert (wal.poison, await wal.append(message(0))) == ("", 0)
        await wal.close()

    run(main())


def test_a_name_that_was_not_synced_for_lack_of_memory_still_poisons():
    """I7: whatever the reason, after a failed sync nobody knows what is on disk."""

    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))
        files.on_step = failing(errno.ENOMEM, "sync_directory")
        with pytest.raises(UnknownOutcomeError):
            await wal.rotate()
        assert "rotating" in wal.poison
        await wal.close()

    run(main())


@pytest.mark.parametrize("number", [*sorted(TRANSIENT_ERRNOS), errno.EIO, errno.EACCES])
def test_only_an_error_that_stays_makes_a_file_missing_or_progress_damaged(number):
    """I7."""

    async def main():
        files = FailingFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append_batch([message(n) for n in range(20)])
        await wal.rotate()
        cursors = CursorFile(files, DIRECTORY, "/default/t", 20)
        await cursors.advance("s", 20)
        files.fail = failing(number, "open_read")
        lasting = number not in TRANSIENT_ERRNOS
        log_error = MissingFileError if lasting else ResourceExhaustedError
        cursors = CursorFile(files, DIRECTORY, "/default/t", 20)
        for error, refused in (
            (log_error, wal.create_reader(StartPosition.offset(0)).read()),
            (log_error, wal.read_raw(0, None, 1 << 20)),
            (CorruptCursorsError if lasting else ResourceExhaustedError, cursors.load()),
        ):
            with pytest.raises(error):
                await refused
        await wal.close()
        with pytest.raises(log_error):
            await Wal.with_config(CONFIG, files=files, clock=SimClock())
        files.fail = lambda op, path: None
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.close()

    run(main())
