"""One failing call of the file system, at every place and with every kind of error: nobody hangs, nothing is lost."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from ister.core.errors import BusyError, ClientError, CorruptError, IsterError, UnknownOutcomeError
from ister.core.message import MsgID, StreamMessage
from ister.core.offsets import StartPosition
from ister.core.retry import TRANSIENT_ERRNOS
from ister.ports.files.open_files import OpenFiles
from ister.storage.cursors.saved import CursorFile
from ister.wal import Wal, WalConfig
from sim.machine import SimClock, SimFiles, run

DIRECTORY = Path("/log")
PRUNED = 11
"""Offsets below may be gone."""
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM)
OF_FILES = (
    "create",
    "create_durable",
    "open",
    "open_read",
    "names",
    "make_directory",
    "sync_directory",
    "rename",
    "remove",
)
OF_FILE = ("append", "read", "sync", "truncate", "size", "close")


def config(mode):
    return WalConfig(dir=DIRECTORY, topic="/default/t", sync_mode=mode, max_bytes=4096, cache_capacity=4)


class FaultyFiles(SimFiles):
    """A simulated file system whose n-th call fails; a failing close closes all the same, as on Linux."""

    def __init__(self, failing=-1, number=errno.EIO, slots=0):
        super().__init__()
        self.calls = []
        self._failing = failing
        self._number = number
        self.open_files = OpenFiles(slots, idle_s=5) if slots else None
        for name in OF_FILES:
            setattr(self, name, self._faulty(name, getattr(self, name)))

    def _faulty(self, name, call):
        def faulty(*arguments):
            self.calls.append(name)
            fails = len(self.calls) - 1 == self._failing
            if fails and name != "close":
                if name in {"sync", "sync_directory"}:
                    self.on_step = self._fail_step
                    try:
                        return call(*arguments)
                    finally:
                        self.on_step = lambda op, path: None
                raise OSError(self._number, "refused")
            result = call(*arguments)
            if fails:
                raise OSError(self._number, "refused")
            if name in {"create", "create_durable", "open", "open_read"}:
                for act in OF_FILE:
                    setattr(result, act, self._faulty(act, getattr(result, act)))
            return result

        return faulty

    def _fail_step(self, op, path):
        raise OSError(self._number, "refused")


class Witness:
    """What the log has said of each message."""

    def __init__(self):
        self.acknowledged = {}
        self.refused = []
        self.unknown = []
        self.errors = []
        self.sent = 0

    async def append(self, wal, batch):
        messages = []
        for _ in range(batch):
            messages.append(StreamMessage(b"%d:" % self.sent + bytes(400), MsgID(topic_name="/default/t")))
            self.sent += 1
        payloads = [message.payload for message in messages]
        try:
            offsets = await wal.append_batch(messages) if batch > 1 else [await wal.append(messages[0])]
        except (BusyError, ClientError) as error:
            self.refused += payloads
            self.errors.append(error)
        except UnknownOutcomeError as error:
            self.unknown += payloads
            self.errors.append(error)
        else:
            self.acknowledged |= dict(zip(offsets, payloads, strict=True))

    async def attempt(self, operation):
        try:
            return await operation
        except (IsterError, OSError) as error:
            self.errors.append(error)


async def opened(files, witness, mode):
    """Open the log, at the second attempt if the first one fails: one call fails, and no other."""
    wal = await witness.attempt(Wal.with_config(config(mode), files=files, clock=SimClock()))
    return wal or await Wal.with_config(config(mode), files=files, clock=SimClock())


async def story(files, witness, mode):
    """Open, append, rest, rotate, save cursors, read, prune and close, twice."""
    for life in range(2):
        wal = await opened(files, witness, mode)
        cursors = CursorFile(files, DIRECTORY, "/default/t", wal.next_offset)
        await witness.attempt(cursors.load())
        for n in range(6):
            await asyncio.gather(*(witness.append(wal, 1) for _ in range(3)))
            await witness.append(wal, 2)
            if n == 3 and files.open_files is not None:
                wal.close_active()
                await asyncio.sleep(0.1)
        await witness.attempt(wal.rotate())
        await witness.attempt(cursors.advance("s", wal.synced_offset))
        reader = wal.create_reader(StartPosition.offset(wal.start_offset))
        for _ in range(3):
            if reader.next_offset < wal.visible_offset:
                await witness.attempt(reader.read())
        await witness.attempt(wal.prune(PRUNED if not life else 0))
        await asyncio.sleep(1)
        await witness.attempt(wal.close())


async def check(disk, witness):
    """Insist on every message that was acknowledged, and on none that was refused."""
    wal = await Wal.with_config(config("always"), files=disk, clock=SimClock())
    reader = wal.create_reader(StartPosition.offset(wal.start_offset))
    found = {}
    for _ in range(wal.start_offset, wal.next_offset):
        message = await anext(reader)
        found[message.offset] = message.payload
    assert list(found) == list(range(wal.start_offset, wal.next_offset))
    assert wal.start_offset <= PRUNED
    for offset, payload in witness.acknowledged.items():
        if offset >= wal.start_offset:
            assert found[offset] == payload, offset
    assert len(set(found.values())) == len(found)
    assert not set(found.values()) & set(witness.refused), witness.errors
    await wal.close()


@pytest.mark.parametrize("mode", ["always", "none"])
@pytest.mark.parametrize("slots", [0, 2])
@pytest.mark.parametrize("number", ERRNOS)
def test_one_failing_call_hangs_nobody_and_loses_nothing(number, slots, mode, count, tell):
    """I7, I10."""
    clean, witness = FaultyFiles(slots=slots), Witness()
    run(story(clean, witness, mode))
    assert not witness.errors
    step = count(8, 1)
    tried = range(number % step, len(clean.calls), step)
    for failing in tried:
        files, witness = FaultyFiles(failing, number, slots), Witness()
        place = f"call {failing}, {clean.calls[failing]}"
        run(story(files, witness, mode), failing)
        assert not files.locked, place
        if number in TRANSIENT_ERRNOS:
            assert not [error for error in witness.errors if isinstance(error, CorruptError)], place
        disks = [files.killed()] if mode == "none" else [files.killed(), files.unpowered(random.Random(failing))]
        for disk in disks:
            try:
                run(check(disk, witness))
            except Exception as error:
                raise AssertionError(place, witness.errors) from error
    tell("I10", f"{len(tried)} calls, each refused with {errno.errorcode[number]}")
