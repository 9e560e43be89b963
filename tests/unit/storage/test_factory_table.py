"""What a factory finds after a restart when the table is the last tier: ahead, behind, moved, or not to be asked (D5)."""

import asyncio
import shutil
from dataclasses import replace
from itertools import product

import pytest

from ister.core.errors import MissingObjectError, MissingOffsetsError
from ister.core.offsets import StartPosition
from ister.core.tiers.selection import OffsetRange, without
from ister.lake.errors import CorruptRowsError, LakeUnavailableError, MissingRowsError, TableMovedError
from ister.ports.metadata import SqliteMetadata
from ister.storage import resume as resume_module
from ister.storage.factory import WalStorageFactory
from ister.storage.resume import needs_table, next_offset
from parts.cloud import messages, named, run, told, until
from parts.factory import T, read
from parts.table import TableWorld
from sim.table_machine import SimTable

SMALL = range(5)


# --- decisions --------------------------------------------------------------------------------------------------------


def test_d5_a_table_must_be_asked_unless_the_log_has_messages_and_is_as_far_as_all_that_is_known():
    for log, objects, known in product(SMALL, SMALL, SMALL):
        enough = log > 0 and log >= objects and log >= known
        assert needs_table(log, objects, known) is not enough


def test_d5_a_topic_goes_on_at_the_largest_offset_and_never_below_what_a_table_was_seen_to_hold():
    for log, objects, upto, known in product(SMALL, SMALL, SMALL, SMALL):
        if max(log, objects, upto) < known:
            with pytest.raises(MissingOffsetsError) as told_of:
                next_offset(log, objects, upto, known)
            assert (told_of.value.start, told_of.value.stop) == (max(log, objects, upto), known)
        else:
            assert next_offset(log, objects, upto, known) == max(log, objects, upto)


def test_d5_the_table_has_to_prove_each_offset_that_objects_do_not_hold():
    for start, stop, first, last in product(SMALL, SMALL, SMALL, SMALL):
        parts = without(OffsetRange(start, stop), OffsetRange(first, max(first, last)))
        asked = [offset for part in parts for offset in range(*part)]
        assert asked == [offset for offset in range(start, stop) if not first <= offset < last]


# --- resuming ---------------------------------------------------------------------------------------------------------


async def filled(world, *, count=10, upto=10, **settings):
    """A topic with files of 5, all in objects, and a table that has [0, upto)."""
    factory = world.factory(**settings)
    storage = await factory.for_topic(T)
    for start in range(0, count, 5):
        await storage.append_messages(messages(start, start + 5))
        await storage.seal(0)
    await storage.flush()
    if upto:
        await world.commit(storage, upto)
    await factory.shutdown()


def lose_log(world):
    shutil.rmtree(world.directory / "wal")


def empty_store(world):
    for path in world.object_files():
        path.unlink()


@pytest.mark.parametrize("durable", [False, True])
def test_d5_with_log_and_objects_gone_a_topic_goes_on_from_its_table(tmp_path, durable):
    async def story():
        world = TableWorld(tmp_path, await SqliteMetadata.open(tmp_path / "metadata.db") if durable else None)
        await filled(world)
        newest_us = world.table.rows[-1].append_time_us
        lose_log(world)
        empty_store(world)
        world.clock.now_us -= 3_600_000_000
        with told() as events:
            factory = world.factory()
            assert await factory.start() == [T]
            assert factory.problems == {}
        assert [event["log_level"] for event in named(events, "log_behind_table")] == ["error"]
        assert world.table.proved == [(0, 10)]
        storage = await factory.for_topic(T)
        assert (storage.start_offset, storage.log_start, storage.next_offset) == (0, 10, 10)
        assert storage.objects.span == OffsetRange(10, 10)
        assert await storage.append_messages(messages(10, 13)) == range(10, 13)
        await storage.seal(0)
        await factory.uploader(T).drain()
        assert factory.uploader(T).problem is None
        await read(storage, 0, 13)
        reader = await storage.create_reader(StartPosition.offset(10))
        assert (await anext(reader)).append_time_us >= newest_us, "append_time never goes back"
        await reader.close()
        await factory.shutdown()
        assert [path.name[5:25] for path in world.object_files()] == [f"{10:020}"]
        # And again, with the new log lost as well: now objects have what came since.
        lose_log(world)
        factory = world.factory()
        storage = await factory.for_topic(T)
        assert (storage.start_offset, storage.next_offset, storage.objects.span) == (0, 13, OffsetRange(10, 13))
        assert await storage.append_messages(messages(13, 14)) == range(13, 14)
        await read(storage, 0, 14)
        await factory.shutdown()
        if durable:
            await world.metadata.metadata.close()

    run(story())


