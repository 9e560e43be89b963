"""Objects that go behind the table: which ones, in what order, and what any failure or crash in between leaves."""

import asyncio
import random

import pytest

from ister.core.errors import InvalidConfigError, MetadataUnavailableError, StoreUnavailableError
from ister.core.tiers.retention import SealedSegment, objects_droppable_below
from ister.core.tiers.selection import OffsetRange
from ister.lake.errors import LakeUnavailableError, MissingRowsError, TableMovedError
from ister.storage.factory import TopicsConfig
from ister.wal import WalConfig
from parts.cloud import run, until
from parts.factory import T, read
from parts.table import TableWorld, commit, object_retention, tabled

S = 1_000_000


def oracle(objects, upto, retention_s, now_us):
    """Take the oldest away as long as that may be, one by one."""
    left = list(objects)
    while len(left) > 1:
        oldest = left[0]
        is_old = oldest.append_time_us > 0 and now_us - oldest.append_time_us > retention_s * S
        if oldest.stop > upto or not (is_old or oldest.first == oldest.stop):
            break
        left.pop(0)
    if not objects:
        return 0
    gone = objects[: len(objects) - len(left)]
    return gone[-1].stop if gone else objects[0].first


def test_i5_which_objects_go_is_what_an_oracle_says(count, tell):
    rng = random.Random(5)
    trials, some = count(30_000, 500_000), 0
    for _ in range(trials):
        at, time, objects = rng.randint(0, 3), rng.randint(0, 3) * S, []
        for _ in range(rng.randint(0, 5)):
            at += rng.choice((0, 0, 0, 2))
            objects.append(SealedSegment(at, at + rng.randint(1, 4), time))
            at, time = objects[-1].stop, time + rng.choice((0, 1, S, 5 * S))
        upto, retention_s, now_us = rng.randint(0, 25), rng.choice((0, 0.5, 1, 7)), rng.randint(0, 30) * S
        below = objects_droppable_below(objects, upto=upto, retention_s=retention_s, now_us=now_us)
        assert below == oracle(objects, upto, retention_s, now_us), (objects, upto, retention_s, now_us)
        if objects and below > objects[0].first:
            some += 1
            assert below <= upto
            assert below < objects[-1].stop, "the newest is kept"
    assert some > trials // 20
    tell("I5", f"which objects go behind the table: {trials} cases against an oracle, {some} of them delete something")


def test_the_time_for_objects_must_not_be_negative():
    for bad in (-1, float("nan")):
        with pytest.raises(InvalidConfigError):
            TopicsConfig(wal=WalConfig(dir="/x"), object_retention_s=bad)


