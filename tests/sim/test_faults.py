"""One fault at a time, at every place where it can happen."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from ister.core.errors import (
    BusyError,
    DiskFullError,
    IsterError,
    MissingFileError,
    PoisonedError,
    SyncFailedError,
    UnknownOutcomeError,
    WriteFailedError,
)
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.wal import Wal, WalConfig
from sim.machine import ShortWriteError, SimClock, SimFiles, run
from sim.story import DIRECTORY, Story, check

CONFIG = WalConfig(dir=DIRECTORY, topic="/default/topic", sync_mode="always", max_bytes=4096, cache_capacity=8)


def message(n, size=60):
    return StreamMessage(b"%d:" % n + bytes(size), MsgID(topic_name="/default/topic"), request_id=n)


async def everything(files, config=CONFIG):
    """Open, read all, close; returns the messages' payloads."""
    wal = await Wal.with_config(config, files=files, clock=SimClock())
    reader = wal.create_reader(StartPosition.offset(wal.start_offset))
    found = [await anext(reader) for _ in range(wal.start_offset, wal.next_offset)]
    assert [m.offset for m in found] == list(range(wal.start_offset, wal.next_offset))
    await wal.close()
    return [m.payload for m in found]


async def traffic(files, ops, acked, config=CONFIG):
    """Append one by one until an error; returns it, having closed the log."""
    wal = await Wal.with_config(config, files=files, clock=SimClock())
    failure = None
    for n in range(ops):
        try:
            offset = await wal.append(message(n))
        except IsterError as error:
            failure = error
            break
        acked[offset] = message(n).payload
    if isinstance(failure, SyncFailedError):
        for refused in (wal.append(message(999)), wal.append_batch([message(999)]), wal.sync(), wal.rotate()):
            with pytest.raises(PoisonedError, match="open the log again"):
                await refused
        reader = wal.create_reader(StartPosition.offset(0))
        for offset, payload in acked.items():
            assert (await anext(reader)).payload == payload, offset
    try:
        await wal.close()
    except SyncFailedError as error:
        failure = failure or error
    return failure


def test_f8_a_failed_sync_at_every_place_poisons_and_is_never_repeated(count, tell):
    clean: list[str] = []
    files = SimFiles()
    files.on_step = lambda op, path: clean.append(op)
    run(traffic(files, 200, {}))
    syncs = clean.count("sync")
    assert syncs >= 200
    for n in range(1, syncs + 1):
        files, acked, seen = SimFiles(), {}, []

        def fail(op, path, seen=seen, n=n):
            if op == "sync":
                assert path not in [p for p, failed in seen if failed], "a second sync of a file whose sync failed"
                seen.append((path, len(seen) + 1 == n))
                if len(seen) == n:
                    raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        failure = run(traffic(files, 200, acked))
        assert isinstance(failure, SyncFailedError), n
        files.on_step = lambda op, path: None
        for disk in (files.killed(), files.unpowered(random.Random(n))):
            recovered = run(everything(disk))
            assert recovered[: len(acked)] == list(acked.values()), n
            assert run(everything(disk.unpowered(random.Random(n)))) == recovered
    tell("F8", f"simulated: a failed sync at each of {syncs} places")