def test_d5_a_table_ahead_of_log_and_objects_says_where_the_topic_goes_on(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world)
        factory = world.factory(drain_timeout_s=0)
        storage = await factory.for_topic(T)
        world.store.hold["put"] = asyncio.Event()
        await storage.append_messages(messages(10, 17))
        await storage.flush()
        await world.commit(storage, 14)
        await factory.shutdown()
        del world.store.hold["put"]
        assert len(world.object_files()) == 2
        lose_log(world)
        with told() as events:
            factory = world.factory()
            storage = await factory.for_topic(T)
        (alarm,) = named(events, "log_behind_table")
        assert (alarm["log_stop"], alarm["objects_stop"], alarm["upto"]) == (0, 10, 14)
        assert world.table.proved == [(10, 14)], "what objects hold is not asked of the table"
        assert (storage.start_offset, storage.next_offset) == (0, 14)
        await storage.append_messages(messages(14, 16))
        await factory.uploader(T).drain()
        await read(storage, 0, 16)
        await factory.shutdown()
        factory = world.factory()
        storage = await factory.for_topic(T)
        assert (storage.objects.span, storage.next_offset) == (OffsetRange(14, 16), 16)
        await read(storage, 0, 16)
        await factory.shutdown()

    run(story())


def test_a_crash_between_the_first_put_behind_a_table_and_its_description_is_adopted(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, upto=10)
        lose_log(world)
        empty_store(world)
        factory = world.factory()
        storage = await factory.for_topic(T)
        await storage.append_messages(messages(10, 12))
        await factory.uploader(T).drain()
        await factory.uploader(T)._catalog.remove(await factory.uploader(T)._catalog.last())
        await factory.shutdown()
        assert len(world.object_files()) == 1
        for lost in (False, True):
            if lost:
                lose_log(world)
            factory = world.factory()
            storage = await factory.for_topic(T)
            assert (storage.next_offset, storage.objects.span) == (12, OffsetRange(10, 12))
            await read(storage, 0, 12)
            await factory.shutdown()

    run(story())


@pytest.mark.parametrize("missing", [0, 4, 9])
def test_d5_a_table_that_does_not_prove_every_offset_is_refused(tmp_path, missing):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world)
        lose_log(world)
        empty_store(world)
        world.table.missing.add(missing)
        factory = world.factory()
        assert await factory.start() == []
        assert isinstance(factory.problems[T], MissingRowsError)
        await factory.shutdown()
        world.table.missing.clear()
        factory = world.factory()
        assert await factory.start() == [T], "nothing was changed"
        await factory.shutdown()

    run(story())


def test_d5_objects_that_are_gone_and_not_all_in_the_table_are_refused(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, upto=7)
        lose_log(world)
        empty_store(world)
        factory = world.factory()
        assert await factory.start() == []
        assert isinstance(factory.problems[T], MissingObjectError)
        await factory.shutdown()

    run(story())


def test_d5_objects_whose_first_are_gone_serve_what_the_table_does_not_hold(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, upto=7)
        lose_log(world)
        first, *_ = world.object_files()
        assert "data-00000000000000000000-" in first.name
        first.unlink()
        for _ in range(2):
            factory = world.factory()
            assert await factory.start() == [T], factory.problems
            storage = await factory.for_topic(T)
            assert storage.next_offset == 10
            await read(storage, 0, 10)
            await factory.shutdown()

    run(story())