def test_only_old_objects_that_the_table_holds_wholly_go_and_never_the_newest(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        assert await object_retention(parts, 3600).tick() == 0, "they are too young"
        assert parts.table.looks == 0, "nobody is asked for nothing"
        keeper = object_retention(parts)
        await commit(parts.storage, parts.table, 14) if len(parts.table.rows) < 14 else None
        assert await keeper.tick() == 3
        assert parts.table.proved == [(0, 15), (0, 15)]
        assert (await parts.spans(), len(parts.object_files())) == ([(15, 20)], 1)
        await commit(parts.storage, parts.table, 25)
        assert await keeper.tick() == 0
        assert await parts.spans() == [(15, 20)], "it says where the next one begins"
        await parts.read(0, 25, 50)
        await parts.close()

    run(story())


@pytest.mark.parametrize("trouble", ["down", "moved", "missing", "behind"])
def test_nothing_goes_that_the_newest_snapshot_does_not_prove(tmp_path, trouble):
    async def story():
        parts = await tabled(tmp_path)
        if trouble == "missing":
            parts.table.missing.add(3)
        elif trouble == "behind":
            del parts.table.rows[4:]  # rolled back, and nobody has told
        else:
            setattr(parts.table, trouble, True)
        if trouble == "behind":
            assert await object_retention(parts).tick() == 0
        else:
            with pytest.raises((LakeUnavailableError, TableMovedError, MissingRowsError)):
                await object_retention(parts).tick()
        assert (len(await parts.spans()), len(parts.object_files())) == (4, 4)
        assert parts.storage.objects.span == OffsetRange(0, 20)
        await parts.close()

    run(story())


@pytest.mark.parametrize("lost", [False, True])
def test_a_failure_at_any_step_leaves_no_description_without_its_object_and_the_next_run_ends_it(tmp_path, lost):
    async def story():
        step = 0
        while True:
            parts = await tabled(tmp_path / f"{lost}-{step}")
            broken = Steps(parts, step, lost=lost)
            try:
                await object_retention(parts).tick()
            except (StoreUnavailableError, MetadataUnavailableError):
                pass
            else:
                assert step > 6, "every removal was a step"
                await parts.close()
                return
            broken.mend()
            described = {parts.catalog.object_key(piece) for piece in await parts.descriptors()}
            there = {f"default/t/1/{path.name}" for path in parts.object_files()}
            assert described <= there
            await parts.read(0, 25, 50)
            await object_retention(parts).tick()  # another life: it knows nothing of the first
            assert (await parts.spans(), len(parts.object_files())) == ([(15, 20)], 1)
            await parts.read(0, 25, 50)
            await parts.close()
            step += 1

    class Steps:
        """Let one call that changes something fail, or lose its answer."""

        def __init__(self, parts, step, *, lost):
            self.parts, self.left, self.lost = parts, step, lost
            self.before = (parts.store.delete, parts.metadata.put, parts.metadata.delete)
            parts.store.delete = self.wrap(parts.store.delete, StoreUnavailableError("s", "delete", "no"))
            parts.metadata.put = self.wrap(parts.metadata.put, MetadataUnavailableError("m", "put", "no"))
            parts.metadata.delete = self.wrap(parts.metadata.delete, MetadataUnavailableError("m", "delete", "no"))

        def mend(self):
            self.parts.store.delete, self.parts.metadata.put, self.parts.metadata.delete = self.before

        def wrap(self, call, error):
            async def wrapped(*args, **kwargs):
                self.left -= 1
                if self.left == -1 and not self.lost:
                    raise error
                result = await call(*args, **kwargs)
                if self.left == -1:
                    raise error
                return result

            return wrapped

    run(story())


def test_more_objects_than_are_looked_at_at_a_time_all_go(tmp_path, monkeypatch):
    monkeypatch.setattr("ister.storage.retention.BATCH", 3)

    async def story():
        parts = await tabled(tmp_path)
        for _ in range(6):
            await parts.add_file(5, 50)
        await parts.uploader.drain()
        await commit(parts.storage, parts.table, parts.wal.next_offset)
        assert len(parts.object_files()) > 9
        await object_retention(parts).tick()
        assert len(await parts.spans()) == len(parts.object_files()) == 1
        await parts.read(0, parts.wal.next_offset, 50)
        await parts.close()

    run(story())


def test_the_factory_keeps_objects_as_configured_and_a_restart_finds_where_they_begin(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await world.fill(20, pruned=10)
        factory = world.factory(object_retention_s=0, check_interval_minutes=0.001)
        storage = await factory.for_topic(T)
        await world.commit(storage, 20)
        await until(lambda: len(world.object_files()) == 1)
        assert factory.object_retention(T).problem is None
        await read(storage, 0, 20)
        await factory.shutdown()
        assert world.table.closed
        factory = world.factory()
        assert await factory.start() == [T]
        storage = await factory.for_topic(T)
        assert factory.object_retention(T) is None
        assert (storage.objects.span, storage.start_offset) == (OffsetRange(15, 20), 0)
        await read(storage, 0, 20)
        await factory.shutdown()

    run(story())


def test_a_keeper_says_what_keeps_it_and_goes_on(tmp_path):
    async def story():
        parts = await tabled(tmp_path)
        parts.table.down = True
        keeper = object_retention(parts)
        task = asyncio.create_task(keeper.run(0.001))
        await until(lambda: isinstance(keeper.problem, LakeUnavailableError))
        parts.table.down = False
        await until(lambda: keeper.problem is None)
        await until(lambda: keeper.objects_deleted == 3)
        task.cancel()
        await asyncio.wait({task})
        await parts.close()

    run(story())