@pytest.mark.parametrize("kind", ["short", "EIO", "ENOSPC"])
def test_f9_nothing_is_appended_after_a_partial_frame(kind, tell):
    writes: list[Path] = []
    files = SimFiles()
    files.on_step = lambda op, path: writes.append(path) if op == "append" else None
    run(traffic(files, 60, {}))
    for n in range(1, len(writes) + 1):
        files, acked, seen, unknown = SimFiles(), {}, [], []

        def fail(op, path, seen=seen, n=n):
            if op == "append":
                seen.append(path)
                if len(seen) == n:
                    if kind == "short":
                        raise ShortWriteError(n * 7)
                    raise OSError(getattr(errno, kind), kind)

        async def live(files=files, acked=acked, unknown=unknown):
            try:
                wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
            except (OSError, IsterError):
                return
            for number in range(60):
                try:
                    acked[await wal.append(message(number))] = message(number).payload
                except BusyError:
                    continue
                except UnknownOutcomeError:
                    unknown.append(message(number).payload)
                    break
            await wal.close()

        files.on_step = fail
        run(live())
        files.on_step = lambda op, path: None
        assert sorted(acked) == list(range(len(acked))), "offsets stay dense"
        if kind != "EIO":
            assert len(acked) >= 59, "the log goes on after the disk was full"
        for disk in (files.killed(), files.unpowered(random.Random(n))):
            found, sure = run(everything(disk)), list(acked.values())
            assert found in (sure, sure + unknown), (kind, n)
    tell("F9", f"{kind} at each of {len(writes)} writes")


def test_a_cut_back_that_fails_poisons():
    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        await wal.append(message(0))

        def fail(op, path):
            if op == "append":
                raise ShortWriteError(9)
            if op == "truncate":
                raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises(WriteFailedError, match="cutting"):
            await wal.append(message(1))
        with pytest.raises(PoisonedError):
            await wal.append(message(2))
        files.on_step = lambda op, path: None
        await wal.close()
        assert await everything(files.killed()) == [message(0).payload]

    run(main())


def test_f10_a_full_disk_refuses_keeps_reading_and_resumes(tell):
    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        acked, refused = [], 0
        for cycle in range(100):
            files.capacity = sum(len(i.data) for i in files.names_now.values()) + random.Random(cycle).randint(0, 900)
            while True:
                try:
                    assert await wal.append(message(len(acked))) == len(acked)
                except DiskFullError:
                    refused += 1
                    break
                acked.append(message(len(acked)).payload)
            reader = wal.create_reader(StartPosition.offset(0))
            assert [(await anext(reader)).payload for _ in acked] == acked
            files.capacity = None
        await wal.append(message(len(acked)))
        await wal.close()
        assert (await everything(files.killed()))[:-1] == acked
        return refused

    tell("F10", f"simulated: {run(main())} fill and free cycles")


def test_f11_rotation_syncs_the_old_file_then_the_new_name_then_acknowledges():
    async def main():
        files, steps = SimFiles(), []
        wal = await Wal.with_config(WalConfig(dir=DIRECTORY, sync_mode="none"), files=files, clock=SimClock())
        await wal.append(message(0))
        files.on_step = lambda op, path: steps.append((op, path.name[:14]))
        rotation = asyncio.create_task(wal.rotate())
        await asyncio.sleep(0)
        appended = asyncio.create_task(wal.append(message(1)))
        await rotation
        await appended
        files.on_step = lambda op, path: None
        await wal.close()
        return steps

    steps = run(main())
    old, new = "wal-0000000001", "wal-0000000002"
    order = [("sync", old), ("create", new), ("sync_directory", "1"), ("append", new)]
    places = [steps.index(step) for step in order]
    assert places == sorted(places)
    assert ("append", old) not in steps


def test_f12_a_damaged_stale_or_missing_checkpoint_changes_no_offset(count, tell):
    trials = count(200, 1_000)
    for seed in range(trials):
        rng = random.Random(seed)
        story = Story(seed)
        story.fault = "none"
        story.power_crashes = 0
        end = story.live()[-1]
        with_it = run(everything(end.disk.killed(), story.config))
        disk = end.disk.killed()
        checkpoint = DIRECTORY / "checkpoint.json"
        if checkpoint in disk.names_now:
            data = disk.names_now[checkpoint].data
            how = rng.choice(("gone", "flipped", "cut", "old"))
            if how == "gone":
                del disk.names_now[checkpoint]
            elif how == "flipped":
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            elif how == "cut":
                del data[rng.randrange(len(data)) :]
            else:
                earlier = [c.disk for c in story.crashes if checkpoint in c.disk.names_now]
                data[:] = rng.choice(earlier).names_now[checkpoint].data if earlier else b""
        assert run(everything(disk, story.config)) == with_it, seed
    tell("F12", f"{trials} checkpoints deleted, flipped, cut or old")


