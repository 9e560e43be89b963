"""IcebergStorage: stored in the log, carried to the table, read from wherever it is, resumed exactly."""

import asyncio

import pytest

import ister
from ister.core.dispatch.shared_reader import Limits
from ister.core.errors import (
    AlreadyExistsError,
    Behind,
    DrainingError,
    InvalidNameError,
    InvalidRequestError,
    LogClosedError,
    NotFoundError,
    NotYetInTierError,
    OffsetOutOfRangeError,
    PreconditionError,
)
from ister.core.names import TopicName
from ister.core.offsets import StartPosition
from ister.storage.iceberg.storage import topic_name
from parts.cloud import check
from parts.iceberg import SimWorld, messages, offsets, story, take

MY_TOPIC = TopicName("default", "my-topic")


@story
async def test_the_specifications_usage_works(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage()
    assert await storage.store("my-topic", messages(0, 3)) == range(3), (
        "legal before initialize_topic, which it implies"
    )
    await storage.initialize_topic("my-topic")
    assert await storage.store_messages("my-topic", messages(3, 10)) == range(3, 10)
    stats = await storage.get_topic_stats("my-topic")
    assert (stats.message_count, stats.log.stop, stats.table.stop) == (10, 10, 0)
    assert stats.bytes_stored == stats.log.size > 0

    await storage.shutdown()
    assert offsets(world.table(MY_TOPIC, 1).rows) == list(range(10)), "shutdown has drained"
    assert world.closed == [world.topics]


def test_a_bare_name_is_in_the_namespace_default_and_a_bad_one_is_refused():
    assert topic_name("my-topic") == topic_name("/default/my-topic") == MY_TOPIC
    for bad in ("", "a/b", "../x", "/default", "//x", "ä"):
        with pytest.raises(InvalidNameError):
            topic_name(bad)
    assert ister.IcebergStorage.__mro__[1].__module__ == "ister.storage.iceberg.storage"
    with pytest.raises(AttributeError, match="Nothing"):
        _ = ister.Nothing


@story
async def test_topics_are_made_listed_and_deleted(tmp_path):
    async with SimWorld(tmp_path).storage() as storage:
        await storage.create_topic("b")
        await storage.initialize_topic("/other/a")
        with pytest.raises(AlreadyExistsError):
            await storage.create_topic("/default/b")
        assert await storage.list_topics() == ["/default/b", "/other/a"]
        await storage.store("b", messages(0, 5))
        await storage.delete_topic("b")
        assert await storage.list_topics() == ["/other/a"]
        for ask in (
            storage.get_write_position,
            storage.get_committed_position,
            storage.get_topic_stats,
            storage.delete_topic,
        ):
            with pytest.raises(NotFoundError):
                await ask("b")
        with pytest.raises(NotFoundError):
            await storage.create_subscription_stream("default", "b", "s")
        assert await storage.store("b", messages(0, 1)) == range(1), "made again, it begins anew"


@story
async def test_positions_and_tiers_tell_how_far_everything_is(tmp_path):
    world = SimWorld(tmp_path)
    async with world.storage() as storage:
        await storage.store("my-topic", messages(0, 10, 50))
        assert [await storage.get_write_position("my-topic"), await storage.get_committed_position("my-topic")] == [
            10,
            0,
        ]
        await world.pipeline.carry(MY_TOPIC, 6)
        await world.topics.uploader(MY_TOPIC).drain()
        assert await storage.get_committed_position("my-topic") == 6
        stats = await storage.get_topic_stats("my-topic")
        assert (stats.table.start, stats.table.stop, stats.table.size) == (0, 6, 600)
        assert (stats.objects.start, stats.objects.stop) == (0, 10)
        assert stats.objects.size == sum(path.stat().st_size for path in world.object_files(MY_TOPIC))
        assert (stats.memory.start, stats.memory.stop) == (8, 10), "the newest two"
        assert stats.bytes_stored == stats.log.size + stats.objects.size + stats.table.size
        assert stats.message_count == 10


@story
async def test_what_was_acknowledged_is_not_delivered_again_and_what_was_not_is(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage()
    await storage.store("t", messages(0, 20))
    stream = await storage.create_subscription_stream("default", "t", "s")
    found = await take(stream, 8)
    check(found, 0, 8)
    assert await stream.ack(4) == stream.cursor == 5
    with pytest.raises(InvalidRequestError):
        await stream.ack(8)
    with pytest.raises(PreconditionError, match="has a stream already"):
        await storage.create_subscription_stream("default", "t", "s")
    await stream.close()
    again = await storage.create_subscription_stream("default", "t", "s")
    check(await take(again, 15), 5, 20)
    await again.ack(19)
    await again.ack(7)
    assert again.cursor == 20, "an acknowledgement does not go back"
    await storage.shutdown()

    storage = world.storage()
    await storage.store("t", messages(20, 21))
    stream = await storage.create_subscription_stream("default", "t", "s")
    check(await take(stream, 1), 20, 21)
    assert world.pipeline.noted == [(TopicName("default", "t"), "s")]
    await storage.shutdown()


@story
async def test_two_subscriptions_of_different_speeds_resume_exactly_after_a_crash(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage(limits=Limits(messages=10))
    await storage.store("t", messages(0, 300))
    quick = await storage.create_subscription_stream("default", "t", "quick")
    slow = await storage.create_subscription_stream("default", "t", "slow")
    check(await take(slow, 2), 0, 2)
    check(await take(quick, 300), 0, 300)
    await slow.ack(0)
    await quick.ack(299)
    await storage.store("t", messages(300, 305))
    check(await take(slow, 50), 2, 52)
    await world.crash()
    await quick.close()
    await slow.close()

    storage = world.storage()
    quick = await storage.create_subscription_stream("default", "t", "quick")
    slow = await storage.create_subscription_stream("default", "t", "slow")
    check(await take(quick, 5), 300, 305)
    check(await take(slow, 304), 1, 305)
    await storage.shutdown()


@story
async def test_a_new_subscription_begins_where_it_is_told(tmp_path):
    async with SimWorld(tmp_path).storage() as storage:
        await storage.store("t", messages(0, 10))
        latest = await storage.create_subscription_stream("default", "t", "l", start=StartPosition.latest())
        fourth = await storage.create_subscription_stream("default", "t", "f", start=StartPosition.offset(4))
        await storage.store("t", messages(10, 12))
        check(await take(latest, 2), 10, 12)
        check(await take(fourth, 8), 4, 12)
        await fourth.close()
        told = await storage.create_subscription_stream("default", "t", "f", start=StartPosition.latest())
        check(await take(told, 1), 4, 5)
        with pytest.raises(OffsetOutOfRangeError):
            await storage.create_subscription_stream("default", "t", "x", start=StartPosition.offset(13))
        at_end = await storage.create_subscription_stream("default", "t", "x", start=StartPosition.offset(12))
        assert at_end.cursor == 12
        for bad in ("", "x" * 2000):
            with pytest.raises(InvalidRequestError):
                await storage.create_subscription_stream("default", "t", bad)


@story
async def test_the_table_serves_what_log_and_objects_have_lost(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage(upload={"enabled": False})
    await storage.store("t", messages(0, 50))
    await storage.shutdown()
    for path in world.log_directory().iterdir():
        path.unlink()

    storage = world.storage(upload={"enabled": False})
    assert await storage.store("t", messages(50, 52)) == range(50, 52)
    stream = await storage.create_subscription_stream("default", "t", "s")
    check(await take(stream, 52), 0, 52)
    stats = await storage.get_topic_stats("t")
    assert (stats.message_count, stats.log.start, stats.table.stop) == (52, 50, 50)
    await storage.shutdown()


@story
async def test_level_lake_waits_for_the_table_and_says_when_that_takes_too_long(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage(policies={"waits_for_table": True, "table_timeout_s": 0.05})
    await storage.store("t", messages(0, 5))
    assert await storage.get_committed_position("t") == 5
    world.pipeline.paused = True
    with pytest.raises(NotYetInTierError) as told:
        await storage.store("t", messages(5, 7))
    assert told.value.behind == (Behind("/default/t", 5, 7),)
    world.pipeline.paused = False
    await storage.shutdown()


@story
async def test_shutdown_says_what_is_not_in_the_table_and_closes_all_the_same(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage(drain_timeout_s=0.05)
    await storage.store("a", messages(0, 5))
    await storage.store("b", messages(0, 3))
    await world.pipeline.carry(topic_name("a"), 2)
    world.pipeline.paused = True
    stream = await storage.create_subscription_stream("default", "a", "s")
    waiting = asyncio.create_task(take(stream, 6))
    with pytest.raises(NotYetInTierError, match=r"/default/a: messages \[2, 5\).*/default/b.*after 0.05 s") as told:
        await storage.shutdown()
    assert told.value.behind == (Behind("/default/a", 2, 5), Behind("/default/b", 0, 3))
    assert (world.pipeline.stops, world.closed) == (1, [world.topics])
    with pytest.raises(LogClosedError):
        await waiting
    for use in (storage.store("a", messages(0, 1)), storage.list_topics(), storage.initialize_topic("a")):
        with pytest.raises(DrainingError):
            await use
    await storage.shutdown()
    assert world.pipeline.stops == 1

    storage = world.storage()
    assert await storage.get_write_position("a") == 5, "nothing is lost"
    await storage.shutdown()


@story
async def test_a_topic_without_a_table_is_not_waited_for(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage(drain_timeout_s=0.05, policies={"has_table": False})
    await storage.store("a", messages(0, 5))
    world.pipeline.paused = True
    await storage.shutdown()


@story
async def test_an_opening_that_fails_closes_what_it_opened_and_the_next_use_tries_again(tmp_path):
    world = SimWorld(tmp_path)
    storage = world.storage()
    world.metadata.fail["list"] = [OSError("no")]
    with pytest.raises(OSError, match="no"):
        await storage.list_topics()
    assert len(world.closed) == 1
    assert await storage.list_topics() == []
    await storage.shutdown()


@story
async def test_streams_of_a_deleted_topic_end(tmp_path):
    async with SimWorld(tmp_path).storage() as storage:
        await storage.store("t", messages(0, 1))
        stream = await storage.create_subscription_stream("default", "t", "s")
        waiting = asyncio.create_task(take(stream, 2))
        await asyncio.sleep(0)
        await storage.delete_topic("t")
        with pytest.raises(LogClosedError):
            await waiting
        await storage.store("t", messages(0, 1))
        fresh = await storage.create_subscription_stream("default", "t", "s")
        check(await take(fresh, 1), 0, 1)
