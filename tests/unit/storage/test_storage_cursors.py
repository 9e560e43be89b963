import asyncio
import errno
import random
from pathlib import Path
from zlib import crc32

import pytest

from ister.core.errors import DiskFullError, LogClosedError, OffsetOutOfRangeError, PoisonedError, SyncFailedError
from ister.core.frames.checksummed_json import seal, unseal
from ister.core.message import StreamMessage
from ister.storage import CorruptCursorsError, CursorsNotSavedError, WalStorage
from ister.storage.cursors.saved import CURSORS_NAME, dump_cursors, load_progress
from ister.wal import SyncMode, Wal, WalConfig
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")
CURSORS = DIRECTORY / CURSORS_NAME
DRAFT = DIRECTORY / (CURSORS_NAME + ".tmp")


async def opened(files, **settings):
    config = WalConfig(dir=DIRECTORY, sync_mode=SyncMode.NONE, topic="/default/topic", **settings)
    return WalStorage.from_wal(await Wal.with_config(config, files=files, clock=SimClock()))


async def with_messages(files, count, **settings):
    storage = await opened(files, **settings)
    await storage.append_messages([StreamMessage(b"%d" % n) for n in range(count)])
    return storage


def on_disk(files):
    """What the file says, without opening anything."""
    return load_progress(bytes(files.names_now[CURSORS].data), str(CURSORS))[0] if CURSORS in files.names_now else {}


def put_on_disk(files, data):
    files.make_directory(DIRECTORY)
    file = files.create(CURSORS)
    file.append([data])
    file.sync()
    files.sync_directory(DIRECTORY)


def steps_of(files):
    """Write down every operation from now on."""
    steps = []
    files.on_step = lambda op, path: steps.append((op, path.name))
    return steps


def test_cursors_are_there_after_a_restart():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("s", 4)
        await storage.ack_checkpoint("ünïcode \ud800", 10)
        await storage.forget_cursor("gone")
        await storage.ack_checkpoint("gone", 1)
        await storage.forget_cursor("gone")
        await storage.close()
        storage = await opened(files)
        assert await storage.cursors() == {"s": 4, "ünïcode \ud800": 10}
        assert await storage.ack_checkpoint("s", 2) == 4

    run(story())


def test_d5_a_cursor_is_never_persisted_beyond_what_is_synced():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        assert storage.wal.synced_offset == 0
        steps = steps_of(files)
        assert await storage.ack_checkpoint("s", 7) == 7
        assert storage.wal.synced_offset == 10
        log_synced = steps.index(("sync", storage.wal.segments()[-1].path.name))
        assert log_synced < steps.index(("create", DRAFT.name))

    run(story())


def test_a_cursor_whose_messages_cannot_be_synced_is_not_saved():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("s", 3)
        await storage.append_message(StreamMessage(b"more"))

        def fail(op, path):
            if op == "sync" and path.suffix == ".log":
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises((SyncFailedError, PoisonedError)):
            await storage.ack_checkpoint("s", 11)
        assert await storage.cursors() == {"s": 3} == on_disk(files)
        assert await storage.ack_checkpoint("s", 10) == 10, "what was synced before is still safe"

    run(story())


def test_the_file_is_replaced_in_the_only_safe_order():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.flush()
        steps = steps_of(files)
        await storage.ack_checkpoint("s", 7)
        draft = DRAFT.name
        assert [step for step in steps if step != ("remove", draft)] == [
            ("create", draft),
            ("append", draft),
            ("sync", draft),
            ("rename", draft),
            ("sync_directory", DIRECTORY.name),
        ]

    run(story())


def test_i11_a_damaged_file_is_an_error_that_names_it_and_never_an_empty_result():
    whole = dump_cursors({"s": 3, "t": 5})
    damaged = [whole[:cut] for cut in range(len(whole))]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]
    for data in damaged:
        with pytest.raises(CorruptCursorsError, match=CURSORS_NAME):
            load_progress(data, str(CURSORS))
    assert load_progress(whole, str(CURSORS))[0] == {"s": 3, "t": 5}


def test_j6_a_file_without_finished_ranges_is_what_earlier_releases_wrote_and_one_with_them_they_can_read():
    assert dump_cursors({"s": 3}) == b'a72c769e\n{"version":1,"cursors":{"s":3}}\n'
    assert load_progress(dump_cursors({"s": 3}), str(CURSORS)) == ({"s": 3}, {})
    whole = dump_cursors({"s": 3, "t": 1}, {"s": ((4, 6), (7, 8)), "t": (), "unknown": ((1, 2),)})
    assert load_progress(whole, str(CURSORS)) == ({"s": 3, "t": 1}, {"s": ((4, 6), (7, 8))})
    assert unseal(whole)["cursors"] == {"s": 3, "t": 1}, "they look at nothing else"


