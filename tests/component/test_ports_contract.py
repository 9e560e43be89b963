"""The real file system and clock, and their simulated twins, keep the same contract."""

import asyncio
import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ister.core.errors import LockedError
from ister.core.retry import is_transient
from ister.ports.clock import SystemClock
from ister.ports.files.files import OsFiles
from sim.machine import SimClock, SimFiles, run


@pytest.fixture(params=["real", "simulated"])
def place(request, tmp_path):
    files = OsFiles() if request.param == "real" else SimFiles()
    directory = tmp_path / "a" / "b" if request.param == "real" else Path("/a/b")
    files.make_directory(directory)
    return files, directory


def test_what_is_appended_is_read_back_from_any_place(place):
    files, directory = place
    file = files.create(directory / "x")
    assert file.append([b"abc"]) == 3
    assert file.append([b"de", bytearray(b"f"), memoryview(b"gh")]) == 5
    assert (file.size(), file.read(0, 100), file.read(2, 3), file.read(8, 10), file.read(50, 10)) == (
        8,
        b"abcdefgh",
        b"cde",
        b"",
        b"",
    )
    reader = files.open_read(directory / "x")
    file.append([b"i"])
    assert reader.read(7, 9) == b"hi"
    reader.close()
    file.close()


def test_more_parts_than_one_call_takes_are_appended_in_order(place):
    """I12."""
    files, directory = place
    file = files.create(directory / "x")
    parts = [b"%d," % n for n in range(3 * os.sysconf("SC_IOV_MAX") + 1)]
    assert file.append(parts) == sum(map(len, parts))
    assert file.read(0, 1 << 20) == b"".join(parts)
    file.close()


def test_an_append_after_a_cut_starts_at_the_cut(place):
    files, directory = place
    file = files.create(directory / "x")
    file.append([b"abcdef"])
    file.truncate(2)
    file.append([b"Z"])
    file.sync()
    assert file.read(0, 10) == b"abZ"
    file.close()
    again = files.open(directory / "x")
    again.append([b"!"])
    assert again.read(0, 10) == b"abZ!"
    again.close()


def test_a_new_file_needs_a_free_name(place):
    files, directory = place
    files.create(directory / "x").close()
    with pytest.raises(FileExistsError):
        files.create(directory / "x")


def test_a_new_file_with_a_durable_name_needs_a_free_name_and_survives_a_power_loss(place):
    files, directory = place
    file = files.create_durable(directory / "x")
    assert file.append([b"x"]) == 1
    file.close()
    with pytest.raises(FileExistsError):
        files.create_durable(directory / "x")
    if isinstance(files, SimFiles):
        assert directory / "x" in files.names_durable


