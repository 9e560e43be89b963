import asyncio
import random
from pathlib import Path

from ister.core.message import StreamMessage
from ister.core.offsets import StartPosition
from ister.storage import WalStorage
from ister.storage.cursors.saved import CURSORS_NAME, load_progress
from ister.wal import SyncMode, Wal, WalConfig
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/sim/default/topic/1")
CURSORS = DIRECTORY / CURSORS_NAME


async def opened(files):
    config = WalConfig(dir=DIRECTORY, sync_mode=SyncMode.NONE, max_bytes=4096, topic="/default/topic")
    return WalStorage.from_wal(await Wal.with_config(config, files=files, clock=SimClock()))


def on_disk(files):
    """What the file says, without opening anything."""
    return load_progress(bytes(files.names_now[CURSORS].data), str(CURSORS))[0] if CURSORS in files.names_now else {}


def test_f1_i9_no_crash_leaves_a_cursor_that_skips_or_forgets(count, tell):
    """At every step of a busy life: what was answered is there, and no cursor is ahead of the log."""
    seeds = count(12, 1000)
    states = sum(run(_life(seed), seed) for seed in range(seeds))
    tell("F1", f"cursors survive a crash: {states} crashes in {seeds} lives")
    assert states >= 100 * seeds


async def _life(seed):
    rng = random.Random(seed)
    files = SimFiles()
    storage = await opened(files)
    invoked: dict[str, set[int]] = {}
    answered: dict[str, int] = {}
    crashes = []

    def crash(op, path):
        facts = ({name: set(all_) for name, all_ in invoked.items()}, dict(answered))
        crashes.append((op, files.killed(), facts))
        crashes.append((op, files.unpowered(rng), facts))

    async def ack(name, cursor):
        invoked.setdefault(name, set()).add(cursor)
        await storage.ack_checkpoint(name, cursor)
        answered[name] = max(cursor, answered.get(name, 0))

    files.on_step = crash
    acks = []
    for _ in range(12):
        await storage.append_messages([StreamMessage(rng.randbytes(100))] * rng.randint(1, 10))
        acks += [
            asyncio.ensure_future(ack(name, rng.randint(0, storage.next_offset)))
            for name in rng.sample("abc", rng.randint(0, 3))
        ]
        if rng.random() < 0.5:
            await asyncio.gather(*acks)
    await asyncio.gather(*acks)
    await storage.close()
    for op, disk, (wanted, promised) in crashes:
        said = on_disk(disk)
        again = await opened(disk)
        found = await again.cursors()
        assert found == said, (seed, op, "no cursor is ahead of the log")
        assert on_disk(disk.unpowered(rng)) == found, (seed, op, "what was seen once cannot be lost by a second crash")
        for name, cursor in promised.items():
            assert found[name] >= cursor, (seed, op, name)
        for name, cursor in found.items():
            assert cursor in wanted[name], (seed, op, name)
            assert 0 <= cursor <= again.next_offset
        if again.next_offset:
            reader = await again.create_reader(StartPosition.offset(0))
            assert (await reader.read())[0].offset == 0
        await again.close()
    return len(crashes)
