"""Errors in callbacks on the event loop: whoever waits gets an answer, and other logs go on."""

import asyncio
import errno
import os
import resource
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ister.aio import background
from ister.core.errors import (
    LockedError,
    PoisonedError,
    ResourceExhaustedError,
    SyncFailedError,
    UnknownOutcomeError,
    WriteFailedError,
)
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.ports.files.disk_threads import SharedWorkers, ThreadWorker
from ister.ports.files.files import OsFiles
from ister.ports.files.open_files import OpenFiles
from ister.wal import AckLevel, Wal, WalConfig
from ister.wal.directory import OpenedLog, Segment
from parts.cloud import named, told
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/log")
CONFIG = WalConfig(dir=DIRECTORY, topic="/default/t", sync_mode="always")
DEADLINE_S = 60


def message(n):
    return StreamMessage(b"payload %d" % n, MsgID(topic_name="/default/t"), request_id=n)


def run_real(main):
    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            return await main

    return asyncio.run(limited())


class FailingClose(SimFiles):
    """A simulated file system on which closing a file fails, as NFS, FUSE and quotas may do."""

    fails = False

    def create_durable(self, path):
        return self._failing(super().create_durable(path))

    def open(self, path):
        return self._failing(super().open(path))

    def _failing(self, file):
        close = file.close

        def fail():
            close()
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")

        file.close = fail
        return file


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_file_that_reports_an_error_when_it_is_closed_hangs_nobody_and_keeps_no_lock(poisoned):
    """I10."""

    async def main():
        files = FailingClose()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))
        files.fails = True
        with told() as events:
            await wal.rotate()
            assert [await wal.append(message(n)) for n in (1, 2)] == [1, 2]
            if poisoned:
                files.on_step = fail_on("sync")
                with pytest.raises(SyncFailedError):
                    await wal.append(message(3))
                files.on_step = lambda op, path: None
            await wal.close()
        assert len(named(events, "file_not_closed")) == 2
        assert not files.locked
        files.fails = False
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        reader = wal.create_reader(StartPosition.offset(0))
        assert [(await anext(reader)).offset for _ in range(3)] == [0, 1, 2]
        await wal.close()

    run(main())


def test_a_file_at_rest_that_reported_an_error_when_it_was_closed_goes_on():
    """I10: it was synced before it was closed."""

    async def main():
        files = FailingClose()
        files.open_files = OpenFiles(4)
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))
        files.fails = True
        wal.close_active()
        await wal.sync()
        await asyncio.sleep(1)
        files.fails = False
        assert await wal.append(message(1)) == 1
        await wal.close()

    run(main())


def fail_on(*ops):
    def fail(op, path):
        if op in ops:
            raise OSError(errno.EIO, "Input/output error")

    return fail


def test_a_log_opened_and_abandoned_lets_go_of_its_lock_even_if_closing_fails():
    """I10, I16."""
    files = FailingClose()
    files.make_directory(DIRECTORY)
    lock = files.lock(DIRECTORY)
    file = files.create_durable(DIRECTORY / "x")
    files.fails = True
    OpenedLog(lock, [Segment(1, 0, DIRECTORY / "x")], file, 0, 0, 0, 0).abandon()
    assert not files.locked


def test_a_callback_that_raises_keeps_no_answer_from_the_others():
    """I10."""

    async def main():
        worker = ThreadWorker("test")
        held, answers, ended = threading.Event(), [], asyncio.get_running_loop().create_future()

        def then(n, result, error):
            answers.append(n)
            if n == 0:
                raise RuntimeError("a bug")
            if n == 3:
                ended.set_result(None)

        worker.run(held.wait, lambda result, error: then(0, result, error))
        for n in range(1, 4):
            worker.run(list, lambda result, error, n=n: then(n, result, error))
        held.set()
        with told() as events:
            await ended
        assert answers == [0, 1, 2, 3]
        assert len(named(events, "callback_failed")) == 1
        worker.close()

    run_real(main())


@pytest.mark.parametrize("job", ["sync", "rotate", "rest"])
def test_a_bug_in_what_follows_a_disk_operation_poisons_its_log_and_hangs_nobody(monkeypatch, job):
    """I10."""

    async def main():
        files = SimFiles()
        files.open_files = OpenFiles(4)
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))

        def bug(*arguments):
            raise ValueError("a bug")

        monkeypatch.setattr(wal, "_synced_up_to", bug)
        with told() as events:
            if job == "rest":
                wal.close_active()
                await asyncio.sleep(1)
            else:
                with pytest.raises(UnknownOutcomeError):
                    await (wal.append(message(1)) if job == "sync" else wal.rotate())
        assert "a bug" in named(events, "log_poisoned")[0]["cause"]
        with pytest.raises(PoisonedError):
            await wal.append(message(2))
        await wal.close()
        assert not files.locked

    run(main())