@pytest.mark.parametrize("free", [0, 1, 2])
def test_no_file_is_made_when_there_is_no_descriptor_left_to_sync_its_name(tmp_path, free):
    """I7."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))  # noqa: PTH208  # names, not paths
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        if free == 2:
            OsFiles().create_durable(tmp_path / "x").close()
        else:
            with pytest.raises(OSError, match="Too many open files"):
                OsFiles().create_durable(tmp_path / "x")
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (tmp_path / "x").exists() == (free == 2)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOSPC])
def test_a_failed_sync_is_never_a_transient_error(place, monkeypatch, number):
    """I7."""
    files, directory = place
    file = files.create(directory / "x")

    def fail(*_):
        raise OSError(number, "refused")

    if isinstance(files, SimFiles):
        files.on_step = lambda op, path: fail() if op.startswith("sync") else None
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    for act in (file.sync, lambda: files.sync_directory(directory)):
        with pytest.raises(OSError, match="refused") as failure:
            act()
        assert not is_transient(failure.value)
    with pytest.raises(OSError, match="could not be synced") as failure:
        files.create_durable(directory / "y")
    assert failure.value.errno == errno.EIO, "the file was made: nobody may go on as if it was not"


def test_a_lock_that_is_released_twice_closes_no_other_file(tmp_path):
    files = OsFiles()
    lock = files.lock(tmp_path)
    lock.release()
    other = files.create(tmp_path / "x")
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock.release()
    assert other.append([b"x"]) == 1
    other.close()


def test_what_is_not_there_cannot_be_opened_removed_renamed_or_listed(place):
    files, directory = place
    for act in (
        lambda: files.open(directory / "x"),
        lambda: files.open_read(directory / "x"),
        lambda: files.remove(directory / "x"),
        lambda: files.rename(directory / "x", directory / "y"),
        lambda: files.names(directory / "gone"),
        lambda: files.create(directory / "gone" / "x"),
        lambda: files.sync_directory(directory / "gone"),
    ):
        with pytest.raises(FileNotFoundError):
            act()


def test_a_rename_replaces_and_a_removed_file_stays_readable_to_who_has_it_open(place):
    files, directory = place
    for name in ("x", "y"):
        file = files.create(directory / name)
        file.append([name.encode()])
        file.close()
    held = files.open_read(directory / "y")
    files.rename(directory / "x", directory / "y")
    assert files.names(directory) == ["y"]
    assert (files.open_read(directory / "y").read(0, 9), held.read(0, 9)) == (b"x", b"y")
    files.remove(directory / "y")
    files.sync_directory(directory)
    assert files.names(directory) == []
    assert held.read(0, 9) == b"y"


def test_names_are_sorted_and_a_directory_may_be_made_twice(place):
    files, directory = place
    for name in ("c", "a", "b"):
        files.create(directory / name).close()
    files.make_directory(directory)
    assert files.names(directory) == ["a", "b", "c"]


def test_f17_a_directory_has_one_owner_and_the_next_is_told_who(place):
    files, directory = place
    lock = files.lock(directory)
    with pytest.raises(LockedError, match="owned by process"):
        files.lock(directory)
    lock.release()
    files.lock(directory).release()


def test_f17_whoever_owns_a_directory_owns_what_is_below_it(place):
    files, root = place
    log = root / "namespace" / "topic" / "1"
    files.make_directory(log)
    lock = files.lock(root)
    with pytest.raises(LockedError, match=f"directory {root} is owned by process"):
        files.lock(log)
    files.lock(log, lock).release()
    with pytest.raises(LockedError, match="owned by process"):
        files.lock(log)
    lock.release()
    files.lock(log).release()


def test_f17_whoever_owns_a_directory_does_not_own_what_another_had_before(place):
    files, root = place
    log = root / "namespace" / "topic" / "1"
    files.make_directory(log)
    own = files.lock(log)
    lock = files.lock(root)
    with pytest.raises(LockedError, match=f"directory {log} is owned by process"):
        files.lock(log, lock)
    own.release()
    files.lock(log, lock).release()
    lock.release()


def test_who_looks_whether_a_directory_is_owned_keeps_nobody_out(tmp_path):
    files = OsFiles()
    log = tmp_path / "namespace" / "topic" / "1"
    files.make_directory(log)
    files.lock(tmp_path).release()
    looking = os.open(tmp_path / "LOCK", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    files.lock(log).release()
    timer = threading.Timer(0.003, os.close, (looking,))
    timer.start()
    files.lock(tmp_path).release()
    timer.join()


def test_a_directory_is_durable_in_its_parents_each_synced_once(tmp_path):
    class Counting(OsFiles):
        synced = []  # noqa: RUF012  # one story

        def sync_directory(self, directory):
            self.synced.append(directory)
            super().sync_directory(directory)

    files = Counting()
    for topic in ("a", "b"):
        files.make_directory(tmp_path / "root" / topic)
    root = tmp_path / "root"
    assert Counting.synced.count(root) == 2
    assert Counting.synced.count(tmp_path) == 1
    Counting.synced.clear()
    files.make_directory(root / "a")
    assert Counting.synced == []
    (root / "a").rmdir()
    (root / "b").rmdir()
    root.rmdir()
    files.make_directory(root / "a")
    assert Counting.synced == [root, tmp_path], "what was made again is synced again"


def test_a_closed_file_takes_nothing(place):
    files, directory = place
    file = files.create(directory / "x")
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        file.append([b"x"])
    assert error.value.errno == errno.EBADF


@pytest.mark.parametrize("clock", [SystemClock(), SimClock()])
def test_a_clock_tells_microseconds_since_1970(clock):
    assert 1_700_000_000_000_000 < clock.wall_us() <= clock.wall_us()


def test_s16_files_are_not_readable_by_others(tmp_path):
    files = OsFiles()
    files.make_directory(tmp_path / "d")
    files.create(tmp_path / "d" / "x").close()
    assert os.stat(tmp_path / "d" / "x").st_mode & 0o007 == 0  # noqa: PTH116  # the mode is what is asked
    assert os.stat(tmp_path / "d").st_mode & 0o007 == 0  # noqa: PTH116  # the same


@pytest.mark.parametrize("kind", ["real", "simulated"])
def test_a_worker_does_one_thing_after_the_other_and_hands_back_results_and_errors(kind):
    async def main():
        worker = (OsFiles() if kind == "real" else SimFiles()).worker()
        done = []

        def work(n):
            done.append(n)
            if n == 2:
                raise OSError(errno.EIO, "Input/output error")
            return n * 10

        answers = []
        ended = asyncio.get_running_loop().create_future()

        def then(result, error):
            answers.append(result if error is None else type(error))
            if len(answers) == 5:
                ended.set_result(None)

        for n in range(5):
            worker.run(partial(work, n), then)
        await ended
        assert answers == [0, 10, OSError, 30, 40]
        assert done == [0, 1, 2, 3, 4]
        worker.close()

    asyncio.run(main()) if kind == "real" else run(main())


LEAVES_NOTHING = """
import asyncio, threading
from pathlib import Path
from ister.ports.files.files import OsFiles

async def main():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        worker = OsFiles().worker()
        ended = asyncio.get_running_loop().create_future()
        worker.run(list, lambda result, error, ended=ended: ended.set_result(result))
        assert await ended == []
        worker.run(list, lambda result, error: print("called back after close"))
        worker.close()
    for thread in threading.enumerate():
        if thread.name == "ister-disk":
            thread.join(20)
            assert not thread.is_alive()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

asyncio.run(main())
print("nothing left")
"""


def test_a_closed_worker_leaves_no_descriptor_and_no_thread():
    ran = subprocess.run(
        [sys.executable, "-c", LEAVES_NOTHING], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "nothing left\n", ran.stdout + ran.stderr