def test_f13_every_unreadable_or_missing_file_is_named_with_its_span():
    async def make():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        for n in range(150):
            await wal.append(message(n))
        await wal.close()
        return files, wal.segments()

    files, segments = run(make())
    assert len(segments) > 4
    for index, segment in enumerate(segments):
        stop = segments[index + 1].first if index + 1 < len(segments) else None
        disk = files.killed()
        disk.unreadable = {segment.path}
        with pytest.raises(MissingFileError, match="Permission denied") as found:
            run(everything(disk))
        assert (found.value.file, found.value.start) == (str(segment.path), segment.first)
        if 0 < index < len(segments) - 1:
            disk = files.killed()
            del disk.names_now[segment.path]
            with pytest.raises(MissingFileError, match="is missing") as found:
                run(everything(disk))
            assert (found.value.start, found.value.stop) == (segment.first, stop)


def test_f15_a_clock_that_steps_an_hour_changes_no_offset_and_no_name(count, tell):
    seeds = count(150, 1_000)
    for seed in range(seeds):
        story = Story(seed)
        story.fault, story.fault_at, story.power_crashes = "clock", 0, 0
        crashes = story.live()
        check(crashes[-1], story.config, seed, restarts=0)
    tell("F15", f"{seeds} lives with a clock stepping one hour back and forth")


class CancelAt:
    """Await a coroutine, and cancel the task at its n-th suspension."""

    def __init__(self, coroutine, n):
        self.coroutine, self.n, self.count = coroutine, n, 0

    def __await__(self):
        inner = self.coroutine.__await__()
        send, value = inner.send, None
        while True:
            try:
                future = send(value)
            except StopIteration as stop:
                return stop.value
            self.count += 1
            if self.count == self.n:
                asyncio.current_task().cancel()
            try:
                send, value = inner.send, (yield future)
            except BaseException as error:  # noqa: BLE001  # it belongs to the coroutine
                send, value = inner.throw, error


def test_f37_cancelling_at_every_await_leaves_no_hole_and_no_lost_waiter(tell):
    async def victim_acts(wal, acked):
        for n in range(6):
            payload = message(1000 + n)
            acked[await wal.append(payload)] = payload.payload
            offsets = await wal.append_batch([message(2000 + n, 400), message(3000 + n, 400)])
            acked[offsets[0]] = message(2000 + n, 400).payload
            await wal.sync()
            if n % 2:
                await wal.rotate()
            await wal.flush()

    async def main(n, config):
        files, acked = SimFiles(), {}
        wal = await Wal.with_config(config, files=files, clock=SimClock())

        async def bystander(base):
            for k in range(12):
                acked[await wal.append(message(base + k, 300))] = message(base + k, 300).payload

        async def victim():
            return await CancelAt(victim_acts(wal, acked), n)

        victim_task = asyncio.create_task(victim())
        async with asyncio.timeout(1000):
            await asyncio.gather(bystander(10), bystander(40))
            cancelled = (await asyncio.gather(victim_task, return_exceptions=True))[0] is not None
            assert await wal.append(message(5)) == wal.next_offset - 1
            await wal.close()
        recovered = await everything(files.killed(), config)
        for offset, payload in acked.items():
            assert recovered[offset] == payload
        assert len(set(recovered)) == len(recovered)
        return cancelled

    total = 0
    for mode in ("always", "none"):
        config = WalConfig(dir=DIRECTORY, topic="/default/topic", sync_mode=mode, max_bytes=4096, cache_capacity=4)
        n = 1
        while run(main(n, config), n):
            n += 1
        assert n > 10
        total += n - 1
    tell("F37", f"cancelled at each of {total} awaits")