@pytest.mark.parametrize("at", ["before the write", "behind the write"])
@pytest.mark.parametrize("how", ["append", "append_batch"])
def test_a_bug_while_writing_is_answered_and_no_offset_is_written_twice(monkeypatch, at, how):
    """I10: once frames are written and not counted, the next append would write their offsets again."""

    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))

        def bug(*arguments):
            raise MemoryError

        monkeypatch.setattr(
            wal._disk if at == "before the write" else wal.cache, "write" if at == "before the write" else "add", bug
        )
        with pytest.raises(WriteFailedError):
            await (wal.append(message(1)) if how == "append" else wal.append_batch([message(1)]))
        with pytest.raises(PoisonedError):
            await wal.append(message(2))
        await wal.close()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        assert wal.next_offset == (1 if at == "before the write" else 2)
        await wal.close()

    run(main())


def test_who_waits_for_a_sync_of_a_poisoned_log_is_told():
    """I21."""

    async def main():
        files = SimFiles()
        config = WalConfig(dir=DIRECTORY, topic="/default/t", level=AckLevel.FSYNC)
        wal = await Wal.with_config(config, files=files, clock=SimClock())
        written = asyncio.get_running_loop().create_future()
        written.set_result(0)
        files.on_step = fail_on("sync")
        with pytest.raises(SyncFailedError):
            await wal.append(message(0))
        with pytest.raises(SyncFailedError):
            await wal._synced_too(written)
        await wal.close()

    run(main())


class Holder:
    def __init__(self, slots, error=None):
        self.open_files, self.error, self.asked = slots, error, 0

    def close_active(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.open_files.release(self)


def test_one_holder_that_fails_keeps_no_slot_from_the_others():
    """H5."""

    async def main():
        slots = OpenFiles(2, idle_s=1)
        broken, sound, admitted = Holder(slots, ValueError("a bug")), Holder(slots), []
        for holder in (broken, sound):
            slots.acquire(holder, lambda: None)

        def bug():
            raise ValueError("a bug")

        with told() as events:
            slots.acquire(Holder(slots), bug)
            slots.acquire(Holder(slots), lambda: admitted.append(1))
            await asyncio.sleep(5)
        assert admitted == [1]
        assert (broken.asked, sound.asked) == (1, 1)
        assert len(named(events, "callback_failed")) == 2

    run(main())


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("free", [0, 1, 2, 3])
def test_an_opening_without_descriptors_for_its_thread_lets_go_of_the_directory(tmp_path, threads, free):
    """I16."""

    async def main():
        config = WalConfig(dir=tmp_path, topic="/default/t")
        wal = await Wal.with_config(config)
        await wal.append(message(0))
        await wal.close()
        files = OsFiles(threads=threads)
        real = files.worker

        def worker_without_descriptors():
            with no_descriptors(free):
                return real()

        files.worker = worker_without_descriptors
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            with pytest.raises(ResourceExhaustedError):
                await Wal.with_config(config, files=files)
        assert len(list(Path("/proc/self/fd").iterdir())) < before + 5
        files.worker = real
        wal = await Wal.with_config(config, files=files)
        assert wal.next_offset == 1
        with pytest.raises(LockedError):
            await Wal.with_config(config)
        await wal.close()

    run_real(main())


@contextmanager
def no_descriptors(free):
    """Take all descriptors but a few."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("shared", [False, True])
def test_a_thread_that_cannot_be_started_leaves_nothing_and_is_transient(monkeypatch, shared):
    """I16."""

    async def main():
        def no_thread(thread):
            raise RuntimeError("can't start new thread")

        before = len(list(Path("/proc/self/fd").iterdir()))
        workers = SharedWorkers("test", 1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(BlockingIOError, match="thread"):
                workers.worker() if shared else ThreadWorker("test")
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        workers.worker().close()

    run_real(main())


def test_background_work_goes_on_where_the_cores_of_a_thread_cannot_be_chosen(monkeypatch):
    """H5: an initializer that raises ends a pool of threads for good."""

    def refuse(*arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    background._threads.cache_clear()
    try:
        assert run_real(background.in_background(lambda: 7)) == 7
    finally:
        background._threads().shutdown()
        background._threads.cache_clear()


def test_a_batch_of_more_pieces_than_one_call_takes_is_written_whole(tmp_path):
    """I12."""
    big = StreamMessage(b"x" * 9000, MsgID(topic_name="/default/t"))
    small = StreamMessage(b"", MsgID(topic_name="/default/t"))

    async def main():
        config = WalConfig(dir=tmp_path, topic="/default/t", max_batch_bytes=32 << 20)
        wal = await Wal.with_config(config)
        batch = ([big] + [small] * 113) * 1100
        assert await wal.append_batch(batch) == range(len(batch))
        await wal.close()
        wal = await Wal.with_config(config)
        assert wal.next_offset == len(batch)
        await wal.close()

    run_real(main())


def test_a_prune_that_fails_unexpectedly_keeps_its_files_in_the_log_and_does_not_keep_it_from_closing(monkeypatch):
    """H5."""

    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))
        await wal.rotate()

        def bug(doomed):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(wal._disk, "remove", bug)
        pruning = asyncio.create_task(wal.prune(1))
        await asyncio.sleep(0)
        await wal.close()
        with pytest.raises(RuntimeError):
            await pruning
        assert (wal.start_offset, len(wal.segments()), files.locked) == (0, 2, set())

    run(main())
