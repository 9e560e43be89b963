"""Few logs hold a file open at a time: who is idle lets go, who is needed gets it back, and nothing is lost by it."""

import asyncio
import errno
import random
import resource
from pathlib import Path

import pytest

from ister.core.errors import CorruptLogError, InvalidMessageError, PoisonedError, SyncFailedError
from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.ports.files.open_files import LEAST, MOST, OpenFiles, open_files_of_process
from ister.wal import AckLevel, SyncMode, Wal, WalConfig
from ister.wal.active_files import NotOpenedError
from parts.cloud import until
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")


class Holder:
    """Someone who lets go when told to, or later."""

    def __init__(self, slots, *, at_once=True):
        self.open_files = slots
        self.at_once = at_once
        self.asked = 0
        self.open = False

    def take(self):
        self.open_files.acquire(self, self.opened)
        return self

    def opened(self):
        self.open = True

    def close_active(self):
        self.asked += 1
        if self.at_once:
            self.let_go()

    def let_go(self):
        self.open = False
        self.open_files.release(self)


def files_with(limit=1, idle_s=1000.0):
    files = SimFiles()
    files.open_files = OpenFiles(limit, idle_s=idle_s)
    return files


async def opened(files, number=1, **settings):
    directory = DIRECTORY.with_name(str(number))
    config = WalConfig(**{"dir": directory, "sync_mode": SyncMode.NONE, "topic": f"/default/t{number}"} | settings)
    return await Wal.with_config(config, files=files, clock=SimClock())


async def payloads(wal):
    reader = wal.create_reader(StartPosition.offset(wal.start_offset))
    return [(await anext(reader)).payload for _ in range(wal.start_offset, wal.next_offset)]


def message(number):
    return StreamMessage(b"%d" % number)


def opens_of(files):
    """Write down every file that is opened to write from now on."""
    opens = []
    before = files.open

    def note(path):
        opens.append(path.name)
        return before(path)

    files.open = note
    return opens


# --- slots ------------------------------------------------------------------------------------------------------------


def test_who_has_not_used_his_file_for_the_longest_time_makes_room():
    async def story():
        slots = OpenFiles(2, idle_s=1000)
        a, b = Holder(slots).take(), Holder(slots).take()
        slots.touch(a, asyncio.get_running_loop().time())
        c = Holder(slots).take()
        assert (a.open, b.open, c.open, slots.in_use) == (True, False, True, 2)

    run(story())


def test_who_wants_a_file_waits_until_one_is_let_go_in_order():
    async def story():
        slots = OpenFiles(2, idle_s=1000)
        busy = [Holder(slots, at_once=False).take() for _ in range(2)]
        waiting = [Holder(slots, at_once=False).take() for _ in range(3)]
        assert [holder.asked for holder in busy] == [1, 1], "each is asked once"
        assert [holder.open for holder in waiting] == [False] * 3
        busy[1].let_go()
        assert [holder.open for holder in waiting] == [True, False, False]
        busy[0].let_go()
        assert [holder.open for holder in waiting] == [True, True, False]
        assert [holder.asked for holder in waiting] == [1, 0, 0], "as many are asked as wait"
        waiting[1].let_go()
        waiting[1].let_go()
        assert (waiting[2].open, slots.in_use) == (True, 2), "a slot is given back once"

    run(story())


def test_a_file_that_is_open_already_counts_and_others_let_go_for_it():
    async def story():
        slots = OpenFiles(1, idle_s=1000)
        a, b = Holder(slots).take(), Holder(slots)
        slots.hold(b)
        assert (a.open, slots.in_use) == (False, 1)

    run(story())


def test_idle_files_are_let_go_and_those_in_use_are_not():
    async def story():
        loop = asyncio.get_running_loop()
        slots = OpenFiles(10, idle_s=5)
        a, b = Holder(slots).take(), Holder(slots).take()
        for _ in range(9):
            await asyncio.sleep(1)
            slots.touch(b, loop.time())
        assert (a.open, b.open) == (False, True)
        await asyncio.sleep(6)
        assert (b.open, slots.in_use, slots._timer) == (False, 0, None)

    run(story())