def test_f8_a_closing_marker_that_never_reached_the_disk_does_not_stand_before_new_messages():
    for seed in range(60):

        async def main(seed=seed):
            files = SimFiles()
            wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
            await wal.append(message(0))

            def fail(op, path):
                if op == "sync":
                    raise OSError(errno.EIO, "Input/output error")

            files.on_step = fail
            with pytest.raises(SyncFailedError, match="closing"):
                await wal.close()
            files.on_step = lambda op, path: None
            again = await Wal.with_config(CONFIG, files=files.killed(), clock=SimClock())
            await again.append(message(1))
            return again.files.unpowered(random.Random(seed))

        assert run(everything(run(main()))) == [message(0).payload, message(1).payload]


def test_d4_a_periodic_sync_that_finds_the_disk_busy_is_made_up_for():
    config = WalConfig(dir=DIRECTORY, sync_mode="periodic", fsync_interval_ms=10)

    async def main(seed):
        files = SimFiles()
        wal = await Wal.with_config(config, files=files, clock=SimClock())
        for n in range(20):
            await wal.append(message(n))
            await asyncio.sleep(random.Random(f"{seed}{n}").choice((0.001, 0.009, 0.0101, 0.012)))
        stop = wal.next_offset
        await asyncio.sleep(0.1)
        assert wal.synced_offset == stop
        await wal.close()

    for seed in range(50):
        run(main(seed), seed)


def test_f9_a_batch_that_was_written_in_part_and_not_cut_is_unknown_not_refused():
    config = WalConfig(dir=DIRECTORY, sync_mode="none", max_batch_bytes=1024)

    async def main():
        files, appends = SimFiles(), []
        wal = await Wal.with_config(config, files=files, clock=SimClock())

        def fail(op, path):
            if op == "append":
                appends.append(path)
                if len(appends) == 2:
                    raise OSError(errno.EIO, "Input/output error")

        files.on_step = fail
        with pytest.raises(WriteFailedError):
            await asyncio.gather(wal.append(message(0)), wal.append_batch([message(n, 200_000) for n in range(12)]))
        with pytest.raises(PoisonedError):
            await wal.append(message(1))
        await wal.close()

    run(main())


def test_closing_twice_at_once_and_during_a_prune_lets_go_once_and_last():
    async def main():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        for n in range(100):
            await wal.append(message(n))
        assert len(wal.segments()) > 3
        removed_unlocked = []
        files.on_step = lambda op, path: removed_unlocked.append(path) if op == "remove" and not files.locked else None
        pruning = asyncio.create_task(wal.prune(90))
        await asyncio.sleep(0)
        await asyncio.gather(wal.close(), wal.close())
        await wal.close()
        await pruning
        assert not files.locked
        assert [path for path in removed_unlocked if path.suffix == ".log"] == []

    run(main())


def test_a_checkpoint_that_cannot_be_read_is_ignored():
    async def make():
        files = SimFiles()
        wal = await Wal.with_config(CONFIG, files=files, clock=SimClock())
        for n in range(100):
            await wal.append(message(n))
        await wal.close()
        return files

    files = run(make()).killed()
    files.unreadable = {DIRECTORY / "checkpoint.json"}
    assert len(run(everything(files))) == 100


def test_f10_a_message_that_was_cut_off_does_not_come_back_after_kill_nine_and_power_loss():
    async def main():
        files, cut = SimFiles(), []
        config = WalConfig(dir=DIRECTORY, topic="/default/topic", sync_mode="none")
        wal = await Wal.with_config(config, files=files, clock=SimClock())
        await wal.append(message(0))
        await wal.sync()

        def fail(op, path):
            if op == "append":
                raise ShortWriteError(500)
            if op == "sync":
                cut.append(files.killed())

        files.on_step = fail
        with pytest.raises(DiskFullError):
            await wal.append_batch([message(n) for n in range(1, 9)])
        again = await Wal.with_config(config, files=cut[0], clock=SimClock())
        assert again.next_offset == 1
        for seed in range(200):
            assert len(await everything(cut[0].unpowered(random.Random(seed)), config)) == 1, seed

    run(main())
