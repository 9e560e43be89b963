"""What the tests of the cloud tier share: a topic made of real parts, and thin wrappers that count, wait and fail."""

import asyncio
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from ister.cloud import CloudReader, Deleter, ObjectCatalog, Retention, Uploader, UploadOptions
from ister.cloud.uploader import UploadCheckpoint
from ister.core.message import StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import OffsetRange
from ister.ports.files.files import OsFiles
from ister.ports.metadata import MemoryMetadata
from ister.ports.objects import FsStore
from ister.storage import WalStorage
from ister.storage.tiered_reader import ObjectTier
from ister.wal import Wal, WalConfig

TOPIC = TopicName("default", "t")
DEADLINE_S = 120
MIB = 1024 * 1024


def run(main, deadline_s=DEADLINE_S):
    """Run one story to its end, with a deadline, and insist that it leaves no task behind."""

    async def limited():
        async with asyncio.timeout(deadline_s):
            result = await main
            await tasks_end()
            return result

    return asyncio.run(limited())


async def tasks_end():
    """Return once no other task is left; a deadline says which one is."""
    await until(lambda: len(asyncio.all_tasks()) == 1, 10, asyncio.all_tasks)


async def until(holds, deadline_s=20, tell=lambda: "it does not come true"):
    """Wait for a condition that no event tells of."""
    try:
        async with asyncio.timeout(deadline_s):
            while not holds():  # noqa: ASYNC110  # no event tells of it
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(tell()) from None


def messages(start, stop, size=0):
    return [StreamMessage(b"%d:" % n + bytes(size), publish_time=n) for n in range(start, stop)]


def payload(offset, size=0):
    return b"%d:" % offset + bytes(size)


def check(found, start, stop, size=0):
    """Insist on exactly the messages [start, stop)."""
    assert [m.offset for m in found] == list(range(start, stop))
    assert [m.payload for m in found] == [payload(n, size) for n in range(start, stop)]


async def read_on(reader, found=None):
    """Read until an error ends it; what came is added to `found`."""
    while True:
        messages_read = await reader.read()
        if found is not None:
            found += messages_read


class StepClock:
    """A wall clock that a test steps."""

    def __init__(self, now_us=1_800_000_000_000_000):
        self.now_us = now_us

    def wall_us(self):
        self.now_us += 1
        return self.now_us


class Trouble:
    """What becomes of calls: `fail` before they do anything, `lose` their answer, or `hold` them until an event."""

    def __init__(self):
        self.calls = []
        self.fail = {}
        self.lose = {}
        self.hold = {}

    def count(self, op):
        return sum(1 for called, *_ in self.calls if called == op)

    async def before(self, op, key):
        self.calls.append((op, key))
        if op in self.hold:
            await self.hold[op].wait()
        _raise(self.fail, op)

    def after(self, op):
        _raise(self.lose, op)


def _raise(plan, op):
    """An error is raised for ever; of a list, one at a time."""
    planned = plan.get(op)
    if isinstance(planned, list):
        planned = planned.pop(0) if planned else None
    if planned is not None:
        raise planned


class TroubledStore(Trouble):
    """A real store behind trouble, which counts what is read."""

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.reads = []
        self.spoil = []
        """What becomes of the bytes of the next reads, one function a read."""

    @property
    def name(self):
        return self.store.name

    @property
    def bytes_read(self):
        return sum(stop - start for _, start, stop in self.reads)

    async def put_if_absent(self, key, data):
        await self.before("put", key)
        info = await self.store.put_if_absent(key, data)
        self.after("put")
        return info

    async def make_durable(self, key, data):
        await self.before("make_durable", key)
        await self.store.make_durable(key, data)

    async def read(self, key, start, stop, *, etag=""):
        self.reads.append((key, start, stop))
        await self.before("read", key)
        data = await self.store.read(key, start, stop, etag=etag)
        return self.spoil.pop(0)(data) if self.spoil else data

    async def stat(self, key):
        await self.before("stat", key)
        return await self.store.stat(key)

    async def list(self, prefix, *, after=""):
        await self.before("list", prefix)
        async for info in self.store.list(prefix, after=after):
            yield info

    async def delete(self, key):
        await self.before("delete", key)
        await self.store.delete(key)
        self.after("delete")

    async def close(self):
        await self.store.close()