@pytest.mark.parametrize(
    "ranges", [5, [[1]], [[2, 2]], [[1, 3], [3, 4]], [[5, 6], [1, 2]], [["a", "b"]], [[1, 2.5]], [None]]
)
def test_i11_j6_ranges_that_cannot_be_are_damage(ranges):
    data = seal({"version": 1, "cursors": {"s": 0}, "finished": {"s": ranges}})
    with pytest.raises(CorruptCursorsError, match=CURSORS_NAME):
        load_progress(data, str(CURSORS))


def test_i11_damage_stops_the_first_use_whatever_it_is():
    async def story(use):
        files = SimFiles()
        put_on_disk(files, b"")
        storage = await opened(files)
        for _ in range(2):
            with pytest.raises(CorruptCursorsError, match=str(CURSORS)):
                await use(storage)
        assert bytes(files.names_now[CURSORS].data) == b"", "nothing was changed"
        assert storage.next_offset == 0
        await storage.close()

    for use in (
        lambda storage: storage.cursors(),
        lambda storage: storage.ack_checkpoint("s", 0),
        lambda storage: storage.forget_cursor("s"),
        lambda storage: storage.append_message(StreamMessage(b"")),
        lambda storage: storage.append_messages([StreamMessage(b"")]),
    ):
        run(story(use))


def test_i11_a_file_that_cannot_be_read_is_not_an_empty_one():
    async def story():
        files = SimFiles()
        put_on_disk(files, dump_cursors({"s": 0}))
        storage = await opened(files)
        files.unreadable.add(CURSORS)
        with pytest.raises(CorruptCursorsError, match="Permission denied"):
            await storage.cursors()
        files.unreadable.clear()
        assert await storage.cursors() == {"s": 0}

    run(story())


def test_a_file_of_a_later_release_is_refused_by_its_version():
    body = b'{"version":2,"cursors":{}}'
    with pytest.raises(CorruptCursorsError, match="version is 2"):
        load_progress(b"%08x\n%s\n" % (crc32(body), body), str(CURSORS))


def test_d5_a_cursor_beyond_the_recovered_log_is_cut_back_before_anything_is_appended():
    async def story():
        files = SimFiles()
        await (await with_messages(files, 5)).close()
        put_on_disk(files, dump_cursors({"ahead": 10, "behind": 2}))
        storage = await opened(files)
        assert await storage.append_message(StreamMessage(b"new")) == 5
        assert on_disk(files) == {"ahead": 5, "behind": 2}
        assert await storage.cursors() == {"ahead": 5, "behind": 2}

    run(story())


def test_d5_a_cursor_that_was_ahead_skips_nothing_even_after_a_second_crash():
    async def story():
        files = SimFiles()
        await (await with_messages(files, 5)).close()
        put_on_disk(files, dump_cursors({"s": 10}))
        storage = await with_messages(files, 10)  # its messages take the offsets that the cursor has passed
        await storage.flush()
        storage = await opened(files.killed())
        assert storage.next_offset == 15
        assert await storage.cursors() == {"s": 5}

    run(story())


def test_many_subscriptions_share_a_write():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 100)
        await storage.flush()
        steps = steps_of(files)
        await asyncio.gather(*(storage.ack_checkpoint(f"s{n % 50}", n) for n in range(100)))
        assert steps.count(("rename", DRAFT.name)) <= 2
        assert on_disk(files) == {f"s{n}": n + 50 for n in range(50)}

    run(story())


def test_an_acknowledgement_is_answered_only_once_its_own_cursor_is_on_disk():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.flush()

        async def ack(subscription, cursor):
            assert await storage.ack_checkpoint(subscription, cursor) >= cursor
            assert files.names_durable[CURSORS].durable == bytes(files.names_now[CURSORS].data)
            assert on_disk(files)[subscription] >= cursor

        first = asyncio.ensure_future(ack("a", 1))
        await asyncio.sleep(0)
        # These come while a write is under way that does not carry them; the last is behind one that waits.
        await asyncio.gather(first, ack("a", 5), ack("b", 3), ack("a", 4))

    run(story())