@pytest.mark.parametrize(("soft", "slots"), [(1024, 256), (64, LEAST), (10**6, MOST), (resource.RLIM_INFINITY, MOST)])
def test_a_quarter_of_the_descriptors_is_for_logs(soft, slots, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert open_files_of_process()._limit == slots


# --- a log at rest ----------------------------------------------------------------------------------------------------


def test_a_log_that_is_idle_closes_its_file_and_goes_on_in_it():
    async def story():
        files = files_with(idle_s=1)
        wal = await opened(files)
        for number in range(3):
            assert files.open_files.in_use == 1
            assert await wal.append(message(number)) == number
            await asyncio.sleep(2)
            assert (files.open_files.in_use, wal._disk.active_closed, wal.synced_offset) == (0, True, number + 1)
            if number < 2:
                await wal.append_batch([])
        assert len(wal.segments()) == 1
        assert await payloads(wal) == [b"0", b"1", b"2"]
        await wal.close()
        wal = await opened(files)
        assert wal._disk.active_closed, "a log that was opened is idle at first"
        assert await payloads(wal) == [b"0", b"1", b"2"]

    run(story())


@pytest.mark.parametrize("level", [AckLevel.WAL, AckLevel.FSYNC])
@pytest.mark.parametrize("seed", range(6))
def test_many_logs_share_one_file_and_none_starves_loses_or_repeats(seed, level):
    async def story():
        rng = random.Random(seed)
        files = files_with(limit=rng.choice((1, 2)), idle_s=rng.choice((0.001, 1000)))
        wals = [await opened(files, number, level=level, max_bytes=4096) for number in range(5)]
        sent = [[] for _ in wals]
        await until(lambda: files.open_files.in_use <= files.open_files._limit)

        async def produce(index):
            for _ in range(20):
                text = rng.randbytes(rng.choice((3, 900)))
                act = rng.choice(("one", "batch", "many", "rotate", "sleep", "sync"))
                wal = wals[index]
                if act == "one":
                    assert await wal.append(StreamMessage(text)) == len(sent[index])
                    sent[index].append(text)
                elif act == "batch":
                    await wal.append_batch([StreamMessage(text)] * 2)
                    sent[index] += [text] * 2
                elif act == "many":
                    await asyncio.gather(*(wal.append(StreamMessage(text)) for _ in range(3)))
                    sent[index] += [text] * 3
                elif act == "rotate":
                    await wal.rotate()
                elif act == "sync":
                    assert await wal.sync() == len(sent[index])
                else:
                    await asyncio.sleep(rng.choice((0.001, 0.1)))
                assert files.open_files.in_use <= files.open_files._limit

        await asyncio.gather(*(produce(index) for index in range(5)))
        for wal, texts in zip(wals, sent, strict=True):
            assert await payloads(wal) == texts
        await asyncio.gather(*(wal.close() for wal in wals))
        assert files.open_files.in_use == 0
        for number, texts in enumerate(sent):
            assert await payloads(await opened(files, number)) == texts

    run(story(), seed)


@pytest.mark.parametrize("how", ["refused", "cancelled", "cancelled late"])
def test_a_batch_that_comes_to_nothing_does_not_keep_the_file_from_others(how):
    async def story():
        files = files_with()
        first, second = await opened(files, 1), await opened(files, 2)
        await first.append(message(0))
        await until(lambda: files.open_files.in_use == 1)
        await second.append(message(0))
        batch = [StreamMessage(b"", request_id=-1)] if how == "refused" else [message(1)]
        useless = asyncio.ensure_future(first.append_batch(batch))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(second.append_batch([message(1)]))
        if how != "refused":
            await until(lambda: first._file_users)
        if how == "cancelled":
            useless.cancel()
        elif how == "cancelled late":
            ended = asyncio.get_running_loop().create_future()
            ended.add_done_callback(lambda _: useless.cancel())
            first._waiters.idle.insert(0, ended)  # the file is there, and its turn has not come yet
        with pytest.raises(InvalidMessageError if how == "refused" else asyncio.CancelledError):
            await useless
        assert await other == range(1, 2)
        for wal in (first, second):
            await wal.close()

    run(story())


def test_f8_a_file_is_closed_only_once_all_of_it_is_on_disk_and_attested():
    async def story():
        files = files_with()
        wal = await opened(files)
        await wal.append(message(0))
        steps = []
        files.on_step = lambda op, path: steps.append(op)
        wal.close_active()
        await until(lambda: wal._disk.active_closed)
        assert steps == ["sync", "append", "sync"], "messages, then the marker that attests them, then that"
        for seed in range(20):
            image = files.unpowered(random.Random(seed))
            image.open_files = OpenFiles(1)
            again = await opened(image)
            assert (again.next_offset, len(again.segments())) == (1, 1), "nothing had to be rescued"
            await again.close()

    run(story())


def test_f8_a_file_that_cannot_be_synced_when_it_is_closed_poisons_the_log():
    async def story():
        files = files_with()
        wal = await opened(files, level=AckLevel.FSYNC)
        await wal.append(message(0))

        def fail(op, path):
            if op == "sync":
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        wal.close_active()
        with pytest.raises((PoisonedError, SyncFailedError)):
            await wal.append(message(1))
        assert await payloads(wal) == [b"0"]
        assert files.open_files.in_use == 0, "a log that takes nothing more keeps nobody from writing"

    run(story())


def test_a_file_that_cannot_be_opened_now_refuses_and_the_next_append_tries_again():
    async def story():
        files = files_with()
        wal = await opened(files)
        await wal.append(message(0))
        wal.close_active()
        await until(lambda: wal._disk.active_closed)
        path = wal.segments()[-1].path
        files.unreadable.add(path)
        for act in (wal.append(message(1)), wal.append_batch([message(1)]), wal.rotate()):
            with pytest.raises(NotOpenedError, match="nothing was stored, try again"):
                await act
        assert files.open_files.in_use == 0
        files.unreadable.clear()
        assert await wal.append(message(1)) == 1
        await wal.rotate()
        assert await payloads(wal) == [b"0", b"1"]
        await wal.close()

    run(story())


@pytest.mark.parametrize("how", ["shorter", "longer"])
def test_i4_a_file_that_someone_changed_while_it_was_at_rest_is_not_written(how):
    async def story():
        files = files_with()
        wal = await opened(files)
        await wal.append(message(0))
        wal.close_active()
        await until(lambda: wal._disk.active_closed)
        inode = files.names_now[wal.segments()[-1].path]
        before = len(inode.data)
        inode.data[before - 1 :] = b"" if how == "shorter" else b"xyz"
        size = len(inode.data)
        with pytest.raises((PoisonedError, CorruptLogError)):
            await wal.append_batch([message(1)])
        with pytest.raises(PoisonedError, match=f"has {size} bytes, {before} were written"):
            await wal.append(message(1))
        assert len(inode.data) == size

    run(story())


def test_a_log_at_rest_can_be_closed_synced_rotated_and_pruned():
    async def story():
        files = files_with(idle_s=0.001)
        wal = await opened(files)
        for number in range(3):
            await wal.append(message(number))
            await asyncio.sleep(1)
            assert wal._disk.active_closed
            assert await wal.sync() == number + 1
            await wal.rotate()
        await asyncio.sleep(1)
        assert (files.open_files.in_use, [segment.first for segment in wal.segments()]) == (0, [0, 1, 2, 3])
        assert await wal.prune(2) == 2
        opens = opens_of(files)
        await wal.close()
        assert opens == []
        wal = await opened(files)
        assert (wal.start_offset, wal.next_offset) == (2, 3)
        await wal.close()

    run(story())


def test_closing_stores_what_was_given_to_a_log_at_rest():
    async def story():
        files = files_with()
        wal = await opened(files)
        await wal.append(message(0))
        wal.close_active()
        await until(lambda: wal._disk.active_closed)
        appending = asyncio.ensure_future(wal.append(message(1)))
        await asyncio.sleep(0)
        await wal.close()
        assert await appending == 1
        assert await payloads(await opened(files)) == [b"0", b"1"]

    run(story())