def flipped(at):
    """Return a function that flips one bit, as a bad network does."""
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class TroubledMetadata(Trouble):
    """A real metadata store behind trouble."""

    def __init__(self, metadata):
        super().__init__()
        self.metadata = metadata

    @property
    def name(self):
        return self.metadata.name

    async def get(self, key):
        await self.before("get", key)
        return await self.metadata.get(key)

    async def put(self, key, value, *, lease=None):
        await self.before("put", key)
        return await self.metadata.put(key, value, lease=lease)

    async def cas(self, key, value, *, version, lease=None):
        await self.before("cas", key)
        done = await self.metadata.cas(key, value, version=version, lease=lease)
        self.after("cas")
        return done

    async def delete(self, key, *, version=None):
        await self.before("delete", key)
        return await self.metadata.delete(key, version=version)

    async def list(self, prefix, *, start="", limit=None, reverse=False):
        await self.before("list", prefix)
        return await self.metadata.list(prefix, start=start, limit=limit, reverse=reverse)


@dataclass
class Parts:
    """One topic: log, objects, and what carries, reads and prunes."""

    directory: object
    store: TroubledStore
    metadata: TroubledMetadata
    wal: Wal
    catalog: ObjectCatalog
    uploader: Uploader
    storage: WalStorage
    clock: StepClock
    tasks: list = field(default_factory=list)

    @property
    def reader(self):
        return self.storage.objects.reader

    @property
    def checkpoint_file(self):
        return self.directory / "log" / "upload.json"

    def object_files(self):
        return sorted((self.directory / "objects" / "default" / "t" / "1").glob("*.dnb"))

    def log_files(self):
        return sorted((self.directory / "log").glob("wal-*.log"))

    def run_uploader(self):
        self.tasks.append(asyncio.create_task(self.uploader.run()))

    def deleter(self, **retention):
        return Deleter(self.storage, self.store, self.catalog, self.uploader, Retention(**retention), self.clock)

    async def add(self, count, size=0):
        start = self.wal.next_offset
        await self.storage.append_messages(messages(start, start + count, size))

    async def add_file(self, count, size=0):
        """Append and seal."""
        await self.add(count, size)
        await self.storage.seal(0)

    async def descriptors(self):
        return [descriptor async for descriptor in self.catalog.all()]

    async def spans(self):
        return [(descriptor.start, descriptor.stop) for descriptor in await self.descriptors()]

    async def read(self, start, stop, size=0):
        """Read [start, stop) through every tier and check it."""
        reader = await self.storage.create_reader(StartPosition.offset(start))
        found = []
        while len(found) < stop - start:
            found += await reader.read()
        await reader.close()
        check(found[: stop - start], start, stop, size)

    async def read_objects(self, start, stop, size=0):
        stream = self.reader.open(start, stop)
        check([message async for message in stream], start, stop, size)
        await stream.close()

    async def end_tasks(self):
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.tasks.clear()

    async def close(self):
        await self.end_tasks()
        await self.storage.close()

    async def crash(self):
        """Leave everything as kill -9 does."""
        await self.end_tasks()
        crash_wal(self.wal)


def crash_wal(wal):
    """Leave a log as kill -9 does."""
    wal._timers.disarm()
    wal._disk.abandon()
    wal._disk.worker.close()
    wal.closed = True


async def open_parts(directory, *, store=None, metadata=None, clock=None, files=None, upload=None, timeout_s=10, **wal):
    """Open one topic in a directory; give the store and metadata of an earlier life to go on with them."""
    clock = clock or StepClock()
    files = files or OsFiles()
    store = store or TroubledStore(FsStore(directory / "objects"))
    metadata = metadata or TroubledMetadata(MemoryMetadata())
    log = await Wal.with_config(WalConfig(dir=directory / "log", topic=str(TOPIC), **wal), files=files, clock=clock)
    catalog = ObjectCatalog(metadata, "/danube-data", TOPIC, 1)
    options = UploadOptions(**({"interval_s": 300} | (upload or {})))
    checkpoint = UploadCheckpoint(files, directory / "log")
    uploader = Uploader(log, store, catalog, checkpoint, options, epoch=1, jitter=lambda: 0.0)
    first, last = await catalog.first(), await catalog.last()
    known = OffsetRange(first.start, last.stop) if first and last else OffsetRange(0, 0)
    storage = WalStorage.from_wal(log, ObjectTier(CloudReader(store, catalog), uploader, known, timeout_s))
    return Parts(directory, store, metadata, log, catalog, uploader, storage, clock)


async def again(parts, **settings):
    """Open a topic that was closed or has crashed."""
    return await open_parts(parts.directory, store=parts.store, metadata=parts.metadata, clock=parts.clock, **settings)


@contextmanager
def told():
    """Collect what is logged, as a list of events."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with structlog.testing.capture_logs() as events:
            yield events
    finally:
        structlog.configure(**before)


def named(events, name):
    return [event for event in events if event["event"] == name]