def test_i5_a_subscription_holds_what_it_needs_before_it_is_on_disk():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.flush()
        await storage.ack_checkpoint("old", 7)
        tasks = [asyncio.ensure_future(storage.ack_checkpoint("first", 5))]
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(storage.ack_checkpoint("new", 2)))  # waits for the write of the first
        tasks.append(asyncio.ensure_future(storage.forget_cursor("old")))
        await asyncio.sleep(0)
        assert on_disk(files) == {"old": 7}
        assert await storage.cursors() == {"old": 7, "first": 5, "new": 2}
        tasks.append(asyncio.ensure_future(storage.ack_checkpoint("old", 1)))  # it comes back, and begins before
        await asyncio.sleep(0)
        assert await storage.cursors() == {"old": 1, "first": 5, "new": 2}
        await asyncio.gather(*tasks)
        assert await storage.cursors() == {"old": 1, "first": 5, "new": 2} == on_disk(files)

    run(story())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_save_that_fails_at_any_step_is_told_and_the_next_one_succeeds(code):
    async def story(failing):
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.flush()
        await storage.ack_checkpoint("s", 3)

        def fail(op, path):
            if (op, path.name) == failing:
                raise OSError(code, "no")

        files.on_step = fail
        with pytest.raises(DiskFullError if code == errno.ENOSPC else CursorsNotSavedError):
            await storage.ack_checkpoint("s", 7)
        assert await storage.cursors() == {"s": 3}, "the old one may still be what is on disk"
        assert on_disk(files) in ({"s": 3}, {"s": 7})
        files.on_step = lambda op, path: None
        assert await storage.ack_checkpoint("s", 5) == 7
        assert await storage.cursors() == {"s": 7} == on_disk(files)
        assert DRAFT not in files.names_now
        await storage.close()

    for op in ("create", "append", "sync", "rename"):
        run(story((op, DRAFT.name)))
    run(story(("sync_directory", DIRECTORY.name)))


def test_f37_an_acknowledgement_can_be_cancelled_at_every_moment():
    async def story(moments):
        files = SimFiles()
        storage = await with_messages(files, 10)
        acking = asyncio.ensure_future(storage.ack_checkpoint("s", 7))
        for _ in range(moments):
            await asyncio.sleep(0)
        ended = acking.done()
        acking.cancel()
        await asyncio.wait([acking])
        assert await storage.ack_checkpoint("t", 8) == 8
        found = on_disk(files)
        assert found in ({"t": 8}, {"s": 7, "t": 8})
        assert await storage.cursors() == found
        await storage.close()
        return ended

    moments = 0
    while not run(story(moments), seed=moments):
        moments += 1
    assert moments > 5