def test_an_emptied_store_behind_a_log_that_is_enough_is_read_from_the_table(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, count=20, upto=20)
        factory = world.factory()
        await (await factory.for_topic(T)).prune(15)
        await factory.shutdown()
        empty_store(world)
        with told() as events:
            factory = world.factory()
            assert await factory.start() == [T]
            storage = await factory.for_topic(T)
            assert storage.log_start == 15
            await read(storage, 0, 20)
        assert len(named(events, "objects_damaged")) == 1, "one emptied store is one alarm"
        await storage.append_messages(messages(20, 22))
        await storage.seal(0)
        await factory.uploader(T).drain()
        assert await storage.prune(22) == 22, "the table holds what the store has lost, and objects what came since"
        await read(storage, 0, 22)
        await factory.shutdown()

    run(story())


# --- a table that cannot be asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["down", "moved", "hangs"])
def test_d5_a_log_that_is_enough_opens_without_its_table_and_one_that_is_not_does_not(tmp_path, monkeypatch, trouble):
    monkeypatch.setattr(resume_module, "REMOTE_TIMEOUT_S", 0.05)

    async def hang():
        await asyncio.Event().wait()

    async def story():
        world = TableWorld(tmp_path)
        await filled(world, upto=8)
        if trouble == "hangs":
            world.table.look = hang
        else:
            setattr(world.table, trouble, True)
        with told() as events:
            factory = world.factory()
            assert await factory.start() == [T]
        (warned,) = named(events, "table_not_asked")
        assert (warned["log_level"], warned["known_upto"]) == ("warning", 8)
        storage = await factory.for_topic(T)
        assert storage.table.span == OffsetRange(0, 8)
        await read(storage, 0, 10)
        await factory.shutdown()
        world.reported = 11  # the log is behind what the pipeline has reported: it was restored from an old copy
        expected = TableMovedError if trouble == "moved" else LakeUnavailableError
        for lost in (False, True):
            if lost:
                world.reported = 0
                lose_log(world)
            factory = world.factory()
            assert await factory.start() == []
            assert isinstance(factory.problems[T], expected)
            with pytest.raises(expected):
                await factory.for_topic(T)
            await factory.shutdown()
        world.table.__dict__.pop("look", None)
        world.table.down = world.table.moved = False
        factory = world.factory()
        await read(await factory.for_topic(T), 0, 10)
        await factory.shutdown()

    run(story())


def test_d5_offsets_that_a_table_was_seen_to_hold_are_not_given_again(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, upto=10)
        lose_log(world)
        world.reported = 12
        factory = world.factory()
        assert await factory.start() == []
        assert isinstance(factory.problems[T], MissingOffsetsError)
        await factory.shutdown()

    run(story())


def test_a_topic_whose_older_messages_only_the_table_has_says_so_while_it_is_down(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, count=15, upto=12)
        world.reported = 0  # the report was lost; the proof was not
        for uploads in (True, False):
            factory = world.factory(upload={"enabled": uploads}, object_retention_s=0)
            storage = await factory.for_topic(T)
            if uploads:
                await storage.prune(15)
                assert await factory.object_retention(T).tick() == 2
            await factory.shutdown()
        world.table.down = True
        factory = world.factory()
        storage = await factory.for_topic(T)
        assert storage.start_offset == 0
        reader = await storage.create_reader(StartPosition.offset(0))
        with pytest.raises(LakeUnavailableError):
            await reader.read()
        world.table.down = False
        await reader.close()
        await read(storage, 0, 15)
        await factory.shutdown()

    run(story())


