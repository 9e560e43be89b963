"""A topic's own retention policy, set and changed while it is used; and I5, whatever it says."""

import asyncio

import pytest

from ister.core.errors import OffsetOutOfRangeError, StoreUnavailableError, UnknownTopicError
from ister.core.offsets import StartPosition
from ister.core.tiers.retention import RetentionPolicy
from ister.storage import ReliableOptions
from parts.cloud import messages, named, run, told, until
from parts.factory import T, World, read

ACK = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_ACK, 0)
EXPIRE = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_EXPIRE, 60)
OFF = {"enabled": False}
MINUTE_US = 60_000_000


async def three_files(world, **settings):
    """A factory whose topic has files of 5 messages: two sealed ones, and one that is written."""
    factory = world.factory(**settings)
    storage = await factory.for_topic(T)
    for start in (0, 5, 10):
        await storage.append_messages(messages(start, start + 5))
        if start < 10:
            await storage.seal(0)
    return factory, storage


@pytest.mark.parametrize("uploads", [False, True])
def test_i5_retain_until_ack_lets_go_of_what_every_subscription_has_and_objects_hold(tmp_path, uploads):
    async def story():
        factory, storage = await three_files(World(tmp_path), upload={"enabled": uploads})
        factory.set_retention(T, ACK)
        await storage.ack_checkpoint("a", 12)
        await storage.ack_checkpoint("b", 7)
        await factory.log_retention(T).enforce()
        assert storage.log_start == (0 if uploads else 5), "objects do not hold it yet"
        if uploads:
            await factory.uploader(T).drain()
            await factory.log_retention(T).enforce()
            await read(storage, 0, 15)
        assert storage.log_start == 5
        await storage.ack_checkpoint("b", 12)
        await factory.log_retention(T).enforce()
        assert storage.log_start == 10
        await factory.shutdown()

    run(story())


def test_retain_until_ack_without_a_subscription_keeps_everything(tmp_path):
    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        factory.set_retention(T, ACK)
        world.clock.now_us += 10**12
        assert await factory.log_retention(T).enforce() == 0
        assert storage.log_start == 0
        await factory.shutdown()

    run(story())


def test_i5_retain_until_expire_goes_by_age_and_waits_for_subscriptions(tmp_path):
    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        factory.set_retention(T, EXPIRE)
        await storage.ack_checkpoint("s", 6)
        assert await factory.log_retention(T).enforce() == 0
        world.clock.now_us += 2 * MINUTE_US
        assert await factory.log_retention(T).enforce() == 5, "the subscription needs the second file"
        await storage.forget_cursor("s")
        assert await factory.log_retention(T).enforce() == 15, "also the last file, sealed when all of it had expired"
        with pytest.raises(OffsetOutOfRangeError):
            await storage.create_reader(StartPosition.offset(14))
        assert await storage.append_messages(messages(15, 16)) == range(15, 16)
        await factory.shutdown()

    run(story())


def test_a_file_that_is_still_written_does_not_expire(tmp_path):
    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        factory.set_retention(T, EXPIRE)
        world.clock.now_us += 2 * MINUTE_US
        await storage.append_messages(messages(15, 16))
        for _ in range(2):
            assert await factory.log_retention(T).enforce() == 10
        await read(storage, 10, 16)
        await factory.shutdown()

    run(story())


def test_a_policy_is_changed_and_taken_away_while_the_topic_is_used(tmp_path):
    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        world.clock.now_us += 2 * MINUTE_US
        await storage.ack_checkpoint("s", 10)
        assert await factory.log_retention(T).enforce() == 0, "no policy takes nothing"
        later = ReliableOptions(1, RetentionPolicy.RETAIN_UNTIL_EXPIRE, 10**6)
        for options, start in ((later, 0), (None, 0), (EXPIRE, 10), (None, 10), (ACK, 10)):
            factory.set_retention(str(T), options)
            assert await factory.log_retention(T).enforce() == start
        await factory.shutdown()

    run(story())