def test_f17_nothing_is_written_once_the_directory_is_let_go():
    async def story(moments):
        files = SimFiles()
        storage = await with_messages(files, 10)
        acks = [asyncio.ensure_future(storage.ack_checkpoint("s", n)) for n in range(5)]
        for _ in range(moments):
            await asyncio.sleep(0)
        acks += [asyncio.ensure_future(storage.ack_checkpoint("t", n)) for n in range(5)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(storage.close())

        def owned(op, path):
            assert DIRECTORY in files.locked, (op, path)

        files.on_step = owned
        await closing
        ends = await asyncio.gather(*acks, return_exceptions=True)
        assert all(isinstance(end, int | LogClosedError) for end in ends), ends
        steps = steps_of(files)
        with pytest.raises(LogClosedError):
            await storage.ack_checkpoint("s", 9)
        assert steps == []

    for moments in range(40):
        run(story(moments), seed=moments)


def test_f17_a_save_that_failed_is_not_tried_again_once_the_directory_is_let_go():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.flush()

        def fail(op, path):
            if (op, path) == ("sync", DRAFT):
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises(CursorsNotSavedError):
            await storage.ack_checkpoint("s", 3)
        with pytest.raises(CursorsNotSavedError):
            await storage.close()
        assert files.locked == set(), "it is let go all the same"
        steps = steps_of(files)
        await storage.close()
        assert steps == []
        assert on_disk(files) == {}

    run(story())


def test_f17_closing_waits_for_cursors_that_are_just_being_read():
    async def story(moments):
        files = SimFiles()
        put_on_disk(files, dump_cursors({"ahead": 10}))
        storage = await opened(files)

        def owned(op, path):
            assert DIRECTORY in files.locked, (op, path)

        files.on_step = owned
        reading = asyncio.ensure_future(storage.cursors())
        for _ in range(moments):
            await asyncio.sleep(0)
        await storage.close()
        end = (await asyncio.gather(reading, return_exceptions=True))[0]
        assert isinstance(end, LogClosedError) or end == {"ahead": 0}
        assert DRAFT not in files.names_now

    for moments in range(20):
        run(story(moments), seed=moments)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_d5_cursors_saved_together_are_cut_back_to_what_is_synced_and_force_no_sync():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        for name in ("a", "b", "c"):
            await storage.ack_checkpoint(name, 0)
        await storage.flush()
        await storage.append_messages([StreamMessage(b"m")] * 5)
        steps = steps_of(files)
        saved = await storage.save_cursors({"a": 4, "b": 15, "c": 10**6})
        assert saved == {"a": 4, "b": 10, "c": 10} == on_disk(files) == await storage.cursors()
        assert storage.wal.synced_offset == 10
        assert [step for step in steps if step[0] == "sync"] == [("sync", DRAFT.name)]
        assert [step for step in steps if step[0] == "rename"] == [("rename", DRAFT.name)], "one file replaced for all"
        await storage.flush()
        assert await storage.save_cursors({"b": 15}) == {"b": 15}
        assert on_disk(files) == {"a": 4, "b": 15, "c": 10}

    run(story())


def test_saving_what_is_saved_touches_nothing():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("a", 5)
        steps = steps_of(files)
        loop = asyncio.get_running_loop()
        threads = []
        loop.run_in_executor = lambda *work: threads.append(work)
        for wanted in ({}, {"a": 5}, {"a": 3}):
            assert await storage.save_cursors(wanted) == dict.fromkeys(wanted, 5)
        assert (steps, threads) == ([], [])
        del loop.run_in_executor

    run(story())


def test_a_subscription_that_was_forgotten_is_not_made_again_by_a_late_save():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("a", 5)
        await storage.ack_checkpoint("b", 5)
        await storage.forget_cursor("a")
        assert await storage.save_cursors({"a": 8, "b": 8}) == {"b": 8}
        assert await storage.cursors() == {"b": 8} == on_disk(files)

    run(story())


def test_cursors_that_cannot_be_saved_are_told_and_the_next_save_has_them():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("a", 5)

        def fail(op, path):
            if path == DRAFT:
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises(CursorsNotSavedError):
            await storage.save_cursors({"a": 8})
        assert await storage.cursors() == {"a": 5}, "retention counts what is on disk"
        files.on_step = lambda op, path: None
        assert await storage.save_cursors({"a": 8}) == {"a": 8} == on_disk(files)

    run(story())


def test_a_closed_storage_saves_and_moves_no_cursor():
    async def story():
        storage = await with_messages(SimFiles(), 10)
        await storage.ack_checkpoint("a", 5)
        await storage.close()
        for act in (storage.save_cursors({"a": 6}), storage.reset_cursor("a", 3)):
            with pytest.raises(LogClosedError):
                await act

    run(story())


# --- moved by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 7, 9, 10])
def test_a_cursor_is_put_anywhere_and_stays_there_after_a_power_loss(at):
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.ack_checkpoint("s", 7)
        assert await storage.reset_cursor("s", at) == at
        assert await storage.cursors() == {"s": at} == on_disk(files)
        for seed in range(20):
            again = await opened(files.unpowered(random.Random(seed)))
            assert await again.cursors() == {"s": at}
        assert await storage.ack_checkpoint("s", 10) == 10

    run(story())


def test_d5_a_cursor_is_put_only_where_messages_are_and_only_once_they_are_synced():
    async def story():
        files = SimFiles()
        storage = await with_messages(files, 10)
        await storage.wal.rotate()
        await storage.prune(10)
        await storage.append_messages([StreamMessage(b"m")] * 5)
        for wrong in (-1, 9, 16):
            with pytest.raises(OffsetOutOfRangeError):
                await storage.reset_cursor("s", wrong)
        assert await storage.cursors() == {}
        assert storage.wal.synced_offset == 10
        assert await storage.reset_cursor("s", 15) == 15
        assert storage.wal.synced_offset == 15

    run(story())


def test_i5_retention_waits_for_a_cursor_from_the_moment_it_is_put_back():
    async def story():
        storage = await with_messages(SimFiles(), 10)
        await storage.ack_checkpoint("s", 10)
        putting = asyncio.ensure_future(storage.reset_cursor("s", 2))
        await asyncio.sleep(0)
        assert not putting.done()
        assert (await storage.cursors())["s"] == 2
        assert await putting == 2
        forward = asyncio.ensure_future(storage.reset_cursor("s", 9))
        await asyncio.sleep(0)
        assert (await storage.cursors())["s"] == 2, "what is not saved yet holds back"
        assert await forward == 9

    run(story())
