"""One life of a topic with objects behind its log, and the checks of what any crash during it would leave.

The disk loses what was not synced; the object store and metadata are elsewhere and keep what reached them. Before every
step that changes one of the three, the world is copied: that is what a crash at that moment leaves.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ister.cloud import Deleter, Retention, UploadOptions, uploader
from ister.cloud import reader as object_reader
from ister.cloud.uploader import UPLOAD_NAME
from ister.core.errors import BusyError, IsterError, LogClosedError, UnknownOutcomeError
from ister.core.frames import segment
from ister.core.frames.checksummed_json import seal, unseal
from ister.core.frames.columns import scan_run
from ister.core.frames.segment import describe, parse_key
from ister.core.message import MsgID, StreamMessage
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.ports.files.open_files import OpenFiles
from ister.storage.factory import TopicsConfig, WalStorageFactory
from ister.wal import AckLevel, WalConfig
from sim.cloud_machine import Network, SimMetadata, SimStore
from sim.machine import SimClock, SimFiles, run
from sim.story import BrokenPromiseError

if TYPE_CHECKING:
    from sim.table_machine import SimTable

TOPIC = TopicName("default", "topic")
ROOT = Path("/sim/wal")


@dataclass
class World:
    """Everything that outlives a process, and what is known of it."""

    disk: SimFiles
    store: SimStore
    metadata: SimMetadata
    acked: dict[int, bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    durable: int = 0
    described: int = 0
    how: str = "start"
    table: SimTable | None = None
    reported: int = 0

    def copy(self, rng: random.Random, how: str, older: SimFiles | None = None) -> World:
        """Return what is left at this moment by kill -9, power loss, a lost disk, or a disk restored from a copy."""
        network = Network(random.Random(rng.random()))
        if how == "kill":
            disk = self.disk.killed()
        elif how == "power":
            disk = self.disk.unpowered(rng)
        else:
            disk = older if how == "old" and older is not None else SimFiles()
        store = self.store.copy(network)
        if how == "power":
            store.lose_power(rng)
        return World(
            disk, store, self.metadata.copy(network), dict(self.acked), set(self.sent),
            self.durable, self.described, how, self.table.copy(network) if self.table else None, self.reported,
        )  # fmt: skip


@contextmanager
def small_sizes(seed: int):
    """Cut objects, ranges and places to seek by so small that a few messages cross all of them."""
    rng = random.Random(seed)
    sizes = [
        (uploader, "OBJECT_BYTES", rng.choice((700, 3000, 100_000))),
        (segment, "INDEX_BYTES", rng.choice((100, 400, 2000))),
        (object_reader, "SEEK_BYTES", rng.choice((64, 500, 5000))),
        (object_reader, "RANGE_BYTES", rng.choice((100, 700, 5000))),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in sizes]
    for owner, name, size in sizes:
        setattr(owner, name, size)
    try:
        yield
    finally:
        for owner, name, size in before:
            setattr(owner, name, size)


def new_world(seed: int) -> World:
    network = Network(random.Random(seed))
    return World(SimFiles(), SimStore(network, local=seed % 2 == 1), SimMetadata(network))


class CloudStory:
    """One seeded life of a topic in a given world."""

    acts = (2, 6)
    kinds = ("append", "append", "batch", "rotate", "sleep", "late", "clock")

    def __init__(self, seed: int, world: World, *, crash_every: int = 1) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.world = world
        self.crash_every = crash_every
        self.crashes: list[World] = []
        self.clock = SimClock()
        self.steps = self.count = 0
        self.older: SimFiles | None = None
        rng = self.rng
        self.level = rng.choice((AckLevel.WAL, AckLevel.FSYNC, AckLevel.CLOUD))
        self.config = TopicsConfig(
            wal=WalConfig(
                dir=ROOT, cache_capacity=rng.choice((1, 8)), max_bytes=4096, fsync_interval_ms=rng.choice((5, 1000)),
                level=self.level,
            ),
            upload=UploadOptions(interval_s=rng.choice((0.05, 0.5)), max_object_mb=1),
            retention=Retention(time_minutes=0, size_mb=0, check_interval_minutes=rng.choice((0.0005, 0.01))),
            cloud_timeout_s=3.0,
        )  # fmt: skip
        self.trouble = rng.choice((0.0, 0.0, 0.1, 0.3))

    # --- traffic ------------------------------------------------------------------------------------------------------

    def live(self) -> list[World]:
        """Live through it; returns a crash for every step."""
        world = self.world
        world.disk.on_step = self._on_step
        world.store.network.on_step = self._on_step
        world.disk.open_files = OpenFiles(1, idle_s=0.01) if self.seed % 3 == 2 else None
        with small_sizes(self.seed):
            run(self._live(), self.seed)
        world.disk.on_step = lambda op, path: None
        world.store.network.on_step = lambda op, key: None
        return self.crashes

    async def _live(self) -> None:
        world = self.world
        factory = self.factory()
        storage = await factory.for_topic(TOPIC)
        world.store.network.trouble = self.trouble
        readers = [
            asyncio.create_task(work) for work in (self._read(storage), self._read(storage), *self._beside(storage))
        ]
        await asyncio.gather(*(self._produce(storage) for _ in range(2)))
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader
        await asyncio.sleep(self.rng.choice((0.0, 1.0)))
        await factory.shutdown()
        world.store.network.trouble = 0.0

    def factory(self) -> WalStorageFactory:
        world = self.world
        return WalStorageFactory(
            self.config, store=world.store, metadata=world.metadata, files=world.disk, clock=self.clock
        )

    def _beside(self, _storage) -> list:
        """What else goes on while messages come."""
        return []

    async def _produce(self, storage) -> None:
        rng = self.rng
        for _ in range(rng.randint(*self.acts)):
            act = rng.choice(self.kinds)
            with suppress(BusyError, UnknownOutcomeError):
                if act == "append":
                    message = self._message()
                    self._acked(storage, await storage.append_message(message), [message])
                elif act == "batch":
                    messages = [self._message() for _ in range(rng.randint(1, 12))]
                    self._acked(storage, (await storage.append_messages(messages)).start, messages)
                elif act == "rotate":
                    await storage.seal(0)
                elif act == "late":
                    self.world.store.land(rng)
                elif act == "clock":
                    self.clock.now_us += rng.choice((-1, 1)) * 3_600_000_000
                else:
                    await asyncio.sleep(rng.choice((0.01, 0.1, 1.0)))
            self._note(storage)

    def _message(self) -> StreamMessage:
        self.count += 1
        payload = b"%d-%d-%d-" % (self.seed, len(self.world.sent), self.count) + self.rng.randbytes(
            self.rng.randint(0, 300)
        )
        self.world.sent.add(payload)
        return StreamMessage(
            payload=payload, msg_id=MsgID(1, str(TOPIC), "b", 0), request_id=0, publish_time=0, producer_name="p"
        )

    def _acked(self, storage, start: int, messages: list[StreamMessage]) -> None:
        for offset, message in enumerate(messages, start):
            if self.world.acked.setdefault(offset, message.payload) != message.payload:
                raise BrokenPromiseError(f"offset {offset} was given twice")
        self._note(storage)
        if self.level >= AckLevel.CLOUD and storage.objects.span.stop < start + len(messages):
            raise BrokenPromiseError("acknowledged at level cloud, and not in objects")

    def _note(self, storage) -> None:
        world = self.world
        world.durable = max(world.durable, storage.wal.synced_offset)
        world.described = max(world.described, storage.objects.span.stop)
        if storage.objects.span.stop > storage.wal.synced_offset:
            raise BrokenPromiseError("objects hold what is not synced")
        held = max(world.described, len(world.table.rows) if world.table else 0)
        if storage.log_start > held:
            raise BrokenPromiseError(f"the log starts at {storage.log_start}, later tiers end at {held} (I5)")

    async def _read(self, storage) -> None:
        """Read from a random place, slowly; what comes must be dense and what was sent."""
        rng = self.rng
        while True:
            at = rng.randint(storage.start_offset, storage.next_offset)
            reader = await storage.create_reader(StartPosition.offset(at))
            try:
                for _ in range(rng.randint(1, 8)):
                    messages = await reader.read()
                    at = self._seen(messages, at)
                    await asyncio.sleep(rng.choice((0.0, 0.01, 0.3)))
            except LogClosedError:
                return
            except IsterError as error:
                if not isinstance(error, BusyError):
                    raise
            finally:
                with suppress(AttributeError):
                    await reader.close()

    def _seen(self, messages, at: int) -> int:
        if not messages:
            raise BrokenPromiseError("a reader returned nothing")
        for message in messages:
            if message.msg_id.topic_offset != at:
                raise BrokenPromiseError(f"a reader got {message.msg_id.topic_offset} where {at} was due (I6)")
            if message.payload not in self.world.sent or self.world.acked.get(at, message.payload) != message.payload:
                raise BrokenPromiseError(f"a reader got another message at {at}")
            at += 1
        return at

    def _on_step(self, op, _path) -> None:
        if op in {"get", "list", "read", "stat"}:
            return
        self.steps += 1
        if self.steps % self.crash_every == 0:
            how = self.rng.choice(("kill", "kill", "power", "power", "lost", "old"))
            self.crashes.append(self.world.copy(self.rng, how, self.older.killed() if self.older else None))
            if self.rng.random() < 0.1:
                self.older = self.world.disk.killed()


# --- what must hold after a crash -----------------------------------------------------------------------------------------


def check(world: World, seed: int) -> None:
    """Open the topic again in a world that a crash left, and insist."""
    rng = random.Random(seed)
    world.store.land(rng) if rng.random() < 0.5 else None
    if rng.random() < 0.2:
        _harm_checkpoints(world.disk, rng)
    world.disk.open_files = OpenFiles(1, idle_s=0.01) if seed % 3 == 2 else None
    with small_sizes(seed):
        run(_check(world, rng, seed), seed)


async def _check(world: World, rng: random.Random, seed: int) -> None:
    story = CloudStory(seed, world)
    before = dict(world.store.objects)
    factory = story.factory()
    await factory.start()
    if factory.problems:
        raise BrokenPromiseError(f"a topic cannot be opened: {factory.problems}")
    storage = await factory.for_topic(TOPIC)
    kept = {"kill": max(world.acked, default=-1) + 1, "power": world.durable}.get(world.how, world.described)
    if storage.next_offset < kept:
        raise BrokenPromiseError(f"offsets [{storage.next_offset}, {kept}) are lost (I1)")
    for offset in [offset for offset in world.acked if offset >= kept]:
        del world.acked[offset]  # within the loss window of its level: another message may get this offset
    if storage.start_offset != 0:
        raise BrokenPromiseError(f"the topic starts at {storage.start_offset}, nothing was ever deleted from objects")
    end = storage.next_offset
    await _read_all(story, storage, end)
    message = story._message()
    offset = await storage.append_message(message)
    if offset != end:
        raise BrokenPromiseError(f"the next message got {offset}, {end} was due (I2)")
    world.acked[offset] = message.payload
    carrier = factory.uploader(TOPIC)
    await carrier.wait_uploaded(offset + 1, 60)
    world.store.land(rng)
    await factory.deleter(TOPIC).tick()
    # Whatever lands late is found by the sweep of the next start at the latest: a new deleter looks at all objects.
    swept = Deleter(storage, world.store, carrier._catalog, carrier, story.config.retention, story.clock)
    await swept.sweep()
    await _read_all(story, storage, offset + 1)
    story._note(storage)
    await factory.shutdown()
    await _check_objects(world, carrier._catalog, offset + 1)
    for key, data in before.items():
        if world.store.objects.get(key, data) != data:
            raise BrokenPromiseError(f"object {key} has changed (I4)")


async def _read_all(story: CloudStory, storage, stop: int) -> None:
    reader = await storage.create_reader(StartPosition.offset(0))
    at = 0
    while at < stop:
        at = story._seen(await reader.read(), at)


async def _check_objects(world: World, catalog, stop: int) -> None:
    """Every offset is in exactly one described object, as it was described; nothing else is in the store."""
    at = 0
    described = set()
    async for descriptor in catalog.all():
        if descriptor.start != at:
            raise BrokenPromiseError(f"descriptions have a hole or overlap at {at}")
        key = catalog.object_key(descriptor)
        name = parse_key(key)
        data = world.store.objects.get(key)
        if data is None:
            raise BrokenPromiseError(f"object {key} is described and not there")
        found = describe(data, key, name, epoch=descriptor.epoch, etag=descriptor.etag)
        if found != replace(descriptor, index=found.index):
            raise BrokenPromiseError(f"object {key} is not as it is described")
        for place, byte in descriptor.index:
            if not scan_run(data[byte:], first_offset=place).rows:
                raise BrokenPromiseError(f"object {key} has no frame of {place} at byte {byte}")
        described.add(key)
        at = descriptor.stop
    if at != stop:
        raise BrokenPromiseError(f"objects end at {at}, the log at {stop}")
    # What was under way when the disk was lost may land later and hold more than anyone else: that is not swept.
    if orphans := {key for key in set(world.store.objects) - described if parse_key(key).stop <= stop}:
        raise BrokenPromiseError(f"orphans are left: {sorted(orphans)} (F19)")


def _harm_checkpoints(disk: SimFiles, rng: random.Random) -> None:
    """A checkpoint is a cache: flip it, cut it, or take it away (F12)."""
    for path in [path for path in disk.names_now if path.suffix == ".json" and path.name != "cursors.json"]:
        inode = disk.names_now[path]
        how = rng.choice(("gone", "flip", "cut", "wrong"))
        if how == "wrong" and path.name == UPLOAD_NAME and inode.data:
            with suppress(ValueError):
                inode.data[:] = seal(unseal(bytes(inode.data)) | {"byte_pos": rng.randrange(2000)})
        elif how == "gone":
            disk.names_now.pop(path)
            disk.names_durable.pop(path, None)
        elif inode.data and how == "flip":
            inode.data[rng.randrange(len(inode.data))] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del inode.data[rng.randint(0, len(inode.data)) :]
