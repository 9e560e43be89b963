"""One life of a topic whose last tier is a table, and the checks of what any crash during it would leave.

A pipeline follows the synced prefix, objects are deleted behind the table, and where nothing is uploaded the log is pruned
behind it. A crash may take the disk, and somebody may empty the object store, as long as the table holds what was there.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

from ister.cloud import Deleter, ObjectCatalog
from ister.core.errors import BusyError, LogClosedError, UnknownOutcomeError
from ister.core.frames.segment import describe, parse_key
from ister.core.offsets import StartPosition
from ister.lake.errors import LakeUnavailableError
from ister.storage.factory import WalStorageFactory
from ister.storage.tiered_reader import OBJECTS_FAIL
from ister.wal import AckLevel
from sim.cloud_story import TOPIC, CloudStory, World, _harm_checkpoints, _read_all, new_world, small_sizes
from sim.machine import run
from sim.story import BrokenPromiseError
from sim.table_machine import SimTable


def new_table_world(seed: int) -> World:
    world = new_world(seed)
    world.table = SimTable(world.store.network)
    return world


class TableStory(CloudStory):
    """One seeded life of a topic with a table in a given world; one that is not crashed is longer."""

    kinds = (*CloudStory.kinds, "batch", "rotate", "sleep")

    def __init__(self, seed: int, world: World, *, crash_every: int = 1) -> None:
        super().__init__(seed, world, crash_every=crash_every)
        rng = self.rng
        self.acts = (3, 8) if crash_every == 1 else (8, 20)
        uploads = rng.random() < 0.75
        if not uploads:
            self.level = min(self.level, AckLevel.FSYNC)
        self.config = replace(
            self.config,
            wal=replace(self.config.wal, level=self.level),
            upload=replace(self.config.upload, enabled=uploads),
            object_retention_s=rng.choice((None, 0.0, 0.0, 0.0001)),
        )

    def factory(self) -> WalStorageFactory:
        world = self.world
        return WalStorageFactory(
            self.config,
            store=world.store,
            metadata=world.metadata,
            files=world.disk,
            clock=self.clock,
            tables=lambda _topic, _generation: world.table,
            known_upto=lambda _topic, _generation: world.reported,
        )

    def _beside(self, storage) -> list:
        return [self._follow(storage), self._read(storage)]

    async def _follow(self, storage) -> None:
        """Be the pipeline: carry what is synced to the table, report how far it is, and sometimes forget to."""
        while True:
            await asyncio.sleep(self.rng.choice((0.0, 0.02, 0.3)))
            try:
                with suppress(BusyError, UnknownOutcomeError):
                    await self.carry(storage, all_of_it=False)
            except LogClosedError:
                return

    async def carry(self, storage, *, all_of_it: bool) -> None:
        table, rng = self.world.table, self.rng
        start, stop = len(table.rows), storage.wal.synced_offset
        if start < stop:
            stop = stop if all_of_it else rng.randint(start + 1, stop)
            reader = await storage.create_reader(StartPosition.offset(start))
            found = []
            try:
                while len(found) < stop - start:
                    found += await reader.read()
            finally:
                with suppress(AttributeError):
                    await reader.close()
            await table.commit(start, found[: stop - start])
        if all_of_it or rng.random() < 0.7:
            self.world.reported = len(table.rows)
            storage.table_reached(len(table.rows))


def check(world: World, seed: int) -> None:
    """Open the topic again in a world that a crash left, and insist."""
    rng = random.Random(seed)
    world.store.land(rng) if rng.random() < 0.5 else None
    if rng.random() < 0.2:
        _harm_checkpoints(world.disk, rng)
    with small_sizes(seed):
        run(_check(world, rng, seed), seed)


async def _check(world: World, rng: random.Random, seed: int) -> None:
    story, table = TableStory(seed, world), world.table
    emptied = rng.random() < 0.3 and await _table_has_all(world, story)
    if emptied:
        world.store.objects.clear()
        world.store.late.clear()
    # A disk restored from a copy that does not know how far the table is, while it is down, is more than is promised.
    unknown = world.how == "old" and world.reported < len(table.rows)
    table.down = not emptied and not unknown and rng.random() < 0.2
    factory = story.factory()
    await factory.start()
    _judge_problems(world, factory.problems)
    table.down = False
    storage = await factory.for_topic(TOPIC)
    kept = {"kill": max(world.acked, default=-1) + 1, "power": world.durable}.get(world.how, world.described)
    kept = max(kept, len(table.rows))
    if storage.next_offset < kept:
        raise BrokenPromiseError(f"offsets [{storage.next_offset}, {kept}) are lost (I1)")
    for offset in [offset for offset in world.acked if offset >= kept]:
        del world.acked[offset]
    if storage.start_offset != 0:
        raise BrokenPromiseError(f"the topic starts at {storage.start_offset}, nothing was ever deleted from all tiers")
    end = storage.next_offset
    await _read_all(story, storage, end)
    message = story._message()
    offset = await storage.append_message(message)
    if offset != end:
        raise BrokenPromiseError(f"the next message got {offset}, {end} was due (I2)")
    world.acked[offset] = message.payload
    await storage.flush()
    await _keep(world, story, factory, storage, offset + 1, rng)
    await _read_all(story, storage, offset + 1)
    await story.carry(storage, all_of_it=True)
    await _keep(world, story, factory, storage, offset + 1, rng)
    await _read_all(story, storage, offset + 1)
    story._seen(table.rows, 0)
    story._note(storage)
    catalog, uploads = storage.objects.reader.catalog, story.config.upload.enabled
    await factory.shutdown()
    await _check_objects(world, catalog, offset + 1 if uploads else None, emptied=emptied)


async def _table_has_all(world: World, story: TableStory) -> bool:
    """Whether the table holds everything that objects hold, so that they may go."""
    catalog = ObjectCatalog(world.metadata, story.config.root_prefix, TOPIC, 1)
    last = await catalog.last()
    return len(world.table.rows) >= (last.stop if last else 0)


def _judge_problems(world: World, problems) -> None:
    """Only a table that is down may keep a topic from being opened, and only one that has lost its log."""
    waits = world.table.down and all(isinstance(problem, LakeUnavailableError) for problem in problems.values())
    if problems and not (waits and (world.how != "kill" or not world.acked)):
        raise BrokenPromiseError(f"a topic cannot be opened: {problems}")


async def _keep(world: World, story: TableStory, factory, storage, stop: int, rng: random.Random) -> None:
    """Do all that retention does, the uploads first."""
    carrier, keeper, deleter = factory.uploader(TOPIC), factory.object_retention(TOPIC), factory.deleter(TOPIC)
    if carrier is not None:
        await carrier.wait_uploaded(stop, 60)
    world.store.land(rng)
    if keeper is not None:
        await keeper.tick()
        keeper._leftovers = True  # what has landed since is found by the next start at the latest
        await keeper.tick()
    with suppress(*OBJECTS_FAIL):  # where somebody emptied the store, and the table is not as far yet
        await deleter.tick()
    if carrier is not None:
        catalog = storage.objects.reader.catalog
        await Deleter(storage, world.store, catalog, carrier, story.config.retention, story.clock).sweep()


async def _check_objects(world: World, catalog: ObjectCatalog, stop: int | None, *, emptied: bool) -> None:
    """From where they begin, descriptions join; each object is as it is described; what is below nobody describes is gone."""
    at, first, described = catalog.begin, None, set()
    async for descriptor in catalog.all():
        first = descriptor.start if first is None else first
        key = catalog.object_key(descriptor)
        described.add(key)
        if descriptor.start >= catalog.begin:
            if descriptor.start != at and not (at == 0 and descriptor.start == first):
                raise BrokenPromiseError(f"descriptions have a hole or overlap at {at}")
            at = descriptor.stop
        data = world.store.objects.get(key)
        if data is None and not emptied:
            raise BrokenPromiseError(f"object {key} is described and not there")
        if data is not None:
            found = describe(data, key, parse_key(key), epoch=descriptor.epoch, etag=descriptor.etag)
            if found != replace(descriptor, index=found.index):
                raise BrokenPromiseError(f"object {key} is not as it is described")
    if stop is None:
        return
    if at != stop:
        raise BrokenPromiseError(f"objects end at {at}, the log at {stop}")
    for key in set(world.store.objects) - described:
        name = parse_key(key)
        if catalog.begin <= name.start and name.stop <= stop and not emptied:
            raise BrokenPromiseError(f"an orphan is left: {key} (F19)")