def test_a_topic_that_was_deleted_and_made_again_has_another_table(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        tables, asked = {}, []

        def table_of(topic, generation):
            asked.append((topic, generation))
            return tables.setdefault(generation, SimTable())

        made = world.factory()
        factory = WalStorageFactory(
            made.config, store=world.store, metadata=world.metadata, clock=world.clock, tables=table_of
        )
        storage = await factory.for_topic(T)
        await storage.append_messages(messages(0, 5))
        world.table = tables[1]
        await storage.flush()
        await world.commit(storage, 5)
        await factory.delete_topic(T)
        assert tables[1].closed
        assert not [entry for entry in await world.metadata.list("/") if "objects" in entry.key]
        storage = await factory.for_topic(T)
        assert storage.next_offset == 0
        assert asked == [(T, 1), (T, 2)]
        await factory.shutdown()

    run(story())


# --- without uploads --------------------------------------------------------------------------------------------------


def test_i5_without_uploads_the_deleter_prunes_behind_the_table(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        settings = {"upload": {"enabled": False}, "time_minutes": 0, "size_mb": 0}
        factory = world.factory(**settings, check_interval_minutes=0.001)
        storage = await factory.for_topic(T)
        for start in range(0, 20, 5):
            await storage.append_messages(messages(start, start + 5))
            await storage.seal(0)
        assert await factory.deleter(T).tick() == 0
        await world.commit(storage, 12)
        await until(lambda: storage.log_start == 10)
        await read(storage, 0, 20)
        assert await factory.deleter(T).sweep() == 0
        await factory.shutdown()
        assert world.object_files() == []
        # Uploads are turned on: objects begin where the log does.
        factory = world.factory()
        storage = await factory.for_topic(T)
        await factory.uploader(T).drain()
        assert storage.objects.span == OffsetRange(10, 20)
        await read(storage, 0, 20)
        await factory.shutdown()

    run(story())


def test_a_table_whose_rows_are_damaged_does_not_keep_a_topic_from_opening(tmp_path, monkeypatch):
    """K7. What the table cannot prove is not taken for proven, and the log is there."""

    async def story():
        world = TableWorld(tmp_path)
        await filled(world, count=10, upto=10)
        factory = world.factory(upload={"enabled": False})
        storage = await factory.for_topic(T)
        for start in range(10, 25, 5):
            await storage.append_messages(messages(start, start + 5))
            await storage.seal(0)
        await world.commit(storage, 22)
        assert await storage.prune(25) == 20
        await factory.shutdown()

        async def prove(start, stop):
            raise CorruptRowsError("default.orders", "a.parquet", "the snapshot lists it twice")

        monkeypatch.setattr(world.table, "prove", prove)
        with told() as events:
            factory = world.factory()
            storage = await factory.for_topic(T)
        assert storage.log_start == 20
        assert [event["known_upto"] for event in named(events, "table_not_asked")] == [20]
        assert named(events, "objects_begin_anew") == []
        await factory.shutdown()

    run(story())


def test_uploads_that_were_off_while_the_log_was_pruned_go_on_behind_the_gap(tmp_path):
    async def story():
        world = TableWorld(tmp_path)
        await filled(world, count=10, upto=10)
        factory = world.factory(upload={"enabled": False})
        storage = await factory.for_topic(T)
        for start in range(10, 25, 5):
            await storage.append_messages(messages(start, start + 5))
            await storage.seal(0)
        await world.commit(storage, 22)
        assert await storage.prune(25) == 20
        await read(storage, 0, 25)
        await factory.shutdown()
        with told() as events:
            factory = world.factory()
            storage = await factory.for_topic(T)
        assert [event["log_start"] for event in named(events, "objects_begin_anew")] == [20]
        await factory.uploader(T).drain()
        assert storage.objects.span == OffsetRange(20, 25)
        await read(storage, 0, 25)
        await factory.shutdown()

    run(story())


def test_deployments_with_different_prefixes_on_one_metadata_store_do_not_share_progress(tmp_path):
    """I5."""

    async def story():
        prod, staging = (TableWorld(tmp_path / name) for name in ("prod", "staging"))
        staging.metadata = prod.metadata

        def opened(world, prefix):
            factory = world.factory()
            return WalStorageFactory(
                replace(factory.config, root_prefix=prefix),
                store=world.store, metadata=world.metadata, clock=world.clock, tables=lambda _, __: world.table,
            )  # fmt: skip

        ours, theirs = opened(prod, "/prod"), opened(staging, "/staging")
        orders = await ours.for_topic(T)
        await orders.append_messages(messages(0, 10))
        await orders.ack_checkpoint("billing", 7)
        other = await theirs.for_topic(T)
        assert await other.cursors() == {}
        await other.append_messages(messages(0, 1))
        await other.ack_checkpoint("billing", 1)
        await orders.ack_checkpoint("billing", 9)
        await theirs.delete_topic(T)
        await theirs.shutdown()
        await ours.shutdown()
        again = opened(prod, "/prod")
        assert await (await again.for_topic(T)).cursors() == {"billing": 9}
        await again.shutdown()

    run(story())