def test_a_policy_is_enforced_from_time_to_time_and_a_failure_is_told(tmp_path):
    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, check_interval_minutes=0.0005, time_minutes=None, size_mb=None)
        await storage.ack_checkpoint("s", 10)
        await factory.uploader(T).drain()
        world.store.fail["list"] = StoreUnavailableError("fs", "list", "no route")
        with told() as events:
            factory.set_retention(T, ACK)
            await until(lambda: factory.log_retention(T).problem is not None)
        assert named(events, "retention_failed")[0]["topic"] == str(T)
        assert storage.log_start == 0
        world.store.fail.clear()
        await until(lambda: storage.log_start == 10)
        await until(lambda: factory.log_retention(T).problem is None)
        tasks = len(asyncio.all_tasks())
        for options in (None, ACK, EXPIRE):
            factory.set_retention(T, options)
        assert len(asyncio.all_tasks()) == tasks, "a change of policy starts nothing anew"
        await factory.shutdown()

    run(story())


def test_a_policy_that_deletes_what_no_object_has_leaves_no_gap_for_readers_and_uploads(tmp_path):
    """I9."""

    async def story():
        world = World(tmp_path)
        factory = world.factory()
        storage = await factory.for_topic(T)
        await storage.append_messages(messages(0, 5))
        await storage.seal(0)
        await factory.shutdown()
        factory = world.factory(upload=OFF)
        storage = await factory.for_topic(T)
        for start in (5, 10):
            await storage.append_messages(messages(start, start + 5))
            await storage.seal(0)
        await storage.append_messages(messages(15, 16))
        assert await storage.prune(5) == 5
        await read(storage, 0, 16)
        factory.set_retention(T, EXPIRE)
        world.clock.now_us += 2 * MINUTE_US
        await factory.log_retention(T).enforce()
        for _ in range(2):
            await storage.append_messages(messages(storage.next_offset, storage.next_offset + 1))
            start, stop = storage.start_offset, storage.next_offset
            assert start == storage.log_start == 15
            await read(storage, start, stop)
            with pytest.raises(OffsetOutOfRangeError):
                await storage.create_reader(StartPosition.offset(2))
            await factory.shutdown()
            factory = world.factory(upload=OFF)
            storage = await factory.for_topic(T)
        await factory.shutdown()
        for _ in range(2):
            factory = world.factory()
            storage = await factory.for_topic(T)
            assert storage.start_offset == 15
            stop = storage.next_offset
            await storage.append_messages(messages(stop, stop + 3))
            await storage.seal(0)
            await factory.uploader(T).drain()
            assert factory.uploader(T).uploaded.value == stop + 3
            assert await storage.prune(stop + 3) == stop + 3, "objects prove it"
            await read(storage, 15, stop + 3)
            await factory.shutdown()

    run(story())


def test_the_border_of_objects_is_written_before_the_log_is_pruned(tmp_path):
    """I9."""

    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        world.metadata.fail["put"] = StoreUnavailableError("m", "put", "no route")
        with pytest.raises(StoreUnavailableError):
            await storage.prune(10)
        assert storage.log_start == 0
        await read(storage, 0, 15)
        world.metadata.fail.clear()
        prune, storage.wal.prune = storage.wal.prune, None
        with pytest.raises(TypeError):  # a crash between the two
            await storage.prune(10)
        storage.wal.prune = prune
        await factory.shutdown()
        factory = world.factory()
        storage = await factory.for_topic(T)
        await read(storage, 0, 15)
        await factory.uploader(T).drain()
        await storage.seal(0)
        assert await storage.prune(15) == 15, "what is below the border needs no proof"
        assert storage.start_offset == 10
        await read(storage, 10, 15)
        await factory.shutdown()

    run(story())


def test_a_subscription_that_begins_while_the_border_is_written_keeps_its_messages(tmp_path):
    """I9."""

    async def story():
        world = World(tmp_path)
        factory, storage = await three_files(world, upload=OFF)
        factory.set_retention(T, EXPIRE)
        world.clock.now_us += 2 * MINUTE_US
        await storage.cursors()
        world.metadata.hold["put"] = asyncio.Event()
        job = asyncio.create_task(factory.log_retention(T).enforce())
        await until(lambda: world.metadata.count("put") > 0)
        await storage.ack_checkpoint("s", 2)
        world.metadata.hold.pop("put").set()
        await job
        assert storage.log_start == 0
        await read(storage, 2, 15)
        await factory.shutdown()

    run(story())


def test_a_topic_that_is_not_open_has_no_policy(tmp_path):
    async def story():
        factory = World(tmp_path).factory()
        with pytest.raises(UnknownTopicError):
            factory.set_retention(T, ACK)
        await factory.shutdown()

    run(story())
